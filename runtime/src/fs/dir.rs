//! Directory listings. The pool for blocking work reads the entries, some at a time.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::simulated::Entry;
use super::{FileType, Metadata, Operation};
use crate::wait::{self, budget};

/// The number of entries that one visit to the pool reads.
const BATCH: usize = 64;

/// An iterator over the entries of a directory, in no order. Made by [`read_dir`](super::read_dir).
///
/// # Suspends
///
/// `next` suspends when it needs more entries. Blocks the thread when called on a plain one.
pub struct ReadDir {
    read: VecDeque<io::Result<DirEntry>>,
    rest: Rest,
}

enum Rest {
    Unread(std::fs::ReadDir),
    Reading(Operation<Batch>),
    Over,
}

type Batch = (std::fs::ReadDir, VecDeque<io::Result<DirEntry>>);

impl ReadDir {
    pub(super) fn new(std: std::fs::ReadDir) -> ReadDir {
        ReadDir {
            read: VecDeque::new(),
            rest: Rest::Unread(std),
        }
    }

    pub(super) fn simulated(entries: Vec<Entry>) -> ReadDir {
        let entry = |entry| Ok(DirEntry(Kind::Simulated(entry)));
        ReadDir {
            read: entries.into_iter().map(entry).collect(),
            rest: Rest::Over,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        loop {
            if let Some(entry) = self.read.pop_front() {
                return Poll::Ready(Some(entry));
            }
            if let Rest::Reading(reading) = &mut self.rest {
                let batch = ready!(Pin::new(reading).poll(cx));
                self.rest = Rest::Over;
                let (std, batch) = batch?;
                if batch.len() == BATCH {
                    self.rest = Rest::Unread(std);
                }
                self.read = batch;
                continue;
            }
            match std::mem::replace(&mut self.rest, Rest::Over) {
                Rest::Unread(std) => self.rest = Rest::Reading(Operation::new(|| Ok(read(std)))),
                _ => return Poll::Ready(None),
            }
        }
    }
}

fn read(mut std: std::fs::ReadDir) -> Batch {
    let entries = std.by_ref().take(BATCH);
    let entry = |entry: std::fs::DirEntry| {
        let file_type = entry.file_type().ok();
        DirEntry(Kind::System(Arc::new(entry), file_type))
    };
    let batch = entries.map(|read| read.map(entry)).collect();
    (std, batch)
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<io::Result<DirEntry>> {
        wait::wait_for_disk(|cx| self.poll(cx)).unwrap_or_else(|stop| Some(Err(stop.into())))
    }
}

/// A [`Stream`](futures_core::Stream) of the entries of a directory, in no order. Made by
/// [`read_dir_async`](super::read_dir_async).
#[derive(Debug)]
pub struct ReadDirAsync(pub(super) ReadDir);

impl futures_core::Stream for ReadDirAsync {
    type Item = io::Result<DirEntry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<DirEntry>>> {
        budget::poll(cx, |cx| self.0.poll(cx))
    }
}

osier_queue::impl_debug!(ReadDir, self => { .. });

/// An entry of a directory.
#[derive(Clone)]
pub struct DirEntry(Kind);

#[derive(Clone)]
enum Kind {
    /// The type of the entry is `None` where the system does not give it with the name and it was not found.
    System(Arc<std::fs::DirEntry>, Option<FileType>),
    Simulated(Entry),
}

impl Kind {
    fn metadata(&self) -> io::Result<Metadata> {
        match self {
            Kind::System(entry, _) => entry.metadata(),
            Kind::Simulated(entry) => entry.metadata(),
        }
    }

    fn file_type(&self) -> io::Result<FileType> {
        match self {
            Kind::System(entry, _) => entry.file_type(),
            Kind::Simulated(entry) => entry.file_type(),
        }
    }
}

impl DirEntry {
    /// The path of the directory, as it was given, joined with the entry's name.
    pub fn path(&self) -> PathBuf {
        match &self.0 {
            Kind::System(entry, _) => entry.path(),
            Kind::Simulated(entry) => entry.path.clone(),
        }
    }

    /// The name in the directory.
    pub fn file_name(&self) -> OsString {
        match &self.0 {
            Kind::System(entry, _) => entry.file_name(),
            Kind::Simulated(entry) => entry.path.file_name().unwrap_or_default().to_owned(),
        }
    }

    /// Reads the metadata of the entry. Links are not followed.
    ///
    /// # Suspends
    ///
    /// Until the system returns. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`fs::symlink_metadata`](super::symlink_metadata).
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.metadata_async().block()
    }

    /// [`metadata`](DirEntry::metadata) as a future.
    pub fn metadata_async(&self) -> Operation<Metadata> {
        let entry = self.0.clone();
        Operation::new(move || entry.metadata())
    }

    /// The type of the entry: a file, a directory, a link. Most filesystems give it with the name.
    ///
    /// # Suspends
    ///
    /// Until the system returns, if it was not given with the name. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`fs::symlink_metadata`](super::symlink_metadata).
    pub fn file_type(&self) -> io::Result<FileType> {
        self.file_type_async().block()
    }

    /// [`file_type`](DirEntry::file_type) as a future.
    pub fn file_type_async(&self) -> Operation<FileType> {
        if let Kind::System(_, Some(file_type)) = self.0 {
            return Operation::done(file_type);
        }
        let entry = self.0.clone();
        Operation::new(move || entry.file_type())
    }
}

osier_queue::impl_debug!(DirEntry, self => self.path());
