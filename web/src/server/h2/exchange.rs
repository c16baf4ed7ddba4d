//! One exchange: it serves the request of a stream.

use osier_http::{Head, Reject};

use crate::conn::close::CloseReason;
use crate::conn::output::Output;
use crate::conn::serve::After;
use crate::conn::stream::ClientStream;
use crate::server::h2::stream::Stream;
use crate::server::h2::tunnel;

/// Serves the request of a stream, which has this head or is refused. Returns whether the stream goes on without its fiber.
///
/// # Suspends
///
/// Suspends when the handler does, and while the client takes no bytes.
pub(super) fn serve(stream: &Stream, head: Result<&Head<'_>, Reject>) -> bool {
    let shared = &stream.shared;
    let worker = &shared.local.worker;
    let client: &dyn ClientStream = stream;
    let output = Output::new(client, worker.take_output()).until(&worker.server.shutdown);
    let after = shared.local.app.serve_stream(client.into(), &output, head);
    match after {
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
            worker.give_output(output.into_buffer());
            return goes_on;
        }
        Some(After::End(_) | After::Gone) => worker.give_output(output.into_buffer()),
        Some(After::Wait(_) | After::Send(_) | After::Receive(_)) => unreachable!("only a connection rests"),
    }
    false
}
