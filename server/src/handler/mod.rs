//! The handlers of routes. The file of a handler has its settings, reads them from a configuration, opens the handler
//! and answers requests.
//!
//! ```text
//!   [[site.route]] ─▶ HandlerSettings::read ─▶ HandlerSettings, compared by a reload ─▶ HandlerSettings::open ─▶ Handler ─▶ answer
//! ```
//!
//! To add a handler: write its file with a type that implements [`Configured`], and name it in `handlers!` below.

mod balance;
mod chat;
mod fastcgi;
mod fields;
mod files;
mod proxy;
mod redirect;
pub mod redis;
mod respond;
mod rewrite;
mod template;
pub mod upstream;
mod welcome;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use osier_web::chat::Chat;
use osier_web::files::{CacheLimits, Types};
use osier_web::upgrade::Upgrade;
use osier_web::upstream::Upstream;
use osier_web::{Answer, Connections, Request, Response, Served, compress};
use toml::Spanned;
use toml::de::DeValue;

use crate::log::operator::Say;
use crate::policy::rewrite::Rewrite;
use crate::reader::{At, Reason, Section};

pub use self::fields::{Changed, RequestHeaders};
pub use self::files::{Files, cannot_serve};
pub use self::respond::read_file;
pub use self::welcome::Welcome;

/// The settings of one kind of handler.
pub trait Configured: Sized {
    /// Whether a reload keeps the open handler while its settings are equal. True for a handler with caches,
    /// connections or rooms. False for one that is cheap to open, or that reads a file when it is opened.
    const IS_KEPT: bool;
    /// Whether a reload keeps the open handler for no other site, because it holds the words of its visitors.
    const STAYS_IN_SITE: bool = false;
    /// Whether the handler compresses responses by itself.
    const COMPRESSES: bool = false;
    /// Whether its responses are those of a backend, which a cache may store.
    const IS_GATEWAY: bool = false;

    /// Reads the value of the handler's key. None after a mistake, which has been noted.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Self>;

    /// Every path that the open handler uses, for `chroot` and Landlock.
    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        Vec::new()
    }

    /// The folder that is part of the handler's identity: another folder with the same name makes it a new handler.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// The folder whose files the handler sends.
    fn published(&self) -> Option<Published<'_>> {
        None
    }

    /// Adjusts the settings before the root folder changes. A backend stays outside, so the paths that it is sent must
    /// not change.
    fn before_chroot(&mut self) {}

    /// The bounds of request bodies that may have to be stored in temporary files.
    fn spools(&self) -> Option<Spools> {
        None
    }

    /// How the names of scripts end that the handler runs, also with more segments behind them (PATH_INFO).
    fn script_suffixes(&self) -> &[String] {
        &[]
    }

    /// Opens the handler.
    ///
    /// # Errors
    /// One line: what cannot be opened, and why.
    fn open(&self, route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason>;
}

/// How long a request body can be that is received before a backend is asked, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Spools {
    /// The longest body that stays in memory.
    pub memory: u64,
    /// The room in temporary files: the key `buffer_total`.
    pub files: u64,
}

/// The methods in `Allow` for a handler that takes any.
pub const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// An open handler.
pub trait Handler: Send + Sync {
    /// Answers a request. `path` is the request's path as routes compare it.
    ///
    /// # Suspends
    /// As the kind of handler does.
    fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response;

    /// Answers a request as [`answer`](Handler::answer) does. The answer may be one that waits for the body.
    fn answer_after_body(&self, request: &mut Request<'_>, path: &[u8]) -> Answer {
        self.answer(request, path).into()
    }

    /// The methods that the handler takes, for `Allow`.
    fn methods(&self) -> &'static str {
        METHODS
    }

    /// Starts background work. Called on a fiber once the configuration is sure to be used, and again by each reload
    /// that keeps the handler.
    fn start(&self) {
        if let Some(upstream) = self.upstream() {
            upstream.start();
        }
    }

    /// Ends responses that never end by themselves.
    fn stop(&self) {}

    /// The handler's backends, for the metrics.
    fn upstream(&self) -> Option<&Upstream> {
        None
    }

    /// The handler's chat, for the metrics.
    fn chat(&self) -> Option<&Chat> {
        None
    }

    /// Whether [`record`](Handler::record) must be called.
    fn records(&self) -> bool {
        false
    }

    /// Counts a served request of any route.
    fn record(&self, _served: &Served<'_>) {}
}

/// The open handler of a route, or the rules of a rewrite.
#[derive(Clone)]
pub enum Opened {
    /// A handler, which makes a response for each request.
    Answers(Arc<dyn Handler>),
    /// Rules. If none of them matches, the routes that follow are tried.
    Rewrites(Arc<Rewrite>),
}

/// The settings of a route that its handler is opened with.
pub struct Route<'a> {
    /// The route's `path`.
    pub path: Option<&'a str>,
    /// How responses are compressed, if they are.
    pub compress: Option<&'a compress::Options>,
    /// Types of files beside the built-in ones.
    pub types: &'a Types,
    /// Whether every request of the site is for this route.
    pub is_whole_site: bool,
}

/// Resources of the server that handlers share.
#[derive(Clone)]
pub struct Resources {
    /// Limits of the cache of each route with files.
    pub cache: CacheLimits,
    pub workers: usize,
    /// Connections of all listeners.
    pub connections: Arc<Mutex<Vec<Connections>>>,
    pub say: Say,
    pub upgrade: Upgrade,
}

/// How the server uses a path of the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It reads the file, or all below the folder.
    Read,
    /// It writes the file.
    Write,
    /// It writes into the folder, and makes it at start.
    Folder,
    /// It connects to the Unix socket.
    Connect,
}

/// The conditions of a route. A request must meet all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Match {
    /// Path prefix. It begins with `/` and does not end with one. None for `/` itself.
    pub path: Option<String>,
    pub globs: Vec<String>,
    /// Methods, sorted. Empty for all methods.
    pub methods: Vec<String>,
}

/// A folder whose files a handler sends.
pub struct Published<'s> {
    pub root: &'s Path,
    /// Prefix that is removed from the path of a request.
    pub strip: Option<&'s str>,
    /// Whether links that lead out of the folder may be followed.
    pub follows_links: bool,
}

/// Declares [`HandlerSettings`]: the key of each handler in a route, its variant and the type of its settings.
macro_rules! handlers {
    ($($key:literal => $kind:ident($settings:ty),)*) => {
        /// The settings of one handler of any kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum HandlerSettings {
            $($kind($settings),)*
        }

        impl HandlerSettings {
            /// The keys of all handlers, in the order of messages.
            pub const KEYS: &[&'static str] = &[$($key),*];

            fn read_key<'s>(
                key: &str,
                section: &Section<'s>,
                value: &'s Spanned<DeValue<'s>>,
                matches: &Match,
            ) -> Option<HandlerSettings> {
                match key {
                    $($key => <$settings>::read(section, value, matches).map(HandlerSettings::$kind),)*
                    _ => None,
                }
            }

            /// See [`Configured::IS_KEPT`].
            pub fn is_kept(&self) -> bool {
                match self {
                    $(HandlerSettings::$kind(_) => <$settings>::IS_KEPT,)*
                }
            }

            /// See [`Configured::STAYS_IN_SITE`].
            pub fn stays_in_site(&self) -> bool {
                match self {
                    $(HandlerSettings::$kind(_) => <$settings>::STAYS_IN_SITE,)*
                }
            }

            /// See [`Configured::COMPRESSES`].
            pub fn compresses(&self) -> bool {
                match self {
                    $(HandlerSettings::$kind(_) => <$settings>::COMPRESSES,)*
                }
            }

            /// See [`Configured::IS_GATEWAY`].
            pub fn is_gateway(&self) -> bool {
                match self {
                    $(HandlerSettings::$kind(_) => <$settings>::IS_GATEWAY,)*
                }
            }

            /// See [`Configured::paths`].
            pub fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.paths(),)*
                }
            }

            /// See [`Configured::folder`].
            pub fn folder(&self) -> Option<&Path> {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.folder(),)*
                }
            }

            /// See [`Configured::published`].
            pub fn published(&self) -> Option<Published<'_>> {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.published(),)*
                }
            }

            /// See [`Configured::before_chroot`].
            pub fn before_chroot(&mut self) {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.before_chroot(),)*
                }
            }

            /// See [`Configured::spools`].
            pub fn spools(&self) -> Option<Spools> {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.spools(),)*
                }
            }

            /// See [`Configured::script_suffixes`].
            pub fn script_suffixes(&self) -> &[String] {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.script_suffixes(),)*
                }
            }

            /// See [`Configured::open`].
            pub fn open(&self, route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
                match self {
                    $(HandlerSettings::$kind(settings) => settings.open(route, resources),)*
                }
            }
        }
    };
}

handlers! {
    "files" => Files(files::Files),
    "fastcgi" => Fastcgi(fastcgi::Fastcgi),
    "proxy" => Proxy(proxy::Proxy),
    "redirect" => Redirect(redirect::Redirect),
    "respond" => Respond(respond::Respond),
    "rewrite" => Rewrite(rewrite::Rewrite),
    "chat" => Chat(chat::Chat),
    "welcome" => Welcome(welcome::Welcome),
}

impl HandlerSettings {
    /// Reads the handler of a route. Notes a mistake, and returns a stand-in then, because a configuration with a
    /// mistake is not used.
    pub fn read(section: &Section<'_>, matches: &Match) -> HandlerSettings {
        let nothing = HandlerSettings::Respond(respond::Respond::status(404));
        let given: Vec<(&str, Range<usize>)> = HandlerSettings::KEYS
            .iter()
            .filter_map(|key| section.key(key).map(|at| (*key, at)))
            .collect();
        let Some(&(key, _)) = given.first() else {
            section.problem(format!(
                "[[site.route]] has no handler: give it one of {}",
                HandlerSettings::KEYS.join(", ")
            ));
            return nothing;
        };
        for (other, at) in &given[1..] {
            let text = format!("'{other}' beside '{key}': a route has one handler; make two routes");
            section.source().problem(at, text);
        }
        let Some(value) = section.any(key) else { return nothing };
        HandlerSettings::read_key(key, section, value, matches).unwrap_or(nothing)
    }
}

impl Opened {
    /// Wraps an open handler.
    fn answers(handler: impl Handler + 'static) -> Opened {
        Opened::Answers(Arc::new(handler))
    }

    /// The handler. None for rules.
    pub fn handler(&self) -> Option<&Arc<dyn Handler>> {
        match self {
            Opened::Answers(handler) => Some(handler),
            Opened::Rewrites(_) => None,
        }
    }
}

/// A handler's table, or the single value that stands for it: `files = "www"` means `files = { root = "www" }`.
enum Form<'s> {
    Table(Section<'s>),
    Short(At<String>),
}

/// Reads a table, or the string that stands for it. `short` says in messages what the string is.
fn form<'s>(section: &Section<'s>, key: &str, value: &'s Spanned<DeValue<'s>>, short: &str) -> Option<Form<'s>> {
    match value.get_ref() {
        DeValue::String(_) => section.as_string(key, value, short).map(Form::Short),
        _ => section
            .as_section(key, value, &format!("a table, or {short} alone"))
            .map(Form::Table),
    }
}

/// Reads `strip`, the prefix that a handler removes from paths: `true` for the path of the route, or a path.
fn strip(table: &Section<'_>, matches: &Match) -> Option<String> {
    let value = table.any("strip")?;
    match value.get_ref() {
        DeValue::Boolean(false) => None,
        DeValue::Boolean(true) => {
            if matches.path.is_none() {
                table.source().problem(
                    &value.span(),
                    "'strip' = true removes the 'path' of the route, but the route has none",
                );
            }
            matches.path.clone()
        }
        _ => {
            let text = table.as_string("strip", value, "true, false or a path")?;
            let path = text.value.trim_end_matches('/').to_string();
            if !path.starts_with('/') {
                table.source().problem(
                    &text.span,
                    "'strip' must be a path that begins with '/', \"/app\" for example",
                );
            }
            Some(path)
        }
    }
}

/// Cuts the port from `example.org:80`. An IPv6 address keeps its brackets.
pub fn without_port(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    // A loop is quicker than a searcher for names as short as these.
    let colon = host.bytes().position(|byte| byte == b':');
    colon.map_or(host, |colon| &host[..colon])
}
