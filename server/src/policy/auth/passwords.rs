//! The password file: lines `user:hash`, as `htpasswd -B` writes them. Empty lines and lines that begin with `#` are
//! ignored.
//!
//! [`Hash`] says which hashes are accepted. Anything else is a mistake of its line. Messages never show the text after
//! the colon.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::hash::Hash;
use crate::policy::watched::{self, Stamp};
use crate::reader::Reason;

/// Users with weak hashes that a warning names.
const WEAK_SHOWN: usize = 5;

/// A mistake in a password file or in the users of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The file. None for users from the configuration itself.
    pub path: Option<PathBuf>,
    /// Line number, from 1.
    pub line: Option<usize>,
    /// The mistake, and what to do.
    pub what: Reason,
    /// Whether the line is whole, but its user is one of the configuration itself, or has a name that nobody may have.
    pub is_whole: bool,
}

impl Trouble {
    /// A mistake of no particular line.
    pub fn general(path: Option<&Path>, what: impl Into<Reason>) -> Trouble {
        Trouble {
            path: path.map(Path::to_owned),
            line: None,
            what: what.into(),
            is_whole: false,
        }
    }

    /// The mistakes in one line.
    pub fn line_of(troubles: &[Trouble]) -> Reason {
        Reason::all(troubles.iter().map(Trouble::reason))
    }

    /// The mistake with its place.
    pub fn reason(&self) -> Reason {
        self.what.clone().reworded(|_| self.to_string())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "password file '{}'", path.display())?;
            if let Some(line) = self.line {
                write!(f, ", line {line}")?;
            }
            f.write_str(": ")?;
        }
        self.what.fmt(f)
    }
}

/// The users and their hashes.
#[derive(Clone, Debug, Default)]
pub struct Passwords {
    hashes: Vec<Arc<Hash>>,
    /// Indices into `hashes`.
    users: HashMap<String, usize>,
    /// Index of the hash that takes longest to compare with.
    slowest: usize,
}

impl Passwords {
    /// The hash of a user, if the user exists.
    pub fn find(&self, user: &str) -> Option<&Arc<Hash>> {
        self.users.get(user).map(|&index| &self.hashes[index])
    }

    /// The hash that stands in for that of an unknown user, chosen by a number, so that its cost is that of a known
    /// user. None when there are no users.
    pub fn stand_in(&self, number: u64) -> Option<&Arc<Hash>> {
        let count = u64::try_from(self.hashes.len()).ok().filter(|count| *count > 0)?;
        self.hashes.get(usize::try_from(number % count).ok()?)
    }

    /// The hash that takes longest to compare with. None when there are no users.
    pub fn slowest(&self) -> Option<&Arc<Hash>> {
        self.hashes.get(self.slowest)
    }

    /// One line about the users with weak hashes. None if there are none.
    pub fn weakness(&self) -> Option<String> {
        let weak = self
            .users
            .iter()
            .filter_map(|(user, &index)| Some((user, self.hashes[index].weakness()?)));
        let mut weak: Vec<_> = weak.collect();
        weak.sort_unstable();
        let shown = weak
            .iter()
            .take(WEAK_SHOWN)
            .map(|(user, form)| format!("{user:?} ({form})"));
        let shown = shown.collect::<Vec<_>>().join(", ");
        let more = match weak.len() {
            0 => return None,
            1..=WEAK_SHOWN => "",
            _ => ", …",
        };
        Some(format!(
            "weak hashes: {shown}{more}; who steals the file finds their passwords within days: make them again with 'htpasswd -B -C 12'"
        ))
    }

    /// The users from the configuration itself.
    pub fn named(users: &[(String, String)]) -> Result<Passwords, Vec<Trouble>> {
        let mut passwords = Passwords::default();
        let add = |(user, hash): &(String, String)| passwords.add(user, hash).err();
        let troubles: Vec<_> = users
            .iter()
            .filter_map(add)
            .map(|what| Trouble::general(None, what))
            .collect();
        if troubles.is_empty() {
            Ok(passwords)
        } else {
            Err(troubles)
        }
    }

    /// Adds the users of a file. Lines with a mistake add nobody; the mistakes are returned too.
    fn with_file(mut self, path: &Path, text: &str) -> (Passwords, Vec<Trouble>) {
        let mut troubles = Vec::new();
        let named = self.hashes.len();
        let is_named = |all: &Passwords, user: &str| all.users.get(user).is_some_and(|&index| index < named);
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (added, is_whole) = match line.split_once(':') {
                Some((user, hash)) if is_named(&self, user) && Hash::parse(hash).is_ok() => {
                    let what = format!("user {user:?} is in 'users' too, where the hash counts; remove one of them");
                    (Err(what), true)
                }
                Some((user, hash)) => (self.add(user, hash), has_outer_space(user) && Hash::parse(hash).is_ok()),
                None => (Err("there is no colon; a line is user:hash".into()), false),
            };
            if let Err(what) = added {
                troubles.push(Trouble {
                    path: Some(path.to_owned()),
                    line: Some(index + 1),
                    what: what.into(),
                    is_whole,
                });
            }
        }
        (self, troubles)
    }

    /// Adds a user.
    fn add(&mut self, user: &str, hash: &str) -> Result<(), String> {
        if user.is_empty() || user.contains(':') || user.contains(char::is_control) {
            return Err("the user has no name, or one with a colon or control characters".into());
        }
        if has_outer_space(user) {
            return Err(format!("the name of user {user:?} begins or ends with a space"));
        }
        let hash = Hash::parse(hash).map_err(|what| format!("user {user:?}: {what}"))?;
        if self.users.contains_key(user) {
            return Err(format!("user {user:?} is there twice; remove one of them"));
        }
        self.users.insert(user.to_owned(), self.hashes.len());
        if self.slowest().is_none_or(|slowest| slowest.cost < hash.cost) {
            self.slowest = self.hashes.len();
        }
        self.hashes.push(Arc::new(hash));
        Ok(())
    }
}

/// Whether a name begins or ends with a space. A field of a request loses that, so a backend would take the user for another one.
fn has_outer_space(user: &str) -> bool {
    user.trim() != user
}

/// A file that was read: its users, and the mistakes of lines that add nobody.
pub struct Read {
    pub passwords: Passwords,
    pub stamp: Stamp,
    pub mistakes: Vec<Trouble>,
}

/// Reads the file and adds its users to `named`.
///
/// # Errors
/// When the file cannot be read.
///
/// # Blocks the thread
/// While the file is read.
pub fn read(path: &Path, named: Passwords) -> Result<Read, Trouble> {
    let (text, stamp) = watched::text(path).map_err(|what| Trouble::general(Some(path), what))?;
    let (passwords, mistakes) = named.with_file(path, &text);
    Ok(Read {
        passwords,
        stamp,
        mistakes,
    })
}
