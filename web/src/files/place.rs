//! The served folder as a path. The folder behind the path is looked up again every second, so that a deploy may
//! replace it.
//!
//! A [`Place`] hands out the [`Root`] that its path leads to now. `rm -rf dist; mkdir dist` and a symbolic link that is
//! turned to another release change the root. Each root has a generation. A cache entry that was made under another
//! generation is stale, so a new folder is served within [`FRESH`] of the change, whatever was cached before.
//!
//! Memory ordering: a look stores the root, then the generation, then the time of the look with Release. A reader loads
//! the time with Acquire before it loads the generation. Only one thread looks at a time; the others use the root of
//! the last look.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use super::links::{Links, Log, Symlinks};
use super::root::{Abilities, Root};
use super::variant::Access;
use crate::lock;

/// Time for which the result of a look is used.
pub const FRESH: Duration = Duration::from_secs(1);

/// A served folder. All workers share it.
pub(crate) struct Place {
    path: PathBuf,
    /// Abilities of the kernel, once a folder was opened.
    abilities: OnceLock<Abilities>,
    began: Instant,
    /// Nanoseconds from `began` to the last look. `open` is the first look.
    looked: AtomicU64,
    /// Changes with the root. Entries of caches carry it.
    generation: AtomicU64,
    /// The root of the last look. `None` while there is no folder.
    root: Mutex<Option<Arc<Root>>>,
    /// Held by the thread that looks.
    looking: Mutex<()>,
    links: Arc<Links>,
}

/// The error for a folder that is not there. The response is a 503.
#[derive(Debug)]
struct Absent;

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the folder is not there")
    }
}

impl std::error::Error for Absent {}

/// Whether an error of opening the path means that there is no folder for this process.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// Whether an error means that the served folder itself is not there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Absent>())
}

impl Place {
    /// Opens the folder `path`, whose links are followed as `symlinks` says. With `may_be_missing` it need not exist
    /// yet, or be readable.
    ///
    /// # Errors
    ///
    /// Errors of [`Root::open`], and of finding the working directory for a relative path.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes.
    pub fn open(path: &Path, may_be_missing: bool, symlinks: Symlinks) -> io::Result<Place> {
        let path = std::path::absolute(path)?;
        let links = Arc::new(Links::new(path.clone(), symlinks));
        let root = match Root::open_with(&path, None, &links) {
            Ok(root) => Some(Arc::new(root)),
            Err(error)
                if may_be_missing
                    && matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        let abilities = OnceLock::new();
        if let Some(root) = &root {
            let _ = abilities.set(root.abilities());
        }
        Ok(Place {
            path,
            abilities,
            began: osier::time::coarse_now(),
            looked: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            root: Mutex::new(root),
            looking: Mutex::new(()),
            links,
        })
    }

    /// Sets the receiver of lines for the operator. Only the first call has an effect.
    pub fn set_log(&self, log: Log) {
        self.links.set_log(log);
    }

    /// The generation of the root. `None` if it is time for the next look.
    #[inline]
    pub fn generation(&self, now: Instant) -> Option<u64> {
        let looked = self.looked.load(Ordering::Acquire);
        let age = self.since_began(now).saturating_sub(looked);
        (age < FRESH.as_nanos() as u64).then(|| self.generation.load(Ordering::Relaxed))
    }

    /// The folder that the path leads to, and its generation.
    ///
    /// # Blocks the thread
    ///
    /// As long as the disk takes, with [`Access::Blocking`].
    ///
    /// # Errors
    ///
    /// `WouldBlock` with [`Access::Cached`]. An error that [`is_absent`] recognises while there is no folder.
    pub fn root(&self, access: Access) -> io::Result<(Arc<Root>, u64)> {
        let now = osier::time::coarse_now();
        if self.generation(now).is_none() {
            self.look(access, now)?;
        }
        let root = lock(&self.root);
        match &*root {
            Some(found) => Ok((Arc::clone(found), self.generation.load(Ordering::Relaxed))),
            None => Err(io::Error::other(Absent)),
        }
    }

    /// Opens the path again, and takes the folder as the new root if it is another one.
    fn look(&self, access: Access, now: Instant) -> io::Result<()> {
        let _turn = match self.looking.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread looks.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let before = lock(&self.root).clone();
        if access == Access::Cached {
            return match before.map(|before| before.is_at(&self.path)) {
                Some(Ok(true)) => {
                    self.looked.store(self.since_began(now), Ordering::Release);
                    Ok(())
                }
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let opened = Root::open_with(&self.path, self.abilities.get().copied(), &self.links);
        let opened = opened.and_then(|root| match &before {
            // The old folder is still open, so no other folder can have its device and inode.
            Some(before) if before.is_same(&root)? => Ok(Arc::clone(before)),
            _ => Ok(Arc::new(root)),
        });
        match (&before, &opened) {
            // The process may have too many open files, for example. The open folder is still served.
            (Some(_), Err(error)) if !is_gone(error) => {
                self.links.say(format_args!(
                    "cannot look whether the folder '{}' is another one: {error}; the old one is served",
                    self.path.display()
                ));
                self.looked.store(self.since_began(now), Ordering::Release);
                return Ok(());
            }
            (Some(_), Err(error)) => self.links.say(format_args!(
                "the folder '{}' cannot be opened: {error}; requests for it get 503 until it is there again",
                self.path.display()
            )),
            (None, Ok(_)) => self
                .links
                .say(format_args!("the folder '{}' is there now", self.path.display())),
            _ => {}
        }
        self.replace(before.as_ref(), opened.ok());
        self.looked.store(self.since_began(now), Ordering::Release);
        Ok(())
    }

    /// Takes the folder that was found as the root, if it is not the folder from before.
    fn replace(&self, before: Option<&Arc<Root>>, found: Option<Arc<Root>>) {
        if let Some(root) = &found {
            let _ = self.abilities.set(root.abilities());
        }
        let is_other = match (before, &found) {
            (Some(before), Some(found)) => !Arc::ptr_eq(before, found),
            (None, None) => false,
            _ => true,
        };
        if is_other {
            *lock(&self.root) = found;
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nanoseconds from `began` to `now`.
    fn since_began(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }
}

osier_queue::impl_debug!(Place, self => { path: self.path, .. });

#[cfg(test)]
mod tests {
    use super::super::root::Found;
    use super::*;
    use std::io::Read;
    use testkit::Folder;

    fn text(place: &Place, name: &str) -> String {
        let (root, _) = match place.root(Access::Blocking) {
            Ok(found) => found,
            Err(error) if is_absent(&error) => return "absent".into(),
            Err(error) => panic!("{error}"),
        };
        let Found::File(mut file, _) = root.find(name.as_bytes()).unwrap() else {
            panic!("{name} is no file")
        };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    /// Makes the next use look.
    fn expire(place: &mut Place) {
        place.began -= FRESH;
    }

    #[test]
    fn a_replaced_folder_is_found_and_an_equal_one_is_kept() {
        let folder = Folder::new();
        folder.write("www/a", "1");
        let mut place = Place::open(&folder.path().join("www"), false, Symlinks::Inside).unwrap();
        assert_eq!(text(&place, "a"), "1");
        expire(&mut place);
        assert_eq!(text(&place, "a"), "1");
        assert_eq!(place.generation.load(Ordering::Relaxed), 0);
        std::fs::remove_dir_all(folder.path().join("www")).unwrap();
        folder.write("www/a", "2");
        expire(&mut place);
        assert_eq!(text(&place, "a"), "2");
        assert_eq!(place.generation.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_missing_folder_comes_and_goes_and_the_log_says_so_once() {
        let folder = Folder::new();
        let path = folder.path().join("www");
        assert_eq!(
            Place::open(&path, false, Symlinks::Inside).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let mut place = Place::open(&path, true, Symlinks::Inside).unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        place.set_log(Box::new(move |line| log.lock().unwrap().push(line.to_string())));
        for _ in 0..3 {
            expire(&mut place);
            assert_eq!(text(&place, "a"), "absent");
        }
        folder.write("www/a", "1");
        for _ in 0..3 {
            expire(&mut place);
            assert_eq!(text(&place, "a"), "1");
        }
        std::fs::remove_dir_all(&path).unwrap();
        for _ in 0..3 {
            expire(&mut place);
            assert_eq!(text(&place, "a"), "absent");
        }
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].ends_with("is there now") && lines[1].contains("cannot be opened"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_old_folder_is_served_while_nobody_can_tell_whether_there_is_another() {
        let folder = Folder::new();
        folder.write("www/a", "1");
        let path = folder.path().join("www");
        let mut place = Place::open(&path, false, Symlinks::Inside).unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        place.set_log(Box::new(move |line| log.lock().unwrap().push(line.to_string())));
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        // A link to itself: an error that says nothing about a folder.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        expire(&mut place);
        assert_eq!(text(&place, "a"), "1");
        assert_eq!(place.generation.load(Ordering::Relaxed), 0);
        assert!(
            lines.lock().unwrap()[0].ends_with("; the old one is served"),
            "{lines:?}"
        );
        std::fs::remove_file(&path).unwrap();
        folder.write("www/a", "2");
        expire(&mut place);
        assert_eq!(text(&place, "a"), "2");
    }

    #[test]
    fn a_look_lasts_a_second() {
        let folder = Folder::new();
        let place = Place::open(folder.path(), false, Symlinks::Inside).unwrap();
        let now = place.began;
        assert_eq!(place.generation(now + FRESH / 2), Some(0));
        assert_eq!(place.generation(now + FRESH), None);
    }
}
