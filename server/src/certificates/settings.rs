//! The origins of certificates, as plain data that can be compared.

use std::path::PathBuf;

use super::acme::settings::Settings;

/// The origin of a site's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateFrom {
    /// Two files, which somebody else renews.
    Files(CertificateFiles),
    /// The internal authority, for development.
    Internal,
    /// A public authority, by ACME.
    Auto(Box<Settings>),
    /// A public authority, for the names that clients ask for.
    OnDemand,
}

/// The files of a certificate, named as seen from outside of a changed root folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}
