//! Handlers that speak with another server, `fastcgi` and `proxy`, and how such servers are named.
//!
//! Called by `handler.rs`.

use std::net::{Ipv4Addr, Ipv6Addr};

use toml::Spanned;
use toml::de::DeValue;

use super::handler::{Form, form, strip};
use super::reader::{At, Section, Source};
use super::settings::*;
use super::top::values;
use crate::policy::client::net;

/// The most connections or requests of one upstream that can be named.
const MAX_KEPT: u64 = 100_000;
/// Where Redis listens unless somebody says otherwise.
const REDIS_PORT: u16 = 6379;

pub fn fastcgi<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Fastcgi> {
    let table = section.as_section("fastcgi", value, "a table")?;
    table.require(
        "to",
        "where the application listens, \"unix:/run/php/php-fpm.sock\" for example",
    );
    table.require("root", "the folder of the scripts");
    let servers = upstreams(&table, "to");
    let root = table.folder("root");
    let index = table.parsed_list("index", |text| match text {
        "" => Err("it is empty"),
        _ if text.contains('/') => Err("it is not the name of a file"),
        _ => Ok(text.to_string()),
    });
    let suffixes = table.parsed_list("suffix", |text| {
        if text.len() > 1 && text.starts_with('.') && !text.contains('/') {
            Ok(text.to_string())
        } else {
            Err("it begins with a dot, \".php\" for example")
        }
    });
    let front = table.parsed("front", |text| match text.strip_prefix('/') {
        Some("") | None => Err("it is the path of a script below the root, \"/index.php\" for example"),
        Some(_) => Ok(text.to_string()),
    });
    let params = table.section("params").map(|params| {
        let pair = |(name, value): (At<String>, At<String>)| (name.value, value.value);
        params.entries().into_iter().map(pair).collect()
    });
    let fastcgi = Fastcgi {
        servers,
        root: root.clone().unwrap_or_default(),
        suffixes: suffixes.map_or_else(|| vec![".php".into()], |list| values(Some(list))),
        index: index.map_or_else(|| vec!["index.php".into()], |list| values(Some(list))),
        front: front.map(|front| front.value),
        files: table.boolean("files").unwrap_or(false),
        application_root: table
            .string("application_root")
            .map(|path| path.value.into())
            .or_else(|| {
                // The application has not moved with this process.
                let root = root.as_deref().filter(|_| table.source().is_inside());
                root.map(|root| table.source().shown(root).into())
            }),
        internal_root: table.folder("internal_root"),
        params: params.unwrap_or_default(),
        server_name: table.string("server_name").map(|name| name.value),
        https: table.boolean("https").unwrap_or(false),
        hide: values(table.parsed_list("hide", super::policy::token)),
        keep: table.integer("keep", 0..=MAX_KEPT).map(|count| count as usize),
        max_requests: table.integer("max_requests", 1..=MAX_KEPT).map(|count| count as usize),
        timeouts: timeouts(&table),
        health: health(&table, false),
    };
    table.finish();
    root.map(|_| fastcgi)
}

pub fn proxy<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Proxy> {
    let mut proxy = Proxy {
        servers: Vec::new(),
        strip: None,
        host: ProxyHost::Client,
        timeouts: UpstreamTimeouts::default(),
        tunnel_idle: None,
        tunnel_half_closed: None,
        health: None,
        trust: Vec::new(),
        forwarded: true,
        upgrade: true,
        read_ahead: None,
        keep: None,
        max_requests: None,
    };
    let table = match form(section, "proxy", value, "the upstream's address")? {
        Form::Short(text) => {
            let server = section.understand("proxy", text, |text| upstream(section.source(), text))?;
            proxy.servers.push(server.value);
            return Some(proxy);
        }
        Form::Table(table) => table,
    };
    table.require(
        "to",
        "where the application listens, \"127.0.0.1:3000\" or \"unix:/run/app.sock\"",
    );
    proxy.servers = upstreams(&table, "to");
    proxy.strip = strip(&table, matches);
    let host = table.parsed("host", |text| match text {
        "client" => Ok(ProxyHost::Client),
        "upstream" => Ok(ProxyHost::Upstream),
        _ if text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)) =>
        {
            Ok(ProxyHost::Fixed(text.into()))
        }
        _ => Err("write \"client\", \"upstream\" or a host"),
    });
    proxy.host = host.map_or(ProxyHost::Client, |host| host.value);
    proxy.timeouts = timeouts(&table);
    proxy.tunnel_idle = table.duration("tunnel_idle");
    proxy.tunnel_half_closed = table.duration("tunnel_half_closed");
    proxy.health = health(&table, true);
    proxy.trust = values(table.parsed_list("trust", net));
    proxy.forwarded = table.boolean("forwarded").unwrap_or(true);
    proxy.upgrade = table.boolean("upgrade").unwrap_or(true);
    proxy.read_ahead = table.size("read_ahead");
    proxy.keep = table.integer("keep", 0..=MAX_KEPT).map(|count| count as usize);
    proxy.max_requests = table.integer("max_requests", 1..=MAX_KEPT).map(|count| count as usize);
    table.finish();
    Some(proxy)
}

fn upstreams(table: &Section<'_>, key: &'static str) -> Vec<Upstream> {
    let list = table
        .parsed_list(key, |text| upstream(table.source(), text))
        .unwrap_or_default();
    for (index, one) in list.iter().enumerate() {
        if list[..index].iter().any(|other| other.value == one.value) {
            table
                .source()
                .problem(&one.span, format!("'{}' is named twice", one.value));
        }
    }
    list.into_iter().map(|at| at.value).collect()
}

/// `host:port`, or `unix:` and a socket that is there.
fn upstream(source: &Source<'_>, text: &str) -> Result<Upstream, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        use std::os::unix::fs::FileTypeExt;
        let path = source.path(path)?;
        let shown = source.shown(&path);
        return match path.metadata() {
            Ok(found) if found.file_type().is_socket() => Ok(Upstream::Unix(path)),
            Ok(_) => Err(format!("'{shown}' is not a socket")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("there is no socket '{shown}'; start the application first"))
            }
            Err(error) => Err(format!("'{shown}' cannot be used: {error}")),
        };
    }
    let bare = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let wanted = "write HOST:PORT or unix:PATH";
    if text.starts_with("https://") {
        return Err(format!("TLS to an upstream is not offered; {wanted}"));
    }
    let Some((host, port)) = bare.unwrap_or(text).rsplit_once(':') else {
        return Err(wanted.into());
    };
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    if host.is_empty() || !host.bytes().all(fine) || (host.contains(':') && !host.starts_with('[')) {
        return Err(wanted.into());
    }
    // Nobody's name: it would be looked up in vain for each request.
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let ip = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if (is_number && host.parse::<Ipv4Addr>().is_err()) || ip.is_some_and(|ip| ip.parse::<Ipv6Addr>().is_err()) {
        return Err(format!("'{host}' is no address; {wanted}"));
    }
    match port.parse::<u16>() {
        Ok(1..) if !port.starts_with('+') => Ok(Upstream::Tcp(format!("{host}:{port}"))),
        _ => Err(format!("'{port}' is not a port; {wanted}")),
    }
}

fn timeouts(table: &Section<'_>) -> UpstreamTimeouts {
    let Some(table) = table.section("timeouts") else {
        return UpstreamTimeouts::default();
    };
    let timeouts = UpstreamTimeouts {
        connect: table.duration("connect"),
        first_byte: table.duration("first_byte"),
        between: table.duration("between"),
    };
    table.finish();
    timeouts
}

fn health(table: &Section<'_>, http: bool) -> Option<Health> {
    let table = table.section("health")?;
    let path = |table: &Section<'_>| {
        table.parsed("path", |text| {
            if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(text.to_string())
            } else {
                Err("it begins with '/' and is written as it is sent")
            }
        })
    };
    let health = Health {
        path: if http {
            path(&table).map(|path| path.value)
        } else {
            None
        },
        every: table.duration("every"),
        timeout: table.duration("timeout"),
    };
    table.finish();
    Some(health)
}

/// `redis://[:PASSWORD@]HOST[:PORT]`, or `redis+unix:///PATH`.
pub fn redis_url(source: &Source<'_>, text: &str) -> Result<(Upstream, Option<String>), String> {
    const WANTED: &str = "write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT or redis+unix:///PATH";
    if let Some(path) = text.strip_prefix("redis+unix://") {
        let path = match path.starts_with('/') {
            true => source.path(path)?,
            false => return Err(WANTED.into()),
        };
        return Ok((Upstream::Unix(path), None));
    }
    if text.starts_with("rediss://") {
        return Err(format!("TLS to Redis is not offered; {WANTED}"));
    }
    let rest = text.strip_prefix("redis://").ok_or(WANTED)?;
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest),
    };
    let password = match user.map(|user| user.split_once(':')) {
        None => None,
        Some(Some(("", password))) => {
            let decoded =
                osier_web::percent_decode(password.as_bytes()).and_then(|bytes| String::from_utf8(bytes).ok());
            Some(decoded.ok_or("the password has a '%' that begins no escape")?)
        }
        Some(_) => return Err(format!("users of Redis are not offered, its password is; {WANTED}")),
    };
    // Messages go through all databases of a server.
    let (place, database) = place.split_once('/').unwrap_or((place, ""));
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("what follows the port is the number of a database; {WANTED}"));
    }
    let is_plain = place
        .rsplit_once(':')
        .is_none_or(|(host, _)| host.ends_with(']') && place.ends_with(']'));
    let place = if is_plain && !place.is_empty() {
        format!("{place}:{REDIS_PORT}")
    } else {
        place.into()
    };
    match upstream(source, &place) {
        Ok(server @ Upstream::Tcp(_)) => Ok((server, password)),
        _ => Err(WANTED.into()),
    }
}
