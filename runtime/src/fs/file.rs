//! `File`: a file with one operation at a time on the pool for blocking work. It keeps the bytes or the error of the
//! last operation.
//!
//! ```text
//!             poll_read: not in memory                     poll_write
//!   idle ─────────────────────────────▶ busy ◀──────────────────────────── idle      (returns Ready at once)
//!     ▲                                  │
//!     └─ ahead: bytes read ──────────────┴──────────── error, if it failed ──▶ returned by the next call
//! ```
//!
//! A read first tries the bytes that are in memory (`RWF_NOWAIT`), which costs one system call and no thread. A blocking write makes one
//! write(2), and its own result goes to its caller.
//!
//! # Protocol
//! A lock guards `state`. Nobody holds it during a system call that may wait. `busy` means that a thread of the pool
//! uses the position of the file. That thread clears `busy` and then wakes all waiters. The kernel locks the position during a read or a
//! write, and a call that needs it meanwhile blocks its thread. So the clones of a file share one state. A pipe or a terminal has no
//! position: its reads have a flag of their own, `reading`, because their bytes may never come.

use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use async_task::Task;
use futures_io::{AsyncRead, AsyncSeek, AsyncWrite};

use super::options::How;
use super::simulated::{self as disks, Opened};
use super::{Metadata, Operation, Permissions};
use crate::wait::driver::wake_each;
use crate::wait::{self, Stop, budget, pool, simulated};
use crate::worker::context::{self, Caller, hold};

/// The most bytes that one operation moves.
const CHUNK_BYTES: usize = 256 << 10;

/// A file, as [`std::fs::File`].
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
/// It implements `Read`, `Write` and `Seek`, also by reference, and `futures_io`'s `AsyncRead`, `AsyncWrite` and
/// `AsyncSeek`. Each write is a visit to the pool, so small writes belong into a [`BufWriter`](std::io::BufWriter).
///
/// A pipe, a terminal or a serial line better goes into an [`io::Async`](crate::io::Async), which waits without a thread: open it with
/// `O_NONBLOCK` among the [`custom_flags`](OpenOptions::custom_flags), convert it by [`into_std`](File::into_std). As a `File` it works
/// too, but each read that waits takes one thread of the pool until its bytes come, even if the read was cancelled.
///
/// # Suspends
///
/// A read suspends when the bytes are not in memory. A seek suspends while another call uses the position of this file or of its clones.
/// All other calls always do. Blocks the thread when called on a plain one, and while a duplicate that is not a clone of this value
/// (std's, or that of a child) is in a call that waits for the disk.
///
/// # Cancellation
///
/// A read that is cancelled or dropped loses nothing: the next read gets the bytes. A blocking write that is
/// cancelled may have happened, or may still happen. `poll_write` copies the bytes and returns at once. The pool
/// writes them later, in order, also if the file is dropped. The next call returns an error of that write. A caller
/// that drops the file without a flush never learns of it.
///
/// It is not promised which of several concurrent users of a file gets such an error.
pub struct File(Arc<Inner>);

struct Inner {
    file: fs::File,
    /// Not set for a pipe or a terminal.
    has_position: bool,
    /// Set for a file of a simulated disk. `file` holds its bytes then.
    simulated: Option<Opened>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: bool,
    /// A read of a file without a position is under way. Other reads wait for it, and nothing else does.
    reading: bool,
    /// Bytes read ahead for the next read. The file's position is behind them.
    ahead: Vec<u8>,
    /// The number of those bytes that were taken.
    taken: usize,
    /// The last read met the end of the file, and no caller has learnt of it yet.
    end: bool,
    error: Option<io::Error>,
    wakers: Vec<Waker>,
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Other,
}

/// The thread that makes the system calls.
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

/// The same for a call that always waits, and so fails where nothing may wait, before it begins.
fn by_of_waiting() -> io::Result<By> {
    context::caller(|caller| match caller {
        Caller::Fiber(..) => Ok(By::Pool),
        Caller::Thread => Ok(By::Me),
        Caller::Worker => Err(Stop::NotHere.into()),
    })
}

impl State {
    /// Moves the file's position back before the bytes that were not taken. They stay if that fails.
    fn rewind(&mut self, mut file: &fs::File) -> io::Result<()> {
        let unread = self.ahead.len() - self.taken;
        if unread > 0 {
            // At most CHUNK_BYTES.
            file.seek(SeekFrom::Current(-(unread as i64)))?;
        }
        (self.ahead, self.taken, self.end) = (Vec::new(), 0, false);
        Ok(())
    }

    /// Leaves an error to the next call.
    fn leave(&mut self, error: io::Error) {
        self.error = Some(error);
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The flag that is set while an operation of this kind is under way.
    fn flag<'a>(&self, state: &'a mut State, kind: Kind) -> &'a mut bool {
        match kind {
            Kind::Read if !self.has_position => &mut state.reading,
            _ => &mut state.busy,
        }
    }

    fn poll_idle(&self, cx: &Context<'_>, kind: Kind) -> Poll<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if *self.flag(&mut state, kind) {
            state.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(state)
    }

    /// Waits as [`poll_idle`](Inner::poll_idle) does, and returns the error that an earlier operation has left.
    fn poll_sound(&self, cx: &Context<'_>, kind: Kind) -> Poll<io::Result<MutexGuard<'_, State>>> {
        let mut state = ready!(self.poll_idle(cx, kind));
        Poll::Ready(match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state),
        })
    }

    /// Waits as [`poll_sound`](Inner::poll_sound) does, and moves the position back before the bytes that were read ahead. Without a
    /// position they are still to be read.
    fn poll_in_place(&self, cx: &Context<'_>) -> Poll<io::Result<MutexGuard<'_, State>>> {
        let mut state = ready!(self.poll_sound(cx, Kind::Other))?;
        if self.has_position {
            state.rewind(&self.file)?;
        }
        Poll::Ready(Ok(state))
    }

    /// Begins an operation. `work` runs it, and its result is stored in the state. An error says that the system starts no thread
    /// for it; then it has not begun.
    fn begin<T: Send + 'static>(
        self: &Arc<Inner>,
        mut state: MutexGuard<'_, State>,
        by: By,
        kind: Kind,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
        outcome: impl FnOnce(&mut State, T) + Send + 'static,
    ) -> io::Result<()> {
        *self.flag(&mut state, kind) = true;
        drop(state);
        let shared = Arc::clone(self);
        let work = move || {
            let done = work(&shared);
            let mut state = shared.lock();
            outcome(&mut state, done);
            shared.end(state, kind);
        };
        match by {
            By::Me => {
                work();
                Ok(())
            }
            By::Pool => {
                let hold = hold();
                let held = || {
                    work();
                    drop(hold);
                };
                let begun = pool::try_spawn(held).map(Task::detach);
                begun.inspect_err(|_| self.end(self.lock(), kind))
            }
        }
    }

    /// Ends an operation: others may begin theirs.
    fn end(&self, mut state: MutexGuard<'_, State>, kind: Kind) {
        *self.flag(&mut state, kind) = false;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wake_each(wakers);
    }

    fn poll_read(self: &Arc<Inner>, cx: &Context<'_>, by: By, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut state = ready!(self.poll_sound(cx, Kind::Read))?;
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
            let most = buf.len().min(CHUNK_BYTES);
            // If the bytes are not in memory, or the system cannot say, a thread that may block reads them.
            // The page cache does not follow from the seed of a simulation.
            if self.simulated.is_none()
                && !simulated::is_here()
                && let Some(count) = read_from_memory(&self.file, &mut buf[..most])
            {
                return Poll::Ready(Ok(count));
            }
            state.taken = 0;
            let mut bytes = std::mem::take(&mut state.ahead);
            bytes.resize(most, 0);
            let read = move |inner: &Inner| {
                inner.simulated.as_ref().map_or(Ok(()), Opened::reads)?;
                let read = retry(|| (&inner.file).read(&mut bytes));
                read.map(|count| {
                    bytes.truncate(count);
                    bytes
                })
            };
            self.begin(state, by, Kind::Read, read, |state, read| match read {
                Ok(bytes) => (state.end, state.ahead) = (bytes.is_empty(), bytes),
                Err(error) => state.leave(error),
            })?;
        }
    }

    /// Takes a copy of the bytes and promises to write all of them.
    fn poll_write(self: &Arc<Inner>, cx: &Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return self.poll_flush(cx).map_ok(|()| 0);
        }
        let state = ready!(self.poll_in_place(cx))?;
        let bytes = first_bytes(buf);
        let count = bytes.len();
        let write = move |inner: &Inner| inner.write_all(&bytes);
        self.begin(state, By::Pool, Kind::Other, write, |state, written| {
            if let Err(error) = written {
                state.leave(error);
            }
        })?;
        Poll::Ready(Ok(count))
    }

    /// Makes one write(2). The file has the bytes that are counted, also if the next write fails: a caller that tries again repeats none.
    fn write(self: &Arc<Inner>, buf: &[u8]) -> io::Result<usize> {
        let by = by_of_waiting()?;
        if buf.is_empty() {
            return self.flush().map(|()| 0);
        }
        let result = Arc::new(Mutex::new(None));
        wait::wait_for_disk(|cx| {
            let state = ready!(self.poll_in_place(cx))?;
            let (bytes, result) = (first_bytes(buf), Arc::downgrade(&result));
            let write = move |inner: &Inner| inner.write_once(&bytes);
            Poll::Ready(self.begin(state, by, Kind::Other, write, move |state, written| {
                match (result.upgrade(), written) {
                    (Some(result), written) => *lock(&result) = Some(written),
                    (None, Err(error)) => state.leave(error),
                    (None, Ok(_)) => {}
                }
            }))
        })??;
        wait::wait_for_disk(|cx| {
            // The result is set while the state is locked, before the waiters are woken.
            let mut state = self.lock();
            match lock(&result).take() {
                Some(written) => Poll::Ready(written),
                None => {
                    state.wait(cx);
                    Poll::Pending
                }
            }
        })?
    }

    fn write_once(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.simulated {
            None => retry(|| (&self.file).write(bytes)),
            Some(opened) => opened.write(&self.file, bytes).map(|()| bytes.len()),
        }
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.simulated {
            None => (&self.file).write_all(bytes),
            Some(opened) => opened.write(&self.file, bytes),
        }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        match &self.simulated {
            None => self.file.set_len(bytes),
            Some(opened) => opened.set_len(&self.file, bytes),
        }
    }

    fn sync(&self, sync: impl FnOnce(&fs::File) -> io::Result<()>) -> io::Result<()> {
        match &self.simulated {
            None => sync(&self.file),
            Some(opened) => opened.sync(),
        }
    }

    fn poll_flush(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sound(cx, Kind::Other).map_ok(drop)
    }

    /// Makes the call on this thread: lseek(2) waits for nothing but other users of the position.
    fn poll_seek(&self, cx: &Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        let mut state = ready!(self.poll_sound(cx, Kind::Other))?;
        state.rewind(&self.file)?;
        Poll::Ready((&self.file).seek(to))
    }

    fn read(self: &Arc<Inner>, buf: &mut [u8]) -> io::Result<usize> {
        let by = by();
        wait::wait_for_disk(|cx| self.poll_read(cx, by, buf))?
    }

    fn flush(&self) -> io::Result<()> {
        wait::wait_for_disk(|cx| self.poll_flush(cx))?
    }

    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        wait::wait_for_disk(|cx| self.poll_seek(cx, to))?
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A copy of the bytes that one operation writes.
fn first_bytes(buf: &[u8]) -> Vec<u8> {
    buf[..buf.len().min(CHUNK_BYTES)].to_vec()
}

/// Reads the bytes that are in memory, at the file's position.
#[cfg(target_os = "linux")]
fn read_from_memory(file: &fs::File, buf: &mut [u8]) -> Option<usize> {
    use rustix::io::{ReadWriteFlags, preadv2};
    preadv2(file, &mut [io::IoSliceMut::new(buf)], u64::MAX, ReadWriteFlags::NOWAIT).ok()
}

/// Reads nothing: only Linux can read without blocking.
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

/// A method of a file, blocking and as a future. Earlier writes are in the file when it begins.
macro_rules! methods {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident($($value:ident: $type:ty)?) -> $output:ty = $before:ident, |$inner:ident| $call:expr;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Suspends
        ///
        /// Until the system returns. Blocks the thread when called on a plain one.
        ///
        /// # Errors
        ///
        /// The system's error for this call, or for an earlier write.
        pub fn $name(&self $(, $value: $type)?) -> io::Result<$output> {
            match by_of_waiting()? {
                By::Pool => {
                    let mut doing = pin!(self.$name_async($($value)?));
                    wait::wait_for_disk(|cx| doing.as_mut().poll(cx))?
                }
                By::Me => {
                    wait::wait_for_disk(|cx| self.0.$before(cx).map_ok(drop))??;
                    let $inner = &*self.0;
                    $call
                }
            }
        }

        #[doc = concat!("[`", stringify!($name), "`](File::", stringify!($name), ") as a future, which borrows nothing.")]
        ///
        /// # Errors
        ///
        #[doc = concat!("Same as [`", stringify!($name), "`](File::", stringify!($name), ").")]
        pub fn $name_async(&self $(, $value: $type)?) -> impl Future<Output = io::Result<$output>> + Send + use<> {
            let shared = Arc::clone(&self.0);
            async move {
                poll_fn(|cx| shared.$before(cx).map_ok(drop)).await?;
                Operation::new(move || {
                    let $inner = &*shared;
                    $call
                })
                .await
            }
        }
    )*};
}

impl File {
    fn new(mut file: fs::File, simulated: Option<Opened>) -> File {
        let position = file.stream_position();
        File(Arc::new(Inner {
            has_position: !position.is_err_and(|error| error.kind() == io::ErrorKind::NotSeekable),
            file,
            simulated,
            state: Mutex::default(),
        }))
    }

    /// Opens a file for reading.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `NotFound`, `PermissionDenied` and other errors of the system.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        File::open_async(path).block()
    }

    /// [`open`](File::open) as a future, which borrows nothing.
    pub fn open_async(path: impl AsRef<Path>) -> Operation<File> {
        File::options().read(true).open_async(path)
    }

    /// Creates a file for writing. Empties a file that exists.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
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

    /// Creates a file for reading and writing. Fails if there is one already.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`; the errors of [`open`](File::open).
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        File::create_new_async(path).block()
    }

    /// [`create_new`](File::create_new) as a future, which borrows nothing.
    pub fn create_new_async(path: impl AsRef<Path>) -> Operation<File> {
        File::options().read(true).write(true).create_new(true).open_async(path)
    }

    /// Options that say how to open a file.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    methods! {
        /// Makes the disk store the content and the metadata of the file.
        sync_all, sync_all_async() -> () = poll_flush, |inner| inner.sync(fs::File::sync_all);

        /// Makes the disk store the content of the file.
        sync_data, sync_data_async() -> () = poll_flush, |inner| inner.sync(fs::File::sync_data);

        /// Truncates the file to `bytes`, or extends it with zeros.
        set_len, set_len_async(bytes: u64) -> () = poll_in_place, |inner| inner.set_len(bytes);

        /// Reads the metadata of the file.
        metadata, metadata_async() -> Metadata = poll_flush, |inner| inner.file.metadata();

        /// Changes the permissions of the file.
        set_permissions, set_permissions_async(permissions: Permissions) -> () = poll_flush, |inner| inner.file.set_permissions(permissions);
    }

    /// Another value for the same file, with the same position. Both share one descriptor, and the bytes of a cancelled read.
    ///
    /// # Errors
    ///
    /// None.
    pub fn try_clone(&self) -> io::Result<File> {
        Ok(File(Arc::clone(&self.0)))
    }

    /// Converts to std's file. If there is a clone, that keeps the descriptor, and this is a duplicate.
    ///
    /// # Suspends
    ///
    /// Until earlier writes are in it, and until a cancelled read has its bytes. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// The system's error for an earlier write, or for too many open files. `NotSeekable` if a cancelled read has left bytes of a pipe or
    /// a terminal.
    pub fn into_std(self) -> io::Result<fs::File> {
        let shared = self.0;
        wait::wait_for_disk(|cx| {
            drop(ready!(shared.poll_idle(cx, Kind::Read)));
            let mut state = ready!(shared.poll_sound(cx, Kind::Other))?;
            Poll::Ready(state.rewind(&shared.file))
        })??;
        match Arc::try_unwrap(shared) {
            Ok(shared) => Ok(shared.file),
            // A clone or a thread of the pool still holds a reference.
            Err(shared) => shared.file.try_clone(),
        }
    }
}

/// The descriptor's position may be ahead of the bytes that were read from this value.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl From<fs::File> for File {
    fn from(file: fs::File) -> File {
        File::new(file, None)
    }
}

osier_queue::impl_debug!(File, self => self.0.file);

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
                budget::poll(cx, |cx| self.0.poll_read(cx, By::Pool, buf))
            }
        }
        /// `poll_write` returns before the bytes are written. `poll_flush` and `poll_close` wait for the write and
        /// return its error.
        impl AsyncWrite for $type {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                budget::poll(cx, |cx| self.0.poll_write(cx, buf))
            }
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                budget::poll(cx, |cx| self.0.poll_flush(cx))
            }
            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                budget::poll(cx, |cx| self.0.poll_flush(cx))
            }
        }
        impl AsyncSeek for $type {
            fn poll_seek(self: Pin<&mut Self>, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
                budget::poll(cx, |cx| self.0.poll_seek(cx, to))
            }
        }
    )*};
}

future_traits!(File, &File);

/// Options that say how to open a file, as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions(How);

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: $type) -> &mut OpenOptions {
            self.0.$name = $name;
            self
        }
    )*};
}

impl OpenOptions {
    /// Makes options with nothing set. At least reading or writing must be set.
    #[expect(clippy::new_without_default, reason = "as std's")]
    pub fn new() -> OpenOptions {
        OpenOptions(How::default())
    }

    options! {
        /// Sets whether to open for reading.
        read: bool,
        /// Sets whether to open for writing.
        write: bool,
        /// Sets whether each write appends to the end.
        append: bool,
        /// Sets whether to empty the file.
        truncate: bool,
        /// Sets whether to create the file if it does not exist.
        create: bool,
        /// Sets whether to create the file, and to fail if it exists.
        create_new: bool,
        /// Sets the permission bits of a file that is created. The process's umask clears some of them.
        mode: u32,
        /// Sets further flags of open(2), such as `O_NONBLOCK`, `O_DIRECT` or `O_NOFOLLOW`. The bits of the access mode are ignored, as
        /// std does, and so are all flags on a simulated disk.
        custom_flags: i32,
    }

    /// Opens a file.
    ///
    /// # Suspends
    ///
    /// Until it is open. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `NotFound`, `AlreadyExists`, `PermissionDenied`, `InvalidInput` for options that contradict each other, and
    /// other errors of the system.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_async(path).block()
    }

    /// [`open`](OpenOptions::open) as a future, which borrows nothing.
    pub fn open_async(&self, path: impl AsRef<Path>) -> Operation<File> {
        let (how, path) = (self.0.clone(), path.as_ref().to_owned());
        let disk = disks::disk();
        Operation::new(move || match disk {
            None => how.open(&path).map(File::from),
            Some(disk) => disk
                .open(&path, &how)
                .map(|(file, opened)| File::new(file, Some(opened))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    /// Notes that it was woken, and then panics if the second field says so.
    struct Woken(AtomicBool, bool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
            if self.1 {
                resume_unwind(Box::new("a waker's own"));
            }
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_other_call_its_wake_up() {
        let file = File::from(fs::File::open("/dev/null").unwrap());
        file.0.lock().busy = true;
        let callers = [true, false].map(|panics| Arc::new(Woken(AtomicBool::new(false), panics)));
        for caller in &callers {
            let waker = Waker::from(Arc::clone(caller));
            assert!(file.0.poll_flush(&Context::from_waker(&waker)).is_pending());
        }
        let _ = catch_unwind(AssertUnwindSafe(|| file.0.end(file.0.lock(), Kind::Other)));
        assert!(callers.iter().all(|caller| caller.0.load(Ordering::Relaxed)));
    }
}
