//! A stream whose response has paused: a future waits for it, and holds no stack.
//!
//! ```text
//!   exchange ─ After::Pause ─▶ Resting, in a future ─┬ the code of the body has something to do ─▶ a fiber: exchange::go_on
//!                                                    └ the stream is reset ─▶ the response is cut
//! ```

use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use osier_http::Head;
use osier_http::h2::{RequestHead, StreamId};

use crate::conn::paused::{PAUSED_BYTES, Paused, Unfinished};
use crate::server::h2::exchange;
use crate::server::h2::shared::Shared;
use crate::server::h2::stream::Stream;

/// Leaves the response to a future.
pub(super) fn begin(stream: Stream, request: Arc<RequestHead>, mut paused: Box<Paused>) {
    paused.charge.resize(PAUSED_BYTES);
    let resting = Resting {
        response: Unreported(paused.response.take(), request),
        paused,
        ends: Ends(stream.shared.clone(), stream.id),
        stream,
    };
    drop(osier::spawn_future_local(resting.wait()));
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
    async fn wait(mut self) {
        let mut reset = pin!(self.stream.reset());
        let is_ready = poll_fn(|cx| {
            if reset.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            let response = self.response.0.as_mut().expect("only the fiber takes it");
            response.poll_ready(cx).map(|()| true)
        });
        let is_ready = is_ready.await;
        // The report of a response that is cut may wait, so it comes on a fiber, too.
        drop(osier::spawn_local(move || match is_ready {
            true => self.go_on(),
            false => drop(self),
        }));
    }

    /// The work of the fiber.
    ///
    /// # Suspends
    ///
    /// As [`exchange::go_on`] does.
    fn go_on(mut self) {
        let response = self.response.0.take().expect("only this fiber takes it");
        let held = &mut self.paused.extensions;
        if exchange::go_on(&self.stream, &self.response.1, response, held) {
            mem::forget(self.ends);
        }
    }
}

/// A response and the head of its request. Its drop reports a response that is cut.
struct Unreported(Option<Box<dyn Unfinished>>, Arc<RequestHead>);

impl Drop for Unreported {
    fn drop(&mut self) {
        if let (Some(response), Ok(head)) = (self.0.take(), Head::from_http2(&self.1)) {
            response.report_stream(&head);
        }
    }
}

/// Ends the stream at its drop.
struct Ends(Rc<Shared>, StreamId);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}
