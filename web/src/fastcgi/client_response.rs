//! Makes the client's response from that of the backend: which fields pass, and how the body follows.
//!
//! The head may name a file below a root, which is sent instead. It may also name another path of this
//! server; the handler then runs the script of that path.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use http::StatusCode;
use osier_http::path::Path;
use osier_http::{cgi, is_field};

use super::backend_response::{Announced, BackendResponse, Pauses};
use super::sender::{Sender, while_sending};
use super::{FastCgi, Outcome, fail, refuse, stderr_of};
use crate::body::ahead::{Bounds, Stopped};
use crate::body::outgoing::Kind;
use crate::body::relay;
use crate::conn::ignoring_case::begins;
use crate::conn::log::record::Level;
use crate::conn::output::Outlet;
use crate::files::{Access, Files};
use crate::upstream::named;
use crate::{Body, Request, Response};

/// A file that the backend wants sent.
struct NamedFile<'s> {
    files: &'s Files,
    /// The name below the root of `files`, without a leading slash. `None` for a path that names no file.
    name: Option<Vec<u8>>,
    /// The URL path, as the backend has written it or would write it.
    path: String,
}

impl FastCgi {
    /// Makes the client's response. `body` is the part of the request that has not been sent yet.
    pub(super) fn respond(
        &self,
        request: &mut Request<'_>,
        mut backend: BackendResponse,
        body: &mut Sender,
    ) -> Outcome {
        // This comes first, because the head borrows `backend`.
        let is_whole = match backend.is_whole() {
            Ok(is_whole) => is_whole,
            Err(failure) => return Outcome::Response(refuse(failure)),
        };
        let head = match backend.head() {
            Ok(head) => head,
            Err(failure) => return Outcome::Response(refuse(failure)),
        };
        if self.local_redirects
            && let Some(to) = head.local_redirect()
        {
            let to = to.to_owned();
            backend.forget();
            return Outcome::Redirect(to);
        }
        if let Some(file) = self.named_file(&head) {
            let response = match file {
                Ok(file) => self.send_file(request, &head, file),
                Err(why) => fail(StatusCode::BAD_GATEWAY, &why),
            };
            backend.forget();
            return Outcome::Response(response);
        }
        let status = StatusCode::from_u16(head.status()).expect("cgi::Head has checked it");
        let mut response = Response::new(status);
        response.of_backend = true;
        let mut is_stream = false;
        let fields = head
            .fields()
            .inspect(|(name, value)| is_stream |= relay::is_stream(name, value));
        set_fields(&mut response, fields.filter(|(name, _)| !self.is_hidden(name)));
        let announced = head.content_length();
        let is_head = request.method() == "HEAD";
        if is_head || matches!(status.as_u16(), 204 | 304) {
            match is_head {
                true => backend.discard(),
                false => backend.forget(),
            }
            return Outcome::Response(match announced {
                Some(length) => response.body(Body::sized_reader(io::empty(), length)),
                None => response.body(Body::reader(io::empty())),
            });
        }
        let response = match announced {
            _ if is_whole => with_whole_body(request, response, backend.into_body(), announced),
            Some(length) if body.is_done() => {
                let (announced, bounds) = (Announced::new(backend, length), self.bounds(is_stream));
                let produce = move |out: &mut dyn Outlet| pass_on(announced, bounds, out);
                response.body(untyped(Kind::Stream(Box::new(produce), Some(length))))
            }
            None if body.is_done() => {
                let bounds = self.bounds(is_stream);
                let produce = move |out: &mut dyn Outlet| pass_on(backend, bounds, out);
                response.body(untyped(Kind::Stream(Box::new(produce), None)))
            }
            _ => {
                let mut body = std::mem::replace(body, Sender::of_nothing());
                response.body(Body::duplex(move |client, out| {
                    let lease = backend.exchange().lease();
                    while_sending(&mut body, lease.transport(), client, move || backend.copy(out))
                }))
            }
        };
        Outcome::Response(response)
    }

    /// Whether the field is for this server alone, or hidden by the options.
    fn is_hidden(&self, name: &str) -> bool {
        begins(name, "x-accel-") || self.hide.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }

    /// The file that the backend wants sent, or why it cannot be sent.
    fn named_file(&self, head: &cgi::Head<'_>) -> Option<Result<NamedFile<'_>, String>> {
        if let Some(path) = head.field("x-accel-redirect") {
            let path = String::from_utf8_lossy(path);
            let Ok(parsed) = Path::parse(path.split('?').next().unwrap_or_default()) else {
                return Some(Err(format!("X-Accel-Redirect {path:?} is no path")));
            };
            return Some(Ok(NamedFile {
                files: &self.internal_files,
                name: parsed.file_name().map(Cow::into_owned),
                path: with_canonical_path(&path).into_owned(),
            }));
        }
        let file = head.field("x-sendfile")?;
        let below = |root: &[u8]| file.strip_prefix(root).and_then(|rest| rest.strip_prefix(b"/"));
        let roots = self.fixed.root.iter().chain([&self.local_root]);
        // PHP's `__DIR__` is the root with all links resolved.
        let name = { roots }.find_map(|root| below(root)).or_else(|| {
            let place = Arc::clone(&self.place);
            let (root, _) = osier::unblock(move || place.root(Access::Blocking)).ok()?;
            below(root.real().as_os_str().as_encoded_bytes())
        });
        Some(match name {
            Some(name) => Ok(NamedFile {
                files: &self.files,
                name: Some(name.to_vec()),
                path: format!("/{}", percent_encoding::percent_encode(name, PATH)),
            }),
            None => Err(format!(
                "X-Sendfile {:?} is not below the root",
                String::from_utf8_lossy(file)
            )),
        })
    }

    /// Makes the response that sends `file`.
    ///
    /// # Suspends
    ///
    /// While the disk is read, if the kernel's cache is not enough.
    fn send_file(&self, request: &mut Request<'_>, head: &cgi::Head<'_>, file: NamedFile<'_>) -> Response {
        if let Some(internal) = &self.internal {
            let response = internal(request, &file.path);
            let is_file = response.status().is_success();
            return named::described(response, is_file, head.fields());
        }
        let status = StatusCode::from_u16(head.status()).expect("cgi::Head has checked it");
        let response = match &file.name {
            Some(name) => file.files.answer_as(status, request, name),
            None => Response::plain(StatusCode::NOT_FOUND),
        };
        let given = response.status();
        let is_file = given == status || given == StatusCode::PARTIAL_CONTENT;
        if matches!(given, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN) && given != status {
            let what = format_args!("{given}: the backend names {}, which cannot be sent", file.path);
            stderr_of(request).say(Level::Error, what);
        }
        named::described(response, is_file, head.fields())
    }
}

/// Gives `response` the fields of a head. The last one of several dates counts: each would be looked for among all fields before it, to
/// be replaced.
fn set_fields<'f>(response: &mut Response, fields: impl Iterator<Item = (&'f str, &'f [u8])>) {
    let mut date = None;
    for (name, value) in fields {
        match is_field(name, "date") {
            true => date = Some((name, value)),
            false => response.set(name, value),
        }
    }
    if let Some((name, value)) = date {
        response.set(name, value);
    }
}

/// Gives `response` a body that has been received as a whole. A body that is longer than the announced length is cut.
fn with_whole_body(
    request: &mut Request<'_>,
    response: Response,
    mut bytes: Vec<u8>,
    announced: Option<u64>,
) -> Response {
    let received = bytes.len() as u64;
    let announced = announced.unwrap_or(received);
    if received < announced {
        let why = format!("the body has {received} bytes where its Content-Length says {announced}");
        return fail(StatusCode::BAD_GATEWAY, &why);
    }
    if received > announced {
        let what = format_args!("the body is longer than its Content-Length, and was cut");
        stderr_of(request).say(Level::Warning, what);
        bytes.truncate(announced as usize);
    }
    response.body(untyped(Kind::Owned(bytes)))
}

/// A body that sets no Content-Type: the backend's is used, if it has sent one.
fn untyped(kind: Kind) -> Body {
    Body { kind, text: None }
}

/// Passes the body on, ahead of a client that is slow. If `out` lets it, it pauses where the backend sends nothing for a while.
fn pass_on(source: impl Pauses + 'static, bounds: Bounds, out: &mut dyn Outlet) -> io::Result<()> {
    let mut source = Some(source);
    loop {
        match relay::pass_on(&mut source, VecDeque::new(), &bounds, false, out)? {
            Stopped::Done => return Ok(()),
            Stopped::KeepsUp => {}
            Stopped::Silent(_) => break,
        }
    }
    if let Some(silent) = source {
        let wait = async |source: &mut _| {
            Pauses::wait_async(source).await;
            Ok(())
        };
        relay::pause(silent, wait, |source, _, out| pass_on(source, bounds, out), out);
    }
    Ok(())
}

/// The characters that are percent-encoded in a path.
const PATH: &percent_encoding::AsciiSet = &crate::files::target::SEGMENT.remove(b'/');

/// The target with its path in the canonical form, which begins with one slash: a client takes `//name` for a host. A
/// target whose path has no canonical form stays as it is.
pub(super) fn with_canonical_path(target: &str) -> Cow<'_, str> {
    let path = target.split('?').next().unwrap_or_default();
    match Path::parse(path) {
        Ok(parsed) if parsed.canonical() != path => {
            Cow::Owned(format!("{}{}", parsed.canonical(), &target[path.len()..]))
        }
        _ => Cow::Borrowed(target),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU time of this thread, in nanoseconds. `None` if the kernel does not count it.
    fn cpu_time() -> Option<u64> {
        let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        stat.split(' ').next()?.parse().ok()
    }

    #[test]
    fn many_dates_take_no_longer_than_other_fields() {
        if cpu_time().is_none() {
            return testkit::skip("/proc/thread-self/schedstat is missing");
        }
        let others = (0..2_000).map(|number| format!("X-Field-{number}: a value"));
        let with = |name: &str| {
            let lines = others
                .clone()
                .chain((0..2_000).map(|second| format!("{name}: {second}")));
            let text = lines.map(|line| line + "\n").collect::<String>() + "\n";
            let head = cgi::Head::parse(text.as_bytes()).expect("few enough");
            let before = cpu_time();
            let mut response = Response::new(StatusCode::OK);
            set_fields(&mut response, head.fields());
            (cpu_time().zip(before).map(|(after, before)| after - before), response)
        };
        let ((dates, response), (plain, _)) = (with("Date"), with("Dote"));
        assert_eq!(response.fields.iter().filter(|(name, _)| *name == "Date").count(), 1);
        assert_eq!(response.lookup("date"), Some(&b"1999"[..]));
        assert!(dates < plain.map(|plain| 10 * plain), "{dates:?} {plain:?}");
    }
}
