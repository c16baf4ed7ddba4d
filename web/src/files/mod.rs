//! A handler that serves files: a folder, or pages inside the binary.
//!
//! ```no_run
//! use osier_web::files::{Files, Options};
//! use osier_web::{Router, serve};
//!
//! let assets = Files::with("./assets", Options { listing: true, ..Options::default() })?;
//! let router = Router::new()
//!     .get("/hello", |_| "hello\n")
//!     .mount("/assets", assets.handler())
//!     .fallback(Files::open("./public")?.handler());
//! osier::run(|| serve("127.0.0.1:8080", router))
//! # ;
//! # std::io::Result::Ok(())
//! ```

// # Layout
//
// - `answer` is the entry. It turns a request into a response.
// - `caches` holds the caches of one thread; `cache` is one of them, for one [`Files`].
// - `target` reads a request's path into a file name.
// - `place` finds the folder of a path, again and again; `root` opens a name in that folder. `walk` does so step by
//   step where there are symbolic links to judge; `links` has the rule, and logs refused ones.
// - `resource` is a loaded file with its encoded siblings. Each form of it is a `variant`.
//   `encoded` makes the encodings that have no sibling.
// - `linux` has the calls of Linux for names and bytes in memory, `entry` an entry of a folder; `no_linux` and `no_path`
//   stand in for them elsewhere.
// - `conditional` and `range` choose which part of the file is sent.
// - `listing` writes the listing of a folder; `mime` maps extensions to types; `calendar` makes dates.

mod answer;
mod cache;
pub(crate) mod caches;
pub mod calendar;
pub(crate) mod conditional;
mod encoded;
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android", target_os = "freebsd")),
    path = "no_path.rs"
)]
mod entry;
mod links;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_linux.rs")]
mod linux;
mod listing;
mod mime;
// For tests of it on a system that has O_PATH.
#[cfg(test)]
mod no_path;
pub(crate) mod place;
pub(crate) mod range;
mod resource;
pub(crate) mod root;
pub(crate) mod target;
mod variant;
mod walk;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use osier_http::path::canonical_part;

pub use self::cache::Limits as CacheLimits;
use self::caches::CacheIndex;
use self::encoded::Store;
pub use self::links::Symlinks;
pub use self::mime::Types;
use self::place::Place;
use self::resource::Resource;
#[cfg(feature = "fastcgi")]
pub(crate) use self::variant::Access;
use crate::{Handler, Request, Response, compress};

/// Options for serving a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Names tried, in this order, for a path that names a folder. An empty list means no index.
    /// Default: `index.html`.
    pub index: Vec<String>,
    /// Lists a folder without an index, instead of 404. A client gets JSON if it prefers
    /// `application/json` or adds `?format=json`, otherwise an HTML page. Off by default.
    pub listing: bool,
    /// Serves the index of the root for a page that does not exist, as single-page applications
    /// need, to clients that accept HTML. Off by default.
    pub spa: bool,
    /// Serves names that begin with a dot too. `/.well-known/` is always served. Off by default.
    pub hidden: bool,
    /// Sends `x.br`, `x.zst` or `x.gz` in place of `x` to clients that accept the coding, if it is
    /// not older than `x`. On by default.
    pub precompressed: bool,
    /// Compresses text and other compressible files of up to 8 MiB for clients that accept it, at
    /// the first such request. A file is not compressed within two seconds of a change. If a client
    /// accepts two codings equally, the denser one is used. On by default, from 1 KiB on.
    pub compress: Option<compress::Options>,
    /// Which symbolic links are followed. Refused ones are logged, see [`Files::on_log`]. Default: those that end
    /// inside the folder.
    pub symlinks: Symlinks,
    /// Accepts a folder that does not exist yet, or that the process may not read. Requests get 503 until it can be
    /// read. Off by default: [`Files::with`] fails then.
    pub may_be_missing: bool,
    /// Prefix that [`Files::answer`] takes off a path: with `/assets`, the root is `/assets/`. An
    /// empty prefix takes nothing off. Default: the [mount point](Request::mount_point) of the
    /// request.
    pub strip: Option<String>,
    /// Types of files beside the built-in ones. None by default.
    pub types: Types,
    /// `Cache-Control` of responses that carry a file or say that it has not changed (200, 206,
    /// 304). None by default.
    pub cache_control: Option<String>,
    /// Name and value of fields that every response gets. None by default.
    pub headers: Vec<(String, String)>,
    /// Largest file, in bytes, whose contents are kept in memory. A larger file is kept open, and each response is read
    /// from it. Default: 32 KiB. With 0 no contents are kept; a file that is replaced is noticed within a second all
    /// the same.
    pub in_memory: u64,
    /// Bounds of the caches, over all workers. Each worker has an equal share.
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
            compress: Some(compress::Options::default()),
            symlinks: Symlinks::default(),
            may_be_missing: false,
            strip: None,
            types: Types::default(),
            cache_control: None,
            headers: Vec::new(),
            in_memory: variant::SMALL,
            cache: CacheLimits::default(),
        }
    }
}

impl Options {
    /// Smallest file, in bytes, for which the server makes encoded forms. `None` if it makes none.
    fn encoded_from(&self) -> Option<u64> {
        let settings = self.compress.as_ref()?;
        (self.cache.compressed >= encoded::LEAST).then_some(settings.min)
    }
}

/// A handler for files. A clone shares the folder, the options and the caches. The workers free
/// their caches within seconds after the last clone is dropped.
///
/// `GET` and `HEAD` support validators (a strong `ETag`, `Last-Modified`), conditional fields and
/// ranges. A tag is the date and the size of the file. A file whose date is the second 0 or 1, as in some images, has no
/// `Last-Modified`; its tag is a hash of its bytes, or of its inode if the contents are not kept in memory. A change of a
/// file is noticed within a second, and so is another folder under the same path: the path is looked up again. While
/// there is no folder, requests get 503. No name leads out of the folder, neither by `..` nor by a symbolic link, unless
/// [`Options::symlinks`] allows the link.
///
/// ```
/// use osier_web::files::Files;
///
/// let page = Files::embedded([("/", "text/html; charset=utf-8", "<!doctype html><title>hi</title>".as_bytes())]);
/// let router = osier_web::Router::new().fallback(page.handler());
/// ```
#[derive(Clone)]
#[doc(alias("ServeDir", "ServeFile", "NamedFile", "static"))]
pub struct Files {
    site: Arc<Site>,
}

/// The source and the options of one [`Files`]. All workers share it. It is immutable but for the
/// store of encoded forms.
pub(crate) struct Site {
    source: Source,
    options: Options,
    cache_index: Arc<CacheIndex>,
    encoded: Store,
}

/// The source of the files.
enum Source {
    Folder(Arc<Place>),
    /// Pages by canonical path.
    Embedded(HashMap<String, Arc<Resource>>),
}

impl Source {
    /// See [`Place::generation`]. Pages inside the binary have the generation 0.
    #[inline]
    fn generation(&self, now: Instant) -> Option<u64> {
        match self {
            Source::Folder(place) => place.generation(now),
            Source::Embedded(_) => Some(0),
        }
    }
}

impl Files {
    /// Serves `folder` with the default [`Options`].
    ///
    /// # Errors
    ///
    /// Errors of `open(2)`: `NotFound`, `NotADirectory` for anything but a folder,
    /// `PermissionDenied`.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<Files> {
        Files::with(folder, Options::default())
    }

    /// Serves `folder` with `options`.
    ///
    /// # Errors
    ///
    /// As [`Files::open`], and `InvalidInput` for a field name or value that HTTP does not allow.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes.
    pub fn with(folder: impl AsRef<Path>, options: Options) -> io::Result<Files> {
        let place = Place::open(folder.as_ref(), options.may_be_missing, options.symlinks)?;
        Files::of(Source::Folder(Arc::new(place)), options)
    }

    /// Serves the folder of `place`, which other handlers may serve, too.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn at(place: &Arc<Place>, options: Options) -> io::Result<Files> {
        Files::of(Source::Folder(Arc::clone(place)), options)
    }

    /// Sets the receiver of lines for the operator: the folder is gone, or there again; a symbolic link was refused.
    /// The default drops them. Only the first call has an effect, and it holds for every clone.
    #[must_use]
    pub fn on_log(self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Files {
        if let Source::Folder(place) = &self.site.source {
            place.set_log(Box::new(log));
        }
        self
    }

    /// Serves pages inside the binary, given as path (`/`, `/style.css`), content type and bytes.
    /// Every other path gets 404.
    pub fn embedded<'a>(pages: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>) -> Files {
        Files::embedded_with(pages, Options::default()).expect("there are no headers to refuse")
    }

    /// Serves pages as [`Files::embedded`] does, with `options`. Options about a folder have no effect: `index`,
    /// `listing`, `hidden`, `precompressed`, `symlinks`, `may_be_missing`, `types` and `in_memory`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a field name or value that HTTP does not allow.
    pub fn embedded_with<'a>(
        pages: impl IntoIterator<Item = (&'a str, &'a str, &'a [u8])>,
        options: Options,
    ) -> io::Result<Files> {
        let encoded_from = options.encoded_from();
        let pages = pages.into_iter().map(|(path, mime, bytes)| {
            let path = canonical_part(path).unwrap_or(Cow::Borrowed(path)).into_owned();
            (path, Arc::new(Resource::embedded(bytes, mime, encoded_from)))
        });
        Files::of(Source::Embedded(pages.collect()), options)
    }

    /// Checks the options, and makes the handler.
    fn of(source: Source, mut options: Options) -> io::Result<Files> {
        if let Some(prefix) = &mut options.strip {
            prefix.truncate(prefix.trim_end_matches('/').len());
        }
        let cache_control = options.cache_control.as_ref().map(|value| ("cache-control", value));
        let headers = options.headers.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in headers.chain(cache_control) {
            if Response::new(StatusCode::OK).header(name, value).status() != StatusCode::OK {
                let what = format!("header {name:?} has a name or value that HTTP does not allow");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        let (cache_index, encoded) = (CacheIndex::take(), Store::new(options.cache.compressed));
        Ok(Files {
            site: Arc::new(Site {
                source,
                options,
                cache_index,
                encoded,
            }),
        })
    }

    /// Makes a handler that responds as [`Files::answer`], for [`Router::mount`](crate::Router::mount) and
    /// [`Router::fallback`](crate::Router::fallback).
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static {
        move |request| self.answer(request)
    }
}

impl From<Files> for Handler {
    fn from(files: Files) -> Handler {
        files.handler().into()
    }
}

osier_queue::impl_debug!(Files, self => { options: self.site.options, .. });
