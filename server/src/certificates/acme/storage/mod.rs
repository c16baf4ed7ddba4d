//! The places that keep accounts, certificates and orders between runs. Several processes may share one.
//!
//! ```text
//!   keeper, issue ──▶ Storage ──┬── folder.rs   the state folder of one machine
//!                               └── redis.rs    a Redis server, for several machines
//! ```
//!
//! Only the process that holds the lock of a name orders its certificate. No process waits for such a lock. A process
//! that dies loses its locks: the kernel releases those of a folder at once, and a lease in Redis runs out.

mod folder;
mod redis;

use std::io;
use std::time::Duration;

use osier_tls::Identity;
use serde_json::{Value, json};

use super::jose::AccountKey;
use super::schedule::Window;

pub use self::folder::{Folder, Pooled};
pub use self::redis::InRedis;

/// The ACME client's durable state: accounts, certificates, orders.
///
/// # Suspends
/// All functions may suspend until the storage has answered.
///
/// # Errors
/// All functions fail when the storage cannot be reached, or holds data in another format.
pub trait Storage: Send + Sync {
    /// The storage in words, for log lines.
    fn description(&self) -> &'static str;

    /// Whether the storage cannot be reached. The storage itself logs the outage and its end, so callers log neither.
    fn is_away(&self) -> bool {
        false
    }

    /// Tries to lock a name: only the holder of the lock orders its certificate.
    fn lock(&self, name: &str) -> io::Result<Locking>;

    /// The certificate of a name. `None` if there is none.
    fn certificate(&self, name: &str) -> io::Result<Option<Stored>>;

    /// Stores the certificate of a name, and forgets the order. Fails when the lock of the name was lost.
    fn put_certificate(&self, name: &str, stored: &Stored) -> io::Result<()>;

    /// The unfinished order of a name, as last stored.
    fn pending(&self, name: &str) -> io::Result<Option<Pending>>;

    /// Stores an order before it is finalized. Fails when the lock of the name was lost.
    fn put_pending(&self, name: &str, pending: &Pending) -> io::Result<()>;

    /// The issuer's last answer about the renewal of a name's certificate.
    fn advice(&self, name: &str) -> io::Result<Option<Advice>>;

    /// Stores the issuer's answer.
    fn put_advice(&self, name: &str, advice: &Advice) -> io::Result<()>;

    /// The key of the account at an issuer. The first call makes it. A damaged key is an error and not replaced,
    /// because the account would be lost with it.
    fn account(&self, issuer: &str) -> io::Result<AccountKey>;
}

/// The outcome of an attempt to take a lock.
pub enum Locking {
    Taken(Lock),
    /// Another process has the lock. It is worth another try after this time.
    Busy(Duration),
}

/// The right to order the certificate of a name, until this is dropped. It ends with the process, too.
pub type Lock = Box<dyn Held>;

/// A lock that is released when it is dropped.
pub trait Held: Send {}

/// The beginnings of the lines that tell the origin of a certificate.
const ISSUER: &str = "Issuer: ";
const PROFILE: &str = "Profile: ";

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// The private key, in PEM.
    pub key: String,
    /// The chain, in PEM.
    pub chain: String,
    /// The order that has brought it, if that is known.
    pub origin: Option<Origin>,
}

/// The issuer of a certificate, and how it was ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The URL of the issuer's directory.
    pub issuer: String,
    pub profile: Option<String>,
}

#[cfg(test)]
impl Stored {
    /// The certificate of an earlier run.
    pub fn self_signed(name: &str) -> Stored {
        Stored::until(name, rcgen::date_time_ymd(4096, 1, 1))
    }

    /// The certificate of an earlier run that is not valid any more.
    pub fn expired(name: &str) -> Stored {
        Stored::until(name, rcgen::date_time_ymd(2026, 1, 1))
    }

    fn until(name: &str, end: time::OffsetDateTime) -> Stored {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut chain = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        chain.not_after = end;
        Stored {
            chain: chain.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
            origin: None,
        }
    }
}

/// An unfinished order.
#[derive(Clone, PartialEq, Eq)]
pub struct Pending {
    pub issuer: String,
    pub url: String,
    /// The kind of certificate that was ordered.
    pub profile: Option<String>,
    /// The names, in the order of the request.
    pub names: Vec<String>,
    /// The private key of the certificate, in PEM.
    pub key: String,
}

/// An issuer's answer to the question when a certificate should be renewed (RFC 9773).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// The certificate, by its identifier for this question.
    pub id: String,
    /// `None` if the issuer has no opinion.
    pub window: Option<Window>,
    /// The time of the next question, in seconds since 1970.
    pub again: i64,
}

impl Stored {
    /// The identity that a listener shows.
    ///
    /// # Errors
    /// One line: the certificate cannot be used with its key.
    pub fn identity(&self) -> Result<Identity, String> {
        Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes()).map_err(|error| error.to_string())
    }

    /// Key and chain in one text, so that they always belong together. Readers of PEM skip the lines about the origin,
    /// which come before the key.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(Origin { issuer, profile }) = &self.origin {
            text += &format!("{ISSUER}{issuer}\n");
            text.extend(profile.iter().map(|profile| format!("{PROFILE}{profile}\n")));
        }
        format!("{text}{}\n{}", self.key.trim_end(), self.chain)
    }

    pub(super) fn from_text(text: &str) -> io::Result<Stored> {
        let split = text.find("-----BEGIN CERTIFICATE-----").filter(|&at| at > 0);
        let split = split.ok_or_else(|| malformed("it has no key before its certificates"))?;
        let (key, chain) = text.split_at(split);
        let (head, key) = key.split_at(key.find("-----BEGIN").unwrap_or_default());
        let line = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Ok(Stored {
            key: key.to_owned(),
            chain: chain.to_owned(),
            origin: line(ISSUER).map(|issuer| Origin {
                issuer,
                profile: line(PROFILE),
            }),
        })
    }
}

impl Pending {
    pub(super) fn to_text(&self) -> String {
        let Pending {
            issuer,
            url,
            profile,
            names,
            key,
        } = self;
        json!({ "issuer": issuer, "url": url, "profile": profile, "names": names, "key": key }).to_string()
    }

    pub(super) fn from_text(text: &str) -> io::Result<Pending> {
        let value = json(text)?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let names = value["names"].as_array().into_iter().flatten();
        let names = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let read = (text("issuer"), text("url"), text("key"));
        let (Some(issuer), Some(url), Some(key)) = read else {
            return Err(malformed("it is not an order"));
        };
        Ok(Pending {
            issuer,
            url,
            profile: value["profile"].as_str().map(str::to_owned),
            names,
            key,
        })
    }
}

impl Advice {
    pub(super) fn to_text(&self) -> String {
        let window = self.window.map(|window| [window.begins, window.ends]);
        json!({ "id": self.id, "window": window, "again": self.again }).to_string()
    }

    pub(super) fn from_text(text: &str) -> io::Result<Advice> {
        let value = json(text)?;
        let (id, again) = (value["id"].as_str(), value["again"].as_i64());
        let (id, again) = id
            .zip(again)
            .ok_or_else(|| malformed("it is not an answer about a renewal"))?;
        let window = &value["window"];
        let window = window[0].as_i64().zip(window[1].as_i64());
        Ok(Advice {
            id: id.to_owned(),
            window: window.map(|(begins, ends)| Window { begins, ends }),
            again,
        })
    }
}

/// The key of an account, in the form in which it is stored.
fn account_to_text(issuer: &str, key: &AccountKey) -> String {
    json!({ "issuer": issuer, "key": data_encoding::BASE64.encode(key.pkcs8()) }).to_string()
}

fn account_from_text(text: &str) -> io::Result<AccountKey> {
    let value = json(text)?;
    let bytes = value["key"]
        .as_str()
        .and_then(|key| data_encoding::BASE64.decode(key.as_bytes()).ok());
    let key = bytes.and_then(|bytes| AccountKey::from_pkcs8(&bytes).ok());
    key.ok_or_else(|| malformed("it is not an account key; remove it to open another account"))
}

fn json(text: &str) -> io::Result<Value> {
    serde_json::from_str(text).map_err(|_| malformed("it is not JSON"))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
