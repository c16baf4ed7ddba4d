//! Reads the policies, which `[[site]]`, `[[site.route]]` and `[policy.NAME]` have in common: allowed clients,
//! authentication, rates, limits, CORS, header fields, compression, types of files, caching, the log, request ids, traces and times.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use osier_web::compress::{self, Coding};
use osier_web::files::Types;
use osier_web::wrap::queue;
use toml::Spanned;
use toml::de::DeValue;

use crate::handler::RequestHeaders;
use crate::log::operator::Say;
use crate::policy::client::client;
use crate::policy::headers::{Field, Headers};
use crate::policy::request_id::RequestIds;
use crate::policy::trace::{Incoming, Trace};
use crate::policy::{auth, cors, rate};
use crate::reader::value::{method, origin, token};
use crate::reader::{At, Section, Source, nearest, values};

use super::cache;
use super::log;
use super::settings::*;

/// The most requests that a rate may allow. A higher rate would limit nothing in practice.
const MAX_RATE: u64 = 1_000_000;

/// The default of the longest time that a request waits in a queue.
const QUEUE_WAIT: Duration = Duration::from_millis(200);

/// The keys of all policies, and `policy` itself.
pub const KEYS: [&str; 20] = [
    "policy",
    "auth",
    "forward_auth",
    "jwt",
    "html_errors",
    "headers",
    "request_headers",
    "cors",
    "limits",
    "allow",
    "deny",
    "rate",
    "compress",
    "types",
    "cache",
    "log",
    "request_id",
    "server_timing",
    "slow",
    "trace",
];

/// The tables `[policy.NAME]`, by name.
pub type Named = BTreeMap<String, Policies>;

/// Reads the tables `[policy.NAME]`.
pub fn named(top: &Section<'_>) -> Named {
    let mut named = Named::new();
    let Some(tables) = top.section("policy") else {
        return named;
    };
    for (name, value) in tables.items() {
        if let Some(section) = tables.as_section(&name.value, value, "a table of policies") {
            let policies = own(&section);
            section.finish();
            named.insert(name.value, policies);
        }
    }
    named
}

/// Reads the policies of a site or a route: its own, over those that its key `policy` names.
pub fn read(section: &Section<'_>, named: &Named) -> Policies {
    let mut policies = own(section);
    // The first of several named policies counts.
    for name in section.strings("policy").unwrap_or_default() {
        match named.get(&name.value) {
            Some(more) => policies = policies.over(more),
            None => {
                let guess = nearest(&name.value, named.keys().map(String::as_str));
                let hint = match guess {
                    Some(guess) => format!("did you mean '{guess}'?"),
                    None => format!("make a table [policy.{}]", name.value.escape_debug()),
                };
                let text = format!("there is no policy '{}'; {hint}", name.value.escape_debug());
                section.source().problem(&name.span, text);
            }
        }
    }
    policies
}

/// Reads the policies that a table sets itself.
fn own(section: &Section<'_>) -> Policies {
    Policies {
        auth: Setting::read(section, "auth", auth),
        forward_auth: super::auth::forward_auth(section),
        jwt: Setting::read(section, "jwt", super::auth::jwt),
        html_errors: section.boolean("html_errors"),
        headers: section.section("headers").map(headers).unwrap_or_default(),
        request_headers: section
            .section("request_headers")
            .map(RequestHeaders::read)
            .unwrap_or_default(),
        cors: Setting::read(section, "cors", cors),
        limits: section.section("limits").map(limits).unwrap_or_default(),
        allow: values(section.parsed_list("allow", client)),
        deny: values(section.parsed_list("deny", client)),
        rate: Setting::read(section, "rate", rate),
        compress: compress(section),
        types: section.section("types").map(types).unwrap_or_default(),
        cache: cache::read(section),
        log: log::access(section),
        request_id: request_id(section),
        server_timing: section.boolean("server_timing"),
        slow: slow(section),
        trace: trace(section),
    }
}

fn auth(section: Section<'_>) -> Option<auth::Settings> {
    let source = section.source();
    let realm = section.string("realm");
    let realm_at = realm
        .as_ref()
        .map_or(section.span().clone(), |realm| realm.span.clone());
    let mut settings = auth::Settings {
        realm: realm.map_or("Restricted".into(), |realm| realm.value),
        users: Vec::new(),
        password_file: None,
        only: None,
    };
    // Each user is opened alone, and the file with the good ones, so that each mistake is reported at its own place.
    let note = |settings: &auth::Settings, at: &Range<usize>| is_sound(source, settings, at);
    let sound = note(&settings, &realm_at);
    let file_at = section.key("file");
    let file = section.file("file", "requests get 503 until it is there");
    let users = section
        .section("users")
        .map(|table| table.entries())
        .unwrap_or_default();
    for (name, hash) in users {
        let alone = auth::Settings {
            users: vec![(name.value.clone(), hash.value.clone())],
            ..settings.clone()
        };
        if sound && note(&alone, &hash.span) {
            settings.users.push((name.value, hash.value));
        }
    }
    if let (Some(at), Some(_), true) = (&file_at, &file, sound) {
        let whole = auth::Settings {
            password_file: file.clone(),
            ..settings.clone()
        };
        note_file(source, whole, at);
    }
    let is_empty = |value: &Spanned<DeValue<'_>>| value.get_ref().as_table().is_some_and(|users| users.is_empty());
    if file_at.is_none() && section.any("users").is_none_or(is_empty) {
        section.problem(format!(
            "{} has no users: give it users = {{ NAME = \"HASH\" }} or file = \"FILE\" with lines of NAME:HASH",
            section.title()
        ));
    }
    let only_at = section.key("only");
    settings.only = section.strings("only").map(|names| values(Some(names)));
    section.finish();
    settings.password_file = file;
    if let (Some(at), true) = (only_at, sound) {
        note_only(source, &settings, &at);
    }
    Some(settings)
}

/// Warns of names that no user has.
fn note_only(source: &Source<'_>, settings: &auth::Settings, at: &Range<usize>) {
    let Ok(auth) = auth::Auth::open(settings, Say::new(|_| {})) else {
        return;
    };
    for name in auth.unknown() {
        source.warning(
            at,
            format!("'only' names {name:?}, and neither 'users' nor 'file' has this user"),
        );
    }
}

/// Notes the mistakes of these settings at their place. Returns whether they can be used.
fn is_sound(source: &Source<'_>, settings: &auth::Settings, at: &Range<usize>) -> bool {
    match auth::Auth::open(settings, Say::new(|_| {})) {
        Ok(auth) => {
            if let Some(weakness) = auth.weakness() {
                source.warning(at, weakness);
            }
            true
        }
        Err(troubles) => {
            for trouble in troubles {
                source.problem(at, trouble.to_string());
            }
            false
        }
    }
}

/// Notes the mistakes in a password file, and its weak hashes. `settings` have all users, whose own weak hashes are noted already.
fn note_file(source: &Source<'_>, mut settings: auth::Settings, at: &Range<usize>) {
    let open = |settings: &auth::Settings| auth::Auth::open(settings, Say::new(|_| {})).ok();
    for mistake in open(&settings).iter().flat_map(|auth| auth.mistakes()) {
        source.warning(at, mistake.to_string());
    }
    settings.users.clear();
    if let Some(weakness) = open(&settings).and_then(|auth| auth.weakness()) {
        source.warning(at, weakness);
    }
}

/// Reads fields to set. A string sets a field once, a list sets it several times, `false` removes it.
fn headers(section: Section<'_>) -> Headers {
    let source = section.source();
    let mut headers = Headers::default();
    for (name, value) in section.items() {
        let mut set = |text: At<String>| match format!("{}: {}", name.value, text.value).parse::<Field>() {
            Ok(_) if name.value.contains(':') => source.problem(&name.span, "a field name has no colon"),
            Ok(field) => headers.set.push((field.name, field.value)),
            Err(error) => source.problem(&name.span, error),
        };
        let wanted = "a string, a list of strings, or false";
        match value.get_ref() {
            DeValue::Boolean(false) => match format!("{}: ", name.value).parse::<Field>() {
                Ok(field) => headers.remove.push(field.name),
                Err(error) => source.problem(&name.span, error),
            },
            DeValue::Array(list) => {
                let texts = list
                    .iter()
                    .filter_map(|item| section.as_string(&name.value, item, wanted));
                texts.for_each(set);
            }
            _ => {
                if let Some(text) = section.as_string(&name.value, value, wanted) {
                    set(text);
                }
            }
        }
    }
    headers
}

/// Reads the types of files by the ends of their names.
fn types(section: Section<'_>) -> Types {
    let (source, mut types) = (section.source(), Types::default());
    for (suffix, value) in section.items() {
        if let DeValue::Table(_) = value.get_ref() {
            let text = format!(
                "'{0}' must be a type, not a table; a suffix with a dot needs quotes: \"{0}.gz\" = \"application/gzip\" for example",
                suffix.value.escape_debug()
            );
            source.problem(&suffix.span, text);
            continue;
        }
        let key = suffix.value.escape_debug().to_string();
        let text = section.as_string(&key, value, "a type, \"text/plain\" for example");
        let check = |text: &str| Types::default().set("x", text).map(|()| text.to_owned());
        let content_type = text.and_then(|text| section.understand(&key, text, check));
        if let Some(content_type) = content_type
            && let Err(why) = types.set(&suffix.value, &content_type.value)
        {
            source.problem(&suffix.span, why.to_string());
        }
    }
    types
}

fn cors(section: Section<'_>) -> Option<cors::Options> {
    section.require("origins", "\"*\", or origins like \"https://example.org\"");
    let origins = section.parsed_list("origins", origin);
    let origins = values(origins);
    let credentials = section.boolean("credentials").unwrap_or(false);
    if credentials && origins.iter().any(|origin| origin == "*") {
        section.problem("cors: credentials = true needs named origins, because browsers refuse \"*\" with it");
    }
    let cors = cors::Options {
        origins,
        methods: values(section.parsed_list("methods", method)),
        headers: values(section.parsed_list("headers", token)),
        expose: values(section.parsed_list("expose", token)),
        credentials,
        max_age: section.duration("max_age"),
    };
    section.finish();
    Some(cors)
}

fn limits(section: Section<'_>) -> Limits {
    let limits = Limits {
        body: section.size("body"),
        time: section.duration("time"),
        rates: section.boolean("rates"),
        queue: section.section("queue").and_then(queue),
    };
    section.finish();
    limits
}

fn queue(section: Section<'_>) -> Option<queue::Options> {
    section.require("running", "how many requests run at once");
    let running = section.integer("running", 1..=MAX_RATE);
    let wait = section.duration("wait").unwrap_or(QUEUE_WAIT);
    section.finish();
    running.map(|running| queue::Options {
        running: running as u32,
        wait,
    })
}

fn rate(section: Section<'_>) -> Option<rate::Options> {
    section.require("requests", "how many each client may send in every 'per'");
    let requests = section.integer("requests", 1..=MAX_RATE).unwrap_or(1) as u32;
    let per = section.duration("per").unwrap_or(Duration::from_secs(1));
    let burst = section
        .integer("burst", 1..=MAX_RATE)
        .map_or(requests, |burst| burst as u32);
    let concurrent = section.integer("concurrent", 1..=MAX_RATE).map(|count| count as u32);
    section.finish();
    Some(rate::Options {
        requests,
        per,
        burst,
        concurrent,
    })
}

/// Reads `trace`: `true`, `false`, or a table.
fn trace(section: &Section<'_>) -> Setting<Trace> {
    Setting::read_switch(section, "trace", Trace::default(), |table, mut trace| {
        let incoming = table.parsed("incoming", |text| match text {
            "any" => Ok(Incoming::Any),
            "trusted" => Ok(Incoming::Trusted),
            "none" => Ok(Incoming::None),
            _ => Err("choose among \"any\", \"trusted\" and \"none\""),
        });
        trace.incoming = incoming.map_or(trace.incoming, |incoming| incoming.value);
        trace.is_sampled = table.boolean("sampled").unwrap_or(trace.is_sampled);
        table.finish();
        trace
    })
}

/// Reads `slow`: a duration, or `false`.
fn slow(section: &Section<'_>) -> Setting<Duration> {
    match section.any("slow").map(|value| value.get_ref()) {
        None => Setting::Inherited,
        Some(DeValue::Boolean(false)) => Setting::Off,
        Some(_) => section.duration("slow").map_or(Setting::Off, Setting::On),
    }
}

/// Reads `request_id`: `true`, `false`, or a table.
fn request_id(section: &Section<'_>) -> Setting<RequestIds> {
    let both = RequestIds {
        backends: true,
        response: true,
    };
    Setting::read_switch(section, "request_id", both, |table, mut ids| {
        ids.backends = table.boolean("backends").unwrap_or(ids.backends);
        ids.response = table.boolean("response").unwrap_or(ids.response);
        table.finish();
        ids
    })
}

/// Reads `compress`: `true`, `false`, or a table.
fn compress(section: &Section<'_>) -> Setting<compress::Options> {
    Setting::read_switch(
        section,
        "compress",
        compress::Options::default(),
        |table, mut options| {
            options.min = table.size("min").unwrap_or(options.min);
            let codings = table.parsed_list("codings", |text| {
                let known = Coding::ALL.iter().find(|coding| coding.token() == text);
                known.copied().ok_or("choose among \"zstd\", \"br\" and \"gzip\"")
            });
            if let Some(codings) = codings {
                options.codings = values(Some(codings));
            }
            table.finish();
            options
        },
    )
}
