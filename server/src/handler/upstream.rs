//! The settings that `proxy` and `fastcgi` have in common: backend addresses, timeouts, limits and health checks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use osier_web::Address;
use osier_web::upstream::{Builder, Check, Upstream};

use crate::reader::{At, Section, Source};

use super::{Means, Touch};

/// The highest limit of connections or requests to one backend that a configuration may set.
const MAX_KEPT: u64 = 100_000;

/// The backends of a gateway. None for the gateway's own default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Backends {
    addresses: Vec<Address>,
    connect: Option<Duration>,
    keep: Option<usize>,
    max_requests: Option<usize>,
    health: Option<Check>,
}

impl Backends {
    /// One backend, with default settings.
    pub fn one(address: Address) -> Backends {
        Backends {
            addresses: vec![address],
            ..Backends::default()
        }
    }

    /// Reads the keys of a gateway. Only an HTTP backend has a health check with a `path`.
    pub fn read(table: &Section<'_>, timeouts: &Timeouts, http: bool) -> Backends {
        let count = |count: u64| count as usize;
        Backends {
            addresses: addresses(table, "to"),
            connect: timeouts.connect,
            keep: table.integer("keep", 0..=MAX_KEPT).map(count),
            max_requests: table.integer("max_requests", 1..=MAX_KEPT).map(count),
            health: health(table, http),
        }
    }

    /// The paths of the backends' Unix sockets.
    pub fn sockets(&mut self) -> impl Iterator<Item = (Touch, &mut PathBuf)> {
        self.addresses.iter_mut().filter_map(socket_of)
    }

    /// Builds the upstream. `begin` makes a builder of a name and the addresses, with the gateway's defaults.
    pub fn build(&self, means: &Means, begin: impl FnOnce(String, Vec<Address>) -> Builder) -> io::Result<Upstream> {
        let names: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let say = Arc::clone(&means.say);
        let mut builder = begin(names.join(", "), self.addresses.clone()).on_log(move |line| say(line));
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
        builder.build()
    }
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

fn addresses(table: &Section<'_>, key: &'static str) -> Vec<Address> {
    let list = table
        .parsed_list(key, |text| address(table.source(), text))
        .unwrap_or_default();
    list.iter().for_each(|one| expect(table.source(), one));
    for (index, one) in list.iter().enumerate() {
        if list[..index].iter().any(|other| other.value == one.value) {
            table
                .source()
                .problem(&one.span, format!("'{}' is named twice", one.value));
        }
    }
    list.into_iter().map(|at| at.value).collect()
}

/// Notes a warning for a Unix socket that does not exist yet.
pub fn expect(source: &Source<'_>, address: &At<Address>) {
    if let Address::Unix(path) = &address.value
        && super::is_missing(path)
    {
        let shown = source.shown(path);
        let text = format!("there is no socket '{shown}'; requests get 502 until the backend has made it");
        source.warning(&address.span, text);
    }
}

/// Parses `host:port`, or `unix:` and the path of a socket. The socket need not exist yet.
pub fn address(source: &Source<'_>, text: &str) -> Result<Address, String> {
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
    let bare = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let wanted = "write HOST:PORT or unix:PATH";
    if text.starts_with("https://") {
        return Err(format!("TLS to a backend is not supported; {wanted}"));
    }
    let Some((host, port)) = bare.unwrap_or(text).rsplit_once(':') else {
        return Err(wanted.into());
    };
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    if host.is_empty() || !host.bytes().all(fine) || (host.contains(':') && !host.starts_with('[')) {
        return Err(wanted.into());
    }
    // Such a name exists nowhere. Looking it up would fail for each request.
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let ip = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if (is_number && host.parse::<Ipv4Addr>().is_err()) || ip.is_some_and(|ip| ip.parse::<Ipv6Addr>().is_err()) {
        return Err(format!("'{host}' is not an address; {wanted}"));
    }
    match port.parse::<u16>() {
        Ok(1..) if !port.starts_with('+') => Ok(Address::Tcp(format!("{host}:{port}"))),
        _ => Err(format!("'{port}' is not a port; {wanted}")),
    }
}

/// The path of a Unix socket.
pub fn socket_of(address: &mut Address) -> Option<(Touch, &mut PathBuf)> {
    match address {
        Address::Unix(path) => Some((Touch::Connect, path)),
        Address::Tcp(_) => None,
    }
}

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

/// Reads `health`: how to check each backend. Only an HTTP backend has a `path`.
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
    let mut check = match path.flatten() {
        Some(path) => Check::http(path.value.as_str()),
        None => Check::connect(),
    };
    if let Some(time) = table.duration("every") {
        check = check.every(time);
    }
    if let Some(time) = table.duration("timeout") {
        check = check.limit(time);
    }
    table.finish();
    Some(check)
}
