//! The internal authority: it signs certificates for development when they are needed.
//!
//! Its key and its certificate are one file of the state folder, so they always belong together. The process that
//! writes that file first makes the authority; others read it. `root.pem` beside it holds the certificate alone, for
//! the trust stores of clients. The certificates that the authority signs are kept in memory only.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use osier_tls::Identity;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::log::operator::Say;

use super::make::{self, LEAF_DAYS, Signer};
use super::pem;
use super::state;
use super::x509::{Certificate, Time};
use super::{Source, locked};

/// The folder of the authority in the state folder, the file with its key and certificate, and that with the
/// certificate alone.
const FOLDER: &str = "internal";
const BOTH: &str = "authority.pem";
const ROOT: &str = "root.pem";

/// The most certificates of one site. A default site gets one for each name that clients ask for.
const KEPT: usize = 1000;

/// Further names in the certificate for clients that ask for no name: those of this machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Removes the temporary files that killed processes have left in a state folder.
///
/// # Suspends
/// While the disk is busy.
pub fn remove_abandoned(state: &Path) {
    state::remove_abandoned(&state.join(FOLDER), &["pem"]);
}

/// The path of the root certificate in a state folder.
pub fn root_of(state: &Path) -> PathBuf {
    state.join(FOLDER).join(ROOT)
}

/// The authority, ready to sign.
pub struct Authority {
    signer: Signer,
}

impl Authority {
    /// Opens the authority of a state folder, or makes it.
    ///
    /// # Errors
    /// One line: what cannot be read or written.
    ///
    /// # Blocks the thread
    /// While the disk is busy.
    pub fn open(state: &Path, say: &Say) -> Result<Authority, String> {
        let folder = state.join(FOLDER);
        let both = folder.join(BOTH);
        let cannot = |what: &str, path: &Path, error| format!("cannot {what} '{}': {error}", path.display());
        if !both.exists() {
            state::make_folder(&folder).map_err(|error| cannot("make", &folder, error))?;
            let (certificate, key) = make::authority(Time::now())?;
            let key = pem::block("PRIVATE KEY", key.serialized_der());
            let text = key + &pem::block("CERTIFICATE", &certificate);
            if state::write_new(&both, text.as_bytes()).map_err(|error| cannot("write", &both, error))? {
                say.info(format_args!(
                    "made an internal authority in '{}'; 'osier trust' says how browsers learn to trust it",
                    folder.display()
                ));
            }
        }
        let text = fs::read(&both).map_err(|error| cannot("read", &both, error))?;
        let (signer, certificate) = parse(&text).ok_or_else(|| {
            format!(
                "'{}' is damaged: remove it, and a new authority is made",
                both.display()
            )
        })?;
        check_validity(&certificate, &both, Time::now(), say);
        let (root, certificate) = (folder.join(ROOT), pem::block("CERTIFICATE", &certificate));
        if fs::read(&root).ok().as_deref() != Some(certificate.as_bytes()) {
            state::write(&root, certificate.as_bytes()).map_err(|error| cannot("write", &root, error))?;
        }
        Ok(Authority { signer })
    }
}

/// Says if an authority has run out, or was made while the clock was wrong. It is not replaced: the clock may be wrong
/// now, and clients trust it.
fn check_validity(certificate: &[u8], path: &Path, now: Time, say: &Say) {
    let Ok(read) = Certificate::parse(certificate) else {
        return;
    };
    let (begins, ends) = (read.not_before, read.not_after);
    if now < begins || now >= ends {
        say.error(format_args!(
            "the internal authority in '{}' is valid from {begins} to {ends}, and today is {now}, so CLIENTS REFUSE ITS \
             CERTIFICATES: if the clock of this machine is right, remove the file and restart the server, which makes \
             another one",
            path.display()
        ));
    }
}

/// Reads the key and the certificate of an authority. None if they are damaged, or do not belong together.
fn parse(text: &[u8]) -> Option<(Signer, Vec<u8>)> {
    let key = PrivateKeyDer::from_pem_slice(text).ok()?;
    let key = KeyPair::from_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).ok()?;
    let certificate = CertificateDer::from_pem_slice(text).ok()?;
    let read = Certificate::parse(&certificate).ok()?;
    let name = read.subject.common_name()?;
    let belongs = read.is_ca && read.public_key == key.subject_public_key_info();
    belongs.then(|| (make::signer(name, key), certificate.to_vec()))
}

/// The certificates of one site.
pub struct Internal {
    authority: Arc<Authority>,
    /// The hosts of the site, for clients that ask for no name.
    hosts: Vec<String>,
    /// Certificates by the name that clients ask for, and when they were made.
    made: Mutex<HashMap<String, (Identity, Time)>>,
}

impl Internal {
    /// The certificates of a site with these hosts. None is made yet.
    pub fn new(authority: Arc<Authority>, hosts: Vec<String>) -> Internal {
        Internal {
            authority,
            hosts,
            made: Mutex::default(),
        }
    }

    /// The certificate for a name, made anew after two thirds of its time.
    fn find_at(&self, name: Option<&str>, now: Time) -> Option<Identity> {
        let mut made = locked(&self.made);
        let key = name.unwrap_or_default();
        if let Some((identity, since)) = made.get(key)
            && now.days_since(*since) < LEAF_DAYS * 2 / 3
            && now >= *since
        {
            return Some(identity.clone());
        }
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => self.hosts.iter().cloned().chain(LOCAL.map(String::from)).collect(),
        };
        let identity = make::signed(&names, &self.authority.signer, now).ok()?;
        if made.len() >= KEPT {
            made.clear();
        }
        made.insert(key.to_owned(), (identity.clone(), now));
        Some(identity)
    }
}

impl Source for Internal {
    fn find(&self, name: Option<&str>) -> Option<Identity> {
        self.find_at(name, Time::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use testkit::Folder;

    fn leaf(identity: &Identity) -> Certificate {
        Certificate::parse(identity.chain().next().unwrap()).unwrap()
    }

    fn site(authority: Authority) -> Internal {
        Internal::new(
            Arc::new(authority),
            vec!["example.test".into(), "*.example.test".into()],
        )
    }

    #[test]
    fn the_authority_outlives_the_process() {
        let folder = Folder::new();
        let quiet = Say::new(|_| {});
        let first = site(Authority::open(folder.path(), &quiet).unwrap());
        let again = site(Authority::open(folder.path(), &quiet).unwrap());
        let root = CertificateDer::from_pem_slice(&fs::read(root_of(folder.path())).unwrap()).unwrap();
        let root = Certificate::parse(&root).unwrap();
        for site in [first, again] {
            let leaf = leaf(&site.find(Some("example.test")).unwrap());
            assert_eq!(leaf.issuer, root.subject);
            assert!(leaf.is_for("example.test") && !leaf.is_ca && root.is_ca);
        }
        let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("internal"), mode("internal/authority.pem")), (0o700, 0o600));
        folder.write("internal/authority.pem", "nothing");
        let why = Authority::open(folder.path(), &quiet).err().unwrap();
        assert!(
            why.ends_with("is damaged: remove it, and a new authority is made"),
            "{why}"
        );
    }

    #[test]
    fn an_authority_that_has_run_out_is_told() {
        // It was made by a machine whose clock began in 1970.
        let (certificate, key) = make::authority(Time(86_400)).unwrap();
        let text = pem::block("PRIVATE KEY", key.serialized_der()) + &pem::block("CERTIFICATE", &certificate);
        let folder = Folder::new();
        folder.write("internal/authority.pem", &text);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let open = || {
            let lines = lines.clone();
            let say = Say::new(move |line| locked(&lines).push(line.text.to_string()));
            Authority::open(folder.path(), &say).unwrap()
        };
        open();
        let told = locked(&lines).pop().unwrap();
        assert!(told.contains("authority.pem' is valid from 1970-01-01"), "{told}");
        assert!(locked(&lines).is_empty());
        fs::remove_dir_all(folder.join("internal")).unwrap();
        open();
        open();
        let lines = locked(&lines);
        assert!(
            lines.len() == 1 && lines[0].starts_with("made an internal authority"),
            "{lines:?}"
        );
    }

    #[test]
    fn certificates_are_kept_until_two_thirds_of_their_time() {
        let folder = Folder::new();
        let site = site(Authority::open(folder.path(), &Say::new(|_| {})).unwrap());
        let now = Time::now();
        let at = |days: i64| leaf(&site.find_at(None, Time(now.0 + days * 86_400)).unwrap());
        let first = at(0);
        for name in ["localhost", "127.0.0.1", "[::1]", "example.test", "a.example.test"] {
            assert!(first.is_for(name), "{name}");
        }
        assert_eq!(first.serial, at(19).serial);
        assert_ne!(first.serial, at(20).serial);
        let one = site.find(None).unwrap();
        for number in 0..KEPT + 5 {
            locked(&site.made).insert(number.to_string(), (one.clone(), now));
        }
        site.find(Some("another.test")).unwrap();
        assert!(locked(&site.made).len() <= KEPT);
    }
}
