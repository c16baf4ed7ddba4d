//! The rule for symbolic links that lead out of the served folder, and the log of those that are refused.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::lock;

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Symlinks {
    /// Links that end inside the folder, relative and absolute ones.
    #[default]
    Inside,
    /// As `Inside`, and links that belong to the owner of the file or folder to which they lead. macOS cannot tell the
    /// owner of a link safely, so there this is `Inside`.
    Owner,
    /// Every link.
    All,
}

/// Logs one line for the operator.
pub(crate) type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

/// Time in which a name is logged once.
const AGAIN: Duration = Duration::from_secs(60);

/// Most names that are logged in that time. A client can ask for any number of names below a link.
const MOST: usize = 64;

/// The rule of one served folder, and where refused links are logged.
pub(crate) struct Links {
    pub rule: Symlinks,
    /// The path of the folder, for messages.
    path: PathBuf,
    log: OnceLock<Log>,
    logged: Mutex<Logged>,
}

/// The names that were logged since `began`.
struct Logged {
    began: Instant,
    names: HashSet<Box<[u8]>>,
}

/// A link that leads out of the folder.
#[derive(Debug, PartialEq, Eq)]
pub struct Outside {
    /// The first link on the way, below the folder.
    pub link: Vec<u8>,
    /// Its text.
    pub to: Vec<u8>,
    /// The owners of the link and of its target, if these differ.
    pub owners: Option<(u32, u32)>,
}

impl Links {
    pub fn new(path: PathBuf, rule: Symlinks) -> Links {
        Links {
            rule,
            path,
            log: OnceLock::new(),
            logged: Mutex::new(Logged {
                began: osier::time::coarse_now(),
                names: HashSet::new(),
            }),
        }
    }

    /// Sets where lines go. Only the first call has an effect.
    pub fn set_log(&self, log: Log) {
        let _ = self.log.set(log);
    }

    /// Logs a line, if there is a log.
    pub fn say(&self, line: fmt::Arguments<'_>) {
        if let Some(log) = self.log.get() {
            log(line);
        }
    }

    /// Logs that `name` was refused because of a link.
    pub fn refused(&self, name: &[u8], outside: &Outside) {
        let now = osier::time::coarse_now();
        let mut logged = lock(&self.logged);
        if now.saturating_duration_since(logged.began) >= AGAIN {
            *logged = Logged {
                began: now,
                names: HashSet::new(),
            };
        }
        if logged.names.len() >= MOST || !logged.names.insert(name.into()) {
            return;
        }
        drop(logged);
        let path = self.path.display();
        let (name, link) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&outside.link));
        let to = String::from_utf8_lossy(&outside.to);
        let way_out = match (self.rule, outside.owners) {
            (Symlinks::Owner, Some((of_link, of_target))) => format!(
                "which belongs to user {of_target} and the link to user {of_link}; symlinks = \"all\" allows that"
            ),
            (Symlinks::Owner, None) => {
                "out of the folder, and this system cannot tell whose link it is; symlinks = \"all\" allows that"
                    .to_owned()
            }
            _ => "out of the folder; symlinks = \"owner\" or \"all\" allows that".to_owned(),
        };
        self.say(format_args!(
            "'{path}/{}' is not served: the symbolic link '{path}/{}' leads to '{}', {way_out}",
            name.escape_debug(),
            link.escape_debug(),
            to.escape_debug()
        ));
    }
}

osier_queue::impl_debug!(Links, self => { path: self.path, rule: self.rule, .. });
