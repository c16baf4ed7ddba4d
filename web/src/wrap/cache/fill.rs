//! A body that is being received, and the clients that already get it.
//!
//! One fiber writes (`writer.rs`), and every client that asked for the response reads, each at its own
//! pace and on any worker.
//!
//! ```text
//!   0 ──────── file ──────── base ── writing ── bytes ── end
//!      sent from the file         copied under the lock
//! ```
//!
//! The state is behind one lock, which is held while bytes are copied, never while anybody waits.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use osier::sync::Event;

use super::audience::{Audience, Member};
use crate::body::outgoing::Kind;
use crate::conn::output::Outlet;
use crate::lock;

/// Most bytes that a reader copies at once.
const PIECE: usize = 64 << 10;

/// The bytes of a body in memory.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A body that is being received.
pub struct Fill {
    /// The length, if the backend has told it.
    pub len: Option<u64>,
    /// The requests that want the body.
    audience: Arc<Audience>,
    state: Mutex<State>,
    /// Set when a reader comes or goes, or has taken bytes of a window. Only the writer waits.
    pub taken: Event,
}

/// The state of a [`Fill`]. The writer changes it, apart from the readers' places.
#[derive(Default)]
pub struct State {
    /// The place of the first byte of `writing`, or of `bytes`. Bytes before it are in the file, or gone.
    pub base: u64,
    /// Bytes that are being written to the file.
    pub writing: Option<Arc<Vec<u8>>>,
    /// The bytes after them.
    pub bytes: Vec<u8>,
    /// The file, and where the body begins in it.
    pub file: Option<(Arc<File>, u64)>,
    /// How many bytes of the body are in the file: `base`, until a window follows them.
    pub in_file: u64,
    /// Whether nothing is kept any more: from now on, bytes are dropped when all readers have them.
    pub is_window: bool,
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
pub enum Done {
    /// The body is complete, and in memory.
    Memory(Bytes),
    /// The body is complete. Its bytes are in the file, or the last ones are in the window.
    Complete,
    Failed(Arc<str>),
}

impl Fill {
    pub fn new(len: Option<u64>, audience: &Arc<Audience>) -> Arc<Fill> {
        Arc::new(Fill {
            len,
            audience: Arc::clone(audience),
            state: Mutex::default(),
            taken: Event::new(),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A response's body, from the first byte on.
    ///
    /// # Errors
    ///
    /// If the first bytes are gone, or the fetch is being cancelled.
    pub fn body(self: &Arc<Self>) -> io::Result<Kind> {
        let mut state = self.state();
        if let Some(Done::Memory(bytes)) = &state.done {
            return Ok(Kind::Shared(Arc::clone(bytes)));
        }
        if state.is_window && state.base > 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let member = self.audience.join().ok_or(io::ErrorKind::NotFound)?;
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
            _member: member,
        };
        Ok(Kind::Stream(Box::new(move |out| reader.send(out)), self.len))
    }

    /// Ends the body, unless it has ended.
    pub fn finish(&self, done: Done) {
        let mut state = self.state();
        if state.done.is_none() {
            state.done = Some(done);
        }
        state.wake();
    }
}

impl State {
    pub fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Wakes the readers that wait for more.
    pub fn wake(&self) {
        self.readers.iter().for_each(|place| place.more.set());
    }

    /// Drops the bytes of a window that every reader has.
    pub fn trim(&mut self) {
        let Some(least) = self.readers.iter().map(|place| place.at).min() else {
            return;
        };
        let count = least.saturating_sub(self.base).min(self.bytes.len() as u64);
        self.bytes.drain(..count as usize);
        self.base += count;
    }

    /// Takes away the places of the readers that lack bytes, if another reader has all bytes and waits for more.
    pub fn drop_stalled(&mut self) {
        let end = self.base + self.bytes.len() as u64;
        if self.readers.iter().any(|place| place.at == end) {
            // The window moves on, and such a reader finds that its bytes are gone.
            self.readers.retain(|place| place.at == end);
        }
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
    _member: Member,
}

/// The next step of a reader.
enum Step {
    /// The next bytes were copied.
    Copied,
    /// The next bytes are in the file, at this offset and of this length. The flag says that they are the last ones.
    File(Arc<File>, u64, u64, bool),
    /// All bytes of the body are in memory.
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
                        return out.leave_file(file.into(), offset, len);
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
            let is_all = state.bytes.is_empty() && state.in_file == state.base;
            let is_last = is_all && matches!(state.done, Some(Done::Complete));
            return match &state.file {
                Some((file, begin)) if self.at < state.in_file => {
                    Step::File(Arc::clone(file), begin + self.at, state.in_file - self.at, is_last)
                }
                _ => Step::Failed("the bytes are gone: the client was too slow".into()),
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

#[cfg(test)]
mod tests {
    use super::super::audience::Places;
    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_leaves_the_others() {
        let (audience, member) = Audience::of_one(&Places::default());
        let fill = Fill::new(None, &audience);
        let _readers = [(); 3].map(|()| fill.body().unwrap());
        let mut state = fill.state();
        state.is_window = true;
        state.bytes = vec![0; 100];
        // All of them are slow: nobody waits.
        state.drop_stalled();
        state.trim();
        assert_eq!((state.readers.len(), state.base), (3, 0));
        (state.readers[0].at, state.readers[1].at) = (100, 40);
        state.drop_stalled();
        state.trim();
        assert_eq!((state.readers.len(), state.base), (1, 100));
        // The one that is left has everything.
        state.drop_stalled();
        assert_eq!(state.readers.len(), 1);
        drop(state);
        let late = Reader {
            fill: fill.clone(),
            number: 2,
            at: 0,
            more: Arc::new(Event::new()),
            _member: member,
        };
        assert!(matches!(late.step(&mut Vec::new()), Step::Failed(_)));
    }

    #[test]
    fn a_reader_gets_no_bytes_of_the_file_that_it_does_not_have() {
        let (audience, member) = Audience::of_one(&Places::default());
        let fill = Fill::new(None, &audience);
        {
            // 100 bytes are in the file, and 50 of the window behind them are gone.
            let mut state = fill.state();
            let file = File::open("/dev/null").unwrap();
            (state.file, state.in_file, state.base) = (Some((Arc::new(file), 7)), 100, 150);
            (state.is_window, state.done) = (true, Some(Done::Complete));
        }
        let mut reader = Reader {
            fill: fill.clone(),
            number: 0,
            at: 40,
            more: Arc::new(Event::new()),
            _member: member,
        };
        assert!(matches!(reader.step(&mut Vec::new()), Step::File(_, 47, 60, false)));
        reader.at = 100;
        assert!(matches!(reader.step(&mut Vec::new()), Step::Failed(why) if why.contains("too slow")));
        fill.state().base = 100;
        reader.at = 40;
        assert!(matches!(reader.step(&mut Vec::new()), Step::File(_, 47, 60, true)));
    }
}
