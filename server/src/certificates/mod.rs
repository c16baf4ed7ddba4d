//! The certificates of sites.

pub mod inspect;
#[cfg(test)]
pub mod pem;
pub mod settings;
pub mod x509;
