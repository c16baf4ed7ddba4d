//! Certificates for tests, made when a test needs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::Folder;

/// An authority, and its certificate in PEM form.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Signs a certificate for some names. Returns it and its key in PEM form.
    pub fn sign(&self, names: &[&str]) -> (String, String) {
        self.sign_with(names, |_| {})
    }

    pub fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    /// Writes a certificate and its key to `NAME.pem` and `NAME.key`.
    pub fn write(&self, folder: &Folder, name: &str, hosts: &[&str]) {
        let (cert, key) = self.sign(hosts);
        write(folder, name, &cert, &key);
    }
}

/// Writes `NAME.pem` and `NAME.key`, which only its owner may read.
pub fn write(folder: &Folder, name: &str, cert: &str, key: &str) {
    folder.write(format!("{name}.key"), key);
    fs::set_permissions(folder.join(format!("{name}.key")), Permissions::from_mode(0o600)).unwrap();
    folder.write(format!("{name}.pem"), cert);
}
