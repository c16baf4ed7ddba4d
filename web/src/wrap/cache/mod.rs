//! A shared cache around a handler (RFC 9111): in memory, and large bodies in files.
//!
//! ```
//! use osier_web::wrap::cache::{Cache, Store, StoreOptions};
//! use osier_web::{Request, Response, Server, http::StatusCode, test::Client};
//! use std::sync::Arc;
//!
//! let report = |_: &mut Request<'_>| {
//!     let response = Response::new(StatusCode::OK).header("cache-control", "max-age=60");
//!     response.body("made at some cost\n")
//! };
//! let store = Arc::new(Store::open(StoreOptions::default())?);
//! let cached = Cache::new(store).around(report);
//! let client = Client::of(Server::new(cached));
//! let first = client.get("/report").send();
//! assert_eq!(first.header("cache-status"), Some("osier; fwd=miss; stored"));
//! let second = client.get("/report").send();
//! assert_eq!(second.header("cache-status"), Some("osier; hit; ttl=60"));
//! assert_eq!(second.text(), "made at some cost\n");
//! # std::io::Result::Ok(())
//! ```
//!
//! # What is stored
//!
//! Complete responses to GET that say how long they are fresh, by `Cache-Control: s-maxage` or `max-age`
//! or by `Expires`, or whose status has a [default](Rules::default_ttl), or that can be validated.
//! `no-store`, `private`, `Vary: *`, `Set-Cookie`, and `Authorization` in the request keep a response out,
//! as RFC 9111 says. A certificate of the client counts as `Authorization`. The path does not decide:
//! whether it ends in `.css` does not matter. If a backend sends a private page without a word about
//! caching, and an operator gives every 200 a default lifetime, that page becomes public.
//!
//! # What a request gets
//!
//! | stored | response |
//! |---|---|
//! | fresh | the stored one; a 304 if the client has it; a part if it asks for one range |
//! | stale, within `stale-while-revalidate` | the stored one, while one fetch goes on behind it |
//! | stale | that of the backend, asked with the validators of the stored one |
//! | stale, within `stale-if-error`, and the backend fails | the stored one |
//! | nothing | that of the backend |
//!
//! A HEAD is answered by the response to a GET, and passed on otherwise. A range that nothing stored answers is
//! passed on and not stored. `Cache-Status` (RFC 9211) tells what happened.
//!
//! # One fetch for many
//!
//! While a response is fetched, other requests for it wait, on all workers, and get it as it arrives. If the response turns out to be for
//! one client alone, each waiting request goes to the handler, and for five seconds no request waits for that resource.
//!
//! The fetch does not end with the client that has caused it. At most 128 fetches of a cache go on behind stale responses, and at most 128 whose clients
//! have left. Beyond that, a stale response is sent without a fetch, and a fetch is cancelled when the last client that waits for it leaves.
//!
//! # Keys
//!
//! Scheme, host, path and query. Spellings of one path have one key for purges, but each gets its own
//! response, and so do requests with fields such as `X-Forwarded-Host` that some applications believe more than the
//! target. Where the handler knows a target that code before the cache has replaced, that one is
//! [in the key](Options::by_sent_target), too.

// # Layout
//
// | module | work |
// |---|---|
// | `asked`, `directives` | the demands of a request, and `Cache-Control` |
// | `freshness` | the rules: what is stored, how long it is fresh |
// | `key` | keys and variants |
// | `entry` | a stored response, and the responses made of it |
// | `store`, `queue` | the table of entries, its rebuilding after a start, and the order of eviction |
// | `flight`, `fetch` | a fetch for many waiters, and the request behind it |
// | `audience` | who wants the response of a fetch, and the end of a fetch that nobody wants |
// | `fill`, `writer` | a body while it arrives |
// | `disk`, `record` | files, and their heads |
// | `purge` | removing entries |

mod asked;
mod audience;
mod directives;
mod disk;
mod entry;
mod fetch;
mod fill;
mod flight;
mod freshness;
mod key;
mod purge;
mod queue;
mod record;
mod store;
mod writer;

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use osier::Cancelled;

use self::asked::Asked;
use self::audience::{Member, Places};
use self::entry::{Entry, Note, note_on};
use self::fetch::Job;
use self::flight::Outcome;
pub use self::freshness::Rules;
use self::freshness::{Facts, Reuse};
use self::key::Wanted;
use self::store::{Count, Join};
pub use self::store::{Stats, Store, StoreOptions};
use crate::upstream::client::while_client_stays;
use crate::{Answer, IntoResponse, Request, Response};

/// How often a request takes part in a fetch before it goes to the handler itself.
const ROUNDS: usize = 3;

/// Options of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the cache's part of its store. Caches of one name share their responses: give the same name only to
    /// handlers that answer a target alike. Empty by default.
    pub space: String,
    /// Rules that are added to the directives of responses. None by default.
    pub rules: Rules,
    /// Obeys `Cache-Control` of requests. On by default; off, a client cannot make the backend work.
    pub obey_client: bool,
    /// Cookies whose requests are passed on, and whose responses are not stored. A `*` at the end stands for any text.
    /// None by default.
    pub skip_cookies: Vec<String>,
    /// The longest time that a request waits for the fetches of others. Default: 5 s.
    pub wait: Duration,
    /// Treats every request as one with `Authorization`: a function around the cache has found out who the client is,
    /// and may have told the handler. Off by default.
    pub is_authenticated: bool,
    /// Stores only responses that a [backend](Response::is_of_backend) has made. Off by default.
    pub backend_only: bool,
    /// Takes each target that clients have sent for a resource of its own, where code before the cache has
    /// [replaced](Request::retarget) it: [`FastCgi`](crate::fastcgi::FastCgi) passes on both. On by default. Off, all clients whose targets
    /// were replaced by one share its responses.
    pub by_sent_target: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            space: String::new(),
            rules: Rules::default(),
            obey_client: true,
            skip_cookies: Vec::new(),
            wait: Duration::from_secs(5),
            is_authenticated: false,
            backend_only: false,
            by_sent_target: true,
        }
    }
}

/// A handler inside a cache. A fetch calls it on a fiber of its own, after the client may have left. The handler may be cancelled when all
/// clients have left.
pub type Inside = Arc<dyn Fn(&mut Request<'_>) -> Response + Send + Sync>;

/// Accepts the clients that may purge.
type Purgers = Box<dyn Fn(Option<IpAddr>) -> bool + Send + Sync>;

/// A shared cache. Clones are one cache.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

struct Inner {
    store: Arc<Store>,
    options: Options,
    space: u64,
    purgers: Option<Purgers>,
    /// Places for fetches behind stale responses.
    behind: Places,
    /// Places for fetches whose clients have left. They are apart, because any client can take all of these.
    abandoned: Places,
}

/// Room for the key of a request, kept by the thread.
#[derive(Default)]
struct Scratch {
    key: Vec<u8>,
    particular: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch { key: Vec::new(), particular: Vec::new() })
    };
}

impl Cache {
    /// A cache with the default [`Options`] that keeps its responses in `store`.
    pub fn new(store: Arc<Store>) -> Cache {
        Cache::with(store, Options::default())
    }

    /// A cache with `options` that keeps its responses in `store`.
    pub fn with(store: Arc<Store>, options: Options) -> Cache {
        Cache(Arc::new(Inner {
            store,
            // The same in every process, as files outlive processes.
            space: record::checksum(options.space.as_bytes()),
            options,
            purgers: None,
            behind: Places::default(),
            abandoned: Places::default(),
        }))
    }

    /// Lets the clients that `allow` accepts send `PURGE`. It gets `None` for a client without an address, which comes
    /// over a Unix socket. Others get 403. Unless this is called, `PURGE` is a method like any other.
    ///
    /// # Panics
    ///
    /// If the cache has been cloned.
    #[must_use]
    pub fn on_purge(self, allow: impl Fn(Option<IpAddr>) -> bool + Send + Sync + 'static) -> Cache {
        let mut inner = Arc::into_inner(self.0).expect("a cache is configured before it is cloned");
        inner.purgers = Some(Box::new(allow));
        Cache(Arc::new(inner))
    }

    /// The store of the responses.
    pub fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Puts the cache around a handler. A request that is fetched for many has neither the route's pattern and
    /// parameters nor extensions, apart from `fastcgi::RequestParams`: a response that depends on them must not say that it may be
    /// shared.
    pub fn around<F, R>(&self, handler: F) -> impl Fn(&mut Request<'_>) -> Response + Clone + Send + Sync + 'static
    where
        F: Fn(&mut Request<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse + 'static,
    {
        let inside: Inside = Arc::new(move |request: &mut Request<'_>| handler(request).into_response());
        let cache = self.clone();
        move |request: &mut Request<'_>| cache.answer(request, &inside)
    }

    /// Answers a request from the store, or by `handler`.
    ///
    /// # Suspends
    ///
    /// As the handler does, and while another request fetches the same response. Not for a response in memory.
    ///
    /// # Cancellation
    ///
    /// A fetch for many goes on, unless too many do for which nobody waits.
    pub fn answer(&self, request: &mut Request<'_>, handler: &Inside) -> Response {
        let Inner { store, options, .. } = &*self.0;
        store.begin_rebuilding();
        let is_get = match request.method() {
            "GET" => true,
            "HEAD" => false,
            _ => return self.answer_other(request, handler),
        };
        let asked = Asked::of(request, options);
        let mut scratch = SCRATCH.take();
        scratch.key.clear();
        scratch.particular.clear();
        let has_key = key::write(
            (self.0.space, options.by_sent_target),
            request,
            &mut scratch.key,
            &mut scratch.particular,
        );
        let wanted = Wanted {
            hash: store.hash(&scratch.key),
            key: &scratch.key,
            particular: &scratch.particular,
        };
        if asked.bypass.is_some() || !has_key {
            store.count(wanted.hash, Count::Bypassed);
            SCRATCH.set(scratch);
            return direct(request, handler, asked.bypass.unwrap_or("bypass"));
        }
        let now = osier::time::coarse_now();
        let look = store.look(wanted, request, now);
        let Some(entry) = look.entry else {
            return self.fetch(request, handler, &asked, (wanted, is_get), None, "miss");
        };
        let age = entry.meta.age(now);
        let freshness = &entry.meta.freshness;
        let reuse = match freshness.reuse(age, &asked.directives) {
            // The backend has just failed, and is not asked again at once.
            Reuse::Validate if look.is_failing && !asked.directives.no_cache && freshness.covers_error(age) => {
                Reuse::Stale { refresh: false }
            }
            reuse => reuse,
        };
        match reuse {
            Reuse::Validate => {
                let is_stale = age >= freshness.lifetime;
                let why = if is_stale { "stale" } else { "request" };
                return self.fetch(request, handler, &asked, (wanted, is_get), Some(entry), why);
            }
            Reuse::Fresh => store.count(wanted.hash, Count::Hit),
            Reuse::Stale { refresh } => {
                store.count(wanted.hash, Count::Stale);
                if refresh && !look.is_failing {
                    self.refresh(request, handler, wanted, &entry);
                }
            }
        }
        match entry.answer(request, &asked, now, Note::Hit) {
            Ok(response) => {
                SCRATCH.set(scratch);
                response
            }
            // The file of the body is gone.
            Err(_) => {
                store.remove(wanted, &entry);
                self.fetch(request, handler, &asked, (wanted, is_get), None, "miss")
            }
        }
    }

    /// Answers a request as [`answer`](Cache::answer) does. One with a body goes to `passing`, the same handler, which may wait for the body.
    ///
    /// # Suspends
    ///
    /// As `answer` does, but not until the client has sent the body if `passing` does not.
    ///
    /// # Cancellation
    ///
    /// As for `answer`.
    pub fn answer_after_body(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        passing: impl FnOnce(&mut Request<'_>) -> Answer,
    ) -> Answer {
        // No stored response answers a request with a body. Without purges, PURGE is a method like any other.
        let purges = request.method() == "PURGE" && self.0.purgers.is_some();
        if request.body().announced() == Some(0) || purges {
            return self.answer(request, handler).into();
        }
        self.0.store.begin_rebuilding();
        if matches!(request.method(), "GET" | "HEAD") {
            self.0.store.count(0, Count::Bypassed);
        }
        let answer = passing(request);
        let cache = self.clone();
        answer.map(request, move |request, response| cache.passed(request, response))
    }

    /// Answers a request whose method is neither GET nor HEAD: purges, or passes it on and removes what it may have
    /// changed.
    #[cold]
    fn answer_other(&self, request: &mut Request<'_>, handler: &Inside) -> Response {
        let Inner {
            store,
            space,
            options,
            purgers,
            ..
        } = &*self.0;
        if let ("PURGE", Some(may_purge)) = (request.method(), purgers) {
            return match may_purge(request.client_ip()) {
                true => purge::purge(store, (*space, options.by_sent_target), request),
                false => Response::plain(StatusCode::FORBIDDEN),
            };
        }
        let response = handler(request);
        self.passed(request, response)
    }

    /// Removes what a request that was passed on may have changed, and notes that it was.
    fn passed(&self, request: &Request<'_>, response: Response) -> Response {
        let why = match request.method() {
            "GET" | "HEAD" => "bypass",
            _ => "method",
        };
        let is_safe = matches!(request.method(), "GET" | "HEAD" | "OPTIONS" | "TRACE");
        let response = note_on(response, Note::forwarded(why));
        if !is_safe && matches!(response.status.as_u16(), 200..=399) {
            let Inner {
                store, space, options, ..
            } = &*self.0;
            purge::invalidate(store, (*space, options.by_sent_target), request, &response);
        }
        response
    }

    /// Fetches another response behind a stale one, unless that is going on already, or as many such fetches as the cache allows. With
    /// credentials only if the stale one may be shared with them: the other one could not be stored, and requests would wait for it.
    #[cold]
    fn refresh(&self, request: &Request<'_>, handler: &Inside, wanted: Wanted<'_>, entry: &Arc<Entry>) {
        let may_be_shared = || Facts::of(&entry.meta.fields).directives.allow_sharing();
        if asked::has_credentials(request, &self.0.options) && !may_be_shared() {
            return;
        }
        let Some(place) = self.0.behind.take() else {
            return;
        };
        let now = osier::time::coarse_now();
        if let Join::Lead(flight, _member) = self.0.store.join(wanted, &request.headers(), now, &self.0.abandoned) {
            let job = Job::new(&self.0, handler, request, (&flight, wanted), Some(entry));
            job.behind(place).begin();
        }
    }

    /// Answers a request that nothing stored can answer.
    #[cold]
    fn fetch(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        asked: &Asked,
        (wanted, is_get): (Wanted<'_>, bool),
        stale: Option<Arc<Entry>>,
        why: &'static str,
    ) -> Response {
        self.0.store.count(wanted.hash, Count::Miss);
        if asked.directives.only_if_cached {
            return note_on(Response::plain(StatusCode::GATEWAY_TIMEOUT), Note::forwarded(why));
        }
        let mut stale = stale.as_ref();
        // These responses are not stored, so no request waits for them.
        if !is_get || asked.has_range {
            return self.direct_or_stale(request, handler, (asked, wanted), stale, why);
        }
        let began = osier::time::coarse_now();
        while_client_stays(request, &mut |request| {
            for round in 0..ROUNDS {
                let waited = osier::time::coarse_now().saturating_duration_since(began);
                let round = Round {
                    is_first: round == 0,
                    wait: self.0.options.wait.saturating_sub(waited),
                };
                if let Some(response) = self.fetch_once(request, handler, (asked, wanted), stale, round, why) {
                    return response;
                }
                // Another response, or a purge, may have removed it meanwhile.
                stale = stale.filter(|stale| self.0.store.has(stale));
            }
            self.direct_or_stale(request, handler, (asked, wanted), stale, why)
        })
    }

    /// Passes a request on to the handler, for this client alone. A stored response may take the place of an error, where there was a stale
    /// one: the one that is there after the error. A purge may have removed it meanwhile, and another request may have brought a newer one.
    fn direct_or_stale(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        (asked, wanted): (&Asked, Wanted<'_>),
        stale: Option<&Arc<Entry>>,
        why: &'static str,
    ) -> Response {
        let mut response = handler(request);
        let (status, now) = (response.status, osier::time::coarse_now());
        // The client has left: the backend has not failed.
        let cause = response.cause.as_deref();
        let is_cancelled = cause.is_some_and(Cancelled::is_cause_of);
        let covers = |entry: &Arc<Entry>| entry.meta.freshness.covers_error(entry.meta.age(now));
        if status.is_server_error()
            && !is_cancelled
            && stale.is_some()
            && let Some(entry) = self.0.store.look(wanted, request, now).entry.filter(covers)
        {
            let note = Note::Forwarded {
                why,
                stored: false,
                collapsed: false,
                status: Some(status.as_u16()),
            };
            if let Ok(answer) = entry.answer(request, asked, now, note) {
                let asked_for = (request.method(), request.target());
                fetch::log_failure(request.body.worker(), asked_for, &mut response, fetch::COVERED);
                self.0.store.count(entry.hash, Count::Stale);
                return answer;
            }
        }
        note_on(response, Note::forwarded(why))
    }

    /// Takes part in a fetch. `None` if its response is not for this request.
    fn fetch_once(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        (asked, wanted): (&Asked, Wanted<'_>),
        stale: Option<&Arc<Entry>>,
        round: Round,
        why: &'static str,
    ) -> Option<Response> {
        let joined = osier::time::coarse_now();
        // The membership lasts until the response has its own.
        let (outcome, is_follower, _member) =
            match self.join_fetch(request, handler, (asked, wanted), stale, (joined, round.wait)) {
                Joined::Outcome(outcome, is_follower, member) => (outcome, is_follower, member),
                Joined::Response(response) => return Some(note_on(response, Note::forwarded(why))),
                Joined::Alone => return Some(self.direct_or_stale(request, handler, (asked, wanted), stale, why)),
            };
        let note = |stored, status| Note::Forwarded {
            why,
            stored,
            collapsed: is_follower,
            status,
        };
        let now = osier::time::coarse_now();
        match outcome {
            Outcome::Pass => Some(self.direct_or_stale(request, handler, (asked, wanted), stale, why)),
            // The error may be due to the other client's request.
            Outcome::Failed(status) if is_follower && !matches!(status.as_u16(), 503 | 504) => None,
            // One of those who have waited asks again for all of them. If all asked, a backend in trouble would have them all at once.
            Outcome::Stale {
                may_be_provoked: true, ..
            } if is_follower && round.is_first => None,
            Outcome::Failed(status) => Some(note_on(Response::plain(status), note(false, None))),
            // The other client's request may select another response than this one does.
            Outcome::Entry { entry, .. } | Outcome::Stale { entry, .. }
                if !entry.meta.fits(wanted.particular, request) =>
            {
                None
            }
            // Its body has been arriving for longer than it is fresh.
            Outcome::Entry { entry, .. }
                if joined > entry.meta.received
                    && entry.meta.freshness.reuse(entry.meta.age(now), &asked.directives) == Reuse::Validate =>
            {
                Some(direct(request, handler, why))
            }
            Outcome::Entry {
                entry,
                status,
                is_stored,
            } => self.answer_by(request, handler, asked, (&entry, now), note(is_stored, status)),
            Outcome::Stale { entry, status, .. } => {
                self.0.store.count(wanted.hash, Count::Stale);
                self.answer_by(request, handler, asked, (&entry, now), note(false, Some(status)))
            }
        }
    }

    /// Leads a fetch and waits for its end, or for that of another request's fetch.
    ///
    /// # Suspends
    ///
    /// Until then.
    fn join_fetch(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        (asked, wanted): (&Asked, Wanted<'_>),
        stale: Option<&Arc<Entry>>,
        (now, wait): (Instant, Duration),
    ) -> Joined {
        let Inner {
            store,
            options,
            abandoned,
            ..
        } = &*self.0;
        let join = match asked::has_credentials(request, options) {
            // A response for these credentials alone says nothing about other requests.
            true => store.join_alone(wanted, abandoned),
            false => store.join(wanted, &request.headers(), now, abandoned),
        };
        match join {
            Join::Pass => Joined::Alone,
            Join::Lead(flight, member) => {
                let job = Job::new(&self.0, handler, request, (&flight, wanted), stale);
                let hand = job.forced(asked.directives.no_cache).begin();
                let outcome = flight.wait();
                match hand.take() {
                    Some(response) => Joined::Response(response),
                    None => Joined::Outcome(outcome, false, member),
                }
            }
            Join::Follow(flight, member) => {
                store.count(wanted.hash, Count::Collapsed);
                match flight.wait_for(wait) {
                    Some(outcome) => Joined::Outcome(outcome, true, member),
                    None => Joined::Alone,
                }
            }
        }
    }

    /// Answers a request by an entry, or by the handler if the body of the entry is gone.
    fn answer_by(
        &self,
        request: &mut Request<'_>,
        handler: &Inside,
        asked: &Asked,
        (entry, now): (&Entry, Instant),
        note: Note,
    ) -> Option<Response> {
        let answered = entry.answer(request, asked, now, note);
        Some(answered.unwrap_or_else(|_| direct(request, handler, "bypass")))
    }
}

/// One time that a request takes part in a fetch.
#[derive(Clone, Copy)]
struct Round {
    is_first: bool,
    /// The rest of [`Options::wait`].
    wait: Duration,
}

/// How a request has taken part in a fetch.
enum Joined {
    /// The outcome, and whether another request has led the fetch.
    Outcome(Outcome, bool, Member),
    /// The response of its own fetch.
    Response(Response),
    /// It has not: the handler answers it.
    Alone,
}

/// Passes a request on to the handler, for this client alone.
fn direct(request: &mut Request<'_>, handler: &Inside, why: &'static str) -> Response {
    note_on(handler(request), Note::forwarded(why))
}

osier_queue::impl_debug!(Cache, self => { options: self.0.options, .. });
