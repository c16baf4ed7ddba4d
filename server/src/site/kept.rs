//! The parts of the old snapshot that each scope of a new one keeps.
//!
//! A scope first gets the parts that are its own: those of an equal scope, then those of the same hosts and conditions on a listener in
//! common, then those of the same conditions with a host and a listener in common. This is done for every scope of the new file before the
//! first part is taken. The parts of scopes that are gone remain for others, the nearest one first, if their kind may cross sites
//! and routes. Chats and what limits clients may not: their members would meet strangers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Config, Host, Route, Site};
use crate::handler::Match;

/// The owner of a part: a site, or one of its routes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    pub site: Arc<SiteScope>,
    pub route: Option<Match>,
}

/// A site as the owner of parts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SiteScope {
    /// Their names.
    listeners: Vec<String>,
    pub hosts: Vec<Host>,
    is_default: bool,
}

impl Scope {
    /// The scope of a site itself.
    pub fn of(config: &Config, site: &Site) -> Scope {
        let listeners = site.listeners.iter().map(|&listener| &config.listeners[listener]);
        let site = SiteScope {
            listeners: listeners.map(|listener| listener.name.clone()).collect(),
            hosts: site.hosts.clone(),
            is_default: site.default,
        };
        Scope {
            site: Arc::new(site),
            route: None,
        }
    }

    /// The scope of a route of this site.
    pub fn route(&self, route: &Route) -> Scope {
        Scope {
            site: Arc::clone(&self.site),
            route: Some(route.matches.clone()),
        }
    }

    /// The hosts of the site and the conditions of the route as text. `with_listeners` tells sites with equal hosts apart.
    pub fn name(&self, with_listeners: bool) -> String {
        let hosts: Vec<String> = self.site.hosts.iter().map(Host::to_string).collect();
        let hosts = hosts.join(",");
        let of_route = self
            .route
            .iter()
            .flat_map(|route| route.path.iter().chain(&route.globs).chain(&route.methods));
        let listeners = self.site.listeners.iter().filter(|_| with_listeners);
        let conditions: Vec<&str> = of_route.map(String::as_str).collect();
        let before: String = listeners.map(|listener| format!("{listener} ")).collect();
        // A route without conditions leaves the blank, as processes before this one do.
        format!("{before}{hosts} {}", conditions.join(" "))
    }
}

impl SiteScope {
    fn shares_listener(&self, other: &SiteScope) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| other.listeners.contains(listener))
    }

    fn common_hosts(&self, other: &SiteScope) -> usize {
        self.hosts.iter().filter(|host| other.hosts.contains(host)).count()
    }
}

/// A part with its scope and the settings that it was made with.
pub struct Part<K, V> {
    pub scope: Scope,
    pub key: K,
    pub value: V,
}

impl<K: Clone, V: Clone> Part<K, V> {
    pub fn new(scope: &Scope, key: &K, value: &V) -> Part<K, V> {
        Part {
            scope: scope.clone(),
            key: key.clone(),
            value: value.clone(),
        }
    }
}

/// The parts of one kind in the old snapshot. Each is taken at most once.
pub struct Kept<'o, K, V> {
    parts: &'o [Part<K, V>],
    /// The numbers of the parts that are a scope's own and not taken yet, in order.
    own: HashMap<Scope, Vec<usize>>,
    /// Whether a part is a scope's own, or taken.
    given: Vec<bool>,
}

impl<'o, K: PartialEq, V: Clone> Kept<'o, K, V> {
    /// Gives every scope its own parts. `wanted` has the scopes of the new file with the keys of their parts, in order.
    pub fn new(parts: &'o [Part<K, V>], mut wanted: Vec<(Scope, K)>) -> Self {
        let mut at: HashMap<_, Vec<usize>> = HashMap::new();
        let mut by_host: HashMap<_, Vec<usize>> = HashMap::new();
        for (number, Part { scope, .. }) in parts.iter().enumerate() {
            at.entry((&scope.site.hosts, &scope.route)).or_default().push(number);
            for host in &scope.site.hosts {
                by_host.entry((host, &scope.route)).or_default().push(number);
            }
        }
        let (mut own, mut given) = (HashMap::<Scope, Vec<usize>>::new(), vec![false; parts.len()]);
        // Whether the sites must be equal, and whether their hosts must.
        for (are_equal, have_equal_hosts) in [(true, true), (false, true), (false, false)] {
            wanted.retain(|(scope, key)| {
                let with = |host| by_host.get(&(host, &scope.route)).into_iter().flatten();
                let fits = |number: &&usize| {
                    let part = &parts[**number];
                    let (site, old) = (&scope.site, &part.scope.site);
                    let are_alike = site == old || (!are_equal && old.shares_listener(site));
                    !given[**number] && are_alike && part.key == *key
                };
                let found = match have_equal_hosts {
                    true => at
                        .get(&(&scope.site.hosts, &scope.route))
                        .into_iter()
                        .flatten()
                        .find(fits),
                    false => scope.site.hosts.iter().flat_map(with).find(fits),
                };
                if let Some(&number) = found {
                    given[number] = true;
                    own.entry(scope.clone()).or_default().push(number);
                }
                found.is_none()
            });
        }
        Kept { parts, own, given }
    }

    /// Takes a part with this key: one of `scope` itself, or else, if it `crosses`, the nearest one that no scope owns. All parts are compared only
    /// if `scope` has none of its own, so a reload that changes little compares little.
    pub fn take(&mut self, scope: &Scope, key: &K, crosses: bool) -> Option<V> {
        let fits = |number: &usize| self.parts[*number].key == *key;
        let own = self.own.get_mut(scope).and_then(|own| {
            let at = own.iter().position(fits)?;
            Some(own.remove(at))
        });
        let number = own.or_else(|| {
            let nearness = |number: &usize| {
                let Scope { site, route } = &self.parts[*number].scope;
                let has_name = site.hosts.first() == scope.site.hosts.first();
                let common = site.common_hosts(&scope.site);
                (*route == scope.route, has_name, common, Reverse(*number))
            };
            let free = (0..self.parts.len()).filter(|number| !self.given[*number]);
            free.filter(|_| crosses).filter(fits).max_by_key(nearness)
        })?;
        self.given[number] = true;
        Some(self.parts[number].value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_on(listener: &str, host: &str, path: &str) -> Scope {
        let site = SiteScope {
            listeners: vec![listener.into()],
            hosts: Some(host)
                .filter(|host| !host.is_empty())
                .map(|host| Host::Exact(host.into()))
                .into_iter()
                .collect(),
            is_default: host.is_empty(),
        };
        Scope {
            site: Arc::new(site),
            route: Some(Match {
                path: Some(path.into()),
                globs: Vec::new(),
                methods: Vec::new(),
            }),
        }
    }

    fn scope(host: &str, path: &str) -> Scope {
        scope_on("80", host, path)
    }

    fn part<V>(scope: Scope, key: u8, value: V) -> Part<u8, V> {
        Part { scope, key, value }
    }

    #[test]
    fn the_nearest_part_with_equal_settings_is_kept_once() {
        let parts = [
            part(scope("a", "/x"), 1, "a/x"),
            part(scope("b", "/x"), 1, "b/x"),
            part(scope("a", "/y"), 1, "a/y"),
            part(scope("a", "/z"), 2, "a/z"),
            part(scope("a", "/x"), 1, "a/x again"),
        ];
        let mut kept = Kept::new(&parts, vec![(scope("a", "/x"), 1)]);
        assert_eq!(kept.take(&scope("a", "/x"), &1, true), Some("a/x"));
        assert_eq!(
            kept.take(&scope("a", "/x"), &2, true),
            Some("a/z"),
            "of this key there is only one"
        );
        assert_eq!(kept.take(&scope("c", "/x"), &1, false), None, "another site");
        assert_eq!(
            kept.take(&scope("c", "/x"), &1, true),
            Some("b/x"),
            "the same route, of the first site"
        );
        assert_eq!(kept.take(&scope("a", "/new"), &1, false), None, "another route");
        assert_eq!(kept.take(&scope("a", "/new"), &1, true), Some("a/y"), "the same site");
        assert_eq!(kept.take(&scope("c", "/new"), &1, true), Some("a/x again"));
        assert_eq!(kept.take(&scope("a", "/x"), &1, true), None);
    }

    #[test]
    fn a_scope_that_stays_keeps_its_part_whatever_stands_before_it() {
        let parts = [part(scope("b", "/x"), 1, "b/x")];
        let wanted = ["a", "b"].map(|host| (scope(host, "/x"), 1));
        let mut kept = Kept::new(&parts, wanted.to_vec());
        assert_eq!(kept.take(&scope("a", "/x"), &1, true), None);
        assert_eq!(kept.take(&scope("b", "/x"), &1, true), Some("b/x"));
    }

    #[test]
    fn sites_with_equal_hosts_are_told_apart_by_their_listeners() {
        for host in ["", "a"] {
            let parts = ["in", "out"].map(|listener| part(scope_on(listener, host, "/x"), 1, listener));
            for order in [["in", "out"], ["out", "in"]] {
                let mut kept = Kept::new(
                    &parts,
                    order.map(|listener| (scope_on(listener, host, "/x"), 1)).to_vec(),
                );
                let taken = order.map(|listener| kept.take(&scope_on(listener, host, "/x"), &1, false));
                assert_eq!(taken, order.map(Some), "{host:?}");
            }
            let moved = scope_on("new", host, "/x");
            let mut kept = Kept::new(&parts, vec![(moved.clone(), 1)]);
            assert_eq!(kept.take(&moved, &1, false), None, "there are none of its clients");
        }
        // The site of `in` gets an alias, and `out` the host.
        let parts = [part(scope_on("in", "a", "/x"), 1, "in")];
        let mut aliased = scope_on("in", "a", "/x");
        Arc::make_mut(&mut aliased.site).hosts.push(Host::Exact("alias".into()));
        let (new, other) = (scope_on("out", "a", "/x"), scope_on("in", "a", "/y"));
        let wanted = [&new, &other, &aliased].map(|scope| (scope.clone(), 1));
        let mut kept = Kept::new(&parts, wanted.to_vec());
        assert_eq!(kept.take(&new, &1, false), None);
        assert_eq!(kept.take(&other, &1, false), None);
        assert_eq!(kept.take(&aliased, &1, false), Some("in"));
        let names = ["in", "out"].map(|listener| scope_on(listener, "a", "/x").name(true));
        assert_eq!(names, ["in a /x", "out a /x"]);
        assert_eq!(scope("a", "/x").name(false), "a /x");
    }
}
