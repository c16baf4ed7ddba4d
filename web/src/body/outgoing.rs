//! The body of a response: bytes, a reader, a range of a file, or a closure that writes.
//!
//! A handler makes a body, and the server sends it once.

use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::RequestBody;
use crate::conn::output::{Outlet, Producer};
#[cfg(feature = "sendfile")]
use crate::conn::rest::FilePart;
use crate::conn::trailers::Trailers;
use crate::conn::upgrade::Takeover;

/// The body of a response.
///
/// Text and bytes become one by `From`. It need not be `Send`: the fiber that made it sends it.
pub struct Body {
    pub(crate) kind: Kind,
    /// Whether a bare value of this kind is text, which decides the default content type; `None` if
    /// unknown.
    pub(crate) text: Option<bool>,
}

/// Code that reads the request's body while it writes the response's.
pub(crate) type Exchanger = Box<dyn FnOnce(&mut RequestBody<'_>, &mut dyn Outlet) -> io::Result<()>>;

/// Several parts of a file. Each follows bytes of its own, and `tail` follows the last one.
#[cfg(feature = "sendfile")]
pub(crate) struct FileParts {
    pub(crate) file: Arc<File>,
    pub(crate) parts: Vec<FilePart>,
    pub(crate) tail: Vec<u8>,
}

/// The sources of a body.
pub(crate) enum Kind {
    Empty,
    Static(&'static [u8]),
    Owned(Vec<u8>),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Reader {
        reader: Box<dyn Read>,
        len: Option<u64>,
    },
    #[cfg(feature = "sendfile")]
    File {
        file: Arc<File>,
        offset: u64,
        len: u64,
    },
    #[cfg(feature = "sendfile")]
    #[cfg_attr(not(feature = "files"), allow(dead_code, reason = "only files have ranges"))]
    FileParts(Box<FileParts>),
    /// The number of bytes that the producer will write, if known.
    Stream(Producer, Option<u64>),
    Duplex(Exchanger),
    /// No body: the connection switches to this protocol, and the takeover receives it.
    Upgrade(Box<str>, Takeover),
}

impl Kind {
    /// Whether its bytes are not in memory.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        match self {
            Kind::Reader { .. } | Kind::Stream(..) => true,
            #[cfg(feature = "sendfile")]
            Kind::File { .. } | Kind::FileParts(_) => true,
            _ => false,
        }
    }
}

impl Body {
    /// Makes an empty body, sent as `content-length: 0` where HTTP allows it.
    #[inline]
    pub fn empty() -> Self {
        Body {
            kind: Kind::Empty,
            text: None,
        }
    }

    /// Makes a body of shared bytes, for example a cached file. The bytes are not copied into the
    /// response, and into the connection's buffer only if they are few.
    pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(bytes: Arc<T>) -> Self {
        Body {
            kind: Kind::Shared(bytes),
            text: None,
        }
    }

    /// Makes a body of everything that `reader` yields. It is chunked; for HTTP/1.0 the end of the
    /// connection ends it.
    pub fn reader(reader: impl Read + 'static) -> Self {
        Body {
            kind: Kind::Reader {
                reader: Box::new(reader),
                len: None,
            },
            text: None,
        }
    }

    /// Makes a body of the first `len` bytes of `reader`. If the reader ends earlier the connection
    /// is closed, so that the client notices the missing bytes.
    pub fn sized_reader(reader: impl Read + 'static, len: u64) -> Self {
        Body {
            kind: Kind::Reader {
                reader: Box::new(reader),
                len: Some(len),
            },
            text: None,
        }
    }

    /// Makes a body of `len` bytes of `file` from `offset`, sent with `sendfile`. The file's own
    /// position is neither used nor changed. If the file is shorter when it is sent, the connection
    /// is closed. [`osier::fs::File::into_std`] makes a std file of Osier's.
    ///
    /// ```
    /// use osier::fs::File;
    /// use osier_web::{Body, Request, Router};
    /// use std::io;
    ///
    /// fn report(_: &mut Request<'_>) -> io::Result<Body> {
    ///     let file = File::open("/var/lib/reports/latest.pdf")?;
    ///     let len = file.metadata()?.len();
    ///     Ok(Body::file(file.into_std()?, 0, len))
    /// }
    ///
    /// let router = Router::new().get("/report", report);
    /// # drop(router);
    /// ```
    #[cfg(feature = "sendfile")]
    pub fn file(file: impl Into<Arc<File>>, offset: u64, len: u64) -> Self {
        Body {
            kind: Kind::File {
                file: file.into(),
                offset,
                len,
            },
            text: None,
        }
    }

    /// Makes a body of several parts of `file`, each with the bytes before it, its offset and its
    /// length. `tail` follows the last one.
    #[cfg(feature = "files")]
    pub(crate) fn file_parts(file: Arc<File>, parts: impl Iterator<Item = (Vec<u8>, u64, u64)>, tail: Vec<u8>) -> Self {
        let parts = parts.map(|(before, offset, len)| FilePart { before, offset, len });
        Body {
            kind: Kind::FileParts(Box::new(FileParts {
                file,
                parts: parts.collect(),
                tail,
            })),
            text: None,
        }
    }

    /// Makes a body of the bytes that `write` writes; see
    /// [`Response::stream`](crate::Response::stream).
    #[doc(alias = "StreamBody")]
    pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Body::produced(move |out| write(out))
    }

    /// Makes a body of the bytes that `write` writes, with the trailer that it fills; see [`Trailers`].
    ///
    /// ```
    /// use osier_web::{Body, Request, Response, Router, http::StatusCode};
    ///
    /// let router = Router::new().get("/report", |_: &mut Request<'_>| {
    ///     Response::new(StatusCode::OK).body(Body::stream_with_trailers(|out, trailers| {
    ///         let lines = 3;
    ///         (0..lines).try_for_each(|line| writeln!(out, "line {line}"))?;
    ///         trailers.push("x-lines", lines.to_string())
    ///     }))
    /// });
    /// ```
    pub fn stream_with_trailers(write: impl FnOnce(&mut dyn Write, &mut Trailers) -> io::Result<()> + 'static) -> Self {
        Body::produced(move |out| {
            let mut trailers = Trailers::new();
            write(out, &mut trailers)?;
            out.set_trailers(trailers);
            Ok(())
        })
    }

    /// Same as [`stream`](Body::stream), for code of this crate.
    pub(crate) fn produced(write: impl FnOnce(&mut dyn Outlet) -> io::Result<()> + 'static) -> Self {
        Body {
            kind: Kind::Stream(Box::new(write), None),
            text: None,
        }
    }

    /// Makes a body of the bytes that `exchange` writes. Meanwhile `exchange` may read the
    /// request's body, also from a second fiber of the same worker
    /// ([`Scope::spawn_local`](osier::Scope::spawn_local)). A proxy passes both bodies on at once
    /// this way.
    ///
    /// A client that waits for `100 Continue` gets it before the response's head. If `exchange`
    /// fails, the connection is closed without the end mark. The connection is also closed if too
    /// much of the request's body remains unread.
    ///
    /// ```
    /// use osier_web::{Body, Request, Response, Router, http::StatusCode};
    ///
    /// let echo = |_: &mut Request<'_>| {
    ///     Response::new(StatusCode::OK).body(Body::duplex(|from, to| std::io::copy(from, to).map(drop)))
    /// };
    /// let router = Router::new().post("/echo", echo);
    /// ```
    pub fn duplex(exchange: impl FnOnce(&mut RequestBody<'_>, &mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Body {
            kind: Kind::Duplex(Box::new(move |body, out| exchange(body, out))),
            text: None,
        }
    }

    /// Makes a body as [`duplex`](Body::duplex) does, with the trailer that `exchange` fills: a gRPC call for example.
    pub fn duplex_with_trailers(
        exchange: impl FnOnce(&mut RequestBody<'_>, &mut dyn Write, &mut Trailers) -> io::Result<()> + 'static,
    ) -> Self {
        let exchange = move |body: &mut RequestBody<'_>, out: &mut dyn Outlet| {
            let mut trailers = Trailers::new();
            exchange(body, out, &mut trailers)?;
            out.set_trailers(trailers);
            Ok(())
        };
        Body {
            kind: Kind::Duplex(Box::new(exchange)),
            text: None,
        }
    }

    /// The length in bytes, if it is known before the body is sent.
    #[allow(clippy::len_without_is_empty)] // a length that may be unknown
    pub fn len(&self) -> Option<u64> {
        match &self.kind {
            Kind::Reader { len, .. } => *len,
            #[cfg(feature = "sendfile")]
            Kind::File { len, .. } => Some(*len),
            Kind::Stream(_, len) => *len,
            #[cfg(feature = "sendfile")]
            Kind::FileParts(whole) => {
                let parts = whole.parts.iter().map(|part| part.before.len() as u64 + part.len);
                Some(parts.sum::<u64>() + whole.tail.len() as u64)
            }
            Kind::Duplex(_) => None,
            Kind::Upgrade(..) => Some(0),
            _ => self.bytes().map(|bytes| bytes.len() as u64),
        }
    }

    /// The bytes of a body in memory; `None` for any other body.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Empty => Some(&[]),
            Kind::Static(bytes) => Some(bytes),
            Kind::Owned(bytes) => Some(bytes),
            Kind::Shared(bytes) => Some((**bytes).as_ref()),
            _ => None,
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Body::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Empty => "empty",
            Kind::Static(_) | Kind::Owned(_) | Kind::Shared(_) => "bytes",
            Kind::Reader { .. } => "reader",
            #[cfg(feature = "sendfile")]
            Kind::File { .. } | Kind::FileParts(_) => "file",
            Kind::Stream(..) => "stream",
            Kind::Duplex(_) => "duplex",
            Kind::Upgrade(..) => "upgrade",
        };
        f.debug_struct("Body")
            .field("kind", &kind)
            .field("len", &self.len())
            .finish()
    }
}

impl From<()> for Body {
    fn from((): ()) -> Self {
        Body::empty()
    }
}

impl From<&'static str> for Body {
    #[inline]
    fn from(text: &'static str) -> Self {
        Body {
            kind: Kind::Static(text.as_bytes()),
            text: Some(true),
        }
    }
}

impl From<String> for Body {
    #[inline]
    fn from(text: String) -> Self {
        Body {
            kind: Kind::Owned(text.into_bytes()),
            text: Some(true),
        }
    }
}

impl From<Cow<'static, str>> for Body {
    fn from(text: Cow<'static, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<Vec<u8>> for Body {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Body {
            kind: Kind::Owned(bytes),
            text: Some(false),
        }
    }
}

impl From<&'static [u8]> for Body {
    #[inline]
    fn from(bytes: &'static [u8]) -> Self {
        Body {
            kind: Kind::Static(bytes),
            text: Some(false),
        }
    }
}
