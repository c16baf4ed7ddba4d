//! A value that is read from a file, and read again when the file changes: the keys of tokens, the users of a password
//! file.
//!
//! The file is checked for changes when the value is used, at most once a second, on the blocking pool. Requests
//! meanwhile take the value of the last reading. If the file has a mistake, the value stays as it was. There is no
//! value before the first good reading.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::log::operator::Say;
use crate::reader::{Reason, is_withheld};

/// Bytes of the largest accepted file: some 100,000 users.
const FILE_MAX: u64 = 8 << 20;
/// The shortest time between two checks of the file.
const LOOK: Duration = Duration::from_secs(1);

/// Reads the file. The error is one line that names it.
type Reading<T> = Arc<dyn Fn(&Path) -> Result<(T, Stamp), Reason> + Send + Sync>;

/// A file and its value.
pub struct Watched<T> {
    path: PathBuf,
    read: Reading<T>,
    /// The consequence of a mistake in the file for the value, for messages: "it stays as it was".
    stays: &'static str,
    state: Mutex<State<T>>,
    say: Say,
}

struct State<T> {
    value: Option<Arc<T>>,
    stamp: Option<Stamp>,
    looked: Instant,
    /// The last error that was logged, so that each error is logged once.
    logged: String,
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads the file, and parses its text whenever it has changed. A file that [`if_there`] does not read is no error. `what`
    /// is the name of such files in messages: "key file".
    ///
    /// # Errors
    /// One line: the file cannot be read, or has a mistake.
    ///
    /// # Blocks the thread
    /// While the file is read.
    pub fn open(
        path: &Path,
        what: &'static str,
        say: Say,
        parse: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Watched<T>, Reason> {
        let read = move |path: &Path| {
            text(path)
                .and_then(|(text, stamp)| Ok((parse(&text)?, stamp)))
                .map_err(|why| why.reworded(|why| format!("{what} '{}': {why}", path.display())))
        };
        let first = if_there(path, &read)?;
        Ok(Watched::new(path, first, "it stays as it was", say, read))
    }

    /// Begins with the value that [`if_there`] has read. `read` reads the file when it has changed.
    pub fn new(
        path: &Path,
        first: Option<(T, Stamp)>,
        stays: &'static str,
        say: Say,
        read: impl Fn(&Path) -> Result<(T, Stamp), Reason> + Send + Sync + 'static,
    ) -> Watched<T> {
        let (value, stamp) = first.unzip();
        let state = State {
            value: value.map(Arc::new),
            stamp,
            looked: osier::time::now(),
            logged: String::new(),
        };
        Watched {
            path: path.to_owned(),
            read: Arc::new(read),
            stays,
            state: Mutex::new(state),
            say,
        }
    }

    /// The value of the last good reading. None before the first one.
    pub fn latest(&self) -> Option<Arc<T>> {
        self.locked().value.clone()
    }

    /// The value, read again if the file has changed. None before the first good reading.
    ///
    /// # Suspends
    /// While the file is read.
    pub fn current(&self) -> Option<Arc<T>> {
        let mut state = self.locked();
        if osier::time::now().saturating_duration_since(state.looked) < LOOK {
            return state.value.clone();
        }
        state.looked = osier::time::now();
        let (before, path, read) = (state.stamp, self.path.clone(), Arc::clone(&self.read));
        drop(state);
        let read = osier::shield(|| {
            osier::unblock(move || match before.is_some_and(|stamp| stamp.is_of(&path)) {
                true => Ok(None),
                false => read(&path).map(Some),
            })
        });
        let mut state = self.locked();
        match read {
            Ok(None) => state.logged.clear(),
            Ok(Some((value, stamp))) => {
                (state.value, state.stamp) = (Some(Arc::new(value)), Some(stamp));
                state.logged.clear();
            }
            Err(why) if why.as_str() == state.logged => {}
            Err(why) => {
                let meanwhile = match state.value {
                    Some(_) => self.stays,
                    None => "requests get 503 until it can be read",
                };
                self.say.error(format_args!("{why}; {meanwhile}"));
                state.logged = why.to_string();
            }
        }
        state.value.clone()
    }

    /// Pretends that a second has passed since the last look at the file.
    #[cfg(test)]
    pub fn look_again(&self) {
        self.locked().looked -= LOOK;
    }

    /// Locks the state. No code panics while it holds the lock.
    fn locked(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `read` for a file that exists and that this user may read.
///
/// # Blocks the thread
/// While the file is read.
pub fn if_there<T, E>(path: &Path, read: impl FnOnce(&Path) -> Result<T, E>) -> Result<Option<T>, E> {
    match is_withheld(path) {
        true => Ok(None),
        false => read(path).map(Some),
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
    /// The stamp of the file at `path`.
    ///
    /// # Blocks the thread
    /// While the disk is asked.
    pub fn at(path: &Path) -> io::Result<Stamp> {
        path.metadata().map(|metadata| Stamp::of(&metadata))
    }

    /// Whether the file at `path` is still this one.
    fn is_of(&self, path: &Path) -> bool {
        Stamp::at(path).is_ok_and(|stamp| stamp == *self)
    }

    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reads a text file, without a byte order mark at its beginning, and its stamp.
///
/// # Errors
/// One line.
///
/// # Blocks the thread
/// While the file is read.
pub fn text(path: &Path) -> Result<(String, Stamp), Reason> {
    let words = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "this user may not read it".into(),
        io::ErrorKind::InvalidData => "it is not UTF-8".into(),
        _ => format!("cannot be read: {error}"),
    };
    let (text, stamp) = read_text(path).map_err(|error| Reason::of(&error, words(&error)))?;
    match text.strip_prefix('\u{feff}') {
        Some(text) => Ok((text.to_owned(), stamp)),
        None => Ok((text, stamp)),
    }
}

fn read_text(path: &Path) -> io::Result<(String, Stamp)> {
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
