//! Keeps a request body until its length is known: first in memory, then in an unnamed file.
//!
//! Applications need CONTENT_LENGTH before the first byte. Meanwhile no worker of php-fpm has to wait for a slow client. The
//! handler fills the spool from a chunked body; `sender` reads it, once for each attempt.
//!
//! The file is written and read on the blocking pool. Its content vanishes with its descriptor, even if the process is killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes written to the file in one call.
const PIECE: usize = 128 << 10;

/// The limits and the folder of a spool.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The first bytes of a body that stay in memory.
    pub memory: usize,
    /// The longest body, in bytes.
    pub total: u64,
    /// The folder of the file.
    pub folder: PathBuf,
}

/// A body of known length.
#[derive(Debug)]
pub struct Spool {
    /// The body's first bytes.
    memory: Vec<u8>,
    /// The rest of the body.
    file: Option<Arc<File>>,
    len: u64,
}

/// Why a body could not be kept.
#[derive(Debug)]
pub enum Failed {
    /// The client did not send its body; see [`RequestBody`](crate::RequestBody).
    Client(io::Error),
    /// The body is longer than [`Limits::total`].
    TooLong,
    /// The file could not be made or written.
    File(io::Error),
}

impl Spool {
    /// Makes a spool of a body that is in memory.
    pub fn in_memory(memory: Vec<u8>) -> Spool {
        Spool {
            len: memory.len() as u64,
            memory,
            file: None,
        }
    }

    /// Reads `body` to its end.
    ///
    /// # Suspends
    ///
    /// While the client sends, and while the file is written.
    pub fn fill(body: &mut dyn Read, limits: &Limits) -> Result<Spool, Failed> {
        let mut memory = Vec::new();
        let mut first = body.take(limits.memory as u64);
        first.read_to_end(&mut memory).map_err(Failed::Client)?;
        let mut spool = Spool::in_memory(memory);
        if spool.len > limits.total {
            return Err(Failed::TooLong);
        }
        let mut piece = vec![0; PIECE];
        while spool.len >= limits.memory as u64 {
            // One byte more than the limit shows that the body is too long.
            let room = usize::try_from(limits.total - spool.len)
                .unwrap_or(PIECE)
                .saturating_add(1)
                .min(PIECE);
            let filled = read_full(body, &mut piece[..room]).map_err(Failed::Client)?;
            if filled == 0 {
                break;
            }
            let (at, end) = (spool.len - spool.memory.len() as u64, spool.len + filled as u64);
            if end > limits.total {
                return Err(Failed::TooLong);
            }
            let (file, folder) = (spool.file.take(), limits.folder.clone());
            let written = osier::unblock(move || {
                let file = file.map_or_else(|| nameless(&folder).map(Arc::new), Ok)?;
                let written = file.write_all_at(&piece[..filled], at);
                written.map_err(|error| in_folder(&folder, &error))?;
                io::Result::Ok((file, piece))
            });
            let file;
            (file, piece) = written.map_err(Failed::File)?;
            (spool.file, spool.len) = (Some(file), end);
            if filled < room {
                break;
            }
        }
        Ok(spool)
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends up to `count` bytes, beginning at `at`, to `to`. Returns how many, 0 at the end.
    ///
    /// # Suspends
    ///
    /// While the file is read.
    pub fn read_at(&self, at: u64, count: usize, to: &mut Vec<u8>) -> io::Result<usize> {
        if let Some(memory) = usize::try_from(at)
            .ok()
            .and_then(|at| self.memory.get(at..))
            .filter(|rest| !rest.is_empty())
        {
            let count = count.min(memory.len());
            to.extend_from_slice(&memory[..count]);
            return Ok(count);
        }
        let Some(file) = self.file.clone() else { return Ok(0) };
        let at = at - self.memory.len() as u64;
        let piece = osier::unblock(move || {
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

fn read_full(body: &mut dyn Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match body.read(&mut piece[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn in_folder(folder: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("a temporary file in {}: {error}", folder.display()),
    )
}

/// Makes a file in `folder` and removes its name.
fn nameless(folder: &Path) -> io::Result<File> {
    let named = |error: io::Error| in_folder(folder, &error);
    loop {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| named(io::Error::other(error)))?;
        let path = folder.join(format!("osier-body-{:016x}", u64::from_ne_bytes(random)));
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path).map_err(named)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(named(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(folder: &Path) -> Limits {
        Limits {
            memory: 1000,
            total: 500_000,
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
            for len in [0, 1, 999, 1000, 1001, 1000 + PIECE, 1001 + PIECE, 300_000, 500_000] {
                let body: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                let spool = Spool::fill(&mut body.as_slice(), &limits).unwrap();
                assert_eq!((spool.len(), spool.is_in_memory()), (len as u64, len <= 1000), "{len}");
                assert!(content(&spool, 70_000) == body, "{len}");
                assert!(content(&spool, 9_999) == body, "{len}, again");
            }
            let too_long = vec![0; 500_001];
            assert!(matches!(
                Spool::fill(&mut too_long.as_slice(), &limits),
                Err(Failed::TooLong)
            ));
        });
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no file has a name");
        std::fs::remove_dir(&folder).unwrap();
        osier::run(|| match Spool::fill(&mut [0; 2000].as_slice(), &limits) {
            Err(Failed::File(error)) => assert!(error.to_string().contains("osier-spool-"), "{error}"),
            other => panic!("{other:?}"),
        });
    }

    #[test]
    fn what_the_client_breaks_is_the_clients() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        let limits = limits(&std::env::temp_dir());
        osier::run(|| {
            let mut body = [0; 1500].chain(Broken);
            assert!(matches!(Spool::fill(&mut body, &limits), Err(Failed::Client(_))));
        });
    }
}
