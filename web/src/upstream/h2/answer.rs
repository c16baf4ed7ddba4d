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

/// The most interim responses that wait for their reader, and the most bytes of their fields. Further ones are dropped.
const INTERIM_MAX: usize = 8;
const INTERIM_BYTES: usize = 16 << 10;

fn bytes_of(head: &ResponseHead) -> usize {
    head.fields().iter().map(|(name, value)| name.len() + value.len()).sum()
}

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
        let waiting = || heads.iter().map(|(head, _)| bytes_of(head)).sum::<usize>();
        if head.status() >= 200 || (heads.len() < INTERIM_MAX && waiting() + bytes_of(&head) <= INTERIM_BYTES) {
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use osier_http::h2::{Connection, Event, Limits, Outgoing};

    use super::*;

    /// Returns heads as a client receives them, each with so many bytes of fields.
    fn heads(sent: &[(u16, usize)]) -> Vec<ResponseHead> {
        let now = Instant::now();
        let mut client = Connection::client(&Limits::default(), now);
        let mut server = Connection::server(&Limits::default(), now);
        let target = Outgoing {
            method: "GET",
            scheme: "http",
            authority: "a",
            path: "/",
            protocol: None,
        };
        let stream = client.request(&target, [], true).unwrap();
        let (mut input, mut at) = (client.output(), 0);
        while !input.is_empty() {
            at = server.receive(input, now).unwrap().0;
            input = &input[at..];
        }
        assert!(at > 0);
        for &(status, bytes) in sent {
            server.send_head(stream, status, [("x", &vec![b'v'; bytes - 1][..])], false);
        }
        let (mut input, mut heads) = (server.output(), Vec::new());
        while !input.is_empty() {
            let (count, event) = client.receive(input, now).unwrap();
            input = &input[count..];
            if let Some(Event::Response { head, .. }) = event {
                heads.push(*head);
            }
        }
        assert_eq!(heads.len(), sent.len());
        heads
    }

    #[test]
    fn interim_responses_that_wait_are_bounded_and_the_final_one_is_kept() {
        for (sent, kept) in [
            (&[(103, 100); 12][..], 8),
            (&[(103, 8 << 10), (103, 8 << 10), (103, 2)][..], 2),
            (&[(103, 16 << 10), (103, 2)][..], 1),
            (&[(103, (16 << 10) + 1), (103, 2)][..], 1),
        ] {
            let answer = Answer::new();
            for head in heads(sent).into_iter().chain(heads(&[(200, 30 << 10)])) {
                answer.receive_head(Box::new(head), false);
            }
            let taken: Vec<u16> = std::iter::from_fn(|| answer.take_head())
                .map(|(head, _)| head.status())
                .collect();
            assert_eq!(taken, [vec![103; kept], vec![200]].concat());
        }
    }
}
