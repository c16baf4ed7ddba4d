//! How a route names backends, and what it may say of each group of them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use osier_web::Address;
use osier_web::upstream::Check;

use crate::reader::{Section, Source};

use super::Touch;

/// The most connections or requests of one backend that can be named.
const MAX_KEPT: u64 = 100_000;

/// `timeouts`. None for the handler's own default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timeouts {
    pub connect: Option<Duration>,
    /// Time to the head of the response.
    pub first_byte: Option<Duration>,
    /// Time between bytes of the response.
    pub between: Option<Duration>,
}

pub fn addresses(table: &Section<'_>, key: &'static str) -> Vec<Address> {
    let list = table
        .parsed_list(key, |text| address(table.source(), text))
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
pub fn address(source: &Source<'_>, text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        use std::os::unix::fs::FileTypeExt;
        let path = source.path(path)?;
        let shown = source.shown(&path);
        return match path.metadata() {
            Ok(found) if found.file_type().is_socket() => Ok(Address::Unix(path)),
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
        Ok(1..) if !port.starts_with('+') => Ok(Address::Tcp(format!("{host}:{port}"))),
        _ => Err(format!("'{port}' is not a port; {wanted}")),
    }
}

/// The socket of a backend that listens on one.
pub fn socket_of(server: &mut Address) -> Option<(Touch, &mut PathBuf)> {
    match server {
        Address::Unix(path) => Some((Touch::Connect, path)),
        Address::Tcp(_) => None,
    }
}

/// `keep`: idle connections kept to each backend.
pub fn keep(table: &Section<'_>) -> Option<usize> {
    table.integer("keep", 0..=MAX_KEPT).map(|count| count as usize)
}

/// `max_requests` at one backend at once.
pub fn max_requests(table: &Section<'_>) -> Option<usize> {
    table.integer("max_requests", 1..=MAX_KEPT).map(|count| count as usize)
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

/// `health`: how each backend is asked whether it is well. Only an HTTP backend has a `path`.
pub fn health(table: &Section<'_>, http: bool) -> Option<Check> {
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
