//! `read_at`: bytes of a file into memory, without the worker waiting for the disk, unless the process has no descriptor left for the pool.

use std::io;
use std::os::fd::AsFd;

use super::sendfile::{fetch, read_from_memory};
use crate::wait::socket::Watched;
use crate::worker::context::{self, Caller};

/// The most bytes that one call reads on a fiber: the others wait while they are copied.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads bytes of `file` from `offset` on, and returns how many: fewer than `into` has room for if others are not in memory, at most
/// 256 KiB on a fiber, and 0 at the end of the file. The file's own position is neither used nor moved.
///
/// ```
/// let path = std::env::temp_dir().join(format!("osier-read-at-{}", std::process::id()));
/// std::fs::write(&path, "0123456789")?;
/// let file = std::fs::File::open(&path)?;
/// osier::run(|| {
///     let mut bytes = [0; 4];
///     assert_eq!(osier::io::read_at(&file, 3, &mut bytes)?, 4);
///     assert_eq!(&bytes, b"3456");
///     assert_eq!(osier::io::read_at(&file, 10, &mut bytes)?, 0);
///     std::io::Result::Ok(())
/// })?;
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(())
/// ```
///
/// # Suspends
///
/// While the first bytes come from the disk. Blocks the thread when called on a plain one, and if the process has no descriptor left for
/// the pool.
///
/// # Cancellation
///
/// The error of a cancelled call.
///
/// # Errors
///
/// The system's error.
pub fn read_at(file: impl AsFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let file = file.as_fd();
    let is_fiber = context::caller(|caller| matches!(caller, Caller::Fiber(..)));
    let most = match is_fiber {
        true => into.len().min(CHUNK_BYTES),
        false => into.len(),
    };
    if most < into.len() {
        // It is one of many.
        Watched::count_call()?;
    }
    let into = &mut into[..most];
    if is_fiber && !into.is_empty() {
        match read_from_memory(file, offset, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => fetch(file, offset, into.len() as u64)?,
            // The filesystem cannot tell.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            done => return done,
        }
    }
    Ok(rustix::io::retry_on_intr(|| {
        rustix::io::pread(file, &mut *into, offset)
    })?)
}
