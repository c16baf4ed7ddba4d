//! The writer of a body decides where the bytes go.
//!
//! ```text
//!   fetch ─▶ memory ──more than the store keeps there──▶ file ──▶ the store
//!              │                                          │
//!              │ no disk, disk full, longer than allowed  │
//!              ▼                                          ▼
//!            window: nothing is kept; the fetch waits for its readers
//! ```
//!
//! While the body goes to memory or to a file, the writer waits for no reader. In a window it waits for the slowest
//! one. If no reader takes anything for some seconds while one has all bytes, the others fail. A writer with a window
//! stops when there is no reader, because nobody wants the bytes. The file is written on the pool for blocking work.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, Writing};
use super::entry::Stored;
use super::fill::{Bytes, Done, Fill};
use super::store::Store;
use crate::conn::output::{Flushed, Outlet};

/// Bytes that wait in a window, and bytes that a file gets at once.
const WINDOW: usize = 256 << 10;

/// Time for which a window waits for a first reader.
const ALONE: Duration = Duration::from_secs(1);

/// Time for which a reader waits for slower ones that take nothing. A reader takes 64 KiB at once, so a client slower
/// than 22 kB/s may lose its response while a fast one gets it too. One that is a little faster slows all others down to its own speed.
const STALLED: Duration = Duration::from_secs(3);

/// The writer of a [`Fill`]: the place to which a handler writes its body. Dropping it fails the body
/// unless it was finished.
pub struct Writer {
    fill: Arc<Fill>,
    store: Arc<Store>,
    /// Bytes of the head in front of the body in a file.
    head: u64,
    total: u64,
    /// Bytes that [`Store::hold`] counts for this body.
    held: u64,
    file: Option<Writing>,
    /// Called when the writer decides not to store the body. `None` from then on.
    gives_up: Option<Box<dyn FnOnce()>>,
}

impl Writer {
    /// Makes the writer of `fill`. `head` is the length of what stands before the body in a file.
    /// `gives_up` is called if the writer decides not to store the body.
    pub fn new(fill: Arc<Fill>, store: Arc<Store>, head: u64, gives_up: Box<dyn FnOnce()>) -> Writer {
        Writer {
            fill,
            store,
            head,
            total: 0,
            held: 0,
            file: None,
            gives_up: Some(gives_up),
        }
    }

    /// Bytes so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn is_kept(&self) -> bool {
        self.gives_up.is_some()
    }

    /// Ends the body. Returns it if it can be stored. `head` makes the head of a file from the length
    /// of the body.
    ///
    /// # Suspends
    ///
    /// While a file is written.
    pub fn finish(mut self, head: impl FnOnce(u64) -> Vec<u8>) -> Option<Stored> {
        if self.is_kept() && self.file.is_some() {
            self.spill();
        }
        if !self.is_kept() {
            self.fill.finish(Done::Complete);
            return None;
        }
        let Some(file) = self.file.take() else {
            let mut bytes = std::mem::take(&mut self.fill.state().bytes);
            bytes.shrink_to_fit();
            let bytes: Bytes = Arc::new(bytes);
            self.fill.finish(Done::Memory(Arc::clone(&bytes)));
            return Some(Stored::Memory(bytes));
        };
        // Readers have the file open, so they need not wait for its name.
        self.fill.finish(Done::Complete);
        let (total, head) = (self.total, head(self.total));
        match osier::unblock(move || file.publish(&head, total)) {
            Ok(file) => Some(Stored::Disk(Arc::new(file))),
            Err(error) => {
                self.store.complain(&error);
                None
            }
        }
    }

    /// Ends the body with an error.
    ///
    /// # Suspends
    ///
    /// While an unfinished file is removed.
    pub fn fail(mut self, why: &str) {
        self.fill.finish(Done::Failed(why.into()));
        if let Some(file) = self.file.take() {
            osier::unblock(move || drop(file));
        }
    }

    /// Moves the bytes in memory to the file.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    fn spill(&mut self) {
        let Some(disk) = self.store.disk() else {
            return self.give_up();
        };
        if self.total > self.store.options().most_entry {
            return self.give_up();
        }
        let chunk = {
            let mut state = self.fill.state();
            let chunk = Arc::new(std::mem::take(&mut state.bytes));
            state.writing = Some(Arc::clone(&chunk));
            chunk
        };
        if !self.store.reserve_on_disk(chunk.len() as u64) {
            self.put_back(&chunk);
            return self.give_up();
        }
        let (disk, file, at) = (Arc::clone(disk), self.file.take(), self.head + self.fill.state().base);
        let bytes = Arc::clone(&chunk);
        let written = osier::unblock(move || write(&disk, file, &bytes, at));
        match written {
            Ok(file) => {
                let mut state = self.fill.state();
                state.base += chunk.len() as u64;
                state.in_file = state.base;
                state.writing = None;
                state.file = Some((Arc::clone(file.file()), self.head));
                self.file = Some(file);
                drop(state);
                self.store.let_go(std::mem::take(&mut self.held));
            }
            Err(error) => {
                self.store.complain(&error);
                self.store.release_on_disk(chunk.len() as u64);
                self.put_back(&chunk);
                self.give_up();
            }
        }
    }

    fn put_back(&self, chunk: &[u8]) {
        let mut state = self.fill.state();
        let later = std::mem::take(&mut state.bytes);
        state.writing = None;
        state.bytes = [chunk, &later].concat();
    }

    /// Stores nothing from now on.
    #[cold]
    fn give_up(&mut self) {
        if let Some(gives_up) = self.gives_up.take() {
            gives_up();
        }
        self.store.let_go(std::mem::take(&mut self.held));
        // Readers of its bytes have the file open.
        if let Some(file) = self.file.take() {
            osier::unblock(move || drop(file));
        }
        self.fill.state().is_window = true;
    }

    /// Waits until there is room in the window.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if there is no reader.
    fn wait_for_readers(&self) -> io::Result<()> {
        loop {
            let has_readers = {
                let mut state = self.fill.state();
                state.trim();
                let has_readers = state.has_readers();
                if has_readers && state.bytes.len() <= WINDOW {
                    return Ok(());
                }
                has_readers
            };
            if has_readers {
                if !self.fill.taken.wait_timeout(STALLED) {
                    self.fill.state().drop_stalled();
                }
            } else if !self.fill.taken.wait_timeout(ALONE) {
                // The requests that have waited for the head would read by now.
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "every client has left"));
            }
        }
    }
}

fn write(disk: &Arc<Disk>, file: Option<Writing>, bytes: &[u8], at: u64) -> io::Result<Writing> {
    let mut file = match file {
        Some(file) => file,
        None => disk.begin()?,
    };
    file.write(bytes, at)?;
    Ok(file)
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let waiting = {
            let mut state = self.fill.state();
            if state.bytes.capacity() == 0 {
                let most = self.store.options().memory_entry as u64;
                let room = self.fill.len.unwrap_or(0).min(most) as usize;
                state.bytes.reserve(room);
            }
            state.bytes.extend_from_slice(bytes);
            state.wake();
            state.bytes.len()
        };
        self.total += bytes.len() as u64;
        if !self.is_kept() {
            self.wait_for_readers()?;
            return Ok(bytes.len());
        }
        let may_hold = self.store.hold(bytes.len() as u64);
        if may_hold {
            self.held += bytes.len() as u64;
        }
        let most = match self.file {
            Some(_) => WINDOW,
            None => self.store.options().memory_entry,
        };
        if waiting > most || !may_hold {
            // A fetch that is cancelled here would lose count of the bytes on the disk.
            osier::shield(|| self.spill());
            if !self.is_kept() {
                self.wait_for_readers()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Outlet for Writer {
    fn try_flush(&mut self) -> io::Result<Flushed> {
        // The clients read from the store.
        Ok(Flushed::All)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.store.let_go(self.held);
        self.fill.finish(Done::Failed("the fetch has ended".into()));
    }
}
