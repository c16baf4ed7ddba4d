//! `File`: one operation at a time on the pool for blocking work, with what it read or failed with kept in between.
//!
//! ```text
//!             poll_read: not in memory                     poll_write
//!   idle ─────────────────────────────▶ busy ◀──────────────────────────── idle      (returns Ready at once)
//!     ▲                                  │
//!     └─ ahead: bytes read ──────────────┴──────────── error, if it failed ──▶ told by the next call
//! ```
//!
//! A read first asks for what is in memory (`RWF_NOWAIT`), which costs one system call and no thread.
//!
//! # Protocol
//! `state` is under its lock, which nobody holds over a system call that may wait; `busy` means that a thread of the pool
//! uses the position of the file. It clears it and then wakes everybody who waited.

use std::future::{Future, poll_fn};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, fs};

use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};

use super::{Metadata, Operation, Permissions};
use crate::wait::{self, Stop};
use crate::worker::context::{self, Caller, hold};

/// One operation moves at most this many bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// A file; as [`std::fs::File`].
///
/// ```
/// use osier::fs::File;
/// use std::io::{Read, Seek, Write};
/// let path = std::env::temp_dir().join(format!("osier-file-{}", std::process::id()));
/// osier::run(|| {
///     let mut file = File::options().read(true).write(true).create(true).open(&path)?;
///     file.write_all(b"hello")?;
///     file.rewind()?;
///     let mut text = String::new();
///     file.read_to_string(&mut text)?;
///     assert_eq!(text, "hello");
///     osier::fs::remove_file(&path)
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// It is `Read`, `Write` and `Seek`, also by reference, and `futures_io`'s `AsyncRead`, `AsyncWrite` and `AsyncSeek`. Each
/// write is a visit to the pool: put small ones into a [`BufWriter`](std::io::BufWriter).
///
/// # Suspends
///
/// Reading: when the bytes are not in memory. Writing and the rest: always. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// A read that is cancelled or dropped loses nothing: what it has read is there for the next one. A blocking write that is
/// cancelled may have happened, or still will. `poll_write` copies the bytes and is ready at once; they are written behind it,
/// in order and also when the file is dropped. An error of that is told by the next call: flush before the drop, or it is
/// told to nobody.
///
/// Not promised: to whom of several users of one file at a time such an error is told.
pub struct File(Arc<Shared>);

struct Shared {
    file: fs::File,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: bool,
    /// Read from the file and not yet taken; the file's position is behind them.
    ahead: Vec<u8>,
    /// How many of those were taken.
    taken: usize,
    /// The last read met the end, which nobody was told.
    end: bool,
    error: Option<io::Error>,
    wakers: Vec<Waker>,
}

/// The place where the system calls are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Pool,
    /// This plain thread, which may block.
    Me,
}

fn by() -> By {
    context::caller(|caller| match caller {
        Caller::Thread => By::Me,
        _ => By::Pool,
    })
}

impl State {
    /// Puts the file's position back before what nobody took.
    fn rewind(&mut self, mut file: &fs::File) -> io::Result<()> {
        let unread = self.ahead.len() - self.taken;
        (self.ahead, self.taken, self.end) = (Vec::new(), 0, false);
        match unread {
            0 => Ok(()),
            // At most CHUNK_BYTES.
            unread => file.seek(SeekFrom::Current(-(unread as i64))).map(drop),
        }
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn poll_idle(&self, cx: &Context<'_>) -> Poll<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if state.busy {
            state.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(state)
    }

    /// As [`poll_idle`](Shared::poll_idle), and tells the error that an operation has left.
    fn poll_sound(&self, cx: &Context<'_>) -> Poll<io::Result<MutexGuard<'_, State>>> {
        let mut state = ready!(self.poll_idle(cx));
        Poll::Ready(match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state),
        })
    }

    /// Begins an operation; `work` leaves in the state what came of it.
    fn begin<T: Send + 'static>(
        self: &Arc<Shared>,
        mut state: MutexGuard<'_, State>,
        by: By,
        work: impl FnOnce(&fs::File) -> T + Send + 'static,
        outcome: impl FnOnce(&mut State, T) + Send + 'static,
    ) {
        state.busy = true;
        drop(state);
        let shared = Arc::clone(self);
        let work = move || {
            let done = work(&shared.file);
            let mut state = shared.lock();
            outcome(&mut state, done);
            state.busy = false;
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        };
        match by {
            By::Me => work(),
            By::Pool => {
                let hold = hold();
                let held = || {
                    work();
                    drop(hold);
                };
                blocking::unblock(held).detach();
            }
        }
    }

    fn poll_read(self: &Arc<Shared>, cx: &Context<'_>, by: By, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut state = ready!(self.poll_sound(cx))?;
            if state.taken < state.ahead.len() {
                let unread = &state.ahead[state.taken..];
                let count = unread.len().min(buf.len());
                buf[..count].copy_from_slice(&unread[..count]);
                state.taken += count;
                return Poll::Ready(Ok(count));
            }
            if std::mem::take(&mut state.end) || buf.is_empty() {
                return Poll::Ready(Ok(0));
            }
            // What cannot tell, or has nothing in memory, is read by one who may wait.
            if let Some(count) = read_from_memory(&self.file, buf) {
                return Poll::Ready(Ok(count));
            }
            let mut bytes = std::mem::take(&mut state.ahead);
            bytes.resize(buf.len().min(CHUNK_BYTES), 0);
            let read = move |mut file: &fs::File| {
                let read = retry(|| file.read(&mut bytes));
                read.map(|count| {
                    bytes.truncate(count);
                    bytes
                })
            };
            self.begin(state, by, read, |state, read| match read {
                Ok(bytes) => (state.end, state.ahead, state.taken) = (bytes.is_empty(), bytes, 0),
                Err(error) => (state.error, state.taken) = (Some(error), 0),
            });
        }
    }

    fn poll_write(self: &Arc<Shared>, cx: &Context<'_>, by: By, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = ready!(self.poll_sound(cx))?;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        state.rewind(&self.file)?;
        let bytes = buf[..buf.len().min(CHUNK_BYTES)].to_vec();
        let count = bytes.len();
        let write = move |mut file: &fs::File| file.write_all(&bytes);
        self.begin(state, by, write, |state, written| state.error = written.err());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sound(cx).map_ok(drop)
    }

    /// lseek(2) waits for nothing, so nobody else need do it.
    fn poll_seek(&self, cx: &Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        let mut state = ready!(self.poll_sound(cx))?;
        state.rewind(&self.file)?;
        Poll::Ready((&self.file).seek(to))
    }

    fn read(self: &Arc<Shared>, buf: &mut [u8]) -> io::Result<usize> {
        let by = by();
        wait::wait(None, None, |cx| self.poll_read(cx, by, buf))?
    }

    fn write(self: &Arc<Shared>, buf: &[u8]) -> io::Result<usize> {
        if context::caller(|caller| matches!(caller, Caller::Worker)) {
            // Not even begun.
            return Err(Stop::NotHere.into());
        }
        let by = by();
        let count = wait::wait(None, None, |cx| self.poll_write(cx, by, buf))??;
        self.flush()?;
        Ok(count)
    }

    fn flush(&self) -> io::Result<()> {
        wait::wait(None, None, |cx| self.poll_flush(cx))?
    }

    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        wait::wait(None, None, |cx| self.poll_seek(cx, to))?
    }
}

/// Reads what is in memory, at the file's position.
#[cfg(target_os = "linux")]
fn read_from_memory(file: &fs::File, buf: &mut [u8]) -> Option<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};
    preadv2(file, &mut [io::IoSliceMut::new(buf)], u64::MAX, ReadWriteFlags::NOWAIT).ok()
}

/// No other system can say what that is.
#[cfg(not(target_os = "linux"))]
fn read_from_memory(_: &fs::File, _: &mut [u8]) -> Option<usize> {
    None
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A method of a file in both faces: what was written before is in the file when it begins.
macro_rules! methods {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident($($value:ident: $type:ty)?) -> $output:ty = |$file:ident| $call:expr;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Suspends
        ///
        /// Until the system has done it. Blocks the thread when called on a plain one.
        ///
        /// # Errors
        ///
        /// The system's error for it, or of what was written before.
        pub fn $name(&self $(, $value: $type)?) -> io::Result<$output> {
            if context::caller(|caller| matches!(caller, Caller::Worker)) {
                // Not even begun.
                return Err(Stop::NotHere.into());
            }
            let mut doing = pin!(self.$name_async($($value)?));
            wait::wait(None, None, |cx| doing.as_mut().poll(cx))?
        }

        #[doc = concat!("[`", stringify!($name), "`](File::", stringify!($name), ") as a future, which borrows nothing.")]
        pub fn $name_async(&self $(, $value: $type)?) -> impl Future<Output = io::Result<$output>> + Send + use<> {
            let shared = Arc::clone(&self.0);
            async move {
                poll_fn(|cx| shared.poll_flush(cx)).await?;
                Operation::new(move || {
                    let $file = &shared.file;
                    $call
                })
                .await
            }
        }
    )*};
}

impl File {
    fn new(file: fs::File) -> File {
        File(Arc::new(Shared {
            file,
            state: Mutex::default(),
        }))
    }

    /// Opens a file to read it.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `NotFound`, `PermissionDenied` and what else the system says.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        File::open_async(path).block()
    }

    /// [`open`](File::open) as a future, which borrows nothing.
    pub fn open_async(path: impl AsRef<Path>) -> Operation<File> {
        File::options().read(true).open_async(path)
    }

    /// Makes a file to write it, in place of what was in one of this name.
    ///
    /// # Suspends
    ///
    /// Until it is there. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](File::open).
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        File::create_async(path).block()
    }

    /// [`create`](File::create) as a future, which borrows nothing.
    pub fn create_async(path: impl AsRef<Path>) -> Operation<File> {
        File::options().write(true).create(true).truncate(true).open_async(path)
    }

    /// How a file is to be opened.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    methods! {
        /// Has the disk store all of the file, and what the system knows of it.
        sync_all, sync_all_async() -> () = |file| file.sync_all();

        /// Has the disk store all of the file.
        sync_data, sync_data_async() -> () = |file| file.sync_data();

        /// Cuts the file off at `bytes`, or lengthens it by zeros.
        set_len, set_len_async(bytes: u64) -> () = |file| file.set_len(bytes);

        /// The metadata of the file.
        metadata, metadata_async() -> Metadata = |file| file.metadata();

        /// Changes who may do what with the file.
        set_permissions, set_permissions_async(permissions: Permissions) -> () = |file| file.set_permissions(permissions);
    }

    /// Another value for the same file, with the same position.
    ///
    /// # Suspends
    ///
    /// Until what was written before is in the file. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn try_clone(&self) -> io::Result<File> {
        self.in_order(|file| file.try_clone().map(File::new))
    }

    /// std's file.
    ///
    /// # Suspends
    ///
    /// Until what was written before is in it. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The system's error for what was written before.
    pub fn into_std(self) -> io::Result<fs::File> {
        self.in_order(|_| Ok(()))?;
        match Arc::try_unwrap(self.0) {
            Ok(shared) => Ok(shared.file),
            // A thread of the pool has yet to let go of it.
            Err(shared) => shared.file.try_clone(),
        }
    }

    /// Calls with nothing written behind and nothing read ahead.
    fn in_order<T>(&self, call: impl Fn(&fs::File) -> io::Result<T>) -> io::Result<T> {
        let shared = &*self.0;
        wait::wait(None, None, |cx| {
            let mut state = ready!(shared.poll_sound(cx))?;
            state.rewind(&shared.file)?;
            Poll::Ready(call(&shared.file))
        })?
    }
}

/// Code that has the descriptor meets a position that may be ahead of what was read from this value.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl From<fs::File> for File {
    fn from(file: fs::File) -> File {
        File::new(file)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.file, f)
    }
}

macro_rules! std_traits {
    ($($type:ty),*) => {$(
        impl Read for $type {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.read(buf)
            }
        }
        impl Write for $type {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.0.write(buf)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.0.flush()
            }
        }
        impl Seek for $type {
            fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
                self.0.seek(to)
            }
        }
    )*};
}

std_traits!(File, &File);

macro_rules! future_traits {
    ($($type:ty),*) => {$(
        impl AsyncRead for $type {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
                self.0.poll_read(cx, By::Pool, buf)
            }
        }
        /// `poll_write` is ready before the bytes are written; `poll_flush` and `poll_close` wait for that and tell its error.
        impl AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                self.0.poll_write(cx, By::Pool, buf)
            }
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.0.poll_flush(cx)
            }
            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.0.poll_flush(cx)
            }
        }
        impl AsyncSeek for $type {
            fn poll_seek(self: Pin<&mut Self>, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
                self.0.poll_seek(cx, to)
            }
        }
    )*};
}

future_traits!(File, &File);

/// How a file is to be opened; as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions(fs::OpenOptions);

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: $type) -> &mut OpenOptions {
            self.0.$name($name);
            self
        }
    )*};
}

impl OpenOptions {
    /// Options that open for nothing yet.
    #[expect(clippy::new_without_default, reason = "as std's")]
    pub fn new() -> OpenOptions {
        OpenOptions(fs::OpenOptions::new())
    }

    options! {
        /// Opens the file for reading.
        read: bool,
        /// Opens the file for writing.
        write: bool,
        /// Each write goes to the end.
        append: bool,
        /// Empties the file.
        truncate: bool,
        /// It is made if it is not there.
        create: bool,
        /// It is made, and must not be there.
        create_new: bool,
        /// The permission bits of a file that is made, of which the process's mask takes some away.
        mode: u32,
    }

    /// Opens a file.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `NotFound`, `AlreadyExists`, `PermissionDenied`, `InvalidInput` for options that contradict each other, and what else
    /// the system says.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_async(path).block()
    }

    /// [`open`](OpenOptions::open) as a future, which borrows nothing.
    pub fn open_async(&self, path: impl AsRef<Path>) -> Operation<File> {
        let (options, path) = (self.0.clone(), path.as_ref().to_owned());
        Operation::new(move || options.open(path).map(File::new))
    }
}
