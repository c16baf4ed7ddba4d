//! From a request to its response: the one handler of the server.
//!
//! Called by the web crate on a fiber. The life of a GET: path as it was sent → this worker's cache, which trusts an
//! entry for [`FRESH`] → otherwise `target.rs` and `resource.rs`, here when the kernel has all of it in memory, or else
//! on the blocking pool → form by Accept-Encoding → conditions → range → response. A hit makes no system call.
//!
//! The cache belongs to the thread, so no lock is taken; it is never borrowed across a call that may suspend.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_web::http::StatusCode;
use osier_web::{Body, Request, Response};

use crate::cache::{Cache, Limits, Weigh};
use crate::cli::Field;
use crate::conditional::{Conditions, Verdict, evaluate};
use crate::listing;
use crate::negotiate::{Choice, Coding, choose};
use crate::range::{Selection, select, still_valid};
use crate::resource::{Access, Content, Loaded, Resource, Variant, load};
use crate::root::{Found, Root};
use crate::target::{Refusal, Target};

/// How long an answer is given without asking the file system again.
const FRESH: Duration = Duration::from_secs(1);

/// Half of how long an entry, and the descriptors in it, outlive their last use.
const UNUSED: Duration = Duration::from_secs(10);

/// Longer paths are served but not remembered.
const MAX_KEY: usize = 1024;

const ALLOW: &str = "GET, HEAD, OPTIONS";

/// What is served, and how. Shared by all workers; immutable.
pub struct Site {
    /// Where the files come from.
    pub source: Source,
    /// Pages that do not exist are /index.html.
    pub spa: bool,
    /// Folders without an index are listed.
    pub listing: bool,
    /// Fields of every response.
    pub headers: Vec<Field>,
    /// Bounds of each worker's cache.
    pub limits: Limits,
}

/// Where the files come from.
pub enum Source {
    /// A folder of the user's.
    Folder(Root),
    /// One page of our own.
    Page(Arc<Resource>),
}

/// What a path led to.
enum Answer {
    Resource(Arc<Resource>),
    Listing(String),
    /// To the path with a slash behind it.
    Redirect(String),
    Malformed,
    Forbidden,
    Missing,
}

/// A cache entry.
struct Remembered {
    resource: Arc<Resource>,
    /// When the file system last said so.
    checked: Instant,
}

thread_local! {
    static CACHE: RefCell<Option<Cache<Remembered>>> = const { RefCell::new(None) };
}

/// Answers one request.
///
/// # Suspends
/// while a disk is asked, if it has to be.
pub fn answer(site: &Arc<Site>, request: &Request<'_>) -> Response {
    let mut response = match request.method() {
        "GET" | "HEAD" => read(site, request).unwrap_or_else(failure),
        "OPTIONS" => Response::new(StatusCode::NO_CONTENT).header("allow", ALLOW),
        _ => plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", ALLOW),
    };
    for Field { name, value } in &site.headers {
        response = response.header(name, value);
    }
    response
}

/// Gives back what this worker's cache holds and nobody asks for, for ever: at most twice [`UNUSED`] after its last use.
///
/// # Suspends
/// always.
pub fn tidy_cache() {
    loop {
        osier::sleep(UNUSED);
        CACHE.with_borrow_mut(|cache| cache.as_mut().map(Cache::turn));
    }
}

fn read(site: &Arc<Site>, request: &Request<'_>) -> io::Result<Response> {
    let mut answer = locate(site, request.path())?;
    if site.spa && matches!(answer, Answer::Missing) && wants_page(request) {
        answer = locate(site, "/")?;
    }
    Ok(match answer {
        Answer::Resource(resource) => represent(&resource, request),
        Answer::Listing(page) => Response::new(StatusCode::OK)
            .content_type("text/html; charset=utf-8")
            .body(page),
        Answer::Redirect(mut location) => {
            if let Some(query) = request.query() {
                location.push('?');
                location.push_str(query);
            }
            Response::redirect(StatusCode::MOVED_PERMANENTLY, &location)
        }
        Answer::Malformed => plain(StatusCode::BAD_REQUEST),
        Answer::Forbidden => plain(StatusCode::FORBIDDEN),
        Answer::Missing => plain(StatusCode::NOT_FOUND),
    })
}

/// Finds what `path` means, in the cache or in the file system.
fn locate(site: &Arc<Site>, path: &str) -> io::Result<Answer> {
    let root = match &site.source {
        Source::Folder(root) => root,
        Source::Page(page) => {
            return Ok(if matches!(path, "/" | "/index.html") {
                Answer::Resource(page.clone())
            } else {
                Answer::Missing
            });
        }
    };
    let now = osier::time::coarse_now();
    let known = cached(site, |cache| {
        cache
            .find(path.as_bytes())
            .map(|known| (known.resource.clone(), known.checked))
    });
    let previous = match known {
        Some((resource, checked)) if now.saturating_duration_since(checked) < FRESH => {
            return Ok(Answer::Resource(resource));
        }
        stale => stale.map(|(resource, _)| resource),
    };
    let target = match Target::parse(path.as_bytes()) {
        Ok(target) => target,
        Err(Refusal::Malformed) => return Ok(Answer::Malformed),
        Err(Refusal::Hidden) => return Ok(Answer::Missing),
    };
    let answer = match look(root, site.listing, &target, Access::Cached, previous.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let site = Arc::clone(site);
            let work = move || match &site.source {
                Source::Folder(root) => look(root, site.listing, &target, Access::Blocking, previous.as_ref()),
                Source::Page(_) => Ok(Answer::Missing),
            };
            // A client that has ended its own direction still reads; and what the pool has begun cannot be stopped.
            osier::shield(|| osier::unblock(work))
        }
        answer => answer,
    };
    cached(site, |cache| match &answer {
        Ok(Answer::Resource(resource)) if path.len() <= MAX_KEY => {
            cache.insert(
                path.as_bytes(),
                Remembered {
                    resource: resource.clone(),
                    checked: now,
                },
            );
        }
        _ => cache.remove(path.as_bytes()),
    });
    answer
}

/// Asks the file system.
fn look(
    root: &Root,
    listing: bool,
    target: &Target,
    access: Access,
    previous: Option<&Arc<Resource>>,
) -> io::Result<Answer> {
    if !target.folder {
        return Ok(match load(root, &target.name, access, previous) {
            Ok(Loaded::Resource(resource)) => Answer::Resource(resource),
            Ok(Loaded::Folder) => Answer::Redirect(target.folder_url()),
            Ok(Loaded::Special) => Answer::Forbidden,
            Err(error) => return refused(error),
        });
    }
    let mut index = target.name.clone();
    if !index.is_empty() {
        index.push(b'/');
    }
    index.extend_from_slice(b"index.html");
    match load(root, &index, access, previous) {
        Ok(Loaded::Resource(resource)) => return Ok(Answer::Resource(resource)),
        Ok(Loaded::Special) => return Ok(Answer::Forbidden),
        Ok(Loaded::Folder) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return refused(error),
    }
    if !listing {
        return Ok(Answer::Missing);
    }
    if access == Access::Cached {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(match root.find(&target.name) {
        Ok(Found::Folder(folder)) => Answer::Listing(listing::page(root, target, folder)?),
        Ok(_) => Answer::Missing,
        Err(error) => return refused(error),
    })
}

/// Errors that are answers.
fn refused(error: io::Error) -> io::Result<Answer> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(Answer::Missing),
        io::ErrorKind::PermissionDenied => Ok(Answer::Forbidden),
        _ => Err(error),
    }
}

/// The request's fields that choose among representations, found in one pass: most requests have few of them.
#[derive(Default)]
struct Asked {
    accept_encoding: bool,
    conditions: bool,
    range: bool,
}

impl Asked {
    fn of(request: &Request<'_>) -> Asked {
        let mut asked = Asked::default();
        for (name, _) in request.headers() {
            match name.len() {
                5 => asked.range |= name.eq_ignore_ascii_case("range"),
                15 => asked.accept_encoding |= name.eq_ignore_ascii_case("accept-encoding"),
                8 | 13 | 17 | 19 => asked.conditions |= name.as_bytes()[..3].eq_ignore_ascii_case(b"if-"),
                _ => {}
            }
        }
        asked
    }
}

/// The response for a file that exists.
fn represent(resource: &Resource, request: &Request<'_>) -> Response {
    let asked = Asked::of(request);
    let mut variant = &resource.plain;
    if asked.accept_encoding {
        match choose(lines(request, "accept-encoding"), resource.present()) {
            Choice::Identity => {}
            Choice::Encoded(coding) => {
                let at = Coding::ALL.iter().position(|known| *known == coding);
                variant = at.and_then(|at| resource.encoded[at].as_ref()).unwrap_or(variant);
            }
            Choice::Nothing => return plain(StatusCode::NOT_ACCEPTABLE).header("vary", "accept-encoding"),
        }
    }
    if asked.conditions {
        match conditions(variant, request) {
            Verdict::Proceed => {}
            Verdict::NotModified => return Response::new(StatusCode::NOT_MODIFIED).with_fields(&variant.unchanged),
            Verdict::Failed => return plain(StatusCode::PRECONDITION_FAILED),
        }
    }
    if asked.range && request.method() == "GET" && still_valid(request.header("if-range"), &variant.validators()) {
        match select(request.header("range").unwrap_or_default(), variant.length()) {
            Selection::Whole => {}
            Selection::Part { first, last } => return part(variant, first, last),
            Selection::Unsatisfiable => {
                let length = format!("bytes */{}", variant.length());
                return plain(StatusCode::RANGE_NOT_SATISFIABLE).header("content-range", length);
            }
        }
    }
    let body = match &variant.content {
        Content::Memory(bytes) => Body::shared(Arc::clone(bytes)),
        Content::Disk(file) => Body::file(Arc::clone(file), 0, variant.length()),
    };
    Response::new(StatusCode::OK).with_fields(&variant.fields).body(body)
}

fn conditions(variant: &Variant, request: &Request<'_>) -> Verdict {
    let if_match: Vec<&[u8]> = lines(request, "if-match").collect();
    let if_none_match: Vec<&[u8]> = lines(request, "if-none-match").collect();
    let conditions = Conditions {
        if_match: &if_match,
        if_none_match: &if_none_match,
        if_modified_since: request.header("if-modified-since"),
        if_unmodified_since: request.header("if-unmodified-since"),
    };
    evaluate(&conditions, &variant.validators())
}

/// All lines of one field.
fn lines<'a>(request: &Request<'a>, wanted: &'static str) -> impl Iterator<Item = &'a [u8]> {
    request
        .headers()
        .filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        .map(|(_, value)| value)
}

/// Bytes `first` to `last` of a file.
fn part(variant: &Variant, first: u64, last: u64) -> Response {
    let body = match &variant.content {
        Content::Memory(bytes) => Body::from(bytes[first as usize..=last as usize].to_vec()),
        Content::Disk(file) => Body::file(Arc::clone(file), first, last - first + 1),
    };
    let range = format!("bytes {first}-{last}/{}", variant.length());
    Response::new(StatusCode::PARTIAL_CONTENT)
        .with_fields(&variant.fields)
        .header("content-range", range)
        .body(body)
}

/// A single-page application's page, rather than one of its assets, is what is missing.
fn wants_page(request: &Request<'_>) -> bool {
    let page = Target::parse(request.path().as_bytes()).is_ok_and(|target| !target.has_extension());
    let mut accepts = lines(request, "accept").peekable();
    let html = accepts.peek().is_none()
        || accepts.flat_map(|line| line.split(|&byte| byte == b',')).any(|range| {
            let kind = range
                .split(|&byte| byte == b';')
                .next()
                .unwrap_or_default()
                .trim_ascii();
            [&b"text/html"[..], b"text/*", b"*/*"]
                .iter()
                .any(|wanted| kind.eq_ignore_ascii_case(wanted))
        });
    page && html
}

/// A short answer without a file: the status in words.
fn plain(status: StatusCode) -> Response {
    Response::new(status).body(format!("{status}\n"))
}

/// An error that is the machine's fault. The client learns no more than that.
fn failure(error: io::Error) -> Response {
    match rustix::io::Errno::from_io_error(&error) {
        // Out of descriptors or memory: it passes.
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
            plain(StatusCode::SERVICE_UNAVAILABLE).header("retry-after", "1")
        }
        _ => Response::internal_error(error),
    }
}

fn cached<T>(site: &Site, work: impl FnOnce(&mut Cache<Remembered>) -> T) -> T {
    CACHE.with_borrow_mut(|cache| work(cache.get_or_insert_with(|| Cache::new(site.limits))))
}

impl Weigh for Remembered {
    fn bytes(&self) -> usize {
        self.resource.bytes()
    }

    fn files(&self) -> usize {
        self.resource.files()
    }
}
