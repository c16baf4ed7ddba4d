//! Reads and writes of a descriptor, each with a callback. If a poller can watch the descriptor, the call is made
//! when the descriptor is ready. Otherwise (a regular file) a thread of the pool for blocking work makes the call.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use osier_poll::Interest;
use rustix::fs::FileType;

use super::io_queue::Handle;
use super::request::{Awaiting, Request};
use super::{CancelHandle, Refused, Status, result};
use crate::io::ready_async;
use crate::wait::pool;

/// A buffer that a request uses and its callback gets back, however the request ends.
type Lent = Arc<Mutex<Vec<u8>>>;
type Call = Box<dyn FnMut(BorrowedFd<'_>, &mut [u8]) -> io::Result<usize> + Send>;

/// A pipe, a terminal, a socket or a regular file that is read and written with callbacks.
///
/// One read and one write may be outstanding at a time. A descriptor that can be waited for is read or written when
/// it is ready, on the thread that runs the callback. It should be non-blocking if others use it too; this type does
/// not change its flags. A regular file or a block device is read and written on the pool for blocking work.
///
/// A request takes its buffer by value, and the callback gets it back, also after a cancellation. The exception is a
/// cancelled request that the pool has begun: it keeps the buffer, and the callback gets an empty one. A read fills
/// the buffer from its beginning up to its length.
///
/// ```
/// use osier::callbacks::{File, IoQueue};
/// use std::sync::mpsc;
///
/// let queue = IoQueue::new(0)?;
/// let file = File::new(&queue, std::fs::File::open("/proc/self/comm")?)?;
/// let (sender, receiver) = mpsc::channel();
/// file.read(vec![0; 64], move |_status, read, buffer| sender.send((read, buffer)).unwrap())?;
/// let (read, buffer) = loop {
///     queue.iterate()?;
///     if let Ok(done) = receiver.try_recv() {
///         break done;
///     }
/// };
/// assert_eq!(buffer[read? - 1], b'\n');
/// # std::io::Result::Ok(())
/// ```
pub struct File<F> {
    fd: Arc<F>,
    /// Whether the pool for blocking work makes the calls.
    pooled: bool,
    reads: Arc<Request<()>>,
    writes: Arc<Request<()>>,
}

impl<F: AsFd + Send + Sync + 'static> File<F> {
    /// Makes a file of a descriptor, owned or shared. Its callbacks run on `queue`.
    ///
    /// # Errors
    ///
    /// The system's error for the descriptor.
    pub fn new(queue: &Handle, fd: F) -> io::Result<File<F>> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        Ok(File {
            fd: Arc::new(fd),
            pooled: matches!(
                kind,
                FileType::RegularFile | FileType::Directory | FileType::BlockDevice
            ),
            reads: Request::new(queue.shared()),
            writes: Request::new(queue.shared()),
        })
    }

    /// Reads once. The callback gets the number of bytes: 0 at the end of the file, or for an empty buffer.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the buffer, while another read is outstanding or once the queue is shut down.
    pub fn read<C>(&self, buffer: Vec<u8>, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let call: Call = Box::new(|fd, buffer| Ok(rustix::io::read(fd, buffer)?));
        self.begin(&self.reads, Interest::READABLE, buffer, call, callback)
    }

    /// Reads once at `offset`, as [`read`](File::read), and leaves the file's position alone. A file without
    /// positions gives an error.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](File::read).
    pub fn read_at<C>(&self, buffer: Vec<u8>, offset: u64, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let call: Call = Box::new(move |fd, buffer| Ok(rustix::io::pread(fd, buffer, offset)?));
        self.begin(&self.reads, Interest::READABLE, buffer, call, callback)
    }

    /// Writes once. The callback gets the number of bytes, which may be less than the buffer's length.
    ///
    /// # Errors
    ///
    /// [`Refused`], which holds the buffer, while another write is outstanding or once the queue is shut down.
    pub fn write<C>(&self, buffer: Vec<u8>, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let call: Call = Box::new(|fd, buffer| Ok(rustix::io::write(fd, buffer)?));
        self.begin(&self.writes, Interest::WRITABLE, buffer, call, callback)
    }

    /// Writes once at `offset`, as [`write`](File::write), and leaves the file's position alone. A file without
    /// positions gives an error.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](File::write).
    pub fn write_at<C>(&self, buffer: Vec<u8>, offset: u64, callback: C) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let call: Call = Box::new(move |fd, buffer| Ok(rustix::io::pwrite(fd, buffer, offset)?));
        self.begin(&self.writes, Interest::WRITABLE, buffer, call, callback)
    }

    /// Cancels the outstanding read and the outstanding write, if any.
    pub fn cancel(&self) {
        self.reads.cancel_any();
        self.writes.cancel_any();
    }

    fn begin<C>(
        &self,
        request: &Arc<Request<()>>,
        interest: Interest,
        buffer: Vec<u8>,
        call: Call,
        callback: C,
    ) -> Result<CancelHandle, Refused<Vec<u8>>>
    where
        C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
    {
        let fd = Arc::clone(&self.fd);
        match self.pooled {
            true => lend(request, buffer, callback, |lent| pooled(fd, lent, call)),
            false => lend(request, buffer, callback, |lent| when_ready(fd, interest, lent, call)),
        }
    }
}

impl<F> File<F> {
    /// The descriptor.
    pub fn fd(&self) -> &F {
        &self.fd
    }
}

impl<F: AsFd> fmt::Debug for File<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.fd.as_fd()).finish()
    }
}

async fn pooled<F: AsFd + Send + Sync + 'static>(fd: Arc<F>, lent: Lent, mut call: Call) -> io::Result<usize> {
    pool::try_spawn(move || {
        // Taken out: a request that is cancelled meanwhile does not wait for the lock.
        let mut buffer = std::mem::take(&mut *lock(&lent));
        let done = loop {
            match call(fd.as_fd().as_fd(), &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        *lock(&lent) = buffer;
        done
    })?
    .await
}

async fn when_ready<F: AsFd>(fd: Arc<F>, interest: Interest, lent: Lent, mut call: Call) -> io::Result<usize> {
    loop {
        // Waits before each call, not only after one that would have blocked: the descriptor may be a blocking one.
        ready_async(&fd, interest).await?;
        match call(fd.as_fd().as_fd(), &mut lock(&lent)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            done => return done,
        }
    }
}

pub(super) fn lock(lent: &Lent) -> std::sync::MutexGuard<'_, Vec<u8>> {
    lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes a request of a future that uses a buffer. The callback gets the buffer back.
pub(super) fn lend<Fut, C>(
    request: &Arc<Request<()>>,
    buffer: Vec<u8>,
    callback: C,
    future: impl FnOnce(Lent) -> Fut,
) -> Result<CancelHandle, Refused<Vec<u8>>>
where
    Fut: Future<Output = io::Result<usize>> + Send + 'static,
    C: FnOnce(Status, io::Result<usize>, Vec<u8>) + Send + 'static,
{
    let lent: Lent = Arc::new(Mutex::new(buffer));
    let back = Arc::clone(&lent);
    let work = Awaiting::new(future(Arc::clone(&lent)), move |status, output| {
        let buffer = std::mem::take(&mut *lock(&back));
        callback(status, result(status, output), buffer);
    });
    request.begin(work).map_err(|Refused { reason, object }| {
        drop(object);
        Refused {
            reason,
            object: std::mem::take(&mut *lock(&lent)),
        }
    })
}
