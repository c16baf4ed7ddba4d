//! `proxy`: a reverse proxy to HTTP backends.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;
use osier_web::files::{CacheLimits, Files, Options as FileOptions};
use osier_web::http::StatusCode;
use osier_web::path::Path as UrlPath;
use osier_web::proxy::{self, Host, Options, Redirects};
use osier_web::upstream::Upstream;
use osier_web::{Answer, Request, Response};
use toml::Spanned;
use toml::de::DeValue;

use crate::policy::client::net;
use crate::reader::{Reason, Section, values};

use super::upstream::{Backends, backend_address, host_of, timeouts, warn_if_missing};
use super::{Configured, Form, Handler, Match, Opened, Resources, Route, Spools, Touch, form, strip};

/// The settings of a proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    backends: Backends,
    options: Options,
    /// Clients whose `X-Forwarded-*` fields are believed.
    trust: Vec<IpNet>,
    internal: Option<Internal>,
}

/// The files that backends name in `X-Accel-Redirect`.
#[derive(Debug, Clone, PartialEq)]
struct Internal {
    root: PathBuf,
    /// The beginning of their paths, without a slash at its end.
    prefix: String,
}

impl Internal {
    fn read(table: &Section<'_>) -> Option<Internal> {
        let root = table.folder("internal_root");
        let at = table.key("internal_path");
        let prefix = table.parsed("internal_path", |text| {
            let path = UrlPath::parse(text).map_err(|error| error.reason())?;
            Ok::<_, &str>(path.canonical().trim_end_matches('/').to_owned())
        });
        if let (Some(at), None) = (at, table.key("internal_root")) {
            let text = "'internal_path' needs 'internal_root', the folder of the files";
            table.source().problem(&at, text);
        }
        let prefix = prefix.map_or(String::new(), |prefix| prefix.value);
        root.map(|root| Internal { root, prefix })
    }

    /// Opens the folder. Its files are sent as they are.
    fn open(&self, resources: &Resources) -> io::Result<impl Fn(&Request<'_>, &str) -> Response + Send + Sync + use<>> {
        let options = FileOptions {
            precompressed: false,
            compress: None,
            may_be_missing: true,
            cache: CacheLimits {
                entries: 0,
                bytes: 0,
                files: 0,
                compressed: 0,
            },
            ..FileOptions::default()
        };
        let say = resources.say.clone();
        let files = Files::with(&self.root, options)?.on_log(move |line| say.warning(line));
        let prefix = self.prefix.clone();
        Ok(move |request: &Request<'_>, path: &str| {
            let below = UrlPath::parse(path).ok().and_then(|path| path.strip_prefix(&prefix));
            let below = below.and_then(|below| UrlPath::parse(below).ok());
            let name = below.as_ref().and_then(UrlPath::file_name);
            name.map_or_else(
                || Response::plain(StatusCode::NOT_FOUND),
                |name| files.answer_with(request, name),
            )
        })
    }
}

impl Proxy {
    /// Makes the proxy.
    fn build(&self, resources: &Resources) -> io::Result<proxy::Proxy> {
        let upstream = self.backends.build(resources, Upstream::builder)?;
        resources.upgrade.upstream(&upstream);
        let mut proxy = proxy::Proxy::with(upstream, self.options.clone());
        if let Some(internal) = &self.internal {
            proxy = proxy.on_internal(internal.open(resources)?);
        }
        if self.trust.is_empty() {
            return Ok(proxy);
        }
        let trust = self.trust.clone();
        Ok(proxy.trust(move |client| trust.iter().any(|net| net.contains(&client.to_canonical()))))
    }
}

impl Configured for Proxy {
    const IS_KEPT: bool = true;
    const IS_GATEWAY: bool = true;

    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Proxy> {
        let table = match form(section, "proxy", value, "the upstream's address")? {
            Form::Short(text) => {
                let server = section.understand("proxy", text, |text| backend_address(section.source(), text))?;
                warn_if_missing(section.source(), &server.span, &server.value.address);
                return Some(Proxy {
                    backends: Backends::one(server.value),
                    options: Options::default(),
                    trust: Vec::new(),
                    internal: None,
                });
            }
            Form::Table(table) => table,
        };
        table.require(
            "to",
            "where the backend listens, \"127.0.0.1:3000\" or \"unix:/run/app.sock\"",
        );
        let host = table.parsed("host", |text| match text {
            "client" => Ok(Host::Preserve),
            "upstream" => Ok(Host::Backend),
            _ => host_of(text)
                .map(Host::Fixed)
                .ok_or("write \"client\", \"upstream\" or a host"),
        });
        let strip = strip(&table, matches);
        let (timeouts, default) = (timeouts(&table), Options::default());
        let options = Options {
            host: host.map_or(default.host, |host| host.value),
            redirects: redirects(&table, strip.is_some()).unwrap_or(default.redirects),
            strip,
            forwarded: table.boolean("forwarded").unwrap_or(default.forwarded),
            first_byte: timeouts.first_byte.unwrap_or(default.first_byte),
            between: timeouts.between.unwrap_or(default.between),
            tunnels: table.boolean("upgrade").unwrap_or(default.tunnels),
            tunnel_idle: table.duration("tunnel_idle").unwrap_or(default.tunnel_idle),
            tunnel_half_closed: table
                .duration("tunnel_half_closed")
                .unwrap_or(default.tunnel_half_closed),
            read_ahead: table.memory_size("read_ahead").unwrap_or(default.read_ahead),
            read_ahead_file: table.size("read_ahead_file").unwrap_or(default.read_ahead_file),
            read_ahead_total: table.size("read_ahead_total").unwrap_or(default.read_ahead_total),
            buffer: table.boolean("buffer").unwrap_or(default.buffer),
            buffer_total: table.size("buffer_total").unwrap_or(default.buffer_total),
            shared_memory: table.memory_size("shared_memory").unwrap_or(default.shared_memory),
            ..default
        };
        let proxy = Proxy {
            backends: Backends::read(&table, &timeouts, true),
            options,
            trust: values(table.parsed_list("trust", net)),
            internal: Internal::read(&table),
        };
        table.finish();
        Some(proxy)
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        let internal = self.internal.as_mut();
        let internal = internal.map(|internal| (Touch::Read, &mut internal.root));
        internal.into_iter().chain(self.backends.sockets()).collect()
    }

    fn spools(&self) -> Option<Spools> {
        let spools = Spools {
            memory: self.options.spool_memory as u64,
            files: self.options.buffer_total,
        };
        self.options.buffer.then_some(spools)
    }

    fn open(&self, _route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
        let proxy = self
            .build(resources)
            .map_err(|error| format!("cannot set up a proxy: {error}"))?;
        Ok(Opened::answers(proxy))
    }
}

/// Reads which redirects lead back to this server.
fn redirects(table: &Section<'_>, has_prefix: bool) -> Option<Redirects> {
    let value = table.any("redirects")?;
    if let DeValue::Boolean(all) = value.get_ref() {
        return Some(if *all { Redirects::Backend } else { Redirects::Preserve });
    }
    let text = table.as_string("redirects", value, "true, false or \"prefix\"")?;
    let mistake = match &*text.value {
        "prefix" if has_prefix => return Some(Redirects::Prefix),
        "prefix" => "'redirects' = \"prefix\" needs 'strip', which removes the prefix",
        _ => "'redirects' must be true, false or \"prefix\"",
    };
    table.source().problem(&text.span, mistake);
    None
}

impl Handler for proxy::Proxy {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        proxy::Proxy::answer(self, request)
    }

    fn upstream(&self) -> Option<&Upstream> {
        Some(proxy::Proxy::upstream(self))
    }

    fn answer_after_body(&self, request: &mut Request<'_>, _path: &[u8]) -> Answer {
        proxy::Proxy::answer_after_body(self, request)
    }
}
