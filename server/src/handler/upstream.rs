//! The settings that `proxy` and `fastcgi` have in common: backend addresses, timeouts, limits and health checks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use osier_web::Address;
use osier_web::upstream::{BackendOptions, Builder, Check, Upstream};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::value::token;
use crate::reader::{At, Section, Source, is_missing};

use super::balance::Balancing;
use super::{Resources, Touch};
use crate::policy::backend_tls::BackendTls;

/// The highest limit of connections or requests to one backend that a configuration may set.
const LIMIT_MAX: u64 = 100_000;

/// The most backends that an upstream takes.
const BACKENDS_MAX: usize = 64;

/// The backends of a gateway. A field that is `None` keeps the gateway's default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Backends {
    list: Vec<(Address, BackendOptions)>,
    balancing: Balancing,
    connect: Option<Duration>,
    keep: Option<usize>,
    max_requests: Option<usize>,
    health: Option<Check>,
    /// None for backends without TLS.
    tls: Option<BackendTls>,
    /// Whether requests go over HTTP/2.
    http2: bool,
}

impl Backends {
    /// One backend, with default settings.
    pub fn one(BackendAddress { address, scheme }: BackendAddress) -> Backends {
        Backends {
            list: vec![(address, BackendOptions::default())],
            tls: (scheme == Scheme::Https).then(BackendTls::default),
            http2: scheme == Scheme::H2c,
            ..Backends::default()
        }
    }

    /// Reads the keys of a gateway. `http`: the backends speak HTTP.
    pub fn read(table: &Section<'_>, timeouts: &Timeouts, http: bool) -> Backends {
        let count = |count: u64| count as usize;
        let (list, scheme) = backends(table, "to", http);
        Backends {
            list,
            balancing: Balancing::read(table),
            connect: timeouts.connect,
            keep: table.integer("keep", 0..=LIMIT_MAX).map(count),
            max_requests: table.integer("max_requests", 1..=LIMIT_MAX).map(count),
            health: health(table, http),
            tls: http.then(|| BackendTls::read(table, scheme == Scheme::Https)).flatten(),
            http2: http && http2(table, scheme),
        }
    }

    /// The paths of the backends' Unix sockets.
    pub fn sockets(&mut self) -> impl Iterator<Item = (Touch, &mut PathBuf)> {
        self.list.iter_mut().filter_map(|(address, _)| socket_of(address))
    }

    /// Builds the upstream. `begin` makes a builder with this name and the gateway's defaults.
    pub fn build(&self, resources: &Resources, begin: impl FnOnce(String) -> Builder) -> io::Result<Upstream> {
        let names: Vec<String> = self.list.iter().map(|(address, _)| address.to_string()).collect();
        let say = resources.say.clone();
        let mut builder = begin(names.join(", ")).on_log(move |record| say.record(record, None));
        for (address, options) in &self.list {
            builder = builder.backend_with(address.clone(), options.clone());
        }
        builder = self.balancing.apply(builder);
        if let Some(time) = self.connect {
            builder = builder.connect_timeout(time);
        }
        if let Some(count) = self.keep {
            builder = builder.keep(count);
        }
        if let Some(count) = self.max_requests {
            builder = builder.max_leases(count);
        }
        if let Some(health) = &self.health {
            builder = builder.check(health.clone());
        }
        if let Some(tls) = &self.tls {
            builder = tls.apply(builder)?;
        }
        builder.http2(self.http2).build()
    }
}

/// Reads `http2`. Only backends with TLS can choose the version.
fn http2(table: &Section<'_>, scheme: Scheme) -> bool {
    let at = table.key("http2");
    let wanted = table.boolean("http2");
    if let (Some(at), Some(_), Scheme::Http | Scheme::H2c) = (at, wanted, scheme) {
        let text = "'http2' is for addresses with https://, whose backends choose the version; a backend that speaks HTTP/2 without \
                    TLS has the address h2c://HOST:PORT";
        table.source().problem(&at, text);
    }
    wanted.unwrap_or(scheme == Scheme::H2c)
}

/// The table `timeouts`. None for the gateway's own default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timeouts {
    connect: Option<Duration>,
    /// Time until the head of the response.
    pub first_byte: Option<Duration>,
    /// Time between two pieces of the response.
    pub between: Option<Duration>,
}

/// The forms of `to`, for messages.
const LISTED: &str = "an address, a table with an 'address', or a list of them";

/// Reads a list of backends, each an address or a table, and their common scheme, which only HTTP backends can choose.
fn backends<'s>(table: &Section<'s>, key: &'static str, http: bool) -> (Vec<(Address, BackendOptions)>, Scheme) {
    let Some(value) = table.any(key) else {
        return (Vec::new(), Scheme::Http);
    };
    let items = match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    };
    let read = items.iter().copied().filter_map(|item| backend(table, key, item, http));
    let list: Vec<(At<BackendAddress>, BackendOptions)> = read.collect();
    let scheme = list.first().map_or(Scheme::Http, |(first, _)| first.value.scheme);
    let source = table.source();
    for (index, backend) in list.iter().enumerate() {
        check_backend(source, backend, &list[..index], scheme);
    }
    if let Some(text) = mistake_of_list(key, items.len(), &list) {
        source.problem(&value.span(), text);
    }
    let list = list.into_iter();
    (
        list.map(|(place, options)| (place.value.address, options)).collect(),
        scheme,
    )
}

/// Notes the mistakes of a backend in a list. `before` are the backends before it, and `scheme` is that of the first
/// one.
fn check_backend(
    source: &Source<'_>,
    (place, options): &(At<BackendAddress>, BackendOptions),
    before: &[(At<BackendAddress>, BackendOptions)],
    scheme: Scheme,
) {
    let At { value, span } = place;
    warn_if_missing(source, span, &value.address);
    if before.iter().any(|(other, _)| other.value.address == value.address) {
        source.problem(span, format!("'{}' is named twice", value.address));
    }
    if value.scheme != scheme {
        let mixed = match (scheme, value.scheme) {
            (Scheme::Http, scheme) | (scheme, _) => scheme.text(),
        };
        let text = format!(
            "some backends have {mixed} and others do not: write it before all addresses of 'to', or before none"
        );
        source.problem(span, text);
    }
    if let Some(id) = &options.id
        && before.iter().any(|(_, other)| other.id.as_ref() == Some(id))
    {
        source.problem(span, format!("two backends have the 'id' \"{id}\"; give each its own"));
    }
}

/// The mistake of a list of `named` backends as a whole, if there is one. `list` holds the backends that could be read.
fn mistake_of_list(key: &str, named: usize, list: &[(At<BackendAddress>, BackendOptions)]) -> Option<String> {
    if named == 0 {
        return Some(format!("'{key}' is an empty list; leave it out, or name something"));
    }
    let count = list.len();
    if count > BACKENDS_MAX {
        return Some(format!(
            "'{key}' names {count} backends; at most {BACKENDS_MAX} are possible"
        ));
    }
    let are_all_backups = count == named && list.iter().all(|(_, options)| options.backup);
    are_all_backups.then(|| format!("every backend of '{key}' is a backup; remove 'backup' from at least one"))
}

/// Reads one backend: its address, or a table with its address and options.
fn backend<'s>(
    table: &Section<'s>,
    key: &'static str,
    item: &'s Spanned<DeValue<'s>>,
    http: bool,
) -> Option<(At<BackendAddress>, BackendOptions)> {
    let source = table.source();
    let place = |text: &str| match http {
        true => backend_address(source, text),
        false => address(source, text).map(BackendAddress::from),
    };
    let DeValue::Table(_) = item.get_ref() else {
        let text = table.as_string(key, item, LISTED)?;
        let address = table.understand(key, text, place)?;
        return Some((address, BackendOptions::default()));
    };
    let table = table.as_section(key, item, LISTED)?;
    table.require(
        "address",
        "where the backend listens, \"127.0.0.1:3000\" or \"unix:/run/app.sock\"",
    );
    let address = table.parsed("address", place);
    let default = BackendOptions::default();
    let options = BackendOptions {
        weight: weight(&table).unwrap_or(default.weight),
        backup: table.boolean("backup").unwrap_or(default.backup),
        id: table.parsed("id", token).map(|id| id.value),
    };
    table.finish();
    Some((address?, options))
}

/// Reads `weight`. A weight of 0 is a common mistake with a remedy of its own.
fn weight(table: &Section<'_>) -> Option<u32> {
    let highest = u64::from(BackendOptions::WEIGHT_MAX);
    let value = table.any("weight")?;
    if let DeValue::Integer(number) = value.get_ref()
        && number.as_str() == "0"
    {
        let text = format!(
            "'weight' must be a whole number from 1 to {highest}, not the number 0; remove a backend that is to get no requests, \
             or make it a backup with 'backup = true'"
        );
        table.source().problem(&value.span(), text);
        return None;
    }
    table.integer("weight", 1..=highest).map(|weight| weight as u32)
}

/// Notes a warning for a Unix socket that does not exist yet.
pub fn warn_if_missing(source: &Source<'_>, at: &Range<usize>, address: &Address) {
    if let Address::Unix(path) = address
        && is_missing(path)
    {
        let shown = source.shown(path);
        let text = format!("there is no socket '{shown}'; requests get 502 until the backend has made it");
        source.warning(at, text);
    }
}

/// The protocol to an HTTP backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    /// HTTP/2 without TLS, from the first byte.
    H2c,
}

impl Scheme {
    fn text(self) -> &'static str {
        match self {
            Scheme::Http => "http://",
            Scheme::Https => "https://",
            Scheme::H2c => H2C,
        }
    }
}

const H2C: &str = "h2c://";

/// The remedies for a wrong address of a backend.
struct Remedies {
    /// The forms of an address.
    forms: &'static str,
    /// The hint after an address that contains a path.
    path: &'static str,
}

/// The remedies for a backend without a scheme.
const OF_OTHERS: Remedies = Remedies {
    forms: "write HOST:PORT or unix:PATH",
    path: "",
};

/// The remedies for a backend of `proxy`.
const OF_HTTP: Remedies = Remedies {
    forms: "write HOST:PORT, http://HOST:PORT, https://HOST, h2c://HOST:PORT or unix:PATH",
    path: ", and see 'strip' or 'rewrite'",
};

/// The address of a backend, with its scheme.
#[derive(Clone, Debug)]
pub struct BackendAddress {
    pub address: Address,
    scheme: Scheme,
}

impl From<Address> for BackendAddress {
    fn from(address: Address) -> BackendAddress {
        let scheme = Scheme::Http;
        BackendAddress { address, scheme }
    }
}

/// Parses the address of an HTTP backend: a host and a port, alone or after a scheme, or the path of a socket.
/// `https://` needs no port.
pub fn backend_address(source: &Source<'_>, text: &str) -> Result<BackendAddress, String> {
    let schemes = [Scheme::Http, Scheme::Https, Scheme::H2c];
    let mut named = schemes
        .iter()
        .filter_map(|scheme| Some((*scheme, text.strip_prefix(scheme.text())?.trim_end_matches('/'))));
    let Some((scheme, rest)) = named.next() else {
        if text.starts_with("ws://") || text.starts_with("wss://") {
            return Err(
                "WebSockets need no scheme of their own; write http:// for ws://, and https:// for wss://".into(),
            );
        }
        return parse(source, text, &OF_HTTP).map(BackendAddress::from);
    };
    let has_port = rest.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let is_socket = rest.starts_with("unix:");
    let address = match scheme {
        Scheme::Http if is_socket && !rest.contains('@') => {
            // nginx has a colon behind the path of a socket.
            let path = rest.split(':').nth(1).unwrap_or_default();
            return Err(format!("did you mean \"unix:{path}\"?"));
        }
        Scheme::Http | Scheme::Https if is_socket => return Err(OF_HTTP.forms.into()),
        Scheme::Https if !has_port && path(rest).is_none() => parse(source, &format!("{rest}:443"), &OF_HTTP)?,
        _ => parse(source, rest, &OF_HTTP)?,
    };
    Ok(BackendAddress { address, scheme })
}

/// Parses `host:port`, or `unix:` and the path of a socket. The socket need not exist yet.
pub fn address(source: &Source<'_>, text: &str) -> Result<Address, String> {
    if text.starts_with("https://") {
        return Err(format!("only HTTP backends of 'proxy' speak TLS; {}", OF_OTHERS.forms));
    }
    if text.starts_with(H2C) {
        return Err(format!("only backends of 'proxy' speak HTTP/2; {}", OF_OTHERS.forms));
    }
    if text.starts_with("http://") {
        return Err(format!("only backends of 'proxy' speak HTTP; {}", OF_OTHERS.forms));
    }
    parse(source, text, &OF_OTHERS)
}

/// Parses an address without a scheme.
fn parse(source: &Source<'_>, text: &str, remedies: &Remedies) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        use std::os::unix::fs::FileTypeExt;
        let path = source.path(path)?;
        let shown = source.shown(&path);
        return match path.metadata() {
            Ok(found) if found.file_type().is_socket() => Ok(Address::Unix(path)),
            Ok(_) => Err(format!("'{shown}' is not a socket")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Address::Unix(path)),
            Err(error) => Err(format!("'{shown}' cannot be used: {error}")),
        };
    }
    // Messages show ports and paths. With a user in the address, these may be a part of a password.
    if text.contains('@') {
        return Err(remedies.forms.into());
    }
    if text.starts_with('/') {
        return Err(format!("did you mean \"unix:{text}\"?"));
    }
    if text.trim_start_matches(':').parse::<u16>().is_ok_and(|port| port > 0) {
        let port = text.trim_start_matches(':');
        return Err(format!("the host is missing; did you mean \"127.0.0.1:{port}\"?"));
    }
    if let Some(path) = path(text) {
        return Err(format!("a backend has no path; remove '{path}'{}", remedies.path));
    }
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    // A number alone is a port.
    let is_host = text.bytes().all(fine) && text.bytes().any(|byte| !byte.is_ascii_digit());
    let (host, port) = match text.rsplit_once(':') {
        Some((_, port)) if is_host && port.ends_with(']') => return Err(portless(remedies)),
        Some(parts) => parts,
        None if is_host => return Err(portless(remedies)),
        None => return Err(remedies.forms.into()),
    };
    if host.is_empty() || !host.bytes().all(fine) || (host.contains(':') && !host.starts_with('[')) {
        return Err(remedies.forms.into());
    }
    // No such name exists: looking it up would fail for each request.
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let ip = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if (is_number && host.parse::<Ipv4Addr>().is_err()) || ip.is_some_and(|ip| ip.parse::<Ipv6Addr>().is_err()) {
        return Err(format!("'{host}' is not an address; {}", remedies.forms));
    }
    match port.parse::<u16>() {
        Ok(1..) if !port.starts_with('+') => Ok(Address::Tcp(format!("{host}:{port}"))),
        _ => Err(format!("'{port}' is not a port; {}", remedies.forms)),
    }
}

/// The message for an address without its port.
fn portless(remedies: &Remedies) -> String {
    format!("the port is missing; {}", remedies.forms)
}

/// The path after a host and an optional port.
fn path(text: &str) -> Option<&str> {
    let (host, path) = text.split_at(text.find('/')?);
    (!host.is_empty() && !host.ends_with(':')).then_some(path)
}

/// The path of the Unix socket of an address, if it has one.
pub fn socket_of(address: &mut Address) -> Option<(Touch, &mut PathBuf)> {
    match address {
        Address::Unix(path) => Some((Touch::Connect, path)),
        Address::Tcp(_) => None,
    }
}

/// Reads the table `timeouts`.
pub fn timeouts(table: &Section<'_>) -> Timeouts {
    let Some(table) = table.section("timeouts") else {
        return Timeouts::default();
    };
    let timeouts = Timeouts {
        connect: table.duration("connect"),
        first_byte: table.duration("first_byte"),
        between: table.duration("between"),
    };
    table.finish();
    timeouts
}

/// A host for a `Host` field, if that is one.
pub fn host_of(text: &str) -> Option<String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!text.is_empty() && text.bytes().all(is_part)).then(|| text.to_owned())
}

/// Reads `health`: how to check each backend. Only an HTTP backend has a `path` and a `host`.
fn health(table: &Section<'_>, http: bool) -> Option<Check> {
    let table = table.section("health")?;
    let path = http.then(|| {
        table.parsed("path", |text| {
            if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(text.to_string())
            } else {
                Err("it begins with '/' and is written as it is sent")
            }
        })
    });
    let host = http.then(|| {
        table.parsed("host", |text| {
            host_of(text).ok_or("write a host, with or without a port")
        })
    });
    let mut check = match path.flatten() {
        Some(path) => Check::http(path.value.as_str()),
        None => Check::connect(),
    };
    if let Some(host) = host.flatten() {
        check = check.host(host.value);
    }
    if let Some(time) = table.duration("every") {
        check = check.every(time);
    }
    if let Some(time) = table.duration("timeout") {
        check = check.limit(time);
    }
    table.finish();
    Some(check)
}
