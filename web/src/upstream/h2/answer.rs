//! The receiving side of a stream, and the reasons why streams and connections end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use osier_http::h2::{ErrorCode, ResponseHead};

use crate::conn::inlet::Inlet;

/// The reason why a connection ended.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    kind: io::ErrorKind,
    text: Rc<str>,
}

impl Lost {
    pub(super) fn new(kind: io::ErrorKind, text: impl Into<Rc<str>>) -> Lost {
        Lost {
            kind,
            text: text.into(),
        }
    }

    pub(super) fn of(error: &io::Error) -> Lost {
        Lost::new(error.kind(), error.to_string())
    }

    pub(super) fn to_error(&self) -> io::Error {
        io::Error::new(self.kind, &*self.text)
    }
}

/// The most interim responses that wait for their reader. Further ones are dropped.
const INTERIM_MAX: usize = 8;

/// The reason why a stream ended before the end of its response.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    /// The stream was reset, by the backend or because its response breaks the rules.
    Stream { code: ErrorCode, by_peer: bool },
    /// The connection has ended.
    Connection(Lost),
    /// This end has cancelled the stream.
    Cancelled,
}

/// The receiving side of a stream, which the connection fills.
pub(super) struct Answer {
    pub(super) inlet: Inlet,
    /// Heads that were not taken yet. The flag says that the stream ends with the head.
    heads: RefCell<VecDeque<(Box<ResponseHead>, bool)>>,
    cut: RefCell<Option<Cut>>,
}

impl Answer {
    pub(super) fn new() -> Answer {
        Answer {
            inlet: Inlet::new(false),
            heads: RefCell::default(),
            cut: RefCell::default(),
        }
    }

    /// Adds a head that has arrived.
    pub(super) fn receive_head(&self, head: Box<ResponseHead>, end: bool) {
        let mut heads = self.heads.borrow_mut();
        if head.status() >= 200 || heads.len() < INTERIM_MAX {
            heads.push_back((head, end));
        }
        drop(heads);
        self.inlet.receive(&[], end);
    }

    /// Ends the stream before the end of its response. The first reason counts.
    pub(super) fn cut(&self, cut: Cut) {
        self.cut.borrow_mut().get_or_insert(cut);
        self.inlet.reset();
    }

    /// Takes the next head.
    pub(super) fn take_head(&self) -> Option<(Box<ResponseHead>, bool)> {
        self.heads.borrow_mut().pop_front()
    }

    /// Whether a head, bytes of the body or an end have arrived.
    pub(super) fn is_readable(&self) -> bool {
        self.inlet.is_readable() || !self.heads.borrow().is_empty()
    }

    /// Whether the backend has said that it has not processed the request.
    pub(super) fn is_refused(&self) -> bool {
        let cut = self.cut.borrow();
        matches!(&*cut, Some(Cut::Stream { code, by_peer: true }) if *code == ErrorCode::REFUSED_STREAM)
    }

    /// The error of a stream that is cut.
    pub(super) fn error(&self) -> io::Error {
        match &*self.cut.borrow() {
            Some(Cut::Stream { code, by_peer: true }) => {
                let text = format!("the stream was reset with {code}");
                io::Error::new(io::ErrorKind::ConnectionReset, text)
            }
            Some(Cut::Stream { code, by_peer: false }) => {
                let text = format!("the response breaks the rules of HTTP/2 ({code})");
                io::Error::new(io::ErrorKind::InvalidData, text)
            }
            Some(Cut::Connection(lost)) => lost.to_error(),
            Some(Cut::Cancelled) | None => io::ErrorKind::ConnectionReset.into(),
        }
    }
}
