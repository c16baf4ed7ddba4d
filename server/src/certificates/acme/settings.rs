//! The settings of the ACME client, as plain data that can be compared.

use std::path::PathBuf;

use super::jose::Binding;
use super::order::Kind;

/// The directory of Let's Encrypt, the default issuer.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The default of the most orders on demand in a minute. Let's Encrypt admits 300 orders of an account in three hours.
const ORDERS_PER_MINUTE: u32 = 10;

/// The issuers with a name in the configuration, and their directories.
pub const KNOWN: [(&str, &str); 4] = [
    ("letsencrypt", LETS_ENCRYPT),
    (
        "letsencrypt-staging",
        "https://acme-staging-v02.api.letsencrypt.org/directory",
    ),
    ("google", "https://dv.acme-v02.api.pki.goog/directory"),
    ("zerossl", "https://acme.zerossl.com/v2/DV90"),
];

/// The names of the known issuers that require a binding.
pub const BINDING: [&str; 2] = ["google", "zerossl"];

/// A certificate authority with an ACME directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The URL of its directory.
    pub directory: String,
    pub binding: Option<Binding>,
    /// The file with the authorities that sign the certificate of the issuer's own server. None for those that the
    /// system trusts.
    pub ca: Option<PathBuf>,
}

/// How the certificate of a site is obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Asked in this order. At least one.
    pub issuers: Vec<Issuer>,
    /// The address for the issuer's warnings.
    pub email: Option<String>,
    /// A kind of certificate that the issuer offers.
    pub profile: Option<String>,
    /// The proofs that may be given, the best one first. Empty for those that the listeners of the site allow.
    pub kinds: Vec<Kind>,
    /// The program that sets and removes DNS records.
    pub dns: Option<PathBuf>,
    /// The URL that says whether a name that no site lists may have a certificate.
    pub ask: Option<String>,
    /// The most orders of such names in a minute.
    pub orders_per_minute: u32,
}

impl Issuer {
    /// An issuer without a binding, whose server the system trusts.
    pub fn new(directory: &str) -> Issuer {
        Issuer {
            directory: directory.to_owned(),
            binding: None,
            ca: None,
        }
    }

    /// Whether it signs names that the public can look up.
    pub fn is_public(&self) -> bool {
        KNOWN.iter().any(|(_, known)| *known == self.directory)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            issuers: vec![Issuer::new(LETS_ENCRYPT)],
            email: None,
            profile: None,
            kinds: Vec::new(),
            dns: None,
            ask: None,
            orders_per_minute: ORDERS_PER_MINUTE,
        }
    }
}
