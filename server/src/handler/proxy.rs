//! `proxy`: a reverse proxy to HTTP backends.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use osier_web::proxy::{self, Host, Options};
use osier_web::upstream::{Check, Upstream};
use osier_web::{Address, Request, Response};
use toml::Spanned;
use toml::de::DeValue;

use crate::policy::client::net;
use crate::reader::{Section, values};

use super::upstream::{address, addresses, health, keep, max_requests, socket_of, timeouts};
use super::{Configured, Form, Handler, Match, Means, Opened, Route, Touch, form, strip};

#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    servers: Vec<Address>,
    options: Options,
    health: Option<Check>,
    /// Clients whose `X-Forwarded-*` fields are believed.
    trust: Vec<IpNet>,
    /// None for the default of the upstream, as in the fields below.
    connect: Option<Duration>,
    keep: Option<usize>,
    max_requests: Option<usize>,
}

impl Proxy {
    /// A proxy to these backends, with default settings.
    fn new(servers: Vec<Address>) -> Proxy {
        Proxy {
            servers,
            options: Options::default(),
            health: None,
            trust: Vec::new(),
            connect: None,
            keep: None,
            max_requests: None,
        }
    }

    fn build(&self, means: &Means) -> io::Result<proxy::Proxy> {
        let names: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        let say = Arc::clone(&means.say);
        let mut upstream = Upstream::builder(names.join(", "))
            .backends(self.servers.iter().cloned())
            .on_log(move |line| say(line));
        // A single backend is never taken out of service: no other could answer.
        if self.servers.len() == 1 {
            upstream = upstream.failures(u32::MAX);
        }
        if let Some(time) = self.connect {
            upstream = upstream.connect_timeout(time);
        }
        if let Some(count) = self.keep {
            upstream = upstream.keep(count);
        }
        if let Some(count) = self.max_requests {
            upstream = upstream.max_leases(count);
        }
        if let Some(health) = &self.health {
            upstream = upstream.check(health.clone());
        }
        let proxy = proxy::Proxy::with(upstream.build()?, self.options.clone());
        if self.trust.is_empty() {
            return Ok(proxy);
        }
        let trust = self.trust.clone();
        Ok(proxy.trust(move |client| trust.iter().any(|net| net.contains(&client.to_canonical()))))
    }
}

impl Configured for Proxy {
    const IS_KEPT: bool = true;

    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Proxy> {
        let table = match form(section, "proxy", value, "the upstream's address")? {
            Form::Short(text) => {
                let server = section.understand("proxy", text, |text| address(section.source(), text))?;
                return Some(Proxy::new(vec![server.value]));
            }
            Form::Table(table) => table,
        };
        table.require(
            "to",
            "where the application listens, \"127.0.0.1:3000\" or \"unix:/run/app.sock\"",
        );
        let servers = addresses(&table, "to");
        let host = table.parsed("host", |text| match text {
            "client" => Ok(Host::Preserve),
            "upstream" => Ok(Host::Backend),
            _ if text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)) =>
            {
                Ok(Host::Fixed(text.into()))
            }
            _ => Err("write \"client\", \"upstream\" or a host"),
        });
        let (timeouts, default) = (timeouts(&table), Options::default());
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let options = Options {
            host: host.map_or(default.host, |host| host.value),
            strip: strip(&table, matches),
            forwarded: table.boolean("forwarded").unwrap_or(default.forwarded),
            first_byte: timeouts.first_byte.unwrap_or(default.first_byte),
            between: timeouts.between.unwrap_or(default.between),
            tunnels: table.boolean("upgrade").unwrap_or(default.tunnels),
            tunnel_idle: table.duration("tunnel_idle").unwrap_or(default.tunnel_idle),
            tunnel_half_closed: table
                .duration("tunnel_half_closed")
                .unwrap_or(default.tunnel_half_closed),
            read_ahead: table.size("read_ahead").map_or(default.read_ahead, size),
            ..default
        };
        let proxy = Proxy {
            options,
            health: health(&table, true),
            trust: values(table.parsed_list("trust", net)),
            connect: timeouts.connect,
            keep: keep(&table),
            max_requests: max_requests(&table),
            ..Proxy::new(servers)
        };
        table.finish();
        Some(proxy)
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        self.servers.iter_mut().filter_map(socket_of).collect()
    }

    fn open(&self, _route: &Route<'_>, means: &Means) -> Result<Opened, String> {
        let proxy = self
            .build(means)
            .map_err(|error| format!("cannot set up a proxy: {error}"))?;
        Ok(Opened::answers(proxy))
    }
}

impl Handler for proxy::Proxy {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        proxy::Proxy::answer(self, request)
    }
}
