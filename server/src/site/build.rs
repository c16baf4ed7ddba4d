//! From a checked configuration to a [`Snapshot`], going on with what an older one holds where nothing has changed.
//!
//! A handler is kept when its settings are the same and, for files, the folder still is the same folder. Of several
//! candidates the one of the same route of the same site is taken, and none twice: two routes never come to share a room or a
//! pool that were apart. Rates are kept by the same rule. What is cheap to make, or reads a file (passwords, error pages, fixed
//! answers, rewrites), is made anew.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use globset::GlobSet;
use osier_web::chat::{self, Chat};
use osier_web::compress;
use osier_web::fastcgi::{self, FastCgi};
use osier_web::files::{CacheLimits, Files, Options};
use osier_web::proxy::{Host, Proxy};
use osier_web::pubsub;
use osier_web::upstream::{Check, Upstream};
use osier_web::ws::Origins;
use osier_web::{Address, Connections};

use crate::access::Access;
use crate::access_log::AccessLog;
use crate::auth::Auth;
use crate::config::{self, Config, Log, Match, Policies, Setting};
use crate::cors::Cors;
use crate::headers::Headers;
use crate::metrics::Admin;
use crate::rate::{self, Rate};
use crate::rewrite::Rewrite;
use crate::say::Say;
use crate::welcome::Welcome;

use super::around::{Around, ErrorPage};
use super::handler::{self, Handler, Mounted, Redirect, Respond};
use super::hosts::Hosts;
use super::{LOG_BITS, Route, Site, Snapshot};

/// What a snapshot can hand on to the next.
#[derive(Default)]
pub struct Parts {
    handlers: Vec<Part<HandlerKey, Handler>>,
    rates: Vec<Part<rate::Settings, Rate>>,
    /// By what they were opened as, with the label that requests carry.
    logs: Vec<(Log, u32, Option<Arc<AccessLog>>)>,
    next_label: u32,
}

/// Two handlers with the same are the same: settings, folder, whether files are compressed.
type HandlerKey = (config::Handler, Identity, Option<compress::Settings>);

/// None when it is off.
type Compress<'a> = Option<&'a compress::Settings>;

/// Which folder a name stood for: device and inode.
type Identity = Option<(u64, u64)>;

impl Parts {
    /// Those that hold something.
    pub fn handlers(&self) -> impl Iterator<Item = &Arc<Handler>> {
        self.handlers.iter().map(|part| &part.value)
    }
}

struct Part<K, V> {
    place: Place,
    key: K,
    value: Arc<V>,
}

/// Where in a configuration something stands.
#[derive(Clone, PartialEq)]
struct Place {
    /// The names of its site.
    site: Vec<config::Host>,
    route: Option<Match>,
}

/// What the server has for every snapshot.
#[derive(Clone)]
pub struct Means {
    /// Of each route with files.
    pub cache: CacheLimits,
    /// Who counts requests, if anybody wants to know.
    pub admin: Option<Arc<Admin>>,
    pub workers: usize,
    /// Of every listener there has been.
    pub connections: Arc<Mutex<Vec<Connections>>>,
    pub say: Say,
}

struct Builder<'o> {
    old: &'o Parts,
    /// Of the old handlers and rates, those that have been taken.
    taken: (Vec<bool>, Vec<bool>),
    new: Parts,
    means: &'o Means,
}

/// Makes a snapshot. `slots` says which number each listener of the configuration has.
///
/// # Blocks the thread
/// for as long as the disk takes.
///
/// # Errors
/// One line: what could not be opened although it was there when the file was checked.
pub fn build(config: &Config, slots: &[usize], old: Option<&Snapshot>, means: &Means) -> Result<Snapshot, String> {
    let nothing = Parts::default();
    let old = old.map_or(&nothing, |old| &old.parts);
    let mut builder = Builder {
        old,
        taken: (vec![false; old.handlers.len()], vec![false; old.rates.len()]),
        new: Parts {
            next_label: old.next_label,
            ..Parts::default()
        },
        means,
    };
    // The label 0 is that of requests nobody has labelled.
    let default = builder.log(&config.log)?;
    let mut listeners: Vec<Option<Hosts>> = Vec::new();
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
    // A request that began under the old configuration is still to be logged; what is older than that has had its time.
    for (log, label, open) in &old.logs {
        if !builder.new.logs.iter().any(|(known, ..)| known == log) {
            logs.push((*label, open.clone()));
        }
    }
    Ok(Snapshot {
        listeners,
        sites,
        logs,
        series: means.admin.as_ref().map(|admin| admin.all()).unwrap_or_default(),
        welcomes: welcomes(&builder.new),
        parts: builder.new,
        say: Arc::clone(&means.say),
    })
}

impl Builder<'_> {
    fn site(&mut self, config: &Config, site: &config::Site) -> Result<Site, String> {
        let pages = site.error_pages.iter().map(|(status, path)| {
            let (body, content_type) = handler::read(path)?;
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
        // One for all routes that have none of their own.
        let shared_rate = match &site.policies.rate {
            Setting::On(settings) => Some(self.rate(&place, settings)),
            _ => None,
        };
        let shared_auth = match &site.policies.auth {
            Setting::On(settings) => Some(self.auth(settings)?),
            _ => None,
        };
        let mut routes = Vec::new();
        for route in &site.routes {
            let place = Place {
                route: Some(route.matches.clone()),
                ..place.clone()
            };
            let own = &route.policies;
            let compress = own.compress.or(&site.policies.compress);
            let handler = self.handler(&place, route, compress)?;
            let mut around = self.around(config, &site.policies, own, &errors)?;
            around.label |= self.series(&place);
            around.compress = compress.filter(|_| !matches!(*handler, Handler::Files(_))).cloned();
            around.rate = match &own.rate {
                Setting::On(settings) => Some(self.rate(&place, settings)),
                Setting::Off => None,
                Setting::Inherited => shared_rate.clone(),
            };
            around.auth = match &own.auth {
                Setting::On(settings) => Some(self.auth(settings)?),
                Setting::Off => None,
                Setting::Inherited => shared_auth.clone(),
            };
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
                around: around.settle(),
            });
        }
        let mut around = self.around(config, &site.policies, &Policies::default(), &errors)?;
        around.label |= self.series(&place);
        Ok(Site {
            routes,
            around: around.settle(),
        })
    }

    /// What a route is called in the metrics, as the upper bits of a label.
    fn series(&self, place: &Place) -> u32 {
        let Some(admin) = &self.means.admin else {
            return 0;
        };
        let site = place.site.first().map_or("default".into(), config::Host::to_string);
        let route = place.route.as_ref().map_or("none".into(), |route| {
            let path = route.path.as_deref().unwrap_or("/");
            let words = route.methods.iter().map(String::as_str).chain([path]);
            words
                .chain(route.globs.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join(" ")
        });
        u32::from(admin.series(&site, &route)) << LOG_BITS
    }

    /// All but rate and auth.
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
            headers: Headers {
                set: [&site.headers.set[..], &own.headers.set[..]].concat(),
                remove: [&site.headers.remove[..], &own.headers.remove[..]].concat(),
            },
            errors: Arc::clone(errors),
            label: self.log(log)?,
            ..Around::default()
        })
    }

    fn handler(
        &mut self,
        place: &Place,
        route: &config::Route,
        compress: Compress<'_>,
    ) -> Result<Arc<Handler>, String> {
        let made = match &route.handler {
            config::Handler::Redirect(settings) => {
                Handler::Redirect(Redirect::new(settings, route.matches.path.as_deref()))
            }
            config::Handler::Respond(settings) => Handler::Respond(Respond::new(settings)?),
            config::Handler::Rewrite(settings) => {
                let first = |troubles: Vec<(usize, String)>| troubles.into_iter().next().map(|(_, what)| what);
                Handler::Rewrite(Rewrite::compile(&settings.rules).map_err(|all| first(all).unwrap_or_default())?)
            }
            lasting => return self.lasting(place, lasting, compress),
        };
        Ok(Arc::new(made))
    }

    /// A handler that holds something worth keeping.
    fn lasting(
        &mut self,
        place: &Place,
        settings: &config::Handler,
        compress: Compress<'_>,
    ) -> Result<Arc<Handler>, String> {
        let identity = match settings {
            config::Handler::Files(files) => identity(&files.root),
            config::Handler::Fastcgi(fastcgi) => identity(&fastcgi.root),
            _ => None,
        };
        let key = (settings.clone(), identity, compress.cloned());
        let kept = take(&self.old.handlers, &mut self.taken.0, place, &key);
        let value = match kept {
            Some(kept) => kept,
            None => Arc::new(self.open(settings, compress)?),
        };
        self.new.handlers.push(Part {
            place: place.clone(),
            key,
            value: Arc::clone(&value),
        });
        Ok(value)
    }

    fn open(&self, settings: &config::Handler, compress: Compress<'_>) -> Result<Handler, String> {
        let cannot = |root: &Path, error: io::Error| format!("cannot serve '{}': {error}", root.display());
        match settings {
            config::Handler::Files(settings) => {
                let options = Options {
                    index: settings.index.clone(),
                    listing: settings.listing,
                    spa: settings.spa,
                    hidden: settings.hidden,
                    precompressed: settings.precompressed,
                    compress: compress.cloned(),
                    cache: self.means.cache,
                    ..Options::default()
                };
                let files = Files::with(&settings.root, options).map_err(|error| cannot(&settings.root, error))?;
                Ok(Handler::Files(Mounted {
                    files,
                    strip: settings.strip.clone().unwrap_or_default(),
                    cache: settings.cache.clone(),
                }))
            }
            config::Handler::Fastcgi(settings) => {
                let handler = self.fastcgi(settings).map_err(|error| cannot(&settings.root, error))?;
                Ok(Handler::Gateway(Box::new(handler.handler())))
            }
            config::Handler::Proxy(settings) => {
                let handler = self
                    .proxy(settings)
                    .map_err(|error| format!("cannot set up a proxy: {error}"))?;
                Ok(Handler::Gateway(Box::new(handler.handler())))
            }
            config::Handler::Chat(settings) => Ok(Handler::Chat(self.chat(settings))),
            config::Handler::Welcome(settings) => {
                let connections = Arc::clone(&self.means.connections);
                let welcome = Welcome::new(Vec::new(), settings.live_for_all, self.means.workers, connections);
                let welcome = welcome.map_err(|error| format!("cannot serve the welcome site: {error}"))?;
                Ok(Handler::Welcome(welcome))
            }
            _ => unreachable!("made by Builder::handler"),
        }
    }

    fn fastcgi(&self, settings: &config::Fastcgi) -> io::Result<FastCgi> {
        let default = fastcgi::Options::default();
        let options = fastcgi::Options {
            suffixes: settings.suffixes.clone(),
            index: settings.index.clone(),
            front: settings.front.clone(),
            application_root: settings.application_root.clone(),
            internal_root: settings.internal_root.clone(),
            params: settings.params.clone(),
            server_name: settings.server_name.clone(),
            https: settings.https,
            hide: settings.hide.clone(),
            connect: settings.timeouts.connect.unwrap_or(default.connect),
            first_byte: settings.timeouts.first_byte.unwrap_or(default.first_byte),
            between: settings.timeouts.between.unwrap_or(default.between),
            keep: settings.keep,
            max_requests: settings.max_requests,
            check: settings.health.as_ref().map(check),
            ..default
        };
        let handler = FastCgi::with(&settings.root, settings.servers.iter().map(address), options)?;
        if !settings.files {
            return Ok(handler);
        }
        // What the application would run is never sent as it is: a path to a script does not come here.
        let options = Options {
            index: Vec::new(),
            cache: self.means.cache,
            ..Options::default()
        };
        let files = Files::with(&settings.root, options)?;
        Ok(handler.otherwise(move |request| files.answer(request)))
    }

    fn proxy(&self, settings: &config::Proxy) -> io::Result<Proxy> {
        let names: Vec<String> = settings.servers.iter().map(ToString::to_string).collect();
        let say = Arc::clone(&self.means.say);
        let mut upstream = Upstream::builder(names.join(", "))
            .backends(settings.servers.iter().map(address))
            .on_log(move |line| say(line));
        // A server that is the only one is never left alone: nobody else could answer.
        if settings.servers.len() == 1 {
            upstream = upstream.failures(u32::MAX);
        }
        if let Some(time) = settings.timeouts.connect {
            upstream = upstream.connect_timeout(time);
        }
        if let Some(count) = settings.keep {
            upstream = upstream.keep(count);
        }
        if let Some(count) = settings.max_requests {
            upstream = upstream.max_leases(count);
        }
        if let Some(health) = &settings.health {
            upstream = upstream.check(check(health));
        }
        let mut proxy = Proxy::new(upstream.build()?)
            .forwarded(settings.forwarded)
            .tunnels(settings.upgrade)
            .host(match &settings.host {
                config::ProxyHost::Client => Host::Preserve,
                config::ProxyHost::Upstream => Host::Backend,
                config::ProxyHost::Fixed(host) => Host::Fixed(host.clone()),
            });
        if let Some(prefix) = &settings.strip {
            proxy = proxy.strip_prefix(prefix);
        }
        if !settings.trust.is_empty() {
            let trust = settings.trust.clone();
            proxy = proxy.trust(move |client| trust.iter().any(|net| net.contains(&client.to_canonical())));
        }
        if let Some(time) = settings.timeouts.first_byte {
            proxy = proxy.first_byte_timeout(time);
        }
        if let Some(time) = settings.timeouts.between {
            proxy = proxy.between_bytes_timeout(time);
        }
        if let Some(time) = settings.tunnel_idle {
            proxy = proxy.tunnel_idle_timeout(time);
        }
        if let Some(bytes) = settings.read_ahead {
            proxy = proxy.read_ahead(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        Ok(proxy)
    }

    fn chat(&self, settings: &config::Chat) -> Chat {
        let options = chat_options(settings);
        let Some(redis) = &settings.redis else {
            return Chat::new(options);
        };
        let say = Arc::clone(&self.means.say);
        let broker = pubsub::Options {
            password: redis.password.clone(),
            log: Box::new(move |line| say(line)),
            ..pubsub::Options::new(address(&redis.server))
        };
        Chat::shared(options, broker, &redis.channel)
    }

    fn rate(&mut self, place: &Place, settings: &rate::Settings) -> Arc<Rate> {
        let kept = take(&self.old.rates, &mut self.taken.1, place, settings);
        let value = kept.unwrap_or_else(|| Arc::new(Rate::new(settings)));
        self.new.rates.push(Part {
            place: place.clone(),
            key: settings.clone(),
            value: Arc::clone(&value),
        });
        value
    }

    fn auth(&self, settings: &crate::auth::Settings) -> Result<Arc<Auth>, String> {
        Auth::open(settings, Arc::clone(&self.means.say))
            .map(Arc::new)
            .map_err(|troubles| troubles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    /// The label of a log, opened unless it is already.
    fn log(&mut self, settings: &Log) -> Result<u32, String> {
        if let Some((_, label, _)) = self.new.logs.iter().find(|(known, ..)| known == settings) {
            return Ok(*label);
        }
        let (label, log) = match self.old.logs.iter().find(|(known, ..)| known == settings) {
            Some((_, label, log)) => (*label, log.clone()),
            None => {
                self.new.next_label += 1;
                (self.new.next_label, open_log(settings)?)
            }
        };
        self.new.logs.push((settings.clone(), label, log));
        Ok(label)
    }
}

fn welcomes(parts: &Parts) -> Vec<Arc<Handler>> {
    let welcomes = parts
        .handlers()
        .filter(|handler| matches!(***handler, Handler::Welcome(_)));
    welcomes.cloned().collect()
}

fn chat_options(settings: &config::Chat) -> chat::Options {
    let default = chat::Options::default();
    let line = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    chat::Options {
        history: settings.history.unwrap_or(default.history),
        line_bytes: settings.line.map_or(default.line_bytes, line),
        rooms: settings.rooms.unwrap_or(default.rooms),
        burst: settings.burst.unwrap_or(default.burst),
        line_every: settings.every.unwrap_or(default.line_every),
        origins: match settings.origins.as_slice() {
            [] => Origins::Same,
            list if list.iter().any(|origin| origin == "*") => Origins::Any,
            list => Origins::These(list.to_vec()),
        },
    }
}

fn check(health: &config::Health) -> Check {
    let mut check = match &health.path {
        Some(path) => Check::http(path.as_str()),
        None => Check::connect(),
    };
    if let Some(time) = health.every {
        check = check.every(time);
    }
    if let Some(time) = health.timeout {
        check = check.limit(time);
    }
    check
}

fn address(server: &config::Upstream) -> Address {
    match server {
        config::Upstream::Tcp(address) => Address::Tcp(address.clone()),
        config::Upstream::Unix(path) => Address::Unix(path.clone()),
    }
}

/// Of the parts with this key, the one nearest to the place that nobody has taken.
fn take<K: PartialEq, V>(old: &[Part<K, V>], taken: &mut [bool], place: &Place, key: &K) -> Option<Arc<V>> {
    let nearness = |part: &Part<K, V>| {
        (
            part.place == *place,
            part.place.route == place.route,
            part.place.site == place.site,
        )
    };
    let (index, part) = old
        .iter()
        .enumerate()
        .filter(|(index, part)| !taken[*index] && part.key == *key)
        .max_by_key(|(index, part)| (nearness(part), std::cmp::Reverse(*index)))?;
    taken[index] = true;
    Some(Arc::clone(&part.value))
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

fn open_log(settings: &Log) -> Result<Option<Arc<AccessLog>>, String> {
    let opened = match &settings.file {
        None => AccessLog::start(settings.format, Box::new(std::io::stderr()))
            .map_err(|error| format!("cannot start a thread: {error}")),
        Some(path) => AccessLog::start_file(settings.format, path)
            .map_err(|error| format!("cannot write the access log '{}': {error}", path.display())),
    };
    opened.map(|log| log.map(Arc::new))
}
