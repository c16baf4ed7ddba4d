//! `relay`: passes bytes between two streams in both directions, and ends both when neither has moved a byte for long.
//!
//! One future drives both directions, so one waker and one timer serve them, and the relay is the same on a fiber, a plain thread and an
//! executor. The timer is not set anew for each byte: when it ends, it looks when the last byte was moved.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_io::{AsyncRead, AsyncWrite};

use crate::net::stream::zero_timeout;
use crate::wait;
use crate::wait::sleep::Sleep;
use crate::worker::context::now;

/// The buffer of one direction.
const BUFFER: usize = 16 << 10;

/// Reads after which a direction lets others run, if its streams are always ready.
const TURN: usize = 16;

/// How a [`relay`] has ended, and what it has passed on.
#[derive(Debug)]
#[must_use = "the relay may have ended with an error"]
pub struct Relayed {
    /// The bytes that `far` has taken.
    pub to_far: u64,
    /// The bytes that `near` has taken.
    pub to_near: u64,
    /// `Ok` if both streams have ended. Else the error of either, `TimedOut` if nothing has moved for the idle time, `InvalidInput` for an
    /// idle time of zero, or the error of a cancelled call.
    pub end: io::Result<()>,
}

/// Passes bytes on in both directions, until both streams have ended, one has failed, or neither direction has moved a byte for the time
/// `idle`. `None` means no such limit, and zero is refused.
///
/// The end of one stream is passed on to the other as the end of its input, and the other direction goes on. The streams are those of
/// futures-io: `as_async` of the streams of [`net`](crate::net) and of TLS streams, which lends them, or `into_async`.
///
/// ```
/// use osier::io::relay;
/// use osier::net::{Shutdown, UnixStream};
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// osier::run(|| {
///     let (mut user, client) = UnixStream::pair()?;
///     let (backend, mut service) = UnixStream::pair()?;
///     let idle = Duration::from_secs(300);
///     let relaying = osier::spawn(move || relay(client.as_async(), backend.as_async(), Some(idle)));
///
///     user.write_all(b"ping")?;
///     user.shutdown(Shutdown::Write)?;
///     let mut text = String::new();
///     service.read_to_string(&mut text)?; // to the end
///     service.write_all(b"pong!")?;
///     drop(service);
///     user.read_to_string(&mut text)?;
///     assert_eq!(text, "pingpong!");
///
///     let relayed = relaying.join().unwrap();
///     relayed.end?;
///     assert_eq!((relayed.to_far, relayed.to_near), (4, 5));
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Until the end. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Ends with the error of a cancelled call. Bytes that were read and not yet written, at most 16 KiB for each direction, are lost.
///
/// # Precision
///
/// The precision of [`sleep`](crate::sleep).
#[doc(alias("copy_bidirectional", "tunnel", "pipe"))]
pub fn relay(
    near: impl AsyncRead + AsyncWrite + Unpin,
    far: impl AsyncRead + AsyncWrite + Unpin,
    idle: Option<Duration>,
) -> Relayed {
    let mut relay = Relay::new(near, far, idle);
    let waited = wait::try_wait_for_future(|cx| relay.poll(cx));
    relay.ended(waited.unwrap_or_else(|stop| Err(stop.into())))
}

/// [`relay`] as a future.
///
/// # Cancellation
///
/// Bytes that were read and not yet written are lost, at most 16 KiB for each direction.
#[doc(alias = "copy_bidirectional")]
pub async fn relay_async(
    near: impl AsyncRead + AsyncWrite + Unpin,
    far: impl AsyncRead + AsyncWrite + Unpin,
    idle: Option<Duration>,
) -> Relayed {
    let mut relay = Relay::new(near, far, idle);
    let end = poll_fn(|cx| relay.poll(cx)).await;
    relay.ended(end)
}

struct Relay<N, F> {
    near: N,
    far: F,
    to_far: Direction,
    to_near: Direction,
    idle: Option<Idle>,
}

struct Idle {
    limit: Duration,
    /// The time of the poll that moved the last byte.
    moved: Instant,
    timer: Sleep,
}

impl<N: AsyncRead + AsyncWrite + Unpin, F: AsyncRead + AsyncWrite + Unpin> Relay<N, F> {
    fn new(near: N, far: F, idle: Option<Duration>) -> Relay<N, F> {
        Relay {
            near,
            far,
            to_far: Direction::new(),
            to_near: Direction::new(),
            idle: idle.map(|limit| Idle {
                limit,
                moved: now(),
                timer: Sleep::new(limit),
            }),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.idle.as_ref().is_some_and(|idle| idle.limit.is_zero()) {
            return Poll::Ready(Err(zero_timeout("use None for no limit, or a longer one")));
        }
        let before = (self.to_far.moves, self.to_near.moves);
        let to_far = self.to_far.poll(cx, &mut self.near, &mut self.far)?;
        let to_near = self.to_near.poll(cx, &mut self.far, &mut self.near)?;
        if to_far.is_ready() && to_near.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let Some(idle) = &mut self.idle else {
            return Poll::Pending;
        };
        if before != (self.to_far.moves, self.to_near.moves) {
            idle.moved = now();
        }
        idle.poll(cx)
    }

    fn ended(self, end: io::Result<()>) -> Relayed {
        Relayed {
            to_far: self.to_far.written,
            to_near: self.to_near.written,
            end,
        }
    }
}

impl Idle {
    /// Ready with an error when nothing has moved for the limit.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.timer.poll_elapsed(cx))?;
            // A time beyond the range of the clock is for ever.
            let Some(due) = self.moved.checked_add(self.limit) else {
                return Poll::Pending;
            };
            if due <= now() {
                let text = format!("neither direction has moved a byte for {:?}", self.limit);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            self.timer = Sleep::until(due);
        }
    }
}

/// One direction: what was read, and not yet written.
struct Direction {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
    state: State,
    /// The bytes that were written.
    written: u64,
    /// Reads and writes, to see whether any was made.
    moves: u64,
}

#[derive(PartialEq)]
enum State {
    /// Nothing is in the streams' own buffers.
    Flushed,
    /// The writer may hold bytes back.
    Written,
    /// The reader has ended, and its end is to be passed on.
    Ending,
    Ended,
}

impl Direction {
    fn new() -> Direction {
        Direction {
            buf: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            state: State::Flushed,
            written: 0,
            moves: 0,
        }
    }

    /// Passes bytes on as long as neither stream would block. Ready at the end.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        let mut to = Pin::new(to);
        for _ in 0..TURN {
            while self.start < self.end {
                let count = ready!(to.as_mut().poll_write(cx, &self.buf[self.start..self.end]))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.start += count;
                self.written += count as u64;
                self.moves += 1;
                self.state = State::Written;
            }
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    ready!(to.as_mut().poll_close(cx))?;
                    self.state = State::Ended;
                    continue;
                }
                State::Flushed | State::Written => {}
            }
            let Poll::Ready(count) = Pin::new(&mut *from).poll_read(cx, &mut self.buf)? else {
                if self.state == State::Written {
                    ready!(to.as_mut().poll_flush(cx))?;
                    self.state = State::Flushed;
                }
                return Poll::Pending;
            };
            self.moves += 1;
            (self.start, self.end) = (0, count);
            if count == 0 {
                self.state = State::Ending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
