//! Signed and encrypted cookies.
//!
//! ```text
//!   signed:     base64url(value) . base64url(HMAC-SHA256(name 0 value))
//!   encrypted:  base64url(nonce | ChaCha20-Poly1305(value, bound to name))
//! ```
//!
//! Two keys are derived from each secret (HKDF, RFC 5869), so that no key is used in two ways. A sealed value belongs
//! to the name of its cookie: it does not open under another name.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::{hkdf, hmac};

use cookie::Cookie;

use crate::request::base64;
use crate::{InvalidSetting, Request, Response};

/// The least bytes of a secret.
const SECRET_MIN: usize = 32;
/// The most secrets. A cookie is compared with each.
const SECRETS_MAX: usize = 8;

/// Secrets that sign and encrypt cookies. The first one seals; all of them open.
///
/// To change the secret, put the new one in front, and take the old one away when its cookies have expired.
///
/// ```
/// use osier_web::wrap::session::CookieKeys;
/// use osier_web::{Request, Response, Router, http::StatusCode, test::Client};
/// use std::sync::Arc;
///
/// // Read them from a file that only this program can read.
/// let secrets = [b"the new secret: 32 random bytes..", b"the old secret: 32 random bytes.."];
/// let keys = Arc::new(CookieKeys::new(&secrets)?);
/// let seal = keys.clone();
/// let set = move |_: &mut Request<'_>| Response::new(StatusCode::OK).signed_cookie(("cart", "tea & milk"), &seal);
/// let show = move |request: &mut Request<'_>| request.signed_cookie("cart", &keys).unwrap_or_default();
/// let client = Client::new(Router::new().get("/set", set).get("/show", show));
/// let reply = client.get("/set").send();
/// let cookie = reply.header("set-cookie").unwrap_or_default();
/// assert_eq!(client.get("/show").header("cookie", cookie).send().text(), "tea & milk");
/// let forged = cookie.replacen("cart=d", "cart=e", 1);
/// assert_eq!(client.get("/show").header("cookie", forged).send().text(), "");
/// # Ok::<(), String>(())
/// ```
///
/// The client can read a signed value, but not an encrypted one. Neither tells its age: put a time into the value if an
/// old one must not count. One secret may encrypt about 2^32 cookies (random nonces of 96 bits); change it before.
pub struct CookieKeys(Vec<Pair>);

/// The keys of one secret.
struct Pair {
    signing: hmac::Key,
    sealing: LessSafeKey,
}

impl CookieKeys {
    /// Derives the keys of `secrets`, the newest first.
    ///
    /// # Errors
    ///
    /// One line: no secret, more than eight, or one of less than 32 bytes.
    pub fn new(secrets: &[impl AsRef<[u8]>]) -> Result<CookieKeys, InvalidSetting> {
        if !(1..=SECRETS_MAX).contains(&secrets.len()) {
            return Err(InvalidSetting::new(format!(
                "there are {} secrets for cookies: give it 1 to {SECRETS_MAX}",
                secrets.len()
            )));
        }
        let pair = |secret: &[u8]| match secret.len() {
            SECRET_MIN.. => Ok(Pair {
                signing: hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, b"cookie signing")),
                sealing: LessSafeKey::new(
                    UnboundKey::new(&CHACHA20_POLY1305, &derive(secret, b"cookie encryption")).expect("32 bytes"),
                ),
            }),
            count => Err(InvalidSetting::new(format!(
                "a secret for cookies has {count} bytes, it needs {SECRET_MIN}"
            ))),
        };
        let pairs: Result<Vec<Pair>, InvalidSetting> = secrets.iter().map(|secret| pair(secret.as_ref())).collect();
        pairs.map(CookieKeys)
    }

    fn first(&self) -> &Pair {
        &self.0[0]
    }

    /// The value of a cookie called `name` that holds `value`, signed.
    pub fn sign(&self, name: &str, value: &str) -> String {
        let tag = hmac::sign(&self.first().signing, &bound(name, value));
        format!(
            "{}.{}",
            base64::encode_url(value.as_bytes()),
            base64::encode_url(tag.as_ref())
        )
    }

    /// The value that was signed for a cookie called `name`. `None` if no secret has signed it.
    pub fn verify(&self, name: &str, signed: &str) -> Option<String> {
        let (value, tag) = signed.split_once('.')?;
        let value = String::from_utf8(base64::decode_url(value)?).ok()?;
        let (tag, message) = (base64::decode_url(tag)?, bound(name, &value));
        let is_ours = |pair: &Pair| hmac::verify(&pair.signing, &message, &tag).is_ok();
        self.0.iter().any(is_ours).then_some(value)
    }

    /// The value of a cookie called `name` that holds `value`, encrypted.
    pub fn encrypt(&self, name: &str, value: &str) -> String {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).expect("the system has random numbers");
        let mut sealed = value.as_bytes().to_vec();
        let (key, name) = (&self.first().sealing, Aad::from(name.as_bytes()));
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), name, &mut sealed)
            .expect("a value that fits into memory");
        base64::encode_url(&[&nonce, &sealed[..]].concat())
    }

    /// The value that was encrypted for a cookie called `name`. `None` if no secret has encrypted it.
    pub fn decrypt(&self, name: &str, encrypted: &str) -> Option<String> {
        let bytes = base64::decode_url(encrypted)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        self.0.iter().find_map(|pair| {
            let (nonce, mut opened) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
            let value = pair
                .sealing
                .open_in_place(nonce, Aad::from(name.as_bytes()), &mut opened)
                .ok()?;
            String::from_utf8(value.to_vec()).ok()
        })
    }
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CookieKeys")
            .field("secrets", &self.0.len())
            .finish_non_exhaustive()
    }
}

fn derive(secret: &[u8], purpose: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"osier-web");
    let filled = salt
        .extract(secret)
        .expand(&[purpose], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut key));
    filled.expect("HKDF-SHA256 gives 32 bytes");
    key
}

/// The message that is signed. A name of a cookie holds no zero byte.
fn bound(name: &str, value: &str) -> Vec<u8> {
    [name.as_bytes(), b"\0", value.as_bytes()].concat()
}

impl Request<'_> {
    /// Returns the value of a cookie that [`Response::signed_cookie`] has set. `None` if it is absent or not signed by
    /// `keys`.
    pub fn signed_cookie(&self, name: &str, keys: &CookieKeys) -> Option<String> {
        self.named_cookies(name).find_map(|value| keys.verify(name, value))
    }

    /// Returns the value of a cookie that [`Response::encrypted_cookie`] has set. `None` if it is absent or not
    /// encrypted by `keys`.
    pub fn encrypted_cookie(&self, name: &str, keys: &CookieKeys) -> Option<String> {
        self.named_cookies(name).find_map(|value| keys.decrypt(name, value))
    }

    /// The values of a name, eight at most. Another host of the same domain may have set a cookie that hides ours.
    pub(super) fn named_cookies(&self, name: &str) -> impl Iterator<Item = &str> {
        self.cookies()
            .filter(move |(known, _)| *known == name)
            .map(|(_, value)| value)
            .take(8)
    }
}

impl Response {
    /// Sets a cookie whose value is signed. It may hold any text.
    pub fn signed_cookie<'c>(self, cookie: impl Into<Cookie<'c>>, keys: &CookieKeys) -> Response {
        let mut cookie = cookie.into();
        let sealed = keys.sign(cookie.name(), cookie.value());
        cookie.set_value(sealed);
        self.cookie(cookie)
    }

    /// Sets a cookie whose value is encrypted. It may hold any text.
    pub fn encrypted_cookie<'c>(self, cookie: impl Into<Cookie<'c>>, keys: &CookieKeys) -> Response {
        let mut cookie = cookie.into();
        let sealed = keys.encrypt(cookie.name(), cookie.value());
        cookie.set_value(sealed);
        self.cookie(cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secrets: &[&[u8; 32]]) -> CookieKeys {
        CookieKeys::new(secrets).unwrap()
    }

    #[test]
    fn a_sealed_value_opens_under_its_name_alone_and_after_a_rotation() {
        let (old, new) = (b"00000000000000000000000000000000", b"11111111111111111111111111111111");
        let (before, during, after) = (keys(&[old]), keys(&[new, old]), keys(&[new]));
        for value in ["", "ada", "a; b=\"c\", \u{fc}\n"] {
            let (signed, encrypted) = (before.sign("a", value), before.encrypt("a", value));
            assert_ne!(before.encrypt("a", value), encrypted, "a nonce is used once");
            for keys in [&before, &during] {
                assert_eq!(keys.verify("a", &signed).as_deref(), Some(value));
                assert_eq!(keys.decrypt("a", &encrypted).as_deref(), Some(value));
            }
            assert_eq!(
                (after.verify("a", &signed), after.decrypt("a", &encrypted)),
                (None, None)
            );
            assert_eq!(
                (before.verify("b", &signed), before.decrypt("b", &encrypted)),
                (None, None)
            );
            assert!(after.verify("a", &during.sign("a", value)).is_some());
            assert!(after.decrypt("a", &during.encrypt("a", value)).is_some());
        }
    }

    #[test]
    fn no_changed_or_truncated_value_opens() {
        let keys = keys(&[b"00000000000000000000000000000000"]);
        let (signed, encrypted) = (keys.sign("a", "user 7"), keys.encrypt("a", "user 7"));
        for (sealed, is_signed) in [(&signed, true), (&encrypted, false)] {
            let open = |text: &str| match is_signed {
                true => keys.verify("a", text),
                false => keys.decrypt("a", text),
            };
            for at in 0..sealed.len() {
                assert_eq!(open(&sealed[..at]), None, "cut at {at}");
                let other = if sealed.as_bytes()[at] == b'A' { "B" } else { "A" };
                let mut changed = sealed.clone();
                changed.replace_range(at..=at, other);
                assert_eq!(open(&changed), None, "changed at {at}");
            }
            assert_eq!(open(&format!("{sealed}A")), None);
        }
        assert_eq!((keys.verify("a", &encrypted), keys.decrypt("a", &signed)), (None, None));
    }

    #[test]
    fn secrets_that_are_too_short_are_refused() {
        assert!(CookieKeys::new(&[b"short"]).is_err());
        assert!(CookieKeys::new(&[] as &[&[u8]]).is_err());
        assert!(CookieKeys::new(&vec![[0_u8; 32]; 9]).is_err());
        assert!(!format!("{:?}", keys(&[b"00000000000000000000000000000000"])).contains("0000"));
    }
}
