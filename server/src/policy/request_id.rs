//! `request_id`: sends the id of a request to its backends and its client, in the field `X-Request-ID`.

use osier_web::{Request, Response};

const FIELD: &str = "x-request-id";

/// The settings of `request_id`: who gets the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestIds {
    pub backends: bool,
    pub response: bool,
}

impl RequestIds {
    /// Sends the id to backends, if they are to get it.
    #[inline]
    pub fn forward(&self, request: &Request<'_>) {
        if self.backends {
            request.forward_id();
        }
    }

    /// Writes the id into the response, if it is to have one.
    #[inline]
    pub fn answer(&self, request: &Request<'_>, response: Response) -> Response {
        match self.response {
            // A backend may have sent one.
            true => response.remove(FIELD).header(FIELD, request.id().as_str()),
            false => response,
        }
    }
}
