//! The keys that verify tokens, read from PEM (RFC 7468) or from a set of JWK (RFC 7517, RFC 7518, RFC 8037).
//!
//! Every key knows the algorithms that it may be used with. An HMAC secret comes from a JWK or from [`Keys::secret`],
//! never from PEM, so the text of a public key is never taken for a secret.

use std::fmt;

use ring::{hmac, signature};
use serde_json::Value;

use crate::InvalidSetting;
use crate::request::base64;

/// The most keys that are read.
const KEYS_MAX: usize = 64;
/// The most keys that one token is tried with. Each costs a signature check.
pub(super) const TRIED_MAX: usize = 8;
/// Bits of an RSA key that can be used.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A signature algorithm for tokens (RFC 7518 section 3.1, RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA with SHA-256 (PKCS #1 v1.5).
    Rs256,
    /// RSA with SHA-384 (PKCS #1 v1.5).
    Rs384,
    /// RSA with SHA-512 (PKCS #1 v1.5).
    Rs512,
    /// RSA with SHA-256 (PSS).
    Ps256,
    /// RSA with SHA-384 (PSS).
    Ps384,
    /// RSA with SHA-512 (PSS).
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

use Algorithm::*;

impl Algorithm {
    /// All algorithms and their names.
    pub const ALL: &[(&str, Algorithm)] = &[
        ("HS256", Hs256),
        ("HS384", Hs384),
        ("HS512", Hs512),
        ("RS256", Rs256),
        ("RS384", Rs384),
        ("RS512", Rs512),
        ("PS256", Ps256),
        ("PS384", Ps384),
        ("PS512", Ps512),
        ("ES256", Es256),
        ("ES384", Es384),
        ("EdDSA", EdDsa),
    ];

    /// The algorithm with this name. There is none called `none`.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, algorithm)| *algorithm)
    }
}

/// Keys that verify tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    keys: Vec<Key>,
    skipped: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) id: Option<String>,
    algorithms: Vec<Algorithm>,
    material: Material,
}

#[derive(Clone, PartialEq, Eq)]
enum Material {
    Secret(Vec<u8>),
    /// Modulus and exponent, without leading zeros.
    Rsa(Vec<u8>, Vec<u8>),
    /// A point in its long form, or the key of Ed25519.
    Curve(Vec<u8>),
}

impl Keys {
    /// Reads public keys in PEM, one JWK, or a set of JWK. Keys of a set that are for something else are left out, and those that cannot
    /// be used are [skipped](Keys::skipped).
    ///
    /// # Errors
    ///
    /// One line: what is wrong, or that there is no usable key.
    pub fn parse(text: &str) -> Result<Keys, InvalidSetting> {
        Keys::read(text).map_err(InvalidSetting::new)
    }

    fn read(text: &str) -> Result<Keys, String> {
        let (keys, skipped) = match text.trim_start().starts_with('{') {
            true => jwk_set(text)?,
            false => (pem(text)?, Vec::new()),
        };
        let nameless = keys.iter().filter(|key| key.id.is_none()).count();
        if nameless > TRIED_MAX {
            return Err(format!(
                "{nameless} keys have no id, and a token is tried with at most {TRIED_MAX}: use a set of JWK with a `kid` each"
            ));
        }
        match keys.len() {
            0 => Err(match skipped.first() {
                None => "there is no key that can verify a token".into(),
                Some(why) => format!("there is no key that can verify a token: {why}"),
            }),
            1..=KEYS_MAX => Ok(Keys { keys, skipped }),
            count => Err(format!("there are {count} keys, at most {KEYS_MAX} are read")),
        }
    }

    /// A secret for HS256, and for HS384 and HS512 if it is long enough.
    ///
    /// # Errors
    ///
    /// One line: a secret of less than 32 bytes (RFC 7518 section 3.2).
    pub fn secret(secret: &[u8]) -> Result<Keys, InvalidSetting> {
        Ok(Keys {
            keys: vec![oct(secret.to_vec()).map_err(InvalidSetting::new)?],
            skipped: Vec::new(),
        })
    }

    /// The keys of a set that cannot be used, as RFC 7517 section 5 wants it: a line for each, with the reason. The set of a provider that
    /// changes its keys may have an old one that is too short.
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The keys that a token with this key id may be signed with. A token without an id is tried with every key. A key
    /// without an id is tried with every token whose id no key has.
    pub(super) fn of<'k>(&'k self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &'k Key> {
        let is_known = |key: &&Key| key.id.as_deref() == id;
        let has_named = id.is_some() && self.keys.iter().any(|key| is_known(&key));
        let id = id.map(str::to_owned);
        self.keys.iter().filter(move |key| {
            let fits = match has_named {
                true => key.id == id,
                false => id.is_none() || key.id.is_none(),
            };
            fits && key.algorithms.contains(&algorithm)
        })
    }
}

impl Key {
    /// Whether this is the signature of `message`. The time does not depend on the bytes of a secret.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.algorithms.contains(&algorithm) {
            return false;
        }
        match (&self.material, algorithm) {
            (Material::Secret(secret), Hs256 | Hs384 | Hs512) => {
                let hash = match algorithm {
                    Hs256 => hmac::HMAC_SHA256,
                    Hs384 => hmac::HMAC_SHA384,
                    _ => hmac::HMAC_SHA512,
                };
                hmac::verify(&hmac::Key::new(hash, secret), message, signature).is_ok()
            }
            (Material::Rsa(n, e), _) => {
                let parameters = match algorithm {
                    Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
                    Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = signature::RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signature).is_ok()
            }
            (Material::Curve(point), Es256 | Es384 | EdDsa) => {
                let scheme: &dyn signature::VerificationAlgorithm = match algorithm {
                    Es256 => &signature::ECDSA_P256_SHA256_FIXED,
                    Es384 => &signature::ECDSA_P384_SHA384_FIXED,
                    _ => &signature::ED25519,
                };
                signature::UnparsedPublicKey::new(scheme, point)
                    .verify(message, signature)
                    .is_ok()
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A key may be a secret: ids only.
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

/// Makes a key of a secret.
fn oct(secret: Vec<u8>) -> Result<Key, String> {
    let fitting = [(32, Hs256), (48, Hs384), (64, Hs512)].into_iter();
    let algorithms: Vec<_> = fitting
        .filter(|(least, _)| secret.len() >= *least)
        .map(|(_, fits)| fits)
        .collect();
    if algorithms.is_empty() {
        return Err(format!("a secret has {} bytes, HS256 needs 32 or more", secret.len()));
    }
    let material = Material::Secret(secret);
    Ok(Key {
        id: None,
        algorithms,
        material,
    })
}

/// Makes a key of a modulus and an exponent.
fn rsa(n: &[u8], e: &[u8]) -> Result<Key, String> {
    let trim = |bytes: &[u8]| bytes.iter().copied().skip_while(|&byte| byte == 0).collect::<Vec<u8>>();
    let (n, e) = (trim(n), trim(e));
    let bits = n.len() * 8 - n.first().map_or(0, |first| first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
        return Err(format!("an RSA key has {bits} bits, it needs {least} to {most}"));
    }
    Ok(Key {
        id: None,
        algorithms: vec![Rs256, Rs384, Rs512, Ps256, Ps384, Ps512],
        material: Material::Rsa(n, e),
    })
}

/// Makes a key of a point, or of the public key of Ed25519.
fn curve(algorithm: Algorithm, point: Vec<u8>) -> Result<Key, String> {
    let length = match algorithm {
        Es256 => 65,
        Es384 => 97,
        _ => 32,
    };
    let is_long_form = algorithm == EdDsa || point.first() == Some(&4);
    if point.len() != length || !is_long_form {
        return Err("a key on a curve has the wrong length or form".into());
    }
    Ok(Key {
        id: None,
        algorithms: vec![algorithm],
        material: Material::Curve(point),
    })
}

/// Reads a set of JWK, or one JWK. Returns the keys, and why others of the set are skipped.
fn jwk_set(text: &str) -> Result<(Vec<Key>, Vec<String>), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("the JSON is malformed: {error}"))?;
    let Some(keys) = value.get("keys") else {
        return Ok((jwk(&value)?.into_iter().collect(), Vec::new()));
    };
    let (mut read, mut skipped) = (Vec::new(), Vec::new());
    for (index, key) in keys.as_array().ok_or("'keys' is not a list")?.iter().enumerate() {
        match jwk(key) {
            Ok(key) => read.extend(key),
            Err(why) => skipped.push(format!("key {}: {why}", index + 1)),
        }
    }
    Ok((read, skipped))
}

/// Reads one JWK. `None` for a key that verifies no tokens here.
fn jwk(value: &Value) -> Result<Option<Key>, String> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let bytes = |name: &str| {
        let missing = || format!("'{name}' is missing or not in base64url");
        text(name).and_then(base64::decode_url).ok_or_else(missing)
    };
    let verifies = |list: &Value| {
        let list = list.as_array();
        list.is_some_and(|list| list.iter().any(|operation| operation == "verify"))
    };
    let is_for_signatures =
        text("use").is_none_or(|purpose| purpose == "sig") && value.get("key_ops").is_none_or(verifies);
    if !is_for_signatures {
        return Ok(None);
    }
    let point = |algorithm, length: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        if x.len() != length || y.len() != length {
            return Err("'x' and 'y' have the wrong length".into());
        }
        curve(algorithm, [&[4], &x[..], &y[..]].concat())
    };
    let key = match (text("kty"), text("crv")) {
        (Some("oct"), _) => oct(bytes("k")?)?,
        (Some("RSA"), _) => rsa(&bytes("n")?, &bytes("e")?)?,
        (Some("EC"), Some("P-256")) => point(Es256, 32)?,
        (Some("EC"), Some("P-384")) => point(Es384, 48)?,
        (Some("OKP"), Some("Ed25519")) => curve(EdDsa, bytes("x")?)?,
        (None, _) => return Err("'kty' is missing".into()),
        _ => return Ok(None),
    };
    let algorithms = match text("alg") {
        None => key.algorithms,
        Some(name) => {
            let named = Algorithm::named(name).filter(|algorithm| key.algorithms.contains(algorithm));
            match named {
                Some(algorithm) => vec![algorithm],
                // A key for encryption, or for an algorithm that this server does not know.
                None => return Ok(None),
            }
        }
    };
    let id = text("kid").map(str::to_owned);
    Ok(Some(Key { id, algorithms, ..key }))
}

/// Reads the public keys of a text in PEM.
fn pem(text: &str) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let (label, after) = after.split_once("-----").ok_or("a PEM block does not begin right")?;
        let end = format!("-----END {label}-----");
        let (body, after) = after
            .split_once(&end)
            .ok_or_else(|| format!("a PEM block lacks its '{end}'"))?;
        let body: String = body.split_ascii_whitespace().collect();
        let der = base64::decode(&body).ok_or_else(|| format!("the base64 of the PEM block '{label}' is malformed"))?;
        let malformed = || format!("the PEM block '{label}' is malformed");
        keys.push(match label {
            "PUBLIC KEY" => public_key(&der).ok_or_else(malformed)??,
            "RSA PUBLIC KEY" => rsa_public_key(&der).ok_or_else(malformed)??,
            _ if label.contains("PRIVATE") => {
                return Err("it is a private key; give it the public one: openssl pkey -in FILE -pubout".into());
            }
            "CERTIFICATE" => {
                return Err("it is a certificate; give it the public key: openssl x509 -in FILE -pubkey -noout".into());
            }
            _ => return Err(format!("a PEM block '{label}' is no public key")),
        });
        rest = after;
    }
    if keys.is_empty() {
        return Err("it is neither PEM (-----BEGIN PUBLIC KEY-----) nor a JWK set in JSON".into());
    }
    Ok(keys)
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OBJECT_ID: u8 = 6;

/// Reads a SubjectPublicKeyInfo (RFC 5280 section 4.1). `None` if it is malformed.
fn public_key(der: &[u8]) -> Option<Result<Key, String>> {
    let mut info = whole(der, SEQUENCE)?;
    let mut algorithm = take(&mut info, SEQUENCE)?;
    let (&unused, key) = whole(info, BIT_STRING)?.split_first()?;
    let id = take(&mut algorithm, OBJECT_ID)?;
    if unused != 0 {
        return None;
    }
    Some(match id {
        // rsaEncryption, RFC 3279 section 2.3.1
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1] => return rsa_public_key(key),
        // id-ecPublicKey with prime256v1 or secp384r1, RFC 5480 section 2.1.1
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1] => match take(&mut algorithm, OBJECT_ID)? {
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7] => curve(Es256, key.to_vec()),
            [0x2b, 0x81, 4, 0, 0x22] => curve(Es384, key.to_vec()),
            _ => Err("a key is on another curve than P-256 and P-384".into()),
        },
        // id-Ed25519, RFC 8410 section 3
        [0x2b, 0x65, 0x70] => curve(EdDsa, key.to_vec()),
        _ => Err("a key is neither RSA nor on P-256, P-384 or Ed25519".into()),
    })
}

/// Reads an RSAPublicKey (RFC 8017 appendix A.1.1).
fn rsa_public_key(der: &[u8]) -> Option<Result<Key, String>> {
    let mut parts = whole(der, SEQUENCE)?;
    let n = take(&mut parts, INTEGER)?;
    let e = whole(parts, INTEGER)?;
    Some(rsa(n, e))
}

/// Takes a value with this tag from the front of `der`.
fn take<'d>(der: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    let (&found, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.is_empty() || digits.len() > 3 {
            return None;
        }
        length = digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit));
        rest = after;
    }
    let (value, rest) = rest.split_at_checked(length)?;
    *der = rest;
    (found == tag).then_some(value)
}

/// Takes a value with this tag that is all of `der`.
fn whole(mut der: &[u8], tag: u8) -> Option<&[u8]> {
    let value = take(&mut der, tag)?;
    der.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_key_panics(text in "\\PC{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Keys::parse(&text), public_key(&bytes), rsa_public_key(&bytes));
            let blocks = format!("-----BEGIN {text}-----\n{text}\n-----END {text}-----");
            let _ = (Keys::parse(&blocks), Keys::parse(&format!("{{\"keys\":[{text}]}}")));
        }

        #[test]
        fn no_length_of_der_panics(lengths in prop::collection::vec(prop::sample::select(&b"\x00\x01\x02\x30\x7f\x80\x81\x82\x83\x84\xff"[..]), 0..40)) {
            let _ = (public_key(&lengths), rsa_public_key(&lengths));
        }

        #[test]
        fn no_token_panics_or_is_valid(token in "[A-Za-z0-9_.=-]{0,120}") {
            let keys = Keys::secret(&[7; 32]).unwrap();
            prop_assert!(super::super::token::verify(&token, &keys, &[]).is_err());
        }
    }

    #[test]
    fn keys_that_no_token_would_be_tried_with_are_a_mistake() {
        let set = |count: usize, id: &str| {
            let key = format!(r#"{{"kty":"oct",{id}"k":"{}"}}"#, "A".repeat(43));
            format!(r#"{{"keys":[{}]}}"#, vec![key; count].join(","))
        };
        assert!(Keys::parse(&set(TRIED_MAX, "")).is_ok());
        let error = Keys::parse(&set(TRIED_MAX + 1, "")).unwrap_err().to_string();
        assert!(error.starts_with("9 keys have no id"), "{error}");
        assert!(Keys::parse(&set(TRIED_MAX + 1, r#""kid":"a","#)).is_ok());
    }

    #[test]
    fn a_key_that_cannot_be_used_takes_no_other_of_its_set_along() {
        let good = format!(r#"{{"kty":"oct","k":"{}"}}"#, "A".repeat(43));
        let short = format!(r#"{{"kty":"RSA","kid":"old","e":"AQAB","n":"{}"}}"#, "_".repeat(172));
        let set = |keys: &[&str]| Keys::parse(&format!(r#"{{"keys":[{}]}}"#, keys.join(",")));
        let keys = set(&[&short, &good, r#"{"kid":"x"}"#, "7"]).unwrap();
        assert_eq!(keys.keys.len(), 1);
        let expected = [
            "key 1: an RSA key has 1032 bits, it needs 2048 to 8192",
            "key 3: 'kty' is missing",
            "key 4: 'kty' is missing",
        ];
        assert_eq!(keys.skipped(), expected);
        let error = set(&[&short]).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no key that can verify a token: key 1: an RSA key has 1032 bits, it needs 2048 to 8192"
        );
    }

    #[test]
    fn the_length_of_a_value_may_take_three_bytes() {
        let long = [&[SEQUENCE, 0x83, 1, 0, 0][..], &vec![0; 1 << 16]].concat();
        assert_eq!(whole(&long, SEQUENCE).map(<[u8]>::len), Some(1 << 16));
        for der in [
            &long[..long.len() - 1],
            &[SEQUENCE],
            &[SEQUENCE, 0x80],
            &[SEQUENCE, 0x84, 0, 0, 0, 0],
            &[INTEGER, 0],
        ] {
            assert_eq!(whole(der, SEQUENCE), None);
        }
        assert_eq!(whole(&[SEQUENCE, 0, 0], SEQUENCE), None, "bytes behind it");
    }
}
