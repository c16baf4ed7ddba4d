//! A variant is one form of a file: its bytes or an open descriptor, its validators, its response fields. A [`Form`] is
//! the place for a variant that the server makes.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use rustix::io::Errno;

use super::conditional::Validators;
use super::linux;
use super::root::Identity;
use crate::compress::accept_encoding::Coding;
use crate::{Fields, Response};

/// Largest file that is kept in memory, in bytes, by default. Larger files are sent from the page cache.
pub const SMALL: u64 = 32 * 1024;

/// Estimated bytes that a made form costs besides its content.
pub const ENTRY: usize = 1024;

/// The last second that an HTTP date can name.
pub const LAST_DATE: u64 = 253_402_300_799;

/// Whether loading a file may wait for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Never wait. Return `WouldBlock` instead.
    Cached,
    /// Wait as long as it takes.
    Blocking,
}

/// One form of a file: the file itself or an encoding of it.
#[derive(Debug)]
pub struct Variant {
    /// Identity of the file, with the size of this form.
    pub identity: Identity,
    /// Bytes of this form.
    pub content: Content,
    /// Strong entity tag, with its quotes. Empty if nothing tells one content from the next.
    pub etag: String,
    /// Last-Modified in seconds since 1970, if there is one.
    pub modified: Option<u64>,
    /// Whether the path has other forms, among which clients choose.
    varies: bool,
    /// Fields of every 200 and 206.
    pub fields: Fields,
    /// Fields of every 304: those that a cache needs, and none that describes the absent body (RFC
    /// 9110 section 15.4.5).
    pub unchanged: Fields,
}

/// The place of the bytes.
#[derive(Debug)]
pub enum Content {
    /// Bytes in memory.
    Memory(Arc<Vec<u8>>),
    /// An open file.
    Disk(Arc<File>),
}

/// An encoded form, or the place for it.
#[derive(Debug)]
pub struct Form {
    /// Lock of the fiber that makes the form.
    pub making: osier::sync::Mutex<()>,
    /// Empty until the form is made. `None` inside if it is not worth sending.
    pub made: OnceLock<Option<Variant>>,
    /// Whether the form was used since the store last looked at it.
    pub used: AtomicBool,
}

/// The encoded forms that a resource knows, by coding.
#[derive(Debug, Default)]
pub struct Known(pub [Mutex<Weak<Form>>; 3]);

impl Variant {
    /// Makes the form that `file` holds. A file of at most `in_memory` bytes is read.
    pub fn of(
        file: File,
        identity: Identity,
        (access, in_memory): (Access, u64),
        mime: &str,
        coding: Option<Coding>,
        varies: bool,
        now: SystemTime,
    ) -> io::Result<Variant> {
        // RFC 9110 section 8.8.2.1: Last-Modified is never later than the date of the response. A
        // file from the future has none.
        let modified = u64::try_from(identity.modified)
            .ok()
            .filter(|&at| at <= LAST_DATE && UNIX_EPOCH + Duration::from_secs(at) <= now && identity.is_dated());
        let content = Content::of(file, identity.size, (access, in_memory))?;
        let etag = tag(&identity, &content, coding);
        Ok(Variant::new(identity, content, etag, modified, mime, coding, varies))
    }

    /// Makes the form that has this content, with its response fields.
    pub fn new(
        identity: Identity,
        content: Content,
        etag: String,
        modified: Option<u64>,
        mime: &str,
        coding: Option<Coding>,
        varies: bool,
    ) -> Variant {
        let mut cached = Response::new(StatusCode::OK);
        if !etag.is_empty() {
            cached = cached.header("etag", &etag);
        }
        if let Some(modified) = modified {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(modified));
            cached = cached.header("last-modified", date);
        }
        if varies {
            cached = cached.header("vary", "accept-encoding");
        }
        let (fields, unchanged) = complete(cached, mime, coding);
        Variant {
            identity,
            content,
            etag,
            modified,
            varies,
            fields,
            unchanged,
        }
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.identity.size
    }

    /// Returns the validators for the conditional fields.
    pub fn validators(&self) -> Validators<'_> {
        Validators {
            etag: &self.etag,
            modified: self.modified,
            varies: self.varies,
        }
    }
}

impl Content {
    /// Reads a small file into memory. A file that is shorter than its metadata says is being
    /// changed now. It is sent like a large file, whose end is checked while it is sent.
    fn of(file: File, size: u64, (access, in_memory): (Access, u64)) -> io::Result<Content> {
        if size > in_memory {
            return Ok(Content::Disk(Arc::new(file)));
        }
        let mut bytes = vec![0; size as usize];
        let complete = match access {
            Access::Cached => read_cached(&file, &mut bytes)?,
            Access::Blocking => match file.read_exact_at(&mut bytes, 0) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
                Err(error) => return Err(error),
            },
        };
        Ok(if complete {
            Content::Memory(Arc::new(bytes))
        } else {
            Content::Disk(Arc::new(file))
        })
    }
}

impl Form {
    /// Makes an empty place.
    pub fn new() -> Form {
        Form {
            making: osier::sync::Mutex::new(()),
            made: OnceLock::new(),
            used: AtomicBool::new(true),
        }
    }

    /// Returns the bytes that the form holds, with an estimate of what it costs besides.
    pub fn bytes(&self) -> usize {
        ENTRY + self.variant().map_or(0, |variant| variant.length() as usize)
    }

    /// Returns the form. `None` while it is not made, or if it is not worth making.
    pub fn variant(&self) -> Option<&Variant> {
        self.made.get()?.as_ref()
    }
}

/// Makes the entity tag of a form: its date and its size. All files of some images have the date 0 or 1. Then it is a hash
/// of the bytes, or, for a file that is not in memory, of the inode and its last change. The hash keeps the inode's number to itself.
fn tag(identity: &Identity, content: &Content, coding: Option<Coding>) -> String {
    let suffix = coding.map_or("", Coding::suffix);
    if identity.is_dated() {
        return format!("\"{:x}-{:x}{suffix}\"", identity.nanos(), identity.size);
    }
    let mut hasher = DefaultHasher::new();
    match content {
        Content::Memory(bytes) => bytes.hash(&mut hasher),
        Content::Disk(_) if identity.changed.0 > Identity::NO_DATE => identity.hash(&mut hasher),
        // A file system in an image, whose inodes may have the same numbers in the next image.
        Content::Disk(_) => return String::new(),
    }
    format!("\"{:016x}{suffix}\"", hasher.finish())
}

/// Makes the fields of a response with a body, and those of one without, from the fields that both
/// have.
fn complete(cached: Response, mime: &str, coding: Option<Coding>) -> (Fields, Fields) {
    let unchanged = cached.into_fields();
    let whole = Response::new(StatusCode::OK).with_fields(&unchanged);
    let mut whole = whole.header("content-type", mime).header("accept-ranges", "bytes");
    if let Some(coding) = coding {
        whole = whole.header("content-encoding", coding.token());
    }
    (whole.into_fields(), unchanged)
}

/// Fills `bytes` from the page cache. `false` if the file ends before.
fn read_cached(file: &File, bytes: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match linux::read_cached(file, &mut bytes[filled..], filled as u64) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INVAL) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(true)
}
