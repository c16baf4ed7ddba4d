//! A stream whose response has paused, or has not begun because the body of the request has not arrived: a future waits, and holds no stack.
//!
//! ```text
//!   exchange ─ After::Pause ─▶ Resting, in a future ─┬ there is something to do, bytes have arrived ─▶ a fiber: exchange::go_on
//!                                                    └ the stream is reset ─▶ the response is cut
//! ```

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use osier::time::Sleep;
use osier_http::Head;
use osier_http::h2::{RequestHead, StreamId};

use crate::conn::paused::{PAUSED_BYTES, Paused, Unfinished};
use crate::server::h2::exchange::{self, Next};
use crate::server::h2::shared::Shared;
use crate::server::h2::stream::Stream;

/// The most tries for a fiber, in a row.
const TRIES: u8 = 50;

/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Leaves the response to a future.
pub(super) fn begin(stream: Stream, request: Arc<RequestHead>, paused: Box<Paused>) {
    let ends = Ends(Some(stream.shared.clone()), stream.id);
    let resting = Resting::new(paused, request, stream, ends);
    drop(osier::spawn_future_local(resting.run()));
}

/// A response that has paused.
struct Resting {
    response: Unreported,
    /// It holds the values of the request.
    paused: Box<Paused>,
    stream: Stream,
    ends: Ends,
}

impl Resting {
    fn new(mut paused: Box<Paused>, request: Arc<RequestHead>, stream: Stream, ends: Ends) -> Resting {
        let held = paused.response.as_ref().map_or(0, |response| response.bytes());
        paused.charge.resize(PAUSED_BYTES + held);
        Resting {
            response: Unreported(paused.response.take(), request),
            paused,
            stream,
            ends,
        }
    }

    /// Waits, and has fibers go on, until the response ends.
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let is_cut = self.wait().await;
            let left = Rc::new(Cell::new(Some(self)));
            let taken = left.clone();
            // The report of a response that is cut may wait, so it comes on a fiber, too.
            let fiber = osier::spawn_local(move || taken.take().filter(|_| !is_cut).and_then(Resting::go_on));
            let goes_on = fiber.await.ok().flatten();
            self = match (goes_on, left.take()) {
                (Some(again), _) => {
                    tries = 0;
                    again
                }
                // There was no stack.
                (None, Some(resting)) if tries < TRIES => {
                    tries += 1;
                    Sleep::new(PAUSE).await;
                    resting
                }
                (None, _) => return,
            };
        }
    }

    /// Waits until the code of the body goes on. Returns whether the stream has been reset instead.
    async fn wait(&mut self) -> bool {
        let mut reset = pin!(self.stream.reset());
        let response = &mut self.response.0;
        poll_fn(|cx| match (reset.as_mut().poll(cx), response.as_mut()) {
            (Poll::Ready(()), _) | (_, None) => Poll::Ready(true),
            (Poll::Pending, Some(response)) => response.poll_ready(cx).map(|()| false),
        })
        .await
    }

    /// The work of a fiber. Returns a response that has paused again.
    ///
    /// # Suspends
    ///
    /// As [`exchange::go_on`] does.
    fn go_on(mut self) -> Option<Resting> {
        let response = self.response.0.take()?;
        let (request, held) = (self.response.1.clone(), &mut self.paused.extensions);
        match exchange::go_on(&self.stream, &request, response, held) {
            Next::Pauses(again) => Some(Resting::new(again, request, self.stream, self.ends)),
            Next::Ends => None,
            Next::GoesOn => {
                // The tunnel ends the stream.
                self.ends.0 = None;
                None
            }
        }
    }
}

/// A response and the head of its request. Its drop reports a response that is cut: on a fiber, but for one that meets the end of the
/// runtime or the lack of a stack.
struct Unreported(Option<Box<dyn Unfinished>>, Arc<RequestHead>);

impl Drop for Unreported {
    fn drop(&mut self) {
        if let (Some(response), Ok(head)) = (self.0.take(), Head::from_http2(&self.1)) {
            response.report_stream(&head);
        }
    }
}

/// Ends the stream at its drop. Nothing if something else ends it.
struct Ends(Option<Rc<Shared>>, StreamId);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.remove(self.1);
        }
    }
}
