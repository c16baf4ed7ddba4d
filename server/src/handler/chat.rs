//! `chat`: chat rooms over WebSockets.

use std::path::PathBuf;

use osier_web::chat::{self, Options};
use osier_web::ws::Origins;
use osier_web::{Request, Response, pubsub};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::value::origin;
use crate::reader::{Reason, Section, values};

use super::redis::RedisServer;
use super::{Configured, Handler, Match, Opened, Resources, Route, Touch};

/// The highest limit of rooms that a configuration may set.
const MAX_ROOMS: u64 = 100_000;
/// The most lines that a room may be configured to remember.
const MAX_HISTORY: u64 = 1000;
/// The default channel of a chat over Redis.
const CHANNEL: &str = "osier-chat";

/// The settings of a chat.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    options: Options,
    redis: Option<Redis>,
}

/// The broker that carries a chat's lines to other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Redis {
    server: RedisServer,
    /// The channel. Chats with the same channel are one chat.
    channel: String,
}

impl Configured for Chat {
    const IS_KEPT: bool = true;
    const STAYS_IN_SITE: bool = true;

    /// Reads `chat = true`, or a table.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Chat> {
        if let DeValue::Boolean(true) = value.get_ref() {
            return Some(Chat::default());
        }
        let table = section.as_section("chat", value, "true, or a table")?;
        let default = Options::default();
        let count = |key, range| table.integer(key, range).map(|count| count as usize);
        let options = Options {
            history: count("history", 0..=MAX_HISTORY).unwrap_or(default.history),
            line_bytes: table.memory_size("message").unwrap_or(default.line_bytes),
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
        let socket = self.redis.as_mut().and_then(|redis| redis.server.socket());
        socket.into_iter().collect()
    }

    fn open(&self, _route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
        let chat = chat::Chat::with(self.options.clone());
        let Some(redis) = &self.redis else {
            return Ok(Opened::answers(chat));
        };
        let say = resources.say.clone();
        let server = &redis.server;
        let connector = server.tls.as_ref().map(|tls| tls.connector(None)).transpose();
        let broker = pubsub::Options {
            tls: connector.map_err(|error| format!("cannot speak TLS to Redis: {error}"))?,
            password: server.password.clone(),
            log: Box::new(move |line| say.warning(line)),
            ..pubsub::Options::new(server.server.clone())
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

    fn chat(&self) -> Option<&chat::Chat> {
        Some(self)
    }
}

/// Reads `redis`, `ca` and `channel`.
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
    let server = RedisServer::read(table)?;
    Some(Redis {
        server,
        channel: channel.map_or_else(|| CHANNEL.into(), |channel| channel.value),
    })
}
