//! Reading a request by type: path, query, form and JSON through `serde`.
//!
//! Path and query are read in place. Forms and JSON are first collected in memory. The limit is the
//! lower one of the handler's ([`IN_MEMORY`] by default) and the route's.

#[cfg(feature = "json")]
pub(crate) mod json;
#[cfg(feature = "serde")]
mod params;
#[cfg(feature = "forms")]
mod query;

use std::io::Read;

use http::StatusCode;
#[cfg(feature = "serde")]
use serde::de::DeserializeOwned;

use crate::request::charged::Charged;
use crate::{Rejection, Request};

/// Most bytes that are collected of a form or a JSON document, by default. It equals the default
/// limit of bodies.
#[cfg(any(feature = "forms", feature = "json"))]
pub(super) const IN_MEMORY: u64 = 2 << 20;

/// Most fields of a form.
#[cfg(feature = "forms")]
const FORM_FIELDS: usize = 10_000;

#[cfg(feature = "serde")]
impl Request<'_> {
    /// Reads the route's parameters, percent-decoded. A struct or map takes them by name, a tuple
    /// in their order. Any other type takes the value of a single parameter.
    ///
    /// ```
    /// use osier_web::{Rejection, Request, Router, test::Client};
    ///
    /// fn day(request: &mut Request<'_>) -> Result<String, Rejection> {
    ///     let (year, month): (u16, u8) = request.params()?;
    ///     Ok(format!("month {month} of {year}"))
    /// }
    ///
    /// let client = Client::new(Router::new().get("/{year}/{month}", day));
    /// assert_eq!(client.get("/2026/11").send().text(), "month 11 of 2026");
    /// assert_eq!(client.get("/2026/1111").send().status(), 400);
    /// ```
    ///
    /// # Errors
    ///
    /// 400 for a value that does not fit the type. 500 if the type asks for a parameter that the
    /// route does not have.
    #[doc(alias = "Path")]
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Rejection> {
        params::read(self.params)
    }
}

#[cfg(feature = "forms")]
impl Request<'_> {
    /// Reads the query as a form: `+` is a space, and percent escapes are decoded. A `Vec` takes
    /// all values of its name.
    ///
    /// ```
    /// use osier_web::{Rejection, Request, Router, test::Client};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Search {
    ///     q: String,
    ///     #[serde(default)]
    ///     tag: Vec<String>,
    ///     page: Option<u32>,
    /// }
    ///
    /// fn search(request: &mut Request<'_>) -> Result<String, Rejection> {
    ///     let Search { q, tag, page } = request.query_as()?;
    ///     Ok(format!("{q:?} with {tag:?}, page {}", page.unwrap_or(1)))
    /// }
    ///
    /// let client = Client::new(Router::new().get("/search", search));
    /// let reply = client.get("/search?q=a+b&tag=x&tag=y").send();
    /// assert_eq!(reply.text(), r#""a b" with ["x", "y"], page 1"#);
    /// ```
    ///
    /// # Errors
    ///
    /// 400 with the reason.
    #[doc(alias = "Query")]
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, Rejection> {
        let query = self.query().unwrap_or_default();
        query::read(query).map_err(|error| Rejection::new(StatusCode::BAD_REQUEST, format!("the query: {error}")))
    }

    /// Reads the body as a form (`application/x-www-form-urlencoded`) of at most 2 MiB.
    /// [`form_up_to`](Request::form_up_to) takes another limit. For uploads see
    /// [`multipart`](Request::multipart).
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// 415 for another content type, 413 for a larger body or, with a line in the log, for more than 10,000 fields, 422 for values
    /// that do not fit the type, 500 with a log line if the body has been read before.
    #[doc(alias = "Form")]
    pub fn form<T: DeserializeOwned>(&mut self) -> Result<T, Rejection> {
        self.form_up_to(IN_MEMORY)
    }

    /// Reads the body as [`form`](Request::form) does, of at most `limit` bytes. The limit of the
    /// route or the server applies too.
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// As [`form`](Request::form).
    pub fn form_up_to<T: DeserializeOwned>(&mut self, limit: u64) -> Result<T, Rejection> {
        let is_form = self
            .media_type()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("application/x-www-form-urlencoded"));
        if !is_form {
            let what = "the content type must be application/x-www-form-urlencoded";
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let bytes = self.unread_bytes(limit)?;
        if bytes.iter().filter(|byte| **byte == b'&').count() >= FORM_FIELDS {
            let text = format!("the form has more than {FORM_FIELDS} fields");
            return Err(Rejection::beyond(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        serde_html_form::from_bytes(&bytes)
            .map_err(|error| Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the form: {error}")))
    }
}

/// A type that checks its values after it was read from a request.
///
/// ```
/// use osier_web::{Rejection, Request, Router, Validate, test::Client};
///
/// #[derive(serde::Deserialize)]
/// struct Signup {
///     name: String,
///     age: u8,
/// }
///
/// impl Validate for Signup {
///     type Error = String;
///
///     fn validate(&self) -> Result<(), String> {
///         match (self.name.trim().is_empty(), self.age) {
///             (true, _) => Err("name: is empty".to_owned()),
///             (false, 0..18) => Err(format!("age: {} is less than 18", self.age)),
///             _ => Ok(()),
///         }
///     }
/// }
///
/// fn sign_up(request: &mut Request<'_>) -> Result<String, Rejection> {
///     let Signup { name, .. } = request.form().and_then(Validate::validated)?;
///     Ok(format!("welcome, {name}\n"))
/// }
///
/// let client = Client::new(Router::new().post("/", sign_up));
/// let send = |form: &'static str| {
///     let request = client.post("/").header("content-type", "application/x-www-form-urlencoded");
///     request.body(form).send()
/// };
/// assert_eq!(send("name=Eva&age=20").text(), "welcome, Eva\n");
/// let refused = send("name=Eva&age=7");
/// assert_eq!((refused.status().as_u16(), refused.text()), (422, "age: 7 is less than 18\n"));
/// ```
#[cfg(feature = "serde")]
#[doc(alias("validator", "garde"))]
pub trait Validate: Sized {
    /// The reason for a client, in one line or more.
    type Error: std::fmt::Display;

    /// Checks the values.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be used.
    fn validate(&self) -> Result<(), Self::Error>;

    /// Returns the value if it is valid: for `request.form().and_then(Validate::validated)`, and the same
    /// with [`json`](Request::json), [`query_as`](Request::query_as) and [`params`](Request::params).
    ///
    /// # Errors
    ///
    /// 422 with the reason.
    fn validated(self) -> Result<Self, Rejection> {
        match self.validate() {
            Ok(()) => Ok(self),
            Err(reason) => Err(Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, reason.to_string())),
        }
    }
}

impl Request<'_> {
    /// Reads the whole body, of at most `limit` bytes.
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// 413 for a larger body, 503 for more than 16 KiB while memory is short ([`osier::memory`]), and the errors of
    /// [`RequestBody`](crate::RequestBody).
    #[doc(alias("Bytes", "to_bytes"))]
    pub fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, Rejection> {
        // At most 16 KiB are reserved before bytes arrive, whatever length the client announces.
        let announced = self.body.announced().unwrap_or(0);
        if announced > limit {
            return Err(too_large(limit));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(announced.min(16 << 10)).unwrap_or(0));
        let body = self.body().take(limit.saturating_add(1));
        Charged::new(body).read_to_end(&mut bytes)?;
        match bytes.len() as u64 <= limit {
            true => Ok(bytes),
            false => Err(too_large(limit)),
        }
    }

    /// Reads the whole body, of at most `limit` bytes, as text.
    ///
    /// ```
    /// use osier_web::{Rejection, Request, Router, test::Client};
    ///
    /// fn shout(request: &mut Request<'_>) -> Result<String, Rejection> {
    ///     Ok(request.text(100)?.to_uppercase())
    /// }
    ///
    /// let client = Client::new(Router::new().post("/", shout));
    /// assert_eq!(client.post("/").body("hé").send().text(), "HÉ");
    /// assert_eq!(client.post("/").body([0xff]).send().status(), 400);
    /// ```
    ///
    /// # Suspends
    ///
    /// May suspend until the body has arrived.
    ///
    /// # Errors
    ///
    /// 400 for a body that is not UTF-8, and the errors of [`bytes`](Request::bytes).
    pub fn text(&mut self, limit: u64) -> Result<String, Rejection> {
        let not_text = |_| Rejection::new(StatusCode::BAD_REQUEST, "the body is not UTF-8");
        String::from_utf8(self.bytes(limit)?).map_err(not_text)
    }

    /// Reads the whole body as [`bytes`](Request::bytes) does, and fails if it has been read before: no empty body is meant then.
    #[cfg(any(feature = "forms", feature = "json"))]
    pub(crate) fn unread_bytes(&mut self, limit: u64) -> Result<Vec<u8>, Rejection> {
        match self.body.has_been_read() {
            true => Err(Rejection::internal(
                "the body has been read before: a body can be read once".into(),
            )),
            false => self.bytes(limit),
        }
    }

    /// Returns the content type without its parameters.
    #[cfg(any(feature = "forms", feature = "json", feature = "multipart"))]
    pub(crate) fn media_type(&self) -> Option<&str> {
        let kind = self.header_str("content-type")?;
        Some(kind.split_once(';').map_or(kind, |(kind, _)| kind).trim())
    }
}

pub(crate) fn too_large(limit: u64) -> Rejection {
    let text = format!("the body is larger than {limit} bytes");
    Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}
