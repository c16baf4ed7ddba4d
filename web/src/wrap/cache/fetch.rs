//! A fetch is one request to the handler on a fiber of its own. The fetch decides where the response goes.
//!
//! ```text
//!   request of a client ─▶ Job ─▶ head made anew, GET, with validators ─▶ handler ─▶ response
//!                                                                            │
//!     304: the stored entry, with new fields ◀───────────────────────────────┤
//!     may be stored: an entry; its body is received on this fiber ◀──────────┤
//!     an error, and a stale entry may take its place ◀───────────────────────┤   once more without the client's fields, if they may be why
//!     else: handed to the client whose request began the fetch ◀─────────────┘
//! ```
//!
//! The fetch outlives that client. Its head lacks the fields that are between one client and this server: conditions,
//! ranges, the fields of the connection. `Accept-Encoding` is in its normal form, by which responses are stored. The
//! handler sees the client's address and the states of the router, but neither the route's parameters nor the
//! extensions of the request: a stored response must not depend on them. Parameters for FastCGI are the exception,
//! because applications expect them on every request. They may describe the client's certificate. That is a credential,
//! so the response is shared only if it says so.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Extensions, StatusCode};
use osier::net::PackedAddr;
use osier_http::{BodyDecoder, BodyLength, FieldLines, Head, HeaderError, Limits, RequestWriter, Slots};

use super::asked::has_credentials;
use super::audience::Place;
use super::entry::{Entry, Meta, Stored};
use super::fill::{Bytes, Fill};
use super::flight::{Flight, Outcome};
use super::freshness::{Facts, Freshness, Refusal, judge};
use super::key::Wanted;
use super::record::Record;
use super::store::{Count, Mark, Store};
use super::writer::Writer;
use super::{Inner, Inside, key};
use crate::body::outgoing::Kind;
use crate::body::send::copy;
use crate::conn::log::record;
use crate::conn::output::Output;
use crate::conn::peer::{Gone, Memory};
use crate::conn::worker::Worker;
use crate::request::Marks;
use crate::request::changes::Changes;
use crate::request::path_and_query;
use crate::request::state::States;
use crate::upstream::Unreached;
use crate::{Body, Request, RequestBody, Response};

/// Most bytes of interim responses, which no client gets. The proxy passes on 64 KiB of them by default, perhaps with longer words in their
/// status lines.
const INTERIM: usize = 128 << 10;

/// Fields of a request that are for this server alone, or that a fetch sets itself.
const NOT_FETCHED: [&str; 12] = [
    "accept-encoding",
    "expect",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "upgrade",
];

/// Fields of a stored response that a 304 does not replace: they describe the stored body (RFC 9111 section 3.2).
const OF_BODY: [&str; 3] = ["content-encoding", "content-range", "content-type"];

/// A place for a response that is for the client alone whose request began the fetch.
pub type Hand = Rc<Cell<Option<Response>>>;

/// A fetch that has not begun. It holds nothing of the request that it is made for.
pub struct Job {
    cache: Arc<Inner>,
    handler: Inside,
    flight: Arc<Flight>,
    key: Box<[u8]>,
    particular: Box<[u8]>,
    stale: Option<Arc<Entry>>,
    has_credentials: bool,
    /// The request says `no-cache`, so that it is never answered without a fetch.
    is_forced: bool,
    target: String,
    /// The target that the client has sent, where code before the cache has set `target`.
    sent: Option<String>,
    host: String,
    fields: FieldLines,
    /// The error to a request with the client's fields. `fields` has none of them then.
    failed: Option<StatusCode>,
    /// The members of `fields` that code before the cache has set, and not the client.
    added: Vec<(String, Vec<u8>)>,
    worker: Rc<Worker>,
    /// The [group](Store::group) of the client.
    group: u64,
    peer: SocketAddr,
    is_proxied: bool,
    is_encrypted: bool,
    local: Option<SocketAddr>,
    marks: Marks,
    states: States,
    extensions: Extensions,
    hand: Hand,
}

impl Job {
    /// Copies the parts of `request` that a fetch needs. `stale` is the entry to validate, or to send if the fetch
    /// fails.
    pub fn new(
        cache: &Arc<Inner>,
        handler: &Inside,
        request: &Request<'_>,
        (flight, wanted): (&Arc<Flight>, Wanted<'_>),
        stale: Option<&Arc<Entry>>,
    ) -> Job {
        Job {
            cache: Arc::clone(cache),
            handler: Arc::clone(handler),
            flight: Arc::clone(flight),
            key: wanted.key.into(),
            particular: wanted.particular.into(),
            stale: stale.cloned(),
            has_credentials: has_credentials(request, &cache.options),
            is_forced: false,
            target: path_and_query(request.head),
            sent: request.rewritten_from().map(path_and_query),
            host: request.host().unwrap_or_default().to_owned(),
            fields: fetched_fields(request),
            failed: None,
            added: request.changes.added(),
            worker: Rc::clone(request.body.worker()),
            group: cache.store.group(request.client_ip()),
            peer: request.body.peer(),
            is_proxied: request.body.is_proxied(),
            is_encrypted: request.body.client().is_encrypted(),
            local: request.body.local_addr(),
            marks: {
                // Log lines of the handler and of the client's request have one id.
                request.id();
                request.marks.clone()
            },
            states: request.states.clone(),
            extensions: fetched_extensions(request),
            hand: Hand::default(),
        }
    }

    /// The same fetch, behind a stale response.
    pub fn behind(self, place: Place) -> Job {
        self.flight.audience.keep(place);
        self
    }

    /// The same fetch. `is_forced` says whether the request has `no-cache`, which a client can hide from `fields` by its `Connection`.
    pub fn forced(mut self, is_forced: bool) -> Job {
        self.is_forced = is_forced;
        self
    }

    /// Begins the fetch. A response that is for this client alone is in the returned place when the flight has ended.
    pub fn begin(self) -> Hand {
        let hand = Rc::clone(&self.hand);
        let fiber = osier::fiber::Builder::new().name("cache fetch");
        drop(fiber.spawn_local(move || self.run()));
        hand
    }

    fn run(mut self) {
        // Credentials make a 304 useless for a response that may not be shared with them: the handler would be asked a second time.
        let may_be_shared = |meta: &Meta| Facts::of(&meta.fields).directives.allow_sharing();
        let stale = self.stale.as_ref();
        let validated =
            stale.filter(|stale| stale.meta.has_validator() && (!self.has_credentials || may_be_shared(&stale.meta)));
        let mut validated = validated.map(|stale| Arc::clone(&stale.meta));
        // Each happens once at most.
        while let Err(again) = self.ask(validated.as_deref()) {
            match again {
                Again::WithoutValidators => validated = None,
                Again::WithoutClient(fields, failed) => (self.fields, self.failed) = (fields, Some(failed)),
            }
        }
    }

    fn store(&self) -> &Arc<Store> {
        &self.cache.store
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            hash: self.flight.hash,
            key: &self.key,
            particular: &self.particular,
        }
    }

    /// Calls the handler, with the validators of `validated`, and takes its response.
    fn ask(&self, validated: Option<&Meta>) -> Result<(), Again> {
        let Ok(bytes) = self.head(validated) else {
            self.pass(None, Mark::Unchanged);
            return Ok(());
        };
        let mut slots: Slots = Slots::new();
        let limits = Limits::DEFAULT;
        let Ok(head) = Head::parse(&bytes, &mut slots, &limits) else {
            // The validators may be one field too many, for example. The client's own request has room.
            self.pass(None, Mark::Unchanged);
            return Ok(());
        };
        let Ok(decoder) = BodyDecoder::new(BodyLength::None, &limits) else {
            return Ok(());
        };
        let memory = self.client();
        let output = Output::new(&memory, Vec::new());
        let changes = Changes::default();
        let mut request = Request {
            head: &head,
            params: None,
            body: RequestBody::new(
                (&memory).into(),
                &output,
                (decoder, BodyLength::None),
                &mut [],
                0,
                false,
                &self.marks.received,
            ),
            marks: &self.marks,
            extensions: self.extensions.clone(),
            changes: &changes,
            states: &self.states,
            pattern: "",
            mount: 0,
            gone: Gone::Finish,
        };
        if self.sent.is_some() {
            // The handler of the client's request has this target, so it is valid.
            let _ = request.retarget(&self.target);
        }
        if !self.added.is_empty() {
            // The head has these fields already, but the handler has to know that they are not the client's.
            let names: Vec<&str> = self.added.iter().map(|(name, _)| &**name).collect();
            let _ = request.replace_headers(&names, self.added.clone());
        }
        let begun = osier::time::now();
        let Ok(response) = self.flight.audience.attend(|| (self.handler)(&mut request)) else {
            // Nobody wants it.
            return Ok(());
        };
        let delay = osier::time::now().saturating_duration_since(begun);
        match (validated, response.status) {
            (Some(_), StatusCode::NOT_MODIFIED) => self.freshen(&request, response, delay),
            _ => self.take(&request, response, delay),
        }
    }

    /// The client that the handler sees: without a body, and taking no bytes but those of interim responses.
    fn client(&self) -> Memory {
        Memory {
            worker: Rc::clone(&self.worker),
            peer: PackedAddr::new(self.peer, self.is_proxied),
            is_encrypted: self.is_encrypted,
            local: self.local,
            body: RefCell::new(Box::new(io::empty())),
            received: RefCell::default(),
            bound: INTERIM,
        }
    }

    /// Makes the head of the request.
    fn head(&self, validated: Option<&Meta>) -> Result<Vec<u8>, HeaderError> {
        let target = self.sent.as_ref().unwrap_or(&self.target);
        let mut bytes = Vec::with_capacity(self.fields.as_bytes().len() + target.len() + 256);
        let mut head = RequestWriter::begin(&mut bytes, "GET", target, &self.host)?;
        head.lines(&self.fields);
        if let Some(meta) = validated {
            let pairs = [("if-none-match", "etag"), ("if-modified-since", "last-modified")];
            for (condition, validator) in pairs {
                if let Some(value) = meta.fields.first(validator) {
                    head.header(condition, value)?;
                }
            }
        }
        head.finish(BodyLength::None);
        Ok(bytes)
    }

    /// Ends the flight with a response for the client alone whose request began the fetch. The mark says whether later
    /// requests wait for each other.
    fn pass(&self, response: Option<Response>, mark: Mark) {
        self.give(response);
        self.store().land(&self.flight, mark);
        self.flight.end(Outcome::Pass);
    }

    /// Leaves a response for the client whose request began the fetch. If that client has left, or if there is none,
    /// the log gets the cause of an error.
    fn give(&self, mut response: Option<Response>) {
        let is_alone = Rc::strong_count(&self.hand) == 1;
        if let Some(cause) = response
            .as_mut()
            .filter(|_| is_alone)
            .and_then(|response| response.cause.take())
        {
            self.log(format_args!("GET {} failed: {cause}", self.target));
        }
        self.hand.set(response);
    }

    fn log(&self, text: fmt::Arguments<'_>) {
        let line = record::Record::new(record::Level::Warning, text);
        self.worker.server.log(&line);
    }

    /// Takes a response that does not validate the stored one.
    fn take(&self, request: &Request<'_>, mut response: Response, delay: Duration) -> Result<(), Again> {
        let status = response.status;
        if self.is_failure(status) && self.covers_error(status, &mut response)? {
            return Ok(());
        }
        // The refusal of a request without the client's fields is no client's response.
        if self.failed.is_some() && status.is_client_error() {
            self.pass(None, Mark::Unchanged);
            return Ok(());
        }
        if status.is_server_error() && !response.of_backend {
            self.give(Some(response));
            self.store().land(&self.flight, Mark::Clear);
            self.flight.end(Outcome::Failed(status));
            return Ok(());
        }
        let refusal = match self.judge(&response, delay) {
            Ok(freshness) => match Source::of(std::mem::take(&mut response.body).kind, self.store()) {
                Ok(source) => {
                    self.keep(request, self.meta(request, response, freshness), source);
                    return Ok(());
                }
                Err(kind) => {
                    response.body = Body { kind, text: None };
                    None
                }
            },
            Err(refusal) => Some(refusal),
        };
        // Only a stored response to a request without the client's fields is for clients: a login, for example, is for nobody.
        if self.failed.is_some() {
            if !self.covers_error(status, &mut response)? {
                self.pass(None, Mark::Unchanged);
            }
            return Ok(());
        }
        // Some responses say nothing about other requests: an error that a client can provoke, and a 304 that only the
        // client's fields can have caused.
        let says_more = self.may_speak_for_others()
            && (status.as_u16() < 400 || matches!(status.as_u16(), 404 | 410))
            && status != StatusCode::NOT_MODIFIED;
        if says_more {
            self.remove_stale(refusal);
        }
        let mark = match says_more {
            true if self.has_cookie() => Mark::PassesWithCookie,
            true => Mark::Passes,
            false => Mark::Unchanged,
        };
        self.pass(Some(response), mark);
        Ok(())
    }

    /// Whether a response is none that is wanted. Backends may refuse a request without any field of a client.
    fn is_failure(&self, status: StatusCode) -> bool {
        status.is_server_error() || (self.failed.is_some() && status.is_client_error())
    }

    /// Whether a response may say something about other requests. One for credentials does not, and neither does one that the client has
    /// forced although the stored one is fresh.
    fn may_speak_for_others(&self) -> bool {
        let now = osier::time::coarse_now();
        let is_fresh = |stale: &Arc<Entry>| stale.meta.age(now) < stale.meta.freshness.lifetime;
        !self.has_credentials && !self.stale.as_ref().is_some_and(is_fresh)
    }

    fn has_cookie(&self) -> bool {
        self.fields.first("cookie").is_some()
    }

    /// Removes the stale entry, because a response that may speak for others is not stored. A cookie, of the request or for the client, may
    /// be the reason for that: such a response leaves the entry alone.
    fn remove_stale(&self, refusal: Option<Refusal>) {
        if let Some(stale) = &self.stale
            && !self.has_cookie()
            && refusal != Some(Refusal::SetCookie)
        {
            self.store().remove(self.wanted(), stale);
        }
    }

    /// Ends the flight by the stale entry, if that may take the place of an error. The error of this function says that the client's fields
    /// may be why: otherwise a client could keep the entry stale for all others.
    fn covers_error(&self, status: StatusCode, response: &mut Response) -> Result<bool, Again> {
        // A purge has removed the stale one.
        if self.flight.is_invalid() {
            return Ok(false);
        }
        let now = osier::time::coarse_now();
        let stale = self.stale.as_ref();
        let Some(stale) = stale.filter(|stale| stale.meta.freshness.covers_error(stale.meta.age(now))) else {
            return Ok(false);
        };
        let may_be_provoked = self.may_be_provoked(status, response);
        if !may_be_provoked && !is_away(status, response) && self.failed.is_none() {
            let fields = self.fields_of_nobody(&stale.meta);
            if fields != self.fields {
                let then = "it is asked again without the fields of the client";
                log_failure(&self.worker, ("GET", &self.target), response, then);
                return Err(Again::WithoutClient(fields, status));
            }
        }
        log_failure(&self.worker, ("GET", &self.target), response, COVERED);
        let mark = match may_be_provoked {
            // The backend refuses requests without a client's fields, so it cannot be said whose fault the first error is.
            true if self.failed.is_some() => Mark::Doubtful(self.group),
            true => Mark::Unchanged,
            false => Mark::Failing,
        };
        self.store().land(&self.flight, mark);
        self.flight.end(Outcome::Stale {
            entry: Arc::clone(stale),
            status: self.failed.unwrap_or(status).as_u16(),
            may_be_provoked,
        });
        Ok(true)
    }

    /// The fields of a fetch that no client has had a part in: those by which responses are stored, and those of code before the cache.
    fn fields_of_nobody(&self, stale: &Meta) -> FieldLines {
        let is_known = |(name, value): &(&str, &[u8])| {
            let is = |known: &str| known.eq_ignore_ascii_case(name);
            is("accept-encoding")
                || key::is_of_key(name)
                || stale.varies.iter().any(|(known, _)| is(known))
                || self.added.iter().any(|(known, added)| is(known) && added == value)
        };
        let mut fields = FieldLines::new();
        for (name, value) in self.fields.iter().filter(is_known) {
            // They were checked before.
            let _ = fields.push(name, value);
        }
        fields
    }

    /// Whether an error may be due to this one client: it has forced the fetch, or the backend may dislike its credentials or its cookie.
    /// Such an error keeps nobody else from asking, and neither does a response to a request without the client's fields that is no error,
    /// which says nothing about those with them. Before an error is put down to the backend, it is asked without these fields. A backend that
    /// has not answered in time may have waited for this client's session; it counts as away all the same.
    fn may_be_provoked(&self, status: StatusCode, response: &Response) -> bool {
        self.is_forced
            || !status.is_server_error()
            || ((self.has_credentials || self.has_cookie()) && !is_away(status, response))
    }

    /// Whether and how long a response may be stored.
    fn judge(&self, response: &Response, delay: Duration) -> Result<Freshness, Refusal> {
        if self.cache.options.backend_only && !response.of_backend {
            return Err(Refusal::NoStore);
        }
        let facts = Facts {
            is_event_stream: response.is_event_stream(),
            ..Facts::of(&response.fields)
        };
        self.judge_facts(response.status, &facts, delay)
    }

    fn judge_facts(&self, status: StatusCode, facts: &Facts<'_>, delay: Duration) -> Result<Freshness, Refusal> {
        let rules = &self.cache.options.rules;
        judge(
            status,
            facts,
            self.has_credentials,
            (delay, osier::time::system_now()),
            rules,
        )
    }

    /// Makes the stored form of a response without its body.
    fn meta(&self, request: &Request<'_>, response: Response, freshness: Freshness) -> Arc<Meta> {
        let (status, of_backend, has_date) = (response.status, response.of_backend, response.has_date);
        let mut fields = response.into_fields().lines;
        fields.remove("age");
        if self.cache.options.rules.drop_set_cookie {
            fields.remove("set-cookie");
        }
        if !has_date {
            push_date(&mut fields);
        }
        self.meta_of(request, (status, of_backend), fields, freshness)
    }

    fn meta_of(
        &self,
        request: &Request<'_>,
        (status, of_backend): (StatusCode, bool),
        fields: FieldLines,
        freshness: Freshness,
    ) -> Arc<Meta> {
        let lines = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("vary"));
        let names = key::vary_names(lines.map(|(_, value)| value));
        let varies = key::select(names, &request.headers());
        Arc::new(Meta {
            status,
            fields,
            freshness,
            received: osier::time::coarse_now(),
            particular: self.particular.clone(),
            varies,
            of_backend,
        })
    }

    /// Stores a response. Every waiting request gets it as soon as its body begins.
    fn keep(&self, request: &Request<'_>, meta: Arc<Meta>, source: Source) {
        let store = self.store();
        let entry = |body| Arc::new(Entry::new(store.number(), self.flight.hash, Arc::clone(&meta), body));
        let (produce, len) = match source {
            Source::Memory(bytes) => {
                let entry = entry(Stored::Memory(bytes));
                let is_stored = store.publish(self.wanted(), &entry, request, &self.flight);
                store.land(&self.flight, Mark::Clear);
                let status = None;
                return self.flight.end(Outcome::Entry {
                    entry,
                    status,
                    is_stored,
                });
            }
            Source::Stream(produce, len) => (produce, len),
        };
        let fill = Fill::new(len, &self.flight.audience);
        let (status, is_stored) = (None, true);
        self.flight.end(Outcome::Entry {
            entry: entry(Stored::Filling(Arc::clone(&fill))),
            status,
            is_stored,
        });
        let (lander, flight) = (Arc::clone(store), Arc::clone(&self.flight));
        let gives_up = move || lander.land(&flight, Mark::Passes);
        let received = osier::time::system_now();
        let head = self.record(&meta, received, 0).encode().len() as u64;
        let mut writer = Writer::new(fill, Arc::clone(store), head, Box::new(gives_up));
        let attended = self.flight.audience.attend(|| produce(&mut writer));
        let mut produced = attended.unwrap_or_else(|cancelled| Err(cancelled.into()));
        if produced.is_ok() && len.is_some_and(|len| len != writer.total()) {
            produced = Err(io::ErrorKind::UnexpectedEof.into());
        }
        match produced {
            Ok(()) => {
                if let Some(body) = writer.finish(|len| self.record(&meta, received, len).encode()) {
                    store.publish(self.wanted(), &entry(body), request, &self.flight);
                }
            }
            Err(error) => writer.fail(&error.to_string()),
        }
    }

    /// Makes the head of a file. `received` is the time of the response's head: its age counts from there.
    fn record(&self, meta: &Meta, received: SystemTime, len: u64) -> Record {
        Record {
            len,
            received,
            status: meta.status,
            of_backend: meta.of_backend,
            freshness: meta.freshness,
            key: self.key.to_vec(),
            particular: meta.particular.clone(),
            fields: meta.fields.clone(),
            varies: meta.varies.clone(),
        }
    }

    /// Takes a 304: the stored response is valid, and gets the fields of the 304 (RFC 9111 section 4.3.4). The error
    /// says that the 304 does not fit the stored response, or forbids to store it.
    fn freshen(&self, request: &Request<'_>, response: Response, delay: Duration) -> Result<(), Again> {
        let Some(stale) = &self.stale else {
            return Err(Again::WithoutValidators);
        };
        let (meta, has_date) = (&stale.meta, response.has_date);
        let new = response.into_fields().lines;
        if new
            .first("etag")
            .is_some_and(|etag| !is_same_tag(Some(etag), meta.fields.first("etag")))
        {
            return Err(Again::WithoutValidators);
        }
        let mut fields = merged(&meta.fields, &new);
        if !has_date {
            fields.remove("date");
            push_date(&mut fields);
        }
        let judged = self.judge_facts(meta.status, &Facts::of(&fields), delay);
        fields.remove("age");
        fields.remove("set-cookie");
        let freshness = match judged {
            Ok(freshness) => freshness,
            Err(refusal) => {
                if self.may_speak_for_others() {
                    self.remove_stale(Some(refusal));
                }
                return Err(Again::WithoutValidators);
            }
        };
        let meta = self.meta_of(request, (meta.status, meta.of_backend), fields, freshness);
        let entry = Entry::new(self.store().number(), self.flight.hash, meta, stale.body.clone());
        let entry = Arc::new(entry);
        let is_stored = self.store().publish(self.wanted(), &entry, request, &self.flight);
        self.store().count(self.flight.hash, Count::Validated);
        self.store().land(&self.flight, Mark::Clear);
        let status = Some(StatusCode::NOT_MODIFIED.as_u16());
        self.flight.end(Outcome::Entry {
            entry: Arc::clone(&entry),
            status,
            is_stored,
        });
        if is_stored {
            self.renew_file(&entry);
        }
        Ok(())
    }

    /// Writes the head of a validated entry to its file, if it has one.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    fn renew_file(&self, entry: &Arc<Entry>) {
        if let Stored::Disk(file) = &entry.body {
            let record = self.record(&entry.meta, osier::time::system_now(), file.len);
            let (file, store, entry) = (Arc::clone(file), Arc::clone(self.store()), Arc::clone(entry));
            // Another 304 may have come since then.
            match osier::unblock(move || file.renew(&record, || store.has(&entry))) {
                // It may have left the store meanwhile.
                Err(error) if error.kind() != io::ErrorKind::NotFound => self.store().complain(&error),
                _ => {}
            }
        }
    }
}

/// Whether no backend has answered.
fn is_away(status: StatusCode, response: &Response) -> bool {
    let is_unreached = || response.cause.as_ref().is_some_and(|cause| cause.is::<Unreached>());
    !response.of_backend && (matches!(status.as_u16(), 503 | 504) || is_unreached())
}

/// The end of the line about an error that a stored response takes the place of.
pub const COVERED: &str = "a stored response is sent";

/// Logs an error that no client gets, and what comes then. Neither the access log nor the counters of the upstream tell of it.
pub fn log_failure(worker: &Worker, (method, target): (&str, &str), response: &mut Response, then: &str) {
    let log = |text: fmt::Arguments<'_>| worker.server.log(&record::Record::new(record::Level::Warning, text));
    let who = match response.of_backend {
        true => "the backend",
        false => "the handler",
    };
    match response.cause.take() {
        Some(cause) => log(format_args!("{method} {target} failed: {cause}; {then}")),
        None => log(format_args!(
            "{method} {target} failed: {who} has answered {}; {then}",
            response.status.as_u16()
        )),
    }
}

/// The handler has to be asked once more.
enum Again {
    /// The validators of the stored response are left out.
    WithoutValidators,
    /// These fields alone are sent, after this error.
    WithoutClient(FieldLines, StatusCode),
}

/// Ends the flight whatever happens: also if the handler panics, or if there is no stack for the fiber.
impl Drop for Job {
    fn drop(&mut self) {
        self.store().land(&self.flight, Mark::Unchanged);
        self.flight.end(Outcome::Failed(StatusCode::INTERNAL_SERVER_ERROR));
        self.flight.audience.dismiss();
    }
}

/// The source of the bytes of a body.
enum Source {
    Memory(Bytes),
    Stream(crate::conn::output::Producer, Option<u64>),
}

impl Source {
    /// Makes the source of a body. The error is a body that cannot be stored: one that is too long, is a file already,
    /// or needs the request's body.
    fn of(kind: Kind, store: &Store) -> Result<Source, Kind> {
        let options = store.options();
        let most = match options.disk {
            Some(_) => options.most_entry,
            None => options.most_entry.min(options.memory_entry as u64),
        };
        let in_memory = match &kind {
            Kind::Empty => Some(0),
            Kind::Static(bytes) => Some(bytes.len()),
            Kind::Owned(bytes) => Some(bytes.len()),
            Kind::Shared(bytes) => Some((**bytes).as_ref().len()),
            _ => None,
        };
        if let Some(len) = in_memory
            && len as u64 > most
        {
            return Err(kind);
        }
        let is_long = in_memory.is_some_and(|len| len > options.memory_entry);
        Ok(match kind {
            Kind::Empty => Source::Memory(Arc::new(Vec::new())),
            Kind::Static(bytes) if !is_long => Source::Memory(Arc::new(bytes)),
            Kind::Owned(mut bytes) if !is_long => {
                bytes.shrink_to_fit();
                Source::Memory(Arc::new(bytes))
            }
            Kind::Shared(bytes) if !is_long => Source::Memory(bytes),
            Kind::Static(bytes) => Source::long(Arc::new(bytes)),
            Kind::Owned(bytes) => Source::long(Arc::new(bytes)),
            Kind::Shared(bytes) => Source::long(bytes),
            Kind::Stream(produce, len) if len.is_none_or(|len| len <= most) => Source::Stream(produce, len),
            Kind::Reader { mut reader, len } if len.is_none_or(|len| len <= most) => {
                Source::Stream(Box::new(move |out| copy(&mut reader, out, len).map(drop)), len)
            }
            kind => return Err(kind),
        })
    }

    /// Makes the source of bytes that are too long for memory.
    fn long(bytes: Bytes) -> Source {
        let len = (*bytes).as_ref().len() as u64;
        let produce = move |out: &mut dyn crate::conn::output::Outlet| out.write_all((*bytes).as_ref());
        Source::Stream(Box::new(produce), Some(len))
    }
}

/// The fields of a request that its fetch has, too.
fn fetched_fields(request: &Request<'_>) -> FieldLines {
    let mut fields = FieldLines::new();
    for (name, value) in request.headers() {
        let is_dropped = NOT_FETCHED.iter().any(|known| known.eq_ignore_ascii_case(name))
            || name.eq_ignore_ascii_case("host")
            || (request.head.connection_names(name) && !request.changes.adds(name));
        if !is_dropped {
            // `push` refuses the fields that frame the message.
            let _ = fields.push(name, value);
        }
    }
    let lines = request
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"));
    let lines: Vec<&[u8]> = lines.map(|(_, value)| value).collect();
    if !lines.is_empty() {
        let asked = lines.join(&b", "[..]);
        let normal = key::encodings(&asked).map_or(&*asked, str::as_bytes);
        // The request's own value was checked, and the normal form is a literal.
        let _ = fields.push("accept-encoding", normal);
    }
    fields
}

/// The extensions of a request that its fetch has, too.
#[cfg(feature = "fastcgi")]
fn fetched_extensions(request: &Request<'_>) -> Extensions {
    let mut extensions = Extensions::new();
    if let Some(params) = request.extensions().get::<crate::fastcgi::RequestParams>() {
        extensions.insert(params.clone());
    }
    extensions
}

#[cfg(not(feature = "fastcgi"))]
fn fetched_extensions(_: &Request<'_>) -> Extensions {
    Extensions::new()
}

/// Whether two tags are the same, by the weak comparison.
fn is_same_tag(one: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    one.map(opaque) == other.map(opaque)
}

/// Adds a `Date` of now.
fn push_date(fields: &mut FieldLines) {
    let date = httpdate::fmt_http_date(osier::time::system_now());
    // A date has no control characters.
    let _ = fields.push("date", date.as_bytes());
}

/// The stored fields, some of them replaced by those of a 304.
fn merged(stored: &FieldLines, new: &FieldLines) -> FieldLines {
    let replaces = |name: &str| !OF_BODY.iter().any(|known| known.eq_ignore_ascii_case(name));
    let mut fields = FieldLines::new();
    let kept = stored
        .iter()
        .filter(|(name, _)| !(replaces(name) && new.first(name).is_some()));
    for (name, value) in kept.chain(new.iter().filter(|(name, _)| replaces(name))) {
        // Both were checked before.
        let _ = fields.push(name, value);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::super::store::Join;
    use super::*;

    fn lines(pairs: &[(&str, &str)]) -> FieldLines {
        let mut fields = FieldLines::new();
        for (name, value) in pairs {
            fields.push(name, value.as_bytes()).unwrap();
        }
        fields
    }

    #[test]
    fn a_304_replaces_fields_but_not_those_of_the_body() {
        let stored = lines(&[
            ("Date", "1"),
            ("X-A", "1"),
            ("X-A", "2"),
            ("Content-Type", "text/plain"),
            ("X-B", "1"),
        ]);
        let new = lines(&[("date", "2"), ("x-a", "3"), ("content-type", "text/html"), ("X-C", "1")]);
        let expected = lines(&[
            ("Content-Type", "text/plain"),
            ("X-B", "1"),
            ("date", "2"),
            ("x-a", "3"),
            ("X-C", "1"),
        ]);
        assert_eq!(merged(&stored, &new).as_bytes(), expected.as_bytes());
    }

    #[test]
    fn a_job_that_never_runs_ends_its_flight() {
        let cache = super::super::Cache::new(Arc::new(Store::open(super::super::StoreOptions::default()).unwrap()));
        let cached = cache.clone();
        let handler = move |request: &mut Request<'_>| {
            let wanted = Wanted {
                hash: 1,
                key: b"key",
                particular: b"",
            };
            let inside: Inside = Arc::new(|_| panic!("no fiber runs the job"));
            let join = || {
                let now = osier::time::now();
                cached
                    .store()
                    .join(wanted, &request.headers(), now, &cached.0.abandoned)
            };
            let Join::Lead(flight, _member) = join() else {
                panic!("nobody else fetches");
            };
            drop(Job::new(&cached.0, &inside, request, (&flight, wanted), None));
            assert!(matches!(flight.wait(), Outcome::Failed(_)));
            match join() {
                Join::Lead(..) => Response::new(StatusCode::OK),
                _ => Response::new(StatusCode::CONFLICT),
            }
        };
        let client = crate::test::Client::of(crate::Server::new(handler));
        assert_eq!(client.get("/").send().status(), StatusCode::OK);
    }
}
