//! `request_id`: sends the id of a request to its backends and its client, in the field `X-Request-ID`.

use osier_web::{Request, Response};

const FIELD: &str = "x-request-id";

/// The ends that get the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestIds {
    pub backends: bool,
    pub response: bool,
}

impl RequestIds {
    /// Lets backends have the id.
    #[inline]
    pub fn forward(&self, request: &Request<'_>) {
        if self.backends {
            request.forward_id();
        }
    }

    /// Writes the id into the response.
    #[inline]
    pub fn answer(&self, request: &Request<'_>, response: Response) -> Response {
        match self.response {
            // A backend may have sent it back.
            true => response.remove(FIELD).header(FIELD, request.id().as_str()),
            false => response,
        }
    }
}
