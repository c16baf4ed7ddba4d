//! Reads `forward_auth` and `jwt`.

use osier_web::wrap::forward_auth::Options;
use osier_web::wrap::jwt::{self as tokens, Algorithm};
use toml::Spanned;
use toml::de::DeValue;

use crate::handler::upstream::{address, warn_if_missing};
use crate::log::operator::Say;
use crate::policy::backend_tls::BackendTls;
use crate::policy::forward_auth::{self, Parts, Settings};
use crate::policy::jwt;
use crate::reader::value::token;
use crate::reader::{At, Section, values};

use super::settings::Setting;

/// Reads `forward_auth = "https://HOST:PORT/PATH"`, a table, or `false`.
pub fn forward_auth(section: &Section<'_>) -> Setting<Settings> {
    let Some(value) = section.any("forward_auth") else {
        return Setting::Inherited;
    };
    let settings = match value.get_ref() {
        DeValue::Boolean(false) => None,
        DeValue::String(_) => section.string("forward_auth").and_then(|url| short(section, url)),
        _ => table(section, value),
    };
    settings.map_or(Setting::Off, Setting::On)
}

/// Reads a URL alone.
fn short(section: &Section<'_>, url: At<String>) -> Option<Settings> {
    let Server { address, path, is_tls } = split(section, "forward_auth", url)?;
    let settings = Settings {
        to: address.value,
        tls: is_tls.then(BackendTls::default),
        path,
        options: Options::default(),
        user: None,
        connect: None,
    };
    checked(section, &address.span, settings)
}

/// Reads the table.
fn table<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Settings> {
    let table = section.as_section("forward_auth", value, "a table, false, or the URL alone")?;
    table.require("to", "the URL to ask, \"http://127.0.0.1:4180/check\" for example");
    let to = table.string("to").and_then(|url| split(&table, "to", url));
    let path = table.parsed("path", |text| match text.starts_with('/') {
        true => Ok(text.to_string()),
        false => Err("it begins with '/'"),
    });
    let default = Options::default();
    let mut response_headers = values(table.parsed_list("response_headers", token));
    let user = table.parsed("user", token).map(|name| name.value);
    if let Some(name) = &user
        && !response_headers.iter().any(|known| known.eq_ignore_ascii_case(name))
    {
        response_headers.push(name.clone());
    }
    let options = Options {
        request_headers: table
            .parsed_list("request_headers", token)
            .map(|names| values(Some(names))),
        response_headers,
        client_headers: values(table.parsed_list("client_headers", token)),
        host: table.string("host").map(|host| host.value),
        timeout: table.duration("timeout").unwrap_or(default.timeout),
        ..default
    };
    let connect = table.duration("connect");
    let tls = BackendTls::read(&table, to.as_ref().is_some_and(|to| to.is_tls));
    if let (Some(to), Some(path)) = (&to, &path)
        && to.path != "/"
    {
        let text = format!(
            "'path' beside a URL with the path '{}'; write one of them ({})",
            to.path, to.address.value
        );
        table.source().problem(&path.span, text);
    }
    table.finish();
    let Server {
        address, path: of_url, ..
    } = to?;
    let settings = Settings {
        to: address.value,
        tls,
        path: path.map_or(of_url, |path| path.value),
        options,
        user,
        connect,
    };
    checked(section, &value.span(), settings)
}

/// The authentication server that a URL names.
struct Server {
    address: At<osier_web::Address>,
    path: String,
    is_tls: bool,
}

/// Splits a URL. Notes a warning for a Unix socket that is not there.
fn split(section: &Section<'_>, key: &'static str, url: At<String>) -> Option<Server> {
    let at = section.understand(key, url, |url| {
        let parts = forward_auth::split(url)?;
        address(section.source(), &parts.address).map(|address| (address, parts))
    })?;
    let (address, Parts { path, is_tls, .. }) = at.value;
    let address = At {
        value: address,
        span: at.span,
    };
    warn_if_missing(section.source(), &address.span, &address.value);
    Some(Server { address, path, is_tls })
}

/// The settings, unless they cannot be used. Notes the mistake then.
fn checked(section: &Section<'_>, at: &std::ops::Range<usize>, settings: Settings) -> Option<Settings> {
    match forward_auth::open(&settings, Say::new(|_| {})) {
        Ok(_) => Some(settings),
        Err(why) => {
            section.source().problem(at, why);
            None
        }
    }
}

/// Reads the table `jwt`.
pub fn jwt(table: Section<'_>) -> Option<jwt::Settings> {
    table.require("keys", "the file with the public keys, in PEM or as a JWK set");
    let at = table.any("keys").map(Spanned::span);
    let keys = table.file("keys", "requests get 503 until it is there");
    let texts = |key| values(table.strings(key));
    let default = tokens::Options::default();
    let algorithms = table.parsed_list("algorithms", |name| {
        Algorithm::named(name).ok_or_else(|| {
            let names: Vec<&str> = Algorithm::ALL.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            format!("choose among {names}")
        })
    });
    let claims = table.section("claims").map(|section| {
        let items = section.items().into_iter();
        let wanted = "a string or a list of strings";
        let read = |(name, value): (At<String>, &Spanned<DeValue<'_>>)| {
            let one = |value| section.as_string(&name.value, value, wanted).map(|text| text.value);
            let list = match value.get_ref() {
                DeValue::Array(list) => list.iter().filter_map(one).collect(),
                _ => one(value).into_iter().collect(),
            };
            (name.value.clone(), list)
        };
        items.map(read).collect()
    });
    let pass = table.section("pass").map(|section| {
        let entries = section.entries().into_iter();
        entries.map(|(claim, field)| (claim.value, field.value)).collect()
    });
    let options = tokens::Options {
        algorithms: values(algorithms),
        issuers: texts("issuer"),
        audiences: texts("audience"),
        required: table
            .strings("required")
            .map_or(default.required, |list| values(Some(list))),
        claims: claims.unwrap_or_default(),
        leeway: table.duration("leeway").unwrap_or(default.leeway),
        cookie: table.string("cookie").map(|name| name.value),
        realm: table.string("realm").map(|realm| realm.value),
        pass: pass.unwrap_or_default(),
    };
    let user = table.string("user").map_or("sub".into(), |claim| claim.value);
    let source = table.source();
    table.finish();
    let settings = jwt::Settings {
        keys: keys?,
        options,
        user,
    };
    let opened = jwt::Tokens::open(&settings, Say::new(|_| {}));
    if let (Err(why), Some(at)) = (opened, at) {
        source.problem(&at, why);
    }
    Some(settings)
}
