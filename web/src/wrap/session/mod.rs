//! Sessions: values that belong to one browser, kept by this server; and signed and encrypted cookies.
//!
//! ```
//! use osier_web::wrap::session::{Memory, Sessions};
//! use osier_web::{Rejection, Request, Router, test::Client};
//!
//! fn login(request: &mut Request<'_>) -> Result<&'static str, Rejection> {
//!     let session = request.session()?;
//!     session.renew()?;
//!     session.set("user", "ada")?;
//!     Ok("welcome\n")
//! }
//!
//! fn home(request: &mut Request<'_>) -> Result<String, Rejection> {
//!     let user: Option<String> = request.session()?.get("user")?;
//!     Ok(format!("hello, {}\n", user.unwrap_or("stranger".into())))
//! }
//!
//! let router = Router::new().get("/", home).post("/login", login).wrap(Sessions::new(Memory::new(10_000)).wrap());
//! let client = Client::new(router);
//! let reply = client.get("/").send();
//! assert_eq!((reply.text(), reply.header("set-cookie")), ("hello, stranger\n", None));
//! let reply = client.post("/login").send();
//! let cookie = reply.header("set-cookie").and_then(|line| line.split(';').next()).unwrap_or_default();
//! assert_eq!(client.get("/").header("cookie", cookie).send().text(), "hello, ada\n");
//! ```
//!
//! ```text
//!   cookie: id, 256 random bits ─▶ SHA-256 ─▶ store: values in JSON, with an end ([`Memory`], or `Redis`)
//! ```
//!
//! - The store is asked when a handler first uses the session, and there is no `Set-Cookie` before something is stored.
//! - An id that the store does not know is never taken over: a client cannot choose its id. [`Session::renew`] changes
//!   the id and keeps the values. Call it when somebody logs in, so that an id that was known before is worth nothing.
//! - A session is kept for [`Options::idle`]. A use renews that time once half of it has passed. If the store cannot be
//!   reached for that, the response is sent, and the log says so, at most once in five seconds.
//! - A session that was changed is stored when the handler returns, before its response is sent. If two requests change
//!   it at once, the later one wins. If one has ended it, the other changes nothing. If one has ended or renewed it, and
//!   the other renews it, the other gets a new session with no value but those that it has set itself.
//!
//! The cookie has `HttpOnly` and, unless the [`Options`] say otherwise, `SameSite=Lax`, the path `/`, and `Secure` when
//! the client came over https ([`Request::is_https`]).

mod keys;
#[cfg(feature = "redis")]
mod redis;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cookie::{Cookie, SameSite};
use ring::digest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::keys::CookieKeys;
#[cfg(feature = "redis")]
pub use self::redis::Redis;
pub use self::store::{Memory, Store};
use crate::conn::log::Causes;
use crate::conn::log::record::{Level, Record};
use crate::conn::log::seldom::Seldom;
use crate::lock;
use crate::request::base64;
use crate::router::next::HasPanicked;
use crate::{IntoResponse, Next, Rejection, Request, Response};

/// Random bytes of an id.
const ID_BYTES: usize = 32;
/// Characters of an id in the cookie.
const ID_LENGTH: usize = 43;

/// Settings of [`Sessions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the cookie. A name that begins with `__Host-` keeps other hosts of the domain from setting it; it
    /// needs `secure`, the path `/` and no domain. The first of eight cookies with this name counts whose value is the id of a
    /// session. Default: `session`.
    pub name: String,
    /// Time for which a session is kept. A use renews it once half of it has passed, so a session ends between half of
    /// this time and all of it after its last use. Default: one day.
    pub idle: Duration,
    /// Whether the cookie is sent over https alone. `None`, the default: if this request came over https.
    pub secure: Option<bool>,
    /// The `SameSite` attribute of the cookie. Default: [`SameSite::Lax`].
    pub same_site: SameSite,
    /// The path of the cookie. Default: `/`.
    pub path: String,
    /// The domain of the cookie. Default: this host alone.
    pub domain: Option<String>,
    /// The most bytes that the values of one session may take in JSON. A request that stores more gets 500. Default: 64
    /// KiB.
    pub bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "session".to_owned(),
            idle: Duration::from_secs(24 * 3600),
            secure: None,
            same_site: SameSite::Lax,
            path: "/".to_owned(),
            domain: None,
            bytes: 64 << 10,
        }
    }
}

/// Gives each request its [`Session`].
#[doc(alias = "SessionLayer")]
pub struct Sessions {
    store: Arc<dyn Store>,
    options: Options,
    /// Lines about sessions that cannot be renewed. A store that is away, or forbids it, fails for each request.
    not_renewed: Seldom,
}

impl Sessions {
    /// Keeps sessions in `store`, with the default [`Options`].
    pub fn new(store: impl Store) -> Sessions {
        Sessions::with(store, Options::default())
    }

    /// Keeps sessions in `store`, with `options`.
    pub fn with(store: impl Store, options: Options) -> Sessions {
        Sessions {
            store: Arc::new(store),
            options,
            not_renewed: Seldom::default(),
        }
    }

    /// Makes a function for [`Router::wrap`](crate::Router::wrap).
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| {
            let session = Session(Arc::new(Shared {
                store: self.store.clone(),
                sent: request
                    .named_cookies(&self.options.name)
                    .filter(|id| is_id(id))
                    .map(str::to_owned)
                    .collect(),
                state: Mutex::default(),
            }));
            request.extensions_mut().insert(session.clone());
            let is_https = request.is_https();
            let response = next.run(request);
            // The handler may have made half of its changes.
            if request.extensions().get::<HasPanicked>().is_some() {
                return response;
            }
            self.finish(&session, request, is_https, response)
        }
    }

    /// Stores the session and sets its cookie, where that is needed.
    fn finish(&self, session: &Session, request: &Request<'_>, is_https: bool, response: Response) -> Response {
        let state = std::mem::take(&mut *session.state());
        let Some(values) = &state.values else {
            return response;
        };
        let plan = state.plan(self.options.idle);
        match self.carry_out(&plan, &state, values) {
            Ok(None) => response,
            Ok(Some(id)) => response.cookie(self.cookie(&id, is_https)),
            // It is there for half of its time yet, and nothing was changed.
            Err(rejection) if plan == Plan::Touch => {
                if self.not_renewed.is_due() {
                    let text = format_args!("{} {}: {}", request.method(), request.path(), Causes(&rejection));
                    let server = &request.body.worker().server;
                    server.log(&Record::new(Level::Warning, text));
                }
                response
            }
            Err(rejection) => rejection.into_response(),
        }
    }

    /// Carries out the plan for the session. Returns the id to set in the cookie; an empty one removes the cookie.
    fn carry_out(&self, plan: &Plan, state: &State, values: &Values) -> Result<Option<String>, Rejection> {
        let (store, idle, old) = (&self.store, self.options.idle, &*state.id);
        match plan {
            Plan::Nothing => Ok(None),
            Plan::Touch => {
                let is_there = store.touch(&hashed(old), idle).map_err(not_renewed)?;
                Ok(is_there.then(|| old.to_owned()))
            }
            Plan::Remove => {
                store.remove(&hashed(old)).map_err(not_stored)?;
                Ok(Some(String::new()))
            }
            Plan::Create => self.create(values).map(Some),
            // Another request may have ended the session, or given it another id, while this one ran.
            Plan::Replace => {
                let is_there = store
                    .replace(&hashed(old), &self.encode(values)?, idle)
                    .map_err(not_stored)?;
                Ok(is_there.then(|| old.to_owned()))
            }
            Plan::Move => {
                let id = new_id();
                if store
                    .rename(&hashed(old), &hashed(&id), &self.encode(values)?, idle)
                    .map_err(not_stored)?
                {
                    return Ok(Some(id));
                }
                // A login is kept: browsers use the later reply of a double click. The values that were loaded have ended.
                let mut own = values.clone();
                own.retain(|name, _| state.own.contains(name));
                if own.is_empty() {
                    return Ok(None);
                }
                self.create(&own).map(Some)
            }
        }
    }

    /// Makes a session. Returns its id.
    fn create(&self, values: &Values) -> Result<String, Rejection> {
        let id = new_id();
        self.store
            .save(&hashed(&id), &self.encode(values)?, self.options.idle)
            .map_err(not_stored)?;
        Ok(id)
    }

    /// The values as they are stored.
    fn encode(&self, values: &Values) -> Result<Vec<u8>, Rejection> {
        let data = serde_json::to_vec(values)
            .map_err(|error| Rejection::internal(format!("the session cannot be stored: {error}")))?;
        if data.len() > self.options.bytes {
            let (size, most) = (data.len(), self.options.bytes);
            return Err(Rejection::internal(format!(
                "the session cannot be stored: its values have {size} bytes, at most {most} may be stored"
            )));
        }
        Ok(data)
    }

    fn cookie(&self, id: &str, is_https: bool) -> Cookie<'static> {
        let options = &self.options;
        let mut cookie = Cookie::build((options.name.clone(), id.to_owned()))
            .path(options.path.clone())
            .http_only(true)
            .same_site(options.same_site)
            .secure(options.secure.unwrap_or(is_https))
            .build();
        if let Some(domain) = &options.domain {
            cookie.set_domain(domain.clone());
        }
        match id {
            "" => cookie.make_removal(),
            _ => {
                let seconds = i64::try_from(options.idle.as_secs()).unwrap_or(i64::MAX);
                cookie.set_max_age(cookie::time::Duration::seconds(seconds));
            }
        }
        cookie
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

type Values = BTreeMap<String, Value>;

/// The values of one browser. See [`Request::session`].
#[derive(Clone)]
pub struct Session(Arc<Shared>);

struct Shared {
    store: Arc<dyn Store>,
    /// The ids in the cookies of the request. Another host of the same domain may have set one that hides ours, so the first is taken that
    /// the store knows.
    sent: Vec<String>,
    state: Mutex<State>,
}

/// The values, as the store has them with the handler's changes.
#[derive(Default)]
struct State {
    /// `None` while the store has not been asked.
    values: Option<Values>,
    /// The id. Empty if the store does not have the session.
    id: String,
    /// How long the store will keep the session. `None` if it does not have it.
    left: Option<Duration>,
    /// Names of the values that this request has set.
    own: BTreeSet<String>,
    is_changed: bool,
    is_renewed: bool,
}

/// The work after the handler.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    /// Keep the session for longer, with the values that the store has.
    Touch,
    /// Make a session.
    Create,
    /// Store the values.
    Replace,
    /// Store the values under another id.
    Move,
    Remove,
}

impl State {
    fn plan(&self, idle: Duration) -> Plan {
        let is_empty = self.values.as_ref().is_none_or(Values::is_empty);
        match self.left {
            None if is_empty => Plan::Nothing,
            None => Plan::Create,
            Some(_) if is_empty => Plan::Remove,
            Some(_) if self.is_renewed => Plan::Move,
            Some(_) if self.is_changed => Plan::Replace,
            Some(left) if left < idle / 2 => Plan::Touch,
            Some(_) => Plan::Nothing,
        }
    }
}

impl Session {
    /// A value. `None` if it was not set.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the value has another type.
    ///
    /// # Suspends
    ///
    /// While the store is asked: the first call for a request with the cookie of a session.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Rejection> {
        self.loaded()?;
        let value = self
            .state()
            .values
            .as_ref()
            .and_then(|values| values.get(name).cloned());
        let read = |value| {
            serde_json::from_value(value)
                .map_err(|error| Rejection::internal(format!("session value {name:?}: {error}")))
        };
        value.map(read).transpose()
    }

    /// Sets a value.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the value has no form in JSON.
    ///
    /// # Suspends
    ///
    /// As [`get`](Session::get).
    pub fn set(&self, name: &str, value: impl Serialize) -> Result<(), Rejection> {
        let value = serde_json::to_value(value)
            .map_err(|error| Rejection::internal(format!("session value {name:?}: {error}")))?;
        self.change(|values, own| {
            values.insert(name.to_owned(), value);
            own.insert(name.to_owned());
        })
    }

    /// Removes a value.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    ///
    /// # Suspends
    ///
    /// As [`get`](Session::get).
    pub fn remove(&self, name: &str) -> Result<(), Rejection> {
        self.change(|values, own| {
            values.remove(name);
            own.remove(name);
        })
    }

    /// Gives the session another id, and keeps its values. The old id is worth nothing after the response. Call it when
    /// somebody logs in or gets other rights.
    ///
    /// If another request has ended or renewed the session meanwhile, this one gets a new session with the values that it
    /// has set itself, or none if it has set no value.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    ///
    /// # Suspends
    ///
    /// As [`get`](Session::get).
    pub fn renew(&self) -> Result<(), Rejection> {
        self.loaded()?;
        self.state().is_renewed = true;
        Ok(())
    }

    /// Removes all values. Unless a new one is set, the session is removed from the store, and its cookie from the
    /// browser.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    ///
    /// # Suspends
    ///
    /// As [`get`](Session::get).
    pub fn destroy(&self) -> Result<(), Rejection> {
        self.renew()?;
        self.change(|values, own| {
            values.clear();
            own.clear();
        })
    }

    /// Changes the values, and the names of those that this request has set.
    fn change(&self, change: impl FnOnce(&mut Values, &mut BTreeSet<String>)) -> Result<(), Rejection> {
        self.loaded()?;
        let mut state = self.state();
        let state = &mut *state;
        change(state.values.get_or_insert_default(), &mut state.own);
        state.is_changed = true;
        Ok(())
    }

    /// Asks the store unless it was asked already. The store may suspend, so no lock is held meanwhile.
    fn loaded(&self) -> Result<(), Rejection> {
        if self.state().values.is_some() {
            return Ok(());
        }
        let (mut values, mut id, mut left) = (Values::new(), "", None);
        for sent in &self.0.sent {
            let Some((data, time)) = self.0.store.load(&hashed(sent)).map_err(not_loaded)? else {
                continue;
            };
            values = serde_json::from_slice(&data)
                .map_err(|error| Rejection::internal(format!("the session in the store is malformed: {error}")))?;
            (id, left) = (sent, Some(time));
            break;
        }
        let mut state = self.state();
        if state.values.is_none() {
            (state.values, state.id, state.left) = (Some(values), id.to_owned(), left);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Ids and values are secrets.
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

fn not_loaded(error: io::Error) -> Rejection {
    Rejection::unavailable("the session cannot be loaded", error)
}

fn not_stored(error: io::Error) -> Rejection {
    Rejection::unavailable("the session cannot be stored", error)
}

fn not_renewed(error: io::Error) -> Rejection {
    Rejection::unavailable("the session cannot be renewed", error)
}

fn new_id() -> String {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    base64::encode_url(&bytes)
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LENGTH && base64::decode_url(text).is_some_and(|bytes| bytes.len() == ID_BYTES)
}

/// The id that the store sees.
fn hashed(id: &str) -> String {
    base64::encode_url(digest::digest(&digest::SHA256, id.as_bytes()).as_ref())
}

impl Request<'_> {
    /// The session of the client. It is a handle, and may be kept while the request is used.
    ///
    /// # Errors
    ///
    /// No [`Sessions`] is around the handler. As a response, the error is a 500 with a log line.
    pub fn session(&self) -> Result<Session, Rejection> {
        let missing = || Rejection::internal("no sessions: put Sessions::wrap around the handler".into());
        self.extensions().get::<Session>().cloned().ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_what_was_done() {
        let idle = Duration::from_secs(100);
        let state = |values: &[&str], left: Option<u64>, is_changed, is_renewed| State {
            values: Some(values.iter().map(|name| ((*name).to_owned(), Value::Null)).collect()),
            id: String::new(),
            left: left.map(Duration::from_secs),
            own: BTreeSet::new(),
            is_changed,
            is_renewed,
        };
        for (state, plan) in [
            (state(&[], None, false, true), Plan::Nothing),
            (state(&["a"], None, true, false), Plan::Create),
            (state(&["a"], Some(60), false, false), Plan::Nothing),
            (state(&["a"], Some(49), false, false), Plan::Touch),
            (state(&["a"], Some(49), true, false), Plan::Replace),
            (state(&["a"], Some(99), true, true), Plan::Move),
            (state(&[], Some(99), true, true), Plan::Remove),
        ] {
            assert_eq!(state.plan(idle), plan);
        }
    }

    #[test]
    fn only_ids_of_our_form_are_looked_up() {
        let id = new_id();
        assert!(is_id(&id) && id.len() == ID_LENGTH && id != new_id() && hashed(&id) != id);
        for text in ["", "x", &id[1..], &format!("{id}A"), &id.replace(&id[..1], "+")] {
            assert!(!is_id(text), "{text}");
        }
    }
}
