//! Builds a [`Snapshot`] from a checked configuration, and keeps the unchanged parts of the old snapshot.
//!
//! A handler is kept when its settings are equal and, for files, its folder is still the same folder. The best candidate is the
//! handler at the same route of the same site. Each old handler is taken at most once, so two routes with separate chat rooms or
//! connection pools never share them later. Rates are kept by the same rule. Parts that are cheap to make, or that read a file
//! (passwords, error pages, fixed responses, rewrites), are made again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use globset::GlobSet;
use osier_web::compress::{self, Compress};
use osier_web::wrap::cache::{Store, StoreOptions};
use osier_web::wrap::forward_auth::ForwardAuth;
use osier_web::wrap::queue::Queue;

use crate::certificates::Certificates;
use crate::config::{self, Bind, Config, Log, Policies, Setting};
use crate::handler::{self, Handler, Match, Opened};
use crate::log::access::AccessLog;
use crate::log::operator::Say;
use crate::metrics::{Admin, Gateway, ROUTES_MAX, Routes, Shown};
use crate::policy::access::Access;
use crate::policy::auth::{self, Auth, Trouble};
use crate::policy::cache;
use crate::policy::cors::Cors;
use crate::policy::forward_auth;
use crate::policy::jwt::{self, Tokens};
use crate::policy::prefixes::Prefixes;
use crate::policy::rate::{self, Rate};

use super::cached::Cached;
use super::hosts::Hosts;
use super::policies::{Around, ErrorPage};
use super::to_https::ToHttps;
use super::{LOG_BITS, Route, Site, Snapshot};

/// The parts of a snapshot that the next one may keep.
#[derive(Default)]
pub struct Parts {
    handlers: Vec<Part<HandlerKey, Opened>>,
    rates: Vec<Part<rate::Options, Arc<Rate>>>,
    /// Open stores of caches.
    stores: Vec<(StoreOptions, Arc<Store>)>,
    /// Open logs with their settings and the label that requests carry.
    logs: Vec<(Log, u32, Option<Arc<AccessLog>>)>,
    next_label: u32,
}

/// Two handlers with the same are the same: settings, folder, whether files are compressed.
type HandlerKey = (handler::HandlerSettings, Identity, Option<compress::Options>);

/// None when it is off.
type Compressed<'a> = Option<&'a compress::Options>;

/// The folder that a path named: its device and inode.
type Identity = Option<(u64, u64)>;

impl Parts {
    /// The stores of responses.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.stores.iter().map(|(_, store)| store)
    }

    /// The handlers that a reload may keep.
    pub fn handlers(&self) -> impl Iterator<Item = &Arc<dyn Handler>> {
        self.handlers.iter().filter_map(|part| part.value.handler())
    }
}

struct Part<K, V> {
    place: Place,
    key: K,
    value: V,
}

/// The position of a part in a configuration.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    /// Host names of the site.
    site: Vec<config::Host>,
    route: Option<Match>,
}

impl Place {
    /// The hosts and the conditions as text.
    fn name(&self) -> String {
        let hosts: Vec<String> = self.site.iter().map(config::Host::to_string).collect();
        let of_route = self
            .route
            .iter()
            .flat_map(|route| route.path.iter().chain(&route.globs).chain(&route.methods));
        let parts: Vec<&str> = of_route.map(String::as_str).collect();
        format!("{} {}", hosts.join(","), parts.join(" "))
    }
}

/// Resources of the server that snapshots share.
#[derive(Clone)]
pub struct Means {
    pub handlers: handler::Means,
    /// The counters of requests, if `[admin]` is configured.
    pub admin: Option<Arc<Admin>>,
    pub certificates: Arc<Certificates>,
}

impl Means {
    /// Shows the routes and backends of a snapshot in the metrics.
    pub fn show(&self, snapshot: &Snapshot) {
        if let (Some(admin), Some(shown)) = (&self.admin, snapshot.shown()) {
            admin.show(shown);
        }
    }
}

struct Builder<'o> {
    old: &'o Parts,
    old_handlers: Kept<'o, HandlerKey, Opened>,
    old_rates: Kept<'o, rate::Options, Arc<Rate>>,
    new: Parts,
    means: &'o Means,
    /// The routes of the old snapshot in the metrics.
    old_routes: Option<&'o Routes>,
    /// None without `[admin]`.
    shown: Option<Shown>,
}

/// Builds a snapshot. `slots` holds the number of each listener of the configuration.
///
/// # Blocks the thread
/// While files are read.
///
/// # Errors
/// One line: what could not be opened although it was there when the file was checked.
pub fn build(config: &Config, slots: &[usize], old: Option<&Snapshot>, means: &Means) -> Result<Snapshot, String> {
    let nothing = Parts::default();
    let old_routes = old.and_then(|old| Some(&old.shown()?.routes));
    let old = old.map_or(&nothing, |old| &old.parts);
    let mut builder = Builder {
        old,
        old_handlers: Kept::new(&old.handlers),
        old_rates: Kept::new(&old.rates),
        new: Parts {
            next_label: old.next_label,
            ..Parts::default()
        },
        means,
        old_routes,
        shown: means.admin.as_ref().map(|_| Shown {
            routes: Routes::new(means.handlers.workers, old_routes),
            gateways: Vec::new(),
            stores: Vec::new(),
        }),
    };
    // Requests without a label have the label 0.
    let default = builder.log(&config.log)?;
    let mut listeners: Vec<Option<Hosts>> = Vec::new();
    let mut real_ips = Vec::new();
    for (listener, &slot) in config.listeners.iter().zip(slots) {
        if real_ips.len() <= slot {
            real_ips.resize_with(slot + 1, || None);
        }
        real_ips[slot] = listener.real_ip.clone();
    }
    let mut sites = Vec::new();
    for (index, site) in config.sites.iter().enumerate() {
        for slot in site.listeners.iter().map(|&listener| slots[listener]) {
            if listeners.len() <= slot {
                listeners.resize_with(slot + 1, || None);
            }
            let hosts = listeners[slot].get_or_insert_with(Hosts::default);
            site.hosts.iter().for_each(|host| hosts.add(host, index));
            if site.default {
                hosts.add_default(index);
            }
        }
        sites.push(builder.site(config, site)?);
    }
    let mut logs: Vec<_> = builder
        .new
        .logs
        .iter()
        .map(|(_, label, log)| (*label, log.clone()))
        .collect();
    logs.push((
        0,
        builder
            .new
            .logs
            .iter()
            .find(|(_, label, _)| *label == default)
            .and_then(|(.., log)| log.clone()),
    ));
    // A request that began under the old configuration must still be logged. Logs that are older are dropped.
    for (log, label, open) in &old.logs {
        if !builder.new.logs.iter().any(|(known, ..)| known == log) {
            logs.push((*label, open.clone()));
        }
    }
    let beyond = builder.shown.as_ref().map_or(0, |shown| shown.routes.beyond());
    if beyond > 0 {
        means.handlers.say.warning(format_args!(
            "metrics: only {ROUTES_MAX} routes have series of their own; {beyond} more share the series of route \"other\""
        ));
    }
    if let Some(shown) = &mut builder.shown {
        shown.stores = builder.new.stores.iter().map(|(_, store)| Arc::clone(store)).collect();
    }
    Ok(Snapshot {
        listeners,
        real_ips,
        sites,
        logs,
        shown: builder.shown.map(Arc::new),
        certificates: Arc::clone(&means.certificates),
        asks_clients: config.listeners.iter().any(asks_clients),
        recorders: builder
            .new
            .handlers()
            .filter(|handler| handler.records())
            .cloned()
            .collect(),
        parts: builder.new,
    })
}

impl Builder<'_> {
    fn site(&mut self, config: &Config, site: &config::Site) -> Result<Site, String> {
        let pages = site.error_pages.iter().filter(|(_, path)| !handler::is_missing(path));
        let pages = pages.map(|(status, path)| {
            let (body, content_type) = handler::read_file(path)?;
            Ok(ErrorPage {
                status: *status,
                content_type: content_type.into_owned(),
                body: Arc::new(body),
            })
        });
        let errors: Arc<[ErrorPage]> = pages.collect::<Result<Vec<_>, String>>()?.into();
        let place = Place {
            site: site.hosts.clone(),
            route: None,
        };
        // All routes without a rate of their own share the site's.
        let shared_rate = match &site.policies.rate {
            Setting::On(settings) => Some(self.rate(&place, settings)),
            _ => None,
        };
        let say = self.means.handlers.say.of_site(&name_of(&site.hosts));
        let shared_auth = match &site.policies.auth {
            Setting::On(settings) => Some(self.auth(settings, &say)?),
            _ => None,
        };
        let shared_forward_auth = match &site.policies.forward_auth {
            Setting::On(settings) => Some(self.forward_auth(settings, &say)?),
            _ => None,
        };
        let shared_tokens = match &site.policies.jwt {
            Setting::On(settings) => Some(self.tokens(settings, &say)?),
            _ => None,
        };
        let mut routes = Vec::new();
        let mut by_path = Prefixes::default();
        for route in &site.routes {
            let place = Place {
                route: Some(route.matches.clone()),
                ..place.clone()
            };
            let own = &route.policies;
            let compress = own.compress.or(&site.policies.compress);
            let handler = self.handler(&place, route, compress)?;
            let mut around = self.around(config, &site.policies, own, &errors)?;
            around.label |= self.series(&place, handler.handler());
            around.hsts = site.tls.hsts.clone();
            around.compress = compress
                .filter(|_| !route.handler.compresses())
                .map(|options| Compress::with(options.clone()));
            around.rate = match &own.rate {
                Setting::On(settings) => Some(self.rate(&place, settings)),
                Setting::Off => None,
                Setting::Inherited => shared_rate.clone(),
            };
            around.auth = match &own.auth {
                Setting::On(settings) => Some(self.auth(settings, &say)?),
                Setting::Off => None,
                Setting::Inherited => shared_auth.clone(),
            };
            around.jwt = match &own.jwt {
                Setting::On(settings) => Some(self.tokens(settings, &say)?),
                Setting::Off => None,
                Setting::Inherited => shared_tokens.clone(),
            };
            around.forward_auth = match &own.forward_auth {
                Setting::On(settings) => Some(self.forward_auth(settings, &say)?),
                Setting::Off => None,
                Setting::Inherited => shared_forward_auth.clone(),
            };
            let handler = match (own.cache.or(&site.policies.cache), handler) {
                (Some(settings), Opened::Answers(handler)) if route.handler.is_gateway() => {
                    let is_authenticated =
                        around.auth.is_some() || around.jwt.is_some() || around.forward_auth.is_some();
                    let cache = settings.cache(self.store(settings)?, space(config, site), is_authenticated);
                    Opened::Answers(Arc::new(Cached::new(cache, handler)))
                }
                (_, handler) => handler,
            };
            by_path.add(route.matches.path.as_deref());
            routes.push(Route {
                path: route.matches.path.as_deref().map(Box::from),
                globs: globs(&route.matches.globs)?,
                methods: route
                    .matches
                    .methods
                    .iter()
                    .map(|method| method.as_str().into())
                    .collect(),
                handler,
                around: Arc::new(around.settle()),
            });
        }
        let mut around = self.around(config, &site.policies, &Policies::default(), &errors)?;
        around.label |= self.series(&place, None);
        around.hsts = site.tls.hsts.clone();
        let hosts = || site.hosts.iter().map(config::Host::to_string).collect();
        let certificate = site.tls.certificate.as_ref();
        Ok(Site {
            name: name_of(&site.hosts),
            real_ip: site.real_ip.clone(),
            certificate: certificate.map(|from| self.means.certificates.of_site(from, hosts())),
            to_https: to_https(config, site),
            routes,
            by_path,
            around: around.settle(),
        })
    }

    /// The series of a route in the metrics, as the upper bits of a label.
    fn series(&mut self, place: &Place, handler: Option<&Arc<dyn Handler>>) -> u32 {
        let Some(shown) = &mut self.shown else {
            return 0;
        };
        let site = name_of(&place.site);
        let route: String = place.route.as_ref().map_or("none".into(), |route| {
            let path = route.path.as_deref().unwrap_or("/");
            let words = route.methods.iter().map(String::as_str).chain([path]);
            words
                .chain(route.globs.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join(" ")
        });
        let number = shown.routes.add(self.old_routes, &site, &route);
        if let Some(upstream) = handler.and_then(|handler| handler.upstream()) {
            shown.gateways.push(Gateway {
                site,
                route,
                upstream: upstream.clone(),
            });
        }
        u32::from(number) << LOG_BITS
    }

    /// The policies of a route, without rate and authentication.
    fn around(
        &mut self,
        config: &Config,
        site: &Policies,
        own: &Policies,
        errors: &Arc<[ErrorPage]>,
    ) -> Result<Around, String> {
        let lists = if own.allow.is_empty() && own.deny.is_empty() {
            site
        } else {
            own
        };
        let listed = !lists.allow.is_empty() || !lists.deny.is_empty();
        let log = match (&own.log, &site.log) {
            (Setting::On(log), _) | (Setting::Inherited, Setting::On(log)) => log,
            (Setting::Off, _) | (Setting::Inherited, Setting::Off) => &Log::OFF,
            (Setting::Inherited, Setting::Inherited) => &config.log,
        };
        Ok(Around {
            access: listed.then(|| Access::new(&lists.allow, &lists.deny)),
            cors: own.cors.or(&site.cors).map(Cors::new).transpose()?,
            body: own.limits.body.or(site.limits.body).unwrap_or(config::BODY_BYTES),
            time: own.limits.time.or(site.limits.time),
            may_be_slow: own.limits.rates.or(site.limits.rates) == Some(false),
            queue: own
                .limits
                .queue
                .or(site.limits.queue)
                .map(|options| Arc::new(Queue::new(&options))),
            headers: own.headers.over(&site.headers),
            request_id: own.request_id.or(&site.request_id).copied().unwrap_or_default(),
            errors: Arc::clone(errors),
            html_errors: own.html_errors.or(site.html_errors).unwrap_or(true),
            label: self.log(log)?,
            server_timing: own.server_timing.or(site.server_timing).unwrap_or(false),
            slow: own.slow.or(&site.slow).copied(),
            trace: own.trace.or(&site.trace).copied(),
            ..Around::default()
        })
    }

    /// Opens the handler of a route, or goes on with the one that an older snapshot holds.
    fn handler(&mut self, place: &Place, route: &config::Route, compress: Compressed<'_>) -> Result<Opened, String> {
        let settings = &route.handler;
        let opening = handler::Route {
            path: route.matches.path.as_deref(),
            compress,
            place: &place.name(),
        };
        if !settings.is_kept() {
            return settings.open(&opening, &self.means.handlers);
        }
        let key = (
            settings.clone(),
            settings.folder().and_then(identity),
            compress.cloned(),
        );
        let value = match self.old_handlers.take(place, &key) {
            Some(kept) => kept,
            None => settings.open(&opening, &self.means.handlers)?,
        };
        self.new.handlers.push(Part {
            place: place.clone(),
            key,
            value: value.clone(),
        });
        Ok(value)
    }

    fn rate(&mut self, place: &Place, settings: &rate::Options) -> Arc<Rate> {
        let kept = self.old_rates.take(place, settings);
        let value = kept.unwrap_or_else(|| Arc::new(Rate::new(settings)));
        self.new.rates.push(Part {
            place: place.clone(),
            key: settings.clone(),
            value: Arc::clone(&value),
        });
        value
    }

    /// The store of a cache. Caches with equal options share it, and a reload keeps it.
    fn store(&mut self, settings: &cache::Settings) -> Result<Arc<Store>, String> {
        let equal = |(options, _): &&(StoreOptions, Arc<Store>)| *options == settings.store;
        if let Some((_, store)) = self.new.stores.iter().find(equal) {
            return Ok(Arc::clone(store));
        }
        let store = match self.old.stores.iter().find(equal) {
            Some((_, store)) => Arc::clone(store),
            None => settings.open(&self.means.handlers.say)?,
        };
        self.new.stores.push((settings.store.clone(), Arc::clone(&store)));
        Ok(store)
    }

    fn auth(&self, settings: &auth::Settings, say: &Say) -> Result<Arc<Auth>, String> {
        Auth::open(settings, say.clone())
            .map(Arc::new)
            .map_err(|troubles| Trouble::line_of(&troubles))
    }

    fn forward_auth(&self, settings: &forward_auth::Settings, say: &Say) -> Result<Arc<ForwardAuth>, String> {
        forward_auth::open(settings, say.clone())
    }

    fn tokens(&self, settings: &jwt::Settings, say: &Say) -> Result<Arc<Tokens>, String> {
        Tokens::open(settings, say.clone()).map(Arc::new)
    }

    /// The label of a log. Opens the log unless it is open.
    fn log(&mut self, settings: &Log) -> Result<u32, String> {
        if let Some((_, label, _)) = self.new.logs.iter().find(|(known, ..)| known == settings) {
            return Ok(*label);
        }
        let (label, log) = match self.old.logs.iter().find(|(known, ..)| known == settings) {
            Some((_, label, log)) => (*label, log.clone()),
            None => {
                self.new.next_label += 1;
                let log = AccessLog::open(settings, &self.means.handlers.say)?;
                (self.new.next_label, log.map(Arc::new))
            }
        };
        self.new.logs.push((settings.clone(), label, log));
        Ok(label)
    }
}

/// The parts of the old snapshot of one kind, each of which is taken at most once.
struct Kept<'o, K, V> {
    parts: &'o [Part<K, V>],
    /// The numbers of the parts at a place, in order.
    at: HashMap<&'o Place, Vec<usize>>,
    taken: Vec<bool>,
}

impl<'o, K: PartialEq, V: Clone> Kept<'o, K, V> {
    fn new(parts: &'o [Part<K, V>]) -> Self {
        let mut at: HashMap<_, Vec<usize>> = HashMap::new();
        for (number, part) in parts.iter().enumerate() {
            at.entry(&part.place).or_default().push(number);
        }
        Kept {
            parts,
            at,
            taken: vec![false; parts.len()],
        }
    }

    /// Takes the part with this key whose place is nearest and that is not taken yet. All parts are compared only if none with this key
    /// is left at the very place, so a reload compares little where little has changed.
    fn take(&mut self, place: &Place, key: &K) -> Option<V> {
        let fits = |number: &usize| !self.taken[*number] && self.parts[*number].key == *key;
        let here = self.at.get(place).into_iter().flatten().copied().find(fits);
        let number = here.or_else(|| {
            let nearness = |number: &usize| {
                let found = &self.parts[*number].place;
                (found.route == place.route, found.site == place.site, Reverse(*number))
            };
            (0..self.parts.len()).filter(fits).max_by_key(nearness)
        })?;
        self.taken[number] = true;
        Some(self.parts[number].value.clone())
    }
}

/// The name of a site's part of a store. It does not depend on what a reload may change without another meaning of its paths.
fn space(config: &Config, site: &config::Site) -> String {
    let listeners = site
        .listeners
        .iter()
        .map(|&listener| config.listeners[listener].bind.to_string());
    let hosts = site.hosts.iter().map(config::Host::to_string);
    let names: Vec<String> = listeners.chain(["sites".to_owned()]).chain(hosts).collect();
    names.join(" ")
}

fn asks_clients(listener: &config::Listener) -> bool {
    listener.tls.as_ref().is_some_and(|tls| tls.client.is_some())
}

/// The redirect of a site: to the port that the file names, or to that of its first listener with TLS.
fn to_https(config: &Config, site: &config::Site) -> Option<ToHttps> {
    let Setting::On(redirect) = &site.tls.redirect else {
        return None;
    };
    let mut own = site.listeners.iter().map(|&listener| &config.listeners[listener]);
    let port = own.find_map(|listener| match listener.bind {
        Bind::Tcp(address) if listener.tls.is_some() && address.port() != 0 => Some(address.port()),
        _ => None,
    });
    let port = redirect.port.or(port).unwrap_or(443);
    Some(ToHttps { port })
}

fn identity(folder: &Path) -> Identity {
    folder.metadata().ok().map(|found| (found.dev(), found.ino()))
}

fn globs(patterns: &[String]) -> Result<Option<GlobSet>, String> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSet::builder();
    for pattern in patterns {
        set.add(config::glob(pattern)?);
    }
    set.build().map(Some).map_err(|error| error.to_string())
}

/// The name of a site: its first host.
fn name_of(hosts: &[config::Host]) -> String {
    hosts.first().map_or("default".into(), config::Host::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, path: &str) -> Place {
        Place {
            site: vec![config::Host::Exact(host.into())],
            route: Some(Match {
                path: Some(path.into()),
                globs: Vec::new(),
                methods: Vec::new(),
            }),
        }
    }

    #[test]
    fn the_nearest_part_with_equal_settings_is_kept_once() {
        let part = |host, path, key, value| Part {
            place: place(host, path),
            key,
            value,
        };
        let parts = [
            part("a", "/x", 1, "a/x"),
            part("b", "/x", 1, "b/x"),
            part("a", "/y", 1, "a/y"),
            part("a", "/z", 2, "a/z"),
            part("a", "/x", 1, "a/x again"),
        ];
        let mut kept = Kept::new(&parts);
        assert_eq!(kept.take(&place("a", "/x"), &1), Some("a/x"));
        assert_eq!(
            kept.take(&place("a", "/x"), &2),
            Some("a/z"),
            "of this key there is only one"
        );
        assert_eq!(
            kept.take(&place("c", "/x"), &1),
            Some("b/x"),
            "the same route, of the first site"
        );
        assert_eq!(kept.take(&place("a", "/new"), &1), Some("a/y"), "the same site");
        assert_eq!(kept.take(&place("c", "/new"), &1), Some("a/x again"));
        assert_eq!(kept.take(&place("a", "/x"), &1), None);
    }
}
