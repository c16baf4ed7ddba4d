//! What a checked file says. Plain data; `top`, `route`, `handler` and `policy` make it, `site.rs` builds from it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use osier_web::compress;

use crate::log::access::LogFormat;
use crate::policy::client::Client;
use crate::policy::headers::Headers;
use crate::policy::rewrite::Rule;
use crate::policy::{auth, cors, rate};

/// Bytes of a request's body when nobody says.
pub const BODY_BYTES: u64 = 2 << 20;

/// What in-flight requests are given at the end when nobody says.
pub const DRAIN: Duration = Duration::from_secs(10);

/// A whole file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Whom the process becomes once it listens.
    pub user: Option<String>,
    pub group: Option<String>,
    /// What becomes the root folder once it listens.
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
    /// What sites call it; its address when it has no name.
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
    /// In lower case. Empty only if it is the default.
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
    pub fn new(handler: Handler, policies: Policies) -> Site {
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
    pub handler: Handler,
    pub policies: Policies,
}

/// Which requests a route takes: all that fit everything which is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// Begins with `/` and does not end with one, but for `/` itself, which is none.
    pub path: Option<String>,
    pub globs: Vec<String>,
    /// Sorted. Empty for all.
    pub methods: Vec<String>,
}

/// What answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Handler {
    Files(Files),
    Fastcgi(Fastcgi),
    Proxy(Proxy),
    Redirect(Redirect),
    Respond(Respond),
    Rewrite(Rewrite),
    Chat(Chat),
    Welcome(Welcome),
}

impl Handler {
    /// The key that makes it, in the order of the documentation.
    pub const KEYS: [&str; 8] = [
        "files", "fastcgi", "proxy", "redirect", "respond", "rewrite", "chat", "welcome",
    ];
}

#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    pub root: PathBuf,
    pub index: Vec<String>,
    pub listing: bool,
    pub spa: bool,
    pub hidden: bool,
    pub precompressed: bool,
    /// What is cut from the front of a path before it is looked for below the root.
    pub strip: Option<String>,
    /// `Cache-Control` of the files.
    pub cache: Option<String>,
}

impl Files {
    /// A folder with the defaults of `files = "root"`.
    pub fn new(root: PathBuf) -> Files {
        Files {
            root,
            index: vec!["index.html".into()],
            listing: false,
            spa: false,
            hidden: false,
            precompressed: true,
            strip: None,
            cache: None,
        }
    }
}

/// None for the handler's own default.
#[derive(Debug, Clone, PartialEq)]
pub struct Fastcgi {
    pub servers: Vec<Upstream>,
    pub root: PathBuf,
    pub suffixes: Vec<String>,
    pub index: Vec<String>,
    /// The script for what is neither a script nor a file.
    pub front: Option<String>,
    /// Files that are no scripts are served, too.
    pub files: bool,
    pub application_root: Option<PathBuf>,
    pub internal_root: Option<PathBuf>,
    pub params: Vec<(String, String)>,
    pub server_name: Option<String>,
    pub https: bool,
    pub hide: Vec<String>,
    /// Idle connections kept to each server.
    pub keep: Option<usize>,
    pub max_requests: Option<usize>,
    pub timeouts: UpstreamTimeouts,
    pub health: Option<Health>,
}

/// None for the handler's own default.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    pub servers: Vec<Upstream>,
    /// What is cut from the front of a path before it is sent.
    pub strip: Option<String>,
    pub host: ProxyHost,
    pub timeouts: UpstreamTimeouts,
    /// Of an upgraded connection.
    pub tunnel_idle: Option<Duration>,
    /// Of one that one side has closed.
    pub tunnel_half_closed: Option<Duration>,
    pub health: Option<Health>,
    /// Whose X-Forwarded-* fields count.
    pub trust: Vec<IpNet>,
    /// Whether the upstream gets such fields.
    pub forwarded: bool,
    /// Whether connections may be upgraded.
    pub upgrade: bool,
    pub read_ahead: Option<u64>,
    /// Idle connections kept to each server.
    pub keep: Option<usize>,
    pub max_requests: Option<usize>,
}

/// The `Host` an upstream sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyHost {
    /// The client's.
    Client,
    /// The upstream's address.
    Upstream,
    Fixed(String),
}

/// Where an application listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Upstream {
    /// `host:port`
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Tcp(address) => f.write_str(address),
            Upstream::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UpstreamTimeouts {
    pub connect: Option<Duration>,
    /// For the head of the response.
    pub first_byte: Option<Duration>,
    /// Between bytes of the response.
    pub between: Option<Duration>,
}

/// How an upstream is asked whether it is well.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Health {
    /// Asked over HTTP; none to see only whether it takes a connection.
    pub path: Option<String>,
    pub every: Option<Duration>,
    pub timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Redirect {
    /// With `{host}`, `{path}`, `{rest}` and `{query}`.
    pub to: String,
    pub status: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Respond {
    pub status: u16,
    pub body: Body,
    pub content_type: Option<String>,
}

/// What a fixed answer says.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The status in words.
    Status,
    Text(String),
    File(PathBuf),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rewrite {
    /// Tried in order.
    pub rules: Vec<Rule>,
}

/// None for the handler's own default.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    /// Lines a newcomer is shown.
    pub history: Option<usize>,
    /// Bytes of a line.
    pub line: Option<u64>,
    pub rooms: Option<usize>,
    /// Lines a guest may say at once.
    pub burst: Option<u32>,
    /// And after them one in this time.
    pub every: Option<Duration>,
    /// Whose pages may connect; `*` for all, empty for those of the site itself.
    pub origins: Vec<String>,
    pub redis: Option<Redis>,
}

/// A broker that takes a chat's lines to other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redis {
    pub server: Upstream,
    pub password: Option<String>,
    /// Chats that name the same one are one.
    pub channel: String,
}

/// The built-in site.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Welcome {
    /// Live data is shown to other machines, too.
    pub live_for_all: bool,
}

/// What happens around a handler. A route's own setting replaces its site's; headers add up.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    pub auth: Setting<auth::Settings>,
    pub headers: Headers,
    pub cors: Setting<cors::Settings>,
    pub limits: Limits,
    pub allow: Vec<Client>,
    pub deny: Vec<Client>,
    pub rate: Setting<rate::Settings>,
    pub compress: Setting<compress::Settings>,
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
    /// Of a route, given its site's.
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
    /// For the head of the response.
    pub time: Option<Duration>,
}
