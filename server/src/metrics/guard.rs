//! Restricts live data and the fiber dump to clients on this machine, unless `--live-for-all` opens them to everybody.
//! An admin listener on a loopback address uses [`check_name`], and [`check_site`] for the fiber dump.
//!
//! The address of the connection must be a loopback address; a client of a Unix socket counts as another machine. No
//! header field widens access. A request is refused if it has one of these fields:
//!
//! - `X-Forwarded-For`, `Forwarded` or a similar field: a proxy on this machine speaks for another client.
//! - A `Host` that is not a loopback name: another site has pointed its name to this machine (DNS rebinding).
//! - `Sec-Fetch-Site: cross-site`: a page of another site made the browser send the request. It is refused with
//!   `--live-for-all` too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use osier_web::http::StatusCode;
use osier_web::{Request, Response};

/// Header fields that proxies add.
const PROXIED: [&str; 4] = ["x-forwarded-for", "forwarded", "x-real-ip", "via"];

/// Checks whether a request may see live data.
///
/// # Errors
/// The 403 response to send otherwise.
pub fn check(request: &Request<'_>, for_all: bool) -> Result<(), Response> {
    let has = |name| request.header(name).is_some();
    let is_local =
        is_loopback(request.peer()) && !PROXIED.into_iter().any(has) && request.host().is_some_and(is_loopback_name);
    if !for_all && !is_local {
        return Err(refusal(
            "live data is shown to visitors on the same machine; --live-for-all, or live_for_all = true in a \
             configuration, shows it to everybody\n",
        ));
    }
    check_site(request)
}

/// Checks that no page of another site makes the browser send a request that is costly to answer.
///
/// # Errors
/// The 403 response to send otherwise.
pub fn check_site(request: &Request<'_>) -> Result<(), Response> {
    match request.header("sec-fetch-site") {
        Some(b"cross-site") => Err(refusal("pages of other sites may not read live data\n")),
        _ => Ok(()),
    }
}

/// Checks the `Host` of a request to a listener that only this machine reaches. A page of another site reaches it too,
/// if that site has pointed its name to this machine (DNS rebinding). Such a name has a dot, and is neither an address
/// nor a name of this machine.
///
/// # Errors
/// The 403 response to send otherwise.
pub fn check_name(request: &Request<'_>) -> Result<(), Response> {
    let is_address = |host: &str| host.starts_with('[') || host.split(':').next().is_some_and(is_ipv4);
    match request.host() {
        Some(host) if host.contains('.') && !is_address(host) && !is_loopback_name(host) => Err(refusal(
            "this page is for this machine: ask for localhost or an address, not for another name\n",
        )),
        _ => Ok(()),
    }
}

fn is_ipv4(host: &str) -> bool {
    host.parse::<Ipv4Addr>().is_ok()
}

fn refusal(why: &'static str) -> Response {
    Response::new(StatusCode::FORBIDDEN).body(why)
}

/// Whether the peer is on this machine. A client of a Unix socket counts as another machine: it is probably a proxy.
fn is_loopback(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// Whether `host` or `host:port` can only be a name of this machine.
fn is_loopback_name(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            let host = host.trim_end_matches('.');
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_many_addresses() {
        for here in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_loopback(here.parse().unwrap()), "{here}");
        }
        for there in [
            "0.0.0.0:0",
            "192.0.2.1:1",
            "[::]:1",
            "[::ffff:192.0.2.1]:1",
            "[fe80::1]:1",
        ] {
            assert!(!is_loopback(there.parse().unwrap()), "{there}");
        }
    }

    #[test]
    fn and_few_names() {
        for here in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(is_loopback_name(here), "{here}");
        }
        for there in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "192.0.2.1:80",
            "[::]:80",
            "notlocalhost",
        ] {
            assert!(!is_loopback_name(there), "{there}");
        }
    }
}
