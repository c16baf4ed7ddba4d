//! A body on its way into the store, and the clients that already get it.
//!
//! ```text
//!   fetch ─▶ memory ──more than the store keeps there──▶ file ──▶ the store
//!              │                                          │
//!              │ no disk, disk full, longer than allowed  │
//!              ▼                                          ▼
//!            window: nothing is kept; the fetch waits for its readers
//! ```
//!
//! One fiber writes, and every client that asked for the response reads, each at its own pace and on
//! any worker. In memory and in a file the writer waits for nobody. In a window it waits for the
//! slowest reader, and stops when there is none: then nobody wants the bytes.
//!
//! The state is behind one lock, which is held while bytes are copied, never while anybody waits. The
//! file is written on the pool for blocking work.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use osier::sync::Event;

use super::disk::{Disk, Writing};
use super::entry::{Bytes, Stored};
use super::store::Store;
use crate::body::outgoing::Kind;
use crate::conn::output::Outlet;

/// Bytes that wait in a window, and bytes that a file gets at once.
const WINDOW: usize = 256 << 10;

/// Most bytes that a reader copies at once.
const PIECE: usize = 64 << 10;

/// Time for which a window waits for a first reader.
const ALONE: Duration = Duration::from_secs(1);

/// A body that is being received.
pub struct Fill {
    /// The length, if the backend has told it.
    len: Option<u64>,
    state: Mutex<State>,
    /// Set when a reader has taken bytes or has gone.
    taken: Event,
}

#[derive(Default)]
struct State {
    /// The place of the first byte of `writing`, or of `bytes`. Bytes before it are in the file, or gone.
    base: u64,
    /// Bytes that are being written to the file.
    writing: Option<Arc<Vec<u8>>>,
    /// The bytes after them.
    bytes: Vec<u8>,
    /// The file, and where the body begins in it.
    file: Option<(Arc<File>, u64)>,
    /// Bytes before `base` are lost, apart from those in the file.
    is_window: bool,
    readers: Vec<Place>,
    next_reader: u64,
    done: Option<Done>,
}

/// A reader's place.
struct Place {
    reader: u64,
    at: u64,
    /// Set when there is more.
    more: Arc<Event>,
}

/// The end of a body.
#[derive(Clone)]
enum Done {
    /// All bytes.
    Memory(Bytes),
    /// All bytes are in the file, or were read.
    Sent,
    Failed(Arc<str>),
}

impl Fill {
    pub fn new(len: Option<u64>) -> Arc<Fill> {
        Arc::new(Fill {
            len,
            state: Mutex::default(),
            taken: Event::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response's body, from the first byte on.
    ///
    /// # Errors
    ///
    /// If the first bytes are gone.
    pub fn body(self: &Arc<Self>) -> io::Result<Kind> {
        let mut state = self.state();
        if let Some(Done::Memory(bytes)) = &state.done {
            return Ok(Kind::Shared(Arc::clone(bytes)));
        }
        if state.is_window && state.base > 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let more = Arc::new(Event::new());
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.push(Place {
            reader: number,
            at: 0,
            more: Arc::clone(&more),
        });
        drop(state);
        self.taken.set();
        let reader = Reader {
            fill: Arc::clone(self),
            number,
            at: 0,
            more,
        };
        Ok(Kind::Stream(Box::new(move |out| reader.send(out)), self.len))
    }

    fn finish(&self, done: Done) {
        let mut state = self.state();
        if state.done.is_none() {
            state.done = Some(done);
        }
        state.wake();
    }
}

impl State {
    fn wake(&self) {
        self.readers.iter().for_each(|place| place.more.set());
    }

    /// Drops the bytes of a window that all readers have.
    fn trim(&mut self) {
        let Some(least) = self.readers.iter().map(|place| place.at).min() else {
            return;
        };
        let count = least.saturating_sub(self.base).min(self.bytes.len() as u64);
        self.bytes.drain(..count as usize);
        self.base += count;
    }

    /// Copies bytes from `at` on.
    fn copy(&self, at: u64, into: &mut Vec<u8>) {
        let mut skip = (at - self.base) as usize;
        let writing = self.writing.as_ref().map_or(&[][..], |bytes| bytes);
        for bytes in [writing, &self.bytes] {
            let from = skip.min(bytes.len());
            let count = (bytes.len() - from).min(PIECE - into.len());
            into.extend_from_slice(&bytes[from..from + count]);
            skip -= from;
        }
    }
}

/// A client's view of the body.
struct Reader {
    fill: Arc<Fill>,
    number: u64,
    at: u64,
    more: Arc<Event>,
}

/// What a reader does next.
enum Step {
    Copied,
    File(Arc<File>, u64, u64, bool),
    Rest(Bytes),
    Over,
    Failed(Arc<str>),
    Wait,
}

impl Reader {
    /// Writes the body to `out`.
    ///
    /// # Suspends
    ///
    /// While the backend sends, and while the client reads.
    fn send(mut self, out: &mut dyn Outlet) -> io::Result<()> {
        let mut piece = Vec::new();
        loop {
            let count = match self.step(&mut piece) {
                Step::Copied => {
                    out.write_all(&piece)?;
                    piece.len() as u64
                }
                Step::File(file, offset, len, is_last) => {
                    if is_last {
                        return out.leave_file(&file, offset, len);
                    }
                    out.write_file(&file, offset, len)?
                }
                Step::Rest(bytes) => return out.write_all(&(*bytes).as_ref()[self.at as usize..]),
                Step::Over => return Ok(()),
                Step::Failed(why) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, &*why)),
                Step::Wait => {
                    self.more.wait();
                    0
                }
            };
            self.advance(count);
        }
    }

    fn step(&self, piece: &mut Vec<u8>) -> Step {
        let state = self.fill.state();
        if let Some(Done::Memory(bytes)) = &state.done {
            return Step::Rest(Arc::clone(bytes));
        }
        if self.at < state.base {
            let is_last = matches!(state.done, Some(Done::Sent)) && state.bytes.is_empty();
            return match &state.file {
                Some((file, begin)) => Step::File(Arc::clone(file), begin + self.at, state.base - self.at, is_last),
                None => Step::Failed("the beginning of the body is gone".into()),
            };
        }
        piece.clear();
        state.copy(self.at, piece);
        match &state.done {
            _ if !piece.is_empty() => Step::Copied,
            None => Step::Wait,
            Some(Done::Failed(why)) => Step::Failed(Arc::clone(why)),
            Some(_) => Step::Over,
        }
    }

    fn advance(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        self.at += count;
        let mut state = self.fill.state();
        let place = state.readers.iter_mut().find(|place| place.reader == self.number);
        if let Some(place) = place {
            place.at = self.at;
        }
        if state.is_window {
            drop(state);
            self.fill.taken.set();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.fill.state();
        state.readers.retain(|place| place.reader != self.number);
        drop(state);
        self.fill.taken.set();
    }
}

/// The writer of a [`Fill`]: the place to which a handler writes its body. Dropping it fails the body
/// unless it was finished.
pub struct Writer {
    fill: Arc<Fill>,
    store: Arc<Store>,
    /// Bytes of the head in front of the body in a file.
    head: u64,
    total: u64,
    /// Bytes of memory that are counted.
    held: u64,
    file: Option<Writing>,
    /// Called once when the body will not be stored.
    gives_up: Option<Box<dyn FnOnce()>>,
}

impl Writer {
    /// Makes the writer of `fill`. `head` is the length of what stands before the body in a file.
    /// `gives_up` is called if the body will not be stored.
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
            self.fill.finish(Done::Sent);
            return None;
        }
        let Some(file) = self.file.take() else {
            let mut bytes = std::mem::take(&mut self.fill.state().bytes);
            bytes.shrink_to_fit();
            let bytes: Bytes = Arc::new(bytes);
            self.fill.finish(Done::Memory(Arc::clone(&bytes)));
            return Some(Stored::Memory(bytes));
        };
        // Readers need no name of the file.
        self.fill.finish(Done::Sent);
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
    pub fn fail(self, why: &str) {
        self.fill.finish(Done::Failed(why.into()));
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
    fn wait_for_readers(&self) -> io::Result<()> {
        loop {
            let has_readers = {
                let mut state = self.fill.state();
                state.trim();
                let has_readers = !state.readers.is_empty();
                if has_readers && state.bytes.len() <= WINDOW {
                    return Ok(());
                }
                has_readers
            };
            if has_readers {
                self.fill.taken.wait();
            } else if !self.fill.taken.wait_timeout(ALONE) {
                // Those who have waited for the head would be here by now.
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
            self.spill();
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

impl Outlet for Writer {}

impl Drop for Writer {
    fn drop(&mut self) {
        self.store.let_go(self.held);
        self.fill.finish(Done::Failed("the fetch has ended".into()));
    }
}
