//! The settings of a checked configuration, as plain data that compares.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use osier_web::compress;

use crate::handler::{self, Match};
use crate::log::access::LogFormat;
use crate::policy::client::Client;
use crate::policy::headers::Headers;
use crate::policy::{auth, cors, rate};

/// Bytes of a request's body when nobody says.
pub const BODY_BYTES: u64 = 2 << 20;

/// The default time that in-flight requests get at the end.
pub const DRAIN: Duration = Duration::from_secs(10);

/// A whole file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// User that the process switches to once it listens.
    pub user: Option<String>,
    pub group: Option<String>,
    /// The folder that becomes the root folder once the process listens.
    pub chroot: Option<PathBuf>,
    /// Whether the kernel is asked to keep the process within the folders of the file.
    pub landlock: bool,
    /// Worker threads; none for one per core.
    pub workers: Option<usize>,
    /// How long running requests may take at the end, and on a listener that is removed.
    pub drain: Duration,
    /// The access log of sites that name none.
    pub log: Log,
    pub admin: Option<Admin>,
    /// At least one.
    pub listeners: Vec<Listener>,
    /// At least one.
    pub sites: Vec<Site>,
}

impl Config {
    /// One site for every host, with the defaults of a file that says nothing else.
    pub fn new(listen: impl IntoIterator<Item = Bind>, site: Site) -> Config {
        let listeners: Vec<_> = listen.into_iter().map(Listener::new).collect();
        Config {
            user: None,
            group: None,
            chroot: None,
            landlock: false,
            workers: None,
            drain: DRAIN,
            log: Log::OFF,
            admin: None,
            sites: vec![Site {
                listeners: (0..listeners.len()).collect(),
                ..site
            }],
            listeners,
        }
    }

    /// `2 sites, 5 routes, 1 listener`
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

/// Where and how requests are logged.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    pub format: LogFormat,
    /// None for standard error.
    pub file: Option<PathBuf>,
}

impl Log {
    pub const OFF: Log = Log {
        format: LogFormat::Off,
        file: None,
    };
}

/// The listener of /health and /metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub bind: Bind,
}

/// A place to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bind {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// A socket that systemd has opened, by its `FileDescriptorName=`.
    Systemd(String),
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

/// `[[listen]]`
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// The name that sites use; the address when the listener has no name.
    pub name: String,
    pub bind: Bind,
    /// Peers that say in the PROXY protocol whom they speak for; empty when the protocol is not spoken.
    pub proxy_protocol: Vec<Client>,
    pub max_connections: Option<usize>,
    /// Permissions of a Unix socket.
    pub mode: Option<u32>,
    pub timeouts: Timeouts,
    pub head: Head,
}

impl Listener {
    /// A listener with the server's defaults, called by its address.
    pub fn new(bind: Bind) -> Listener {
        Listener {
            name: bind.to_string(),
            bind,
            proxy_protocol: Vec::new(),
            max_connections: None,
            mode: None,
            timeouts: Timeouts::default(),
            head: Head::default(),
        }
    }
}

/// How long a listener waits for its clients; none for the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timeouts {
    pub header: Option<Duration>,
    pub body: Option<Duration>,
    pub idle: Option<Duration>,
    pub write: Option<Duration>,
}

/// How large the head of a request may be; none for the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Head {
    pub request_line: Option<u64>,
    pub bytes: Option<u64>,
    pub fields: Option<u64>,
}

/// `[[site]]`
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Lower case. Empty only if it is the default.
    pub hosts: Vec<Host>,
    /// Whether it answers for hosts that no site names.
    pub default: bool,
    /// Indices into [`Config::listeners`]: all of them when the file names none.
    pub listeners: Vec<usize>,
    pub error_pages: Vec<(u16, PathBuf)>,
    pub policies: Policies,
    pub routes: Vec<Route>,
}

impl Site {
    /// The default site, with one route for all requests.
    pub fn new(handler: handler::Settings, policies: Policies) -> Site {
        Site {
            hosts: Vec::new(),
            default: true,
            listeners: Vec::new(),
            error_pages: Vec::new(),
            policies,
            routes: vec![Route {
                matches: Match::default(),
                handler,
                policies: Policies::default(),
            }],
        }
    }
}

/// A host name a site answers for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Exact(String),
    /// `*.example.org`, without the `*.`: every name below it.
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

/// `[[site.route]]`
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub matches: Match,
    pub handler: handler::Settings,
    pub policies: Policies,
}

/// The policies around a handler. A route's own setting replaces its site's; `headers` and `limits` are merged key by key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    pub auth: Setting<auth::Settings>,
    pub headers: Headers,
    pub cors: Setting<cors::Settings>,
    pub limits: Limits,
    pub allow: Vec<Client>,
    pub deny: Vec<Client>,
    pub rate: Setting<rate::Settings>,
    pub compress: Setting<compress::Options>,
    pub log: Setting<Log>,
}

/// A policy a route can have, lack, or leave to its site.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Setting<T> {
    #[default]
    Inherited,
    Off,
    On(T),
}

impl<T> Setting<T> {
    /// The setting of a route, given its site's.
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

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: Option<u64>,
    /// Time to the head of the response.
    pub time: Option<Duration>,
}
