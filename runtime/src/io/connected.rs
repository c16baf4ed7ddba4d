//! `while_connected`: work that is cancelled when its client has gone.
//!
//! The frame that it pushes looks at the socket's closed bits at every checkpoint. That look is free. To be *woken* by
//! these bits while the fiber waits for something else has a cost: the fiber joins the socket's list of readers, and
//! its worker becomes the owner of the read direction. A hook does both right before the fiber suspends, so a body that
//! never waits pays for neither. An edge wakes all readers in the list. If it brings bytes and no end, the fiber was
//! woken for nothing, and joins the list again before it suspends the next time.
//!
//! A poller that refuses the socket wakes the whole list, because each of its readers has to hear of that. So after a refusal this
//! fiber leaves the list, and joins it again at its first suspension that comes a while after: otherwise no suspension would last. A suspension
//! that has begun meanwhile does not hear of the end.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::wait::cancel::{Entered, Kind};
use crate::wait::socket::Source;
use crate::worker::context::{self, Caller, now};
use crate::worker::hook::before_suspend;

/// Time from a refusal of the poller to the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// The meaning of a client that has ended its own direction and still reads (a FIN without a reset).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HalfClose {
    /// The client has gone, unless the fiber waits for this very client at that moment.
    IsGone,
    /// The client waits for an answer.
    IsFine,
}

/// The peer went away before the closure of [`while_connected`] was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected(());

osier_queue::impl_error!(Disconnected, self => "the peer closed the connection");

impl From<Disconnected> for io::Error {
    fn from(disconnected: Disconnected) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, disconnected)
    }
}

/// Runs `body` and cancels it when the peer of `stream` has gone. The peer has gone when it reset the connection,
/// closed both directions, or, with [`HalfClose::IsGone`], closed its own.
///
/// A poller that does not tell a half-close from bytes ([`read_closed`](crate::poll::Capabilities::read_closed): any
/// but epoll) does not see one behind bytes that nobody reads. It does see a reset.
///
/// It is for streams. A datagram socket counts as gone from the first datagram on that its peer's host refused.
///
/// The body meets that as a [cancellation](crate::Cancelled), and only the body: outside of this call nothing is
/// cancelled. It may read and write the stream meanwhile.
///
/// ```
/// use osier::io::{HalfClose, while_connected};
/// use osier::net::UnixStream;
/// use std::time::Duration;
/// osier::run(|| {
///     let (ours, theirs) = UnixStream::pair()?;
///     osier::spawn(move || drop(theirs));
///     let outcome = while_connected(&ours, HalfClose::IsGone, || osier::sleep(Duration::from_secs(60)));
///     assert!(outcome.is_err());
///     std::io::Result::Ok(())
/// }).unwrap();
/// ```
///
/// # Suspends
///
/// Only where `body` does.
///
/// # Errors
///
/// [`Disconnected`] when the peer went and a blocking call of the body met that. A body that finishes without meeting a
/// blocking call after that returns its value. On a plain thread nothing could end the body, so it just runs.
#[doc(alias = "disconnect")]
pub fn while_connected<T>(
    stream: &(impl Source + ?Sized),
    half_close: HalfClose,
    body: impl FnOnce() -> T,
) -> Result<T, Disconnected> {
    if !context::caller(|caller| matches!(caller, Caller::Fiber(..))) {
        return Ok(body());
    }
    let watched = stream.watched();
    let entry = watched.entry();
    let waiter = pin!(entry.readers().waiter());
    let waiter = RefCell::new(waiter);
    let refused = Cell::new(None::<Instant>);
    let in_line = || {
        if refused
            .get()
            .is_some_and(|refused| now().saturating_duration_since(refused) < PAUSE)
        {
            return;
        }
        let mut waiter = waiter.borrow_mut();
        context::core(|core| {
            let waker = core.word.waker();
            if !waiter.as_mut().register(&waker) {
                waiter.as_mut().remove();
                let _ = waiter.as_mut().register(&waker);
            }
        });
        // Where the poller refuses, the next call on the stream meets the client's end, as without this function.
        let is_refused = watched.watch_end().is_err();
        if is_refused {
            waiter.as_mut().remove();
        }
        refused.set(is_refused.then(now));
    };
    let frame = Kind::Gone {
        entry,
        half_close_is_gone: half_close == HalfClose::IsGone,
    };
    before_suspend(&in_line, || Entered::push(frame).run(body)).map_err(|()| Disconnected(()))
}
