//! The handlers a route can have, one sub-table each. Where one setting is nearly all there is to say, it may be given alone:
//! `files = "www"` is `files = { root = "www" }`.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::rewrite::{self, Condition, Query, Rule, SUBJECTS, Subject, Test, To};

use super::reader::{At, Section, Source};
use super::settings::*;
use super::top::{net, values};

/// The largest body that is answered from the file itself.
const MAX_MESSAGE: u64 = 1 << 20;
/// The most connections or requests of one upstream that can be named.
const MAX_KEPT: u64 = 100_000;
/// The most rooms of a chat.
const MAX_ROOMS: u64 = 100_000;
/// What a chat over Redis is called there.
const CHANNEL: &str = "osier-chat";
/// Where Redis listens unless somebody says otherwise.
const REDIS_PORT: u16 = 6379;
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
enum Form<'s> {
    Table(Section<'s>),
    Short(At<String>),
}

fn form<'s>(
    section: &Section<'s>,
    key: &str,
    value: &'s Spanned<DeValue<'s>>,
    short: Option<&str>,
) -> Option<Form<'s>> {
    match (value.get_ref(), short) {
        (DeValue::String(_), Some(short)) => section.as_string(key, value, short).map(Form::Short),
        (_, Some(short)) => section
            .as_section(key, value, &format!("a table, or {short} alone"))
            .map(Form::Table),
        (_, None) => section.as_section(key, value, "a table").map(Form::Table),
    }
}

fn files<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Files> {
    let table = match form(section, "files", value, Some("the folder"))? {
        Form::Short(text) => {
            return section.existing_folder("files", &text).map(|root| Files {
                root,
                index: vec!["index.html".into()],
                listing: false,
                spa: false,
                hidden: false,
                precompressed: true,
                strip: None,
                cache: None,
            });
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
fn strip(table: &Section<'_>, matches: &Match) -> Option<String> {
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

fn fastcgi<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Fastcgi> {
    let Form::Table(table) = form(section, "fastcgi", value, None)? else {
        return None;
    };
    table.require(
        "to",
        "where the application listens, \"unix:/run/php/php-fpm.sock\" for example",
    );
    table.require("root", "the folder of the scripts");
    let servers = upstreams(&table, "to");
    let root = table.folder("root");
    let index = table.parsed_list("index", |text| match text {
        "" => Err("it is empty"),
        _ if text.contains('/') => Err("it is not the name of a file"),
        _ => Ok(text.to_string()),
    });
    let suffixes = table.parsed_list("suffix", |text| {
        if text.len() > 1 && text.starts_with('.') && !text.contains('/') {
            Ok(text.to_string())
        } else {
            Err("it begins with a dot, \".php\" for example")
        }
    });
    let front = table.parsed("front", |text| match text.strip_prefix('/') {
        Some("") | None => Err("it is the path of a script below the root, \"/index.php\" for example"),
        Some(_) => Ok(text.to_string()),
    });
    let params = table.section("params").map(|params| {
        let pair = |(name, value): (At<String>, At<String>)| (name.value, value.value);
        params.entries().into_iter().map(pair).collect()
    });
    let fastcgi = Fastcgi {
        servers,
        root: root.clone().unwrap_or_default(),
        suffixes: suffixes.map_or_else(|| vec![".php".into()], |list| values(Some(list))),
        index: index.map_or_else(|| vec!["index.php".into()], |list| values(Some(list))),
        front: front.map(|front| front.value),
        files: table.boolean("files").unwrap_or(false),
        application_root: table
            .string("application_root")
            .map(|path| path.value.into())
            .or_else(|| {
                // The application has not moved with this process.
                let root = root.as_deref().filter(|_| table.source().is_inside());
                root.map(|root| table.source().shown(root).into())
            }),
        internal_root: table.folder("internal_root"),
        params: params.unwrap_or_default(),
        server_name: table.string("server_name").map(|name| name.value),
        https: table.boolean("https").unwrap_or(false),
        hide: values(table.parsed_list("hide", super::policy::token)),
        keep: table.integer("keep", 0..=MAX_KEPT).map(|count| count as usize),
        max_requests: table.integer("max_requests", 1..=MAX_KEPT).map(|count| count as usize),
        timeouts: timeouts(&table),
        health: health(&table, false),
    };
    table.finish();
    root.map(|_| fastcgi)
}

fn proxy<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Proxy> {
    let mut proxy = Proxy {
        servers: Vec::new(),
        strip: None,
        host: ProxyHost::Client,
        timeouts: UpstreamTimeouts::default(),
        tunnel_idle: None,
        health: None,
        trust: Vec::new(),
        forwarded: true,
        upgrade: true,
        read_ahead: None,
        keep: None,
        max_requests: None,
    };
    let table = match form(section, "proxy", value, Some("the upstream's address"))? {
        Form::Short(text) => {
            let server = section.understand("proxy", text, |text| upstream(section.source(), text))?;
            proxy.servers.push(server.value);
            return Some(proxy);
        }
        Form::Table(table) => table,
    };
    table.require(
        "to",
        "where the application listens, \"127.0.0.1:3000\" or \"unix:/run/app.sock\"",
    );
    proxy.servers = upstreams(&table, "to");
    proxy.strip = strip(&table, matches);
    let host = table.parsed("host", |text| match text {
        "client" => Ok(ProxyHost::Client),
        "upstream" => Ok(ProxyHost::Upstream),
        _ if text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)) =>
        {
            Ok(ProxyHost::Fixed(text.into()))
        }
        _ => Err("write \"client\", \"upstream\" or a host"),
    });
    proxy.host = host.map_or(ProxyHost::Client, |host| host.value);
    proxy.timeouts = timeouts(&table);
    proxy.tunnel_idle = table.duration("tunnel_idle");
    proxy.health = health(&table, true);
    proxy.trust = values(table.parsed_list("trust", net));
    proxy.forwarded = table.boolean("forwarded").unwrap_or(true);
    proxy.upgrade = table.boolean("upgrade").unwrap_or(true);
    proxy.read_ahead = table.size("read_ahead");
    proxy.keep = table.integer("keep", 0..=MAX_KEPT).map(|count| count as usize);
    proxy.max_requests = table.integer("max_requests", 1..=MAX_KEPT).map(|count| count as usize);
    table.finish();
    Some(proxy)
}

fn upstreams(table: &Section<'_>, key: &'static str) -> Vec<Upstream> {
    let list = table
        .parsed_list(key, |text| upstream(table.source(), text))
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
fn upstream(source: &Source<'_>, text: &str) -> Result<Upstream, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        use std::os::unix::fs::FileTypeExt;
        let path = source.path(path)?;
        let shown = source.shown(&path);
        return match path.metadata() {
            Ok(found) if found.file_type().is_socket() => Ok(Upstream::Unix(path)),
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
    match port.parse::<u16>() {
        Ok(1..) => Ok(Upstream::Tcp(format!("{host}:{port}"))),
        _ => Err(format!("'{port}' is not a port; {wanted}")),
    }
}

fn timeouts(table: &Section<'_>) -> UpstreamTimeouts {
    let Some(table) = table.section("timeouts") else {
        return UpstreamTimeouts::default();
    };
    let timeouts = UpstreamTimeouts {
        connect: table.duration("connect"),
        first_byte: table.duration("first_byte"),
        between: table.duration("between"),
    };
    table.finish();
    timeouts
}

fn health(table: &Section<'_>, http: bool) -> Option<Health> {
    let table = table.section("health")?;
    let path = |table: &Section<'_>| {
        table.parsed("path", |text| {
            if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(text.to_string())
            } else {
                Err("it begins with '/' and is written as it is sent")
            }
        })
    };
    let health = Health {
        path: if http {
            path(&table).map(|path| path.value)
        } else {
            None
        },
        every: table.duration("every"),
        timeout: table.duration("timeout"),
    };
    table.finish();
    Some(health)
}

/// What may stand in braces in the target of a redirect.
pub const PLACEHOLDERS: [&str; 4] = ["host", "path", "rest", "query"];

fn redirect<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Redirect> {
    let (key, to, status) = match form(section, "redirect", value, Some("the target"))? {
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
fn redirect_status(table: &Section<'_>, key: &'static str) -> Option<u16> {
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
        || text.starts_with("{path}"))
    {
        return Err("it begins with '/', \"http://\" or \"https://\"".into());
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
    let table = match form(section, "respond", value, Some("the text or the status"))? {
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

/// `rewrite = { pattern = …, to = … }`, or a list of such rules.
fn rewrite<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Rewrite> {
    let tables: Vec<Section<'s>> = match value.get_ref() {
        DeValue::Array(_) => section.sections("rewrite"),
        _ => vec![section.as_section("rewrite", value, "a table, or a list of tables")?],
    };
    if tables.is_empty() {
        section.source().problem(&value.span(), "'rewrite' has no rule");
    }
    Some(Rewrite {
        rules: tables.into_iter().filter_map(rule).collect(),
    })
}

fn rule(table: Section<'_>) -> Option<Rule> {
    table.require(
        "pattern",
        "a regular expression for the path, \"^/old/(.*)$\" for example",
    );
    table.require("to", "what it becomes, \"/new/$1\" for example");
    let before = table.source().count();
    let pattern = table.parsed("pattern", regex);
    let to = table.string("to");
    let redirect = redirect_status(&table, "redirect");
    let query = table.choice("query", &[("keep", Query::Keep), ("drop", Query::Drop)]);
    let conditions = table.sections("if").into_iter().filter_map(condition).collect();
    let (source, at) = (table.source(), table.span().clone());
    table.finish();
    let (pattern, to) = (pattern?, to?);
    let rule = Rule {
        pattern: pattern.value,
        to: match redirect {
            Some(status) => To::Redirect(to.value, status),
            None => To::Path(to.value),
        },
        query: query.unwrap_or_default(),
        conditions,
    };
    // What is wrong by itself has been said more exactly.
    if source.count() == before
        && let Err(troubles) = rewrite::Rewrite::compile(std::slice::from_ref(&rule))
    {
        for (_, what) in troubles {
            source.problem(&at, what);
        }
    }
    Some(rule)
}

fn condition(table: Section<'_>) -> Option<Condition> {
    table.require("of", "what is looked at, \"header\" for example");
    let words = SUBJECTS.map(|(word, named)| (word, (word, named)));
    let of = table.choice("of", &words);
    let name = table.string("name").map(|name| name.value);
    if let Some((word, named)) = of
        && named != name.is_some()
    {
        table.problem(if named {
            format!("a condition of \"{word}\" wants a 'name'")
        } else {
            format!("a condition of \"{word}\" has no 'name'")
        });
    }
    let equals = table.string("is").map(|text| Test::Equals(text.value));
    let matches = table.parsed("matches", regex).map(|text| Test::Matches(text.value));
    if equals.is_some() && matches.is_some() {
        table.problem("a condition has 'is' or 'matches', not both");
    }
    let not = table.boolean("not").unwrap_or(false);
    table.finish();
    Some(Condition {
        of: Subject::by_word(of?.0, name.as_deref())?,
        is: equals.or(matches).unwrap_or(Test::Present),
        not,
    })
}

fn regex(text: &str) -> Result<String, String> {
    match regex::Regex::new(text) {
        Ok(_) => Ok(text.to_string()),
        // The last line says what is wrong; those before it draw the place, which a single line cannot.
        Err(error) => {
            let text = error.to_string();
            Err(text
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_string())
        }
    }
}

fn chat<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Chat> {
    let Form::Table(table) = form(section, "chat", value, None)? else {
        return None;
    };
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
    // Not shown: it may hold a password.
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

/// `redis://[:PASSWORD@]HOST[:PORT]`, or `redis+unix:///PATH`.
fn redis_url(source: &Source<'_>, text: &str) -> Result<(Upstream, Option<String>), String> {
    const WANTED: &str = "write redis://HOST:PORT, redis://:PASSWORD@HOST:PORT or redis+unix:///PATH";
    if let Some(path) = text.strip_prefix("redis+unix://") {
        let path = match path.starts_with('/') {
            true => source.path(path)?,
            false => return Err(WANTED.into()),
        };
        return Ok((Upstream::Unix(path), None));
    }
    if text.starts_with("rediss://") {
        return Err(format!("TLS to Redis is not offered; {WANTED}"));
    }
    let rest = text.strip_prefix("redis://").ok_or(WANTED)?;
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
        Some(_) => return Err(format!("users of Redis are not offered, its password is; {WANTED}")),
    };
    // Messages go through all databases of a server.
    let (place, database) = place.split_once('/').unwrap_or((place, ""));
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("what follows the port is the number of a database; {WANTED}"));
    }
    let is_plain = place
        .rsplit_once(':')
        .is_none_or(|(host, _)| host.ends_with(']') && place.ends_with(']'));
    let place = if is_plain && !place.is_empty() {
        format!("{place}:{REDIS_PORT}")
    } else {
        place.into()
    };
    match upstream(source, &place) {
        Ok(server @ Upstream::Tcp(_)) => Ok((server, password)),
        _ => Err(WANTED.into()),
    }
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
