//! The settings of a checked configuration, as plain data that can be compared.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use osier_tls::ClientCertificates;
use osier_web::files::Types;
use osier_web::wrap::queue;
use osier_web::{Http2Limits, Rates, Timeouts, compress};
use toml::de::DeValue;

use crate::certificates::acme::issue::Subject;
use crate::certificates::acme::order::Kind;
use crate::certificates::acme::settings as acme;
use crate::certificates::settings::CertificateFrom;
use crate::handler::redis::RedisServer;
use crate::handler::{self, Match};
use crate::policy::client::Client;
use crate::policy::headers::Headers;
use crate::policy::real_ip::RealIp;
use crate::policy::request_id::RequestIds;
use crate::policy::trace::Trace;
use crate::policy::{auth, cache, cors, forward_auth, jwt, rate};
use crate::reader::{Reason, Section};

pub use crate::log::settings::{ErrorLog, Log};

/// The default limit of a request body, in bytes.
pub const BODY_BYTES: u64 = 2 << 20;

/// The default time that in-flight requests get at shutdown.
pub const DRAIN: Duration = Duration::from_secs(10);

/// A whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// User that the process switches to once its listeners are open.
    pub user: Option<String>,
    pub group: Option<String>,
    /// Folder that becomes the root folder once the listeners are open.
    pub chroot: Option<PathBuf>,
    /// Whether Landlock restricts the process to the paths in the file.
    pub landlock: bool,
    /// Worker threads. None for one per core.
    pub workers: Option<usize>,
    /// Memory limit in bytes. `None`: nine tenths of the system's limit.
    pub memory: Option<u64>,
    /// Time that in-flight requests get at shutdown, and when their listener is removed.
    pub drain: Duration,
    /// Access log of sites that name none.
    pub log: Log,
    pub error_log: ErrorLog,
    /// Folder for what the server keeps between runs. None for the default one.
    pub state: Option<PathBuf>,
    /// File with the id of the process.
    pub pid_file: Option<PathBuf>,
    pub upgrade: Upgrade,
    /// File with the keys of session tickets, for several machines. None for keys of this process.
    pub ticket_keys: Option<PathBuf>,
    /// How certificates are obtained, unless a site says otherwise.
    pub acme: acme::Settings,
    /// The Redis server that several machines share.
    pub shared: Option<Shared>,
    pub admin: Option<Admin>,
    /// At least one.
    pub listeners: Vec<Listener>,
    /// At least one.
    pub sites: Vec<Site>,
    /// The folders of included files, which a reload reads again.
    pub includes: Vec<PathBuf>,
    /// The files whose content is a part of the configuration, which a reload reads again.
    pub contents: Vec<PathBuf>,
}

impl Config {
    /// A configuration with one site for every host, and defaults for everything else.
    pub fn new(listen: impl IntoIterator<Item = Bind>, site: Site) -> Config {
        let listeners: Vec<_> = listen.into_iter().map(Listener::new).collect();
        Config {
            user: None,
            group: None,
            chroot: None,
            landlock: false,
            workers: None,
            memory: None,
            drain: DRAIN,
            log: Log::OFF,
            error_log: ErrorLog::default(),
            state: None,
            pid_file: None,
            upgrade: Upgrade::default(),
            ticket_keys: None,
            acme: acme::Settings::default(),
            shared: None,
            admin: None,
            includes: Vec::new(),
            contents: Vec::new(),
            sites: vec![Site {
                listeners: (0..listeners.len()).collect(),
                ..site
            }],
            listeners,
        }
    }

    /// Whether some site keeps something in the state folder.
    pub fn needs_state(&self) -> bool {
        let mut certificates = self.sites.iter().filter_map(|site| site.tls.certificate.as_ref());
        self.state.is_some()
            || certificates.any(|from| match from {
                CertificateFrom::Files(_) => false,
                CertificateFrom::Internal => true,
                CertificateFrom::Auto(_) | CertificateFrom::OnDemand => self.shared.is_none(),
            })
    }

    /// The settings of certificates on demand, with the proofs that the listeners can give. None if no site has such
    /// certificates.
    pub fn on_demand(&self) -> Option<acme::Settings> {
        let site = self
            .sites
            .iter()
            .find(|site| site.tls.certificate == Some(CertificateFrom::OnDemand))?;
        Some(self.with_kinds(site, &self.acme))
    }

    /// The certificates that public authorities are to sign, with the proofs that the listeners of each site can give.
    pub fn subjects(&self) -> Vec<Subject> {
        let subject = |site: &Site| {
            let Some(CertificateFrom::Auto(settings)) = &site.tls.certificate else {
                return None;
            };
            let settings = self.with_kinds(site, settings);
            let names: Vec<String> = site.hosts.iter().map(Host::to_string).collect();
            (!names.is_empty()).then_some(Subject { names, settings })
        };
        self.sites.iter().filter_map(subject).collect()
    }

    /// The settings with the proofs that the listeners of a site can give, unless the settings choose proofs.
    fn with_kinds(&self, site: &Site, settings: &acme::Settings) -> acme::Settings {
        let mut settings = settings.clone();
        if settings.kinds.is_empty() {
            let has = |tls: bool| {
                let mut own = site.listeners.iter().map(|&listener| &self.listeners[listener]);
                own.any(|listener| listener.tls.is_some() == tls)
            };
            settings.kinds = match settings.dns {
                Some(_) => vec![Kind::Dns01],
                None => {
                    let kinds = [(has(false), Kind::Http01), (has(true), Kind::TlsAlpn01)];
                    kinds
                        .into_iter()
                        .filter(|(can, _)| *can)
                        .map(|(_, kind)| kind)
                        .collect()
                }
            };
        }
        settings
    }

    /// The files of certificates and their keys, named as seen from outside of a changed root folder.
    pub fn certificate_files(&self) -> impl Iterator<Item = &Path> {
        let files = self.sites.iter().filter_map(|site| match &site.tls.certificate {
            Some(CertificateFrom::Files(files)) => Some([files.cert.as_path(), files.key.as_path()]),
            _ => None,
        });
        files.flatten()
    }

    /// The settings of the sites whose certificates public authorities sign.
    fn acme_settings(&self) -> impl Iterator<Item = &acme::Settings> {
        self.sites.iter().filter_map(|site| match &site.tls.certificate {
            Some(CertificateFrom::Auto(settings)) => Some(&**settings),
            Some(CertificateFrom::OnDemand) => Some(&self.acme),
            _ => None,
        })
    }

    /// The programs that set DNS records.
    pub fn dns_programs(&self) -> impl Iterator<Item = &Path> {
        self.acme_settings().filter_map(|settings| settings.dns.as_deref())
    }

    /// The files with the authorities of issuers.
    pub fn issuers_files(&self) -> impl Iterator<Item = &Path> {
        let issuers = self.acme_settings().flat_map(|settings| &settings.issuers);
        issuers.filter_map(|issuer| issuer.ca.as_deref())
    }

    /// Removes a listener, also from the sites that it serves.
    pub fn remove_listener(&mut self, index: usize) {
        self.listeners.remove(index);
        for site in &mut self.sites {
            site.listeners.retain(|&listener| listener != index);
            for listener in site.listeners.iter_mut().filter(|listener| **listener > index) {
                *listener -= 1;
            }
        }
    }

    /// The size of the configuration in words: `2 sites, 5 routes, 1 listener`.
    pub fn summary(&self) -> String {
        let count = |number: usize, one: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {one}s"),
        };
        let routes = self.sites.iter().map(|site| site.routes.len()).sum();
        format!(
            "{}, {}, {}",
            count(self.sites.len(), "site"),
            count(routes, "route"),
            count(self.listeners.len(), "listener")
        )
    }
}

/// Where several machines share state: `[shared]`.
#[derive(Clone, PartialEq)]
pub struct Shared {
    pub server: RedisServer,
    /// The beginning of the keys.
    pub prefix: String,
    /// The secret that seals the values.
    pub key: Option<Vec<u8>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("server", &self.server)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Listener of /health, /metrics and /fibers.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub bind: Bind,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bind {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// A socket that systemd has opened, named by its `FileDescriptorName=`.
    Systemd(String),
}

impl Bind {
    /// Whether the system chooses the port, another one each time.
    pub fn has_any_port(&self) -> bool {
        matches!(self, Bind::Tcp(address) if address.port() == 0)
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bind::Tcp(address) => write!(f, "{address}"),
            Bind::Unix(path) => write!(f, "unix:{}", path.display()),
            Bind::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// How the running server hands over to a new process: `[upgrade]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    /// The program to start. None for the path of the running one.
    pub program: Option<PathBuf>,
    /// Time within which the new process must be ready.
    pub timeout: Duration,
    /// Time that in-flight requests get in the old process.
    pub drain: Duration,
}

impl Default for Upgrade {
    fn default() -> Upgrade {
        Upgrade {
            program: None,
            timeout: Duration::from_secs(30),
            drain: Duration::from_secs(3600),
        }
    }
}

/// A `[[listen]]` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// Name that sites use. It is the address when the section has no `name`.
    pub name: String,
    pub bind: Bind,
    /// Peers whose PROXY protocol header is believed. Empty when the protocol is off.
    pub proxy_protocol: Vec<Client>,
    pub real_ip: Option<RealIp>,
    pub max_connections: Option<usize>,
    /// Most connections of one client.
    pub max_connections_per_client: Option<u32>,
    /// Permissions of a Unix socket's file.
    pub mode: Option<u32>,
    /// `drain` is [`Config::drain`] for all listeners.
    pub timeouts: Timeouts,
    /// Least rates of clients.
    pub rates: Rates,
    /// Limits of a request's head. Each route has its own limit of the body.
    pub head: osier_web::Limits,
    pub tls: Option<ListenTls>,
    /// The HTTP/2 limits. None where clients may not speak it.
    pub http2: Option<Http2Limits>,
    /// Whether the server goes on without this listener when its address is taken. No file can say so.
    pub is_optional: bool,
}

/// TLS of a listener.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListenTls {
    pub min_version: TlsVersion,
    /// The certificates that clients must show. None if clients are not asked for one.
    pub client: Option<ClientTls>,
}

/// The least TLS version that a listener speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsVersion {
    #[default]
    Tls12,
    Tls13,
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientTls {
    /// The authorities that sign the clients' certificates, and lists of revoked ones: the text of the PEM files. A reload
    /// compares it and so finds a changed file.
    pub authorities: Vec<u8>,
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

impl ClientTls {
    /// The same for an acceptor of TLS.
    pub fn certificates(&self) -> ClientCertificates {
        match self.is_required {
            true => ClientCertificates::Required(self.authorities.clone()),
            false => ClientCertificates::Optional(self.authorities.clone()),
        }
    }
}

impl Listener {
    /// A listener with the default settings, named by its address.
    pub fn new(bind: Bind) -> Listener {
        Listener {
            name: bind.to_string(),
            bind,
            proxy_protocol: Vec::new(),
            real_ip: None,
            max_connections: None,
            max_connections_per_client: None,
            mode: None,
            timeouts: Timeouts::default(),
            rates: Rates::default(),
            head: osier_web::Limits::default(),
            tls: None,
            http2: Some(Http2Limits::DEFAULT),
            is_optional: false,
        }
    }
}

/// A `[[site]]` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Host names in lower case. Empty only for the default site.
    pub hosts: Vec<Host>,
    /// Whether the site answers for hosts that no site names.
    pub default: bool,
    /// Indices into [`Config::listeners`]. All of them when the file names none.
    pub listeners: Vec<usize>,
    /// Replaces the listener's.
    pub real_ip: Option<RealIp>,
    pub error_pages: Vec<(u16, PathBuf)>,
    pub tls: SiteTls,
    pub policies: Policies,
    pub routes: Vec<Route>,
}

/// TLS of a site.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SiteTls {
    /// The origin of its certificate. None for a site without https.
    pub certificate: Option<CertificateFrom>,
    /// Whether requests in the clear are sent to https.
    pub redirect: Setting<Redirect>,
    /// Value of `Strict-Transport-Security`.
    pub hsts: Option<String>,
}

/// A redirect to https.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The port that clients use. None for that of the site's first listener with TLS.
    pub port: Option<u16>,
}

impl Site {
    /// A default site with one route for all requests.
    pub fn new(handler: handler::HandlerSettings, policies: Policies) -> Site {
        Site {
            hosts: Vec::new(),
            default: true,
            listeners: Vec::new(),
            real_ip: None,
            error_pages: Vec::new(),
            tls: SiteTls::default(),
            policies,
            routes: vec![Route {
                matches: Match::default(),
                handler,
                policies: Policies::default(),
            }],
        }
    }
}

/// A host name that a site answers for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Exact(String),
    /// A wildcard such as `*.example.org`, stored without the `*.`. It matches every name below.
    Below(String),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Exact(name) => f.write_str(name),
            Host::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// A `[[site.route]]` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub matches: Match,
    pub handler: handler::HandlerSettings,
    pub policies: Policies,
}

/// The policies around a handler. A route's own setting replaces its site's. `headers`, `request_headers`, `limits`
/// and `types` are merged key by key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    pub auth: Setting<auth::Settings>,
    pub forward_auth: Setting<forward_auth::Settings>,
    pub jwt: Setting<jwt::Settings>,
    /// Whether errors have pages in HTML, for clients that prefer it. On by default.
    pub html_errors: Option<bool>,
    pub headers: Headers,
    pub request_headers: handler::RequestHeaders,
    pub cors: Setting<cors::Options>,
    pub limits: Limits,
    pub allow: Vec<Client>,
    pub deny: Vec<Client>,
    pub rate: Setting<rate::Options>,
    pub compress: Setting<compress::Options>,
    /// Types of files beside the built-in ones.
    pub types: Types,
    pub cache: Setting<cache::Settings>,
    pub log: Setting<Log>,
    pub request_id: Setting<RequestIds>,
    /// Whether responses have the field `Server-Timing`. Off by default.
    pub server_timing: Option<bool>,
    /// The time after which a request is logged as slow.
    pub slow: Setting<Duration>,
    pub trace: Setting<Trace>,
}

impl Policies {
    /// These policies, completed by `others`. `allow` and `deny` are inherited together; `headers`,
    /// `request_headers`, `limits` and `types` are merged key by key.
    pub fn over(self, others: &Policies) -> Policies {
        let (allow, deny) = match self.allow.is_empty() && self.deny.is_empty() {
            true => (others.allow.clone(), others.deny.clone()),
            false => (self.allow, self.deny),
        };
        Policies {
            auth: self.auth.over(&others.auth),
            forward_auth: self.forward_auth.over(&others.forward_auth),
            jwt: self.jwt.over(&others.jwt),
            html_errors: self.html_errors.or(others.html_errors),
            headers: self.headers.over(&others.headers),
            request_headers: self.request_headers.over(&others.request_headers),
            cors: self.cors.over(&others.cors),
            limits: Limits {
                body: self.limits.body.or(others.limits.body),
                time: self.limits.time.or(others.limits.time),
                rates: self.limits.rates.or(others.limits.rates),
                queue: self.limits.queue.or(others.limits.queue),
            },
            allow,
            deny,
            rate: self.rate.over(&others.rate),
            compress: self.compress.over(&others.compress),
            types: self.types.over(&others.types),
            cache: self.cache.over(&others.cache),
            log: self.log.over(&others.log),
            request_id: self.request_id.over(&others.request_id),
            server_timing: self.server_timing.or(others.server_timing),
            slow: self.slow.over(&others.slow),
            trace: self.trace.over(&others.trace),
        }
    }
}

/// A setting that is on, off, or inherited. A route inherits from its site, and a site takes the default.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Setting<T> {
    #[default]
    Inherited,
    Off,
    On(T),
}

impl<T: Clone> Setting<T> {
    /// This setting, or `other` if this one is inherited.
    fn over(self, other: &Setting<T>) -> Setting<T> {
        match self {
            Setting::Inherited => other.clone(),
            set => set,
        }
    }
}

impl<T> Setting<T> {
    /// Reads a table or `false`.
    pub fn read(section: &Section<'_>, key: &'static str, read: impl FnOnce(Section<'_>) -> Option<T>) -> Setting<T> {
        Setting::read_as(section, key, "a table or false", read)
    }

    /// Reads `true`, which means `default`, `false`, or a table. `read` changes the default as the table says.
    pub fn read_switch(
        section: &Section<'_>,
        key: &'static str,
        default: T,
        read: impl FnOnce(Section<'_>, T) -> T,
    ) -> Setting<T> {
        let Some(value) = section.any(key) else {
            return Setting::Inherited;
        };
        if let DeValue::Boolean(is_on) = value.get_ref() {
            return if *is_on { Setting::On(default) } else { Setting::Off };
        }
        match section.as_section(key, value, "true, false or a table") {
            Some(table) => Setting::On(read(table, default)),
            None => Setting::Off,
        }
    }

    /// Reads a table or `false`. For any other value, notes that `wanted` was expected.
    pub fn read_as(
        section: &Section<'_>,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(Section<'_>) -> Option<T>,
    ) -> Setting<T> {
        let Some(value) = section.any(key) else {
            return Setting::Inherited;
        };
        if let DeValue::Boolean(false) = value.get_ref() {
            return Setting::Off;
        }
        match section.as_section(key, value, wanted).and_then(read) {
            Some(value) => Setting::On(value),
            None => Setting::Off,
        }
    }

    /// Opens what a route needs for this setting. `inherited` is what its site has opened.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open<O: Clone>(
        &self,
        inherited: Option<&O>,
        open: impl FnOnce(&T) -> Result<O, Reason>,
    ) -> Result<Option<O>, Reason> {
        match self {
            Setting::On(settings) => open(settings).map(Some),
            Setting::Off => Ok(None),
            Setting::Inherited => Ok(inherited.cloned()),
        }
    }

    /// The effective setting of a route, given its site's setting.
    pub fn or<'a>(&'a self, site: &'a Setting<T>) -> Option<&'a T> {
        match self {
            Setting::On(value) => Some(value),
            Setting::Off => None,
            Setting::Inherited => match site {
                Setting::On(value) => Some(value),
                _ => None,
            },
        }
    }
}

/// The limits of requests. None for the default of each.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Bytes of a request body.
    pub body: Option<u64>,
    /// Time until the handler has made its response.
    pub time: Option<Duration>,
    /// Whether the least rates of the listener bind clients.
    pub rates: Option<bool>,
    /// How many requests run at once, and how long others wait.
    pub queue: Option<queue::Options>,
}
