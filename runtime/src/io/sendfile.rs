//! `sendfile`: bytes of a file into a stream, without the worker waiting for the disk, unless the process has no descriptor left for the pool.
//!
//! sendfile(2) into a non-blocking socket still blocks on pages that are not in memory. So the bytes go in chunks.
//! Before each chunk, its ends and a few bytes between are read with `RWF_NOWAIT`. A thread of the pool for blocking
//! work fetches missing pages while the fiber is suspended. A page in the middle that is missing or was evicted
//! meanwhile makes the worker wait for that page; nothing worse happens.

use std::io;
#[cfg(target_os = "linux")]
use std::io::IoSliceMut;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[cfg(not(target_vendor = "apple"))]
use rustix::fs::Advice;
#[cfg(target_os = "linux")]
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::io::{ReadWriteFlags, preadv2};

use crate::net::stream::{FileSink, Stream, call};
use crate::wait;
use crate::wait::block_on::pooled;
use crate::wait::fd::Fd;
use crate::wait::simulated;
use crate::wait::socket::{Moved, Watched};
use crate::worker::context::{self, Caller, now};

/// The bytes of one call, which keeps the other fibers waiting for less than 100 us. (Measured for 1 MiB over loopback,
/// with 64 connections: 87 us of CPU in one call, 106 in four, because every call ends with a push to the receiver.)
const CHUNK_BYTES: u64 = 1 << 20;
/// The bytes between two probes.
const PROBE_BYTES: u64 = 512 << 10;
const PAGE_BYTES: u64 = 4096;
/// The time for which pages count as in memory after a probe. Calls that send little each then share the probes of one.
const TRUSTED: Duration = Duration::from_secs(1);

/// The work of several calls of [`sendfile_after`] or [`try_sendfile`] for one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileProgress {
    /// The bytes that the stream has taken, over all calls.
    pub sent: u64,
    found: Option<Found>,
}

/// The bytes of a file that were found in memory last, and when. They say nothing about the bytes in front of them or behind them.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    end: u64,
    when: Instant,
}

impl Found {
    /// The number of bytes from `at` on that count as in memory. `None` if the first one does not.
    fn bytes_from(self, at: u64) -> Option<u64> {
        let is_found = (self.start..self.end).contains(&at) && now().saturating_duration_since(self.when) < TRUSTED;
        is_found.then(|| self.end - at)
    }
}

/// Sends `len` bytes of `file`, from `offset` on, and returns how many it sent. It sends fewer only if the file ends
/// before.
///
/// The file's own position is neither used nor moved. Bytes that are not in memory are fetched without stopping the
/// worker, and the system is told that the file is read in order (`POSIX_FADV_SEQUENTIAL`).
///
/// ```
/// use osier::net::UnixStream;
/// use std::io::{Read, Write};
/// let path = std::env::temp_dir().join(format!("osier-sendfile-{}", std::process::id()));
/// std::fs::write(&path, "0123456789")?;
/// let file = std::fs::File::open(&path)?;
/// osier::run(|| {
///     let (ours, mut theirs) = UnixStream::pair()?;
///     assert_eq!(osier::io::sendfile(&file, 2, 5, &ours)?, 5);
///     assert_eq!(osier::io::sendfile(&file, 8, 5, &ours)?, 2);
///     drop(ours);
///     let mut text = String::new();
///     theirs.read_to_string(&mut text)?;
///     assert_eq!(text, "2345689");
///     std::io::Result::Ok(())
/// })?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// Until the stream takes the bytes, while they come from the disk, and to [give way](crate::fiber::give_way) after each mebibyte. Blocks
/// the thread when called on a plain one, and that of a worker while it reads a piece from the disk, if the process has no descriptor left
/// for the pool.
///
/// Not promised: that it never blocks the worker when somebody has made a duplicate of the stream blocking. sendfile(2)
/// has no flag against that. Neither that `SIGPIPE` is kept away from a program that does not ignore it, as Rust programs do.
///
/// # Cancellation
///
/// The error of a cancelled call. Some of the bytes may have been sent.
///
/// # Errors
///
/// `TimedOut` when the stream takes nothing for as long as its write timeout; `InvalidInput` for a file that cannot be
/// sent; the system's error for either. Some of the bytes may have been sent.
pub fn sendfile(file: impl AsFd, offset: u64, len: u64, out: &(impl FileSink + ?Sized)) -> io::Result<u64> {
    let mut progress = FileProgress::default();
    match sendfile_after(file, offset, len, out, || Ok(()), &mut progress) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(progress.sent),
    }
}

/// Sends as [`sendfile`] does, and adds the number of bytes to `progress`. It calls `before` once the first bytes are in
/// memory, right before they are sent. `before` writes the bytes that precede them on the stream, a head for example. A
/// receiver that is woken by the head alone sleeps again before the file comes, and waking it twice costs more than the
/// probes (measured for 1 MiB over loopback: 84 us of CPU against 76).
///
/// It is not called when `len` is 0.
///
/// # Errors
///
/// The errors of [`sendfile`], the error that `before` returns, and `UnexpectedEof` for a file that ends before. `progress` counts the
/// bytes before the error.
pub fn sendfile_after(
    file: impl AsFd,
    offset: u64,
    len: u64,
    out: &(impl FileSink + ?Sized),
    before: impl FnOnce() -> io::Result<()>,
    progress: &mut FileProgress,
) -> io::Result<()> {
    let part = Part {
        file: file.as_fd(),
        offset,
        len,
    };
    send_part(part, out.stream(), before, progress, |stream, call| stream.send(call))
}

/// Sends the bytes of a part of a file that the stream takes at once, and adds their number to `progress`. It calls
/// `before` as [`sendfile_after`] does. So it waits for the disk, but not for the peer. A connection that has only a
/// file left to send needs no stack while its peer is slow; see
/// [`AfterBurst::SleepUntilWritable`](crate::dormant::AfterBurst::SleepUntilWritable).
///
/// # Suspends
///
/// While bytes come from the disk, and to [give way](crate::fiber::give_way) after each mebibyte. Without a descriptor for the pool it blocks
/// the thread, as [`sendfile`].
///
/// # Errors
///
/// `WouldBlock` when the stream takes no more, `UnexpectedEof` for a file that ends before, and the errors of [`sendfile`].
/// `progress` counts the bytes before the error.
pub fn try_sendfile(
    file: impl AsFd,
    offset: u64,
    len: u64,
    out: &(impl FileSink + ?Sized),
    before: impl FnOnce() -> io::Result<()>,
    progress: &mut FileProgress,
) -> io::Result<()> {
    let part = Part {
        file: file.as_fd(),
        offset,
        len,
    };
    send_part(part, out.stream(), before, progress, |stream, call| {
        Watched::count_call()?;
        stream.watched.write_now(|fd| Ok(call(fd)?.value))
    })
}

/// A part of a file.
#[derive(Clone, Copy)]
struct Part<'f> {
    file: BorrowedFd<'f>,
    offset: u64,
    len: u64,
}

/// A call that sends.
type Call<'c> = &'c mut dyn FnMut(Fd<'_>) -> io::Result<Moved<usize>>;

/// Sends the part, and adds what it does to `progress`. `send` makes one call, and may wait until the socket takes bytes.
fn send_part(
    Part { file, offset, len }: Part<'_>,
    stream: &Stream,
    before: impl FnOnce() -> io::Result<()>,
    progress: &mut FileProgress,
    send: impl Fn(&Stream, Call<'_>) -> io::Result<usize>,
) -> io::Result<()> {
    let mut before = Some(before);
    // No file reaches beyond this.
    let len = len.min(u64::MAX - offset);
    let mut probe = !simulated::is_here() && context::caller(|caller| matches!(caller, Caller::Fiber(..)));
    let mut sent = 0;
    while sent < len {
        let at = offset + sent;
        let mut chunk = (len - sent).min(CHUNK_BYTES);
        if let Some(trusted) = progress.found.and_then(|found| found.bytes_from(at)) {
            chunk = chunk.min(trusted);
        } else if probe {
            match in_memory(file, at, chunk) {
                Ok(true) => {}
                Ok(false) => fetch(file, at, chunk)?,
                // The filesystem cannot tell: some filesystems cannot, among them those in memory.
                Err(_) => probe = false,
            }
            progress.found = Some(Found {
                start: at,
                end: at + chunk,
                when: now(),
            });
        }
        if let Some(before) = before.take() {
            before()?;
        }
        let end = sent + chunk;
        while sent < end {
            let room = usize::try_from(end - sent).unwrap_or(usize::MAX);
            let at = offset + sent;
            let count = send(stream, &mut |fd| send_piece(file, at, room, fd))?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            sent += count as u64;
            progress.sent += count as u64;
        }
        if sent < len {
            Watched::give_way()?;
        }
    }
    Ok(())
}

/// Whether a piece of the file can be read at once, as far as its ends and the probes between them tell.
fn in_memory(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
    let last = offset + len - 1;
    let mut at = offset;
    while byte_in_memory(file, at)? {
        if at / PAGE_BYTES == last / PAGE_BYTES {
            return Ok(true);
        }
        at = last.min(at + PROBE_BYTES);
    }
    Ok(false)
}

#[cfg(target_os = "linux")]
fn send_piece(file: BorrowedFd<'_>, mut offset: u64, room: usize, out: Fd<'_>) -> io::Result<Moved<usize>> {
    let Fd::System(out) = out else {
        return copy_piece(file, offset, room, out);
    };
    let count = rustix::fs::sendfile(out, file, Some(&mut offset), room)?;
    Ok(Moved::all(count))
}

/// The system has no sendfile(2), or none with the same meaning.
#[cfg(not(target_os = "linux"))]
fn send_piece(file: BorrowedFd<'_>, offset: u64, room: usize, out: Fd<'_>) -> io::Result<Moved<usize>> {
    copy_piece(file, offset, room, out)
}

/// Sends a piece by copying it.
fn copy_piece(file: BorrowedFd<'_>, offset: u64, room: usize, out: Fd<'_>) -> io::Result<Moved<usize>> {
    let mut buf = vec![0; room.min(64 << 10)];
    match rustix::io::pread(file, &mut buf, offset)? {
        0 => Ok(Moved::all(0)),
        count => call::write(out, &buf[..count], rustix::net::SendFlags::empty()),
    }
}

fn byte_in_memory(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match read_from_memory(file, at, &mut [0]) {
        // None: the file ends before it.
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads bytes that are in the page cache. Fails with `WouldBlock` if the first one is not, and with `Unsupported` where the filesystem
/// does not know.
#[cfg(target_os = "linux")]
pub(super) fn read_from_memory(file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    // preadv2(2) takes the largest number for the file's own position.
    if offset > i64::MAX as u64 {
        return Err(Errno::INVAL.into());
    }
    let read = preadv2(file, &mut [IoSliceMut::new(into)], offset, ReadWriteFlags::NOWAIT);
    read.map_err(|error| match error {
        Errno::OPNOTSUPP => io::ErrorKind::Unsupported.into(),
        error => error.into(),
    })
}

/// Reads nothing: only Linux can read without blocking.
#[cfg(not(target_os = "linux"))]
pub(super) fn read_from_memory(_: BorrowedFd<'_>, _: u64, _: &mut [u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Brings a piece of the file into memory, on another thread. Where the process has no descriptor left for that thread, it blocks this one: a
/// file that is open can still be served.
#[cold]
pub(super) fn fetch(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let file = match rustix::io::fcntl_dupfd_cloexec(file, 3) {
        Ok(file) => file,
        Err(Errno::MFILE | Errno::NFILE) => {
            read_from_disk(file, offset, len);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let mut fetching = pin!(pooled(move || read_from_disk(file.as_fd(), offset, len))?);
    Ok(wait::wait_for_disk(|cx| fetching.as_mut().poll(cx))?)
}

/// Reads a piece of the file in order, so that the kernel reads ahead in pages as large as it likes. After the advice `WILLNEED` it takes
/// memory for each 4 KiB alone. CPU time for 1 MiB, with a disk that is read ahead by 128 KiB and by 8 MiB:
///
/// | | 128 KiB | 8 MiB |
/// |---|---|---|
/// | advice | 205 us | 270 us |
/// | this, by copies | 240 us | 160 us |
/// | this | 80 us, 135 without the advice `SEQUENTIAL` | 28 us |
///
/// sendfile(2) to the client will report an error.
fn read_from_disk(file: BorrowedFd<'_>, offset: u64, len: u64) {
    // The kernel reads ahead twice as far. Short pieces are those of readers that may go anywhere.
    #[cfg(not(target_vendor = "apple"))]
    if len > PROBE_BYTES {
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Sequential);
    }
    #[cfg(target_os = "linux")]
    if read_to_nowhere(file, offset, len).is_ok() {
        return;
    }
    read_in_copies(file, offset, len);
}

fn read_in_copies(file: BorrowedFd<'_>, mut offset: u64, len: u64) {
    let (end, mut buf) = (offset + len, vec![0; len.min(64 << 10) as usize]);
    while offset < end {
        let room = buf.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
        let Ok(count @ 1..) = rustix::io::pread(file, &mut buf[..room], offset) else {
            return;
        };
        offset += count as u64;
    }
}

/// Reads a piece and copies nothing: `/dev/null` takes pages without a look at them.
///
/// # Errors
///
/// `Unsupported` without a `/dev/null`, and those of sendfile(2).
#[cfg(target_os = "linux")]
fn read_to_nowhere(file: BorrowedFd<'_>, mut offset: u64, len: u64) -> io::Result<()> {
    let nowhere = nowhere().ok_or(io::ErrorKind::Unsupported)?;
    let end = offset + len;
    while offset < end {
        let room = usize::try_from(end - offset).unwrap_or(usize::MAX);
        if rustix::fs::sendfile(nowhere, file, Some(&mut offset), room)? == 0 {
            break;
        }
    }
    Ok(())
}

/// `/dev/null`, opened once for the process. `None` where there is none, as in many a chroot, or something else of that name.
#[cfg(target_os = "linux")]
fn nowhere() -> Option<BorrowedFd<'static>> {
    static NOWHERE: OnceLock<OwnedFd> = OnceLock::new();
    /// The device, as the kernel's list of them has it: major 1, minor 3.
    const NULL: (u32, u32) = (1, 3);
    if let Some(nowhere) = NOWHERE.get() {
        return Some(nowhere.as_fd());
    }
    // A pipe without a reader would keep a blocking open(2) waiting.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/dev/null", flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&opened).ok()?;
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && device == NULL;
    is_null.then(|| NOWHERE.get_or_init(|| opened).as_fd())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_is_read_in_either_way_is_in_memory() {
        const LEN: u64 = 3 << 20;
        let path = std::env::temp_dir().join(format!("osier-cold-{}", std::process::id()));
        std::fs::write(&path, vec![1; LEN as usize]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let forget = || {
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            in_memory(file.as_fd(), 1, LEN - 1)
        };
        if !matches!(forget(), Ok(false)) {
            return println!("skipped: the filesystem of {} keeps files in memory", path.display());
        }
        read_to_nowhere(file.as_fd(), 1, LEN - 1).unwrap();
        assert!(in_memory(file.as_fd(), 1, LEN - 1).unwrap());
        assert!(!forget().unwrap());
        read_in_copies(file.as_fd(), 1, LEN - 1);
        assert!(in_memory(file.as_fd(), 1, LEN - 1).unwrap());
        // Neither loops where the file ends.
        read_to_nowhere(file.as_fd(), LEN - 1, 10).unwrap();
        read_in_copies(file.as_fd(), LEN, 10);
    }

    /// The process has all descriptors that it may open.
    #[test]
    fn an_open_file_is_sent_without_another_descriptor() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        use std::io::Read;

        let test = "io::sendfile::tests::an_open_file_is_sent_without_another_descriptor";
        let child = testkit::in_a_child(test, || {
            const LEN: usize = 64 << 10;
            let path = std::env::temp_dir().join(format!("osier-full-{}", std::process::id()));
            std::fs::write(&path, vec![1; LEN]).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            crate::run(|| {
                let (ours, mut theirs) = crate::net::UnixStream::pair().unwrap();
                let reader = crate::spawn(move || theirs.read_to_end(&mut Vec::new()));
                let mut limit = getrlimit(Resource::Nofile);
                limit.current = Some(4);
                setrlimit(Resource::Nofile, limit).unwrap();
                file.sync_all().unwrap();
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                if !matches!(in_memory(file.as_fd(), 0, LEN as u64), Ok(false)) {
                    println!("skipped: the filesystem of {} keeps files in memory", path.display());
                }
                assert_eq!(sendfile(&file, 0, LEN as u64, &ours).unwrap(), LEN as u64);
                drop(ours);
                assert_eq!(reader.join().unwrap().unwrap(), LEN);
            });
        });
        if let Some(child) = child {
            let said = String::from_utf8_lossy(&child.stdout);
            assert!(
                child.status.success(),
                "{said}{}",
                String::from_utf8_lossy(&child.stderr)
            );
            said.lines()
                .filter(|line| line.starts_with("skipped: "))
                .for_each(|line| println!("{line}"));
        }
    }

    /// The parts of a response to `Range: bytes=900-999,0-99` come in the client's order.
    #[test]
    fn each_part_of_a_file_is_looked_for_whatever_their_order() {
        let path = std::env::temp_dir().join(format!("osier-parts-{}", std::process::id()));
        std::fs::write(&path, [1; 1000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Its time stands still, so what was found stays so.
        let clock = crate::time::VirtualClock::new();
        let runtime = crate::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(|| {
            let (ours, _theirs) = crate::net::UnixStream::pair().unwrap();
            let mut progress = FileProgress::default();
            let mut found_for = |offset, len| {
                try_sendfile(&file, offset, len, &ours, || Ok(()), &mut progress).unwrap();
                let Found { start, end, .. } = progress.found.unwrap();
                (start, end)
            };
            assert_eq!(found_for(900, 100), (900, 1000));
            assert_eq!(found_for(0, 100), (0, 100), "in front of what was found");
            assert_eq!(found_for(20, 30), (0, 100), "inside");
            assert_eq!(found_for(90, 30), (100, 120), "the rest of it is behind");
            assert_eq!(found_for(120, 1), (120, 121));
        });
    }
}
