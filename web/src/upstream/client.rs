//! The end of a gateway's work when its client leaves: the backend then works for nobody.

use osier::Cancelled;
use osier::io::{HalfClose, while_connected};

use crate::conn::peer::Gone;
use crate::{Request, Response};

/// Runs `answer`, whose whole work is for the client, and cancels it when the client leaves, unless the route says
/// otherwise. The body of the response is sent under the same rule.
pub(crate) fn while_client_stays(
    request: &mut Request<'_>,
    answer: &mut dyn FnMut(&mut Request<'_>) -> Response,
) -> Response {
    let client = request.body.client();
    let stream = client.socket().filter(|_| request.gone == Gone::Default);
    let Some(stream) = stream else { return answer(request) };
    match while_connected(stream, HalfClose::IsGone, || answer(request)) {
        Ok(mut response) => {
            response.ends_with_client = true;
            response
        }
        Err(_) => Response::internal_error(Cancelled),
    }
}
