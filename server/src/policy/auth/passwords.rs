//! The password file: lines `user:hash`, as `htpasswd -B` writes them. Empty lines and lines that begin with `#` are ignored.
//!
//! A hash is bcrypt (`$2a$`, `$2b$`, `$2y$`) or argon2id in its text form (`$argon2id$v=19$m=…,t=…,p=…$salt$hash`). Anything else
//! is refused with its line: passwords in clear text, and old fast hashes, which a thief of the file can break within an hour.
//! Messages never show the text after the colon.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;

/// Bytes of the largest accepted file: some 100,000 users.
const FILE_MAX: u64 = 8 << 20;
/// The highest accepted cost of bcrypt. A higher cost takes more than ten seconds.
const BCRYPT_COST_MAX: u32 = 16;
/// Microseconds of one round of bcrypt, and of one pass of argon2 over one KiB, measured.
const BCRYPT_MICROS: u64 = 55;
const ARGON2_MICROS: u64 = 1;
/// The most memory for argon2, in KiB: 1 GiB. Each comparison needs it.
const ARGON2_MEMORY_MAX: u32 = 1 << 20;
/// The most passes of argon2 over its memory.
const ARGON2_PASSES_MAX: u32 = 64;

/// A mistake in a password file or in the users of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The file. None for users from the configuration itself.
    pub path: Option<PathBuf>,
    /// Line number, from 1.
    pub line: Option<usize>,
    /// The mistake, and what to do.
    pub what: String,
}

impl Trouble {
    pub fn general(path: Option<&Path>, what: String) -> Trouble {
        let path = path.map(Path::to_owned);
        Trouble { path, line: None, what }
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
        f.write_str(&self.what)
    }
}

/// A hash of an accepted kind, checked to be well-formed.
#[derive(Debug)]
pub struct Hash {
    text: String,
    kind: Kind,
    /// How long a comparison takes, in microseconds, roughly. It orders hashes.
    pub cost: u64,
    /// How many passwords were compared with it.
    #[cfg(test)]
    pub comparisons: std::sync::atomic::AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Bcrypt,
    Argon2id,
}

impl Hash {
    fn parse(text: &str) -> Result<Hash, String> {
        let (kind, cost) = if ["$2a$", "$2b$", "$2y$"].iter().any(|prefix| text.starts_with(prefix)) {
            let parts: bcrypt::HashParts = text.parse().map_err(|_| "the bcrypt hash is malformed")?;
            if !(4..=BCRYPT_COST_MAX).contains(&parts.get_cost()) {
                return Err(format!(
                    "the cost of the bcrypt hash is not from 4 to {BCRYPT_COST_MAX}"
                ));
            }
            (Kind::Bcrypt, BCRYPT_MICROS << parts.get_cost())
        } else if text.starts_with("$argon2id$") {
            let malformed = || "the argon2id hash is malformed";
            let hash = PasswordHash::new(text).map_err(|_| malformed())?;
            let params = argon2::Params::try_from(&hash).map_err(|_| malformed())?;
            if hash.salt.is_none() || hash.hash.is_none() {
                return Err(malformed().into());
            }
            if params.m_cost() > ARGON2_MEMORY_MAX || params.t_cost() > ARGON2_PASSES_MAX {
                return Err(format!(
                    "the argon2id hash asks for more than {ARGON2_MEMORY_MAX} KiB or {ARGON2_PASSES_MAX} passes"
                ));
            }
            let cost = u64::from(params.m_cost()) * u64::from(params.t_cost()) * ARGON2_MICROS;
            (Kind::Argon2id, cost)
        } else {
            return Err(
                "the password is not hashed with bcrypt or argon2id; make the line with 'htpasswd -B -C 12'".into(),
            );
        };
        let text = text.to_owned();
        Ok(Hash {
            text,
            kind,
            cost,
            #[cfg(test)]
            comparisons: Default::default(),
        })
    }

    /// The text of the hash, as the file spells it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Compares a password in constant time. It takes as long as the hash's cost demands, so it runs on the blocking pool.
    pub fn verify(&self, password: &str) -> bool {
        #[cfg(test)]
        self.comparisons.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match self.kind {
            // bcrypt uses only the first 72 bytes of a password, in every implementation.
            Kind::Bcrypt => bcrypt::verify(password, &self.text).unwrap_or(false),
            Kind::Argon2id => PasswordHash::new(&self.text)
                .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()),
        }
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

    /// The hash that takes longest to compare with. None when there are no users.
    pub fn slowest(&self) -> Option<&Arc<Hash>> {
        self.hashes.get(self.slowest)
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

    /// Adds the users of a file.
    fn and(mut self, path: &Path, text: &str) -> Result<Passwords, Vec<Trouble>> {
        let mut troubles = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let added = match line.split_once(':') {
                Some((user, hash)) => self.add(user, hash),
                None => Err("there is no colon; a line is user:hash".into()),
            };
            if let Err(what) = added {
                troubles.push(Trouble {
                    path: Some(path.to_owned()),
                    line: Some(index + 1),
                    what,
                });
            }
        }
        if troubles.is_empty() { Ok(self) } else { Err(troubles) }
    }

    fn add(&mut self, user: &str, hash: &str) -> Result<(), String> {
        if user.is_empty() || user.contains(':') || user.contains(char::is_control) {
            return Err("the user has no name, or one with a colon or control characters".into());
        }
        let hash = Hash::parse(hash).map_err(|what| format!("user {user:?}: {what}"))?;
        if self.users.insert(user.to_owned(), self.hashes.len()).is_some() {
            return Err(format!("user {user:?} is there twice; remove one of them"));
        }
        if self.slowest().is_none_or(|slowest| slowest.cost < hash.cost) {
            self.slowest = self.hashes.len();
        }
        self.hashes.push(Arc::new(hash));
        Ok(())
    }
}

/// The identity and version of a file, to find out whether it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reads the file and adds its users to `named`.
///
/// # Blocks the thread
/// While the file is read.
pub fn read(path: &Path, named: Passwords) -> Result<(Passwords, Stamp), Vec<Trouble>> {
    let general = |what| vec![Trouble::general(Some(path), what)];
    let (text, stamp) = text(path).map_err(|error| {
        general(match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".into(),
            io::ErrorKind::PermissionDenied => "this user may not read it".into(),
            io::ErrorKind::InvalidData => "it is not UTF-8".into(),
            _ => format!("cannot be read: {error}"),
        })
    })?;
    Ok((named.and(path, &text)?, stamp))
}

/// Does the same as [`read`], unless the file is unchanged since `before`.
///
/// # Blocks the thread
/// While the file is read.
pub fn read_if_changed(
    path: &Path,
    before: Option<Stamp>,
    named: Passwords,
) -> Result<Option<(Passwords, Stamp)>, Vec<Trouble>> {
    match path.metadata() {
        Ok(metadata) if Some(Stamp::of(&metadata)) == before => Ok(None),
        _ => read(path, named).map(Some),
    }
}

fn text(path: &Path) -> io::Result<(String, Stamp)> {
    // Opening a pipe would block, and reading it might never end.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    let mut text = String::new();
    if file.take(FILE_MAX + 1).read_to_string(&mut text)? as u64 > FILE_MAX {
        return Err(io::Error::other(format!("it is larger than {FILE_MAX} bytes")));
    }
    Ok((text, stamp))
}
