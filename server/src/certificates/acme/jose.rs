//! Signed requests of an ACME account (RFC 8555 section 6.2): the account's key, its JSON Web Key (RFC 7517), and
//! signatures (RFC 7515).
//!
//! The key is an ECDSA key over P-256, which every issuer must accept (RFC 8555 section 6.2).

use std::fmt;

use data_encoding::BASE64URL_NOPAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use ring::{digest, hmac};
use serde_json::{Value, json};

/// The key of an account.
pub struct AccountKey {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

/// The bytes are not a PKCS#8 document with a P-256 key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadKey;

/// The identity of the signer within a request.
#[derive(Debug, Clone, Copy)]
pub enum Signer<'s> {
    /// A request that makes or finds the account has the key itself.
    Key,
    /// Any other request has the URL of the account.
    Account(&'s str),
}

/// A secret that an issuer gives to a customer, to bind a new account to the customer (RFC 8555 section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct Binding {
    pub id: String,
    pub secret: Vec<u8>,
}

impl AccountKey {
    /// Makes a new key.
    pub fn generate() -> AccountKey {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let document = document.expect("the system has random numbers");
        AccountKey::from_pkcs8(document.as_ref()).expect("ring reads what it has written")
    }

    /// Reads a key from [`pkcs8`](AccountKey::pkcs8).
    ///
    /// # Errors
    /// When the bytes are no such key.
    pub fn from_pkcs8(bytes: &[u8]) -> Result<AccountKey, BadKey> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, bytes, &SystemRandom::new());
        let pkcs8 = bytes.to_vec();
        pair.map(|pair| AccountKey { pair, pkcs8 }).map_err(|_| BadKey)
    }

    /// The private key, for storing it.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The body of a request: `payload` with its signature. An empty payload reads a resource (POST-as-GET).
    pub fn sign(&self, signer: Signer<'_>, nonce: &str, url: &str, payload: &str) -> String {
        let mut protected = json!({ "alg": "ES256", "nonce": nonce, "url": url });
        match signer {
            Signer::Key => protected["jwk"] = self.jwk(),
            Signer::Account(account) => protected["kid"] = account.into(),
        }
        flattened(&protected, payload.as_bytes(), |signed| {
            let signature = self.pair.sign(&SystemRandom::new(), signed);
            signature.expect("the system has random numbers").as_ref().to_vec()
        })
        .to_string()
    }

    /// The proof that the account knows the customer's secret. `url` is the one for new accounts.
    pub fn bind(&self, binding: &Binding, url: &str) -> Value {
        let protected = json!({ "alg": "HS256", "kid": binding.id, "url": url });
        let key = hmac::Key::new(hmac::HMAC_SHA256, &binding.secret);
        flattened(&protected, self.jwk().to_string().as_bytes(), |signed| {
            hmac::sign(&key, signed).as_ref().to_vec()
        })
    }

    /// The proof of a challenge: its token and the thumbprint of the key (RFC 8555 section 8.1).
    pub fn authorization(&self, token: &str) -> String {
        // RFC 7638 wants the members in the order of their names. `json!` promises no order, so the text is made by
        // hand.
        let (x, y) = self.point();
        let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        format!("{token}.{}", BASE64.encode(&sha256(canonical.as_bytes())))
    }

    fn jwk(&self) -> Value {
        let (x, y) = self.point();
        json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y })
    }

    /// The coordinates of the public key.
    fn point(&self) -> (String, String) {
        // An uncompressed point is the byte 4 and two coordinates of 32 bytes each.
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        (BASE64.encode(x), BASE64.encode(y))
    }
}

/// The key must not get into logs.
impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountKey").finish_non_exhaustive()
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The SHA-256 of the bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A JSON web signature in its flattened form.
fn flattened(protected: &Value, payload: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> Value {
    let (protected, payload) = (BASE64.encode(protected.to_string().as_bytes()), BASE64.encode(payload));
    let signature = sign(format!("{protected}.{payload}").as_bytes());
    json!({ "protected": protected, "payload": payload, "signature": BASE64.encode(&signature) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    fn decoded(value: &Value) -> Vec<u8> {
        BASE64.decode(value.as_str().unwrap().as_bytes()).unwrap()
    }

    #[test]
    fn a_request_is_signed_by_the_key_that_it_names() {
        let key = AccountKey::generate();
        let body: Value = serde_json::from_str(&key.sign(Signer::Key, "n1", "https://a/new", "{\"a\":1}")).unwrap();
        let protected: Value = serde_json::from_slice(&decoded(&body["protected"])).unwrap();
        assert_eq!(
            (&protected["nonce"], &protected["url"]),
            (&json!("n1"), &json!("https://a/new"))
        );
        assert_eq!(decoded(&body["payload"]), b"{\"a\":1}");
        let mut point = vec![4];
        point.extend(decoded(&protected["jwk"]["x"]));
        point.extend(decoded(&protected["jwk"]["y"]));
        let signed = format!(
            "{}.{}",
            body["protected"].as_str().unwrap(),
            body["payload"].as_str().unwrap()
        );
        let verifier = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        verifier
            .verify(signed.as_bytes(), &decoded(&body["signature"]))
            .unwrap();
        assert!(verifier.verify(b"other", &decoded(&body["signature"])).is_err());
    }

    #[test]
    fn later_requests_name_the_account_and_reads_have_no_payload() {
        let key = AccountKey::generate();
        let body: Value =
            serde_json::from_str(&key.sign(Signer::Account("https://a/1"), "n", "https://a/o", "")).unwrap();
        let protected: Value = serde_json::from_slice(&decoded(&body["protected"])).unwrap();
        assert_eq!(
            (&protected["kid"], &protected["jwk"]),
            (&json!("https://a/1"), &Value::Null)
        );
        assert_eq!(body["payload"], "");
    }

    #[test]
    fn a_stored_key_is_the_same_key() {
        let key = AccountKey::generate();
        let again = AccountKey::from_pkcs8(key.pkcs8()).unwrap();
        assert_eq!(key.authorization("t"), again.authorization("t"));
        assert_eq!(AccountKey::from_pkcs8(b"no key").err(), Some(BadKey));
        assert!(!format!("{key:?}").contains("pkcs8"));
    }

    /// The thumbprint is the hash of the members in alphabetical order, without spaces.
    #[test]
    fn the_thumbprint_is_that_of_the_canonical_key() {
        let key = AccountKey::generate();
        let jwk = key.jwk();
        let sorted = format!(r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#, jwk["x"], jwk["y"]);
        let proof = key.authorization("token");
        let (token, thumbprint) = proof.split_once('.').unwrap();
        assert_eq!((token, thumbprint.len()), ("token", 43));
        assert_eq!(BASE64.decode(thumbprint.as_bytes()).unwrap(), sha256(sorted.as_bytes()));
    }

    #[test]
    fn an_account_is_bound_by_the_secret() {
        let (key, secret) = (AccountKey::generate(), vec![7; 32]);
        let binding = Binding {
            id: "customer".into(),
            secret: secret.clone(),
        };
        let bound = key.bind(&binding, "https://a/new");
        let protected: Value = serde_json::from_slice(&decoded(&bound["protected"])).unwrap();
        assert_eq!(
            (&protected["alg"], &protected["kid"]),
            (&json!("HS256"), &json!("customer"))
        );
        assert_eq!(
            serde_json::from_slice::<Value>(&decoded(&bound["payload"])).unwrap(),
            key.jwk()
        );
        let signed = format!(
            "{}.{}",
            bound["protected"].as_str().unwrap(),
            bound["payload"].as_str().unwrap()
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        hmac::verify(&key, signed.as_bytes(), &decoded(&bound["signature"])).unwrap();
    }
}
