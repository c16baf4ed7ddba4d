//! One certificate, from the look into the state folder to the stored chain.
//!
//! The lock of the name keeps other processes from ordering the same certificate. It is tried, not waited for: who does not get it
//! looks again later, and finds what the other one has stored.

use std::io;
use std::sync::Arc;

use osier_tls::Identity;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::challenge::{Board, Proofs};
use super::jose::AccountKey;
use super::order::{self, Kind, Wanted};
use super::protocol::{Client, Directory, Error, Transport};
use super::schedule::{Validity, Window};
use super::settings::{Issuer, Settings};
use super::storage::{Pending, Storage, Stored};
use crate::certificates::x509::Certificate;

/// A certificate that a site wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// At least one. The first one names the files.
    pub names: Vec<String>,
    pub settings: Settings,
}

/// The parts of the server that issuing needs.
pub struct Means {
    pub storage: Storage,
    pub board: Arc<dyn Board>,
    pub connect: Connect,
}

/// Makes connections to an issuer. It may suspend while files are read. The error is one line.
pub type Connect = Box<dyn Fn(&Issuer) -> Result<Box<dyn Transport>, String> + Send + Sync>;

/// The dates of a certificate, and its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub validity: Validity,
    /// Its identifier for the issuer's renewal information (RFC 9773 section 4.1), if it has one.
    pub id: Option<String>,
}

impl Subject {
    /// The name of the certificate in the state folder.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Whether a certificate is for all names.
    pub fn is_served_by(&self, stored: &Stored) -> bool {
        leaf(&stored.chain).is_some_and(|leaf| self.names.iter().all(|name| leaf.is_for(name)))
    }
}

/// Reads the first certificate of a chain. `None` if it is none.
pub fn read(chain: &str) -> Option<Read> {
    let certificate = leaf(chain)?;
    let encoded = |bytes: &[u8]| data_encoding::BASE64URL_NOPAD.encode(bytes);
    let id = |authority: &Vec<u8>| format!("{}.{}", encoded(authority), encoded(&certificate.serial));
    Some(Read {
        validity: Validity {
            begins: certificate.not_before.0,
            ends: certificate.not_after.0,
        },
        id: certificate.authority_key.as_ref().map(id),
    })
}

fn leaf(chain: &str) -> Option<Certificate> {
    let der = CertificateDer::from_pem_slice(chain.as_bytes()).ok()?;
    Certificate::parse(&der).ok()
}

/// Gets a certificate from an issuer and stores it. The caller holds the lock of the name.
///
/// # Suspends
/// For minutes, while the issuer checks the names by one of `kinds`, the best one first.
///
/// # Errors
/// Those of the issuer and of the state folder.
pub fn obtain(
    subject: &Subject,
    issuer: &Issuer,
    means: &Means,
    kinds: &[Kind],
    replaces: Option<&str>,
) -> Result<Stored, Error> {
    let transport = (means.connect)(issuer).map_err(Error::Failed)?;
    let storage = means.storage.clone();
    let url = issuer.directory.clone();
    let account: AccountKey = unblock(move || storage.account(&url))?;
    let directory = Directory::fetch(&*transport, &issuer.directory)?;
    let (email, binding) = (subject.settings.email.as_deref(), issuer.binding.as_ref());
    let mut client = Client::sign_in(&*transport, directory, &account, email, binding)?;

    let (storage, name) = (means.storage.clone(), subject.name().to_owned());
    let pending = unblock(move || storage.pending(&name))?;
    if let Some(pending) =
        pending.filter(|pending| pending.issuer == issuer.directory && pending.names == subject.names)
        && let Some(chain) = order::resume(&mut client, &pending.url)?
    {
        let key = pending.key;
        match store(subject, means, Stored { key, chain }) {
            // The same order would bring the same certificate each time.
            Err(Error::Malformed(_)) => {}
            done => return done,
        }
    }
    let wanted = Wanted {
        names: &subject.names,
        profile: subject.settings.profile.as_deref(),
        replaces,
        kinds,
    };
    let proofs = Proofs::new(&*means.board, subject.settings.dns.as_deref());
    let order = order::prove(&mut client, &wanted, &proofs)?;
    let made = request(&subject.names);
    let (key, request) = made.map_err(|error| Error::Failed(format!("no signing request can be made: {error}")))?;
    let pending = Pending {
        issuer: issuer.directory.clone(),
        url: order.url.clone(),
        names: subject.names.clone(),
        key: key.clone(),
    };
    let (storage, name) = (means.storage.clone(), subject.name().to_owned());
    unblock(move || storage.put_pending(&name, &pending))?;
    let chain = order::finalize(&mut client, &order, &request)?;
    store(subject, means, Stored { key, chain })
}

/// The time in which the issuer wants the certificate to be renewed. `None` if it has no opinion.
///
/// # Suspends
/// Until the issuer has answered.
///
/// # Errors
/// When it cannot be reached.
pub fn window(issuer: &Issuer, means: &Means, id: &str) -> Result<Option<Window>, Error> {
    let transport = (means.connect)(issuer).map_err(Error::Failed)?;
    let directory = Directory::fetch(&*transport, &issuer.directory)?;
    let Some(base) = directory.renewal_info else {
        return Ok(None);
    };
    let url = format!("{}/{id}", base.trim_end_matches('/'));
    let received = transport.send("GET", &url, None)?;
    if received.status != 200 {
        return Ok(None);
    }
    let body = received.json()?;
    let time = |name: &str| seconds(&body["suggestedWindow"][name]);
    Ok(time("start")
        .zip(time("end"))
        .map(|(begins, ends)| Window { begins, ends }))
}

/// Seconds since 1970 of a date as RFC 3339 writes it.
fn seconds(date: &Value) -> Option<i64> {
    let date = OffsetDateTime::parse(date.as_str()?, &Rfc3339).ok()?;
    Some(date.unix_timestamp())
}

fn store(subject: &Subject, means: &Means, stored: Stored) -> Result<Stored, Error> {
    if read(&stored.chain).is_none() || !subject.is_served_by(&stored) {
        return Err(Error::Malformed(
            "a certificate that is not for the names of the order".into(),
        ));
    }
    // It would replace one that works.
    if let Err(error) = Identity::from_pem(stored.chain.as_bytes(), stored.key.as_bytes()) {
        return Err(Error::Malformed(format!(
            "a certificate that cannot be served: {error}"
        )));
    }
    let (storage, name, copy) = (means.storage.clone(), subject.name().to_owned(), stored.clone());
    unblock(move || storage.put_certificate(&name, &copy))?;
    Ok(stored)
}

/// A new key in PEM, and the request that its public key be certified, in DER.
fn request(names: &[String]) -> Result<(String, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    // Clients look at the alternative names only.
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

/// Works on the state folder on the blocking pool.
fn unblock<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Error> {
    let done = osier::shield(|| osier::unblock(work));
    done.map_err(|error| Error::Failed(format!("the state folder: {error}")))
}
