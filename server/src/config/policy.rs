//! The settings that `[[site]]` and `[[site.route]]` have in common.

use toml::de::DeValue;

use crate::cli::{Field, LogFormat};

use super::reader::Section;
use super::settings::*;
use super::top::{FORMATS, net, values};

/// The most requests a limit may let through: beyond it there is none to speak of.
const MAX_RATE: u64 = 1_000_000;

pub fn read(section: &Section<'_>) -> Policies {
    Policies {
        auth: switch(section, "auth", None, auth),
        headers: section.section("headers").map(headers).unwrap_or_default(),
        cors: switch(section, "cors", None, cors),
        limits: section.section("limits").map(limits).unwrap_or_default(),
        allow: values(section.parsed_list("allow", net)),
        deny: values(section.parsed_list("deny", net)),
        rate: switch(section, "rate", None, rate),
        compress: switch(section, "compress", Some(Compress::default()), compress),
        log: log(section),
    }
}

/// `log = { file = "access.log" }`, `log = "json"` or `log = false`.
pub fn log(section: &Section<'_>) -> Setting<Log> {
    let Some(value) = section.any("log") else {
        return Setting::Inherited;
    };
    if let DeValue::String(_) = value.get_ref() {
        let format = section.choice("log", &FORMATS);
        return match format {
            Some(LogFormat::Off) | None => Setting::Off,
            Some(format) => Setting::On(Log { format, file: None }),
        };
    }
    switch(section, "log", None, |section| {
        let file = section.writable("file");
        let format = section.choice("format", &FORMATS).unwrap_or(LogFormat::Combined);
        section.finish();
        Some(Log { format, file })
    })
}

/// A table, or `false`; or `true` where there is a `default`.
fn switch<T>(
    section: &Section<'_>,
    key: &'static str,
    default: Option<T>,
    read: impl FnOnce(Section<'_>) -> Option<T>,
) -> Setting<T> {
    let Some(value) = section.any(key) else {
        return Setting::Inherited;
    };
    match (value.get_ref(), default) {
        (DeValue::Boolean(false), _) => Setting::Off,
        (DeValue::Boolean(true), Some(default)) => Setting::On(default),
        (_, default) => {
            let wanted = if default.is_some() {
                "a table, true or false"
            } else {
                "a table or false"
            };
            match section.as_section(key, value, wanted).and_then(read) {
                Some(value) => Setting::On(value),
                None => Setting::Off,
            }
        }
    }
}

fn auth(section: Section<'_>) -> Option<Auth> {
    let realm = section.string("realm").map_or("Restricted".into(), |realm| realm.value);
    if realm.contains(['"', '\\']) || realm.chars().any(char::is_control) {
        section.problem("'realm' cannot hold quotes, backslashes or control characters");
    }
    let file = section.file("file");
    let mut users = Vec::new();
    if let Some(table) = section.section("users") {
        for (name, hash) in table.entries() {
            if name.value.is_empty() || name.value.contains(':') {
                table
                    .source()
                    .problem(&name.span, "the name of a user is not empty and has no colon");
            } else if let Err(error) = password_hash(&hash.value) {
                table.source().problem(
                    &hash.span,
                    format!("what is given for '{}' {error}", name.value.escape_debug()),
                );
            } else {
                users.push((name.value, hash.value));
            }
        }
    }
    if section.key("file").is_none() && section.key("users").is_none() {
        section.problem(format!(
            "{} names nobody: give it users = {{ NAME = \"HASH\" }} or file = \"FILE\" with lines of NAME:HASH",
            section.title()
        ));
    }
    section.finish();
    Some(Auth { realm, users, file })
}

/// By its form: what is in it shows at the first login.
fn password_hash(text: &str) -> Result<(), &'static str> {
    let bcrypt = ["$2a$", "$2b$", "$2y$"].iter().any(|prefix| text.starts_with(prefix)) && text.len() == 60;
    let argon2 = text.starts_with("$argon2") && text.split('$').count() >= 5;
    if bcrypt || argon2 {
        Ok(())
    } else {
        Err("is not a bcrypt or argon2 hash; passwords themselves do not belong here (htpasswd -nB NAME makes one)")
    }
}

fn headers(section: Section<'_>) -> Vec<Field> {
    let mut fields = Vec::new();
    for (name, value) in section.entries() {
        match format!("{}: {}", name.value, value.value).parse::<Field>() {
            Ok(_) if name.value.contains(':') => section.source().problem(&name.span, "a field name has no colon"),
            Ok(field) => fields.push(field),
            Err(error) => section.source().problem(&name.span, error),
        }
    }
    fields
}

fn cors(section: Section<'_>) -> Option<Cors> {
    section.require("origins", "\"*\", or origins like \"https://example.org\"");
    let origins = section.parsed_list("origins", |text| {
        let host = text.split_once("://").map(|(_, host)| host);
        if text == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', ' ', '*', '?', '#'])) {
            Ok(text.to_ascii_lowercase())
        } else {
            Err("write an origin as \"https://example.org\", without a path, or \"*\"")
        }
    });
    let origins = values(origins);
    let credentials = section.boolean("credentials").unwrap_or(false);
    if credentials && origins.iter().any(|origin| origin == "*") {
        section.problem("cors: credentials = true needs named origins: browsers refuse \"*\" with it");
    }
    let cors = Cors {
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
    };
    section.finish();
    limits
}

fn rate(section: Section<'_>) -> Option<Rate> {
    section.require("requests", "how many each client may send in every 'per'");
    let requests = section.integer("requests", 1..=MAX_RATE).unwrap_or(1) as u32;
    let per = section.duration("per").unwrap_or(std::time::Duration::from_secs(1));
    let burst = section
        .integer("burst", 1..=MAX_RATE)
        .map_or(requests, |burst| burst as u32);
    section.finish();
    Some(Rate { requests, per, burst })
}

fn compress(section: Section<'_>) -> Option<Compress> {
    let compress = Compress {
        min: section.size("min"),
        codings: values(section.parsed_list("codings", |text| match text {
            "gzip" | "br" | "zstd" => Ok(text.to_string()),
            _ => Err("choose among \"gzip\", \"br\" and \"zstd\""),
        })),
    };
    section.finish();
    Some(compress)
}

/// A method, spelled as it is sent.
pub fn method(text: &str) -> Result<String, String> {
    token(text)?;
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(format!(
            "methods are case-sensitive; did you mean \"{}\"?",
            text.to_ascii_uppercase()
        ));
    }
    Ok(text.into())
}

fn token(text: &str) -> Result<String, String> {
    let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(byte) {
        return Err("it is not a name that HTTP allows".into());
    }
    Ok(text.into())
}
