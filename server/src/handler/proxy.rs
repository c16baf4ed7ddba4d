//! `proxy`: other HTTP servers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use osier_web::proxy::{self, Host};
use osier_web::upstream::{Check, Upstream};
use osier_web::{Address, Request, Response};
use toml::Spanned;
use toml::de::DeValue;

use crate::policy::client::net;
use crate::reader::{Section, values};

use super::upstream::{Timeouts, address, addresses, health, keep, max_requests, socket_of, timeouts};
use super::{Configured, Form, Handler, Match, Means, Opened, Route, Touch, form, strip};

/// None for the handler's own default.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    servers: Vec<Address>,
    /// The prefix that is cut from a path before it is forwarded.
    strip: Option<String>,
    host: ProxyHost,
    timeouts: Timeouts,
    /// Idle timeout of an upgraded connection.
    tunnel_idle: Option<Duration>,
    /// Timeout of an upgraded connection after one side has closed its direction.
    tunnel_half_closed: Option<Duration>,
    health: Option<Check>,
    /// Clients whose X-Forwarded-* fields are believed.
    trust: Vec<IpNet>,
    /// Whether the backend gets such fields.
    forwarded: bool,
    /// Whether connections may be upgraded.
    upgrade: bool,
    read_ahead: Option<u64>,
    keep: Option<usize>,
    max_requests: Option<usize>,
}

/// The `Host` that a backend sees.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProxyHost {
    /// The client's.
    Client,
    /// The backend's address.
    Upstream,
    Fixed(String),
}

impl Proxy {
    /// A proxy to these backends, with every default.
    fn new(servers: Vec<Address>) -> Proxy {
        Proxy {
            servers,
            strip: None,
            host: ProxyHost::Client,
            timeouts: Timeouts::default(),
            tunnel_idle: None,
            tunnel_half_closed: None,
            health: None,
            trust: Vec::new(),
            forwarded: true,
            upgrade: true,
            read_ahead: None,
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
        // A server that is the only one is never left alone: nobody else could answer.
        if self.servers.len() == 1 {
            upstream = upstream.failures(u32::MAX);
        }
        if let Some(time) = self.timeouts.connect {
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
        let mut proxy = proxy::Proxy::new(upstream.build()?)
            .forwarded(self.forwarded)
            .tunnels(self.upgrade)
            .host(match &self.host {
                ProxyHost::Client => Host::Preserve,
                ProxyHost::Upstream => Host::Backend,
                ProxyHost::Fixed(host) => Host::Fixed(host.clone()),
            });
        if let Some(prefix) = &self.strip {
            proxy = proxy.strip_prefix(prefix);
        }
        if !self.trust.is_empty() {
            let trust = self.trust.clone();
            proxy = proxy.trust(move |client| trust.iter().any(|net| net.contains(&client.to_canonical())));
        }
        if let Some(time) = self.timeouts.first_byte {
            proxy = proxy.first_byte_timeout(time);
        }
        if let Some(time) = self.timeouts.between {
            proxy = proxy.between_bytes_timeout(time);
        }
        if let Some(time) = self.tunnel_idle {
            proxy = proxy.tunnel_idle_timeout(time);
        }
        if let Some(time) = self.tunnel_half_closed {
            proxy = proxy.tunnel_half_closed_timeout(time);
        }
        if let Some(bytes) = self.read_ahead {
            proxy = proxy.read_ahead(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        Ok(proxy)
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
        let strip = strip(&table, matches);
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
        let proxy = Proxy {
            strip,
            host: host.map_or(ProxyHost::Client, |host| host.value),
            timeouts: timeouts(&table),
            tunnel_idle: table.duration("tunnel_idle"),
            tunnel_half_closed: table.duration("tunnel_half_closed"),
            health: health(&table, true),
            trust: values(table.parsed_list("trust", net)),
            forwarded: table.boolean("forwarded").unwrap_or(true),
            upgrade: table.boolean("upgrade").unwrap_or(true),
            read_ahead: table.size("read_ahead"),
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
