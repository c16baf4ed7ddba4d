//! The inlet of a stream, which its connection fills: the bytes of the request's body, the word that it may send more, its reset.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};

use osier::sync::{Event, Interrupt};

pub(super) struct Inlet {
    inbox: RefCell<Inbox>,
    /// Set when a read may return, for the one fiber that reads.
    pub(super) arrived: Event,
    /// Set when the stream may send more, for the one fiber that writes.
    pub(super) writable: Event,
    /// Made at the first need.
    gone: OnceCell<Interrupt>,
    is_reset: Cell<bool>,
}

/// Received bytes that nobody has read. The stream's window bounds them.
struct Inbox {
    bytes: VecDeque<u8>,
    has_ended: bool,
}

impl Inlet {
    /// Makes the inlet of a new stream. With `has_ended` its request has no body.
    pub(super) fn new(has_ended: bool) -> Inlet {
        Inlet {
            inbox: RefCell::new(Inbox {
                bytes: VecDeque::new(),
                has_ended,
            }),
            arrived: Event::new(),
            writable: Event::new(),
            gone: OnceCell::new(),
            is_reset: Cell::new(false),
        }
    }

    /// Adds bytes of the request's body.
    pub(super) fn receive(&self, bytes: &[u8], end: bool) {
        let mut inbox = self.inbox.borrow_mut();
        inbox.bytes.extend(bytes);
        inbox.has_ended |= end;
        drop(inbox);
        self.arrived.set();
    }

    /// Notes that the stream is reset.
    pub(super) fn reset(&self) {
        self.is_reset.set(true);
        if let Some(gone) = self.gone.get() {
            gone.set();
        }
        self.arrived.set();
        self.writable.set();
    }

    pub(super) fn is_reset(&self) -> bool {
        self.is_reset.get()
    }

    /// Set when the stream is reset.
    pub(super) fn gone(&self) -> Interrupt {
        let gone = self.gone.get_or_init(Interrupt::new);
        if self.is_reset.get() {
            gone.set();
        }
        gone.clone()
    }

    /// Reads received bytes, or their end. `None` if bytes have to arrive.
    pub(super) fn take(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut inbox = self.inbox.borrow_mut();
        match inbox.bytes.read(into)? {
            0 if inbox.has_ended => Ok(Some(0)),
            0 if self.is_reset.get() => Err(io::ErrorKind::ConnectionReset.into()),
            0 => Ok(None),
            count => Ok(Some(count)),
        }
    }

    /// Whether a read would not wait.
    pub(super) fn is_readable(&self) -> bool {
        let inbox = self.inbox.borrow();
        !inbox.bytes.is_empty() || inbox.has_ended || self.is_reset.get()
    }
}
