//! A handler that runs scripts on an application server (php-fpm and similar) over FastCGI.
//!
//! ```no_run
//! use osier_web::fastcgi::{self, FastCgi, Options};
//! use osier_web::files::Files;
//! use osier_web::{Router, serve};
//!
//! let files = Files::open("/srv/wiki")?;
//! let options = Options { front: Some("/index.php".into()), ..Options::default() };
//! let php = fastcgi::upstream("php", ["unix:/run/php/php-fpm.sock".parse().unwrap()]).build()?;
//! let wiki = FastCgi::with("/srv/wiki", php, options)?
//!     .otherwise(move |request| files.answer(request));
//! osier::run(|| serve("127.0.0.1:8080", Router::new().fallback(wiki.handler())))
//! # ;
//! # std::io::Result::Ok(())
//! ```
//!
//! # Error responses
//!
//! | cause | status |
//! |---|---|
//! | the path has a control byte, a dot segment or a bad escape; two fields have the same variable name | 400 |
//! | no script matches, and there is no [`otherwise`](FastCgi::otherwise) | 404 |
//! | the client's body does not arrive, is malformed, or is longer than the limit | 408, 400, 413 |
//! | connecting fails; the connection ends before the response; the response is not FastCGI or CGI, or its head is too long | 502 |
//! | the backend reports overload; every backend fails its health check or is at its request limit | 503 |
//! | connecting, the first byte or the next byte takes too long | 504 |
//!
//! A 502, 503 or 504 is logged with its cause and the request id. Once the head of a response has been sent, a failure
//! can only end the client's connection.
//!
//! When a client leaves, its request ends and the connection to the backend is closed. `php-fpm` and similar servers
//! notice that at their next write. The handler may pass on requests for a removed script for one second more; the
//! backend then answers them.
//!
//! A script may go on for 60 seconds after the end of its Content-Length, or after a 204 or 304, while at most 128 of the
//! handler do so. For a `HEAD` it has one second, for which the response waits. Then its connection is closed, too.
//!
//! Files that the backend names (`X-Sendfile`, `X-Accel-Redirect`) are sent as other files are, with validators,
//! conditions and ranges. A name without a file gets 404.

// # Layout
//
// | module | work |
// |---|---|
// | `script` | finds the script that a path means |
// | `found` | remembers the scripts found in the last second |
// | `params` | encodes the FastCGI parameters |
// | `sender` | sends the request body |
// | `exchange` | reads the records of the backend |
// | `backend_response` | reads the head and the body out of these records |
// | `client_response` | makes the client's response |
// | `stderr` | logs the backend's standard error |
//
// [`upstream`](crate::upstream) chooses the backend and keeps idle connections. A connection carries one request at a
// time: backends multiplex badly or not at all.

mod backend_response;
mod client_response;
mod exchange;
mod found;
mod options;
mod params;
mod script;
mod sender;
mod stderr;

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use http::StatusCode;
use osier::sync::Semaphore;
use osier_http::fastcgi;

use self::backend_response::{BackendResponse, DRAINS};
use self::exchange::{Exchange, Failure, Heard, Patience};
use self::found::Scripts;
pub use self::options::Options;
pub use self::params::RequestParams;
use self::params::{Asked, Fields, Fixed};
use self::script::{Found, Rules, Script, Wanted};
use self::sender::{Sender, Source, while_sending};
use self::stderr::{About, Stderr};
use crate::body::ahead::Bounds;
use crate::body::spool::{self, Spool};
use crate::conn::buffers;
use crate::files::place::{self, Place};
use crate::files::root::Root;
use crate::files::{self, Access, Files};
use crate::lock;
use crate::request::path_and_query;
use crate::upstream::attempt::{Failed, Unanswered, is_idempotent};
use crate::upstream::client::while_client_stays;
use crate::upstream::{Builder, Lease, Unavailable, Unreached, Upstream};
use crate::{Address, Answer, Handler, IntoResponse, Request, Response};

/// The longest body that is sent together with the parameters in one call, in bytes.
const SMALL: u64 = 16 << 10;

/// The most redirects inside the server that one request may take.
const REDIRECTS: usize = 5;

/// The longest part of a request's method, and of its target, that is logged, in bytes.
const LABEL: usize = 200;

/// A handler for paths that lead to no script.
type Otherwise = Box<dyn Fn(&mut Request<'_>) -> Response + Send + Sync>;

/// A handler for paths that the backend names.
type Internal = Box<dyn Fn(&Request<'_>, &str) -> Response + Send + Sync>;

/// Starts building an [`Upstream`] of application servers, with the defaults that suit FastCGI.
///
/// No idle connections are kept: each would occupy a worker of php-fpm. [`Builder::keep`] changes that. Use
/// [`Check::connect`](crate::upstream::Check::connect) for health checks: an application server does not answer a check
/// over HTTP.
pub fn upstream(name: impl Into<String>, backends: impl IntoIterator<Item = Address>) -> Builder {
    Upstream::builder(name).keep(0).backends(backends)
}

/// A handler that lets an application server run the scripts of a folder.
///
/// Put it at [`Router::fallback`](crate::Router::fallback) or behind a route that selects the paths of the backend.
pub struct FastCgi {
    scripts: Scripts,
    place: Arc<Place>,
    /// The files of the root, for `X-Sendfile`.
    files: Files,
    /// The root's path on this server as it was given.
    local_root: Vec<u8>,
    /// The files of [`Options::internal_root`], for `X-Accel-Redirect`.
    internal_files: Files,
    rules: Rules,
    front: Option<Front>,
    fixed: Fixed,
    local_redirects: bool,
    hide: Vec<String>,
    patience: Patience,
    head_bytes: usize,
    buffer: bool,
    spool: Arc<spool::Limits>,
    read_ahead: usize,
    read_ahead_file: u64,
    read_ahead_total: u64,
    upstream: Upstream,
    /// A permit for each response that is read to its end behind its client.
    drains: Arc<Semaphore>,
    /// Whether the upstream keeps connections: the backend is asked to leave them open.
    keep: bool,
    otherwise: Option<Otherwise>,
    internal: Option<Internal>,
}

impl FastCgi {
    /// Serves the scripts of `root` from the application servers of `upstream`, with default options.
    ///
    /// # Errors
    ///
    /// The errors of [`FastCgi::with`].
    ///
    /// # Blocks the thread
    ///
    /// For as long as the disk takes.
    pub fn open(root: impl AsRef<Path>, upstream: Upstream) -> io::Result<FastCgi> {
        FastCgi::with(root, upstream, Options::default())
    }

    /// Serves the scripts of `root` from the application servers of `upstream`, which see the same files. [`upstream`]
    /// makes an upstream with defaults for FastCGI.
    ///
    /// # Errors
    ///
    /// The errors of `open(2)` for the roots. `InvalidInput` for invalid options.
    ///
    /// # Blocks the thread
    ///
    /// For as long as the disk takes.
    pub fn with(root: impl AsRef<Path>, upstream: Upstream, options: Options) -> io::Result<FastCgi> {
        check(&options)?;
        let front = options.front.as_ref().map(|name| Script {
            name: name.clone().into_bytes(),
            info: Vec::new(),
        });
        let local = std::path::absolute(root.as_ref())?;
        let place =
            Place::open(&local, options.may_be_missing, options.symlinks).map_err(|error| named(&local, error))?;
        place.set_log(Box::new(log_of(&upstream)));
        let place = Arc::new(place);
        let files = Files::at(&place, as_they_are())?;
        let internal_files = match &options.internal_root {
            Some(path) => internal_files(path, &options)?.on_log(log_of(&upstream)),
            None => files.clone(),
        };
        let fixed = Fixed {
            root: options.application_root.map(without_slash),
            server_name: options.server_name,
            https: options.https,
            extra: options.params,
        };
        let spool = spool::Limits {
            memory: options.spool_memory,
            shared: options.shared_memory,
            files: options.buffer_total,
            folder: options.spool_folder,
        };
        Ok(FastCgi {
            scripts: Scripts::new(),
            place,
            files,
            internal_files,
            rules: Rules {
                suffixes: options.suffixes,
                index: options.index,
                serves_files: false,
            },
            front: front.map(Front::new),
            fixed,
            local_root: without_slash(local),
            local_redirects: options.local_redirects,
            hide: options.hide,
            patience: Patience {
                first_byte: options.first_byte,
                between: options.between,
            },
            head_bytes: options.head_bytes,
            buffer: options.buffer,
            read_ahead: options.read_ahead,
            read_ahead_file: options.read_ahead_file,
            read_ahead_total: options.read_ahead_total,
            spool: Arc::new(spool),
            keep: upstream.keeps(),
            upstream,
            drains: Arc::new(Semaphore::new(DRAINS)),
            otherwise: None,
            internal: None,
        })
    }

    /// Sets the handler for requests whose path leads to no script, instead of 404: one that sends the files beside the
    /// scripts, for example. It also gets folders whose first existing [index](Options::index) is no script.
    #[must_use]
    pub fn otherwise(mut self, handler: impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static) -> Self {
        self.otherwise = Some(Box::new(handler));
        self.rules.serves_files = true;
        self
    }

    /// Sets the handler for paths that the backend names: by `X-Accel-Redirect`, by `X-Sendfile`, or by a redirect
    /// inside the server to a path that leads to no script.
    ///
    /// The handler gets the request and the path in its canonical form, with the query. For `X-Sendfile` the path is
    /// that of the file below the root. For either field, the response also gets the backend's Content-Type,
    /// Content-Disposition, Cache-Control, Expires and cookies.
    ///
    /// If there is no such handler, `X-Accel-Redirect` sends the files below [`Options::internal_root`] and
    /// `X-Sendfile` those below the root, as [`Files::answer_with`] does. A redirect to a path that leads to no script
    /// goes to the client.
    #[must_use]
    pub fn on_internal(mut self, handler: impl Fn(&Request<'_>, &str) -> Response + Send + Sync + 'static) -> Self {
        self.internal = Some(Box::new(handler));
        self
    }

    /// A handler for the files of the root. Both handlers always see the same folder, also when another folder replaces
    /// it.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a field name or value that HTTP does not allow.
    pub fn files(&self, options: files::Options) -> io::Result<Files> {
        Files::at(&self.place, options)
    }

    /// Turns this value into a handler that calls [`FastCgi::answer`].
    pub fn handler(self) -> impl Fn(&mut Request<'_>) -> Response + Send + Sync + 'static {
        move |request| self.answer(request)
    }

    /// The backends and their counters.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Runs the script that the path of `request` leads to and returns its response. A removed script is noticed within
    /// a second.
    ///
    /// # Suspends
    ///
    /// While the disk is read, if the kernel's cache is not enough; until the client has sent a body that is received
    /// first; and until the backend has written the head of its response.
    ///
    /// # Cancellation
    ///
    /// The connection to the backend is closed. A client that leaves cancels the call, and the body that follows,
    /// unless the route has [`finish_when_gone`](crate::Route::finish_when_gone).
    pub fn answer(&self, request: &mut Request<'_>) -> Response {
        let script = match self.script(request) {
            Ok(script) => script,
            Err(response) => return *response,
        };
        let body = match self.source(request) {
            Ok(source) => Ok(source),
            Err(limits) => Spool::fill(request.body(), limits).map(Source::Spool),
        };
        self.pass(request, &script, body)
    }

    /// Same as [`answer`](FastCgi::answer), for [`Handler::answering`]: a body that has not arrived is received without
    /// a stack.
    ///
    /// # Suspends
    ///
    /// As `answer` does, but it does not wait for the client's body.
    pub fn answer_after_body(self: &Arc<FastCgi>, request: &mut Request<'_>) -> Answer {
        let script = match self.script(request) {
            Ok(script) => script,
            Err(response) => return (*response).into(),
        };
        match self.source(request) {
            Ok(source) => self.pass(request, &script, Ok(source)).into(),
            Err(limits) => {
                let fastcgi = Arc::clone(self);
                Answer::after_body(limits, move |request, body| {
                    fastcgi.pass(request, &script, body.map(Source::Spool)).into()
                })
            }
        }
    }

    /// The encoded parameters of the script that the path of `request` leads to, or the response where there is none.
    fn script(&self, request: &mut Request<'_>) -> Result<Arc<[u8]>, Box<Response>> {
        let generation = self.place.generation(osier::time::coarse_now());
        let known = generation.and_then(|generation| self.scripts.recall(request.path(), generation));
        known.map_or_else(|| self.locate(request), Ok)
    }

    /// Sends the request to the backend with this body, and cancels that when the client leaves.
    fn pass(&self, request: &mut Request<'_>, script: &Arc<[u8]>, body: Result<Source, spool::Failed>) -> Response {
        let mut body = match body {
            Ok(source) => Sender::new(source),
            Err(failed) => return failed.into_response(),
        };
        while_client_stays(request, &mut |request| {
            self.answer_with_script(request, script, &mut body)
        })
    }

    /// Runs a script, and then the scripts of the paths to which the backend redirects inside the server.
    fn answer_with_script(&self, request: &mut Request<'_>, script: &Arc<[u8]>, body: &mut Sender) -> Response {
        // Scripts that look at the path themselves, as most front controllers do, want the one that the client knows.
        let sent = request.rewritten_from();
        let asked = Asked {
            method: request.method(),
            uri: match sent {
                Some(sent) => path_and_query(sent).into(),
                None => origin_form(request.target()).into(),
            },
            query: request.query().unwrap_or_default().into(),
        };
        let mut next = match self.run(request, &asked, script, body) {
            Outcome::Response(response) => return response,
            Outcome::Redirect(to) => to,
        };
        // The other scripts get no body, so its memory and its file are for other requests.
        *body = Sender::of_nothing();
        for _ in 0..REDIRECTS {
            let (path, query) = next.split_once('?').unwrap_or((&next, ""));
            let script = match Wanted::parse(path).map(|path| self.find(&path)) {
                Ok(Ok((Found::Script(script), root, _))) => self.params(&root, &script),
                Ok(Err(error)) => return Response::internal_error(error),
                Ok(Ok(_)) | Err(_) => match &self.internal {
                    Some(internal) => return internal(request, &client_response::with_canonical_path(&next)),
                    // No handler here has this path, so the client is redirected.
                    None => return Response::redirect(StatusCode::FOUND, &next),
                },
            };
            let asked = Asked {
                method: "GET",
                uri: Cow::Borrowed(&next),
                query: Cow::Borrowed(query),
            };
            next = match self.run(request, &asked, &script, &mut Sender::of_nothing()) {
                Outcome::Response(response) => return response,
                Outcome::Redirect(to) => to,
            };
        }
        fail(
            StatusCode::BAD_GATEWAY,
            &format_args!("more than {REDIRECTS} redirects inside the server"),
        )
    }

    /// The encoded parameters of the script that the path means, or the response where there is none.
    fn locate(&self, request: &mut Request<'_>) -> Result<Arc<[u8]>, Box<Response>> {
        let path = Wanted::parse(request.path())
            .map_err(|bad| Box::new(Response::plain(StatusCode::BAD_REQUEST).because(bad)))?;
        match self.find(&path) {
            Ok((Found::Script(script), root, generation)) => {
                let params = self.params(&root, &script);
                self.scripts.remember(request.path(), params.clone(), generation);
                Ok(params)
            }
            Ok((Found::FolderWithoutSlash, ..)) => {
                let query = request.query().map(|query| format!("?{query}")).unwrap_or_default();
                let to = path.folder_url() + &query;
                Err(Response::moved(request.method(), &to).into())
            }
            Ok((Found::Index, ..)) => Err(self.no_script(request).into()),
            Ok((Found::Nothing, root, _)) => match &self.front {
                Some(front) if self.otherwise.is_none() || !self.is_file(&path) => {
                    Ok(front.params(&root, |script| self.params(&root, script)))
                }
                // A script below a dotted folder is not run. Sent as a file it would show its source.
                _ if path.ends_like_a_script(&self.rules) && self.is_file(&path) => {
                    Err(Response::plain(StatusCode::NOT_FOUND).into())
                }
                _ => Err(self.no_script(request).into()),
            },
            Err(error) if place::is_absent(&error) => Err(Response::plain(StatusCode::SERVICE_UNAVAILABLE).into()),
            Err(error) => Err(Response::internal_error(error).into()),
        }
    }

    /// The encoded parameters of a script below `root`.
    fn params(&self, root: &Root, script: &Script) -> Arc<[u8]> {
        let real = root.real().as_os_str().as_encoded_bytes();
        let real = real.strip_suffix(b"/").unwrap_or(real);
        params::of_script(&self.fixed, self.fixed.root.as_deref().unwrap_or(real), script)
    }

    /// The response where the path leads to no script.
    fn no_script(&self, request: &mut Request<'_>) -> Response {
        match &self.otherwise {
            Some(handler) => handler(request),
            None => Response::plain(StatusCode::NOT_FOUND),
        }
    }

    /// Looks for the script in the kernel's cache (one or two system calls), and on the blocking pool if that is not
    /// enough. Also returns the folder in which it looked, and the generation of that folder.
    fn find(&self, path: &Wanted) -> io::Result<(Found, Arc<Root>, u64)> {
        let look = |path: &Wanted, rules: &Rules, place: &Place, access| {
            let (root, generation) = place.root(access)?;
            let found = path.find(rules, |name| script::look(&root, name, access))?;
            io::Result::Ok((found, root, generation))
        };
        match look(path, &self.rules, &self.place, Access::Cached) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let (path, rules, place) = (path.clone(), self.rules.clone(), self.place.clone());
                osier::unblock(move || look(&path, &rules, &place, Access::Blocking))
            }
            found => found,
        }
    }

    /// Whether the path leads to a file.
    fn is_file(&self, path: &Wanted) -> bool {
        let Some(name) = path.name() else { return false };
        let look = |place: &Place, name: &[u8], access| script::look(&place.root(access)?.0, name, access);
        let kind = match look(&self.place, name, Access::Cached) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let (place, name) = (self.place.clone(), name.to_vec());
                osier::unblock(move || look(&place, &name, Access::Blocking))
            }
            kind => kind,
        };
        matches!(kind, Ok(script::Kind::File))
    }

    /// The source of a request body that need not be received first. Otherwise, the error has the limits within which
    /// the body is received, so that a slow client occupies no backend. With [`Options::buffer`] off, a long body of
    /// known length is sent while the client sends it.
    fn source(&self, request: &mut Request<'_>) -> Result<Source, &Arc<spool::Limits>> {
        match request.body().announced() {
            Some(0) => Ok(Source::Spool(Spool::in_memory(Vec::new()))),
            Some(length) if length > SMALL && !self.buffer => Ok(Source::Client(length)),
            _ => Err(&self.spool),
        }
    }

    /// Sends one request to the backend, and sends it a second time where that is safe.
    fn run(&self, request: &mut Request<'_>, asked: &Asked<'_>, script: &[u8], body: &mut Sender) -> Outcome {
        let mut opening = buffers::take_head();
        // The fields are gone before the backend is waited for.
        match Fields::of(request.headers()) {
            Ok(fields) => {
                fastcgi::begin(&mut opening, self.keep);
                params::write(&mut opening, &self.fixed, request, &fields, (asked, script), body.len());
            }
            Err(collision) => return Outcome::Response(fail(StatusCode::BAD_REQUEST, &collision)),
        }
        if let Err(error) = body.join(&mut opening, SMALL as usize) {
            return Outcome::Response(Response::internal_error(error));
        }
        let affinity = self.upstream.affinity(request);
        let answered = self.upstream.attempt(affinity, |lease| {
            self.run_over(lease, request, (asked.method, &opening), body)
        });
        buffers::give_head(opening);
        match answered {
            Ok((backend, number)) => match self.respond(request, backend, body) {
                Outcome::Response(response) => {
                    let is_https = || self.fixed.https || request.is_https();
                    Outcome::Response(self.upstream.stick_by(affinity, number, is_https, response))
                }
                redirect => redirect,
            },
            Err(Unanswered::Unavailable(Unavailable::Cancelled(error))) => Outcome::Response(error.into_response()),
            Err(Unanswered::Unavailable(unavailable @ Unavailable::Connect { .. })) => {
                let response = Response::plain(unavailable.status());
                Outcome::Response(response.because(Unreached(unavailable.to_string())))
            }
            Err(Unanswered::Unavailable(unavailable)) => Outcome::Response(fail(unavailable.status(), &unavailable)),
            Err(Unanswered::Failed(failure)) => Outcome::Response(refuse(failure)),
        }
    }

    /// Sends the request over one connection, and reads the head of the response.
    ///
    /// # Suspends
    ///
    /// Until the head has arrived.
    fn run_over(
        &self,
        lease: Lease,
        request: &mut Request<'_>,
        (method, opening): (&str, &[u8]),
        body: &mut Sender,
    ) -> Result<BackendResponse, Failed<Failure>> {
        let is_fresh = !lease.is_reused();
        let stderr = stderr_of(request);
        // It is wide, and moves with the response.
        let mut exchange = Box::new(Exchange::new(lease, self.keep, self.patience, body.progress(), stderr));
        let lease = exchange.lease();
        let limit = self.head_bytes;
        let answered = match exchange.open(opening) {
            Ok(()) => {
                body.opened();
                let read = || BackendResponse::read_head(&mut exchange, limit);
                while_sending(body, lease.transport(), request.body(), read).map_err(|failure| (false, failure))
            }
            Err((0, failure)) => Err((true, failure)),
            // The backend may have answered and closed without reading. Its records say more than this error.
            Err((_, failure @ Failure::Broken { .. })) => {
                BackendResponse::read_head(&mut exchange, limit).map_err(|_| (false, failure))
            }
            Err((_, failure)) => Err((false, failure)),
        };
        let (nothing_sent, failure) = match answered {
            Ok(head) => {
                lease.answered();
                drop(lease);
                return Ok(BackendResponse::new(exchange, head, Arc::clone(&self.drains)));
            }
            Err(failed) => failed,
        };
        let unanswered = matches!(
            failure,
            Failure::Broken {
                heard: Heard::Nothing,
                ..
            }
        );
        match failure {
            Failure::TimedOut(_) => lease.timed_out(&failure),
            Failure::Malformed(_) => lease.failed(&failure),
            _ if unanswered && is_fresh => lease.failed(&failure),
            _ => {}
        }
        let is_safe = nothing_sent || is_idempotent(method);
        let may_repeat = unanswered && is_safe && body.begin_again();
        Err(Failed { failure, may_repeat })
    }

    /// How much of a response is read ahead of its client.
    fn bounds(&self, is_stream: bool) -> Bounds {
        let upstream = self.upstream.clone();
        Bounds {
            memory: self.read_ahead,
            shared: self.spool.shared,
            file: if self.buffer && !is_stream {
                self.read_ahead_file
            } else {
                0
            },
            files: self.read_ahead_total,
            folder: self.spool.folder.clone(),
            has_failed: Cell::new(false),
            complain: Box::new(move |error| upstream.lacks_file(error)),
        }
    }
}

/// The error response for `failure`.
fn refuse(failure: Failure) -> Response {
    match failure {
        Failure::Cancelled(error) | Failure::Client(error) => error.into_response(),
        failure => fail(failure.status(), &failure),
    }
}

/// The error response with a reason for the log.
fn fail(status: StatusCode, why: &dyn fmt::Display) -> Response {
    Response::plain(status).because(why.to_string())
}

/// The script of [`Options::front`].
struct Front {
    script: Script,
    /// Its encoded parameters, and the real path of the root that they hold.
    encoded: Mutex<Option<(PathBuf, Arc<[u8]>)>>,
}

impl Front {
    fn new(script: Script) -> Front {
        Front {
            script,
            encoded: Mutex::new(None),
        }
    }

    /// The encoded parameters below `root`, from `encode` unless they are known.
    fn params(&self, root: &Root, encode: impl FnOnce(&Script) -> Arc<[u8]>) -> Arc<[u8]> {
        let mut encoded = lock(&self.encoded);
        match &*encoded {
            Some((real, params)) if real == root.real() => Arc::clone(params),
            _ => {
                let params = encode(&self.script);
                *encoded = Some((root.real().to_owned(), Arc::clone(&params)));
                params
            }
        }
    }
}

/// The result of one run of a script.
enum Outcome {
    Response(Response),
    /// A path and query of this server, to be served in place of the request's.
    Redirect(String),
}

/// The path and query of a request target in origin or absolute form.
fn origin_form(target: &str) -> &str {
    if target.starts_with('/') {
        return target;
    }
    match target.split_once("://") {
        Some((_, rest)) => rest.find(['/', '?']).map_or("/", |at| &rest[at..]),
        _ => target,
    }
}

/// The log of the backend's standard error for a request.
fn stderr_of(request: &mut Request<'_>) -> Stderr {
    let (method, target) = (cut(request.method()), cut(request.target()));
    let about = About::new(
        (request.peer(), request.is_proxied()),
        request.host(),
        request.id(),
        (method, target),
    );
    Stderr::new(request.body().worker().clone(), about)
}

/// Checks the options that are not paths.
fn check(options: &Options) -> io::Result<()> {
    for (name, time) in [("first_byte", options.first_byte), ("between", options.between)] {
        if time.is_zero() {
            return Err(invalid(format!(
                "Options::{name} is zero: give the time to wait, Duration::MAX for ever"
            )));
        }
    }
    match &options.front {
        Some(front) if !front.starts_with('/') => Err(invalid(format!("front {front:?} must begin with '/'"))),
        _ => Ok(()),
    }
}

/// Opens the files of [`Options::internal_root`].
fn internal_files(path: &Path, options: &Options) -> io::Result<Files> {
    let options = files::Options {
        may_be_missing: options.may_be_missing,
        symlinks: options.symlinks,
        ..as_they_are()
    };
    Files::with(path, options).map_err(|error| named(path, error))
}

/// Sends lines about folders to the log of the upstream.
fn log_of(upstream: &Upstream) -> impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static {
    let upstream = upstream.clone();
    move |line| upstream.say(line)
}

/// The error with the path that it is about.
fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The bytes of a path without a slash at the end.
fn without_slash(path: PathBuf) -> Vec<u8> {
    let path = path.into_os_string().into_encoded_bytes();
    path.strip_suffix(b"/").unwrap_or(&path).to_vec()
}

/// Options for files that the backend names. They are sent unchanged and not cached, because the backend may have
/// written them just now.
fn as_they_are() -> files::Options {
    files::Options {
        precompressed: false,
        compress: None,
        cache: files::CacheLimits {
            entries: 0,
            bytes: 0,
            files: 0,
            compressed: 0,
        },
        ..files::Options::default()
    }
}

/// The first [`LABEL`] bytes of `text` at most.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LABEL)]
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl From<FastCgi> for Handler {
    fn from(fastcgi: FastCgi) -> Handler {
        let fastcgi = Arc::new(fastcgi);
        Handler::answering(move |request| fastcgi.answer_after_body(request))
    }
}

osier_queue::impl_debug!(FastCgi, self => { upstream: self.upstream, .. });
