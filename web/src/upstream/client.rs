//! Ends the work of a gateway when its client leaves, because the backend would work for nobody.

use osier::Cancelled;
use osier::io::HalfClose;

use crate::conn::peer::Gone;
use crate::{Request, Response};

/// Runs `answer`, whose whole work is for the client, and cancels it when the client leaves, unless the route says
/// otherwise. The body of the response is sent under the same rule.
pub(crate) fn while_client_stays(
    request: &mut Request<'_>,
    answer: &mut dyn FnMut(&mut Request<'_>) -> Response,
) -> Response {
    let client = request.body.client();
    if request.gone != Gone::Default {
        return answer(request);
    }
    match client.while_connected(HalfClose::IsGone, || answer(request)) {
        Ok(mut response) => {
            response.ends_with_client = true;
            response
        }
        Err(_) => Response::internal_error(Cancelled),
    }
}
