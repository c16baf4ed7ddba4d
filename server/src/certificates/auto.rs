//! The certificate of a site with `tls = "auto"`: whoever obtains one puts it here.

use std::sync::{Mutex, PoisonError};

use osier_tls::Identity;

use super::Source;

/// The certificate of a site, and the hosts that it has to be for.
pub struct Auto {
    hosts: Vec<String>,
    current: Mutex<Option<Identity>>,
}

impl Auto {
    pub fn new(hosts: Vec<String>) -> Auto {
        Auto {
            hosts,
            current: Mutex::default(),
        }
    }

    /// The hosts of the site as the file has them, wildcards among them.
    #[cfg_attr(not(test), expect(dead_code, reason = "the ACME client calls it"))]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Shows `identity` to clients from now on.
    #[cfg_attr(not(test), expect(dead_code, reason = "the ACME client calls it"))]
    pub fn replace(&self, identity: Identity) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }
}

impl Source for Auto {
    fn find(&self, _name: Option<&str>) -> Option<Identity> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::make::self_signed;
    use crate::certificates::x509::Time;

    #[test]
    fn an_identity_is_shown_once_it_is_there() {
        let auto = Auto::new(vec!["example.org".into()]);
        assert!(auto.find(Some("example.org")).is_none());
        auto.replace(self_signed(auto.hosts(), Time::now()).unwrap());
        assert!(auto.find(Some("example.org")).is_some());
    }
}
