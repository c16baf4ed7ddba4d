//! The body of a backend's response on its way to the client.
//!
//! ```text
//!   source ─▶ pass_on, on the connection's own fiber: the first AT_FIRST bytes, while the client takes all of them at once
//!                │ it does not, or the body is long               │ the body is long and plain
//!                ▼                                                ▼
//!              ahead: a second fiber reads for a slow client    the caller splices
//! ```
//!
//! Where nothing arrives for a while, and the client has all bytes, the body pauses (`conn/paused.rs`): a stream of events holds no stack.
//!
//! Most bodies end on the first way. It needs no second fiber, no queue and one copy less.

use std::collections::VecDeque;
use std::io;

use osier::fiber::{Activity, waits_for};
use osier_http::is_field;

use super::ahead::{Bounds, Piece, Source, Stopped, read_ahead};
use crate::conn::ignoring_case::strip_prefix;
use crate::conn::output::{Flushed, Outlet, PausedCode, Producer};
use crate::conn::peer::SLOW_AFTER;
use crate::conn::waited::Beginning;

/// The most bytes that the connection's own fiber passes on.
const AT_FIRST: u64 = 256 << 10;

/// Whether a field of a received response says that its body is not to be buffered.
pub(crate) fn is_stream(name: &str, value: &[u8]) -> bool {
    let value_begins = |with| strip_prefix(value, with).is_some();
    (is_field(name, "x-accel-buffering") && value.eq_ignore_ascii_case(b"no"))
        || (is_field(name, "content-type") && (value_begins(b"text/event-stream") || value_begins(b"application/grpc")))
}

/// Passes `rest` and the body on until the body ends, until the client has caught up, or until nothing arrives. The source is dropped as soon
/// as it has been read.
///
/// # Suspends
///
/// While the backend sends, and while the client reads.
///
/// # Errors
///
/// The errors of writing to the client and of reading from the source.
///
/// # Panics
///
/// If reading from the source does.
pub(crate) fn pass_on<S: Source>(
    source: &mut Option<S>,
    rest: VecDeque<Piece>,
    bounds: &Bounds,
    can_splice: bool,
    out: &mut dyn Outlet,
) -> io::Result<Stopped> {
    if rest.is_empty()
        && let Some(body) = source
        && let Some(stopped) = keep_up(body, can_splice, out)?
    {
        if let Stopped::Done = stopped {
            *source = None;
        }
        return Ok(stopped);
    }
    read_ahead(source, rest, bounds, can_splice, out)
}

/// Leaves the wait for the source to `out`. Its code then goes on by `go_on`, with the outcome of the wait.
pub(crate) fn pause<S: 'static>(
    mut source: S,
    wait: impl AsyncFnOnce(&mut S) -> io::Result<()> + 'static,
    go_on: impl FnOnce(S, io::Result<()>, &mut dyn Outlet) -> io::Result<()> + 'static,
    out: &mut dyn Outlet,
) {
    let code = Box::pin(async move {
        let waited = wait(&mut source).await;
        let go_on: Producer = Box::new(move |out| go_on(source, waited, out));
        go_on
    });
    out.pause(PausedCode {
        code,
        waits_for: Activity::Network,
    });
}

/// Passes the body on while the client takes all bytes at once. `None` if it does not, or if the body is long.
///
/// # Suspends
///
/// While the backend sends.
fn keep_up(source: &mut impl Source, can_splice: bool, out: &mut dyn Outlet) -> io::Result<Option<Stopped>> {
    let mut passed = 0;
    loop {
        if source.may_wait() {
            if out.try_flush()? != Flushed::All || passed >= AT_FIRST {
                return Ok(None);
            }
            if can_splice && source.is_worth_splicing() {
                return Ok(Some(Stopped::KeepsUp));
            }
            let patience = out.patience();
            let lasts = patience.unwrap_or(SLOW_AFTER);
            let mut goes_on = || {
                if patience.is_none() {
                    out.shrink();
                }
                patience.is_none()
            };
            let mut beginning = Beginning {
                lasts,
                goes_on: &mut goes_on,
            };
            if !waits_for(Activity::Network, || source.wait(&mut beginning))? {
                return Ok(Some(Stopped::Silent(lasts)));
            }
        }
        let (count, has_ended) = source.pass_on(out)?;
        passed += count;
        if has_ended {
            return Ok(Some(Stopped::Done));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::rc::Rc;

    use super::*;
    use crate::body::ahead::tests::bounds;

    /// A body in pieces of 1,000 bytes, which counts those that are read ahead.
    struct Pieces {
        left: usize,
        ahead: Rc<Cell<usize>>,
    }

    impl Source for Pieces {
        fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.left.min(1000).min(into.len());
            self.left -= count;
            self.ahead.update(|ahead| ahead + count);
            Ok(count)
        }

        fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<(u64, bool)> {
            let count = self.left.min(1000);
            self.left -= count;
            out.write_all(&vec![b'x'; count])?;
            Ok((count as u64, count == 0))
        }

        fn may_wait(&self) -> bool {
            self.left > 0
        }

        fn wait(&mut self, _: &mut Beginning<'_>) -> io::Result<bool> {
            Ok(true)
        }
    }

    /// A client that takes so many bytes at once, and the rest after a while.
    struct Taking {
        at_once: usize,
        taken: usize,
    }

    impl Write for Taking {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.taken += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Outlet for Taking {
        fn try_flush(&mut self) -> io::Result<Flushed> {
            Ok(match self.taken <= self.at_once {
                true => Flushed::All,
                false => Flushed::Unknown,
            })
        }
    }

    #[test]
    fn a_second_fiber_reads_only_for_a_client_that_does_not_keep_up_and_for_long_bodies() {
        let first = AT_FIRST as usize;
        osier::run(|| {
            for (length, at_once, passed) in [
                (0, 0, 0),
                (50_500, usize::MAX, 50_500),
                (50_500, 20_500, 21_000),
                (50_500, 0, 1_000),
                (2 * first, usize::MAX, first.next_multiple_of(1_000)),
            ] {
                let ahead = Rc::new(Cell::new(0));
                let mut source = Some(Pieces {
                    left: length,
                    ahead: ahead.clone(),
                });
                let mut client = Taking { at_once, taken: 0 };
                let bounds = bounds(usize::MAX, 0);
                pass_on(&mut source, VecDeque::new(), &bounds, false, &mut client).unwrap();
                assert_eq!(client.taken, length);
                assert_eq!(length - ahead.get(), passed, "{length} bytes, {at_once} at once");
                assert!(source.is_none(), "the backend is free");
            }
        });
    }
}
