//! The body of a response: bytes, a reader, a range of a file, or a closure that writes.
//!
//! A handler makes it, and the server sends it once.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::RequestBody;
use crate::conn::output::Outlet;
use crate::conn::upgrade::Takeover;

/// The body of a response.
///
/// It need not be `Send`: it is sent by the fiber that made it.
pub struct Body {
    pub(crate) kind: Kind,
    /// True if a bare value of this kind is text; `None` if that is not known.
    pub(crate) text: Option<bool>,
}

pub(crate) type Producer = Box<dyn FnOnce(&mut dyn Outlet) -> io::Result<()>>;

pub(crate) type Exchanger = Box<dyn FnOnce(&mut RequestBody<'_>, &mut dyn Outlet) -> io::Result<()>>;

/// Several parts of a file, each after bytes of its own, and `tail` after the last.
pub(crate) struct FileParts {
    pub(crate) file: Arc<File>,
    pub(crate) parts: Vec<FilePart>,
    pub(crate) tail: Vec<u8>,
}

pub(crate) struct FilePart {
    pub(crate) before: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

pub(crate) enum Kind {
    Empty,
    Static(&'static [u8]),
    Owned(Vec<u8>),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Reader {
        reader: Box<dyn Read>,
        len: Option<u64>,
    },
    File {
        file: Arc<File>,
        offset: u64,
        len: u64,
    },
    /// The number is how many bytes it will write, if that is known.
    FileParts(Box<FileParts>),
    Stream(Producer, Option<u64>),
    Duplex(Exchanger),
    /// No body: the protocol the connection goes on with, and who takes it over.
    Upgrade(Box<str>, Takeover),
}

impl Body {
    /// No body: `content-length: 0` where HTTP allows it.
    #[inline]
    pub fn empty() -> Self {
        Body {
            kind: Kind::Empty,
            text: None,
        }
    }

    /// Bytes that are shared with others, a cached file for example: not copied into the response, and into the
    /// connection's buffer only when they are few.
    pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(bytes: Arc<T>) -> Self {
        Body {
            kind: Kind::Shared(bytes),
            text: None,
        }
    }

    /// Everything that `reader` yields, chunked (or up to the end of the connection for HTTP/1.0).
    pub fn reader(reader: impl Read + 'static) -> Self {
        Body {
            kind: Kind::Reader {
                reader: Box::new(reader),
                len: None,
            },
            text: None,
        }
    }

    /// The first `len` bytes of `reader`. When it ends before, the connection is closed, so that the client sees that
    /// something is missing.
    pub fn sized_reader(reader: impl Read + 'static, len: u64) -> Self {
        Body {
            kind: Kind::Reader {
                reader: Box::new(reader),
                len: Some(len),
            },
            text: None,
        }
    }

    /// `len` bytes of `file` from `offset` on, by `sendfile`; the file's own position does not matter and is left alone.
    /// The connection is closed if the file is shorter by the time it is sent.
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

    /// Parts of `file`, offset and length, each after bytes of its own, and `tail` after the last.
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

    /// The bytes that `write` writes; see [`Response::stream`](crate::Response::stream).
    pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'static) -> Self {
        Body {
            kind: Kind::Stream(Box::new(move |out| write(out)), None),
            text: None,
        }
    }

    /// The bytes that `exchange` writes, while it may still read the request's body, also from a second fiber of the same worker
    /// ([`Scope::spawn_local`](osier::Scope::spawn_local)): for a proxy, which passes both on at once.
    ///
    /// A client that waits for `100 Continue` gets it before the response's head. When `exchange` fails the connection is
    /// closed without the end mark; so it is when too much of the request's body is left.
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

    /// The length in bytes, when it is known before the body is sent.
    #[allow(clippy::len_without_is_empty)] // a length that may be unknown
    pub fn len(&self) -> Option<u64> {
        match &self.kind {
            Kind::Reader { len, .. } => *len,
            Kind::File { len, .. } => Some(*len),
            Kind::Stream(_, len) => *len,
            Kind::FileParts(whole) => {
                let parts = whole.parts.iter().map(|part| part.before.len() as u64 + part.len);
                Some(parts.sum::<u64>() + whole.tail.len() as u64)
            }
            Kind::Duplex(_) => None,
            Kind::Upgrade(..) => Some(0),
            _ => self.bytes().map(|bytes| bytes.len() as u64),
        }
    }

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
