//! A request body that is received before a backend gets it: in memory, or in an unnamed file.
//!
//! A slow client occupies no backend while it sends. FastCGI also needs the length of a body before its first byte. A gateway
//! fills the spool; its sender reads it, once for each attempt.
//!
//! ```text
//!   client ─▶ pieces ─▶ memory, at most `Limits::memory`, and `Limits::shared` of all spools
//!               └─────▶ file, with the bytes that were in memory, as soon as the body does not fit, memory is short, or a whole
//!                       piece of a body has come whose length will not fit; at most `Limits::files` of all spools
//! ```
//!
//! While the client is waited for, the spool holds no piece: a client that sends a byte now and then costs that byte. The file is
//! written on the blocking pool, up to [`PIECES`] pieces at once if they have arrived together. It is read there, too, unless the gateway
//! sends it itself ([`Spool::file`]). Its content vanishes with its descriptor, even if the process is killed.

#[cfg(feature = "proxy")]
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use osier::memory::{self, Account, Charge, Pressure};
use osier::sync::Semaphore;

use crate::RequestBody;
use crate::conn::buffers::{self, Size};
use crate::conn::unnamed::{Claimed, Space, Unnamed, in_folder};

/// The space of the files of all request bodies.
static FILES: Claimed = Claimed::new();

/// The bytes of the files of all request bodies.
pub(super) fn file_bytes() -> u64 {
    FILES.bytes()
}

/// The limits and the folder of a spool.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The longest body that stays in memory, in bytes.
    pub(crate) memory: usize,
    /// The most bytes that all gateways of the process hold in memory.
    pub(crate) shared: usize,
    /// The most bytes in the files of all bodies of the process.
    pub(crate) files: u64,
    /// The folder of the file.
    pub(crate) folder: PathBuf,
}

impl Limits {
    /// The longest body that can be kept, in bytes.
    fn longest(&self) -> u64 {
        self.files.max(self.memory as u64)
    }

    /// The failure of a body that is longer than [`longest`](Limits::longest).
    fn too_long(&self) -> Failed {
        Failed::TooLong {
            memory: self.memory,
            files: self.files,
        }
    }
}

/// A body of known length.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// The body, unless there is a file.
    memory: Vec<u8>,
    held: Held,
    file: Option<Arc<Unnamed>>,
    /// Why there is a file.
    spilled: Spilled,
    len: u64,
}

/// Why a body is not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Spilled {
    /// It is longer than [`Limits::memory`].
    #[default]
    Long,
    /// All gateways together would hold more than [`Limits::shared`] bytes, which are these.
    Shared(usize),
    /// The process is short of memory; see [`Pressure`].
    Pressure,
}

/// Why a body could not be kept.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The client did not send its body; see [`RequestBody`].
    Client(io::Error),
    /// The body is longer than [`Limits::memory`] and [`Limits::files`], which are these, and can never be kept.
    TooLong { memory: usize, files: u64 },
    /// The body has to leave memory, and [`Limits::files`], which is this, leaves no space.
    NoSpace { files: u64, spilled: Spilled },
    /// The file could not be made or written.
    File(io::Error),
}

/// A body that arrives piece by piece.
pub(crate) trait Arriving {
    /// The announced length in bytes, if there is one.
    fn announced(&self) -> Option<u64>;

    /// Reads the bytes that have arrived. Returns 0 at the end, and `None` if more have to arrive.
    fn read_arrived(&mut self, into: &mut [u8]) -> io::Result<Option<usize>>;

    /// Waits until bytes have arrived.
    ///
    /// # Suspends
    ///
    /// Until the client has sent more.
    fn arrives(&mut self) -> io::Result<()>;
}

impl Arriving for RequestBody<'_> {
    fn announced(&self) -> Option<u64> {
        RequestBody::announced(self)
    }

    fn read_arrived(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        RequestBody::read_arrived(self, into)
    }

    fn arrives(&mut self) -> io::Result<()> {
        RequestBody::arrives(self)
    }
}

impl Spool {
    /// Makes a spool of a body that is in memory.
    #[cfg(feature = "fastcgi")]
    pub(crate) fn in_memory(memory: Vec<u8>) -> Spool {
        Spool {
            len: memory.len() as u64,
            memory,
            ..Spool::default()
        }
    }

    /// Reads `body` to its end.
    ///
    /// # Suspends
    ///
    /// While the client sends, and while the file is written.
    #[cfg(any(test, feature = "fastcgi"))]
    pub(crate) fn fill(body: &mut dyn Arriving, limits: &Limits) -> Result<Spool, Failed> {
        let mut spool = Spool::default();
        spool.go_on(body, limits)?;
        Ok(spool)
    }

    /// Reads the rest of `body`.
    ///
    /// # Suspends
    ///
    /// While the client sends, and while the file is written.
    pub(crate) fn go_on(&mut self, body: &mut dyn Arriving, limits: &Limits) -> Result<(), Failed> {
        while !self.read_arrived(body, limits)? {
            body.arrives().map_err(Failed::Client)?;
        }
        Ok(())
    }

    /// Adds the bytes of `body` that have arrived. Returns whether its end has.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    pub(crate) fn read_arrived(&mut self, body: &mut dyn Arriving, limits: &Limits) -> Result<bool, Failed> {
        // Such a body would take the space of others until it fails.
        if self.len == 0 && body.announced().is_some_and(|length| length > limits.longest()) {
            return Err(limits.too_long());
        }
        let is_long = body.announced().is_some_and(|length| length > limits.memory as u64);
        let mut pieces = Vec::new();
        let is_whole = loop {
            let mut piece = buffers::take(Size::K64);
            let read = read_all_arrived(body, &mut piece);
            pieces.push(piece);
            let (filled, then) = match read {
                Ok(read) => read,
                Err(error) => break Err(Failed::Client(error)),
            };
            let for_file = self.file.is_some() || (is_long && (pieces.len() > 1 || then == Then::ReadOn));
            if for_file && then == Then::ReadOn && pieces.len() < PIECES {
                continue;
            }
            pieces = self.add(pieces, filled, limits, for_file)?;
            match then {
                Then::Over => break Ok(true),
                Then::Wait => break Ok(false),
                Then::ReadOn => pieces.drain(..).for_each(buffers::give),
            }
        };
        pieces.into_iter().for_each(buffers::give);
        is_whole
    }

    /// Adds `pieces`, which it returns. They are full but the last one, which has `filled` bytes. They go to the file if they are for it, or
    /// the memory has no room.
    ///
    /// # Suspends
    ///
    /// While the file is written.
    fn add(
        &mut self,
        pieces: Vec<Box<[u8]>>,
        filled: usize,
        limits: &Limits,
        for_file: bool,
    ) -> Result<Vec<Box<[u8]>>, Failed> {
        let held: usize = pieces.iter().map(|piece| piece.len()).sum();
        let count = held - Size::K64.bytes() + filled;
        let (at, end) = (self.len, self.len + count as u64);
        if count == 0 {
            return Ok(pieces);
        }
        if end > limits.longest() {
            return Err(limits.too_long());
        }
        self.len = end;
        let Some(space) = self.claim(count, limits, for_file)? else {
            parts(&pieces, count).for_each(|part| self.memory.extend_from_slice(part));
            return Ok(pieces);
        };
        let (file, folder, memory) = (
            self.file.take(),
            limits.folder.clone(),
            std::mem::take(&mut self.memory),
        );
        // Many bodies may wait for the disk at once, with what they hold.
        let _charges = (std::mem::take(&mut self.held), Account::BODIES.charge(held));
        let written = on_disk(move || {
            let file = match file {
                Some(file) => {
                    file.add_space(space);
                    file
                }
                None => Arc::new(Unnamed::new(&folder, space)?),
            };
            let write = || {
                file.write_all_at(&memory, 0)?;
                let mut at = at;
                for part in parts(&pieces, count) {
                    file.write_all_at(part, at)?;
                    at += part.len() as u64;
                }
                Ok(())
            };
            write().map_err(|error| in_folder(&folder, &error))?;
            io::Result::Ok((file, pieces))
        });
        let (file, pieces) = written.map_err(Failed::File)?;
        self.file = Some(file);
        Ok(pieces)
    }

    /// Claims space in the file for the last `filled` bytes, and for those that go there with them. `None` if they stay in memory.
    fn claim(&mut self, filled: usize, limits: &Limits, for_file: bool) -> Result<Option<Space>, Failed> {
        let pressure = memory::pressure();
        let may_stay = !for_file && self.len <= limits.memory as u64;
        if may_stay && pressure == Pressure::Normal && self.held.grow(filled, limits.shared) {
            return Ok(None);
        }
        if self.len > limits.memory as u64 || (for_file && self.file.is_none()) {
            self.spilled = Spilled::Long;
        } else if self.file.is_none() {
            self.spilled = match pressure {
                Pressure::Normal => Spilled::Shared(limits.shared),
                _ => Spilled::Pressure,
            };
        }
        let to_write = if self.file.is_some() { filled as u64 } else { self.len };
        if let Some(space) = FILES.claim(to_write, limits.files) {
            return Ok(Some(space));
        }
        // Files relieve the memory. Near its limit, and not before, requests fail for the lack of it.
        if may_stay && pressure == Pressure::High {
            if self.held.grow(filled, limits.shared) {
                return Ok(None);
            }
            self.spilled = Spilled::Shared(limits.shared);
        }
        Err(Failed::NoSpace {
            files: limits.files,
            spilled: self.spilled,
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The file, if the body is not in memory.
    #[cfg(feature = "proxy")]
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_deref().map(|file| &**file)
    }

    /// Appends up to `count` bytes, beginning at `at`, to `to`. Returns how many, 0 at the end.
    ///
    /// # Suspends
    ///
    /// While the file is read.
    pub(crate) fn read_at(&self, at: u64, count: usize, to: &mut Vec<u8>) -> io::Result<usize> {
        let Some(file) = self.file.clone() else {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let rest = self.memory.get(at..).unwrap_or_default();
            let count = count.min(rest.len());
            to.extend_from_slice(&rest[..count]);
            return Ok(count);
        };
        let piece = on_disk(move || {
            let mut piece = vec![0; count];
            let count = file.read_at(&mut piece, at)?;
            piece.truncate(count);
            io::Result::Ok(piece)
        })?;
        to.extend_from_slice(&piece);
        Ok(piece.len())
    }

    #[cfg(test)]
    fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }
}

/// The most bodies that are written to or read from files at the same time. More threads would make no disk faster, and each has a
/// stack and a heap of its own.
const BUSY: usize = 16;

static PERMITS: Semaphore = Semaphore::new(BUSY);

/// Runs `work`, the use of a file, on the blocking pool.
///
/// # Suspends
///
/// Until a permit is free, and until the work is done.
///
/// # Cancellation
///
/// Unwinds. Work that has begun goes on by itself, and its value is dropped.
pub(crate) fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let _permit = PERMITS.acquire();
    osier::unblock(work)
}

/// The most pieces that are written to a file at once.
const PIECES: usize = 4;

/// The first `count` bytes of `pieces`.
fn parts(pieces: &[Box<[u8]>], mut count: usize) -> impl Iterator<Item = &[u8]> {
    pieces.iter().map(move |piece| {
        let part = &piece[..piece.len().min(count)];
        count -= part.len();
        part
    })
}

/// The sequel of a piece.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// The end.
    Over,
    /// Bytes that have to arrive.
    Wait,
    /// Perhaps bytes that have arrived.
    ReadOn,
}

/// Reads what has arrived, as much as `piece` holds. Returns how much.
fn read_all_arrived(body: &mut dyn Arriving, piece: &mut [u8]) -> io::Result<(usize, Then)> {
    let mut filled = 0;
    while filled < piece.len() {
        match body.read_arrived(&mut piece[filled..])? {
            Some(0) => return Ok((filled, Then::Over)),
            Some(count) => filled += count,
            None => return Ok((filled, Then::Wait)),
        }
    }
    Ok((filled, Then::ReadOn))
}

/// The bytes that all gateways hold in memory: bodies that wait for a slow client or a slow backend.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Whether all gateways together may hold `count` bytes more.
#[cfg(feature = "proxy")]
pub(crate) fn has_room(count: usize, bound: usize) -> bool {
    HELD.load(Relaxed).saturating_add(count) <= bound
}

/// A part of [`HELD`], given back by its drop. It is charged to an account, too.
#[derive(Debug)]
pub(crate) struct Held(Charge);

/// A part for the body of a request.
impl Default for Held {
    fn default() -> Held {
        Held::of(Account::BODIES)
    }
}

impl Held {
    /// A part of nothing yet.
    pub(crate) fn of(account: Account) -> Held {
        Held(account.charge(0))
    }

    /// Adds `count` bytes unless all gateways together would hold more than `bound`. Returns whether it has.
    pub(crate) fn grow(&mut self, count: usize, bound: usize) -> bool {
        let more = |held: usize| held.checked_add(count).filter(|held| *held <= bound);
        let may_grow = HELD.fetch_update(Relaxed, Relaxed, more).is_ok();
        if may_grow {
            self.0.resize(self.0.bytes() + count);
        }
        may_grow
    }

    /// Adds `count` bytes that are in memory already, whatever all gateways hold.
    pub(crate) fn add(&mut self, count: usize) {
        HELD.fetch_add(count, Relaxed);
        self.0.resize(self.0.bytes() + count);
    }

    /// Gives back `count` bytes.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    pub(crate) fn give(&mut self, count: usize) {
        self.shrink_to(self.0.bytes().saturating_sub(count));
    }

    /// Gives back all but `count` bytes.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        let excess = self.0.bytes().saturating_sub(count);
        HELD.fetch_sub(excess, Relaxed);
        self.0.resize(self.0.bytes() - excess);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0.bytes(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Bytes of which `step` arrive at once.
    struct Bytes<'b> {
        rest: &'b [u8],
        step: usize,
        arrived: usize,
    }

    fn bytes(rest: &[u8], step: usize) -> Bytes<'_> {
        Bytes { rest, step, arrived: 0 }
    }

    impl Arriving for Bytes<'_> {
        fn announced(&self) -> Option<u64> {
            None
        }

        fn read_arrived(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
            let count = self.arrived.min(into.len()).min(self.rest.len());
            if count == 0 && !self.rest.is_empty() {
                return Ok(None);
            }
            into[..count].copy_from_slice(&self.rest[..count]);
            (self.rest, self.arrived) = (&self.rest[count..], self.arrived - count);
            Ok(Some(count))
        }

        fn arrives(&mut self) -> io::Result<()> {
            self.arrived = self.step;
            Ok(())
        }
    }

    /// The least bytes of a whole piece.
    const PIECE: usize = Size::K64.bytes();

    fn limits(folder: &Path) -> Limits {
        Limits {
            memory: 1000,
            shared: usize::MAX,
            files: u64::MAX,
            folder: folder.into(),
        }
    }

    fn content(spool: &Spool, step: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while spool.read_at(all.len() as u64, step, &mut all).unwrap() > 0 {}
        all
    }

    #[test]
    fn bodies_come_back_whole_whatever_their_length() {
        let folder = std::env::temp_dir().join(format!("osier-spool-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let limits = limits(&folder);
        osier::run(|| {
            for len in [
                0,
                1,
                999,
                1000,
                1001,
                1000 + PIECE,
                1001 + PIECE,
                300_000,
                9 * PIECE,
                9 * PIECE + 1,
            ] {
                let body: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                for step in [999, 100_000, usize::MAX] {
                    let spool = Spool::fill(&mut bytes(&body, step), &limits).unwrap();
                    assert_eq!((spool.len(), spool.is_in_memory()), (len as u64, len <= 1000), "{len}");
                    assert!(content(&spool, 70_000) == body, "{len}");
                    assert!(content(&spool, 9_999) == body, "{len}, again");
                }
            }
        });
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no file has a name");
        std::fs::remove_dir(&folder).unwrap();
        osier::run(|| match Spool::fill(&mut bytes(&[0; 2000], 2000), &limits) {
            Err(Failed::File(error)) => assert!(error.to_string().contains("osier-spool-"), "{error}"),
            other => panic!("{other:?}"),
        });
    }

    /// Runs `test` in a process of its own. The bounds are those of a process, and other tests would take a part.
    fn apart(name: &str, test: fn()) {
        if let Some(child) = testkit::in_a_child(&format!("body::spool::tests::{name}"), test) {
            let said = String::from_utf8_lossy(&child.stdout);
            let stderr = String::from_utf8_lossy(&child.stderr);
            assert!(said.contains("1 passed"), "{said}{stderr}");
        }
    }

    #[test]
    fn the_files_of_all_bodies_stay_within_their_bound_and_give_back_their_space() {
        apart(
            "the_files_of_all_bodies_stay_within_their_bound_and_give_back_their_space",
            fill_all_space,
        );
    }

    /// The files are closed on the pool, and give back their space then.
    fn wait_until_claimed(bytes: u64) {
        testkit::eventually("the space is free", || FILES.bytes() == bytes);
    }

    fn refusal(filled: Result<Spool, Failed>) -> (u64, Spilled) {
        match filled {
            Err(Failed::NoSpace { files, spilled }) => (files, spilled),
            other => panic!("{other:?}"),
        }
    }

    /// Bodies that would stay in memory if there were enough, without space for files.
    #[test]
    fn a_body_without_space_is_refused_for_the_bound_that_it_met_first() {
        apart(
            "a_body_without_space_is_refused_for_the_bound_that_it_met_first",
            refuse_for_memory,
        );
    }

    fn refuse_for_memory() {
        let limits = Limits {
            files: 0,
            shared: 1500,
            ..limits(&std::env::temp_dir())
        };
        let fill = |length: usize| Spool::fill(&mut bytes(&vec![7; length], 300), &limits);
        osier::run(|| {
            let first = fill(900).unwrap();
            assert_eq!(refusal(fill(900)), (0, Spilled::Shared(1500)));
            drop(first);
            // Twice the bytes of a piece are charged beside the bodies.
            let limit = 100 * PIECE;
            memory::set_limit(Some(limit));
            let high = Account::named("high").charge(limit * 9 / 10);
            assert_eq!(memory::pressure(), Pressure::High);
            let first = fill(900).unwrap();
            assert!(first.is_in_memory(), "a file is better, and not necessary");
            assert_eq!(refusal(fill(900)), (0, Spilled::Shared(1500)));
            drop(first);
            let critical = Account::named("critical").charge(limit);
            assert_eq!(memory::pressure(), Pressure::Critical);
            assert_eq!(refusal(fill(900)), (0, Spilled::Pressure));
            drop((high, critical));
            // A short body that memory has sent to a file is refused for memory.
            let limits = Limits {
                files: 500,
                ..limits.clone()
            };
            memory::set_limit(Some(1));
            let filled = Spool::fill(&mut bytes(&[7; 900], 300), &limits);
            assert_eq!(refusal(filled), (500, Spilled::Pressure));
        });
    }

    fn fill_all_space() {
        let limits = Limits {
            files: 10_000,
            ..limits(&std::env::temp_dir())
        };
        let fill = |length: usize| Spool::fill(&mut bytes(&vec![7; length], 999), &limits);
        osier::run(|| {
            let first = fill(6000).unwrap();
            assert!(!first.is_in_memory() && FILES.bytes() == 6000, "{}", FILES.bytes());
            assert!(fill(1000).unwrap().is_in_memory(), "a body in memory needs no space");
            let second = fill(4000).unwrap();
            assert_eq!(refusal(fill(1001)), (10_000, Spilled::Long));
            assert_eq!(FILES.bytes(), 10_000);
            drop(first);
            wait_until_claimed(4000);
            assert_eq!(refusal(fill(6001)), (10_000, Spilled::Long));
            // The space of the refused body is free again.
            wait_until_claimed(4000);
            drop(second);
            wait_until_claimed(0);
            let too_long = fill(10_001).unwrap_err();
            assert!(
                matches!(
                    too_long,
                    Failed::TooLong {
                        memory: 1000,
                        files: 10_000
                    }
                ),
                "{too_long:?}"
            );
            wait_until_claimed(0);
            assert_eq!(fill(10_000).unwrap().len(), 10_000);
            wait_until_claimed(0);
            let nowhere = Limits {
                folder: "/nowhere".into(),
                ..limits.clone()
            };
            assert!(matches!(
                Spool::fill(&mut bytes(&[7; 2000], 999), &nowhere),
                Err(Failed::File(_))
            ));
            assert_eq!(FILES.bytes(), 0);
        });
    }

    #[test]
    fn what_the_client_breaks_is_the_clients() {
        struct Broken;
        impl Arriving for Broken {
            fn announced(&self) -> Option<u64> {
                None
            }
            fn read_arrived(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
                Ok(None)
            }
            fn arrives(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        let limits = limits(&std::env::temp_dir());
        osier::run(|| assert!(matches!(Spool::fill(&mut Broken, &limits), Err(Failed::Client(_)))));
    }

    #[test]
    fn bodies_that_together_hold_too_much_go_to_files() {
        apart("bodies_that_together_hold_too_much_go_to_files", fill_all_memory);
    }

    fn fill_all_memory() {
        let limits = Limits {
            memory: 1_000_000,
            shared: 1_500_000,
            ..limits(&std::env::temp_dir())
        };
        osier::run(|| {
            let fill = || Spool::fill(&mut bytes(&[7; 1_000_000], 40_000), &limits).unwrap();
            let (first, second) = (fill(), fill());
            assert_eq!((first.is_in_memory(), second.is_in_memory()), (true, false));
            assert!(content(&first, 30_000) == [7; 1_000_000] && content(&second, 30_000) == [7; 1_000_000]);
            drop(first);
            assert!(fill().is_in_memory());
        });
    }
}
