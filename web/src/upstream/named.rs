//! Files that a backend names in its response, by `X-Accel-Redirect` for example: the response that takes its place.

use http::StatusCode;

use crate::Response;

/// The backend's fields that describe the file, or say who may do what with it. They are sent only with the file.
const OF_FILE: [&str; 14] = [
    "access-control-allow-credentials",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "content-disposition",
    "content-security-policy",
    "content-security-policy-report-only",
    "content-type",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "permissions-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-frame-options",
];

/// The backend's fields that go into a response made in place of its own.
const OF_RESPONSE: [&str; 4] = ["cache-control", "expires", "set-cookie", "vary"];

/// Adds those of the backend's `fields` that go with `response`, which is made in place of the backend's. `is_file`: it has the file, or
/// a part of it.
pub(crate) fn described<'f>(
    mut response: Response,
    is_file: bool,
    fields: impl Iterator<Item = (&'f str, &'f [u8])>,
) -> Response {
    let given = response.status();
    // The Content-Type of several ranges is `multipart/byteranges`; each part has that of the file.
    let is_in_parts = given == StatusCode::PARTIAL_CONTENT && response.lookup("content-range").is_none();
    response.of_backend = is_file;
    for (name, value) in fields {
        let is = |known: &[&str]| known.iter().any(|known| known.eq_ignore_ascii_case(name));
        let is_of_parts = is_in_parts && name.eq_ignore_ascii_case("content-type");
        if (is_file && !is_of_parts && is(&OF_FILE))
            || ((is_file || given == StatusCode::NOT_MODIFIED) && is(&OF_RESPONSE))
        {
            response = response.header(name, value);
        }
    }
    response
}
