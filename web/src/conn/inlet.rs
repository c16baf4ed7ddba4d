//! The inlet of an HTTP/2 stream, which its connection fills: the bytes of a body, the end of a wait for room, a reset.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::Duration;

use osier::memory::{Account, Charge};
use osier::sync::{Event, Interrupt};
use osier::time::Stamp;
use osier_http::h2::FieldSection;

use crate::conn::trailers::Trailers;

pub(crate) struct Inlet {
    inbox: RefCell<Inbox>,
    /// Set when a read may return, for the one fiber that reads.
    pub(crate) arrived: Event,
    /// Set when the stream may send more, for the one fiber that writes.
    pub(crate) writable: Event,
    /// Called where `arrived` is set, if nobody waits for that.
    on_arrival: OnceCell<Box<dyn Fn()>>,
    /// Made at the first need.
    gone: OnceCell<Interrupt>,
    is_reset: Cell<bool>,
    /// Since when a fiber waits for bytes.
    awaited: Cell<Option<Stamp>>,
    /// Since when it has waited in vain, if it has given up and nothing has arrived since.
    in_vain: Cell<Option<Stamp>>,
    /// Whether the peer may be silent for any time.
    may_pause: Cell<bool>,
}

/// A wait of a fiber for bytes.
pub(crate) struct Awaits<'i>(&'i Inlet);

impl Drop for Awaits<'_> {
    fn drop(&mut self) {
        self.0.awaited.set(None);
    }
}

impl Awaits<'_> {
    /// Ends the wait, in vain. The next one counts from its beginning.
    pub(crate) fn give_up(self) {
        self.0.in_vain.set(self.0.awaited.get());
    }
}

/// The most memory that an empty inbox keeps. The windows bound what is in it, not what it has held.
const INBOX_KEPT: usize = 2 << 10;

/// Received bytes that nobody has read. The stream's window bounds them.
struct Inbox {
    bytes: VecDeque<u8>,
    has_ended: bool,
    /// The trailer of the body.
    trailers: Option<Box<FieldSection>>,
    /// The memory of `bytes`.
    charge: Charge,
}

impl Inbox {
    fn settle(&mut self) {
        self.charge.resize(self.bytes.capacity());
    }
}

impl Inlet {
    /// Makes the inlet of a new stream. With `has_ended` no body comes.
    pub(crate) fn new(has_ended: bool) -> Inlet {
        Inlet {
            inbox: RefCell::new(Inbox {
                bytes: VecDeque::new(),
                has_ended,
                trailers: None,
                charge: Account::HTTP2.charge(0),
            }),
            arrived: Event::new(),
            writable: Event::new(),
            on_arrival: OnceCell::new(),
            gone: OnceCell::new(),
            is_reset: Cell::new(false),
            awaited: Cell::new(None),
            in_vain: Cell::new(None),
            may_pause: Cell::new(false),
        }
    }

    /// Notes that the fiber waits for bytes, until the drop of the result.
    pub(crate) fn awaits(&self) -> Awaits<'_> {
        let since = self.in_vain.take().unwrap_or_else(Stamp::coarse);
        self.awaited.set(Some(since));
        Awaits(self)
    }

    /// Lets the peer be silent for any time.
    pub(crate) fn allow_pauses(&self) {
        self.may_pause.set(true);
    }

    /// Whether a fiber has waited for so long in vain, and its peer may not be silent.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        // Bytes may be there that the fiber had no turn to read.
        let awaited = self
            .awaited
            .get()
            .filter(|_| !self.may_pause.get() && !self.is_readable());
        awaited.is_some_and(|since| Stamp::coarse().since(since) >= time)
    }

    /// Adds bytes of the body.
    pub(crate) fn receive(&self, bytes: &[u8], end: bool) {
        let mut inbox = self.inbox.borrow_mut();
        inbox.bytes.extend(bytes);
        inbox.has_ended |= end;
        inbox.settle();
        drop(inbox);
        self.arrives();
    }

    fn arrives(&self) {
        self.in_vain.set(None);
        self.arrived.set();
        if let Some(call) = self.on_arrival.get() {
            call();
        }
    }

    /// Sets the function to call when bytes, their end or a reset arrive. Only the first call of this method counts.
    #[cfg(feature = "h2")]
    pub(crate) fn on_arrival(&self, call: Box<dyn Fn()>) {
        let _ = self.on_arrival.set(call);
    }

    /// Ends the body with a trailer.
    pub(crate) fn end_with(&self, trailers: FieldSection) {
        self.inbox.borrow_mut().trailers = Some(Box::new(trailers));
        self.receive(&[], true);
    }

    /// Takes the trailer of the body, which is there once its end has been read.
    pub(crate) fn take_trailers(&self) -> Trailers {
        let taken = self.inbox.borrow_mut().trailers.take();
        taken.map_or_else(Trailers::new, |fields| Trailers::of(fields.iter()))
    }

    /// Notes that the stream is reset.
    pub(crate) fn reset(&self) {
        self.is_reset.set(true);
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.has_ended {
            // The machine has opened the windows for these bytes again. A body that is cut is of no use.
            inbox.bytes = VecDeque::new();
            inbox.settle();
        }
        drop(inbox);
        if let Some(gone) = self.gone.get() {
            gone.set();
        }
        self.arrives();
        self.writable.set();
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset.get()
    }

    /// Set when the stream is reset.
    pub(crate) fn gone(&self) -> Interrupt {
        let gone = self.gone.get_or_init(Interrupt::new);
        if self.is_reset.get() {
            gone.set();
        }
        gone.clone()
    }

    /// Reads received bytes, or their end. `None` if bytes have to arrive.
    pub(crate) fn take(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut inbox = self.inbox.borrow_mut();
        match inbox.bytes.read(into)? {
            0 if inbox.has_ended => Ok(Some(0)),
            0 if self.is_reset.get() => Err(io::ErrorKind::ConnectionReset.into()),
            0 => Ok(None),
            count => {
                if inbox.bytes.is_empty() && inbox.bytes.capacity() > INBOX_KEPT {
                    inbox.bytes = VecDeque::new();
                    inbox.settle();
                }
                Ok(Some(count))
            }
        }
    }

    /// Whether a read would not wait.
    pub(crate) fn is_readable(&self) -> bool {
        let inbox = self.inbox.borrow();
        !inbox.bytes.is_empty() || inbox.has_ended || self.is_reset.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_keeps_no_memory_that_its_window_does_not_count() {
        let inlet = Inlet::new(false);
        inlet.receive(&[7; 60_000], false);
        let mut into = vec![0; 60_000];
        assert_eq!(inlet.take(&mut into[..59_999]).unwrap(), Some(59_999));
        assert_eq!(inlet.take(&mut into).unwrap(), Some(1));
        assert_eq!(inlet.inbox.borrow().bytes.capacity(), 0);
        inlet.receive(&[7; 100], false);
        inlet.reset();
        assert_eq!(inlet.inbox.borrow().bytes.capacity(), 0);
        let error = inlet.take(&mut into).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_peer_whose_bytes_nobody_has_read_is_not_silent() {
        osier::run(|| {
            let inlet = Inlet::new(false);
            assert!(!inlet.is_silent_for(Duration::ZERO));
            let awaits = inlet.awaits();
            assert!(inlet.is_silent_for(Duration::ZERO));
            inlet.receive(b"body", false);
            assert!(!inlet.is_silent_for(Duration::ZERO));
            drop(awaits);
        });
    }

    #[test]
    fn a_wait_counts_from_the_beginning_of_those_in_vain_before_it() {
        let clock = osier::time::VirtualClock::new();
        let runtime = osier::Runtime::builder().clock(clock).build().unwrap();
        runtime.run(|| {
            let (inlet, second) = (Inlet::new(false), Duration::from_secs(1));
            let awaits = inlet.awaits();
            osier::sleep(second);
            awaits.give_up();
            assert!(!inlet.is_silent_for(second), "no fiber waits");
            let awaits = inlet.awaits();
            osier::sleep(second);
            assert!(inlet.is_silent_for(2 * second) && !inlet.is_silent_for(3 * second));
            awaits.give_up();
            inlet.receive(b"body", false);
            assert_eq!(inlet.take(&mut [0; 4]).unwrap(), Some(4));
            let _awaits = inlet.awaits();
            osier::sleep(second);
            assert!(!inlet.is_silent_for(2 * second));
        });
    }

    #[test]
    fn a_whole_body_is_read_after_a_reset() {
        let inlet = Inlet::new(false);
        inlet.receive(b"body", true);
        inlet.reset();
        let mut into = [0; 8];
        assert_eq!(inlet.take(&mut into).unwrap(), Some(4));
        assert_eq!(inlet.take(&mut into).unwrap(), Some(0));
    }
}
