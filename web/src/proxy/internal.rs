//! Files that the backend names in `X-Accel-Redirect`: a handler of this server answers in the backend's place.
//!
//! Only [`Proxy::on_internal`](super::Proxy::on_internal) turns this on. Without it all fields pass, as a proxy in front of this one may
//! be the one that they are for.

use http::StatusCode;
use osier_http::path::Path;

use super::Settings;
use crate::upstream::named;
use crate::{Request, Response};

/// A handler for paths that the backend names.
pub(super) type Internal = Box<dyn Fn(&Request<'_>, &str) -> Response + Send + Sync>;

/// Fields of a response that are for nginx, or this server in its place. `X-Accel-Buffering` passes: it is for every proxy on the way.
const FOR_SERVER: [&str; 4] = [
    "x-accel-charset",
    "x-accel-expires",
    "x-accel-limit-rate",
    "x-accel-redirect",
];

/// Fields of a request by which applications on Rack choose the path of a file. A client that sets them could name any file of the folder,
/// so they pass only where code before the proxy has set them.
const CHOOSING: [&str; 2] = ["x-sendfile-type", "x-accel-mapping"];

/// Removes the fields of the client that would choose a file.
pub(super) fn take_choice(request: &mut Request<'_>) {
    let are_of_client = CHOOSING.map(|name| (!request.changes.adds(name)).then_some(name));
    let names: Vec<&str> = are_of_client.into_iter().flatten().collect();
    let nothing: [(&str, &[u8]); 0] = [];
    // Nothing is added, so nothing can be invalid.
    let _ = request.replace_headers(&names, nothing);
}

/// Answers by `internal` if the backend's response names a path.
pub(super) fn follow(
    internal: &Internal,
    settings: &Settings,
    request: &Request<'_>,
    mut response: Response,
) -> Response {
    let named = response.fields.first("x-accel-redirect");
    let named = named.map(|path| String::from_utf8_lossy(path).into_owned());
    for name in FOR_SERVER {
        response.fields.remove(name);
    }
    let Some(named) = named else { return response };
    let Ok(path) = Path::parse(named.split('?').next().unwrap_or_default()) else {
        return Response::new(StatusCode::BAD_GATEWAY).because(format!("X-Accel-Redirect {named:?} is no path"));
    };
    let path = path.canonical();
    let answer = internal(request, path);
    let status = answer.status();
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN) {
        let (method, target) = (request.method(), request.target());
        let name = settings.upstream.name();
        settings.upstream.say(format_args!(
            "upstream {name}: {method} {target}: {status}: the backend names {path}, which cannot be sent"
        ));
    }
    named::described(answer, status.is_success(), response.fields.iter())
}
