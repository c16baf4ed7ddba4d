//! `chat`: chat rooms over WebSockets.

use std::path::PathBuf;

use osier_web::chat::{self, Options};
use osier_web::ws::Origins;
use osier_web::{Address, Request, Response, pubsub};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::value::origin;
use crate::reader::{Section, Source, values};

use super::upstream::{address, socket_of};
use super::{Configured, Handler, Match, Means, Opened, Route, Touch};
use crate::policy::backend_tls::BackendTls;

/// The highest limit of rooms that a configuration may set.
const MAX_ROOMS: u64 = 100_000;
/// The most lines that a room may be configured to remember.
const MAX_HISTORY: u64 = 1000;
/// The default channel of a chat over Redis.
const CHANNEL: &str = "osier-chat";
/// The default port of Redis.
const REDIS_PORT: u16 = 6379;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    options: Options,
    redis: Option<Redis>,
}

/// A broker that carries a chat's lines to other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Redis {
    server: Address,
    password: Option<String>,
    tls: Option<BackendTls>,
    /// Channel name. Chats with the same channel are one chat.
    channel: String,
}

impl Configured for Chat {
    const IS_KEPT: bool = true;

    /// Reads `chat = true`, or a table.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Chat> {
        if let DeValue::Boolean(true) = value.get_ref() {
            return Some(Chat::default());
        }
        let table = section.as_section("chat", value, "true, or a table")?;
        let default = Options::default();
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let count = |key, range| table.integer(key, range).map(|count| count as usize);
        let options = Options {
            history: count("history", 0..=MAX_HISTORY).unwrap_or(default.history),
            line_bytes: table.size("message").map_or(default.line_bytes, size),
            rooms: count("rooms", 1..=MAX_ROOMS).unwrap_or(default.rooms),
            rooms_per_client: count("rooms_per_client", 1..=MAX_ROOMS).unwrap_or(default.rooms_per_client),
            burst: count("burst", 1..=MAX_HISTORY).map_or(default.burst, |count| count as u32),
            line_every: table.duration("every").unwrap_or(default.line_every),
            origins: match values(table.parsed_list("origins", origin)).as_slice() {
                [] => Origins::Same,
                list if list.iter().any(|origin| origin == "*") => Origins::Any,
                list => Origins::These(list.to_vec()),
            },
        };
        let redis = redis(&table);
        table.finish();
        Some(Chat { options, redis })
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        let socket = self.redis.as_mut().and_then(|redis| socket_of(&mut redis.server));
        socket.into_iter().collect()
    }

    fn open(&self, _route: &Route<'_>, means: &Means) -> Result<Opened, String> {
        let chat = chat::Chat::with(self.options.clone());
        let Some(redis) = &self.redis else {
            return Ok(Opened::answers(chat));
        };
        let say = means.say.clone();
        let connector = redis.tls.as_ref().map(|tls| tls.connector(None)).transpose();
        let broker = pubsub::Options {
            tls: connector.map_err(|error| format!("cannot speak TLS to Redis: {error}"))?,
            password: redis.password.clone(),
            log: Box::new(move |line| say.warning(line)),
            ..pubsub::Options::new(redis.server.clone())
        };
        Ok(Opened::answers(chat.shared(broker, &redis.channel)))
    }
}

impl Handler for chat::Chat {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        chat::Chat::answer(self, request)
    }

    fn start(&self) {
        chat::Chat::start(self);
    }
}

fn redis(table: &Section<'_>) -> Option<Redis> {
    let channel_at = table.key("channel");
    let channel = table.parsed("channel", |text| match text {
        "" => Err("it is empty: name the channel that all servers of this chat share"),
        _ => Ok(text.to_owned()),
    });
    if let (Some(at), None) = (channel_at, table.key("redis")) {
        let text = "'channel' is only for chats over Redis: redis = \"redis://127.0.0.1:6379\"";
        table.source().problem(&at, text);
    }
    let url = table.string("redis")?;
    let written = &table.source().text[url.span.clone()];
    if let Some(end) = written.rfind('@') {
        // The password stands before the last '@'. The rest of the line may be shown.
        let start = written.find("//").map_or(1, |slashes| slashes + 2);
        table.source().secret(url.span.start + start..url.span.start + end);
    }
    // Error messages do not show the value either.
    let read = redis_url(table.source(), &url.value);
    let ca_at = table.key("ca");
    let ca = table.content("ca");
    let (server, password) = read
        .map_err(|why| table.source().problem(&url.span, format!("'redis': {why}")))
        .ok()?;
    let is_tls = url.value.starts_with(REDISS);
    if let (false, Some(at)) = (is_tls, ca_at) {
        let text = "'ca' is for TLS to Redis: redis = \"rediss://HOST:PORT\"";
        table.source().problem(&at, text);
    }
    Some(Redis {
        server,
        password,
        tls: is_tls.then(|| BackendTls::of_ca(ca.map(|(_, pem)| pem))),
        channel: channel.map_or_else(|| CHANNEL.into(), |channel| channel.value),
    })
}

/// The beginning of a URL for TLS.
const REDISS: &str = "rediss://";

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
            Some(decoded.ok_or("the password has a '%' that begins no escape")?)
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
        format!("{place}:{REDIS_PORT}")
    } else {
        place.into()
    };
    match address(source, &place) {
        Ok(server @ Address::Tcp(_)) => Ok((server, password)),
        _ => Err(WANTED.into()),
    }
}
