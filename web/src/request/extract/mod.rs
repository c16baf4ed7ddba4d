//! Reading a request by type: path, query, form and JSON through `serde`.
//!
//! Path and query are read in place. Forms and JSON are collected first, up to [`IN_MEMORY`] bytes, or what the handler says,
//! and up to the limit of the route, whichever is less.

#[cfg(feature = "json")]
pub(crate) mod json;
#[cfg(feature = "serde")]
mod params;

use std::borrow::Cow;
use std::io::Read;

use http::StatusCode;
#[cfg(feature = "serde")]
use serde::de::DeserializeOwned;

use crate::{Rejection, Request};

/// The most that is collected of a form or a JSON document: as much as bodies may have by default.
pub(super) const IN_MEMORY: u64 = 2 << 20;

#[cfg(feature = "serde")]
impl Request<'_> {
    /// The route's parameters, percent-decoded: a struct or map by their names, a tuple in their order, or a
    /// single value where there is one.
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
    /// 400 for a value that is not of the type; 500 when the type asks for a parameter that the route does not have.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Rejection> {
        params::read(self.params)
    }
}

#[cfg(feature = "forms")]
impl Request<'_> {
    /// The query as a form: `+` is a space, percent escapes are decoded; a `Vec` takes all values of its name.
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
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, Rejection> {
        let query = self.query().unwrap_or_default();
        serde_html_form::from_str(query).map_err(|error| told(StatusCode::BAD_REQUEST, format!("the query: {error}")))
    }

    /// The body as a form (`application/x-www-form-urlencoded`), at most 2 MiB: [`form_up_to`](Request::form_up_to) has another
    /// bound. For uploads see [`multipart`](Request::multipart).
    ///
    /// # Suspends
    ///
    /// Until the body has come.
    ///
    /// # Errors
    ///
    /// 415 for another content type, 413 for a larger body, 422 for values that are not of the type.
    pub fn form<T: DeserializeOwned>(&mut self) -> Result<T, Rejection> {
        self.form_up_to(IN_MEMORY)
    }

    /// As [`form`](Request::form), at most `limit` bytes; the limit of the route or the server counts too.
    ///
    /// # Suspends
    ///
    /// Until the body has come.
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
            return Err(told(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let bytes = self.bytes(limit)?;
        serde_html_form::from_bytes(&bytes)
            .map_err(|error| told(StatusCode::UNPROCESSABLE_ENTITY, format!("the form: {error}")))
    }
}

impl Request<'_> {
    /// The whole body, at most `limit` bytes.
    ///
    /// # Suspends
    ///
    /// Until the body has come.
    ///
    /// # Errors
    ///
    /// 413 for a larger body, what [`RequestBody`](crate::RequestBody) says.
    pub fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, Rejection> {
        // A length that is announced is not believed until bytes come.
        let announced = self.body.announced().unwrap_or(0);
        if announced > limit {
            return Err(too_large(limit));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(announced.min(16 << 10)).unwrap_or(0));
        let mut body = self.body().take(limit.saturating_add(1));
        body.read_to_end(&mut bytes)?;
        match bytes.len() as u64 <= limit {
            true => Ok(bytes),
            false => Err(too_large(limit)),
        }
    }

    /// The content type without its parameters.
    pub(crate) fn media_type(&self) -> Option<&str> {
        let kind = self.header_str("content-type")?;
        Some(kind.split_once(';').map_or(kind, |(kind, _)| kind).trim())
    }
}

pub(super) fn told(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(status, text)
}

pub(crate) fn too_large(limit: u64) -> Rejection {
    let text = format!("the body is larger than {limit} bytes");
    told(StatusCode::PAYLOAD_TOO_LARGE, text)
}
