//! `forward_auth`: another server decides who may pass. The check itself is `osier_web::wrap::forward_auth`.

use std::sync::Arc;
use std::time::Duration;

use osier_web::upstream::Upstream;
use osier_web::wrap::forward_auth::{ForwardAuth, Options};
use osier_web::{Address, Request, Response};

use crate::log::operator::Say;
use crate::policy::backend_tls::BackendTls;

/// The settings of `forward_auth`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The address of the authentication server.
    pub to: Address,
    /// TLS with that server. None for a connection in the clear.
    pub tls: Option<BackendTls>,
    /// The path, with or without a query, that is asked.
    pub path: String,
    pub options: Options,
    /// The field of a 2xx response with the name of the user. It is one of `options.response_headers`.
    pub user: Option<String>,
    /// Time until a connection is made. None for the upstream's own default.
    pub connect: Option<Duration>,
}

/// Asks an authentication server about each request.
pub struct AuthServer {
    asking: ForwardAuth,
    user: Option<String>,
}

impl AuthServer {
    /// Asks about one request. Its user is known to the log then, unless `auth` or `jwt` has named one.
    ///
    /// # Errors
    /// The response to a request that does not pass.
    ///
    /// # Suspends
    /// Until the server has answered.
    pub fn check(&self, request: &mut Request<'_>) -> Result<(), Response> {
        self.asking.check(request)?;
        // The client's own fields of this name are gone.
        let name = self.user.as_ref().and_then(|field| request.header(field));
        if request.user().is_none()
            && let Some(name) = name.filter(|name| !name.is_empty())
        {
            request.set_user(String::from_utf8_lossy(name));
        }
        Ok(())
    }

    /// Finishes the response to a request that has passed.
    pub fn finish(&self, request: &Request<'_>, response: Response) -> Response {
        self.asking.finish(request, response)
    }
}

/// Makes the check.
///
/// # Errors
/// One line: a name, path or host that cannot stand in a request.
pub fn open(settings: &Settings, say: Say) -> Result<Arc<AuthServer>, String> {
    let mut upstream = Upstream::builder(settings.to.to_string())
        .backend(settings.to.clone())
        .on_log(move |record| say.record(record, None));
    if let Some(time) = settings.connect {
        upstream = upstream.connect_timeout(time);
    }
    if let Some(tls) = &settings.tls {
        upstream = tls.apply(upstream).map_err(|error| format!("forward_auth: {error}"))?;
    }
    let upstream = upstream.build().map_err(|error| error.to_string())?;
    let auth = ForwardAuth::with(upstream, settings.path.as_str(), settings.options.clone());
    let asking = auth.map_err(|error| format!("forward_auth: {error}"))?;
    let user = settings.user.clone();
    Ok(Arc::new(AuthServer { asking, user }))
}

/// The parts of the URL of an authentication server.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    pub address: String,
    /// The path, with or without a query.
    pub path: String,
    pub is_tls: bool,
}

/// Splits `http://HOST:PORT/PATH`, the same with `https`, or `unix:PATH`.
///
/// # Errors
/// One line: what to write.
pub fn split(url: &str) -> Result<Parts, String> {
    let wanted = "write it as \"http://HOST:PORT/PATH\", \"https://HOST:PORT/PATH\", or { to = \"unix:PATH\", path = \"/PATH\" }";
    if url.starts_with("unix:") {
        return Ok(Parts {
            address: url.to_owned(),
            path: "/".to_owned(),
            is_tls: false,
        });
    }
    let (rest, port, is_tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, 80, false),
        (None, Some(rest)) => (rest, 443, true),
        (None, None) => return Err(wanted.to_owned()),
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.contains('@') || path.contains('#') {
        return Err(wanted.to_owned());
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let address = match has_port {
        true => authority.to_owned(),
        false => format!("{authority}:{port}"),
    };
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    Ok(Parts { address, path, is_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_address_and_a_path() {
        for (url, address, path, is_tls) in [
            ("http://127.0.0.1:4180/check", "127.0.0.1:4180", "/check", false),
            ("http://auth.example/check?a=b", "auth.example:80", "/check?a=b", false),
            ("http://auth.example", "auth.example:80", "/", false),
            ("http://[::1]/x", "[::1]:80", "/x", false),
            ("http://[::1]:9/x", "[::1]:9", "/x", false),
            ("http://a:1?b", "a:1", "/?b", false),
            ("https://auth.example/x", "auth.example:443", "/x", true),
            ("https://[::1]:9/x", "[::1]:9", "/x", true),
            ("unix:/run/auth.sock", "unix:/run/auth.sock", "/", false),
        ] {
            let parts = Parts {
                address: address.to_owned(),
                path: path.to_owned(),
                is_tls,
            };
            assert_eq!(split(url), Ok(parts), "{url}");
        }
        for url in [
            "https://user@a/",
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
