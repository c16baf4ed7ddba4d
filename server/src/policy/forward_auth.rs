//! `forward_auth`: another server decides who may pass. The check itself is `osier_web::wrap::forward_auth`.

use std::sync::Arc;
use std::time::Duration;

use osier_web::Address;
use osier_web::upstream::Upstream;
use osier_web::wrap::forward_auth::{ForwardAuth, Options};

use crate::log::operator::Say;

/// The settings of `forward_auth`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The address of the authentication server.
    pub to: Address,
    /// The path, with or without a query, that is asked.
    pub path: String,
    pub options: Options,
    /// Time until a connection is made. None for the upstream's own default.
    pub connect: Option<Duration>,
}

/// Makes the check.
///
/// # Errors
/// One line: a name, path or host that cannot stand in a request.
pub fn open(settings: &Settings, say: Say) -> Result<Arc<ForwardAuth>, String> {
    let mut upstream = Upstream::builder(settings.to.to_string())
        .backend(settings.to.clone())
        .on_log(move |record| say.record(record, None));
    if let Some(time) = settings.connect {
        upstream = upstream.connect_timeout(time);
    }
    let upstream = upstream.build().map_err(|error| error.to_string())?;
    let auth = ForwardAuth::with(upstream, settings.path.as_str(), settings.options.clone());
    auth.map(Arc::new).map_err(|error| format!("forward_auth: {error}"))
}

/// Splits `http://HOST:PORT/PATH` into the part for the address and the path.
///
/// # Errors
/// One line: what to write.
pub fn split(url: &str) -> Result<(String, String), String> {
    let wanted = "write it as \"http://HOST:PORT/PATH\", or { to = \"unix:PATH\", path = \"/PATH\" }";
    if url.starts_with("unix:") {
        return Ok((url.to_owned(), "/".to_owned()));
    }
    if url.starts_with("https://") {
        return Err(format!("TLS to an authentication server is not supported; {wanted}"));
    }
    let rest = url.strip_prefix("http://").ok_or(wanted)?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.contains('@') || path.contains('#') {
        return Err(wanted.to_owned());
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let address = match has_port {
        true => authority.to_owned(),
        false => format!("{authority}:80"),
    };
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    Ok((address, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_address_and_a_path() {
        for (url, address, path) in [
            ("http://127.0.0.1:4180/check", "127.0.0.1:4180", "/check"),
            ("http://auth.example/check?a=b", "auth.example:80", "/check?a=b"),
            ("http://auth.example", "auth.example:80", "/"),
            ("http://[::1]/x", "[::1]:80", "/x"),
            ("http://[::1]:9/x", "[::1]:9", "/x"),
            ("http://a:1?b", "a:1", "/?b"),
            ("unix:/run/auth.sock", "unix:/run/auth.sock", "/"),
        ] {
            assert_eq!(split(url), Ok((address.to_owned(), path.to_owned())), "{url}");
        }
        for url in [
            "https://a/",
            "127.0.0.1:4180",
            "ftp://a/",
            "http://user@a/",
            "http://a/#b",
            "",
        ] {
            assert!(split(url).is_err(), "{url}");
        }
    }
}
