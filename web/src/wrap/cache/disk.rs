//! The folder of large bodies: one file for each stored response, with its head in front.
//!
//! ```text
//!   token-random.tmp ──head written last, synced, renamed──▶  random
//!   head: magic · length · checksum · record                 body
//! ```
//!
//! A file gets its final name only when it is complete. The names are random, so no client chooses one. The
//! token is random too, one for each [`Disk`]. A process id would not do: processes in containers often have the same.
//! [`Disk::list`] finds the files of earlier processes, and [`Disk::load`] reads their heads. A file whose
//! head is wrong is removed, and a file whose name is not one of ours is left alone.
//!
//! The head of a response that a 304 has validated takes the place of the one before it, if it fits there. It is written at once and not
//! synced: after a loss of power the file has the old head, the new one, or none that is whole. If two come at once, the one whose entry is in
//! the table stays.
//!
//! Functions that touch files block the thread. All but [`Disk::open`] are called on the pool for blocking work.
//! [`DiskFile::part`] goes there by itself.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::record::{self, Record};
use crate::Body;
use crate::body::outgoing::Kind;
use crate::lock;

/// Hexadecimal digits of a name and of a token.
const NAME: usize = 16;

/// The most names that [`Disk::list`] looks at.
const MOST_FILES: usize = 1 << 20;

/// Longest head of a file.
const HEAD_MOST: usize = 1 << 20;

/// Age after which an unfinished file with another token is removed.
const ABANDONED: Duration = Duration::from_secs(600);

pub struct Disk {
    folder: PathBuf,
    /// The beginning of the names of this process's unfinished files.
    token: String,
    /// Bytes of files that are being written.
    pub unfinished: AtomicU64,
}

impl Disk {
    /// Opens the folder, and makes it if it is missing. Only this user may read it.
    ///
    /// # Errors
    ///
    /// The errors of the system. `PermissionDenied` if the folder belongs to somebody else.
    pub fn open(folder: &Path) -> io::Result<Disk> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::metadata(folder)?;
                if !found.is_dir() {
                    return Err(io::ErrorKind::NotADirectory.into());
                }
                if found.uid() != rustix::process::geteuid().as_raw() {
                    let why = "the folder of a cache belongs to another user";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
                }
                if found.mode() & 0o077 != 0 {
                    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
                }
            }
            made => made?,
        }
        Ok(Disk {
            folder: folder.to_owned(),
            token: random_name()?,
            unfinished: AtomicU64::new(0),
        })
    }

    /// Makes a file for a body.
    pub fn begin(self: &Arc<Self>) -> io::Result<Writing> {
        loop {
            let name = random_name()?;
            let path = self.folder.join(format!("{}-{name}.tmp", self.token));
            let mut options = OpenOptions::new();
            match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    return Ok(Writing {
                        disk: Arc::clone(self),
                        file: Arc::new(file),
                        path,
                        name,
                        bytes: 0,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The names of the stored files. Removes what earlier processes have left unfinished.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read. A file that disappears meanwhile is no error.
    pub fn list(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for found in fs::read_dir(&self.folder)?.take(MOST_FILES).flatten() {
            let name = found.file_name();
            let Some(name) = name.to_str() else { continue };
            if is_name(name) {
                names.push(found.path());
            } else if is_unfinished(name, &self.token) {
                let modified = found.metadata().and_then(|metadata| metadata.modified());
                let age = modified.ok().and_then(|time| time.elapsed().ok());
                if age.is_some_and(|age| age > ABANDONED) {
                    // Another process may have been faster.
                    let _ = fs::remove_file(found.path());
                }
            }
        }
        Ok(names)
    }

    /// Reads the head of a stored file. A file that is not a whole one of this version, or cannot be read, is removed,
    /// because nothing would count its bytes. Returns `None` then.
    pub fn load(&self, path: &Path) -> Option<(Record, DiskFile)> {
        let loaded = File::open(path).and_then(|file| read_head(&file));
        match loaded {
            Ok(Some((record, offset))) => {
                let file = DiskFile {
                    path: path.to_owned(),
                    offset,
                    len: record.len,
                    open: Mutex::default(),
                    renewing: Mutex::default(),
                };
                Some((record, file))
            }
            Ok(None) | Err(_) => {
                // It may be gone already.
                let _ = fs::remove_file(path);
                None
            }
        }
    }
}

/// Whether a stored file may have this name.
fn is_name(name: &str) -> bool {
    name.len() == NAME && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether an unfinished file with another token may have this name.
fn is_unfinished(name: &str, token: &str) -> bool {
    let parts = name.strip_suffix(".tmp").and_then(|name| name.split_once('-'));
    parts.is_some_and(|(other, name)| is_name(name) && is_name(other) && other != token)
}

fn random_name() -> io::Result<String> {
    let mut random = [0; NAME / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

/// Reads the head of a file. Returns it with its length; `None` if the file is not a whole one of this version.
fn read_head(file: &File) -> io::Result<Option<(Record, u64)>> {
    let found = file.metadata()?;
    let mut head = vec![0; usize::try_from(found.len()).unwrap_or(HEAD_MOST).min(4096)];
    file.read_exact_at(&mut head, 0)?;
    let Some(len) = record::head_len(&head).filter(|len| *len <= HEAD_MOST as u64) else {
        return Ok(None);
    };
    if len > found.len() {
        return Ok(None);
    }
    head.resize(len as usize, 0);
    file.read_exact_at(&mut head, 0)?;
    let record = Record::decode(&head);
    // A file of another length was cut, or another program has written it.
    Ok(record
        .filter(|record| record.len.checked_add(len) == Some(found.len()))
        .map(|record| (record, len)))
}

/// A file that is being written. Dropping it removes it.
pub struct Writing {
    disk: Arc<Disk>,
    file: Arc<File>,
    path: PathBuf,
    name: String,
    /// Bytes that were written. They stay counted in [`Disk::unfinished`] until the drop.
    bytes: u64,
}

impl Writing {
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Writes bytes that the caller has reserved.
    pub fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its head and its name. The body of `len` bytes stands behind the head.
    pub fn publish(self, head: &[u8], len: u64) -> io::Result<DiskFile> {
        self.file.write_all_at(head, 0)?;
        // After a loss of power there is no file with this name, or a whole one.
        self.file.sync_data()?;
        let path = self.disk.folder.join(&self.name);
        fs::rename(&self.path, &path)?;
        Ok(DiskFile {
            path,
            offset: head.len() as u64,
            len,
            open: Mutex::new(Arc::downgrade(&self.file)),
            renewing: Mutex::default(),
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // A published file has another name by now, so there is nothing to remove.
        let _ = fs::remove_file(&self.path);
        self.disk.unfinished.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A stored body.
pub struct DiskFile {
    path: PathBuf,
    /// Where the body begins.
    offset: u64,
    pub len: u64,
    /// The open file, while a response is being sent.
    open: Mutex<Weak<File>>,
    /// Held while another head is written.
    renewing: Mutex<()>,
}

impl DiskFile {
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.offset + self.len
    }

    /// A response's body of `len` bytes from `first` on.
    ///
    /// # Suspends
    ///
    /// While the file is opened.
    pub fn part(self: &Arc<Self>, first: u64, len: u64) -> io::Result<Body> {
        let open = lock(&self.open).upgrade();
        let file = match open {
            Some(file) => file,
            None => {
                let this = Arc::clone(self);
                // The pool cannot stop what it has begun when the client leaves.
                let file = osier::shield(|| osier::unblock(move || File::open(&this.path)))?;
                let file = Arc::new(file);
                *lock(&self.open) = Arc::downgrade(&file);
                file
            }
        };
        let kind = Kind::File {
            file,
            offset: self.offset + first,
            len,
        };
        Ok(Body { kind, text: None })
    }

    /// Writes another head in the place of the file's, if it fits there and is the latest. Returns whether it is written. `is_latest` is asked
    /// while nobody else writes, so the latest head is written last, whichever thread comes first.
    ///
    /// # Errors
    ///
    /// The errors of the system. `NotFound` if the file has been removed.
    pub fn renew(&self, record: &Record, is_latest: impl FnOnce() -> bool) -> io::Result<bool> {
        let Some(head) = record.encode_within(self.offset) else {
            return Ok(false);
        };
        let _exclusive = lock(&self.renewing);
        if !is_latest() {
            return Ok(false);
        }
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.write_all_at(&head, 0)?;
        Ok(true)
    }

    /// Whether both are the same file, by name.
    pub fn has_name_of(&self, other: &DiskFile) -> bool {
        self.path == other.path
    }

    /// Removes the file. Responses that are being sent have it open.
    pub fn remove(&self) {
        // It may have been removed by hand.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::SystemTime;

    use http::StatusCode;
    use osier_http::FieldLines;

    use super::super::freshness::Freshness;
    use super::*;

    #[test]
    fn only_our_names_are_touched() {
        for name in ["0123456789abcdef", "ffffffffffffffff"] {
            assert!(is_name(name), "{name}");
        }
        let token = "00000000000000ff";
        for name in ["0123456789abcde", "0123456789abcdeg", "index.html", "", ".."] {
            assert!(!is_name(name) && !is_unfinished(name, token), "{name}");
        }
        assert!(is_unfinished("00000000000000aa-0123456789abcdef.tmp", token));
        assert!(!is_unfinished("00000000000000ff-0123456789abcdef.tmp", token));
        assert!(!is_unfinished("notes.tmp", token) && !is_unfinished("1-notes.tmp", token));
    }

    #[test]
    fn what_other_processes_have_left_is_removed() {
        let folder = testkit::Folder::new();
        let disk = Arc::new(Disk::open(folder.path()).unwrap());
        let writing = disk.begin().unwrap();
        let left = folder.path().join("00000000000000aa-0123456789abcdef.tmp");
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        fs::write(&left, b"x").unwrap();
        File::open(&left).unwrap().set_modified(old).unwrap();
        writing.file().set_modified(old).unwrap();
        // A folder cannot be removed as a file, and has the name of a stored one.
        let stored = folder.path().join("00000000000000bb");
        fs::create_dir(&stored).unwrap();
        assert_eq!(disk.list().unwrap(), std::slice::from_ref(&stored));
        assert!(!left.exists() && writing.path.exists());
        assert!(disk.load(&stored).is_none());
    }

    #[test]
    fn the_latest_head_is_written_last() {
        let head = |seen: &str| {
            let mut fields = FieldLines::new();
            fields.push("x-seen", seen.as_bytes()).unwrap();
            Record {
                len: 4,
                received: SystemTime::UNIX_EPOCH,
                status: StatusCode::OK,
                of_backend: true,
                freshness: Freshness::default(),
                key: b"key".to_vec(),
                particular: Box::default(),
                fields,
                varies: Box::default(),
            }
        };
        let folder = testkit::Folder::new();
        let disk = Arc::new(Disk::open(folder.path()).unwrap());
        let mut writing = disk.begin().unwrap();
        let first = head("body").encode();
        writing.write(b"body", first.len() as u64).unwrap();
        let file = writing.publish(&first, 4).unwrap();
        let seen = || disk.load(&file.path).unwrap().0.fields;
        thread::scope(|scope| {
            let written = file.renew(&head("first"), || {
                scope.spawn(|| assert!(file.renew(&head("second"), || true).unwrap()));
                thread::sleep(Duration::from_millis(200)); // enough for the second one to be written, if it did not wait
                true
            });
            assert!(written.unwrap());
        });
        assert_eq!(seen(), head("second").fields);
        assert!(!file.renew(&head("first"), || false).unwrap());
        assert_eq!(seen(), head("second").fields);
    }
}
