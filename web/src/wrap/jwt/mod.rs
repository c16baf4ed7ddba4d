//! JSON Web Tokens (RFC 7519): a signed token in the request names its user.
//!
//! ```
//! use osier_web::wrap::jwt::{Claims, Jwt, Keys};
//! use osier_web::{Request, Router, test::Client};
//!
//! fn me(request: &mut Request<'_>) -> String {
//!     let user = request.extensions().get::<Claims>().and_then(|claims| claims.text("sub"));
//!     format!("hello, {}\n", user.unwrap_or_default())
//! }
//!
//! let keys = Keys::secret(b"a secret of at least 32 bytes: ...")?;
//! let client = Client::new(Router::new().get("/", me).wrap(Jwt::new(keys).wrap()));
//! let refused = client.get("/").send();
//! assert_eq!((refused.status().as_u16(), refused.header("www-authenticate")), (401, Some("Bearer")));
//! # Ok::<(), String>(())
//! ```
//!
//! The token is that of `Authorization: Bearer`, or of a cookie that [`Options::cookie`] names. Protection against
//! forged tokens:
//!
//! - The algorithm of a token only chooses among those that its key is for ([`Keys`]). There is no `none`, and a public
//!   key is never taken for a secret (RFC 8725).
//! - A token is refused if it has critical extensions (`crit`), lacks a [required](Options::required) claim (`exp` by
//!   default), or is for an audience that is not one of [`Options::audiences`].
//! - Every token of a request must be valid, because the handler may read another one than this module: that of the bearer, and each
//!   cookie of that name. With a cookie, no other `Authorization` passes than `Basic`, whose value has no dots and so is no token. A request
//!   is refused that has more than four tokens, a `Cookie` field that is not UTF-8, or a cookie of that name behind a comma or white space,
//!   where some servers split. The claims are those of the bearer, or else of the first cookie.
//! - Nothing else is looked at: not the target, the body and other fields, no cookies without [`Options::cookie`], and none whose name the
//!   handler changes before it compares. (Some ignore case, and PHP reads `a.b` as `a_b`.) So a handler must take no tokens from there.
//! - The fields of [`Options::pass`] are removed from every request first, in every spelling, so a client cannot send
//!   its own.
//!
//! A refusal by the wrap is a 401 whose `WWW-Authenticate` says why (RFC 6750 section 3), or a 403 if a claim has
//! another value than [`Options::claims`] demands.
//!
//! [`Jwt::verify`] takes a token from anywhere: where it is optional, or stands behind another word than `Bearer`.
//!
//! ```
//! use osier_web::wrap::jwt::{Jwt, Keys};
//! use osier_web::{Rejection, Request, Router, http::StatusCode, test::Client};
//!
//! fn article(request: &mut Request<'_>) -> Result<String, Rejection> {
//!     let Some(field) = request.header_str("authorization") else { return Ok("hello, stranger\n".into()) };
//!     let token = field.strip_prefix("Token ").ok_or(Rejection::new(StatusCode::UNAUTHORIZED, "send a token\n"))?;
//!     let jwt: &Jwt = request.state()?;
//!     let claims = jwt.verify(token, osier::time::system_now());
//!     let claims = claims.map_err(|invalid| Rejection::new(invalid.status(), format!("{invalid}\n")))?;
//!     Ok(format!("hello, {}\n", claims.text("sub").unwrap_or_default()))
//! }
//!
//! let keys = Keys::secret(b"a secret of at least 32 bytes: ...")?;
//! let client = Client::new(Router::new().get("/", article).state(Jwt::new(keys)));
//! assert_eq!(client.get("/").send().text(), "hello, stranger\n");
//! // {"alg":"HS256"}.{"sub":"jake","exp":4102444800}, signed with the secret.
//! let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqYWtlIiwiZXhwIjo0MTAyNDQ0ODAwfQ.M0358IzF1FFS_qkT730jcSqmNPcj8ybiDw1DEy1OZV0";
//! assert_eq!(client.get("/").header("authorization", format!("Token {token}")).send().text(), "hello, jake\n");
//! assert_eq!(client.get("/").header("authorization", "Token x.y.z").send().status(), 401);
//! # Ok::<(), String>(())
//! ```
//!
//! This module makes no tokens. A program that issues them uses a crate that does, with the same secret or the
//! private key.

mod keys;
mod token;

use std::time::{Duration, SystemTime};

use http::StatusCode;

pub use self::keys::{Algorithm, Keys};
pub use self::token::{Claims, Invalid};
use crate::request::changes::check_added;
use crate::{InvalidSetting, Next, Request, Response};

/// The most tokens of one request. Each costs a signature check.
const TOKENS_MAX: usize = 4;

/// The demands on tokens, and what is passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The algorithms that tokens may have. Empty for all that the keys are for.
    pub algorithms: Vec<Algorithm>,
    /// The issuers (`iss`) that are accepted. Empty for any.
    pub issuers: Vec<String>,
    /// The names of this server as an audience. A token must be for one of them; if there are none, it must have no
    /// `aud`.
    pub audiences: Vec<String>,
    /// The claims that a token must have. Default: `exp`.
    pub required: Vec<String>,
    /// Claims with their accepted values. A claim must have one of its values as its text, as an item of its list, or
    /// as a word of `scope`.
    pub claims: Vec<(String, Vec<String>)>,
    /// How far the clocks of issuer and server may differ, for `exp` and `nbf`. Default: 60 s.
    pub leeway: Duration,
    /// The cookie that holds the token if there is no `Authorization: Bearer`. Beside one, it must be valid, too. Beside the cookie, any
    /// other `Authorization` than `Basic` is refused.
    pub cookie: Option<String>,
    /// The realm in the challenge.
    pub realm: Option<String>,
    /// Claims and the request fields that they are copied into. A list becomes one value with commas.
    pub pass: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            algorithms: Vec::new(),
            issuers: Vec::new(),
            audiences: Vec::new(),
            required: vec!["exp".to_owned()],
            claims: Vec::new(),
            leeway: Duration::from_secs(60),
            cookie: None,
            realm: None,
            pass: Vec::new(),
        }
    }
}

/// Verifies the token of each request.
#[derive(Debug)]
pub struct Jwt {
    keys: Keys,
    options: Options,
    /// The names of the fields in `options.pass`.
    passed: Vec<String>,
    /// The value of `WWW-Authenticate` in front of an error.
    challenge: String,
}

impl Jwt {
    /// Accepts any token of these keys that is valid now.
    pub fn new(keys: Keys) -> Jwt {
        Jwt {
            keys,
            options: Options::default(),
            passed: Vec::new(),
            challenge: "Bearer".to_owned(),
        }
    }

    /// Accepts the tokens of these keys that meet the demands of `options`.
    ///
    /// # Errors
    ///
    /// One line: a realm or a field name that cannot be sent. A field that frames a message, Host, Expect and Upgrade cannot be
    /// passed, in any spelling.
    pub fn with(keys: Keys, options: Options) -> Result<Jwt, InvalidSetting> {
        let mut challenge = "Bearer".to_owned();
        if let Some(realm) = &options.realm {
            if realm.contains(|c: char| c.is_control() || c == '"' || c == '\\') {
                return Err(InvalidSetting::new(format!("the realm {realm:?} cannot be quoted")));
            }
            challenge = format!("Bearer realm=\"{realm}\"");
        }
        for (_, field) in &options.pass {
            let cannot = |error| InvalidSetting::new(format!("a claim cannot be passed in {field:?}: {error}"));
            check_added(field).map_err(cannot)?;
        }
        Ok(Jwt {
            passed: options.pass.iter().map(|(_, field)| field.clone()).collect(),
            keys,
            options,
            challenge,
        })
    }

    /// Verifies the token of each request before it passes: for [`Router::wrap`](crate::Router::wrap).
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        move |request, next| match self.check(request) {
            Ok(()) => next.run(request),
            Err(response) => response,
        }
    }

    /// Verifies the token of one request. Leaves its [`Claims`] in the extensions, and the claims to pass in the
    /// fields.
    ///
    /// # Errors
    ///
    /// The response to a request without a valid token: 401 or 403.
    pub fn check(&self, request: &mut Request<'_>) -> Result<(), Response> {
        // A backend might read another field than the one that is verified here.
        if request.is_repeated("authorization") {
            return Err(self.refuse(Invalid::Malformed.status(), Some(Invalid::Malformed)));
        }
        let claims = self
            .claims_of(request)
            .map_err(|invalid| self.refuse(invalid.status(), Some(invalid)))?;
        // RFC 6750 3.1: without a token there is no error to tell.
        let Some(claims) = claims else {
            return Err(self.refuse(StatusCode::UNAUTHORIZED, None));
        };
        let pass = self.options.pass.iter();
        let added = pass.filter_map(|(claim, field)| Some((field.as_str(), claims.text(claim)?)));
        let replaced = request.replace_headers(&self.passed, added);
        replaced.map_err(|_| self.refuse(StatusCode::UNAUTHORIZED, Some(Invalid::Unpassable)))?;
        request.extensions_mut().insert(claims);
        Ok(())
    }

    /// Verifies a token at a time.
    ///
    /// # Errors
    ///
    /// The first reason that makes it invalid.
    pub fn verify(&self, token: &str, now: SystemTime) -> Result<Claims, Invalid> {
        let claims = token::verify(token, &self.keys, &self.options.algorithms)?;
        claims.meet(&self.options, now)?;
        Ok(claims)
    }

    /// Verifies all tokens of a request. Returns the claims of the first one.
    fn claims_of(&self, request: &Request<'_>) -> Result<Option<Claims>, Invalid> {
        let bearer = self.bearer_of(request)?;
        let cookie = self.options.cookie.as_deref();
        if cookie.is_some_and(|name| !request.has_all_cookies_plain(name)) {
            return Err(Invalid::Malformed);
        }
        let cookies = cookie.into_iter().flat_map(|name| request.cookies_named(name));
        let (mut first, now) = (None, osier::time::system_now());
        for (count, token) in bearer.into_iter().chain(cookies).enumerate() {
            if count == TOKENS_MAX {
                return Err(Invalid::Malformed);
            }
            let claims = self.verify(token, now)?;
            first.get_or_insert(claims);
        }
        Ok(first)
    }

    /// Returns the token of `Authorization: Bearer`. Beside a cookie, another value is refused unless it cannot be a token.
    fn bearer_of<'a>(&self, request: &Request<'a>) -> Result<Option<&'a str>, Invalid> {
        let Some(value) = request.header("authorization") else {
            return Ok(None);
        };
        let parts = str::from_utf8(value)
            .ok()
            .and_then(|value| value.split_once([' ', '\t']));
        match parts {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
            // Base64 has no dots, and a token has two.
            Some((scheme, login)) if scheme.eq_ignore_ascii_case("basic") && !login.contains('.') => Ok(None),
            _ if self.options.cookie.is_none() => Ok(None),
            _ => Err(Invalid::Malformed),
        }
    }

    /// The response to a request without a token, or with an invalid one.
    #[cold]
    fn refuse(&self, status: StatusCode, invalid: Option<Invalid>) -> Response {
        let Some(invalid) = invalid else {
            let response = Response::new(status).header("www-authenticate", &self.challenge);
            return response.body("401: send a token: Authorization: Bearer TOKEN\n");
        };
        let separator = match self.options.realm {
            Some(_) => ",",
            None => "",
        };
        let (challenge, code) = (&self.challenge, invalid.code());
        let challenge = format!("{challenge}{separator} error=\"{code}\", error_description=\"{invalid}\"");
        let response = Response::new(status).header("www-authenticate", challenge);
        response
            .body(format!("{}: {invalid}\n", status.as_u16()))
            .because(invalid)
    }
}
