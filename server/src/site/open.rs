//! Handlers that hold something worth keeping (caches, connections, rooms), made from their settings.
//!
//! Called by `build.rs` for each that an older snapshot does not have.

use std::io;
use std::path::Path;
use std::sync::Arc;

use osier_web::Address;
use osier_web::chat::{self, Chat};
use osier_web::compress;
use osier_web::fastcgi::{self, FastCgi};
use osier_web::files::{Files, Options};
use osier_web::proxy::{Host, Proxy};
use osier_web::pubsub;
use osier_web::upstream::{Check, Upstream};
use osier_web::ws::Origins;

use crate::config;
use crate::welcome::Welcome;

use super::build::Means;
use super::handler::{Handler, Mounted};

pub fn open(
    settings: &config::Handler,
    compress: Option<&compress::Settings>,
    means: &Means,
) -> Result<Handler, String> {
    let cannot = |root: &Path, error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no such folder".into(),
            io::ErrorKind::NotADirectory => {
                "it is not a folder; a configuration file has a name that ends in .toml".into()
            }
            io::ErrorKind::PermissionDenied => "this user may not read it".into(),
            _ => error.to_string(),
        };
        format!("cannot serve '{}': {why}", root.display())
    };
    match settings {
        config::Handler::Files(settings) => {
            let options = Options {
                index: settings.index.clone(),
                listing: settings.listing,
                spa: settings.spa,
                hidden: settings.hidden,
                precompressed: settings.precompressed,
                compress: compress.cloned(),
                cache: means.cache,
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
            let handler = fastcgi(settings, means).map_err(|error| cannot(&settings.root, error))?;
            Ok(Handler::Gateway(Box::new(handler.handler())))
        }
        config::Handler::Proxy(settings) => {
            let handler = proxy(settings, means).map_err(|error| format!("cannot set up a proxy: {error}"))?;
            Ok(Handler::Gateway(Box::new(handler.handler())))
        }
        config::Handler::Chat(settings) => Ok(Handler::Chat(chat(settings, means))),
        config::Handler::Welcome(settings) => {
            let connections = Arc::clone(&means.connections);
            let welcome = Welcome::new(settings.live_for_all, means.workers, connections);
            Ok(Handler::Welcome(welcome))
        }
        _ => unreachable!("made by Builder::handler"),
    }
}

fn fastcgi(settings: &config::Fastcgi, means: &Means) -> io::Result<FastCgi> {
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
        cache: means.cache,
        ..Options::default()
    };
    let files = Files::with(&settings.root, options)?;
    Ok(handler.otherwise(move |request| files.answer(request)))
}

fn proxy(settings: &config::Proxy, means: &Means) -> io::Result<Proxy> {
    let names: Vec<String> = settings.servers.iter().map(ToString::to_string).collect();
    let say = Arc::clone(&means.say);
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
    if let Some(time) = settings.tunnel_half_closed {
        proxy = proxy.tunnel_half_closed_timeout(time);
    }
    if let Some(bytes) = settings.read_ahead {
        proxy = proxy.read_ahead(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    Ok(proxy)
}

fn chat(settings: &config::Chat, means: &Means) -> Chat {
    let options = chat_options(settings);
    let Some(redis) = &settings.redis else {
        return Chat::new(options);
    };
    let say = Arc::clone(&means.say);
    let broker = pubsub::Options {
        password: redis.password.clone(),
        log: Box::new(move |line| say(line)),
        ..pubsub::Options::new(address(&redis.server))
    };
    Chat::shared(options, broker, &redis.channel)
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
