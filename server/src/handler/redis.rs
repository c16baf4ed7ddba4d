//! The address of a Redis server in the configuration: a URL, and `ca` for TLS.

use std::path::PathBuf;

use osier_web::{Address, pubsub};

use crate::policy::backend_tls::BackendTls;
use crate::reader::{Section, Source};

use super::Touch;
use super::upstream::{address, socket_of};

/// The default port of Redis.
const PORT: u16 = 6379;

/// The beginning of a URL of a server with TLS.
const REDISS: &str = "rediss://";

/// A Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisServer {
    pub server: Address,
    pub password: Option<String>,
    pub tls: Option<BackendTls>,
}

impl RedisServer {
    /// Reads the keys `redis` and `ca` of a table. Reported mistakes do not show the password.
    pub fn read(table: &Section<'_>) -> Option<RedisServer> {
        const CA: &str = "'ca' is for TLS to Redis: redis = \"rediss://HOST:PORT\"";
        let (url, ca_at) = (table.string("redis"), table.key("ca"));
        if let (None, Some(at)) = (table.key("redis"), &ca_at) {
            table.source().problem(at, CA);
        }
        let url = url?;
        let read = redis_url(table.source(), &url.value);
        let ca = table.content("ca");
        let (server, password) = read
            .map_err(|why| table.source().problem(&url.span, format!("'redis': {why}")))
            .ok()?;
        let is_tls = url.value.starts_with(REDISS);
        if let (false, Some(at)) = (is_tls, ca_at) {
            table.source().problem(&at, CA);
        }
        Some(RedisServer {
            server,
            password,
            tls: is_tls.then(|| BackendTls::of_ca(ca.map(|(_, pem)| pem))),
        })
    }

    /// The Unix socket of the server, if it has one.
    pub fn socket(&mut self) -> Option<(Touch, &mut PathBuf)> {
        socket_of(&mut self.server)
    }

    /// Makes a client. It connects when it is first used.
    ///
    /// # Errors
    /// One line: TLS cannot be set up.
    pub fn client(&self) -> Result<pubsub::Client, String> {
        let mut client = pubsub::Client::new(self.server.clone());
        if let Some(password) = &self.password {
            client = client.password(password);
        }
        if let Some(tls) = &self.tls {
            let connector = tls.connector(None);
            client = client.tls(connector.map_err(|error| format!("cannot speak TLS to Redis: {error}"))?);
        }
        Ok(client)
    }
}

/// Parses `redis://[:PASSWORD@]HOST[:PORT]`, the same with [`REDISS`], or `redis+unix:///PATH`.
fn redis_url(source: &Source<'_>, text: &str) -> Result<(Address, Option<String>), String> {
    const WANTED: &str =
        "write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT, rediss:// for TLS, or redis+unix:///PATH";
    if let Some(path) = text.strip_prefix("redis+unix://") {
        let path = match path.starts_with('/') {
            true => source.path(path)?,
            false => return Err(WANTED.into()),
        };
        return Ok((Address::Unix(path), None));
    }
    let rest = text.strip_prefix("redis://").or_else(|| text.strip_prefix(REDISS));
    let rest = rest.ok_or(WANTED)?;
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest),
    };
    let password = match user.map(|user| user.split_once(':')) {
        None => None,
        Some(Some(("", password))) => {
            let decoded =
                osier_web::percent_decode(password.as_bytes()).and_then(|bytes| String::from_utf8(bytes).ok());
            Some(decoded.ok_or("the password has a '%' without two hexadecimal digits; write '%' itself as '%25'")?)
        }
        Some(_) => return Err(format!("Redis user names are not supported, only a password; {WANTED}")),
    };
    // The number of a database is ignored: published messages reach every database of a server.
    let (place, database) = place.split_once('/').unwrap_or((place, ""));
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("only the number of a database may follow the port; {WANTED}"));
    }
    let is_plain = place
        .rsplit_once(':')
        .is_none_or(|(host, _)| host.ends_with(']') && place.ends_with(']'));
    let place = if is_plain && !place.is_empty() {
        format!("{place}:{PORT}")
    } else {
        place.into()
    };
    match address(source, &place) {
        Ok(server @ Address::Tcp(_)) => Ok((server, password)),
        _ => Err(WANTED.into()),
    }
}
