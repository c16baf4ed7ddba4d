//! `auth`: HTTP Basic authentication (RFC 7617) with hashed passwords from the configuration and from a file.
//!
//! There is one [`Auth`] for each `auth` of the configuration. [`Auth::check`] runs before the handler, in this order:
//!
//! 1. It reads the password file if that has changed. It checks this at most once a second, on the blocking pool.
//! 2. It looks into the cache of verified credentials.
//! 3. It compares the password with the hash, on the blocking pool. At most [`VERIFYING`] comparisons run at once in
//!    the process, and parallel requests of a user share one (`gate.rs`).
//!
//! Protection against attackers:
//!
//! - The time of a failure does not tell whether the user exists. A wrong password is compared with the hash of its
//!   user, and with the slowest hash of all if that one is slower. For an unknown user the name chooses a hash, by a
//!   secret key.
//! - The cache holds no passwords (`verified.rs`). There is one in the process, so a reload forgets nobody.
//! - Wrong passwords can occupy [`VERIFYING`] threads. A client that sends them has [`WAITING_OF_CLIENT`](gate::WAITING_OF_CLIENT) requests
//!   that wait, and a 503 for the others. It delays another client by one round of comparisons. Users in the cache are not affected. `rate` on
//!   the same route limits a single client.
//! - Each failure is logged for the operator as `authentication failed: client <HOST>, user …`, up to ten in a second for one client and
//!   user, and fail2ban counts the lines (`docs/configuration.md`). The line never holds the password.

mod credentials;
mod gate;
mod hash;
mod passwords;
mod verified;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use osier_web::fastcgi::RequestParams;
use osier_web::http::StatusCode;
use osier_web::{Level, Request, Response};

use crate::log::Client;
use crate::log::operator::{LOGIN_FAILED, Say};
use crate::policy::watched::{self, Watched};
use credentials::Credentials;
use gate::{Comparison, Gate};
use hash::Hash;
use passwords::Passwords;
pub use passwords::Trouble;
use verified::Verified;

/// The most passwords that are compared at once. Each takes a processor for a good part of a second; argon2 also takes
/// its memory.
const VERIFYING: usize = 4;
/// Characters of a user name that are logged.
const NAME_SHOWN: usize = 64;

/// The limit on comparisons in the process.
static GATE: LazyLock<Arc<Gate>> = LazyLock::new(|| {
    let processors = osier::available_parallelism().map_or(1, usize::from);
    Arc::new(Gate::new(processors.min(VERIFYING), gate::TURN))
});

/// The verified credentials of the process.
static VERIFIED: LazyLock<Arc<Verified>> = LazyLock::new(Arc::default);

/// The settings of `auth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Realm that a browser shows: 1 to 200 characters, no control characters.
    pub realm: String,
    /// Users and their hashes.
    pub users: Vec<(String, String)>,
    /// File with lines `user:hash`, whose users are added.
    pub password_file: Option<PathBuf>,
    /// The users who may come in, if not all may.
    pub only: Option<Vec<String>>,
}

/// The users who may log in.
pub struct Auth {
    /// The value of `WWW-Authenticate`.
    challenge: String,
    realm: String,
    /// Users from the configuration itself.
    named: Arc<Passwords>,
    /// The users from the configuration and those of the password file.
    file: Option<Watched<Passwords>>,
    only: Option<Vec<String>>,
    /// The mistakes in the password file when it was opened.
    mistakes: Vec<Trouble>,
    verified: Arc<Verified>,
    gate: Arc<Gate>,
    say: Say,
}

/// A user whose password was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User(pub Arc<str>);

impl User {
    /// Tells scripts of `fastcgi` who has logged in (RFC 3875 4.1.1 and 4.1.11).
    pub fn tell_scripts(&self, request: &mut Request<'_>) {
        let RequestParams(params) = request.extensions_mut().get_or_insert_default();
        params.push(("AUTH_TYPE", b"Basic".to_vec()));
        params.push(("REMOTE_USER", self.0.as_bytes().to_vec()));
    }
}

impl Auth {
    /// Reads the password file. A missing or wrong file is no error, because the server has other routes to serve.
    /// Until the file can be read, every request gets a 503. The good lines of a file with mistakes hold. Mistakes are
    /// logged.
    ///
    /// # Errors
    /// Every mistake in the settings.
    pub fn open(settings: &Settings, say: Say) -> Result<Auth, Vec<Trouble>> {
        let realm = settings.realm.clone();
        if realm.is_empty() || realm.chars().count() > 200 || realm.contains(char::is_control) {
            let what = format!("the realm {realm:?} must have 1 to 200 characters, without control characters");
            return Err(vec![Trouble::general(None, what)]);
        }
        let named = Arc::new(Passwords::named(&settings.users)?);
        let file = settings.password_file.as_deref();
        let (file, mistakes) = file.map(|path| watch(path, &named, &say)).unzip();
        let mistakes = mistakes.unwrap_or_default();
        for mistake in &mistakes {
            say.warning(format_args!("{mistake}"));
        }
        let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
        Ok(Auth {
            challenge: format!("Basic realm=\"{quoted}\", charset=\"UTF-8\""),
            realm,
            named,
            file,
            only: settings.only.clone(),
            mistakes,
            verified: Arc::clone(&VERIFIED),
            gate: Arc::clone(&GATE),
            say,
        })
    }

    /// One line about the users with weak hashes. None if there are none.
    pub fn weakness(&self) -> Option<String> {
        let of_file = self.file.as_ref().and_then(Watched::latest);
        of_file.as_ref().unwrap_or(&self.named).weakness()
    }

    /// The mistakes in the password file when it was opened, with their consequences.
    pub fn mistakes(&self) -> &[Trouble] {
        &self.mistakes
    }

    /// The names in `only` that no user has.
    pub fn unknown(&self) -> Vec<&str> {
        let Some(passwords) = self.passwords() else {
            return Vec::new();
        };
        let only = self.only.iter().flatten().map(String::as_str);
        only.filter(|name| passwords.find(name).is_none()).collect()
    }

    /// Checks the credentials of a request. Its user is known to the log then, also one who may not come in.
    ///
    /// # Errors
    /// The response to send: 401, 403 for a user who is not in `only`, or 503 when too many passwords are to be compared.
    ///
    /// # Suspends
    /// While a password is compared, and while the file is read.
    pub fn check(&self, request: &Request<'_>) -> Result<User, Response> {
        let client = Client(request.client_ip());
        // A backend might read another field than the one that is checked here.
        if request.is_repeated("authorization") {
            return Err(self.failed(
                Some(request),
                client,
                "",
                "the request has several Authorization fields",
            ));
        }
        let user = self.decide_for(Some(request), request.header("authorization"), client)?;
        request.set_user(Arc::clone(&user.0));
        self.admits(user)
    }

    /// A user who has logged in, if this one is among those who may come in.
    fn admits(&self, user: User) -> Result<User, Response> {
        let is_one = |only: &Vec<String>| only.iter().any(|name| **name == *user.0);
        match self.only.as_ref().is_none_or(is_one) {
            true => Ok(user),
            false => {
                let shown: String = user.0.chars().take(NAME_SHOWN).collect();
                let why = format!("user {shown:?} is not among those of 'only'");
                Err(Response::plain(StatusCode::FORBIDDEN).because(why))
            }
        }
    }

    /// Checks a field without a request. Lines in the log then have no host and no request id.
    #[cfg(test)]
    fn decide(&self, field: Option<&[u8]>, client: Client) -> Result<User, Response> {
        let user = self.decide_for(None, field, client)?;
        self.admits(user)
    }

    /// Checks the value of `Authorization`, on behalf of `request`.
    fn decide_for(
        &self,
        request: Option<&Request<'_>>,
        field: Option<&[u8]>,
        client: Client,
    ) -> Result<User, Response> {
        let passwords = self.passwords().ok_or_else(unavailable)?;
        // A browser's first request has no credentials, so this is not logged as a failure.
        let field = field.ok_or_else(|| self.unauthorized())?;
        let Some(credentials) = Credentials::parse(field) else {
            return Err(self.failed(request, client, "", "the credentials are not basic or malformed"));
        };
        let user = &credentials.user;
        let Some(slowest) = passwords.slowest() else {
            return Err(self.failed(request, client, user, "there are no users"));
        };
        // A wrong password takes the time of the user's hash, and of the slowest hash if that is slower. An unknown
        // user takes as long: a secret hash of the name chooses one of the stored hashes.
        let stand_in = || passwords.stand_in(self.verified.number(user));
        let found = passwords.find(user);
        let hash = found.or_else(stand_in).unwrap_or(slowest);
        let slower = (hash.cost < slowest.cost).then(|| Arc::clone(slowest));
        let key = self.verified.key(&credentials, hash);
        let is_known = found.is_some();
        if is_known && self.verified.has(key) {
            return Ok(User(user.as_str().into()));
        }
        let comparison = Comparison {
            password: credentials.password.clone(),
            hash: Arc::clone(hash),
            slower,
            cache: is_known.then(|| Arc::clone(&self.verified)),
        };
        match self.gate.verify(client.0, key, comparison) {
            None => Err(busy()),
            Some(_) if !is_known => Err(self.failed(request, client, user, "unknown user")),
            Some(true) => Ok(User(user.as_str().into())),
            Some(false) => Err(self.failed(request, client, user, "wrong password")),
        }
    }

    /// Logs a failure. Returns the response to it.
    #[cold]
    fn failed(&self, request: Option<&Request<'_>>, client: Client, user: &str, why: &str) -> Response {
        let shown: String = user.chars().take(NAME_SHOWN).collect();
        let realm = &self.realm;
        let text = format_args!("{LOGIN_FAILED}client {client}, user {shown:?}, realm {realm:?}: {why}");
        match request {
            Some(request) => self.say.about(request, Level::Warning, text),
            None => self.say.warning(text),
        }
        self.unauthorized()
    }

    fn unauthorized(&self) -> Response {
        Response::new(StatusCode::UNAUTHORIZED)
            .header("www-authenticate", &self.challenge)
            .body("401: log in with a user name and a password\n")
    }

    /// The users, at most a second old. None while the password file has never been there.
    fn passwords(&self) -> Option<Arc<Passwords>> {
        match &self.file {
            Some(file) => file.current(),
            None => Some(Arc::clone(&self.named)),
        }
    }
}

/// Reads the password file now and whenever it changes. Its users are added to `named`. Returns the present mistakes of
/// the file too.
fn watch(path: &Path, named: &Arc<Passwords>, say: &Say) -> (Watched<Passwords>, Vec<Trouble>) {
    let with = |mut trouble: Trouble, meanwhile: &str| {
        trouble.what = trouble.what.reworded(|what| format!("{what}; {meanwhile}"));
        trouble
    };
    let (first, mistakes) = match watched::if_there(path, |path| passwords::read(path, Passwords::clone(named))) {
        Ok(None) => (None, Vec::new()),
        Ok(Some(read)) => {
            let skipped = |mistake| with(mistake, "the other lines hold");
            let mistakes = read.mistakes.into_iter().map(skipped).collect();
            (Some((read.passwords, read.stamp)), mistakes)
        }
        Err(trouble) => (None, vec![with(trouble, "requests get 503 until it can be read")]),
    };
    let (named, warn) = (Arc::clone(named), say.clone());
    let again = move |path: &Path| {
        let read = passwords::read(path, Passwords::clone(&named)).map_err(|trouble| trouble.reason())?;
        let passwords::Read {
            passwords,
            stamp,
            mistakes,
        } = read;
        // A file that is only half written yet must not shut out known users. A line that is whole shows no such file: of a user who is also
        // in 'users', for example.
        let (whole, mistakes): (Vec<_>, Vec<_>) = mistakes.into_iter().partition(|mistake| mistake.is_whole);
        if !mistakes.is_empty() {
            return Err(Trouble::line_of(&mistakes));
        }
        for mistake in whole {
            warn.warning(format_args!("{mistake}; the other lines hold"));
        }
        if let Some(weakness) = passwords.weakness() {
            warn.warning(format_args!("password file '{}': {weakness}", path.display()));
        }
        Ok((passwords, stamp))
    };
    let stays = "the passwords stay as they were";
    (Watched::new(path, first, stays, say.clone(), again), mistakes)
}

fn unavailable() -> Response {
    Response::new(StatusCode::SERVICE_UNAVAILABLE).body("503 Service Unavailable\n")
}

fn busy() -> Response {
    Response::new(StatusCode::SERVICE_UNAVAILABLE)
        .header("retry-after", "2")
        .body("503: too many logins at once\n")
}

/// Locks a mutex. No code panics while it holds one of these locks.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
