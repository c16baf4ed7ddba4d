//! Reads `cache`: where responses of `proxy` and `fastcgi` are stored, and by which rules.

use std::time::Duration;

use osier_web::wrap::cache::{Options, Rules, StoreOptions};
use toml::de::DeValue;

use crate::policy::cache::Settings;
use crate::policy::client::client;
use crate::reader::value::{self, token};
use crate::reader::{Section, values};

use super::settings::Setting;

/// The statuses that a `default_ttl` without statuses applies to.
const USUAL: [u16; 3] = [200, 301, 308];

/// Reads `cache = true`, `cache = false` or a table.
pub fn read(section: &Section<'_>) -> Setting<Settings> {
    Setting::read_switch(section, "cache", Settings::default(), settings)
}

fn settings(table: Section<'_>, default: Settings) -> Settings {
    let disk = table.writable_folder("disk");
    if let (Some(folder), Some(at)) = (&disk, table.key("disk")) {
        table.expect_writable(&at, folder, "the server does not start unless its user may");
    }
    let store = StoreOptions {
        memory: table.size("memory").unwrap_or(default.store.memory),
        memory_entry: table.memory_size("memory_entry").unwrap_or(default.store.memory_entry),
        disk,
        disk_size: table.size("disk_size").unwrap_or(default.store.disk_size),
        most_entry: table.size("max_entry").unwrap_or(default.store.most_entry),
    };
    if let (None, Some(at)) = (&store.disk, table.key("disk_size")) {
        let text = "'disk_size' has no effect without 'disk'";
        table.source().problem(&at, text);
    }
    let rules = Rules {
        default_ttl: default_ttl(&table),
        stale_while_revalidate: table.duration("stale_while_revalidate"),
        stale_if_error: table.duration("stale_if_error"),
        drop_set_cookie: table.boolean("drop_set_cookie").unwrap_or(false),
    };
    let cookie = |text: &str| token(text.strip_suffix('*').unwrap_or(text)).map(|_| text.to_owned());
    let options = Options {
        rules,
        obey_client: table.boolean("obey_client").unwrap_or(default.options.obey_client),
        skip_cookies: values(table.parsed_list("skip_cookies", cookie)),
        wait: table.duration("wait").unwrap_or(default.options.wait),
        ..default.options
    };
    let purge = table.parsed_list("purge", client).map(|list| values(Some(list)));
    table.finish();
    Settings { store, options, purge }
}

/// Reads `default_ttl`: a duration, or durations by status.
fn default_ttl(table: &Section<'_>) -> Vec<(u16, Duration)> {
    let Some(given) = table.any("default_ttl") else {
        return Vec::new();
    };
    if !matches!(given.get_ref(), DeValue::Table(_)) {
        let time = table.duration("default_ttl");
        return time
            .map(|time| USUAL.map(|status| (status, time)).to_vec())
            .unwrap_or_default();
    }
    let Some(section) = table.section("default_ttl") else {
        return Vec::new();
    };
    let mut times = Vec::new();
    for (status, text) in section.entries() {
        let code = status.value.parse::<u16>().ok();
        let code = code.filter(|code| (200..=599).contains(code) && !matches!(code, 206 | 304));
        if code.is_none() {
            let text = format!("'{}' is not a status that can be stored", status.value.escape_debug());
            section.source().problem(&status.span, text);
        }
        let time = value::duration(&text.value).filter(|time| !time.is_zero());
        if time.is_none() {
            section
                .source()
                .problem(&text.span, format!("write {}, \"10m\" for example", value::DURATION));
        }
        times.extend(code.zip(time));
    }
    times
}
