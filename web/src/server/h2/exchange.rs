//! One exchange: it serves the request of a stream.

use http::Extensions;
use osier_http::Head;
use osier_http::h2::RequestHead;

use crate::conn::close::CloseReason;
use crate::conn::output::Output;
use crate::conn::paused::{Paused, Unfinished};
use crate::conn::peer::Peer;
use crate::conn::serve::{After, ReadHead};
use crate::conn::stream::ClientStream;
use crate::server::h2::stream::Stream;
use crate::server::h2::tunnel;

/// The next step of a stream behind its fiber.
pub(super) enum Next {
    Ends,
    /// It is a tunnel.
    GoesOn,
    /// The response waits, and holds no fiber.
    Pauses(Box<Paused>),
}

/// Serves the request of a stream, which has this head or is refused.
///
/// # Suspends
///
/// Suspends when the handler does, and while the client takes no bytes.
pub(super) fn serve(stream: &Stream, head: ReadHead<'_>) -> Next {
    run(stream, |client, output| {
        stream.shared.local.app.serve_stream(client, output, head)
    })
}

/// Goes on with a response that has paused, whose request holds `held`.
///
/// # Suspends
///
/// As [`serve`] does.
pub(super) fn go_on(
    stream: &Stream,
    request: &RequestHead,
    response: Box<dyn Unfinished>,
    held: &mut Extensions,
) -> Next {
    // It was read once before.
    let Ok(head) = Head::from_http2(request) else {
        return Next::Ends;
    };
    run(stream, |client, output| {
        let app = &stream.shared.local.app;
        app.serve_paused_stream(client, output, &head, response, held)
    })
}

fn run(stream: &Stream, answer: impl FnOnce(Peer<'_>, &Output<'_>) -> Option<After>) -> Next {
    let shared = &stream.shared;
    let worker = &shared.local.worker;
    let client: &dyn ClientStream = stream;
    let output = Output::until(client, worker.take_output(), &worker.server.shutdown);
    match answer(client.into(), &output) {
        None | Some(After::Linger(_) | After::End(CloseReason::LastResponse)) => {
            let is_whole = !output.is_broken();
            let (last, trailers) = output.into_last();
            if is_whole {
                // The client may be gone. There is nobody to tell.
                let _ = stream.end(&last, &trailers);
            }
            worker.give_output(last);
        }
        Some(After::Taken(takeover, extensions)) => {
            let goes_on = output.flush().is_ok() && tunnel::begin(stream, takeover, extensions);
            worker.give_output(output.take_buffer());
            if goes_on {
                return Next::GoesOn;
            }
        }
        Some(After::Pause(response)) => {
            worker.give_output(output.take_buffer());
            return Next::Pauses(response);
        }
        Some(After::End(_) | After::Gone) => worker.give_output(output.take_buffer()),
        Some(After::Wait(_) | After::Send(_) | After::Receive(_)) => unreachable!("only a connection rests"),
    }
    Next::Ends
}
