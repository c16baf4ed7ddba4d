//! The rest of a response that a slow client has not taken: parts of a file, which a connection sends without a stack.
//!
//! ```text
//!   burst ─▶ Output::send_parts ─▶ all sent, on the fiber of the burst
//!                  │ the client takes nothing for a while
//!                  ▼
//!                Rest ─▶ Stage::Sending ◀─▶ dormant until the socket takes bytes
//!                              │ all sent: the observer is told, the connection goes on as after a burst
//! ```
//!
//! The burst ends with the request whose response is left: a later response must not overtake it.

#[cfg(feature = "sendfile")]
use std::fs::File;
use std::io;
#[cfg(feature = "sendfile")]
use std::ops::Deref;
#[cfg(feature = "sendfile")]
use std::sync::Arc;

use http::Extensions;
#[cfg(feature = "sendfile")]
use osier::io::FileProgress;

use crate::conn::transport::Transport;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
use crate::conn::unnamed::Unnamed;

/// A file that is left to a connection.
#[cfg(feature = "sendfile")]
#[derive(Debug)]
pub(crate) enum LeftFile {
    /// A file of the application, or of the cache.
    Shared(Arc<File>),
    /// A response that was read ahead of the client.
    #[cfg(any(feature = "fastcgi", feature = "proxy"))]
    Unnamed(Arc<Unnamed>),
}

#[cfg(feature = "sendfile")]
impl Deref for LeftFile {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            LeftFile::Shared(file) => file,
            #[cfg(any(feature = "fastcgi", feature = "proxy"))]
            LeftFile::Unnamed(file) => file,
        }
    }
}

#[cfg(feature = "sendfile")]
impl From<Arc<File>> for LeftFile {
    fn from(file: Arc<File>) -> LeftFile {
        LeftFile::Shared(file)
    }
}

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
impl From<Arc<Unnamed>> for LeftFile {
    fn from(file: Arc<Unnamed>) -> LeftFile {
        LeftFile::Unnamed(file)
    }
}

/// A part of a file, behind bytes of its own.
#[cfg(feature = "sendfile")]
pub(crate) struct FilePart {
    pub(crate) before: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[cfg(feature = "sendfile")]
impl FilePart {
    /// The number of its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.before.len() as u64 + self.len
    }
}

/// Parts of a file and the bytes behind them, in the order in which they are sent.
#[cfg(feature = "sendfile")]
pub(crate) struct Rest {
    pub(crate) file: LeftFile,
    /// The parts, the next one last.
    pub(crate) parts: Vec<FilePart>,
    pub(crate) tail: Vec<u8>,
    pub(crate) progress: FileProgress,
}

#[cfg(feature = "sendfile")]
impl Rest {
    /// The number of bytes that are not sent yet.
    fn bytes(&self) -> u64 {
        self.parts.iter().map(FilePart::bytes).sum::<u64>() + self.tail.len() as u64
    }

    /// Sends on.
    ///
    /// # Suspends
    ///
    /// While bytes come from the disk.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when the client takes no more, and the errors of sending and of the file.
    pub(crate) fn send(&mut self, transport: &Transport) -> io::Result<()> {
        while let Some(part) = self.parts.last_mut() {
            write_now(transport, &mut part.before)?;
            let (file, progress) = (&self.file, &mut self.progress);
            progress.sent = 0;
            let done = transport.try_send_file(file, part.offset, part.len, || Ok(()), progress);
            let sent = progress.sent;
            (part.offset, part.len) = (part.offset + sent, part.len - sent);
            done?;
            self.parts.pop();
        }
        write_now(transport, &mut self.tail)?;
        transport.try_flush()
    }
}

/// Nothing: only files are left.
#[cfg(not(feature = "sendfile"))]
pub(crate) enum Rest {}

#[cfg(not(feature = "sendfile"))]
impl Rest {
    fn bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &Transport) -> io::Result<()> {
        match *self {}
    }
}

/// Writes `bytes` and removes them, as far as the client takes them at once.
pub(crate) fn write_now(transport: &Transport, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = transport.try_write(bytes)?;
        bytes.drain(..count);
    }
    Ok(())
}

/// The report of a response, given the head of its request, and the number of bytes that are not sent.
pub(crate) type Report = Box<dyn FnOnce(&[u8], u64)>;

/// A response whose rest is left to its connection. Its drop reports it, as far as it is sent.
pub(crate) struct Unsent {
    pub(crate) rest: Box<Rest>,
    /// The head of the request.
    pub(crate) head: Box<[u8]>,
    /// Called at the end, if there is an observer.
    pub(crate) report: Option<Report>,
    /// Whether the connection goes on after the response.
    pub(crate) keep_alive: bool,
    /// Whether the client has asked for that.
    pub(crate) keep_alive_asked: bool,
    /// The request's. A policy counts the request by a value among them.
    pub(crate) extensions: Extensions,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report(&self.head, self.rest.bytes());
        }
    }
}
