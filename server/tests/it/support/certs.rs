//! Certificates for tests, made when a test needs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, date_time_ymd,
};

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

    /// A list of revoked certificates with this serial number, which is to be replaced at the beginning of the year `next`.
    pub fn revoke(&self, serial: u64, next: i32) -> String {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(next, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
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
