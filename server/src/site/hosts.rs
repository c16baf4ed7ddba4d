//! Finds the site of a host: the exact name, then the longest matching `*.` name, then the default site.

use std::collections::HashMap;

use crate::config::Host;
use crate::handler::without_port;

/// Bytes of the longest name that is looked up, more than DNS allows. A longer host gets the default site.
const LONGEST: usize = 255;

/// The most exact names that are compared one by one, which takes less time than a hash.
const FEW: usize = 8;

/// The sites of one listener.
#[derive(Debug, Default)]
pub struct Hosts {
    exact: HashMap<Box<[u8]>, usize>,
    /// Sites by the text after the `*.`.
    below: HashMap<Box<[u8]>, usize>,
    default: Option<usize>,
}

impl Hosts {
    /// Adds a host of a site.
    pub fn add(&mut self, host: &Host, site: usize) {
        match host {
            Host::Exact(name) => self.exact.insert(name.as_bytes().into(), site),
            Host::Below(name) => self.below.insert(name.as_bytes().into(), site),
        };
    }

    /// Sets the default site.
    pub fn add_default(&mut self, site: usize) {
        self.default = Some(site);
    }

    /// The site for `host`, which may have a port. Allocates nothing.
    #[inline]
    pub fn find(&self, host: Option<&str>) -> Option<usize> {
        if self.exact.is_empty() && self.below.is_empty() {
            return self.default;
        }
        host.and_then(|host| self.find_named(without_port(host)))
            .or(self.default)
    }

    /// The only site of the listener, if there is only one.
    pub fn only(&self) -> Option<usize> {
        let mut sites = self.exact.values().chain(self.below.values()).chain(&self.default);
        let first = sites.next()?;
        sites.all(|site| site == first).then_some(*first)
    }

    /// The site of a name: the exact one, or that of the longest wildcard.
    fn find_named(&self, name: &str) -> Option<usize> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if self.exact.len() <= FEW {
            let mut names = self.exact.iter();
            let found = names.find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
            if found.is_some() || self.below.is_empty() {
                return found.map(|(_, site)| *site);
            }
        }
        let mut lower = [0; LONGEST];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name.as_bytes());
        lower.make_ascii_lowercase();
        let name = &*lower;
        if let Some(site) = self.exact.get(name) {
            return Some(*site);
        }
        if self.below.is_empty() {
            return None;
        }
        let mut rest = name;
        while let Some(dot) = rest.iter().position(|&byte| byte == b'.') {
            rest = &rest[dot + 1..];
            if let Some(site) = self.below.get(rest) {
                return Some(*site);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_one_site_has_only_that() {
        let mut hosts = Hosts::default();
        assert_eq!(hosts.only(), None);
        hosts.add(&Host::Exact("a".into()), 3);
        hosts.add(&Host::Below("a".into()), 3);
        assert_eq!(hosts.only(), Some(3));
        hosts.add_default(4);
        assert_eq!(hosts.only(), None);
    }

    #[test]
    fn many_names_are_found_as_few_are() {
        let mut hosts = Hosts::default();
        for site in 0..3 * FEW {
            hosts.add(&Host::Exact(format!("site{site}.org")), site);
            for other in 0..=site {
                assert_eq!(hosts.find(Some(&format!("SITE{other}.org:80"))), Some(other));
            }
            assert_eq!(hosts.find(Some("site.org")), None);
        }
    }

    #[test]
    fn exact_then_longest_then_default() {
        let mut hosts = Hosts::default();
        assert_eq!(hosts.find(Some("a")), None);
        for (site, host) in [
            Host::Exact("example.org".into()),
            Host::Below("example.org".into()),
            Host::Below("b.example.org".into()),
            Host::Exact("[::1]".into()),
        ]
        .iter()
        .enumerate()
        {
            hosts.add(host, site);
        }
        hosts.add_default(9);
        for (host, site) in [
            ("example.org", 0),
            ("EXAMPLE.org:8080", 0),
            ("example.org.", 0),
            ("a.example.org", 1),
            ("a.b.c.example.org", 1),
            ("a.b.example.org:1", 2),
            ("b.example.org", 1),
            ("notexample.org", 9),
            ("org", 9),
            ("[::1]:80", 3),
            ("[::1]", 3),
            ("[::2]:80", 9),
            ("", 9),
            (".", 9),
            (":80", 9),
        ] {
            assert_eq!(hosts.find(Some(host)), Some(site), "{host}");
        }
        assert_eq!(hosts.find(None), Some(9));
        assert_eq!(hosts.find(Some(&"a.".repeat(200))), Some(9));
    }
}
