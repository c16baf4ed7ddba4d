//! Forms with files (`multipart/form-data`), read part by part as they arrive, so that an upload is
//! never in memory as a whole.
//!
//! ```no_run
//! use osier_web::{Rejection, Request, Route, Router};
//!
//! fn upload(request: &mut Request<'_>) -> Result<String, Rejection> {
//!     let mut form = request.multipart()?;
//!     let mut said = String::new();
//!     while let Some(mut part) = form.next_part()? {
//!         match part.file_name().map(str::to_owned) {
//!             Some(name) => {
//!                 let file = part.save_to("/var/lib/uploads")?;
//!                 said += &format!("{name:?}: {} bytes\n", file.bytes);
//!             }
//!             None => said += &format!("{}: {}\n", part.name().to_owned(), part.text(1024)?),
//!         }
//!     }
//!     Ok(said)
//! }
//!
//! // A form may be as large as the route allows.
//! let router = Router::new().route("/upload", Route::new().post(upload).body_limit(1 << 30));
//! ```
//!
//! The parser is [`osier_http::multipart`]. This module feeds it from the request's body through a
//! buffer of 64 KiB. Only one part at a time borrows the form. Asking for the next part skips the
//! unread data of the previous one.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use http::StatusCode;
use osier::memory::{Account, Charge};
use osier_http::multipart::{self as codec, Event, Malformed};

pub use osier_http::multipart::Limits;

use crate::request::charged::Charged;
use crate::request::extract::too_large;
use crate::{Rejection, Request, RequestBody};

/// Bytes of the form's buffer. One write to the disk takes as much, and any head of a part fits.
const BUFFER_BYTES: usize = 64 << 10;

/// Largest head of a part that [`Limits`] may allow.
const HEAD_BYTES: usize = BUFFER_BYTES - 256;

impl<'a> Request<'a> {
    /// Returns the body as a form in parts, under the default [`Limits`]. The route's
    /// [`body_limit`](crate::Route::body_limit) bounds the form as a whole.
    ///
    /// # Errors
    ///
    /// 415 for another content type, 400 without a boundary.
    pub fn multipart(&mut self) -> Result<Multipart<'_, 'a>, Rejection> {
        self.multipart_within(Limits::default())
    }

    /// Returns the body as [`multipart`](Request::multipart) does, under `limits`. The head of a
    /// part never exceeds 65,280 bytes, whatever `limits` says.
    ///
    /// # Errors
    ///
    /// As [`multipart`](Request::multipart).
    pub fn multipart_within(&mut self, limits: Limits) -> Result<Multipart<'_, 'a>, Rejection> {
        let is_form = self
            .media_type()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/form-data"));
        if !is_form {
            let what = "the content type must be multipart/form-data";
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let limits = Limits {
            head_bytes: limits.head_bytes.min(HEAD_BYTES),
            ..limits
        };
        let boundary = codec::boundary(self.header("content-type").unwrap_or_default());
        let parser = boundary.and_then(|boundary| codec::Multipart::new(&boundary, limits));
        Ok(Multipart {
            parser: parser.map_err(refusal)?,
            body: self.body(),
            buffer: Vec::new(),
            charge: Account::BODIES.charge(0),
            unread: 0..0,
            in_part: false,
            failed: None,
        })
    }
}

/// The parts of a form, one after the other. See [`Request::multipart`].
#[doc(alias = "upload")]
pub struct Multipart<'r, 'a> {
    parser: codec::Multipart,
    body: &'r mut RequestBody<'a>,
    /// Empty until the first read, then of `BUFFER_BYTES`.
    buffer: Vec<u8>,
    charge: Charge,
    /// Received bytes that the parser has not consumed.
    unread: Range<usize>,
    /// Whether the current part has not ended.
    in_part: bool,
    /// The rejection of an earlier call. Later calls return it too.
    failed: Option<Malformed>,
}

/// An event of the parser, with places in the buffer.
enum Found {
    Part(Box<codec::Part>),
    Data(Range<usize>),
    PartEnd,
    End,
}

impl<'r, 'a> Multipart<'r, 'a> {
    /// Returns the next part, after skipping the unread data of the previous one. `None` after the
    /// last part.
    ///
    /// # Suspends
    ///
    /// May suspend until the head of the part has arrived.
    ///
    /// # Errors
    ///
    /// 400 if the body is not such a form, 413 beyond a limit, and the errors of the body: 408,
    /// 413, 400.
    pub fn next_part(&mut self) -> Result<Option<Part<'_, 'r, 'a>>, Rejection> {
        loop {
            match self.find()? {
                Found::Part(head) => {
                    self.in_part = true;
                    let data = 0..0;
                    return Ok(Some(Part { form: self, head, data }));
                }
                Found::Data(_) => {}
                Found::PartEnd => self.in_part = false,
                Found::End => return Ok(None),
            }
        }
    }

    fn find(&mut self) -> Result<Found, Rejection> {
        if let Some(malformed) = self.failed {
            return Err(refusal(malformed));
        }
        loop {
            let at = self.unread.start;
            let found = self.parser.next(&self.buffer[self.unread.clone()]);
            let (consumed, event) = found.map_err(|malformed| {
                self.failed = Some(malformed);
                refusal(malformed)
            })?;
            let after = at + consumed;
            let found = match event {
                Event::NeedMore => None,
                Event::Part(head) => Some(Found::Part(head)),
                Event::Data(data) => Some(Found::Data(after - data.len()..after)),
                Event::PartEnd => Some(Found::PartEnd),
                Event::End => Some(Found::End),
            };
            self.unread.start = after;
            if let Some(found) = found {
                return Ok(found);
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), Rejection> {
        self.buffer.resize(BUFFER_BYTES, 0);
        self.charge.resize(BUFFER_BYTES);
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let count = self.body.read(&mut self.buffer[self.unread.end..])?;
        self.unread.end += count;
        match count {
            // The body has ended. The buffer had room, because the parser keeps back less than it
            // holds.
            0 => {
                self.failed = Some(Malformed::Ended);
                Err(refusal(Malformed::Ended))
            }
            _ => Ok(()),
        }
    }
}

fn refusal(malformed: Malformed) -> Rejection {
    let status = StatusCode::from_u16(malformed.status()).unwrap_or(StatusCode::BAD_REQUEST);
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => Rejection::beyond(status, malformed.reason()),
        _ => Rejection::new(status, malformed.reason()),
    }
}

osier_queue::impl_debug!(Multipart<'a, 'b>, self => { in_part: self.in_part, .. });

/// One part of a form. Its data is read by [`Read`].
pub struct Part<'p, 'r, 'a> {
    form: &'p mut Multipart<'r, 'a>,
    head: Box<codec::Part>,
    /// Data of the part in the form's buffer that has not been read.
    data: Range<usize>,
}

/// A file that a part was saved to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Path of the file. The file name is random.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
}

impl Part<'_, '_, '_> {
    /// The name of the form's field.
    pub fn name(&self) -> &str {
        self.head.name()
    }

    /// The client's name for the file, if the part is a file. It may be anything,
    /// `../../etc/passwd` for example. Show it, but never open it.
    pub fn file_name(&self) -> Option<&str> {
        self.head.file_name()
    }

    /// The content type that the client claims.
    pub fn content_type(&self) -> Option<&str> {
        self.head.content_type()
    }

    /// The value of the first field called `name` in the part's head.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.field(name)
    }

    /// Reads all data of the part.
    ///
    /// # Suspends
    ///
    /// May suspend until the data has arrived.
    ///
    /// # Errors
    ///
    /// 413 beyond `limit` bytes, 503 beyond 16 KiB while memory is short ([`osier::memory`]), and the errors of
    /// [`Multipart::next_part`].
    pub fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, Rejection> {
        let mut bytes = Vec::new();
        Charged::new(self.take(limit.saturating_add(1))).read_to_end(&mut bytes)?;
        match bytes.len() as u64 <= limit {
            true => Ok(bytes),
            false => Err(too_large(limit)),
        }
    }

    /// Reads all data of the part as text.
    ///
    /// # Suspends
    ///
    /// May suspend until the data has arrived.
    ///
    /// # Errors
    ///
    /// 413 beyond `limit` bytes, 400 if the data is not UTF-8, and the errors of
    /// [`Multipart::next_part`].
    pub fn text(&mut self, limit: u64) -> Result<String, Rejection> {
        let bytes = self.bytes(limit)?;
        String::from_utf8(bytes).map_err(|_| {
            let text = format!("the form's field {:?} is not UTF-8", self.name());
            Rejection::new(StatusCode::BAD_REQUEST, text)
        })
    }

    /// Writes the data, as it arrives, to a new file in `folder` that only its owner can read. The
    /// file name is random: nothing that the client sent becomes part of a path.
    ///
    /// If the part does not arrive as a whole, the file is removed. Otherwise the handler owns the
    /// file, even if a later part is refused.
    ///
    /// # Suspends
    ///
    /// Suspends until the data has arrived and is written.
    ///
    /// # Cancellation
    ///
    /// The file is removed.
    ///
    /// # Errors
    ///
    /// Errors of the disk, as 500 with a log line, and the errors of [`Multipart::next_part`].
    pub fn save_to(&mut self, folder: impl AsRef<Path>) -> Result<Saved, Rejection> {
        let folder = folder.as_ref();
        let (mut file, mut unfinished) = create(folder)?;
        let mut bytes = 0;
        while let Some(data) = self.more()? {
            let written = file.write_all(&self.form.buffer[data.clone()]);
            written.map_err(|error| cannot_save(folder, error))?;
            bytes += data.len() as u64;
        }
        file.flush().map_err(|error| cannot_save(folder, error))?;
        let path = unfinished.0.take().expect("it has not been taken before");
        Ok(Saved { path, bytes })
    }

    /// Returns all data that is available, after waiting for some.
    fn more(&mut self) -> Result<Option<Range<usize>>, Rejection> {
        if !self.data.is_empty() {
            return Ok(Some(std::mem::take(&mut self.data)));
        }
        if !self.form.in_part {
            return Ok(None);
        }
        match self.form.find()? {
            Found::Data(data) => Ok(Some(data)),
            Found::PartEnd => {
                self.form.in_part = false;
                Ok(None)
            }
            Found::Part(_) | Found::End => unreachable!("the parser ends a part first"),
        }
    }
}

impl Read for Part<'_, '_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let Some(mut data) = self.more()? else { return Ok(0) };
        let count = data.len().min(into.len());
        into[..count].copy_from_slice(&self.form.buffer[data.start..data.start + count]);
        data.start += count;
        self.data = data;
        Ok(count)
    }
}

osier_queue::impl_debug!(Part<'a, 'b, 'c>, self => { head: self.head, .. });

/// A file that is removed on drop unless its path is taken.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // The drop may happen while the fiber unwinds, when nothing may wait. It is one system
            // call on a file that was just made.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn create(folder: &Path) -> io::Result<(osier::fs::File, Unfinished)> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).map_err(io::Error::other)?;
    let path = folder.join(format!("{:032x}", u128::from_ne_bytes(number)));
    // The guard exists before the file. A cancelled call may still create the file.
    let unfinished = Unfinished(Some(path.clone()));
    let mut options = osier::fs::OpenOptions::new();
    let file = osier::shield(|| options.write(true).create_new(true).mode(0o600).open(&path));
    Ok((file.map_err(|error| cannot_save(folder, error))?, unfinished))
}

fn cannot_save(folder: &Path, error: io::Error) -> io::Error {
    if osier::Cancelled::is(&error) {
        return error;
    }
    let text = format!("cannot save an upload in {}: {error}", folder.display());
    io::Error::new(error.kind(), text)
}
