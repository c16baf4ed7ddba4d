//! Finds what is wrong with the files of a certificate: validity, order of the chain, names, the key and its
//! permissions.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use osier_tls::Identity;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::x509::{AltName, Certificate, Time};

/// The last days of a certificate's validity, in which warnings say so.
const WARNING_DAYS: i64 = 14;
/// Bytes of the largest accepted file.
const FILE_MAX: u64 = 1 << 20;
/// The permission bit that lets every user read a file.
const READ_BY_OTHERS: u32 = 0o004;

/// The consequence of an unusable certificate for its site, for messages.
const MEANWHILE: &str = "the site keeps the certificate that it has, or serves a self-signed one";

/// The file that a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Cert,
    Key,
}

/// Reads the files of a certificate, and returns a message for each thing that is wrong with them. `shown` names a path
/// in messages.
///
/// # Blocks the thread
/// While the files are read.
pub fn inspect(
    cert: &Path,
    key: &Path,
    hosts: &[String],
    now: Time,
    shown: impl Fn(&Path) -> String,
) -> Vec<(Part, String)> {
    let mut found = Vec::new();
    let read_cert = read(cert, &shown).and_then(|pem| match chain(&pem) {
        Ok(chain) => Ok((chain, pem)),
        Err(why) => Err(format!("'{}' {why}", shown(cert))),
    });
    match &read_cert {
        Ok((chain, _)) => {
            let (name, leaf) = (shown(cert), &chain[0]);
            let texts = validity(leaf, now)
                .into_iter()
                .chain(order(chain))
                .chain(other_names(leaf, hosts));
            found.extend(texts.map(|text| (Part::Cert, format!("'{name}': {text}"))));
            if let Some(text) = without_issuer(cert, chain) {
                found.push((Part::Cert, format!("'{name}': {text}")));
            }
        }
        Err(why) => found.push((Part::Cert, format!("{why}; {MEANWHILE}"))),
    }
    let name = shown(key);
    match read(key, &shown) {
        Ok(pem) if PrivateKeyDer::from_pem_slice(&pem).is_ok() => {
            if let Ok((_, cert_pem)) = &read_cert
                && let Err(why) = Identity::from_pem(cert_pem, &pem)
            {
                let cert = shown(cert);
                let text = format!("'{name}' with the certificate '{cert}': {why}; {MEANWHILE}");
                found.push((Part::Key, text));
            }
        }
        Ok(pem) if is_encrypted(&pem) => found.push((
            Part::Key,
            format!(
                "'{name}': the private key is encrypted; {MEANWHILE}; remove the passphrase: openssl pkey -in '{name}' -out NEW"
            ),
        )),
        Ok(pem) if chain(&pem).is_ok() => {
            let text = format!("'{name}' holds a certificate and no private key; {MEANWHILE}");
            found.push((Part::Key, text));
            // A certificate may be read by everybody.
            return found;
        }
        Ok(_) => found.push((
            Part::Key,
            format!("'{name}' holds no private key in PEM form; {MEANWHILE}"),
        )),
        Err(why) => found.push((Part::Key, format!("{why}; {MEANWHILE}"))),
    }
    if let Some(text) = permissions(key) {
        found.push((Part::Key, format!("'{name}' {text}")));
    }
    found
}

/// Whether a key has a passphrase: PKCS#8, or the older form of OpenSSL.
fn is_encrypted(pem: &[u8]) -> bool {
    let pem = String::from_utf8_lossy(pem);
    pem.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || pem.contains("Proc-Type: 4,ENCRYPTED")
}

/// Reads a file. The error is one line.
fn read(path: &Path, shown: &impl Fn(&Path) -> String) -> Result<Vec<u8>, String> {
    let read = path
        .metadata()
        .and_then(|found| match found.is_file() && found.len() <= FILE_MAX {
            true => fs::read(path),
            false => Err(io::Error::other("it is not a file, or a very large one")),
        });
    let name = shown(path);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no file '{name}'"),
        io::ErrorKind::PermissionDenied => format!("this user may not read '{name}'"),
        _ => format!("'{name}' cannot be read: {error}"),
    })
}

/// The certificates of a file, at least one.
fn chain(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    let ders: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let ders = ders.map_err(|error| match error {
        pem::Error::MissingSectionEnd { .. } => "is not whole: it ends within a certificate".to_owned(),
        error => format!("is not a PEM file: {error}"),
    })?;
    if ders.is_empty() {
        let text = match PrivateKeyDer::from_pem_slice(pem).is_ok() || is_encrypted(pem) {
            true => "holds a private key and no certificate",
            false => "holds no certificate in PEM form",
        };
        return Err(text.into());
    }
    let parsed: Result<Vec<_>, _> = ders.iter().map(|der| Certificate::parse(der)).collect();
    parsed.map_err(|why| format!("cannot be read: {why}"))
}

/// The sentence about a certificate that is not valid now, or not for long.
pub fn validity(leaf: &Certificate, now: Time) -> Option<String> {
    if now < leaf.not_before {
        return Some(format!("the certificate is not valid before {}", leaf.not_before));
    }
    if now > leaf.not_after {
        return Some(format!("the certificate has expired on {}; renew it", leaf.not_after));
    }
    match leaf.not_after.days_since(now) {
        WARNING_DAYS.. => None,
        0 => Some(format!(
            "the certificate expires within a day, on {}; renew it",
            leaf.not_after
        )),
        days => Some(format!(
            "the certificate expires in {days} days, on {}; renew it",
            leaf.not_after
        )),
    }
}

/// The sentence about a chain in which a certificate is not followed by that of its issuer.
fn order(chain: &[Certificate]) -> Option<String> {
    if chain[0].is_ca && chain[1..].iter().any(|other| !other.is_ca) {
        return Some(
            "the site's own certificate must be the first of the file, before those of its authorities".into(),
        );
    }
    let broken = chain.windows(2).position(|pair| pair[0].issuer != pair[1].subject)?;
    Some(format!(
        "certificate {} is not that of the issuer of certificate {} ({}); put each issuer behind what it has signed",
        broken + 2,
        broken + 1,
        chain[broken].issuer
    ))
}

/// The sentence about hosts of the site that the certificate is not for.
fn other_names(leaf: &Certificate, hosts: &[String]) -> Option<String> {
    let missing: Vec<String> = hosts
        .iter()
        .filter(|host| !leaf.is_for(host))
        .map(|host| format!("'{host}'"))
        .collect();
    let names: Vec<String> = leaf.names.iter().map(AltName::to_string).collect();
    let names = match names.is_empty() {
        true => "no name at all".to_owned(),
        false => names.join(", "),
    };
    (!missing.is_empty()).then(|| format!("the certificate is not for {}, but for {names}", missing.join(", ")))
}

/// The sentence about a file without the issuer's certificate. certbot writes such a `cert.pem` beside `fullchain.pem`.
fn without_issuer(path: &Path, chain: &[Certificate]) -> Option<String> {
    let full = path.with_file_name("fullchain.pem");
    let leaf = &chain[0];
    if chain.len() > 1 || leaf.issuer == leaf.subject {
        return None;
    }
    let remedy = match *path != full && full.is_file() {
        true => "use 'fullchain.pem' beside it".to_owned(),
        // An authority names this place where it signs by an intermediate certificate, and some roots do.
        false => format!("append it; it is at {}", leaf.issuer_at.as_ref()?),
    };
    Some(format!(
        "it holds the site's certificate alone, and clients that do not have that of its issuer, {}, refuse it: {remedy}",
        leaf.issuer
    ))
}

/// The sentence about a key that everybody may read.
pub fn permissions(key: &Path) -> Option<String> {
    let mode = key.metadata().ok()?.permissions().mode();
    (mode & READ_BY_OTHERS != 0).then(|| {
        format!(
            "can be read by every user of this machine (mode {:04o}): chmod o-r",
            mode & 0o7777
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::pem;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use testkit::Folder;

    const DAY: i64 = 86_400;

    /// A root, an intermediate authority, and a leaf for `*.example.org`, and the key of the leaf.
    fn chain_of_three() -> ([String; 3], String) {
        let key = || KeyPair::generate().unwrap();
        let authority = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
        };
        let (root_key, middle_key, leaf_key) = (key(), key(), key());
        let root = authority("root").self_signed(&root_key).unwrap();
        let root_signs = Issuer::new(authority("root"), root_key);
        let middle = authority("middle").signed_by(&middle_key, &root_signs).unwrap();
        let middle_signs = Issuer::new(authority("middle"), middle_key);
        let mut params = CertificateParams::new(["*.example.org".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 1);
        let leaf = params.signed_by(&leaf_key, &middle_signs).unwrap();
        let block = |der: &[u8]| pem::block("CERTIFICATE", der);
        let pems = [block(leaf.der()), block(middle.der()), block(root.der())];
        (pems, pem::block("PRIVATE KEY", leaf_key.serialized_der()))
    }

    fn texts(folder: &Folder, hosts: &[&str], days: i64) -> Vec<String> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        // From 2026-01-01.
        let now = Time(1_767_225_600 + days * DAY);
        let name = |path: &Path| path.file_name().unwrap().display().to_string();
        let found = inspect(&folder.join("c.pem"), &folder.join("k.pem"), &hosts, now, name);
        found.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn each_trouble_has_its_sentence() {
        let folder = Folder::new();
        let ([leaf, middle, root], key) = chain_of_three();
        let mode = |mode| fs::set_permissions(folder.join("k.pem"), fs::Permissions::from_mode(mode)).unwrap();
        folder.write("c.pem", leaf.clone() + &middle);
        folder.write("k.pem", &key);
        mode(0o640);
        let fine: [String; 0] = [];
        assert_eq!(texts(&folder, &["a.example.org", "*.example.org"], 75), fine);
        assert_eq!(
            texts(&folder, &["example.org", "a.example.org", "a.b.example.org"], 80),
            [
                "'c.pem': the certificate expires in 10 days, on 2026-04-01; renew it",
                "'c.pem': the certificate is not for 'example.org', 'a.b.example.org', but for *.example.org",
            ]
        );
        assert_eq!(
            texts(&folder, &[], 91),
            ["'c.pem': the certificate has expired on 2026-04-01; renew it"]
        );
        assert_eq!(
            texts(&folder, &[], -1),
            ["'c.pem': the certificate is not valid before 2026-01-01"]
        );
        mode(0o644);
        assert_eq!(
            texts(&folder, &[], 1),
            ["'k.pem' can be read by every user of this machine (mode 0644): chmod o-r"]
        );
        mode(0o600);
        folder.write("c.pem", leaf.clone() + &root);
        assert_eq!(
            texts(&folder, &[], 1),
            [
                "'c.pem': certificate 2 is not that of the issuer of certificate 1 (CN=middle); put each issuer behind what it \
                 has signed"
            ]
        );
        folder.write("c.pem", middle.clone() + &leaf);
        assert!(
            texts(&folder, &[], 1)[0].contains("must be the first"),
            "{:?}",
            texts(&folder, &[], 1)
        );
        folder.write("c.pem", &leaf);
        folder.write("fullchain.pem", leaf + &middle + &root);
        assert!(texts(&folder, &[], 1)[0].ends_with("use 'fullchain.pem' beside it"));
    }

    #[test]
    fn a_certificate_whose_issuer_is_elsewhere_needs_that_of_its_issuer() {
        const URL: &[u8] = b"http://issuer.example/middle.der";
        let folder = Folder::new();
        // AuthorityInfoAccess: one place of the issuer's certificate (RFC 5280 section 4.2.2.1).
        let place = [
            b"\x06\x08\x2b\x06\x01\x05\x05\x07\x30\x02\x86",
            &[URL.len() as u8][..],
            URL,
        ]
        .concat();
        let length = place.len() as u8;
        let access = [&[0x30, length + 2, 0x30, length][..], &place].concat();
        let mut params = CertificateParams::new(["a.example.org".to_owned()]).unwrap();
        params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 5, 5, 7, 1, 1],
            access,
        )];
        let (issuer_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut issuer = CertificateParams::default();
        issuer.distinguished_name.push(rcgen::DnType::CommonName, "middle");
        let middle = issuer.self_signed(&issuer_key).unwrap().pem();
        let leaf = params.signed_by(&key, &Issuer::new(issuer, issuer_key)).unwrap().pem();
        folder.write("k.pem", key.serialize_pem());
        fs::set_permissions(folder.join("k.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        folder.write("c.pem", &leaf);
        assert_eq!(
            texts(&folder, &[], 1),
            [
                "'c.pem': it holds the site's certificate alone, and clients that do not have that of its issuer, CN=middle, refuse it: \
                 append it; it is at http://issuer.example/middle.der"
            ]
        );
        folder.write("c.pem", leaf.clone() + &middle);
        assert_eq!(texts(&folder, &[], 1), [""; 0]);
        folder.write("c.pem", &leaf[..leaf.len() - 30]);
        assert_eq!(
            texts(&folder, &[], 1),
            [format!(
                "'c.pem' is not whole: it ends within a certificate; {MEANWHILE}"
            )]
        );
    }

    #[test]
    fn exchanged_files_are_named_as_what_they_are() {
        let folder = Folder::new();
        let ([leaf, ..], key) = chain_of_three();
        folder.write("c.pem", key);
        folder.write("k.pem", leaf);
        // A certificate need not be a secret.
        fs::set_permissions(folder.join("k.pem"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(
            texts(&folder, &[], 1),
            [
                format!("'c.pem' holds a private key and no certificate; {MEANWHILE}"),
                format!("'k.pem' holds a certificate and no private key; {MEANWHILE}"),
            ]
        );
    }

    #[test]
    fn files_without_a_certificate() {
        let folder = Folder::new();
        assert_eq!(
            texts(&folder, &[], 1),
            [
                format!("there is no file 'c.pem'; {MEANWHILE}"),
                format!("there is no file 'k.pem'; {MEANWHILE}"),
            ]
        );
        folder.write(
            "c.pem",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        );
        folder.write("k.pem", "secret");
        fs::set_permissions(folder.join("k.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(
            texts(&folder, &[], 1),
            [
                format!("'c.pem' cannot be read: it is not an X.509 certificate; {MEANWHILE}"),
                format!("'k.pem' holds no private key in PEM form; {MEANWHILE}"),
            ]
        );
        for (label, lines) in [
            ("ENCRYPTED PRIVATE KEY", ""),
            (
                "RSA PRIVATE KEY",
                "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n",
            ),
        ] {
            folder.write(
                "k.pem",
                format!("-----BEGIN {label}-----\n{lines}AAAA\n-----END {label}-----\n"),
            );
            assert_eq!(
                texts(&folder, &[], 1)[1],
                format!(
                    "'k.pem': the private key is encrypted; {MEANWHILE}; remove the passphrase: openssl pkey -in 'k.pem' -out NEW"
                ),
                "{label}"
            );
        }
        folder.write("c.pem", "");
        assert_eq!(
            texts(&folder, &[], 1)[0],
            format!("'c.pem' holds no certificate in PEM form; {MEANWHILE}")
        );
    }
}
