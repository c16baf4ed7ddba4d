//! Builds a [`Snapshot`] from a checked configuration, and keeps the unchanged parts of the old snapshot.
//!
//! A handler is kept when its settings are equal and, for files, its folder is still the same folder. The best
//! candidate is the handler at the same route of the same site: `kept.rs` chooses. Each old handler is taken at most once, so two routes
//! with separate chat rooms or connection pools never share them later. Rates and queues are kept by the same rule, and so are passwords
//! and keys whose file cannot be read. Parts that are cheap to make, or that read a file (passwords, error pages, fixed
//! responses, rewrites), are made again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use globset::GlobSet;
use osier_web::chat::Chat;
use osier_web::compress::{self, Compress};
use osier_web::files::Types;
use osier_web::upgrade::Upgrade;
use osier_web::wrap::cache::{Store, StoreOptions};
use osier_web::wrap::queue::{self, Queue};
use rustix::fs::Access as FileAccess;

use crate::certificates::Certificates;
use crate::config::{self, Bind, Config, Log, Policies, Setting};
use crate::handler::{self, Changed, Handler, HandlerSettings, Match, Opened};
use crate::log::access::AccessLog;
use crate::log::operator::Say;
use crate::metrics::{Admin, Gateway, ROUTES_MAX, Rooms, Routes, Shown};
use crate::policy::access::Access;
use crate::policy::auth::{self, Auth, Trouble};
use crate::policy::cache::{self, OfRoute};
use crate::policy::cors::Cors;
use crate::policy::forward_auth::{self, AuthServer};
use crate::policy::jwt::{self, Tokens};
use crate::policy::prefixes::Prefixes;
use crate::policy::rate::{self, Rate};
use crate::policy::real_ip::RealIp;
use crate::reader::{Reason, is_refused, is_withheld};

use super::cached::Cached;
use super::hosts::Hosts;
use super::kept::{Kept, Part, Scope};
use super::policies::{ErrorPage, PolicyChain};
use super::to_https::ToHttps;
use super::{LOG_BITS, Route, Site, Snapshot};

/// The parts of a snapshot that the next one may keep.
#[derive(Default)]
pub struct Parts {
    handlers: Vec<Part<HandlerKey, Opened>>,
    /// The open chats, by the names that upgrades know them by.
    chats: Vec<(String, Chat)>,
    rates: Vec<Part<rate::Options, Arc<Rate>>>,
    queues: Vec<Part<queue::Options, Arc<Queue>>>,
    auths: Vec<Part<auth::Settings, Arc<Auth>>>,
    tokens: Vec<Part<jwt::Settings, Arc<Tokens>>>,
    /// Open stores of caches.
    stores: Vec<(StoreOptions, Arc<Store>)>,
    /// Open logs with their settings and the label that requests carry.
    logs: Vec<(Log, u32, Option<Arc<AccessLog>>)>,
    next_label: u32,
}

/// The parts of a handler's identity: its settings, its folder, how it compresses files, their types, and whether it is the whole site.
type HandlerKey = (
    handler::HandlerSettings,
    Identity,
    Option<compress::Options>,
    Types,
    bool,
);

/// The device and the inode of a folder. None without a folder.
type Identity = Option<(u64, u64)>;

impl Parts {
    /// The stores of responses.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.stores.iter().map(|(_, store)| store)
    }

    /// Whether the configuration has the log of a label.
    pub fn has_log(&self, label: u32) -> bool {
        self.logs.iter().any(|(_, known, _)| *known == label)
    }

    /// Registers the chats for upgrades. One that a reload has kept may have another name than before.
    pub fn register(&self, upgrade: &Upgrade) {
        self.chats
            .iter()
            .for_each(|(name, chat)| chat.upgradable(upgrade, name));
    }

    /// The handlers that a reload may keep.
    pub fn handlers(&self) -> impl Iterator<Item = &Arc<dyn Handler>> {
        self.handlers.iter().filter_map(|part| part.value.handler())
    }
}

/// Opens a guard. While permissions keep this user from its file, the guard of the old snapshot is kept, as if there were no
/// reload.
fn unless_refused<V>(
    file: Option<&Path>,
    kept: Option<Arc<V>>,
    open: impl FnOnce() -> Result<V, Reason>,
) -> Result<Arc<V>, Reason> {
    match kept {
        Some(kept) if file.is_some_and(|file| is_refused(file, FileAccess::READ_OK)) => Ok(kept),
        _ => open().map(Arc::new),
    }
}

/// Resources of the server that snapshots share.
#[derive(Clone)]
pub struct Resources {
    pub handlers: handler::Resources,
    /// The counters of requests, if `[admin]` is configured.
    pub admin: Option<Arc<Admin>>,
    pub certificates: Arc<Certificates>,
}

impl Resources {
    /// Shows the routes and backends of a snapshot in the metrics.
    pub fn show(&self, snapshot: &Snapshot) {
        if let (Some(admin), Some(shown)) = (&self.admin, snapshot.shown()) {
            admin.show(shown);
        }
    }
}

/// The policies that admit clients and that a site shares with its routes.
#[derive(Default)]
struct Guards {
    rate: Option<Arc<Rate>>,
    auth: Option<Arc<Auth>>,
    forward_auth: Option<Arc<AuthServer>>,
    jwt: Option<Arc<Tokens>>,
}

/// The parts that a configuration needs and a reload may keep, in the order in which they are made.
#[derive(Default)]
struct Wanted {
    handlers: Vec<(Scope, HandlerKey)>,
    rates: Vec<(Scope, rate::Options)>,
    queues: Vec<(Scope, queue::Options)>,
    auths: Vec<(Scope, auth::Settings)>,
    tokens: Vec<(Scope, jwt::Settings)>,
}

impl Wanted {
    fn of(config: &Config) -> Wanted {
        let mut wanted = Wanted::default();
        for site in &config.sites {
            let scope = Scope::of(config, site);
            wanted.guards(&scope, &site.policies);
            for route in &site.routes {
                let scope = scope.route(route);
                wanted.guards(&scope, &route.policies);
                if let Some(options) = queue_of(site, route) {
                    wanted.queues.push((scope.clone(), options));
                }
                if route.handler.is_kept() {
                    wanted.handlers.push((scope, handler_key(site, route)));
                }
            }
        }
        wanted
    }

    fn guards(&mut self, scope: &Scope, own: &Policies) {
        if let Setting::On(options) = &own.rate {
            self.rates.push((scope.clone(), options.clone()));
        }
        if let Setting::On(settings) = &own.auth {
            self.auths.push((scope.clone(), settings.clone()));
        }
        if let Setting::On(settings) = &own.jwt {
            self.tokens.push((scope.clone(), settings.clone()));
        }
    }
}

struct Builder<'o> {
    old: &'o Parts,
    old_handlers: Kept<'o, HandlerKey, Opened>,
    old_rates: Kept<'o, rate::Options, Arc<Rate>>,
    old_queues: Kept<'o, queue::Options, Arc<Queue>>,
    old_auths: Kept<'o, auth::Settings, Arc<Auth>>,
    old_tokens: Kept<'o, jwt::Settings, Arc<Tokens>>,
    new: Parts,
    resources: &'o Resources,
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
pub fn build(
    config: &Config,
    slots: &[usize],
    old: Option<&Snapshot>,
    resources: &Resources,
) -> Result<Snapshot, Reason> {
    let nothing = Parts::default();
    let old_routes = old.and_then(|old| Some(&old.shown()?.routes));
    let old_logs = old.map_or(&[][..], |old| &old.logs);
    let old = old.map_or(&nothing, |old| &old.parts);
    let wanted = Wanted::of(config);
    let mut builder = Builder {
        old,
        old_handlers: Kept::new(&old.handlers, wanted.handlers),
        old_rates: Kept::new(&old.rates, wanted.rates),
        old_queues: Kept::new(&old.queues, wanted.queues),
        old_auths: Kept::new(&old.auths, wanted.auths),
        old_tokens: Kept::new(&old.tokens, wanted.tokens),
        new: Parts {
            next_label: old.next_label,
            ..Parts::default()
        },
        resources,
        old_routes,
        shown: resources.admin.as_ref().map(|_| Shown {
            routes: Routes::new(resources.handlers.workers, old_routes),
            gateways: Vec::new(),
            chats: Vec::new(),
            stores: Vec::new(),
        }),
    };
    let default = builder.log(&config.log)?;
    let mut sites = Vec::new();
    for site in &config.sites {
        sites.push(builder.site(config, site)?);
    }
    let mut logs = logs(&builder.new, old, default);
    keep_awaited(&mut logs, old_logs);
    let beyond = builder.shown.as_ref().map_or(0, |shown| shown.routes.beyond());
    if beyond > 0 {
        resources.handlers.say.warning(format_args!(
            "metrics: only {ROUTES_MAX} routes have series of their own; {beyond} more share the series of route \"other\""
        ));
    }
    if let Some(shown) = &mut builder.shown {
        shown.stores = builder.new.stores.iter().map(|(_, store)| Arc::clone(store)).collect();
    }
    let (listeners, real_ips) = listeners(config, slots);
    Ok(Snapshot {
        listeners,
        real_ips,
        sites,
        logs,
        shown: builder.shown.map(Arc::new),
        certificates: Arc::clone(&resources.certificates),
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

/// The hosts and the `real_ip` of each listener, by number.
fn listeners(config: &Config, slots: &[usize]) -> (Vec<Option<Hosts>>, Vec<Option<RealIp>>) {
    let count = slots.iter().max().map_or(0, |highest| highest + 1);
    let mut hosts: Vec<Option<Hosts>> = (0..count).map(|_| None).collect();
    let mut real_ips = vec![None; count];
    for (listener, &slot) in config.listeners.iter().zip(slots) {
        real_ips[slot] = listener.real_ip.clone();
    }
    for (index, site) in config.sites.iter().enumerate() {
        for slot in site.listeners.iter().map(|&listener| slots[listener]) {
            let hosts = hosts[slot].get_or_insert_with(Hosts::default);
            site.hosts.iter().for_each(|host| hosts.add(host, index));
            if site.default {
                hosts.add_default(index);
            }
        }
    }
    (hosts, real_ips)
}

/// Logs by the label that requests carry. `None` is a log that is off.
type Logs = Vec<(u32, Option<Arc<AccessLog>>)>;

/// The most logs of earlier configurations that stay open, besides those that the last reload has replaced.
const LATE_MAX: usize = 64;

/// Adds the logs of the old snapshot to which requests and tunnels of any earlier configuration write at their end.
fn keep_awaited(logs: &mut Logs, old: &[(u32, Option<Arc<AccessLog>>)]) {
    let most = logs.len() + LATE_MAX;
    for (label, log) in old {
        let is_awaited = log.as_ref().is_some_and(|log| log.is_awaited());
        if is_awaited && logs.len() < most && !logs.iter().any(|(known, _)| known == label) {
            logs.push((*label, log.clone()));
        }
    }
}

/// The logs of a snapshot by label. `default` is the label of the log for requests without a label.
fn logs(new: &Parts, old: &Parts, default: u32) -> Logs {
    let mut logs: Vec<_> = new.logs.iter().map(|(_, label, log)| (*label, log.clone())).collect();
    let of_default = new.logs.iter().find(|(_, label, _)| *label == default);
    logs.push((0, of_default.and_then(|(.., log)| log.clone())));
    // A request that began under the old configuration must still be logged.
    let is_old = |settings: &Log| !new.logs.iter().any(|(known, ..)| known == settings);
    let of_old = old.logs.iter().filter(|(settings, ..)| is_old(settings));
    logs.extend(of_old.map(|(_, label, log)| (*label, log.clone())));
    logs
}

impl Builder<'_> {
    /// Builds a site and its routes.
    fn site(&mut self, config: &Config, site: &config::Site) -> Result<Site, Reason> {
        let pages = site.error_pages.iter().filter(|(_, path)| !is_withheld(path));
        let pages = pages.map(|(status, path)| {
            let (body, content_type) = handler::read_file(path)?;
            Ok(ErrorPage {
                status: *status,
                content_type: content_type.into_owned(),
                body: Arc::new(body),
            })
        });
        let error_pages: Arc<[ErrorPage]> = pages.collect::<Result<Vec<_>, Reason>>()?.into();
        let scope = Scope::of(config, site);
        let say = self.resources.handlers.say.of_site(&name_of(&site.hosts));
        // Routes without settings of their own share the site's.
        let shared = self.guards(&scope, &site.policies, &Guards::default(), &say)?;
        let mut routes = Vec::new();
        let mut by_path = Prefixes::default();
        for route in &site.routes {
            by_path.add(route.matches.path.as_deref());
            let scope = scope.route(route);
            let guards = self.guards(&scope, &route.policies, &shared, &say)?;
            let has_globs = routes.iter().any(|earlier: &Route| earlier.globs.is_some());
            let suffixes = match has_globs {
                true => route.handler.script_suffixes(),
                false => &[],
            };
            routes.push(Route {
                script_suffixes: suffixes.iter().map(|suffix| suffix.as_str().into()).collect(),
                ..self.route(config, site, route, &scope, guards, &error_pages)?
            });
        }
        let mut policies = self.policies(config, &site.policies, &Policies::default(), &error_pages)?;
        policies.label |= self.series(&scope, None);
        policies.hsts = site.tls.hsts.clone();
        let hosts = || site.hosts.iter().map(config::Host::to_string).collect();
        let certificate = site.tls.certificate.as_ref();
        Ok(Site {
            name: name_of(&site.hosts),
            real_ip: site.real_ip.clone(),
            certificate: certificate.map(|from| self.resources.certificates.of_site(from, hosts())),
            to_https: to_https(config, site),
            routes,
            by_path,
            policies: policies.settle(),
        })
    }

    /// Builds a route: its handler inside of a cache, and the policies around them.
    fn route(
        &mut self,
        config: &Config,
        site: &config::Site,
        route: &config::Route,
        scope: &Scope,
        guards: Guards,
        error_pages: &Arc<[ErrorPage]>,
    ) -> Result<Route, Reason> {
        let (own, matches) = (&route.policies, &route.matches);
        let compress = own.compress.or(&site.policies.compress);
        let handler = self.handler(scope, site, route)?;
        if let Some(chat) = handler.handler().and_then(|handler| handler.chat()) {
            let has_twin = config.sites.iter().filter(|other| other.hosts == site.hosts).count() > 1;
            let name = format!("chat {}", scope.name(has_twin));
            self.new.chats.push((name, chat.clone()));
        }
        let is_fastcgi = matches!(route.handler, HandlerSettings::Fastcgi(_));
        let is_authenticated = guards.auth.is_some() || guards.jwt.is_some() || guards.forward_auth.is_some();
        let mut policies = PolicyChain {
            hsts: site.tls.hsts.clone(),
            compress: compress
                .filter(|_| !route.handler.compresses())
                .map(|options| Compress::with(options.clone())),
            rate: guards.rate,
            queue: queue_of(site, route).map(|options| self.queue(scope, options)),
            auth: guards.auth,
            tells_user: is_fastcgi,
            jwt: guards.jwt,
            forward_auth: guards.forward_auth,
            ..self.policies(config, &site.policies, own, error_pages)?
        };
        policies.label |= self.series(scope, handler.handler());
        let handler = match (own.cache.or(&site.policies.cache), handler) {
            (Some(settings), Opened::Answers(handler)) if route.handler.is_gateway() => {
                let of_route = OfRoute {
                    space: space(config, site),
                    is_authenticated,
                    is_fastcgi,
                };
                let cache = settings.cache(self.store(settings)?, of_route);
                Opened::Answers(Arc::new(Cached::new(cache, handler)))
            }
            (_, handler) => handler,
        };
        let changes = own.request_headers.over(&site.policies.request_headers);
        let handler = match handler {
            Opened::Answers(handler) if route.handler.is_gateway() && !changes.is_empty() => {
                Opened::Answers(Arc::new(Changed::new(changes, handler)))
            }
            handler => handler,
        };
        Ok(Route {
            path: matches.path.as_deref().map(Box::from),
            globs: globs(&matches.globs)?,
            script_suffixes: Box::default(),
            methods: matches.methods.iter().map(|method| method.as_str().into()).collect(),
            handler,
            policies: Arc::new(policies.settle()),
        })
    }

    /// Opens the guards of a site or a route. `inherited` are those of the site.
    fn guards(&mut self, scope: &Scope, own: &Policies, inherited: &Guards, say: &Say) -> Result<Guards, Reason> {
        Ok(Guards {
            rate: own
                .rate
                .open(inherited.rate.as_ref(), |settings| Ok(self.rate(scope, settings)))?,
            auth: own.auth.open(inherited.auth.as_ref(), |settings| {
                let kept = self.old_auths.take(scope, settings, false);
                let file = settings.password_file.as_deref();
                let value = unless_refused(file, kept, || {
                    Auth::open(settings, say.clone()).map_err(|troubles| Trouble::line_of(&troubles))
                })?;
                self.new.auths.push(Part::new(scope, settings, &value));
                Ok(value)
            })?,
            forward_auth: own.forward_auth.open(inherited.forward_auth.as_ref(), |settings| {
                Ok(forward_auth::open(settings, say.clone())?)
            })?,
            jwt: own.jwt.open(inherited.jwt.as_ref(), |settings| {
                let kept = self.old_tokens.take(scope, settings, false);
                let value = unless_refused(Some(&settings.keys), kept, || Tokens::open(settings, say.clone()))?;
                self.new.tokens.push(Part::new(scope, settings, &value));
                Ok(value)
            })?,
        })
    }

    /// The series of a route in the metrics, as the upper bits of a label.
    fn series(&mut self, scope: &Scope, handler: Option<&Arc<dyn Handler>>) -> u32 {
        let Some(shown) = &mut self.shown else {
            return 0;
        };
        let site = name_of(&scope.site.hosts);
        let route: String = scope.route.as_ref().map_or("none".into(), |route| {
            let path = route.path.as_deref().unwrap_or("/");
            let words = route.methods.iter().map(String::as_str).chain([path]);
            words
                .chain(route.globs.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join(" ")
        });
        let number = shown.routes.add(self.old_routes, &site, &route);
        if let Some(chat) = handler.and_then(|handler| handler.chat()) {
            shown.chats.push(Rooms {
                site: site.clone(),
                route: route.clone(),
                chat: chat.clone(),
            });
        }
        if let Some(upstream) = handler.and_then(|handler| handler.upstream()) {
            shown.gateways.push(Gateway {
                site,
                route,
                upstream: upstream.clone(),
            });
        }
        u32::from(number) << LOG_BITS
    }

    /// The policies of a route, without its [`Guards`].
    fn policies(
        &mut self,
        config: &Config,
        site: &Policies,
        own: &Policies,
        error_pages: &Arc<[ErrorPage]>,
    ) -> Result<PolicyChain, Reason> {
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
        Ok(PolicyChain {
            access: listed.then(|| Access::new(&lists.allow, &lists.deny)),
            cors: own.cors.or(&site.cors).map(Cors::new).transpose()?,
            body: own.limits.body.or(site.limits.body).unwrap_or(config::BODY_BYTES),
            time: own.limits.time.or(site.limits.time),
            may_be_slow: own.limits.rates.or(site.limits.rates) == Some(false),
            headers: own.headers.over(&site.headers),
            request_id: own.request_id.or(&site.request_id).copied().unwrap_or_default(),
            error_pages: Arc::clone(error_pages),
            html_errors: own.html_errors.or(site.html_errors).unwrap_or(true),
            label: self.log(log)?,
            server_timing: own.server_timing.or(site.server_timing).unwrap_or(false),
            slow: own.slow.or(&site.slow).copied(),
            trace: own.trace.or(&site.trace).copied(),
            ..PolicyChain::default()
        })
    }

    /// Opens the handler of a route, or keeps the one of the old snapshot.
    fn handler(&mut self, scope: &Scope, site: &config::Site, route: &config::Route) -> Result<Opened, Reason> {
        let settings = &route.handler;
        let key = handler_key(site, route);
        let (_, _, compress, types, is_whole_site) = &key;
        let opening = handler::Route {
            path: route.matches.path.as_deref(),
            compress: compress.as_ref(),
            types,
            is_whole_site: *is_whole_site,
        };
        if !settings.is_kept() {
            return settings.open(&opening, &self.resources.handlers);
        }
        let value = match self.old_handlers.take(scope, &key, !settings.stays_in_site()) {
            Some(kept) => kept,
            None => settings.open(&opening, &self.resources.handlers)?,
        };
        self.new.handlers.push(Part::new(scope, &key, &value));
        Ok(value)
    }

    /// Makes the rate of a site or a route, or keeps the one of the old snapshot.
    fn rate(&mut self, scope: &Scope, settings: &rate::Options) -> Arc<Rate> {
        let kept = self.old_rates.take(scope, settings, false);
        let value = kept.unwrap_or_else(|| Arc::new(Rate::new(settings)));
        self.new.rates.push(Part::new(scope, settings, &value));
        value
    }

    /// Makes the queue of a route, or keeps the one of the old snapshot, with the requests that run.
    fn queue(&mut self, scope: &Scope, options: queue::Options) -> Arc<Queue> {
        let kept = self.old_queues.take(scope, &options, false);
        let value = kept.unwrap_or_else(|| Arc::new(Queue::new(&options)));
        self.new.queues.push(Part::new(scope, &options, &value));
        value
    }

    /// The store of a cache. Caches with equal options share it, and a reload keeps it.
    fn store(&mut self, settings: &cache::Settings) -> Result<Arc<Store>, Reason> {
        let equal = |(options, _): &&(StoreOptions, Arc<Store>)| *options == settings.store;
        if let Some((_, store)) = self.new.stores.iter().find(equal) {
            return Ok(Arc::clone(store));
        }
        let store = match self.old.stores.iter().find(equal) {
            Some((_, store)) => Arc::clone(store),
            None => settings.open(&self.resources.handlers.say)?,
        };
        self.new.stores.push((settings.store.clone(), Arc::clone(&store)));
        Ok(store)
    }

    /// The label of a log. Opens the log unless it is open.
    fn log(&mut self, settings: &Log) -> Result<u32, Reason> {
        if let Some((_, label, _)) = self.new.logs.iter().find(|(known, ..)| known == settings) {
            return Ok(*label);
        }
        let (label, log) = match self.old.logs.iter().find(|(known, ..)| known == settings) {
            Some((_, label, log)) => (*label, log.clone()),
            None => {
                self.new.next_label += 1;
                let log = AccessLog::open(settings, &self.resources.handlers.say)?;
                (self.new.next_label, log.map(Arc::new))
            }
        };
        self.new.logs.push((settings.clone(), label, log));
        Ok(label)
    }
}

/// The name of a site's part of a store: its listeners and hosts. Stored responses stay valid until one of these
/// changes.
fn space(config: &Config, site: &config::Site) -> String {
    let listeners = site
        .listeners
        .iter()
        .map(|&listener| config.listeners[listener].bind.to_string());
    let hosts = site.hosts.iter().map(config::Host::to_string);
    let names: Vec<String> = listeners.chain(["sites".to_owned()]).chain(hosts).collect();
    names.join(" ")
}

/// Whether a listener asks clients for certificates.
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

/// The identity of a route's handler.
fn handler_key(site: &config::Site, route: &config::Route) -> HandlerKey {
    let compress = route.policies.compress.or(&site.policies.compress);
    let is_whole_site = site.routes.len() == 1 && route.matches == Match::default();
    // Other handlers stay when types change.
    let sends_files = route.handler.published().is_some();
    let types = sends_files.then(|| route.policies.types.over(&site.policies.types));
    (
        route.handler.clone(),
        route.handler.folder().and_then(identity),
        compress.cloned(),
        types.unwrap_or_default(),
        is_whole_site,
    )
}

/// The settings of a route's queue.
fn queue_of(site: &config::Site, route: &config::Route) -> Option<queue::Options> {
    route.policies.limits.queue.or(site.policies.limits.queue)
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
