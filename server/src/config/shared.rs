//! Reads `[shared]`: the Redis server that several machines share.

use osier_web::wrap::session::CookieKeys;

use crate::handler::redis::RedisServer;
use crate::reader::Section;

use super::settings::Shared;

/// The default beginning of keys in Redis.
const PREFIX: &str = "osier:";

/// Reads the table.
pub fn read(section: Section<'_>) -> Option<Shared> {
    section.require("redis", "the server, \"redis://10.0.0.5:6379\" for example");
    if let Some(url) = section.string("redis") {
        let path = url.value.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        if path.is_some_and(|(host, database)| !host.is_empty() && !matches!(database, "" | "0")) {
            let text = "'redis': only the database 0 is used; give this server keys of its own by 'prefix'";
            section.source().problem(&url.span, text);
        }
    }
    let server = RedisServer::read(&section);
    let prefix = section.parsed("prefix", |text| {
        match text.is_empty() || text.contains(char::is_whitespace) {
            true => Err("write the beginning of the keys, \"osier:\" for example"),
            false => Ok(text.to_owned()),
        }
    });
    let key = section.content("key");
    if let Some((path, key)) = &key {
        let source = section.source();
        if let Err(why) = CookieKeys::new(&[key]) {
            let why = why.to_string().replace("a secret for cookies", "the file");
            source.problem(&path.span, format!("'key': {why} random bytes"));
        }
        if let Some(why) = crate::certificates::inspect::permissions(&path.value) {
            source.warning(&path.span, format!("'{}' {why}", source.shown(&path.value)));
        }
    }
    section.finish();
    Some(Shared {
        server: server?,
        prefix: prefix.map_or_else(|| PREFIX.to_owned(), |prefix| prefix.value),
        key: key.map(|(_, key)| key),
    })
}
