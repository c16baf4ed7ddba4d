//! The requests of an ACME client (RFC 8555): the directory, nonces, the account, and signed requests.
//!
//! ```text
//!   directory ─▶ nonce ─▶ account ─▶ signed requests, each with a nonce that an earlier response brought
//!                  ▲                        │ badNonce: again with the nonce of that response
//!                  └────────────────────────┘
//! ```
//!
//! A [`Transport`] carries the requests, so that tests need no network.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::jose::{AccountKey, Binding, Signer};
use crate::log::text::visible;

/// Attempts at a request whose nonces are refused. An issuer that refuses every second nonce fails one request in a
/// million.
const ATTEMPTS: usize = 20;

/// Longest pause that an issuer may ask for between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Carries requests to an issuer.
pub trait Transport: Send + Sync {
    /// Sends one request and returns the whole response. A body is `application/jose+json`.
    ///
    /// # Suspends
    /// Until the response is there.
    ///
    /// # Errors
    /// The connection's errors. A response with an error status is not an error.
    fn send(&self, method: &str, url: &str, body: Option<&str>) -> io::Result<Received>;
}

/// A response.
#[derive(Debug, Clone, Default)]
pub struct Received {
    pub status: u16,
    pub location: Option<String>,
    pub nonce: Option<String>,
    pub retry_after: Option<String>,
    pub body: Vec<u8>,
}

/// Why a request to an issuer, or an order, has failed.
#[derive(Debug)]
pub enum Error {
    /// The issuer cannot be reached.
    Io(io::Error),
    /// The issuer has refused.
    Problem(Problem),
    /// The issuer has refused a nonce, which says nothing about the request that needs it.
    NoNonce(Problem),
    /// The issuer breaks the protocol.
    Malformed(String),
    /// The order or one of its parts has failed.
    Failed(String),
}

/// A refusal (RFC 7807).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: u16,
    /// The part behind `urn:ietf:params:acme:error:`, or the whole type. Empty if the response names none.
    pub kind: String,
    pub detail: String,
    /// Time for which the issuer wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// The URLs of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub new_nonce: String,
    pub new_account: String,
    pub new_order: String,
    /// Where to ask for the time of a renewal (RFC 9773).
    pub renewal_info: Option<String>,
    pub needs_binding: bool,
    /// The names of the profiles.
    pub profiles: Vec<String>,
}

/// An issuer and an account there.
pub struct Client<'t> {
    transport: &'t dyn Transport,
    key: &'t AccountKey,
    pub directory: Directory,
    nonce: Option<String>,
    account: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "the issuer cannot be reached: {error}"),
            Error::Problem(problem) | Error::NoNonce(problem) => problem.fmt(f),
            Error::Malformed(what) => write!(f, "the issuer has sent {what}"),
            Error::Failed(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            status, kind, detail, ..
        } = self;
        match kind.as_str() {
            // A page of a proxy before the issuer, for example.
            "" => write!(f, "the issuer answers with the status {status} and without a reason"),
            kind => write!(f, "the issuer refuses ({status}, {kind}): {detail}"),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

impl Error {
    /// Time for which the issuer wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Problem(problem) | Error::NoNonce(problem) => problem.retry_after,
            _ => None,
        }
    }

    /// Whether an issuer may have refused this order alone. Its limits count the certificates of a name and of a domain,
    /// so another order may be welcome. An issuer that is overloaded, and a proxy before it, mean everybody.
    pub fn is_about_order(&self) -> bool {
        match self {
            Error::Problem(problem) => problem.status < 500 && !problem.kind.is_empty(),
            Error::NoNonce(_) => false,
            _ => true,
        }
    }
}

impl Problem {
    /// The refusal in a response.
    pub fn of(received: &Received) -> Problem {
        let body: Value = serde_json::from_slice(&received.body).unwrap_or(Value::Null);
        let kind = body["type"].as_str().unwrap_or_default();
        Problem {
            status: received.status,
            kind: kind
                .strip_prefix("urn:ietf:params:acme:error:")
                .unwrap_or(kind)
                .to_owned(),
            detail: one_line(&described(&body)),
            retry_after: received.pause(),
        }
    }

    /// Whether the issuer says that it will take the same request later.
    pub fn is_busy(&self) -> bool {
        matches!(self.status, 429 | 503) || (self.retry_after.is_some() && !self.is_final())
    }

    /// Whether the same request will be refused again.
    pub fn is_final(&self) -> bool {
        (400..500).contains(&self.status) && self.status != 429
    }
}

/// The detail of a problem, and those of its parts.
pub fn described(problem: &Value) -> String {
    let mut text = problem["detail"].as_str().unwrap_or("no detail").to_owned();
    for part in problem["subproblems"].as_array().into_iter().flatten() {
        let name = part["identifier"]["value"].as_str().unwrap_or("?");
        text += &format!("; {name}: {}", part["detail"].as_str().unwrap_or("no detail"));
    }
    text
}

/// Text of an issuer or of a program in one line of the log.
pub fn one_line(text: &str) -> String {
    let text = text.chars().take(500);
    let text: String = text.map(|char| if char.is_control() { ' ' } else { char }).collect();
    visible(&text)
}

impl Received {
    /// The pause that the issuer asks for, in seconds or as a date.
    pub fn pause(&self) -> Option<Duration> {
        let text = self.retry_after.as_deref()?.trim();
        let pause = match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let date = httpdate::parse_http_date(text).ok()?;
                date.duration_since(SystemTime::now()).unwrap_or_default()
            }
        };
        Some(pause.min(LONGEST_PAUSE))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is no JSON.
    pub fn json(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body).map_err(|_| Error::Malformed("a body that is not JSON".into()))
    }
}

impl Directory {
    /// Asks the issuer for its URLs.
    ///
    /// # Suspends
    /// Until the response is there.
    ///
    /// # Errors
    /// When the issuer cannot be reached, or sends something else.
    pub fn fetch(transport: &dyn Transport, url: &str) -> Result<Directory, Error> {
        let received = transport.send("GET", url, None)?;
        if received.status != 200 {
            return Err(Error::Problem(Problem::of(&received)));
        }
        let body = received.json()?;
        let url = |name: &str| body[name].as_str().map(str::to_owned);
        let needed = |name: &str| url(name).ok_or_else(|| Error::Malformed(format!("a directory without {name}")));
        let profiles = body["meta"]["profiles"].as_object();
        Ok(Directory {
            new_nonce: needed("newNonce")?,
            new_account: needed("newAccount")?,
            new_order: needed("newOrder")?,
            renewal_info: url("renewalInfo"),
            needs_binding: body["meta"]["externalAccountRequired"] == true,
            profiles: profiles.into_iter().flatten().map(|(name, _)| name.clone()).collect(),
        })
    }
}

impl<'t> Client<'t> {
    /// Makes the account of `key`, or finds it.
    ///
    /// # Suspends
    /// Until the issuer has answered.
    ///
    /// # Errors
    /// The issuer's errors.
    pub fn sign_in(
        transport: &'t dyn Transport,
        directory: Directory,
        key: &'t AccountKey,
        email: Option<&str>,
        binding: Option<&Binding>,
    ) -> Result<Client<'t>, Error> {
        if directory.needs_binding && binding.is_none() {
            let what =
                "the issuer wants an account that is bound to a customer: set 'binding' to the key that it gave you";
            return Err(Error::Failed(what.into()));
        }
        let url = directory.new_account.clone();
        let mut wanted = json!({ "termsOfServiceAgreed": true });
        if let Some(email) = email {
            wanted["contact"] = json!([format!("mailto:{email}")]);
        }
        if let Some(binding) = binding {
            wanted["externalAccountBinding"] = key.bind(binding, &url);
        }
        let mut client = Client {
            transport,
            key,
            directory,
            nonce: None,
            account: String::new(),
        };
        let received = client.post(&url, &wanted.to_string())?;
        let missing = || Error::Malformed("an account without its URL".into());
        client.account = received.location.ok_or_else(missing)?;
        Ok(client)
    }

    /// The proof of a challenge with that token.
    pub fn authorization(&self, token: &str) -> String {
        self.key.authorization(token)
    }

    /// Reads a resource.
    ///
    /// # Suspends
    /// Until the response is there.
    ///
    /// # Errors
    /// The issuer's errors.
    pub fn get(&mut self, url: &str) -> Result<Received, Error> {
        self.post(url, "")
    }

    /// Sends a signed request.
    ///
    /// # Suspends
    /// Until the response is there.
    ///
    /// # Errors
    /// The issuer's errors: every status but 2xx.
    pub fn post(&mut self, url: &str, payload: &str) -> Result<Received, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let nonce = match self.nonce.take() {
                Some(nonce) => nonce,
                None => self.fresh_nonce()?,
            };
            let signer = match self.account.as_str() {
                "" => Signer::Key,
                account => Signer::Account(account),
            };
            let body = self.key.sign(signer, &nonce, url, payload);
            let received = self.transport.send("POST", url, Some(&body))?;
            self.nonce.clone_from(&received.nonce);
            if (200..300).contains(&received.status) {
                return Ok(received);
            }
            let problem = Problem::of(&received);
            if problem.kind != "badNonce" || attempts == ATTEMPTS {
                return Err(Error::Problem(problem));
            }
        }
    }

    /// Asks the issuer for a nonce.
    fn fresh_nonce(&self) -> Result<String, Error> {
        let received = self.transport.send("HEAD", &self.directory.new_nonce, None)?;
        if !(200..300).contains(&received.status) {
            return Err(Error::NoNonce(Problem::of(&received)));
        }
        received.nonce.ok_or_else(|| Error::Malformed("no nonce".into()))
    }
}
