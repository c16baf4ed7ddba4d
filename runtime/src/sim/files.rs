//! Files of simulated hosts for [`fs`](crate::fs), with the faults of their disks. `fs/no_simulated.rs` has the same surface for builds
//! without the feature `sim`.
//!
//! A program gets a [`Disk`] where it makes a call, and the call happens later, as work for the pool. A crash in between makes it fail.

use std::fs::{self, FileType, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::How;
use crate::sim::disk::{self, Number};
use crate::sim::here;
use crate::sim::net::{FileFault, Net};

/// The disk of a host, for one run of its program.
#[derive(Clone)]
pub(crate) struct Disk {
    net: Arc<Mutex<Net>>,
    host: usize,
    life: u32,
}

/// An open file of a disk.
pub(crate) struct Opened {
    disk: Disk,
    number: Number,
    appends: bool,
}

/// The disk of the host that this code runs on.
pub(crate) fn disk() -> Option<Disk> {
    here::get_or_pooled(|here| Disk {
        net: Arc::clone(here.net),
        host: here.host,
        life: here::lock(here.net).hosts[here.host].life,
    })
}

impl Disk {
    /// Makes a call, unless the program that asked for it has ended.
    fn call<T>(&self, call: impl FnOnce(&mut Net) -> io::Result<T>) -> io::Result<T> {
        let mut net = here::lock(&self.net);
        match net.is_alive(self.host, self.life) {
            true => call(&mut net),
            false => Err(Errno::IO.into()),
        }
    }

    /// Makes a call that reads.
    fn look<T>(&self, call: impl FnOnce(&mut disk::Disk) -> io::Result<T>) -> io::Result<T> {
        self.call(|net| call(net.disk(self.host)))
    }

    /// Makes a call that changes directories, and notes it in the trace.
    fn change<T>(
        &self,
        what: std::fmt::Arguments<'_>,
        call: impl FnOnce(&mut disk::Disk) -> io::Result<T>,
    ) -> io::Result<T> {
        self.call(|net| {
            let done = call(net.disk(self.host));
            match &done {
                Ok(_) => net.note(self.host, format_args!("{what}")),
                Err(error) => net.note(self.host, format_args!("{what}: {:?}", error.kind())),
            }
            done
        })
    }

    pub(crate) fn open(&self, path: &Path, how: &How) -> io::Result<(fs::File, Opened)> {
        let open = |net: &mut Net| {
            let now = net.system_now(self.host);
            net.disk(self.host).open(path, how, self.host, now)
        };
        let (number, file) = self.call(|net| {
            let opened = open(net);
            if how.changes() {
                net.note(self.host, format_args!("open {} to write", path.display()));
            }
            opened
        })?;
        let opened = Opened {
            disk: self.clone(),
            number,
            appends: how.append,
        };
        Ok((file, opened))
    }

    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call(|net| {
            net.file_fault(self.host, FileFault::Read)?;
            net.disk(self.host).read(path)
        })
    }

    pub(crate) fn read_to_string(&self, path: &Path) -> io::Result<String> {
        let bytes = self.read(path)?;
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8"))
    }

    pub(crate) fn write(&self, path: &Path, contents: Vec<u8>) -> io::Result<()> {
        let how = How {
            write: true,
            create: true,
            truncate: true,
            ..How::default()
        };
        let (file, opened) = self.open(path, &how)?;
        opened.write(&file, &contents)
    }

    pub(crate) fn copy(&self, from: &Path, to: &Path) -> io::Result<u64> {
        let (bytes, permissions) = (self.read(from)?, self.metadata(from)?.permissions());
        let count = bytes.len() as u64;
        self.write(to, bytes)?;
        self.set_permissions(to, permissions)?;
        Ok(count)
    }

    pub(crate) fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.look(|disk| disk.metadata(path))
    }

    /// The same as [`metadata`](Disk::metadata): there are no symbolic links.
    pub(crate) fn symlink_metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.metadata(path)
    }

    pub(crate) fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.metadata(path)?;
        Err(Errno::INVAL.into())
    }

    pub(crate) fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.look(|disk| disk.canonicalize(path))
    }

    pub(crate) fn set_permissions(&self, path: &Path, permissions: Permissions) -> io::Result<()> {
        self.look(|disk| disk.set_permissions(path, permissions))
    }

    pub(crate) fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.change(format_args!("create directory {}", path.display()), |disk| {
            disk.create_dir(path)
        })
    }

    pub(crate) fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change(format_args!("create directories {}", path.display()), |disk| {
            disk.create_dir_all(path)
        })
    }

    /// Makes a directory. Its permissions are not kept.
    pub(crate) fn build_dir(&self, path: &Path, recursive: bool) -> io::Result<()> {
        match recursive {
            true => self.create_dir_all(path),
            false => self.create_dir(path),
        }
    }

    pub(crate) fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        let what = format_args!("link {} as {}", original.display(), link.display());
        self.change(what, |disk| disk.hard_link(original, link))
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change(format_args!("remove {}", path.display()), |disk| disk.remove_file(path))
    }

    pub(crate) fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.change(format_args!("remove {}", path.display()), |disk| disk.remove_dir(path))
    }

    pub(crate) fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change(format_args!("remove all of {}", path.display()), |disk| {
            disk.remove_dir_all(path)
        })
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let what = format_args!("rename {} to {}", from.display(), to.display());
        self.change(what, |disk| disk.rename(from, to))
    }

    /// The entries of a directory, in an order from the seed.
    pub(crate) fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.call(|net| {
            let mut entries = net.disk(self.host).read_dir(path)?;
            net.shuffle(&mut entries);
            let entries = entries.into_iter();
            let entry = |(name, _)| Entry {
                disk: self.clone(),
                path: path.join(name),
            };
            Ok(entries.map(entry).collect())
        })
    }
}

/// An entry of a directory.
#[derive(Clone)]
pub(crate) struct Entry {
    disk: Disk,
    pub(crate) path: PathBuf,
}

impl Entry {
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.disk.metadata(&self.path)
    }

    pub(crate) fn file_type(&self) -> io::Result<FileType> {
        Ok(self.metadata()?.file_type())
    }
}

impl Opened {
    fn call<T>(&self, fault: FileFault, call: impl FnOnce(&mut Net) -> io::Result<T>) -> io::Result<T> {
        self.disk.call(|net| {
            net.file_fault(self.disk.host, fault)?;
            call(net)
        })
    }

    /// Fails if the read that follows is to fail.
    pub(crate) fn reads(&self) -> io::Result<()> {
        self.call(FileFault::Read, |_| Ok(()))
    }

    pub(crate) fn write(&self, file: &fs::File, bytes: &[u8]) -> io::Result<()> {
        self.call(FileFault::Write, |net| {
            let now = net.system_now(self.disk.host);
            net.disk(self.disk.host)
                .write(self.number, file, self.appends, bytes, now)
        })
    }

    pub(crate) fn set_len(&self, file: &fs::File, len: u64) -> io::Result<()> {
        self.call(FileFault::Write, |net| {
            let now = net.system_now(self.disk.host);
            net.disk(self.disk.host).set_len(self.number, file, len, now)
        })
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        let host = self.disk.host;
        self.disk.call(|net| match net.file_fault(host, FileFault::Sync) {
            Ok(()) => net.disk(host).sync(self.number),
            Err(error) => {
                net.fail_sync(host, self.number);
                Err(error)
            }
        })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Disk { net, host, life } = &self.disk;
        let mut net = here::lock(net);
        // The end of a program has closed its files.
        if net.is_alive(*host, *life) {
            net.disk(*host).closed(self.number, *host);
        }
    }
}
