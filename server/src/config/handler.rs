//! The handlers a route can have, one sub-table each. Where one setting is nearly all there is to say, it may be given alone:
//! `files = "www"` is `files = { root = "www" }`. Those that speak with other servers are in `upstream.rs`, rules in `rewrite.rs`.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::reader::{At, Section};
use super::rewrite::rewrite;
use super::settings::*;
use super::top::values;
use super::upstream::{fastcgi, proxy, redis_url};

/// The largest body that is answered from the file itself.
const MAX_MESSAGE: u64 = 1 << 20;
/// The most rooms of a chat.
const MAX_ROOMS: u64 = 100_000;
/// What a chat over Redis is called there.
const CHANNEL: &str = "osier-chat";
/// The most lines a room remembers.
const MAX_HISTORY: u64 = 1000;

/// Reads the handler of a route. Some handler comes back even from a mistake, which has been noted then.
pub fn read(section: &Section<'_>, matches: &Match) -> Handler {
    let nothing = Handler::Respond(Respond {
        status: 404,
        body: Body::Status,
        content_type: None,
    });
    let given: Vec<(&str, Range<usize>)> = Handler::KEYS
        .into_iter()
        .filter_map(|key| section.key(key).map(|at| (key, at)))
        .collect();
    let Some((first, _)) = given.first() else {
        section.problem(format!(
            "[[site.route]] has no handler: give it one of {}",
            Handler::KEYS.join(", ")
        ));
        return nothing;
    };
    for (key, at) in &given[1..] {
        section.source().problem(
            at,
            format!("'{key}' beside '{first}': a route has one handler; make two routes"),
        );
    }
    let key = Handler::KEYS[Handler::KEYS.iter().position(|key| key == first).unwrap_or(0)];
    let Some(value) = section.any(key) else { return nothing };
    let handler = match key {
        "files" => files(section, value, matches).map(Handler::Files),
        "fastcgi" => fastcgi(section, value).map(Handler::Fastcgi),
        "proxy" => proxy(section, value, matches).map(Handler::Proxy),
        "redirect" => redirect(section, value).map(Handler::Redirect),
        "respond" => respond(section, value).map(Handler::Respond),
        "rewrite" => rewrite(section, value).map(Handler::Rewrite),
        "chat" => chat(section, value).map(Handler::Chat),
        _ => welcome(section, value, matches).map(Handler::Welcome),
    };
    handler.unwrap_or(nothing)
}

/// The table of a handler, or what stands for it.
pub enum Form<'s> {
    Table(Section<'s>),
    Short(At<String>),
}

pub fn form<'s>(section: &Section<'s>, key: &str, value: &'s Spanned<DeValue<'s>>, short: &str) -> Option<Form<'s>> {
    match value.get_ref() {
        DeValue::String(_) => section.as_string(key, value, short).map(Form::Short),
        _ => section
            .as_section(key, value, &format!("a table, or {short} alone"))
            .map(Form::Table),
    }
}

fn files<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Files> {
    let table = match form(section, "files", value, "the folder")? {
        Form::Short(text) => {
            return section.existing_folder("files", &text).map(Files::new);
        }
        Form::Table(table) => table,
    };
    table.require("root", "the folder that is served");
    let root = table.folder("root");
    let index = table.parsed_list("index", |text| {
        if text.is_empty() || text.contains('/') || text.starts_with('.') {
            Err("it is not the name of a file in the folder that is asked for")
        } else {
            Ok(text.to_string())
        }
    });
    let listing = table.boolean("listing").unwrap_or(false);
    let spa = table.boolean("spa").unwrap_or(false);
    let hidden = table.boolean("hidden").unwrap_or(false);
    let precompressed = table.boolean("precompressed").unwrap_or(true);
    let cache = table.string("cache").map(|text| text.value);
    let strip = strip(&table, matches);
    table.finish();
    Some(Files {
        root: root?,
        index: index.map_or_else(|| vec!["index.html".into()], |list| values(Some(list))),
        listing,
        spa,
        hidden,
        precompressed,
        strip,
        cache,
    })
}

/// `strip = true` cuts the route's own path from the front, `strip = "/x"` another.
pub fn strip(table: &Section<'_>, matches: &Match) -> Option<String> {
    let value = table.any("strip")?;
    match value.get_ref() {
        DeValue::Boolean(false) => None,
        DeValue::Boolean(true) => {
            if matches.path.is_none() {
                table.source().problem(
                    &value.span(),
                    "'strip' = true cuts the 'path' of the route, and it has none",
                );
            }
            matches.path.clone()
        }
        _ => {
            let text = table.as_string("strip", value, "true, false or a path")?;
            let path = text.value.trim_end_matches('/').to_string();
            if !path.starts_with('/') {
                table.source().problem(
                    &text.span,
                    "'strip' wants a path that begins with '/', \"/app\" for example",
                );
            }
            Some(path)
        }
    }
}

/// What may stand in braces in the target of a redirect.
pub const PLACEHOLDERS: [&str; 4] = ["host", "path", "rest", "query"];

fn redirect<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Redirect> {
    let (key, to, status) = match form(section, "redirect", value, "the target")? {
        Form::Short(text) => ("redirect", Some(text), 308),
        Form::Table(table) => {
            table.require("to", "the target, \"https://example.org{path}{query}\" for example");
            let to = table.string("to");
            let status = redirect_status(&table, "status").unwrap_or(308);
            table.finish();
            ("to", to, status)
        }
    };
    let to = section.understand(key, to?, target)?.value;
    Some(Redirect { to, status })
}

/// A status that browsers follow.
pub fn redirect_status(table: &Section<'_>, key: &'static str) -> Option<u16> {
    let at = table.any(key)?.span();
    let status = table.integer(key, 300..=399)?;
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Some(status as u16);
    }
    table
        .source()
        .problem(&at, format!("'{key}' wants 301, 302, 303, 307 or 308, not {status}"));
    None
}

fn target(text: &str) -> Result<String, String> {
    if !(text.starts_with('/')
        || text.starts_with("http://")
        || text.starts_with("https://")
        || text.starts_with("{path}")
        || text.starts_with("{rest}"))
    {
        return Err("it begins with '/', \"http://\", \"https://\", {path} or {rest}".into());
    }
    if text.starts_with("//") || text.starts_with("/\\") {
        return Err(
            "a target that begins with two slashes names another server: write its scheme, \"https://\"".into(),
        );
    }
    if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err("it is written as it is sent: percent-encode spaces and letters beyond ASCII".into());
    }
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (name, after) = rest[at + 1..].split_once('}').ok_or("'{' without '}'")?;
        if !PLACEHOLDERS.contains(&name) {
            let known = PLACEHOLDERS.join("}, {");
            return Err(format!("'{{{name}}}' is unknown; there are {{{known}}}"));
        }
        rest = after;
    }
    Ok(text.into())
}

/// `respond = "text"`, `respond = 404` or a table.
fn respond<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Respond> {
    if let DeValue::Integer(_) = value.get_ref() {
        let status = section.integer("respond", 200..=599)? as u16;
        return Some(Respond {
            status,
            body: Body::Status,
            content_type: None,
        });
    }
    let table = match form(section, "respond", value, "the text or the status")? {
        Form::Short(text) => {
            return Some(Respond {
                status: 200,
                body: Body::Text(text.value),
                content_type: None,
            });
        }
        Form::Table(table) => table,
    };
    let status = table.integer("status", 200..=599).unwrap_or(200) as u16;
    let body = table.string("body");
    let file = table.file("file");
    if let (Some(_), Some(at)) = (&body, table.key("file")) {
        table
            .source()
            .problem(&at, "'file' beside 'body': an answer has one body");
    }
    if let Some(path) = &file
        && path.metadata().is_ok_and(|file| file.len() > MAX_MESSAGE)
        && let Some(at) = table.key("file")
    {
        let text =
            format!("'file' is kept in memory and has at most {MAX_MESSAGE} bytes; serve larger ones by 'files'");
        table.source().problem(&at, text);
    }
    let content_type = table.parsed("content_type", |text| {
        if text.contains('/') && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            Ok(text.to_string())
        } else {
            Err("it is not a media type, \"text/html; charset=utf-8\" for example")
        }
    });
    table.finish();
    Some(Respond {
        status,
        body: match (body, file) {
            (Some(text), _) => Body::Text(text.value),
            (None, Some(path)) => Body::File(path),
            (None, None) => Body::Status,
        },
        content_type: content_type.map(|at| at.value),
    })
}

/// `chat = true`, or a table.
fn chat<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Chat> {
    if let DeValue::Boolean(true) = value.get_ref() {
        return Some(Chat::default());
    }
    let table = section.as_section("chat", value, "true, or a table")?;
    let chat = Chat {
        history: table.integer("history", 0..=MAX_HISTORY).map(|count| count as usize),
        line: table.size("message"),
        rooms: table.integer("rooms", 1..=MAX_ROOMS).map(|count| count as usize),
        burst: table.integer("burst", 1..=MAX_HISTORY).map(|count| count as u32),
        every: table.duration("every"),
        origins: values(table.parsed_list("origins", super::policy::origin)),
        redis: redis(&table),
    };
    table.finish();
    Some(chat)
}

fn redis(table: &Section<'_>) -> Option<Redis> {
    let channel_at = table.key("channel");
    let channel = table.parsed("channel", |text| match text {
        "" => Err("it is empty: name the channel that all servers of this chat share"),
        _ => Ok(text.to_owned()),
    });
    if let (Some(at), None) = (channel_at, table.key("redis")) {
        let text = "'channel' is for chats over Redis alone: redis = \"redis://127.0.0.1:6379\"";
        table.source().problem(&at, text);
    }
    let url = table.string("redis")?;
    let written = &table.source().text[url.span.clone()];
    if let Some(end) = written.rfind('@') {
        // The password is before it; the rest of the line may be shown.
        let start = written.find("//").map_or(1, |slashes| slashes + 2);
        table.source().secret(url.span.start + start..url.span.start + end);
    }
    // Nor is the value told in the message.
    let read = redis_url(table.source(), &url.value);
    let (server, password) = read
        .map_err(|why| table.source().problem(&url.span, format!("'redis': {why}")))
        .ok()?;
    Some(Redis {
        server,
        password,
        channel: channel.map_or_else(|| CHANNEL.into(), |channel| channel.value),
    })
}

/// `welcome = true`, or a table.
fn welcome<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Welcome> {
    if (&matches.path, &matches.globs[..]) != (&None, &[]) {
        section.source().problem(
            &value.span(),
            "'welcome' is a whole site with paths of its own: its route has no 'path' and no 'glob'",
        );
    }
    if let DeValue::Boolean(true) = value.get_ref() {
        return Some(Welcome::default());
    }
    let table = section.as_section("welcome", value, "true, or a table")?;
    let live_for_all = table.boolean("live_for_all").unwrap_or(false);
    table.finish();
    Some(Welcome { live_for_all })
}
