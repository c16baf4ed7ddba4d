//! One token in its compact form: `HEADER.CLAIMS.SIGNATURE`, each in base64url (RFC 7515 section 3.1).

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Options;
use super::keys::{Algorithm, Keys, TRIED_MAX};
use crate::request::base64;
use crate::request::extract::json::{JSON_DEPTH, too_deep};

/// The longest token, in bytes.
const TOKEN_MAX: usize = 16 << 10;
/// The deepest nesting of a header. It is read before the signature is known to be good, so anybody may send it.
const HEADER_DEPTH: usize = 16;

/// Why a token is invalid. The text is for the client, and tells nothing about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// It is no token, or too long.
    Malformed,
    /// Its algorithm is not accepted, or no key is for its algorithm and its key id.
    Algorithm,
    /// It has an extension that must be understood.
    Critical,
    /// No key has made its signature.
    Signature,
    /// Its `exp` is over.
    Expired,
    /// Its `nbf` has not come.
    NotYet,
    /// Its `iss` is not accepted.
    Issuer,
    /// Its `aud` is not this server.
    Audience,
    /// A required claim is missing.
    Missing,
    /// A claim does not have a value that is demanded.
    Claim,
    /// A claim cannot stand in a field of a request.
    Unpassable,
}

impl Invalid {
    /// The status of the refusal: 401, or 403 for a valid token that is not enough.
    pub fn status(self) -> StatusCode {
        match self {
            Invalid::Claim => StatusCode::FORBIDDEN,
            _ => StatusCode::UNAUTHORIZED,
        }
    }

    /// The error code of RFC 6750 section 3.1.
    pub fn code(self) -> &'static str {
        match self {
            Invalid::Claim => "insufficient_scope",
            _ => "invalid_token",
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invalid::Malformed => "the token is malformed",
            Invalid::Algorithm => "the token has an algorithm or a key id that is not accepted",
            Invalid::Critical => "the token has a critical extension",
            Invalid::Signature => "the signature of the token is wrong",
            Invalid::Expired => "the token has expired",
            Invalid::NotYet => "the token is not valid yet",
            Invalid::Issuer => "the token is from another issuer",
            Invalid::Audience => "the token is for another audience",
            Invalid::Missing => "the token lacks a claim",
            Invalid::Claim => "the token does not allow this",
            Invalid::Unpassable => "a claim of the token cannot be passed on",
        })
    }
}

impl std::error::Error for Invalid {}

/// The claims of a verified token.
#[derive(Clone, PartialEq)]
pub struct Claims(Map<String, Value>);

impl Claims {
    /// A claim as text: a string, a number or a boolean, or a list of them with commas in between. `None` for anything
    /// else.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::Array(list) => {
                let items: Option<Vec<_>> = list.iter().map(scalar).collect();
                Some(items?.join(","))
            }
            value => scalar(value).map(Cow::into_owned),
        }
    }

    /// Reads all claims as a `T`. `None` if they do not fit it.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_value(Value::Object(self.0.clone())).ok()
    }

    /// Checks times, issuer, audience, and the claims that the options demand.
    pub(super) fn meet(&self, options: &Options, now: SystemTime) -> Result<(), Invalid> {
        if options.required.iter().any(|name| !self.0.contains_key(name)) {
            return Err(Invalid::Missing);
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
        let leeway = options.leeway.as_secs_f64();
        if self.date("exp")?.is_some_and(|end| now >= end + leeway) {
            return Err(Invalid::Expired);
        }
        if self.date("nbf")?.is_some_and(|begin| now + leeway < begin) {
            return Err(Invalid::NotYet);
        }
        let issuer = self.0.get("iss").and_then(Value::as_str);
        if !options.issuers.is_empty() && !options.issuers.iter().any(|known| Some(known.as_str()) == issuer) {
            return Err(Invalid::Issuer);
        }
        // RFC 7519 4.1.3: a server that does not find itself in the audience must refuse the token.
        let is_for_us = |audience: &Value| {
            audience
                .as_str()
                .is_some_and(|name| options.audiences.iter().any(|our| our == name))
        };
        let fits = match self.0.get("aud") {
            None => options.audiences.is_empty(),
            Some(Value::Array(list)) => list.iter().any(is_for_us),
            Some(one) => is_for_us(one),
        };
        if !fits {
            return Err(Invalid::Audience);
        }
        match options.claims.iter().all(|(name, values)| self.has_one(name, values)) {
            true => Ok(()),
            false => Err(Invalid::Claim),
        }
    }

    /// Whether a claim has one of these values.
    fn has_one(&self, name: &str, values: &[String]) -> bool {
        let is_one = |value: &Value| scalar(value).is_some_and(|text| values.iter().any(|wanted| *wanted == text));
        match self.0.get(name) {
            None => false,
            Some(Value::Array(list)) => list.iter().any(is_one),
            // RFC 8693 4.2: a list of words.
            Some(Value::String(words)) if name == "scope" => {
                words.split(' ').any(|word| values.iter().any(|wanted| wanted == word))
            }
            Some(value) => is_one(value),
        }
    }

    /// A time in seconds since 1970 (RFC 7519 section 2, NumericDate).
    fn date(&self, name: &str) -> Result<Option<f64>, Invalid> {
        match self.0.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(Invalid::Malformed),
        }
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Claims tell about a person: names only.
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// A string, a number or a boolean as text.
fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        _ => None,
    }
}

/// Verifies the signature, and reads the claims afterwards.
pub(super) fn verify(token: &str, keys: &Keys, accepted: &[Algorithm]) -> Result<Claims, Invalid> {
    if token.len() > TOKEN_MAX {
        return Err(Invalid::Malformed);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(Invalid::Malformed)?;
    let (head, claims) = message.split_once('.').ok_or(Invalid::Malformed)?;
    let signature = base64::decode_url(signature).ok_or(Invalid::Malformed)?;
    let head = object(head, HEADER_DEPTH)?;
    if head.contains_key("crit") {
        return Err(Invalid::Critical);
    }
    let name = head.get("alg").and_then(Value::as_str).ok_or(Invalid::Malformed)?;
    let algorithm = Algorithm::named(name).filter(|algorithm| accepted.is_empty() || accepted.contains(algorithm));
    let algorithm = algorithm.ok_or(Invalid::Algorithm)?;
    let id = match head.get("kid") {
        None => None,
        Some(id) => Some(id.as_str().ok_or(Invalid::Malformed)?),
    };
    let mut fitting = keys.of(id, algorithm).take(TRIED_MAX).peekable();
    if fitting.peek().is_none() {
        return Err(Invalid::Algorithm);
    }
    match fitting.any(|key| key.verifies(algorithm, message.as_bytes(), &signature)) {
        true => object(claims, JSON_DEPTH).map(Claims),
        false => Err(Invalid::Signature),
    }
}

/// Decodes a part of a token that is a JSON object and nests at most `depth` levels.
fn object(part: &str, depth: usize) -> Result<Map<String, Value>, Invalid> {
    let bytes = base64::decode_url(part).ok_or(Invalid::Malformed)?;
    // The parser recurses on the fiber's stack.
    if too_deep(&bytes, depth).is_some() {
        return Err(Invalid::Malformed);
    }
    serde_json::from_slice(&bytes).map_err(|_| Invalid::Malformed)
}

#[cfg(test)]
mod tests {
    use ring::hmac;

    use super::*;

    #[test]
    fn no_part_nests_deeper_than_a_stack_allows() {
        let secret = [7; 32];
        let keys = Keys::secret(&secret).unwrap();
        let verify = |head: String, claims: String| {
            let message = [head, claims].map(|part| base64::encode_url(part.as_bytes())).join(".");
            let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), message.as_bytes());
            let signature = base64::encode_url(signature.as_ref());
            super::verify(&format!("{message}.{signature}"), &keys, &[]).map(drop)
        };
        // The object itself is a level.
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let head = |depth| format!(r#"{{"alg":"HS256","x":{}}}"#, nested(depth));
        let claims = |depth| format!(r#"{{"x":{}}}"#, nested(depth));
        assert_eq!(verify(head(HEADER_DEPTH), claims(JSON_DEPTH)), Ok(()));
        assert_eq!(verify(head(HEADER_DEPTH + 1), claims(2)), Err(Invalid::Malformed));
        assert_eq!(verify(head(2), claims(JSON_DEPTH + 1)), Err(Invalid::Malformed));
    }
}
