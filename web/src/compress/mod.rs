//! Compression of response bodies, negotiated by the client's Accept-Encoding.
//!
//! A [`Compress`] stands around handlers, or a handler calls [`Compress::filter`] with its response,
//! on the fiber of the request. A body in memory is encoded before its head is sent. A streamed body is
//! encoded while it is produced. Its pending bytes leave the encoder on `flush` and before the fiber
//! suspends, as without compression.
//!
//! Only small bodies and the beginnings of streams are encoded on the worker. All other bytes are
//! encoded on the pool for blocking work, in slices, so that a large response delays no other client.
//!
//! [`Files`](crate::files::Files) compresses static files itself, and caches their encoded forms.
//!
//! ```
//! use osier_web::compress::Compress;
//! use osier_web::{Request, Response, Router};
//!
//! fn report(_: &mut Request<'_>) -> Response {
//!     let response = Response::stream(|out| (0..1000).try_for_each(|line| writeln!(out, "line {line}")));
//!     response.content_type("text/plain; charset=utf-8")
//! }
//!
//! let router = Router::new().get("/report", report).wrap(Compress::new().wrap());
//! ```

pub(crate) mod accept_encoding;
pub(crate) mod encoder;
mod pipe;
mod pool;
mod tables;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use self::encoder::{Effort, Encoder};
use self::pipe::pipe;
use crate::body::outgoing::Kind;
use crate::body::send::copy;
use crate::compress::accept_encoding::{Choice, choose};
pub use crate::compress::accept_encoding::{Coding, accepted};
use crate::conn::output::Outlet;
use crate::{Body, Next, Request, Response};

/// Files and pieces of streams of at most this many bytes are encoded on the worker. That takes about
/// as long as a hand-over to another thread and back.
pub(crate) const INLINE: usize = 4 * 1024;

/// Bodies in memory of at most this many bytes, and as many bytes of a stream, are encoded on the
/// worker if they take no longer than a [`SLICE`]. Small responses thus need no other thread.
const INLINE_BODY: usize = 32 << 10;

/// Longest time that an encoder works at a stretch. Then the next response has its turn. A slice ends
/// after the piece in which its time is over. Brotli encodes 64 KiB at once, in about a millisecond.
const SLICE: Duration = Duration::from_millis(1);

/// Options of compression: the bodies to encode and the codings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Minimum bytes of a body to encode. 1 KiB by default: a smaller body fits into one packet
    /// with its head.
    pub min: u64,
    /// Codings, in order of preference among those that a client prefers equally. By default zstd,
    /// gzip and br: speed matters most for a body that is sent once.
    pub codings: Vec<Coding>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            min: 1024,
            codings: vec![Coding::Zstd, Coding::Gzip, Coding::Brotli],
        }
    }
}

/// Compresses the bodies of responses.
#[derive(Clone, Debug, Default)]
#[doc(alias("CompressionLayer", "gzip", "brotli"))]
pub struct Compress(Options);

impl Compress {
    /// Compresses with the default [`Options`].
    pub fn new() -> Compress {
        Compress::default()
    }

    /// Compresses with `options`.
    pub fn with(options: Options) -> Compress {
        Compress(options)
    }

    /// Makes a function that stands around handlers, for [`Router::wrap`](crate::Router::wrap) and
    /// [`Route::wrap`](crate::Route::wrap). It calls [`Compress::filter`].
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| {
            let response = next.run(request);
            self.filter(request, response)
        }
    }

    /// Encodes the body of `response` if the Accept-Encoding of `request` allows it and encoding is
    /// useful. The content type must be [compressible](is_compressible), the length must be unknown
    /// or at least [`min`](Options::min), and the encoded body must be smaller.
    ///
    /// These responses are not encoded:
    ///
    /// - status 1xx, 204, 206 and 304;
    /// - bodies that are files;
    /// - bodies that are already encoded, partial, marked `no-transform`, or have a digest of their
    ///   bytes;
    /// - `text/event-stream`, whose events are small and must not wait.
    ///
    /// `Vary` gains `accept-encoding` whenever the response depends on that field. On an encoded
    /// response a strong `ETag` becomes weak and `Accept-Ranges` is removed, because the encoded
    /// bytes may differ each time.
    ///
    /// # Suspends
    ///
    /// While a body in memory of more than 32 KiB is encoded, on the pool for blocking work.
    pub fn filter(&self, request: &Request<'_>, response: Response) -> Response {
        let lines = request
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"))
            .map(|(_, value)| value);
        self.filter_by(lines, response)
    }

    /// Same as [`Compress::filter`], with the values of Accept-Encoding instead of the request.
    fn filter_by<'a>(
        &self,
        accept_encoding: impl Iterator<Item = &'a [u8]> + Clone,
        mut response: Response,
    ) -> Response {
        if !self.suits(&response) {
            return response;
        }
        if !varies_already(&response) {
            response = response.header("vary", "accept-encoding");
        }
        // A client that accepts no coding at all gets the plain body, which is more useful than
        // 406.
        let Choice::Encoded(coding) = choose(accept_encoding, self.0.codings.iter().copied()) else {
            return response;
        };
        match encode(std::mem::take(&mut response.body), coding) {
            Ok(body) => response.body = body,
            Err(body) => {
                response.body = body;
                return response;
            }
        }
        response.fields.remove("accept-ranges");
        if let Some(etag) = response.fields.first("etag").filter(|etag| etag.starts_with(b"\"")) {
            let weak = [b"W/", etag].concat();
            response.fields.remove("etag");
            response = response.header("etag", weak);
        }
        response.header("content-encoding", coding.token())
    }

    fn suits(&self, response: &Response) -> bool {
        let status = response.status;
        let bodiless = status.is_informational()
            || matches!(
                status,
                StatusCode::NO_CONTENT | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED
            );
        let long_enough = match &response.body.kind {
            Kind::Stream(..) | Kind::Duplex(_) | Kind::Reader { .. } => {
                response.body.len().is_none_or(|len| len >= self.0.min)
            }
            // Encoding an empty body is never useful.
            _ => response
                .body
                .bytes()
                .is_some_and(|bytes| bytes.len() as u64 >= self.0.min.max(1)),
        };
        if bodiless || !long_enough || !response.lookup("content-type").is_some_and(is_compressible) {
            return false;
        }
        !response.fields.iter().any(|(name, value)| {
            BARS.iter().any(|bar| name.eq_ignore_ascii_case(bar))
                || (name.eq_ignore_ascii_case("cache-control") && has_token(value, b"no-transform"))
        })
    }
}

/// Fields that describe the exact bytes of the body, which encoding would replace.
const BARS: [&str; 6] = [
    "content-encoding",
    "content-range",
    "content-md5",
    "digest",
    "content-digest",
    "repr-digest",
];

/// Whether bodies of this content type shrink: text, and common formats without compression of
/// their own.
pub fn is_compressible(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    let Ok(essence) = std::str::from_utf8(essence.trim_ascii()) else {
        return false;
    };
    let essence = essence.to_ascii_lowercase();
    if essence == "text/event-stream" {
        return false;
    }
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || matches!(
            essence.as_str(),
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/x-ndjson"
                | "application/graphql"
                | "application/sql"
                | "application/rtf"
                | "application/wasm"
                | "application/x-sh"
                | "application/x-tar"
                | "application/vnd.ms-fontobject"
                | "font/otf"
                | "font/ttf"
                | "image/bmp"
                | "image/x-icon"
        )
}

fn varies_already(response: &Response) -> bool {
    response.fields.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("vary") && (has_token(value, b"*") || has_token(value, b"accept-encoding"))
    })
}

fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|&byte| byte == b',')
        .any(|member| member.trim_ascii().eq_ignore_ascii_case(token))
}

/// Encodes the body. The error is the unchanged body, when encoding does not make it smaller.
fn encode(body: Body, coding: Coding) -> Result<Body, Body> {
    match body.kind {
        Kind::Static(bytes) => whole(bytes, coding, |bytes| bytes, Body::from),
        Kind::Owned(bytes) => whole(bytes, coding, |bytes| bytes, Body::from),
        Kind::Shared(bytes) => {
            let back = |bytes: Arc<dyn AsRef<[u8]> + Send + Sync>| Body {
                kind: Kind::Shared(bytes),
                text: None,
            };
            whole(bytes, coding, |bytes| (**bytes).as_ref(), back)
        }
        Kind::Stream(produce, len) => Ok(Body::produced(move |out| pipe(out, coding, len, produce))),
        Kind::Duplex(exchange) => Ok(Body {
            kind: Kind::Duplex(Box::new(move |request, out| {
                pipe(out, coding, None, |out| exchange(request, out))
            })),
            text: None,
        }),
        Kind::Reader { mut reader, len } => {
            let produce = move |out: &mut dyn Outlet| match copy(&mut reader, out, len)? {
                count if len.is_some_and(|len| count < len) => Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the reader of a response body ended early",
                )),
                _ => Ok(()),
            };
            Ok(Body::produced(move |out| pipe(out, coding, None, produce)))
        }
        kind => Err(Body { kind, text: body.text }),
    }
}

/// Encodes a body in memory, a large one on the pool for blocking work.
fn whole<B: Send + 'static>(
    body: B,
    coding: Coding,
    bytes: fn(&B) -> &[u8],
    back: impl FnOnce(B) -> Body,
) -> Result<Body, Body> {
    let len = bytes(&body).len();
    let Ok(encoder) = Encoder::new(coding, Effort::once(Some(len as u64)), Some(len)) else {
        return Err(back(body));
    };
    let (body, encoded) = to_the_end(encoder, body, bytes, len <= INLINE_BODY);
    // Otherwise the plain body is as good.
    let encoded = encoded.ok().filter(|encoded| encoded.len() < len);
    encoded.map(Body::from).ok_or_else(|| back(body))
}

/// Encodes all of `body` and ends the encoding, in slices: the first one on the worker if
/// `begins_here`, all others on the pool for blocking work.
fn to_the_end<B: Send + 'static>(
    encoder: Encoder,
    mut body: B,
    bytes: fn(&B) -> &[u8],
    begins_here: bool,
) -> (B, io::Result<Vec<u8>>) {
    let mut next = match begins_here {
        true => slice(encoder, bytes(&body), 0),
        false => Ok(ControlFlow::Continue((encoder, 0))),
    };
    loop {
        let (encoder, from) = match next {
            Ok(ControlFlow::Continue(more)) => more,
            Ok(ControlFlow::Break(encoded)) => return (body, Ok(encoded)),
            Err(error) => return (body, Err(error)),
        };
        (body, next) = pool::run(move || {
            let next = slice(encoder, bytes(&body), from);
            (body, next)
        });
    }
}

/// Encodes the bytes from index `from` on for a [`SLICE`]. Breaks with the encoded bytes at the end, or
/// continues at another index.
fn slice(mut encoder: Encoder, bytes: &[u8], from: usize) -> io::Result<ControlFlow<Vec<u8>, (Encoder, usize)>> {
    match encoder.write_for(SLICE, bytes, from)? {
        to if to < bytes.len() => Ok(ControlFlow::Continue((encoder, to))),
        _ => encoder.finish().map(ControlFlow::Break),
    }
}

#[cfg(test)]
mod tests {
    use super::encoder::decode;
    use super::*;

    fn text(response: Response) -> Response {
        response.content_type("text/plain; charset=utf-8")
    }

    fn filtered(accept: &str, response: Response) -> (Option<String>, Response) {
        let response = Compress::new().filter_by([accept.as_bytes()].into_iter(), response);
        let coding = response.lookup("content-encoding");
        (coding.map(|name| String::from_utf8(name.to_vec()).unwrap()), response)
    }

    fn long() -> Response {
        Response::new(StatusCode::OK).body("words ".repeat(400))
    }

    #[test]
    fn weights_choose_and_the_body_decodes() {
        for (accept, expected) in [
            ("gzip", Some("gzip")),
            ("br;q=0.5, gzip;q=0.4", Some("br")),
            ("gzip, deflate, br, zstd", Some("zstd")),
            ("identity", None),
            ("gzip;q=0", None),
            ("*;q=0", None),
            ("", None),
        ] {
            let (coding, response) = filtered(accept, long());
            assert_eq!(coding.as_deref(), expected, "{accept}");
            assert_eq!(response.lookup("vary"), Some(&b"accept-encoding"[..]), "{accept}");
            assert_eq!(response.lookup("content-type"), Some(&b"text/plain; charset=utf-8"[..]));
            let bytes = response.body.bytes().unwrap();
            let plain = "words ".repeat(400);
            match coding {
                None => assert_eq!(bytes, plain.as_bytes()),
                Some(name) => {
                    let coding = Coding::EACH.into_iter().find(|coding| coding.token() == name).unwrap();
                    assert_eq!(decode(coding, bytes).unwrap(), plain.as_bytes());
                }
            }
        }
    }

    #[test]
    fn what_must_not_or_need_not_be_encoded_is_left_alone() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4000).map(|_| random()).collect();
        for (why, response) in [
            ("small", Response::new(StatusCode::OK).body("x".repeat(1000))),
            ("204", Response::new(StatusCode::NO_CONTENT)),
            ("206", long().with_status(StatusCode::PARTIAL_CONTENT)),
            ("304", long().with_status(StatusCode::NOT_MODIFIED)),
            ("encoded", long().header("content-encoding", "gzip")),
            ("range", long().header("content-range", "bytes 0-1/2")),
            ("digest", long().header("repr-digest", "sha-256=:AA==:")),
            ("no-transform", long().header("cache-control", "public, No-Transform")),
            ("picture", long().content_type("image/png")),
            ("bytes", Response::new(StatusCode::OK).body(vec![0; 4000])),
            ("events", Response::stream(|_| Ok(())).content_type("text/event-stream")),
            ("no type", Response::stream(|_| Ok(()))),
        ] {
            let before = response.lookup("content-encoding").map(<[u8]>::to_vec);
            let length = response.body.len();
            let (coding, response) = filtered("gzip", response);
            assert_eq!(coding.map(String::into_bytes), before, "{why}");
            assert_eq!(response.body.len(), length, "{why}");
            assert_eq!(response.lookup("vary"), None, "{why}");
        }
        // The encoded body would not be smaller, so it is sent plain. That outcome depends on the
        // request, so `Vary` is set.
        let (coding, response) = filtered("gzip", text(Response::new(StatusCode::OK).body(noise.clone())));
        assert_eq!((coding, response.lookup("vary")), (None, Some(&b"accept-encoding"[..])));
        assert_eq!(response.body.bytes(), Some(&noise[..]));
    }

    #[test]
    fn settings_bound_and_order() {
        let bounded = |min, codings: &[Coding]| Options {
            min,
            codings: codings.to_vec(),
        };
        for (options, accept, expected) in [
            (bounded(2400, &[Coding::Gzip]), "gzip", Some("gzip")),
            (bounded(2401, &[Coding::Gzip]), "gzip", None),
            (bounded(0, &[Coding::Gzip]), "br, zstd", None),
            (bounded(0, &[Coding::Gzip, Coding::Brotli]), "br, gzip", Some("gzip")),
            (bounded(0, &[]), "*", None),
        ] {
            let response = Compress::with(options.clone()).filter_by([accept.as_bytes()].into_iter(), long());
            assert_eq!(
                response.lookup("content-encoding"),
                expected.map(str::as_bytes),
                "{options:?}"
            );
        }
        assert_eq!("br".parse(), Ok(Coding::Brotli));
        assert!(
            "deflate"
                .parse::<Coding>()
                .is_err_and(|error| error.to_string().contains("gzip, br or zstd"))
        );
    }

    #[test]
    fn validators_and_vary_follow() {
        let tagged = |tag| {
            long()
                .header("etag", tag)
                .header("accept-ranges", "bytes")
                .header("vary", "cookie")
        };
        let (_, response) = filtered("gzip", tagged("\"a\""));
        assert_eq!(response.lookup("etag"), Some(&b"W/\"a\""[..]));
        assert_eq!(response.lookup("accept-ranges"), None);
        let vary: Vec<_> = response.fields.iter().filter(|(name, _)| *name == "vary").collect();
        assert_eq!(vary.len(), 2);
        let (_, response) = filtered("identity", tagged("\"a\""));
        assert_eq!(response.lookup("etag"), Some(&b"\"a\""[..]));
        let (_, response) = filtered("gzip", tagged("W/\"a\"").header("vary", "Accept-Encoding"));
        assert_eq!(response.lookup("etag"), Some(&b"W/\"a\""[..]));
        assert_eq!(response.fields.iter().filter(|(name, _)| *name == "vary").count(), 2);
    }
}
