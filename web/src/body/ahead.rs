//! Reads the body of a backend's response ahead of a slow client, so that the backend is free soon.
//!
//! ```text
//!   source ─▶ reader (fiber): reads a piece ─▶ queue of pieces, at most `Bounds::memory` ─▶ writer (the connection's fiber) ─▶ client
//!                 ▲            │                          │                                   │
//!                 │            └── no room, or no piece ──┴─▶ file, at most `Bounds::file` ───┘
//!                 └───────────────────────── empty pieces ◀───────────────────────────────────┘
//! ```
//!
//! The reader puts all bytes into the queue before it waits again, so a slow stream is not held back. It joins them with the last
//! piece in the queue, so all pieces but the last are full. When the pieces are used up, or all gateways together hold much
//! memory, the queue moves to an unnamed file, which the writer sends without a copy. The writer keeps no piece while the client
//! takes nothing, and the reader none while the source is silent. Once the source has ended, the writer moves the pieces of a client that takes nothing for a while to the file,
//! and leaves the file to the connection ([`Outlet::leave_file`]), so that such a client costs no memory.
//!
//! The files of all responses together are at most [`Bounds::files`] long. The [`Space`] of a piece, and of those that go to the
//! file with it, is claimed before the piece is read, and then belongs to the file. Without space the reader waits until its
//! client has taken bytes, and tries again. A line in the log says so, once in [`REPORTED_FOR`].
//!
//! The bytes of the file come after those of the pieces. Until the writer has sent the whole file, all new bytes go there. A file
//! that has been sent is closed, and the next bytes go to a new one: the kernel sends the pages of the file themselves, so bytes
//! that wait in the socket would change if somebody wrote over them. Both fibers run on one thread, and neither borrows the queue
//! across a suspension.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use osier::fiber::{Activity, waits_for};
use osier::memory::Account;
use osier::sync::Event;

use super::spool::{Held, on_disk};
use crate::conn::buffers::{self, Size};
use crate::conn::output::{Flushed, Outlet};
use crate::conn::peer::SLOW_AFTER;
use crate::conn::unnamed::{Claimed, Space, Unnamed, in_folder};
use crate::conn::waited::Beginning;

/// The bytes of a piece, the most in one read. A piece is smaller where memory is short.
pub(crate) const PIECE: usize = Size::K64.bytes();

/// The space of the files of all responses.
static FILES: Claimed = Claimed::new();

/// The bytes of the files of all responses.
pub(super) fn file_bytes() -> u64 {
    FILES.bytes()
}

/// The time in which the lack of space is logged once: it concerns each response of a busy time.
const REPORTED_FOR: Duration = Duration::from_secs(60);

/// When the lack of space was logged last.
static REPORTED: Mutex<Option<Instant>> = Mutex::new(None);

/// How much is read ahead of a client, and where it is kept.
pub(crate) struct Bounds {
    /// Bytes in memory, rounded up to pieces, and one piece more.
    pub(crate) memory: usize,
    /// The most bytes that all gateways of the process hold in memory. See [`Bounds::ample`].
    pub(crate) shared: usize,
    /// Bytes in a file. 0 for none: the backend waits.
    pub(crate) file: u64,
    /// The most bytes in the files of all responses of the process.
    pub(crate) files: u64,
    /// The folder of the file.
    pub(crate) folder: PathBuf,
    /// A file could not be made or written: there is none for the rest of the response.
    pub(crate) has_failed: Cell<bool>,
    /// Logs why there is no file. The backend waits for the client then.
    pub(crate) complain: Box<dyn Fn(&io::Error)>,
}

impl Bounds {
    /// The bytes in the memory of all gateways above which a response gets no further pieces: many clients are slow at once, and
    /// a piece that goes to the file at once serves each as well.
    pub(crate) fn ample(&self) -> usize {
        self.shared / 4
    }

    /// Logs that the files of all responses leave no space, unless that was logged a short while ago.
    fn report_lack(&self) {
        let now = osier::time::coarse_now();
        {
            let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.is_some_and(|last| now.saturating_duration_since(last) < REPORTED_FOR) {
                return;
            }
            *reported = Some(now);
        }
        let most = self.files;
        let text = format!("the files of all responses leave no space ('read_ahead_total', {most} bytes)");
        (self.complain)(&io::Error::other(text));
    }
}

/// A body on its way from a backend.
pub(crate) trait Source {
    /// Reads bytes. Returns 0 at the end.
    ///
    /// # Suspends
    ///
    /// Until the backend has sent some.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes received bytes to `out`. Returns their number, which may be 0, and whether the body has ended. Call [`wait`](Source::wait) first,
    /// where the body [may wait](Source::may_wait).
    ///
    /// # Suspends
    ///
    /// As a write to `out` does. A call writes less than an empty output collects, so none waits there.
    fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<(u64, bool)>;

    /// Whether nothing has been received that has not been read, and the body has not ended.
    fn may_wait(&self) -> bool;

    /// Waits until a read would find something, the end or an error for example. The caller holds nothing meanwhile. Returns false if the
    /// wait is stopped.
    ///
    /// # Suspends
    ///
    /// Until then.
    fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool>;

    /// Whether a client that keeps up is better served without the queue.
    fn is_worth_splicing(&self) -> bool {
        false
    }
}

/// Why a body is passed on no further.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The body has ended.
    Done,
    /// The client takes the bytes faster than they arrive.
    KeepsUp,
    /// The client has all bytes, none has arrived for this time, and the body may [pause](Outlet::pause).
    #[cfg_attr(not(feature = "proxy"), allow(dead_code, reason = "FastCGI keeps the time itself"))]
    Silent(Duration),
}

struct Queue<'b> {
    state: RefCell<State>,
    bounds: &'b Bounds,
    /// Set when there is a piece, or the end, for the writer.
    filled: Event,
    /// Set when there is room for the reader.
    emptied: Event,
}

pub(crate) struct Piece {
    bytes: Box<[u8]>,
    sent: usize,
    filled: usize,
}

impl Piece {
    fn take(size: Size) -> Piece {
        Piece {
            bytes: buffers::take(size),
            sent: 0,
            filled: 0,
        }
    }

    /// Copies `bytes` into pieces.
    #[cfg(feature = "proxy")]
    pub(crate) fn copy(bytes: &[u8]) -> VecDeque<Piece> {
        let copied = bytes.chunks(PIECE).map(|bytes| {
            let size = [Size::K16, Size::K64][usize::from(bytes.len() > Size::K16.bytes())];
            let mut piece = Piece::take(size);
            piece.bytes[..bytes.len()].copy_from_slice(bytes);
            piece.filled = bytes.len();
            piece
        });
        copied.collect()
    }

    /// The number of bytes that it can still take.
    fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..self.filled]
    }

    fn give(self) {
        buffers::give(self.bytes);
    }
}

#[derive(Default)]
struct State {
    full: VecDeque<Piece>,
    /// The number of pieces that are being read into, waiting, or being written.
    out: usize,
    /// Their bytes.
    held: Held,
    file: Option<Arc<Unnamed>>,
    /// The bytes of the file that wait: from `sent` to `written`.
    sent: u64,
    written: u64,
    /// The reader is writing to the file behind `written`.
    is_writing: bool,
    /// The writer has nothing to do.
    starving: bool,
    /// The client had all bytes when the writer began to starve.
    has_all: bool,
    end: Option<io::Result<Stopped>>,
}

impl State {
    /// How many bytes the last piece can take. An empty piece counts if the last one is full or the writer has it.
    fn room(&self) -> usize {
        match self.full.back().map_or(0, Piece::room) {
            0 => PIECE,
            room => room,
        }
    }

    /// Adds the bytes of `piece` for the writer. If they fit, they are copied into the last piece, and `piece` is returned to be
    /// filled again.
    fn add(&mut self, piece: Piece) -> Option<Piece> {
        match self.full.back_mut() {
            Some(last) if piece.filled <= last.room() => {
                last.bytes[last.filled..last.filled + piece.filled].copy_from_slice(&piece.bytes[..piece.filled]);
                last.filled += piece.filled;
                Some(piece)
            }
            _ => {
                self.full.push_back(piece);
                None
            }
        }
    }

    /// Takes a place for one more piece in the queue, and returns its size. `None` if there is no room.
    fn grow(&mut self, bounds: &Bounds) -> Option<Size> {
        // One more, because the piece that is being written may not be full: a body within the bound must fit.
        let most = bounds.memory.div_ceil(PIECE).max(1) + 1;
        if self.out == 0 {
            return Some(self.claim(bounds));
        }
        let may_grow = self.out < most && self.held.grow(PIECE, bounds.ample());
        self.out += usize::from(may_grow);
        may_grow.then_some(Size::K64)
    }

    /// Takes a place for a piece without which nothing moves. It is a small one if all gateways together hold too much.
    fn claim(&mut self, bounds: &Bounds) -> Size {
        self.out += 1;
        if self.held.grow(PIECE, bounds.shared) {
            return Size::K64;
        }
        self.held.add(Size::K16.bytes());
        Size::K16
    }

    /// Claims space on the disk for one more piece, and for those that go to the file with it.
    fn space(&self, bounds: &Bounds) -> Result<Space, NoSpace> {
        if self.written >= bounds.file || bounds.files == 0 || bounds.has_failed.get() {
            return Err(NoSpace::NoFile);
        }
        let pieces = match self.sent < self.written {
            true => 1,
            // The writer may put the piece that it has back into the queue.
            false => self.out + 1,
        };
        let space = FILES.claim(pieces as u64 * PIECE as u64, bounds.files);
        space.ok_or(NoSpace::Taken)
    }

    /// Gives the place of a piece back.
    fn shrink(&mut self, piece: &Piece) {
        self.out -= 1;
        self.held.give(piece.bytes.len());
    }
}

/// Why there is no space on the disk for a piece.
enum NoSpace {
    /// There is to be no file, or no more of it.
    NoFile,
    /// The files of all responses have the space.
    Taken,
}

/// Same as [`pass_on`](super::relay::pass_on), with another fiber that reads ahead from the beginning.
///
/// # Suspends
///
/// While the backend sends, and while the client reads.
pub(super) fn read_ahead<S: Source>(
    source: &mut Option<S>,
    rest: VecDeque<Piece>,
    bounds: &Bounds,
    can_splice: bool,
    out: &mut dyn Outlet,
) -> io::Result<Stopped> {
    let mut held = Held::of(Account::READ_AHEAD);
    held.add(rest.iter().map(|piece| piece.bytes.len()).sum());
    let queue = Queue {
        state: RefCell::new(State {
            out: rest.len(),
            full: rest,
            held,
            ..State::default()
        }),
        bounds,
        filled: Event::new(),
        emptied: Event::new(),
    };
    if source.is_none() {
        queue.state.borrow_mut().end = Some(Ok(Stopped::Done));
        return queue.drain(out);
    }
    let may_pause = out.patience().is_some();
    osier::scope(|s| {
        s.spawn_local(|| {
            let _ended = EndOnUnwind(&queue);
            let end = match source.as_mut() {
                Some(body) => queue.fill(body, can_splice, may_pause),
                None => Ok(Stopped::Done),
            };
            if !matches!(end, Ok(Stopped::KeepsUp | Stopped::Silent(_))) {
                // Give the connection back, or close it, now and not at the end of the scope.
                *source = None;
            }
            queue.end(end);
        });
        let written = queue.drain(out);
        if written.is_err() {
            s.cancel();
        }
        written
    })
}

/// Ends the queue if the reader unwinds, so that the writer does not wait for ever. The scope passes the panic on.
struct EndOnUnwind<'q>(&'q Queue<'q>);

impl Drop for EndOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(Err(io::Error::other("the reader of the body panicked")));
        }
    }
}

impl Queue<'_> {
    fn end(&self, end: io::Result<Stopped>) {
        self.state.borrow_mut().end = Some(end);
        self.filled.set();
    }

    fn fill(&self, source: &mut impl Source, can_splice: bool, may_pause: bool) -> io::Result<Stopped> {
        loop {
            let mut goes_on = || {
                osier::fiber::shrink_stack();
                let state = self.state.borrow();
                !(may_pause && state.starving && state.has_all)
            };
            let mut beginning = Beginning {
                lasts: SLOW_AFTER,
                goes_on: &mut goes_on,
            };
            if !source.wait(&mut beginning)? {
                return Ok(Stopped::Silent(SLOW_AFTER));
            }
            let (mut piece, space) = self.empty_piece();
            let most = match space.is_some() {
                true => piece.bytes.len(),
                false => self.state.borrow().room().min(piece.bytes.len()),
            };
            piece.filled = match source.receive(&mut piece.bytes[..most]) {
                Ok(count @ 1..) => count,
                end => {
                    self.release(piece);
                    return end.map(|_| Stopped::Done);
                }
            };
            if let Some(space) = space {
                self.spill(piece, space);
                continue;
            }
            let (empty, starved) = {
                let mut state = self.state.borrow_mut();
                (state.add(piece), std::mem::take(&mut state.starving))
            };
            if let Some(piece) = empty {
                self.release(piece);
            }
            self.filled.set();
            if starved && can_splice && source.is_worth_splicing() {
                return Ok(Stopped::KeepsUp);
            }
            if starved {
                osier::yield_now();
            }
        }
    }

    /// An empty piece for the reader. If its bytes go to the file, also their space.
    ///
    /// # Suspends
    ///
    /// Until the client has taken bytes, if there is no room.
    fn empty_piece(&self) -> (Piece, Option<Space>) {
        loop {
            let lack = {
                let mut state = self.state.borrow_mut();
                let is_in_file = state.sent < state.written;
                if !is_in_file && let Some(size) = state.grow(self.bounds) {
                    return (Piece::take(size), None);
                }
                match state.space(self.bounds) {
                    Ok(space) => return (Piece::take(state.claim(self.bounds)), Some(space)),
                    Err(lack) => lack,
                }
            };
            if let NoSpace::Taken = lack {
                self.bounds.report_lack();
            }
            self.emptied.wait();
        }
    }

    /// Moves the waiting pieces and then `piece` to the end of the file, which gets what they need of `space`.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    fn spill(&self, piece: Piece, space: Space) {
        let (file, mut pieces, at) = {
            let mut state = self.state.borrow_mut();
            state.is_writing = true;
            // Pieces beside a file that is not sent come before its bytes.
            let pieces = match state.sent < state.written {
                true => VecDeque::new(),
                false => std::mem::take(&mut state.full),
            };
            (state.file.clone(), pieces, state.written)
        };
        // They count until they are written: many may wait for the disk.
        pieces.push_back(piece);
        let folder = self.bounds.folder.clone();
        let (pieces, written) = on_disk(move || {
            let written = write_pieces(file, &folder, &pieces, at, space);
            (pieces, written)
        });
        let (file, end) = match written {
            Ok(written) => written,
            Err(error) => return self.keep_after_all(pieces, &error),
        };
        {
            let mut state = self.state.borrow_mut();
            pieces.iter().for_each(|piece| state.shrink(piece));
            (state.file, state.written) = (Some(file), end);
            (state.is_writing, state.starving) = (false, false);
        }
        pieces.into_iter().for_each(Piece::give);
        self.filled.set();
    }

    /// Puts pieces that the file could not take back into the queue, behind the bytes of the file.
    ///
    /// # Suspends
    ///
    /// Until the client has taken the bytes of the file.
    fn keep_after_all(&self, pieces: VecDeque<Piece>, error: &io::Error) {
        (self.bounds.complain)(error);
        self.bounds.has_failed.set(true);
        self.state.borrow_mut().is_writing = false;
        while self.state.borrow().sent < self.state.borrow().written {
            self.emptied.wait();
        }
        {
            let mut state = self.state.borrow_mut();
            state.full.extend(pieces);
            state.starving = false;
        }
        self.filled.set();
    }

    fn drain(&self, out: &mut dyn Outlet) -> io::Result<Stopped> {
        self.settle(out)?;
        loop {
            if let Some((file, sent, written)) = self.last_part() {
                out.leave_file(file.into(), sent, written - sent)?;
                return Ok(Stopped::Done);
            }
            let piece = self.state.borrow_mut().full.pop_front();
            if let Some(piece) = piece {
                self.write(piece, out)?;
                continue;
            }
            let (file, sent, written) = {
                let mut state = self.state.borrow_mut();
                match state.file.clone() {
                    Some(file) if state.sent < state.written => (file, state.sent, state.written),
                    // The reader has taken pieces and will add them to the file.
                    _ => match state.end.take() {
                        Some(Ok(Stopped::Silent(time))) => {
                            drop(state);
                            // Bytes may have come behind the look of the reader.
                            return Ok(match self.settle(out)?.1 {
                                Flushed::All => Stopped::Silent(time),
                                _ => Stopped::KeepsUp,
                            });
                        }
                        Some(end) => return end,
                        None => {
                            drop(state);
                            let (has_waited, flushed) = self.settle(out)?;
                            if has_waited {
                                continue;
                            }
                            let mut state = self.state.borrow_mut();
                            (state.starving, state.has_all) = (true, flushed == Flushed::All);
                            drop(state);
                            // The client has all that has come from the backend.
                            if !waits_for(Activity::Network, || self.filled.wait_timeout(SLOW_AFTER)) {
                                // The hook of the fiber has sent what an HTTP/2 stream did not take at once.
                                let flushed = out.try_flush()?;
                                self.state.borrow_mut().has_all |= flushed == Flushed::All;
                                out.shrink();
                                waits_for(Activity::Network, || self.filled.wait());
                            }
                            continue;
                        }
                    },
                }
            };
            let count = out.write_file(&file, sent, written - sent)?;
            {
                let mut state = self.state.borrow_mut();
                state.sent += count;
                if state.sent == state.written && !state.is_writing {
                    (state.file, state.sent, state.written) = (None, 0, 0);
                }
            }
            self.emptied.set();
        }
    }

    /// Waits until the client has taken what the output and TLS hold, or only the file is left. Returns whether it has waited, and what
    /// has left.
    ///
    /// # Suspends
    ///
    /// Until then.
    fn settle(&self, out: &mut dyn Outlet) -> io::Result<(bool, Flushed)> {
        let mut has_waited = false;
        loop {
            let flushed = out.try_flush()?;
            if flushed != Flushed::Part || self.last_part().is_some() {
                return Ok((has_waited, flushed));
            }
            has_waited = true;
            if !out.takes_bytes()? {
                self.spill_rest();
            }
        }
    }

    /// The unsent part of the file, if nothing else is left of the body.
    fn last_part(&self) -> Option<(Arc<Unnamed>, u64, u64)> {
        let state = self.state.borrow();
        let is_last = state.full.is_empty() && matches!(state.end, Some(Ok(Stopped::Done)));
        let file = state.file.as_ref().filter(|_| is_last && state.sent < state.written)?;
        Some((file.clone(), state.sent, state.written))
    }

    /// Writes `piece`. If the client does not take all of it, the rest goes back to the queue, from where it may move to the file
    /// while this waits.
    fn write(&self, mut piece: Piece, out: &mut dyn Outlet) -> io::Result<()> {
        let Some(client) = out.direct()? else {
            out.write_all(piece.rest())?;
            self.is_written(piece);
            return Ok(());
        };
        let sent = match client.try_write(piece.rest()) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return out.sent(Err(error)),
        };
        out.sent(Ok(sent))?;
        piece.sent += sent;
        if piece.rest().is_empty() {
            self.is_written(piece);
            return Ok(());
        }
        self.state.borrow_mut().full.push_front(piece);
        if !out.takes_bytes()? {
            self.spill_rest();
        }
        Ok(())
    }

    /// Moves the waiting pieces to the file if the body has ended, so that the connection can send them without a stack.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    fn spill_rest(&self) {
        let last = {
            let mut state = self.state.borrow_mut();
            let may_spill = matches!(state.end, Some(Ok(Stopped::Done))) && state.sent == state.written;
            let space = may_spill.then(|| state.space(self.bounds).ok()).flatten();
            space.and_then(|space| Some((state.full.pop_back()?, space)))
        };
        if let Some((piece, space)) = last {
            self.spill(piece, space);
        }
    }

    fn is_written(&self, piece: Piece) {
        self.release(piece);
        self.emptied.set();
    }

    /// Gives a piece and its place back.
    fn release(&self, piece: Piece) {
        self.state.borrow_mut().shrink(&piece);
        piece.give();
    }
}

/// Writes the pieces to the file, which it makes if there is none. Returns it, and where the pieces end. The file keeps the space
/// of its bytes.
fn write_pieces(
    file: Option<Arc<Unnamed>>,
    folder: &Path,
    pieces: &VecDeque<Piece>,
    mut at: u64,
    space: Space,
) -> io::Result<(Arc<Unnamed>, u64)> {
    let file = match file {
        Some(file) => {
            file.add_space(space);
            file
        }
        None => Arc::new(Unnamed::new(folder, space)?),
    };
    for piece in pieces {
        let written = file.write_all_at(piece.rest(), at);
        written.map_err(|error| in_folder(folder, &error))?;
        at += piece.rest().len() as u64;
    }
    file.keep_space(at);
    Ok((file, at))
}

#[cfg(test)]
pub(super) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use osier::Cancelled;

    use super::*;

    struct Panicking;

    impl Source for Panicking {
        fn receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("at receiving")
        }

        fn pass_on(&mut self, _: &mut dyn Write) -> io::Result<(u64, bool)> {
            unreachable!("it is read ahead")
        }

        fn may_wait(&self) -> bool {
            true
        }

        fn wait(&mut self, _: &mut Beginning<'_>) -> io::Result<bool> {
            Ok(true)
        }
    }

    struct Client;

    impl Write for Client {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Outlet for Client {}

    #[test]
    fn a_panic_of_the_reader_ends_the_writing() {
        osier::run(|| {
            let bounds = bounds(PIECE, 0);
            let read = || read_ahead(&mut Some(Panicking), VecDeque::new(), &bounds, false, &mut Client);
            let ended = osier::timeout(testkit::DEADLINE, || catch_unwind(AssertUnwindSafe(read)));
            let payload = ended.expect("an end in time").expect_err("the panic goes on");
            assert!(!Cancelled::is_payload(&*payload), "it waited for ever");
        });
    }

    pub(in crate::body) fn bounds(shared: usize, file: u64) -> Bounds {
        Bounds {
            memory: PIECE,
            shared,
            file,
            files: MOST,
            folder: std::env::temp_dir(),
            has_failed: Cell::new(false),
            complain: Box::new(|error| assert!(error.to_string().contains("'read_ahead_total'"), "{error}")),
        }
    }

    /// Bytes that tell their place. Then the body ends, or panics.
    struct Places {
        next: usize,
        panics: bool,
    }

    /// The length of a body.
    const LENGTH: usize = 2 << 20;

    /// The most bytes of all files: as long as one body, and no multiple of a piece.
    const MOST: u64 = LENGTH as u64 + 1000;

    fn byte_at(place: usize) -> u8 {
        (place / 977 % 251) as u8
    }

    fn check_claimed() {
        assert!(FILES.bytes() <= MOST, "{} are claimed", FILES.bytes());
    }

    impl Source for Places {
        fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
            check_claimed();
            let count = into.len().min(LENGTH - self.next);
            assert!(count > 0 || !self.panics, "the body panics");
            let places = self.next..;
            into[..count]
                .iter_mut()
                .zip(places)
                .for_each(|(byte, place)| *byte = byte_at(place));
            self.next += count;
            Ok(count)
        }

        fn pass_on(&mut self, _: &mut dyn Write) -> io::Result<(u64, bool)> {
            unreachable!("it is read ahead")
        }

        fn may_wait(&self) -> bool {
            true
        }

        fn wait(&mut self, _: &mut Beginning<'_>) -> io::Result<bool> {
            osier::yield_now();
            Ok(true)
        }
    }

    /// A client that takes nothing until `reads`, and then all bytes, each in its place.
    struct Slow<'r> {
        reads: &'r Cell<bool>,
        taken: usize,
    }

    impl Write for Slow<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            while !self.reads.get() {
                osier::sleep(Duration::from_millis(1));
            }
            osier::yield_now();
            check_claimed();
            let mut places = (self.taken..).zip(bytes);
            assert!(
                places.all(|(place, byte)| *byte == byte_at(place)),
                "from {}",
                self.taken
            );
            self.taken += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Outlet for Slow<'_> {}

    /// Reads a body ahead of a client until `reads`, and returns how many bytes that has taken.
    fn taken(panics: bool, reads: &Cell<bool>) -> usize {
        let bounds = bounds(usize::MAX, u64::MAX);
        let mut client = Slow { reads, taken: 0 };
        let mut source = Some(Places { next: 0, panics });
        read_ahead(&mut source, VecDeque::new(), &bounds, false, &mut client).unwrap();
        client.taken
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let wait = || {
            while !is_so() {
                osier::sleep(Duration::from_millis(1));
            }
        };
        osier::timeout(testkit::DEADLINE, wait).unwrap_or_else(|_| panic!("{what}: {} claimed", FILES.bytes()));
    }

    /// No other test of this program has a file of a response.
    #[test]
    fn the_files_of_all_responses_stay_within_their_bound_and_give_back_their_space() {
        osier::run(|| {
            let reads = Cell::new(false);
            osier::scope(|s| {
                let clients: Vec<_> = (0..6).map(|_| s.spawn_local(|| taken(false, &reads))).collect();
                // The first piece of a file needs space for those in memory too.
                wait_until("little space is left", || FILES.bytes() > MOST - 4 * PIECE as u64);
                reads.set(true);
                for client in clients {
                    assert_eq!(client.join().unwrap(), LENGTH);
                }
            });
            wait_until("nothing is claimed after the last byte", || FILES.bytes() == 0);

            let ended = catch_unwind(AssertUnwindSafe(|| taken(true, &Cell::new(true))));
            let payload = ended.expect_err("the panic goes on");
            assert!(!Cancelled::is_payload(&*payload), "it waited for ever");
            wait_until("nothing is claimed after a panic", || FILES.bytes() == 0);

            osier::scope(|s| {
                let never = Cell::new(false);
                let client = s.spawn_local(move || taken(false, &never));
                wait_until("a file", || FILES.bytes() > PIECE as u64);
                client.cancel();
                assert!(client.join().is_err());
            });
            wait_until("nothing is claimed after a cancellation", || FILES.bytes() == 0);
        });
    }
}
