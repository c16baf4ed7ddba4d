//! Answers a request for a file. The steps of a GET, in order:
//!
//! 1. Look up the path, as it was sent, in the cache of this worker. An entry is trusted for
//!    [`FRESH`]. A hit makes no system call.
//! 2. On a miss, read the path (`target.rs`) and load the file (`resource.rs`). The worker does
//!    this itself while the kernel has all of it in memory. Otherwise the blocking pool does it.
//! 3. Choose a form by Accept-Encoding, then evaluate the conditional fields, then the range.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::{io, iter};

use http::StatusCode;
use osier_http::is_field;
use osier_http::path::{BadPath, Path, canonical_part};

use super::caches::{self, Remembered};
use super::conditional::{Conditions, Verdict, evaluate};
use super::encoded;
use super::listing::{self, Format};
use super::place::{self, FRESH};
use super::range::{Selection, select, still_valid};
use super::resource::{LoadOptions, Loaded, Resource, load};
use super::root::{Found, Root};
use super::target::{Refusal, Target};
use super::variant::{Access, Content, Variant};
use super::{Files, Options, Site, Source};
use crate::compress::accept_encoding::{Choice, choose, weighted};
use crate::{Body, Request, RequestId, Response};

/// Longest path that is cached. Longer paths are served too.
const MAX_KEY: usize = 1024;

/// The methods that are answered.
const ALLOW: &str = "GET, HEAD, OPTIONS";

/// The result of looking up a path.
enum Lookup {
    Resource(Arc<Resource>),
    Listing(String, Format),
    /// A redirect to the path with a slash at its end.
    Redirect(String),
    Malformed,
    /// A file that may not be sent, with the reason for the log.
    Forbidden(&'static str),
    Missing,
    /// The served folder itself is not there.
    Unavailable,
}

/// The name of a file or folder below the root.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// The path of a request below the prefix, as it was sent.
    Path(&'a str),
    /// A path without percent-encoding. It may begin with a dot.
    Name(&'a [u8]),
}

impl Files {
    /// Responds to `request` with the file or folder that its path names. The prefix that
    /// [`Options::strip`](super::Options::strip) names is taken off first. A path that is not below
    /// the prefix gets 404.
    ///
    /// # Suspends
    ///
    /// May suspend, while the blocking pool reads the disk or compresses a file.
    ///
    /// # Cancellation
    ///
    /// Work that the blocking pool has begun is finished first. It cannot be stopped.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let response = match request.method() {
            "GET" | "HEAD" => self.read(request),
            "OPTIONS" => Response::new(StatusCode::NO_CONTENT).header("allow", ALLOW),
            _ => Response::plain(StatusCode::METHOD_NOT_ALLOWED).header("allow", ALLOW),
        };
        with_headers(&self.site, response)
    }

    fn read(&self, request: &Request<'_>) -> Response {
        let (site, options) = (&self.site, &self.site.options);
        let prefix = options.strip.as_deref().unwrap_or_else(|| request.mount_point());
        let mut depends_on_accept = false;
        let lookup = match below(request.path(), prefix) {
            Err(_) => Ok(Lookup::Malformed),
            Ok(None) => Ok(Lookup::Missing),
            // A redirect to the prefix with a slash: otherwise relative links on the page
            // would lead outside the prefix.
            Ok(Some("")) if !prefix.is_empty() => Ok(Lookup::Redirect("/".into())),
            Ok(Some(path)) => match locate(site, Wanted::Path(path), request) {
                Ok(Lookup::Missing) if options.spa && may_be_page(path) => {
                    depends_on_accept = true;
                    match wants_html(request) {
                        true => locate(site, Wanted::Path("/"), request),
                        false => Ok(Lookup::Missing),
                    }
                }
                lookup => lookup,
            },
        };
        let is_file = matches!(lookup, Ok(Lookup::Resource(_)));
        let mut response = respond(site, lookup, prefix, request);
        if depends_on_accept {
            response = response.header("vary", "accept");
        }
        match (&options.cache_control, response.status().as_u16()) {
            (Some(value), 200 | 206 | 304) if is_file => response.header("cache-control", value),
            _ => response,
        }
    }

    /// Responds to `request` with the file `name`, whatever the path of the request is. An
    /// application names such a file in `X-Sendfile`.
    ///
    /// `name` is a path below the root without percent-encoding. Names that begin with a dot are
    /// served too. A name that is no file, or lies outside the root, gets 404. Conditional fields
    /// count for `GET` and `HEAD`, ranges for `GET`.
    ///
    /// # Suspends
    ///
    /// May suspend, as [`Files::answer`].
    pub fn answer_with(&self, request: &Request<'_>, name: impl AsRef<[u8]>) -> Response {
        answer_with(&self.site, request, name.as_ref(), StatusCode::OK)
    }

    /// Responds as [`Files::answer_with`] does, under another status, such as that of an error
    /// page. Conditional fields and ranges do not count then, unless the status is 200.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn answer_as(&self, status: StatusCode, request: &Request<'_>, name: &[u8]) -> Response {
        answer_with(&self.site, request, name, status)
    }
}

/// Responds to `request` with the file `name` under `status`, whatever the path and method of the
/// request are.
///
/// # Suspends
///
/// May suspend, as [`Files::answer`].
fn answer_with(site: &Arc<Site>, request: &Request<'_>, name: &[u8], status: StatusCode) -> Response {
    let response = match locate(site, Wanted::Name(name), request) {
        Ok(Lookup::Resource(resource)) => represent(site, &resource, request, status),
        Ok(Lookup::Forbidden(reason)) => Response::plain(StatusCode::FORBIDDEN).because(reason),
        Ok(Lookup::Unavailable) => Response::plain(StatusCode::SERVICE_UNAVAILABLE),
        Ok(_) => Response::plain(StatusCode::NOT_FOUND),
        Err(error) => failure(error),
    };
    with_headers(site, response)
}

/// Adds the fields that every response of `site` gets.
fn with_headers(site: &Site, response: Response) -> Response {
    let headers = site.options.headers.iter();
    headers.fold(response, |response, (name, value)| response.header(name, value))
}

/// Makes the response from the result of a look-up.
fn respond(site: &Site, lookup: io::Result<Lookup>, prefix: &str, request: &Request<'_>) -> Response {
    match lookup {
        Ok(Lookup::Resource(resource)) => represent(site, &resource, request, StatusCode::OK),
        Ok(Lookup::Listing(text, format)) => Response::new(StatusCode::OK)
            .content_type(match format {
                Format::Html => "text/html; charset=utf-8",
                Format::Json => "application/json",
            })
            .header("vary", "accept")
            .body(text),
        Ok(Lookup::Redirect(below)) => {
            // As the client spells it, `//assets` would be another host.
            let prefix = canonical_part(prefix).unwrap_or(Cow::Borrowed(prefix));
            let mut location = format!("{prefix}{below}");
            if let Some(query) = request.query() {
                location.push('?');
                location.push_str(query);
            }
            Response::moved(request.method(), &location)
        }
        Ok(Lookup::Malformed) => Response::plain(StatusCode::BAD_REQUEST).because("the path cannot be read"),
        Ok(Lookup::Forbidden(reason)) => Response::plain(StatusCode::FORBIDDEN).because(reason),
        Ok(Lookup::Missing) => Response::plain(StatusCode::NOT_FOUND),
        Ok(Lookup::Unavailable) => Response::plain(StatusCode::SERVICE_UNAVAILABLE),
        Err(error) => failure(error),
    }
}

/// Takes `prefix` off `path`. The rest is empty or begins with a slash. `None` if `path` is not
/// below `prefix`.
fn below<'p>(path: &'p str, prefix: &str) -> Result<Option<&'p str>, BadPath> {
    // The prefix is usually spelled alike in both, so most requests need no parsing.
    match path.strip_prefix(prefix) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Ok(Some(rest)),
        _ => Ok(Path::parse(path)?.strip_prefix(prefix)),
    }
}

impl Wanted<'_> {
    /// The key in the cache. The key of a name begins with a NUL, so it equals no request's path.
    fn key(&self) -> Cow<'_, [u8]> {
        match self {
            Wanted::Path(path) => path.as_bytes().into(),
            Wanted::Name(name) => [b"\0", *name].concat().into(),
        }
    }

    /// Returns the file or folder that this names, or the result of the look-up if it can name none.
    fn target(&self, hidden: bool) -> Result<Target, Lookup> {
        match self {
            Wanted::Path(path) => Target::parse(path, hidden).map_err(|refusal| match refusal {
                Refusal::Malformed => Lookup::Malformed,
                Refusal::Hidden => Lookup::Missing,
            }),
            Wanted::Name(name) if name.contains(&0) => Err(Lookup::Missing),
            Wanted::Name(name) => Ok(Target {
                name: name.to_vec(),
                folder: false,
            }),
        }
    }

    /// Looks for the page inside the binary that this names.
    fn page(&self, pages: &HashMap<String, Arc<Resource>>) -> Lookup {
        let page = match self {
            Wanted::Path(path) => match Path::parse(path) {
                Ok(path) => pages.get(path.canonical()),
                Err(_) => return Lookup::Malformed,
            },
            Wanted::Name(name) => str::from_utf8(name).ok().and_then(|name| pages.get(name)),
        };
        page.map_or(Lookup::Missing, |page| Lookup::Resource(Arc::clone(page)))
    }
}

/// Takes the cached entry of `wanted`, or asks the file system.
#[inline]
fn locate(site: &Arc<Site>, wanted: Wanted<'_>, request: &Request<'_>) -> io::Result<Lookup> {
    if let Source::Embedded(pages) = &site.source {
        return Ok(wanted.page(pages));
    }
    let (key, now) = (wanted.key(), osier::time::coarse_now());
    let generation = site.source.generation(now);
    let known = caches::known(site, |cache| {
        let known = cache.find(&key)?;
        let fresh = now.saturating_duration_since(known.checked) < FRESH && generation == Some(known.generation);
        Some((known.resource.clone(), fresh))
    });
    let previous = match known {
        Some((resource, true)) => return Ok(Lookup::Resource(resource)),
        stale => stale.map(|(resource, _)| resource),
    };
    let target = match wanted.target(site.options.hidden) {
        Ok(target) => target,
        Err(lookup) => return Ok(lookup),
    };
    // The Accept field is read only when a listing is possible. Most requests are for files.
    let format = match site.options.listing && target.folder && wants_json(request) {
        true => Format::Json,
        false => Format::Html,
    };
    let lookup = match look(site, &target, format, Access::Cached, previous.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let site = Arc::clone(site);
            let work = move || look(&site, &target, format, Access::Blocking, previous.as_ref());
            // A client that has closed its sending direction still reads. The pool cannot stop work
            // that it has begun.
            osier::shield(|| osier::unblock(work))
        }
        lookup => lookup,
    };
    let (lookup, generation) = match lookup {
        Ok((lookup, generation)) => (Ok(lookup), generation),
        Err(error) if place::is_absent(&error) => (Ok(Lookup::Unavailable), 0),
        Err(error) => (Err(error), 0),
    };
    match &lookup {
        Ok(Lookup::Resource(resource)) if key.len() <= MAX_KEY => {
            let remembered = Remembered {
                resource: resource.clone(),
                checked: now,
                generation,
            };
            caches::remember(site, |cache| cache.insert(&key, remembered));
        }
        _ => drop(caches::known(site, |cache| {
            cache.remove(&key);
            Some(())
        })),
    }
    lookup
}

/// Looks for `target` in the file system. Also returns the generation of the folder.
fn look(
    site: &Site,
    target: &Target,
    format: Format,
    access: Access,
    previous: Option<&Arc<Resource>>,
) -> io::Result<(Lookup, u64)> {
    let Source::Folder(place) = &site.source else {
        return Ok((Lookup::Missing, 0));
    };
    let (root, generation) = place.root(access)?;
    let lookup = look_in(&root, &site.options, target, format, access, previous)?;
    Ok((lookup, generation))
}

/// Looks for `target` in one folder.
fn look_in(
    root: &Root,
    options: &Options,
    target: &Target,
    format: Format,
    access: Access,
    previous: Option<&Arc<Resource>>,
) -> io::Result<Lookup> {
    let loading = LoadOptions {
        siblings: options.precompressed,
        made: options.encoded_from(),
        in_memory: options.in_memory,
        types: &options.types,
    };
    if !target.folder {
        return Ok(match load(root, &target.name, access, loading, previous) {
            Ok(Loaded::Resource(resource)) => Lookup::Resource(resource),
            Ok(Loaded::Folder) => Lookup::Redirect(target.folder_url()),
            Ok(Loaded::Special) => Lookup::Forbidden(SPECIAL),
            Err(error) => return refused(error),
        });
    }
    let mut index = target.name.clone();
    if !index.is_empty() {
        index.push(b'/');
    }
    let folder = index.len();
    for name in &options.index {
        index.truncate(folder);
        index.extend_from_slice(name.as_bytes());
        match load(root, &index, access, loading, previous) {
            Ok(Loaded::Resource(resource)) => return Ok(Lookup::Resource(resource)),
            Ok(Loaded::Special) => return Ok(Lookup::Forbidden(SPECIAL)),
            Ok(Loaded::Folder) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return refused(error),
        }
    }
    if !options.listing {
        return Ok(Lookup::Missing);
    }
    if access == Access::Cached {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(match root.find(&target.name) {
        Ok(Found::Folder(folder)) => {
            let text = listing::write(root, target, options.hidden, format, folder)?;
            Lookup::Listing(text, format)
        }
        Ok(_) => Lookup::Missing,
        Err(error) => return refused(error),
    })
}

/// The reason for a pipe, a device and the like.
const SPECIAL: &str = "it is neither a file nor a folder";

/// Turns an error about the file itself into a result. Other errors stay.
fn refused(error: io::Error) -> io::Result<Lookup> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(Lookup::Missing),
        io::ErrorKind::PermissionDenied => Ok(Lookup::Forbidden("the user of this server may not read the file")),
        _ => Err(error),
    }
}

/// The fields of a request that choose a representation. One pass finds them, because most requests have few.
#[derive(Default)]
struct Asked<'r> {
    /// The first Accept-Encoding.
    accept_encoding: Option<&'r [u8]>,
    /// Whether there are more of them.
    has_more: bool,
    conditions: bool,
    range: bool,
}

impl<'r> Asked<'r> {
    fn of(request: &Request<'r>) -> Asked<'r> {
        let mut asked = Asked::default();
        for (name, value) in request.headers() {
            match name.len() {
                5 => asked.range |= name.eq_ignore_ascii_case("range"),
                15 if is_field(name, "accept-encoding") => {
                    asked.has_more = asked.accept_encoding.is_some();
                    asked.accept_encoding.get_or_insert(value);
                }
                8 | 13 | 17 | 19 => asked.conditions |= name.as_bytes()[..3].eq_ignore_ascii_case(b"if-"),
                _ => {}
            }
        }
        asked
    }
}

/// Makes the response for a file that exists. Conditional fields and ranges count only under status
/// 200 (RFC 9110 sections 13.2.1, 14.2).
fn represent(site: &Site, resource: &Arc<Resource>, request: &Request<'_>, status: StatusCode) -> Response {
    let asked = Asked::of(request);
    let mut variant = &resource.plain;
    let form;
    if let Some(first) = asked.accept_encoding {
        let more = asked.has_more.then(|| lines(request, "accept-encoding").skip(1));
        let accepted = iter::once(first).chain(more.into_iter().flatten());
        let made = site
            .options
            .compress
            .as_ref()
            .map_or(&[][..], |settings| &settings.codings);
        match choose(accepted, resource.offered(made)) {
            Choice::Identity => {}
            Choice::Encoded(coding) => match &resource.encoded[coding as usize] {
                Some(sibling) => variant = sibling,
                None => {
                    form = encoded::form(site, resource, coding);
                    variant = form.as_ref().and_then(|form| form.variant()).unwrap_or(variant);
                }
            },
            Choice::Nothing => return Response::plain(StatusCode::NOT_ACCEPTABLE).header("vary", "accept-encoding"),
        }
    }
    // The conditional fields of a POST, say, refer to the state before it was processed.
    let is_read = matches!(request.method(), "GET" | "HEAD") && status == StatusCode::OK;
    if asked.conditions && is_read {
        match conditions(variant, request) {
            Verdict::Proceed => {}
            Verdict::NotModified => return Response::new(StatusCode::NOT_MODIFIED).with_fields(&variant.unchanged),
            Verdict::Failed => return Response::plain(StatusCode::PRECONDITION_FAILED),
        }
    }
    if asked.range
        && is_read
        && request.method() == "GET"
        && still_valid(request.header("if-range"), &variant.validators())
    {
        let is_encoded = !std::ptr::eq(variant, &resource.plain);
        match select(request.header("range").unwrap_or_default(), variant.length()) {
            Selection::Whole => {}
            // An encoded file is sent whole. Content-Encoding would describe the multipart message,
            // not its parts, and clients would decode the wrong one.
            Selection::Parts(_) if is_encoded => {}
            Selection::Parts(parts) => return multipart(variant, &resource.mime, &parts),
            Selection::Part { first, last } => return part(variant, first, last),
            Selection::Unsatisfiable => {
                let length = format!("bytes */{}", variant.length());
                return Response::plain(StatusCode::RANGE_NOT_SATISFIABLE).header("content-range", length);
            }
        }
    }
    let body = match &variant.content {
        Content::Memory(bytes) => Body::shared(Arc::clone(bytes)),
        Content::Disk(file) => Body::file(Arc::clone(file), 0, variant.length()),
    };
    Response::new(status).with_fields(&variant.fields).body(body)
}

/// Evaluates the conditional fields of a request.
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

/// Yields the value of every line of one field.
fn lines<'a>(request: &Request<'a>, wanted: &'static str) -> impl Iterator<Item = &'a [u8]> + Clone {
    request
        .headers()
        .filter(move |(name, _)| is_field(name, wanted))
        .map(|(_, value)| value)
}

/// Responds with bytes `first` to `last` of a file.
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

/// Responds with several parts of a file (RFC 9110 section 14.6).
fn multipart(variant: &Variant, mime: &str, parts: &[(u64, u64)]) -> Response {
    // The boundary is random, so that nobody can make a file that contains it.
    let boundary = format!("{}{}", RequestId::random(), RequestId::random());
    let length = variant.length();
    let head = |&(first, last): &(u64, u64)| {
        format!("\r\n--{boundary}\r\nContent-Type: {mime}\r\nContent-Range: bytes {first}-{last}/{length}\r\n\r\n")
            .into_bytes()
    };
    let tail = format!("\r\n--{boundary}--\r\n").into_bytes();
    let body = match &variant.content {
        Content::Memory(bytes) => {
            let mut body = Vec::new();
            for part in parts {
                body.extend_from_slice(&head(part));
                body.extend_from_slice(&bytes[part.0 as usize..=part.1 as usize]);
            }
            body.extend_from_slice(&tail);
            Body::from(body)
        }
        Content::Disk(file) => Body::file_parts(
            Arc::clone(file),
            parts.iter().map(|part| (head(part), part.0, part.1 - part.0 + 1)),
            tail,
        ),
    };
    Response::new(StatusCode::PARTIAL_CONTENT)
        .with_fields(&variant.fields)
        .header("content-type", format!("multipart/byteranges; boundary={boundary}"))
        .body(body)
}

/// Whether the client prefers JSON for a listing: by `?format=json`, or by its Accept field.
fn wants_json(request: &Request<'_>) -> bool {
    let asks = |query: &str| query.split('&').any(|pair| pair == "format=json");
    let (mut json, mut page) = (0, 0);
    for range in lines(request, "accept").flat_map(|line| line.split(|&byte| byte == b',')) {
        let Some((kind, weight)) = weighted(range) else {
            continue;
        };
        if kind.eq_ignore_ascii_case(b"application/json") {
            json = weight;
        } else if kind.eq_ignore_ascii_case(b"text/html") || kind == b"*/*" {
            page = weight.max(page);
        }
    }
    request.query().is_some_and(asks) || json > page
}

/// Whether a missing path may be a page of a single-page application: it is not one of its assets.
fn may_be_page(path: &str) -> bool {
    Target::parse(path, false).is_ok_and(|target| !target.has_extension())
}

/// Whether the client takes a page.
fn wants_html(request: &Request<'_>) -> bool {
    let mut accepts = lines(request, "accept").peekable();
    accepts.peek().is_none()
        || accepts.flat_map(|line| line.split(|&byte| byte == b',')).any(|range| {
            let kind = range
                .split(|&byte| byte == b';')
                .next()
                .unwrap_or_default()
                .trim_ascii();
            [&b"text/html"[..], b"text/*", b"*/*"]
                .iter()
                .any(|wanted| kind.eq_ignore_ascii_case(wanted))
        })
}

/// The response for an error of the system. The client learns no details.
fn failure(error: io::Error) -> Response {
    match rustix::io::Errno::from_io_error(&error) {
        // Descriptors or memory ran out, or another program holds a lease on the file, as Samba does. That usually passes soon.
        Some(
            rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN,
        ) => Response::plain(StatusCode::SERVICE_UNAVAILABLE).header("retry-after", "1"),
        _ => Response::internal_error(error),
    }
}
