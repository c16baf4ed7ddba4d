//! A stored response, and the responses that are made of it: whole, a part, or a 304.
//!
//! An [`Entry`] never changes, apart from its count of uses. A validation makes another one, which shares the body.
//! Responses share the body, too. Only a part of a body in memory is copied.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use osier_http::FieldLines;

use super::asked::Asked;
use super::disk::DiskFile;
use super::fill::{Bytes, Fill};
use super::freshness::Freshness;
use super::key::{self, Varies};
use super::queue::MOST_USES;
use crate::body::outgoing::Kind;
use crate::files::conditional::{Conditions, Validators, Verdict, date, evaluate};
use crate::files::range::{Selection, select, still_valid};
use crate::{Body, Request, Response};

/// Estimated bytes that an entry takes besides its key, its fields and its body: its structures, and its places in the
/// table and in the queue.
const OVERHEAD: usize = 512;

/// Bytes that a response adds to the stored fields.
const ADDED: usize = 96;

/// The fields that a 304 repeats (RFC 9110 section 15.4.5).
const OF_NOT_MODIFIED: [&str; 8] = [
    "cache-control",
    "cache-status",
    "content-location",
    "date",
    "etag",
    "expires",
    "last-modified",
    "vary",
];

/// All of a stored response but its body.
#[derive(Debug)]
pub struct Meta {
    pub status: StatusCode,
    /// The fields, with a `Date` and without an `Age`.
    pub fields: FieldLines,
    pub freshness: Freshness,
    /// When it was received or validated.
    pub received: Instant,
    /// See [`key`].
    pub particular: Box<[u8]>,
    pub varies: Varies,
    /// Whether a backend has made it.
    pub of_backend: bool,
}

/// The body of a stored response.
#[derive(Clone)]
pub enum Stored {
    Memory(Bytes),
    Disk(Arc<DiskFile>),
    /// A body that is being received. Such an entry is in no table.
    Filling(Arc<Fill>),
}

pub struct Entry {
    /// Number of the entry, unique in a store.
    pub id: u64,
    /// Hash of the key.
    pub hash: u64,
    pub meta: Arc<Meta>,
    pub body: Stored,
    uses: AtomicU8,
}

/// How a response came about, for `Cache-Status` (RFC 9211).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    Hit,
    /// A response of the backend.
    Forwarded {
        why: &'static str,
        stored: bool,
        /// The request waited for the fetch of another.
        collapsed: bool,
        /// Status of the backend's response, if it is another than that of this response.
        status: Option<u16>,
    },
}

impl Note {
    pub fn forwarded(why: &'static str) -> Note {
        Note::Forwarded {
            why,
            stored: false,
            collapsed: false,
            status: None,
        }
    }

    /// Calls `with` with the value of the field.
    pub fn write(self, ttl: i64, with: impl FnOnce(&[u8])) {
        let mut text = [0; 96];
        let room = text.len();
        let mut rest = &mut text[..];
        let done = match self {
            // Most responses of a cache are hits, and few of them are stale.
            Note::Hit if ttl >= 0 => (|| {
                rest.write_all(b"osier; hit; ttl=")?;
                rest.write_all(itoa::Buffer::new().format(ttl.unsigned_abs()).as_bytes())
            })(),
            Note::Hit => write!(rest, "osier; hit; ttl={ttl}"),
            Note::Forwarded {
                why,
                stored,
                collapsed,
                status,
            } => (|| {
                write!(rest, "osier; fwd={why}")?;
                if let Some(status) = status {
                    write!(rest, "; fwd-status={status}")?;
                }
                if stored {
                    rest.write_all(b"; stored")?;
                }
                if collapsed {
                    rest.write_all(b"; collapsed")?;
                }
                Ok(())
            })(),
        };
        debug_assert!(done.is_ok(), "the longest value fits");
        let len = room - rest.len();
        with(&text[..len]);
    }
}

impl Meta {
    /// The age at `now`, in whole seconds as `Age` has them.
    pub fn age(&self, now: Instant) -> Duration {
        let resident = now.saturating_duration_since(self.received).as_secs();
        self.freshness.initial_age.saturating_add(Duration::from_secs(resident))
    }

    /// Whether the response answers a request with these particulars and fields.
    pub fn fits(&self, particular: &[u8], request: &Request<'_>) -> bool {
        *self.particular == *particular && (self.varies.is_empty() || key::selects(&self.varies, &request.headers()))
    }

    /// Whether the backend can be asked if the response is still valid.
    pub fn has_validator(&self) -> bool {
        self.fields.first("etag").is_some() || self.fields.first("last-modified").is_some()
    }

    /// Bytes in memory, with a key of this length and without the body.
    pub fn bytes(&self, key: usize) -> u64 {
        let varies = self.varies.iter();
        let varies: usize = varies
            .map(|(name, value)| name.len() + value.as_ref().map_or(0, |value| value.len()) + 48)
            .sum();
        (OVERHEAD + key + self.fields.as_bytes().len() + self.particular.len() + varies) as u64
    }
}

impl Stored {
    /// The length, if it is known.
    fn len(&self) -> Option<u64> {
        match self {
            Stored::Memory(bytes) => Some((**bytes).as_ref().len() as u64),
            Stored::Disk(file) => Some(file.len),
            Stored::Filling(_) => None,
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        match self {
            Stored::Memory(bytes) => (**bytes).as_ref().len() as u64,
            _ => 0,
        }
    }

    /// A response's body of all bytes.
    ///
    /// # Suspends
    ///
    /// While a file is opened.
    ///
    /// # Errors
    ///
    /// If there are no bytes any more.
    fn whole(&self) -> std::io::Result<Body> {
        let kind = match self {
            Stored::Memory(bytes) => Kind::Shared(Arc::clone(bytes)),
            Stored::Disk(file) => return file.part(0, file.len),
            Stored::Filling(fill) => Fill::body(fill)?,
        };
        Ok(Body { kind, text: None })
    }

    /// A response's body of the bytes `first..=last`.
    fn part(&self, first: u64, last: u64) -> std::io::Result<Body> {
        match self {
            Stored::Memory(bytes) => Ok(Body::from((**bytes).as_ref()[first as usize..=last as usize].to_vec())),
            Stored::Disk(file) => file.part(first, last - first + 1),
            Stored::Filling(_) => self.whole(),
        }
    }
}

impl Entry {
    pub fn new(id: u64, hash: u64, meta: Arc<Meta>, body: Stored) -> Entry {
        Entry {
            id,
            hash,
            meta,
            body,
            uses: AtomicU8::new(0),
        }
    }

    /// Counts a use. Called under the lock of the entry's shard, so none is lost.
    pub fn used(&self) {
        let uses = self.uses.load(Ordering::Relaxed);
        if uses < MOST_USES {
            self.uses.store(uses + 1, Ordering::Relaxed);
        }
    }

    /// Takes one use off, under the same lock. Returns whether there was one.
    pub fn take_use(&self) -> bool {
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.saturating_sub(1), Ordering::Relaxed);
        uses > 0
    }

    /// Answers `request` with this entry.
    ///
    /// # Suspends
    ///
    /// While a file is opened.
    ///
    /// # Errors
    ///
    /// If the body is not there any more.
    pub fn answer(&self, request: &Request<'_>, asked: &Asked, now: Instant, note: Note) -> std::io::Result<Response> {
        let meta = &*self.meta;
        if meta.status == StatusCode::OK && asked.has_conditions && self.is_unmodified(request) {
            return Ok(self.respond(StatusCode::NOT_MODIFIED, Body::empty(), now, note));
        }
        // Other methods have no ranges (RFC 9110 section 14.2).
        let has_range = asked.has_range && request.method() == "GET";
        if let (StatusCode::OK, true, Some(length)) = (meta.status, has_range, self.body.len())
            && let Some(response) = self.range(request, length, now, note)?
        {
            return Ok(response);
        }
        Ok(self.respond(meta.status, self.body.whole()?, now, note))
    }

    /// Answers a request for a range. `None` if the whole body is the answer: several ranges are not served.
    #[cold]
    fn range(&self, request: &Request<'_>, length: u64, now: Instant, note: Note) -> std::io::Result<Option<Response>> {
        let modified = self.meta.fields.first("last-modified").and_then(date);
        let etag = self
            .meta
            .fields
            .first("etag")
            .and_then(|etag| str::from_utf8(etag).ok());
        let validators = Validators {
            // A weak tag equals none in the strong comparison that ranges need.
            etag: etag.filter(|etag| etag.starts_with('"')).unwrap_or_default(),
            modified,
            varies: !self.meta.varies.is_empty(),
        };
        if !still_valid(request.header("if-range"), &validators) {
            return Ok(None);
        }
        Ok(match select(request.header("range").unwrap_or_default(), length) {
            Selection::Whole | Selection::Parts(_) => None,
            Selection::Part { first, last } => {
                let body = self.body.part(first, last)?;
                let mut response = self.respond(StatusCode::PARTIAL_CONTENT, body, now, note);
                // The value has digits and a slash.
                let range = format!("bytes {first}-{last}/{length}");
                let _ = response.fields.push("content-range", range.as_bytes());
                Some(response)
            }
            Selection::Unsatisfiable => {
                let response = Response::plain(StatusCode::RANGE_NOT_SATISFIABLE);
                let response = response.header("content-range", format!("bytes */{length}"));
                Some(note_on(response, note))
            }
        })
    }

    /// Whether the client has this response already (RFC 9111 section 4.3.2).
    #[cold]
    fn is_unmodified(&self, request: &Request<'_>) -> bool {
        let fields = &self.meta.fields;
        let etag = fields.first("etag").and_then(|etag| str::from_utf8(etag).ok());
        let validators = Validators {
            // The comparison is the weak one.
            etag: etag.map_or("", |etag| etag.strip_prefix("W/").unwrap_or(etag)),
            modified: fields.first("last-modified").and_then(date),
            varies: false,
        };
        let lines = request.headers();
        let none_match = lines.filter(|(name, _)| name.eq_ignore_ascii_case("if-none-match"));
        let none_match: Vec<&[u8]> = none_match.map(|(_, value)| value).collect();
        let conditions = Conditions {
            if_none_match: &none_match,
            if_modified_since: request.header("if-modified-since"),
            ..Conditions::default()
        };
        evaluate(&conditions, &validators) == Verdict::NotModified
    }

    /// Makes a response of the stored fields.
    fn respond(&self, status: StatusCode, body: Body, now: Instant, note: Note) -> Response {
        let meta = &*self.meta;
        let age = meta.age(now);
        let mut fields = FieldLines::new();
        fields.reserve(meta.fields.as_bytes().len() + ADDED);
        match status {
            StatusCode::NOT_MODIFIED => {
                let repeated = meta
                    .fields
                    .iter()
                    .filter(|(name, _)| OF_NOT_MODIFIED.iter().any(|known| known.eq_ignore_ascii_case(name)));
                for (name, value) in repeated {
                    // The stored fields were checked before.
                    let _ = fields.push(name, value);
                }
            }
            _ => fields.extend(&meta.fields),
        }
        if note == Note::Hit || age.as_secs() > 0 {
            let _ = fields.push("age", itoa::Buffer::new().format(age.as_secs()).as_bytes());
        }
        let ttl = meta.freshness.lifetime.as_secs() as i64 - age.as_secs() as i64;
        note.write(ttl, |value| {
            let _ = fields.push("cache-status", value);
        });
        let mut response = Response::of(status, body);
        response.fields = fields;
        response.has_date = true;
        response.of_backend = meta.of_backend;
        response
    }
}

/// Adds `Cache-Status` to a response that is not of an entry.
pub fn note_on(mut response: Response, note: Note) -> Response {
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        note.write(0, |value| {
            // The value has no control characters.
            let _ = response.fields.push("cache-status", value);
        });
    }
    response
}
