//! The keys of `proxy` and `fastcgi` that say how a backend is chosen: `balance`, `sticky`, `slow_start` and
//! `ejection`.

use std::time::Duration;

use osier_web::upstream::{Balance, Builder, HashKey, Sticky};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::value::token;
use crate::reader::{Section, nearest};

use super::{Form, form};

/// The highest number of failures in a row that a configuration may ask for.
const MAX_FAILURES: u64 = 1_000_000;

/// The names of the balances that have no key.
const NAMES: [&str; 3] = ["least_connections", "round_robin", "random_two"];

/// How to write a balance by a hash, for messages.
const HASHES: &str = "{ hash = \"client\" }, { hash = { cookie = \"NAME\" } } or { hash = { header = \"NAME\" } }";

/// The keys of a hash, for messages.
const HASH_KEYS: &str = "\"client\", { cookie = \"NAME\" } or { header = \"NAME\" }";

/// How a backend is chosen. None for the upstream's own default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Balancing {
    balance: Option<Balance>,
    sticky: Option<Sticky>,
    slow_start: Option<Duration>,
    failures: Option<u32>,
    window: Option<Duration>,
    /// The first and the longest time out of service.
    backoff: Option<(Duration, Duration)>,
}

impl Balancing {
    /// Reads the keys of a gateway.
    pub fn read(table: &Section<'_>) -> Balancing {
        let mut balancing = Balancing {
            balance: table.any("balance").and_then(|value| balance(table, value)),
            sticky: table.any("sticky").and_then(|value| sticky(table, value)),
            slow_start: table.duration("slow_start"),
            ..Balancing::default()
        };
        if let (Some(Balance::Hash(_)), Some(_), Some(at)) =
            (&balancing.balance, &balancing.sticky, table.key("sticky"))
        {
            let text = "'sticky' beside a 'balance' by a hash: both choose the backend of a client; remove one of them";
            table.source().problem(&at, text);
        }
        if let Some(ejection) = table.section("ejection") {
            balancing.read_ejection(&ejection);
            ejection.finish();
        }
        balancing
    }

    /// Reads the table `ejection`.
    fn read_ejection(&mut self, table: &Section<'_>) {
        let second = Duration::from_secs(1);
        // The defaults of `Builder::backoff`.
        let (default_first, default_longest) = (Duration::from_millis(250), Duration::from_secs(10));
        self.failures = table.integer("failures", 1..=MAX_FAILURES).map(|count| count as u32);
        self.window = table.duration("window");
        if let (Some(at), Some(..)) = (table.any("window"), self.window.filter(|window| *window < second)) {
            let text = "'window' must be at least \"1s\": failed requests count only after a second without a response";
            table.source().problem(&at.span(), text);
        }
        let (first, longest) = (table.duration("time"), table.duration("max_time"));
        if let (Some(at), true) = (
            table.any("max_time"),
            longest.is_some_and(|longest| longest < first.unwrap_or(default_first)),
        ) {
            table.source().problem(
                &at.span(),
                "'max_time' is shorter than 'time', the first time out of service; make it at least as long",
            );
        }
        if first.is_some() || longest.is_some() {
            self.backoff = Some((first.unwrap_or(default_first), longest.unwrap_or(default_longest)));
        }
    }

    /// Adds the settings to the builder of an upstream.
    pub fn apply(&self, mut builder: Builder) -> Builder {
        if let Some(balance) = &self.balance {
            builder = builder.balance(balance.clone());
        }
        if let Some(sticky) = &self.sticky {
            builder = builder.sticky(sticky.clone());
        }
        if let Some(time) = self.slow_start {
            builder = builder.slow_start(time);
        }
        if let Some(count) = self.failures {
            builder = builder.failures(count);
        }
        if let Some(time) = self.window {
            builder = builder.failure_window(time);
        }
        if let Some((first, longest)) = self.backoff {
            builder = builder.backoff(first, longest);
        }
        builder
    }
}

fn balance<'s>(table: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Balance> {
    let names = NAMES.map(|name| format!("\"{name}\"")).join(", ");
    let wanted = format!("{names} or a hash, {HASHES}");
    if let DeValue::Table(_) = value.get_ref() {
        let table = table.as_section("balance", value, &wanted)?;
        table.require("hash", HASH_KEYS);
        let key = table.any("hash").and_then(|value| hash_key(&table, value));
        table.finish();
        return key.map(Balance::Hash);
    }
    let text = table.as_string("balance", value, &wanted)?;
    match text.value.as_str() {
        "least_connections" => return Some(Balance::LeastConnections),
        "round_robin" => return Some(Balance::RoundRobin),
        "random_two" => return Some(Balance::RandomTwo),
        _ => {}
    }
    let shown = text.value.escape_debug();
    let remedy = match nearest(&text.value, NAMES.into_iter()) {
        _ if text.value.contains("hash") => format!("write {HASHES}"),
        Some(guess) => format!("did you mean \"{guess}\"?"),
        None => format!("write {wanted}"),
    };
    table
        .source()
        .problem(&text.span, format!("'balance' cannot be \"{shown}\"; {remedy}"));
    None
}

fn hash_key<'s>(table: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<HashKey> {
    if let DeValue::String(_) = value.get_ref()
        && table.as_string("hash", value, HASH_KEYS)?.value == "client"
    {
        return Some(HashKey::Client);
    }
    let table = table.as_section("hash", value, HASH_KEYS)?;
    let cookie = table.parsed("cookie", token).map(|name| HashKey::Cookie(name.value));
    let header = table.parsed("header", token).map(|name| HashKey::Header(name.value));
    match (table.key("cookie"), table.key("header")) {
        (None, None) => table.require("cookie", "name a cookie, or a header field with 'header'"),
        (Some(_), Some(_)) => table.problem("'cookie' beside 'header': a hash has one key; remove one of them"),
        _ => {}
    }
    table.finish();
    cookie.or(header)
}

fn sticky<'s>(table: &Section<'s>, value: &'s Spanned<DeValue<'s>>) -> Option<Sticky> {
    let default = Sticky::default();
    let table = match form(table, "sticky", value, "the name of the cookie")? {
        Form::Short(name) => {
            let cookie = table.understand("sticky", name, token)?.value;
            return Some(Sticky { cookie, ..default });
        }
        Form::Table(table) => table,
    };
    let sticky = Sticky {
        cookie: table.parsed("cookie", token).map_or(default.cookie, |name| name.value),
        max_age: table.duration("max_age"),
    };
    table.finish();
    Some(sticky)
}
