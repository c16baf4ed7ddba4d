//! The handlers of routes. A file for each handler: its settings, how a configuration spells them, what it opens, how it
//! answers.
//!
//! ```text
//!   [[site.route]] ─▶ Settings::read ─▶ Settings, compared by a reload ─▶ Settings::open ─▶ Handler ─▶ answer
//! ```
//!
//! To add a handler: write its file with a type that implements [`Configured`], and name it in `handlers!` below.

mod chat;
mod fastcgi;
mod files;
mod proxy;
mod redirect;
mod respond;
mod rewrite;
mod template;
mod upstream;
mod welcome;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use osier_web::files::CacheLimits;
use osier_web::{Connections, Request, Response, Served, compress};
use toml::Spanned;
use toml::de::DeValue;

use crate::log::operator::Say;
use crate::policy::rewrite::Rewrite;
use crate::reader::{At, Section};

pub use self::files::Files;
pub use self::respond::read_file;
pub use self::welcome::Welcome;

/// Settings of one kind of handler.
pub trait Configured: Sized {
    /// Whether a reload keeps the open handler while its settings stay. A handler that holds caches, connections or rooms is kept; one
    /// that is cheap, or reads a file when it is opened, is opened anew.
    const IS_KEPT: bool;
    /// Whether the handler compresses responses by itself.
    const COMPRESSES: bool = false;

    /// Reads the value of the handler's key. `None` after a mistake, which has been noted.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Self>;

    /// Every path that the handler touches once the server runs.
    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        Vec::new()
    }

    /// The folder whose replacement by another folder of that name changes the handler.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Keeps what the root folder's change must not touch: a backend stays outside.
    fn before_chroot(&mut self) {}

    /// Whether request bodies may have to be kept in temporary files.
    fn spools(&self) -> bool {
        false
    }

    /// Opens the handler.
    ///
    /// # Errors
    /// One line: what cannot be opened, and why.
    fn open(&self, route: &Route<'_>, means: &Means) -> Result<Opened, String>;
}

/// A handler that is open.
pub trait Handler: Send + Sync {
    /// Answers a request. `path` is the request's path as routes see it.
    ///
    /// # Suspends
    /// As the kind of handler does.
    fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response;

    /// Starts what a configuration that is not used must not have started. On a fiber; may be called again.
    fn start(&self) {}

    /// Ends the responses that have no end by themselves.
    fn stop(&self) {}

    /// Whether [`record`](Handler::record) does something.
    fn records(&self) -> bool {
        false
    }

    /// Counts an answered request of any route.
    fn record(&self, _served: &Served<'_>) {}
}

/// An open handler, or the rules of a rewrite.
#[derive(Clone)]
pub enum Opened {
    Answers(Arc<dyn Handler>),
    /// May have no answer; then the next route is asked.
    Rewrites(Arc<Rewrite>),
}

/// The settings of a route that its handler needs to be opened.
pub struct Route<'a> {
    /// The route's `path`.
    pub path: Option<&'a str>,
    /// How responses are compressed, if they are.
    pub compress: Option<&'a compress::Options>,
}

/// The means of the server that handlers share.
#[derive(Clone)]
pub struct Means {
    /// The limits of the cache of each route with files.
    pub cache: CacheLimits,
    pub workers: usize,
    /// The connections of all listeners.
    pub connections: Arc<Mutex<Vec<Connections>>>,
    pub say: Say,
}

/// How the server uses a path of the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    Read,
    Write,
    Connect,
}

/// Which requests a route takes: those that match every condition that is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// Begins with `/` and does not end with one. `None` for `/` itself.
    pub path: Option<String>,
    pub globs: Vec<String>,
    /// Sorted. Empty for all.
    pub methods: Vec<String>,
}

/// Declares [`Settings`]: the key of each handler in a route, its variant and the type of its settings.
macro_rules! handlers {
    ($($key:literal => $kind:ident($settings:ty),)*) => {
        /// The settings of some handler.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Settings {
            $($kind($settings),)*
        }

        impl Settings {
            /// The keys of all handlers, in the order of the documentation.
            pub const KEYS: &[&'static str] = &[$($key),*];

            fn read_key<'s>(
                key: &str,
                section: &Section<'s>,
                value: &'s Spanned<DeValue<'s>>,
                matches: &Match,
            ) -> Option<Settings> {
                match key {
                    $($key => <$settings>::read(section, value, matches).map(Settings::$kind),)*
                    _ => None,
                }
            }

            pub fn is_kept(&self) -> bool {
                match self {
                    $(Settings::$kind(_) => <$settings>::IS_KEPT,)*
                }
            }

            pub fn compresses(&self) -> bool {
                match self {
                    $(Settings::$kind(_) => <$settings>::COMPRESSES,)*
                }
            }

            /// See [`Configured::paths`].
            pub fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
                match self {
                    $(Settings::$kind(settings) => settings.paths(),)*
                }
            }

            /// See [`Configured::folder`].
            pub fn folder(&self) -> Option<&Path> {
                match self {
                    $(Settings::$kind(settings) => settings.folder(),)*
                }
            }

            /// See [`Configured::before_chroot`].
            pub fn before_chroot(&mut self) {
                match self {
                    $(Settings::$kind(settings) => settings.before_chroot(),)*
                }
            }

            /// See [`Configured::spools`].
            pub fn spools(&self) -> bool {
                match self {
                    $(Settings::$kind(settings) => settings.spools(),)*
                }
            }

            /// See [`Configured::open`].
            pub fn open(&self, route: &Route<'_>, means: &Means) -> Result<Opened, String> {
                match self {
                    $(Settings::$kind(settings) => settings.open(route, means),)*
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

impl Settings {
    /// Reads the handler of a route. After a mistake, which has been noted, some handler comes back: the configuration is not used then.
    pub fn read(section: &Section<'_>, matches: &Match) -> Settings {
        let nothing = Settings::Respond(respond::Respond::status(404));
        let given: Vec<(&str, Range<usize>)> = Settings::KEYS
            .iter()
            .filter_map(|key| section.key(key).map(|at| (*key, at)))
            .collect();
        let Some(&(key, _)) = given.first() else {
            section.problem(format!(
                "[[site.route]] has no handler: give it one of {}",
                Settings::KEYS.join(", ")
            ));
            return nothing;
        };
        for (other, at) in &given[1..] {
            let text = format!("'{other}' beside '{key}': a route has one handler; make two routes");
            section.source().problem(at, text);
        }
        let Some(value) = section.any(key) else { return nothing };
        Settings::read_key(key, section, value, matches).unwrap_or(nothing)
    }
}

impl Opened {
    /// A handler that answers.
    fn answers(handler: impl Handler + 'static) -> Opened {
        Opened::Answers(Arc::new(handler))
    }

    pub fn handler(&self) -> Option<&Arc<dyn Handler>> {
        match self {
            Opened::Answers(handler) => Some(handler),
            Opened::Rewrites(_) => None,
        }
    }
}

/// The table of a handler, or the one value that stands for it: `files = "www"` is `files = { root = "www" }`.
enum Form<'s> {
    Table(Section<'s>),
    Short(At<String>),
}

fn form<'s>(section: &Section<'s>, key: &str, value: &'s Spanned<DeValue<'s>>, short: &str) -> Option<Form<'s>> {
    match value.get_ref() {
        DeValue::String(_) => section.as_string(key, value, short).map(Form::Short),
        _ => section
            .as_section(key, value, &format!("a table, or {short} alone"))
            .map(Form::Table),
    }
}

/// `strip = true` cuts the route's own path from the front, `strip = "/x"` another.
fn strip(table: &Section<'_>, matches: &Match) -> Option<String> {
    let value = table.any("strip")?;
    match value.get_ref() {
        DeValue::Boolean(false) => None,
        DeValue::Boolean(true) => {
            if matches.path.is_none() {
                table.source().problem(
                    &value.span(),
                    "'strip' = true cuts the 'path' of the route, and it has none",
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
                    "'strip' wants a path that begins with '/', \"/app\" for example",
                );
            }
            Some(path)
        }
    }
}

/// `example.org:80` without the port; an IPv6 address keeps its brackets.
pub fn without_port(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}
