//! Files over HTTP: a folder, or pages inside the binary, as a handler.
//!
//! ```no_run
//! use osier_web::files::{Files, Options};
//! use osier_web::{Router, serve};
//!
//! let assets = Files::with("./assets", Options { listing: true, ..Options::default() })?;
//! let router = Router::new()
//!     .get("/hello", |_| "hello\n")
//!     .nest("", assets.below("/assets"))
//!     .fallback(Files::open("./public")?.handler());
//! osier::run(|| serve("127.0.0.1:8080", router))
//! # ;
//! # std::io::Result::Ok(())
//! ```
//!
//! # Layout
//!
//! A request goes to `answer`, which asks `caches` (what this worker remembers for this [`Files`], in a `cache`), then
//! `target` (what the path means), `root` (the way to it, never out of the folder) and `resource` (the file with its
//! encoded siblings); `conditional` and `range` choose what is sent of it, `encoded` makes the forms that do not lie
//! there. `listing` writes the page of a
//! folder; `mime` is a small table.

mod answer;
mod cache;
mod caches;
pub mod calendar;
mod conditional;
mod encoded;
mod listing;
mod mime;
mod range;
mod resource;
pub(crate) mod root;
pub(crate) mod target;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use http::StatusCode;
use osier_http::path::canonical_part;

pub use self::cache::Limits as CacheLimits;
use self::caches::Seat;
use self::encoded::Store;
use self::resource::Resource;
use self::root::Root;
use crate::{Handler, Request, Response, Router, compress};

/// How a folder is served.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Names tried, in this order, where the path means a folder. Only `index.html` by default; none for none.
    pub index: Vec<String>,
    /// Folders without an index are listed, instead of 404: as a page, or as JSON for who prefers `application/json` or adds
    /// `?format=json`. Off by default.
    pub listing: bool,
    /// Pages that do not exist are the root's index, as single-page applications want. Off by default.
    pub spa: bool,
    /// Names that begin with a dot are served too; `/.well-known/` always is. Off by default.
    pub hidden: bool,
    /// A file's `x.br`, `x.zst` or `x.gz` that is not older than `x` is sent in its place to clients that ask for it. On
    /// by default.
    pub precompressed: bool,
    /// Text and other files that shrink, up to 8 MiB, are compressed for clients that ask for it, the first time somebody
    /// does; not within two seconds of a change. Between codings that a client wants equally the denser one counts here. On
    /// by default, from 1 KiB on.
    pub compress: Option<compress::Settings>,
    /// The prefix that [`Files::answer`] takes off a path: with `/assets`, the root is `/assets/`. Empty by default.
    pub strip: String,
    /// `Cache-Control` of responses that carry a file or say that it has not changed (200, 206, 304). None by default.
    pub cache_control: Option<String>,
    /// Fields of every response, name and value. None by default.
    pub headers: Vec<(String, String)>,
    /// What may be remembered, over all workers: each has its share.
    pub cache: CacheLimits,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            index: vec!["index.html".into()],
            listing: false,
            spa: false,
            hidden: false,
            precompressed: true,
            compress: Some(compress::Settings::default()),
            strip: String::new(),
            cache_control: None,
            headers: Vec::new(),
            cache: CacheLimits::default(),
        }
    }
}

/// A handler for files. A clone is the same, with the same cache; what the workers remember for it goes within seconds
/// of the last clone.
///
/// `GET` and `HEAD` are answered with validators (a strong `ETag`, `Last-Modified`), conditions and ranges; a file that
/// changes is noticed within a second. Names cannot lead out of the folder, neither by `..` nor by links.
///
/// ```
/// use osier_web::files::Files;
///
/// let page = Files::embedded([("/", "text/html; charset=utf-8", "<!doctype html><title>hi</title>".as_bytes())]);
/// let router = osier_web::Router::new().fallback(page.handler());
/// ```
#[derive(Clone)]
pub struct Files {
    site: Arc<Site>,
}

/// What is served, and how. Shared by all workers; immutable.
pub(crate) struct Site {
    source: Source,
    options: Options,
    seat: Arc<Seat>,
    encoded: Store,
}

/// Where the files come from.
enum Source {
    Folder(Root),
    /// By the canonical path.
    Embedded(HashMap<String, Arc<Resource>>),
}

impl Files {
    /// Serves `folder` with the default [`Options`].
    ///
    /// # Errors
    ///
    /// Those of `open(2)`: `NotFound`, `NotADirectory` for anything but a folder, `PermissionDenied`.
    ///
    /// # Blocks the thread
    ///
    /// For as long as the disk takes.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<Files> {
        Files::with(folder, Options::default())
    }

    /// Serves `folder`.
    ///
    /// # Errors
    ///
    /// As [`Files::open`], and `InvalidInput` for a name or value among the headers that HTTP does not allow.
    ///
    /// # Blocks the thread
    ///
    /// For as long as the disk takes.
    pub fn with(folder: impl AsRef<Path>, options: Options) -> io::Result<Files> {
        Files::of(Source::Folder(Root::open(folder.as_ref())?), options)
    }

    /// Serves pages inside the binary: path (`/`, `/style.css`), content type, bytes. Every other path is 404.
    pub fn embedded<'a>(pages: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>) -> Files {
        Files::embedded_with(pages, Options::default()).expect("there are no headers to refuse")
    }

    /// As [`Files::embedded`], with options; only their headers and compression matter.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name or value among the headers that HTTP does not allow.
    pub fn embedded_with<'a>(
        pages: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>,
        options: Options,
    ) -> io::Result<Files> {
        let encoded_from = options.compress.as_ref().map(|settings| settings.min);
        let pages = pages.into_iter().map(|(path, mime, bytes)| {
            let path = canonical_part(path).unwrap_or(Cow::Borrowed(path)).into_owned();
            (path, Arc::new(Resource::embedded(bytes, mime, encoded_from)))
        });
        Files::of(Source::Embedded(pages.collect()), options)
    }

    fn of(source: Source, mut options: Options) -> io::Result<Files> {
        options.strip.truncate(options.strip.trim_end_matches('/').len());
        let cache_control = options.cache_control.as_ref().map(|value| ("cache-control", value));
        let headers = options.headers.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in headers.chain(cache_control) {
            if Response::new(StatusCode::OK).header(name, value).status() != StatusCode::OK {
                let what = format!("header {name:?} has a name or value that HTTP does not allow");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        let (seat, encoded) = (Seat::take(), Store::new(options.cache.compressed));
        Ok(Files {
            site: Arc::new(Site {
                source,
                options,
                seat,
                encoded,
            }),
        })
    }

    /// A handler for [`Router::mount`] and [`Router::fallback`]: answers by [`Request::rest`], whatever [`Options::strip`] is.
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static {
        move |request| self.answer_below(request.mount_point(), request)
    }

    /// A router that answers everything below `prefix`, for [`Router::nest`] at the empty prefix.
    ///
    /// # Panics
    ///
    /// When `prefix` is neither empty nor begins with `/`.
    pub fn below(self, prefix: &str) -> Router {
        Router::new().mount(prefix, self.handler())
    }
}

impl From<Files> for Handler {
    fn from(files: Files) -> Handler {
        files.handler().into()
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("options", &self.site.options)
            .finish_non_exhaustive()
    }
}
