//! A file without a name: its content vanishes with its last descriptor, even if the process is killed.
//!
//! The file system takes its time to free the blocks of a large file. So the drop has a thread of the pool close the file. Thousands
//! of clients may leave at once, and the worker goes on with those that stay.
//!
//! A file owns [`Space`], a part of a sum that is bounded: [`Claimed`]. Space is claimed before the bytes are written, and given
//! back once the file is closed. So the disk never holds more than the sum.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes that the files of one kind have claimed in the process. It is a number alone and orders no other memory, so its
/// accesses are relaxed.
#[derive(Debug)]
pub(crate) struct Claimed(AtomicU64);

impl Claimed {
    pub(crate) const fn new() -> Claimed {
        Claimed(AtomicU64::new(0))
    }

    /// Claims `bytes`. `None` if more than `most` would be claimed.
    pub(crate) fn claim(&'static self, bytes: u64, most: u64) -> Option<Space> {
        let more = |claimed: u64| claimed.checked_add(bytes).filter(|claimed| *claimed <= most);
        let was_claimed = self.0.fetch_update(Relaxed, Relaxed, more).is_ok();
        was_claimed.then(|| Space { bytes, of: self })
    }

    /// The bytes that are claimed.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Bytes on the disk, claimed until this is dropped.
#[derive(Debug)]
pub(crate) struct Space {
    bytes: u64,
    of: &'static Claimed,
}

impl Space {
    /// Takes all of it, and leaves nothing.
    fn take(&mut self) -> Space {
        let bytes = std::mem::take(&mut self.bytes);
        Space { bytes, of: self.of }
    }

    /// Gives back all but `bytes`.
    fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        self.of.0.fetch_sub(excess, Relaxed);
        self.bytes -= excess;
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A file in a folder for temporary files, to be read and written.
#[derive(Debug)]
pub(crate) struct Unnamed {
    /// Only the drop takes it.
    file: Option<File>,
    space: Mutex<Space>,
}

impl Unnamed {
    /// Makes a file in `folder` and removes its name. It owns `space`.
    ///
    /// # Blocks the thread
    /// While the file is made.
    pub(crate) fn new(folder: &Path, space: Space) -> io::Result<Unnamed> {
        let named = |error: io::Error| in_folder(folder, &error);
        loop {
            let mut random = [0; 8];
            getrandom::fill(&mut random).map_err(|error| named(io::Error::other(error)))?;
            let path = folder.join(format!("osier-body-{:016x}", u64::from_ne_bytes(random)));
            let mut options = OpenOptions::new();
            match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    std::fs::remove_file(&path).map_err(named)?;
                    return Ok(Unnamed {
                        file: Some(file),
                        space: Mutex::new(space),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(named(error)),
            }
        }
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `more` to the space of the file.
    pub(crate) fn add_space(&self, mut more: Space) {
        self.space().bytes += std::mem::take(&mut more.bytes);
    }

    /// Gives back the space behind the first `bytes` of the file.
    pub(crate) fn keep_space(&self, bytes: u64) {
        self.space().shrink_to(bytes);
    }
}

impl Deref for Unnamed {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("only the drop takes the file")
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        let space = self.space().take();
        if let Some(file) = self.file.take() {
            osier::io::close_later_with(file, space);
        }
    }
}

/// Adds the folder to an error of a file in it.
pub(crate) fn in_folder(folder: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("a temporary file in {}: {error}", folder.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    static FILES: Claimed = Claimed::new();

    /// The descriptors of unnamed files in `folder`.
    fn open_files(folder: &Path) -> usize {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.filter(|target| target.starts_with(folder)).count()
    }

    /// A socket whose close waits until its peer has gone.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket2::SockRef::from(&socket)
            .set_linger(Some(Duration::from_secs(3600)))
            .unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        (socket, peer)
    }

    /// The pool closes one descriptor after the other. While a close waits, the files that the worker has dropped stay open.
    #[test]
    fn the_pool_closes_the_files_and_not_the_worker() {
        let folder = testkit::Folder::new();
        let folder = folder.path().canonicalize().unwrap();
        let (socket, peer) = lingering();
        let new = || Unnamed::new(&folder, FILES.claim(7, 140).unwrap()).unwrap();
        osier::run(|| {
            osier::io::close_later(socket);
            let files: Vec<_> = (0..20).map(|_| Arc::new(new())).collect();
            let again = files.clone();
            drop(files);
            assert_eq!(open_files(&folder), 20);
            drop(again);
            assert_eq!(open_files(&folder), 20, "the worker has closed a file");
            assert!(
                FILES.claim(1, 140).is_none(),
                "files that are open have given back their space"
            );
        });
        drop(peer);
        testkit::eventually("all files are closed", || open_files(&folder) == 0);
        testkit::eventually("their space is free", || FILES.bytes() == 0);
        // A plain thread closes its file itself.
        drop(new());
        assert_eq!((open_files(&folder), FILES.bytes()), (0, 0));
    }
}
