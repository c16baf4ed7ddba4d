//! Reads `[acme]`, and `acme` of a site, which replaces single keys of it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use osier_web::http::Uri;
use toml::de::DeValue;

use crate::certificates::acme::jose::Binding;
use crate::certificates::acme::order::Kind;
use crate::certificates::acme::settings::{BINDING, Issuer, KNOWN, Settings};
use crate::reader::{At, Section, Source};

/// Reads a table over what is set without it.
pub fn read(section: Section<'_>, under: &Settings) -> Settings {
    let text = |key: &'static str, wanted: fn(&str) -> bool, form: &'static str| {
        section.parsed(key, |text| if wanted(text) { Ok(text.to_owned()) } else { Err(form) })
    };
    let email = text(
        "email",
        is_email,
        "write one address, \"admin@example.org\" for example",
    );
    let profile = text(
        "profile",
        |text| !text.is_empty(),
        "write the name of a profile, \"shortlived\" for example",
    );
    let kinds = section.parsed_list("challenges", |text| {
        Kind::of(text).ok_or("it is \"http-01\", \"tls-alpn-01\" or \"dns-01\"")
    });
    let dns = section.string("dns").and_then(|text| {
        let path = section.as_file(&text, "names are not proved by DNS")?;
        if is_no_program(&path) {
            let source = section.source();
            let text_of = format!(
                "'{shown}' is not executable, so names are not proved by DNS: chmod +x {shown}",
                shown = source.shown(&path)
            );
            source.warning(&text.span, text_of);
        }
        Some(path)
    });
    let ask = text(
        "ask",
        is_http_url,
        "write a URL, \"http://127.0.0.1:3000/may-have-certificate\" for example",
    );
    let orders = section.integer("orders_per_minute", 1..=10_000);
    let issuers = issuers(&section);
    let kinds = kinds.map(|kinds| kinds.into_iter().map(|kind| kind.value).collect::<Vec<_>>());
    let settings = Settings {
        issuers: issuers.unwrap_or_else(|| under.issuers.clone()),
        email: email.map(|email| email.value).or_else(|| under.email.clone()),
        profile: profile.map(|profile| profile.value).or_else(|| under.profile.clone()),
        kinds: kinds.unwrap_or_else(|| under.kinds.clone()),
        dns: dns.or_else(|| under.dns.clone()),
        ask: ask.map(|ask| ask.value).or_else(|| under.ask.clone()),
        orders_per_minute: orders.map_or(under.orders_per_minute, |orders| orders as u32),
    };
    if settings.kinds.contains(&Kind::Dns01) && settings.dns.is_none() {
        let at = section.key("challenges").unwrap_or_else(|| section.span().clone());
        let text = "the challenge \"dns-01\" needs 'dns': a program that sets and removes DNS records";
        section.source().problem(&at, text);
    }
    section.finish();
    settings
}

/// Reads `issuer`: a name, a URL, a table, or several of these.
fn issuers(section: &Section<'_>) -> Option<Vec<Issuer>> {
    let value = section.any("issuer")?;
    let values = match value.get_ref() {
        DeValue::Array(values) => values.iter().collect(),
        _ => vec![value],
    };
    if values.is_empty() {
        section.source().problem(&value.span(), "'issuer' names nobody");
    }
    let form = "a name, the https:// URL of a directory, or a table";
    let issuers = values.into_iter().filter_map(|value| match value.get_ref() {
        DeValue::Table(_) => {
            let table = section.as_section("issuer", value, form)?;
            table.require("directory", "the name of an issuer, or the URL of its directory");
            let found = table.parsed("directory", directory);
            let ca = table.file("ca", "the issuer cannot be reached");
            let is_bound = table.key("binding").is_some();
            let binding = binding(&table);
            let source = table.source();
            table.finish();
            let directory = expect_binding(source, found?, is_bound);
            Some(Issuer { directory, binding, ca })
        }
        _ => {
            let text = section.as_string("issuer", value, form)?;
            let directory = section.understand("issuer", text, directory)?;
            Some(Issuer::new(&expect_binding(section.source(), directory, false)))
        }
    });
    Some(issuers.collect())
}

/// Notes a warning for an issuer that refuses accounts without a binding. Returns its directory.
fn expect_binding(source: &Source<'_>, directory: At<String>, is_bound: bool) -> String {
    let name = BINDING
        .iter()
        .find(|name| KNOWN.contains(&(*name, directory.value.as_str())));
    if let (Some(name), false) = (name, is_bound) {
        let text = format!(
            "'{name}' signs nothing without the key that it gives to its customers: write \
             {{ directory = \"{name}\", binding = {{ id = \"…\", secret = \"…\" }} }}"
        );
        source.warning(&directory.span, text);
    }
    directory.value
}

fn directory(text: &str) -> Result<String, String> {
    if let Some((_, directory)) = KNOWN.iter().find(|(name, _)| *name == text) {
        return Ok((*directory).to_owned());
    }
    let is_url = text.starts_with("https://") && is_url(text);
    let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
    match is_url {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "write {}, or the https:// URL of a directory",
            known.join(", ")
        )),
    }
}

/// Reads the key that an issuer gave to its customer.
fn binding(table: &Section<'_>) -> Option<Binding> {
    let binding = table.section("binding")?;
    binding.require("id", "the identifier of the key that the issuer gave you");
    binding.require("secret", "the key itself, as base64 for URLs");
    let id = binding.string("id");
    let secret = binding.parsed("secret", |text| {
        let bytes = data_encoding::BASE64URL_NOPAD.decode(text.trim_end_matches('=').as_bytes());
        bytes.map_err(|_| "it is not base64 for URLs")
    });
    binding.finish();
    Some(Binding {
        id: id?.value,
        secret: secret?.value,
    })
}

/// Whether a file is there that nobody may run.
fn is_no_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.permissions().mode() & 0o111 == 0)
}

fn is_http_url(text: &str) -> bool {
    let has_scheme = text.starts_with("http://") || text.starts_with("https://");
    has_scheme && !text.contains('#') && is_url(text)
}

/// Whether a text is a URL without user and password, which nobody would send.
fn is_url(text: &str) -> bool {
    let url = text.parse::<Uri>().ok();
    let authority = url.as_ref().and_then(Uri::authority);
    authority.is_some_and(|authority| !authority.as_str().contains('@'))
}

fn is_email(text: &str) -> bool {
    let (name, host) = text.split_once('@').unwrap_or_default();
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|char| char.is_ascii_graphic() && !"@,?".contains(char))
    };
    is_part(name) && is_part(host)
}
