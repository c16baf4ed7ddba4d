//! Sends one request to the backend: its head, then its body, from the spool or while the client sends it.
//!
//! ```text
//!   spool in memory, or a body that arrives ─▶ pieces, framed ─▶ connection or stream
//!   spool in a file ─▶ connection, by sendfile(2)
//! ```
//!
//! A sender can be stopped between any two calls and continued later: its fiber is cancelled when the response arrives. Bytes read
//! from the client that the backend has not taken stay in `piece`. As long as the backend has taken no byte, the same request
//! may go to another backend.

use std::cell::Cell;
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

use osier::Cancelled;
use osier::io::FileProgress;
use osier_http::{BodyLength, CHUNK_END, ChunkHead, LAST_CHUNK};

use super::forwarded;
use crate::body::spool::Spool;
use crate::conn::buffers;
use crate::conn::log::id;
use crate::conn::trailers::Trailers;
use crate::conn::transport::Transport;
use crate::request::changes::is_same_name;
use crate::request::trace;
use crate::upstream::carrier::Carrier;
#[cfg(feature = "h2")]
use crate::upstream::carrier::Stream;
use crate::{Request, RequestBody};

/// The most bytes read from the client in one call.
const PIECE: usize = 32 << 10;

/// The bytes of a file that are sent together with the head. They fit into the buffers of nearly every socket, because the backend may
/// respond without reading the body.
const BEGINNING: u64 = 64 << 10;

/// The most bytes of a file that are sent in one call.
const PART: u64 = 1 << 20;

/// Room in front of a piece for the longest chunk head.
const CHUNK_ROOM: usize = 18;

pub(super) struct Sender {
    /// The whole body, if it was received first.
    spool: Option<Spool>,
    /// How many bytes of the spool have been put into pieces, or sent.
    unspooled: u64,
    /// The pages of the spool's file that are in memory.
    file: FileProgress,
    /// The encoded head, which depends on the backend.
    pub(super) head: Vec<u8>,
    /// How many bytes of the head the backend has taken.
    head_sent: usize,
    /// A framed piece of the body. `piece[sent..]` is still to be sent.
    piece: Vec<u8>,
    sent: usize,
    /// The place of the piece's data, which an HTTP/2 stream takes without framing.
    data: Range<usize>,
    /// How many bytes of the data a stream has taken.
    data_sent: usize,
    /// A stream has taken the end of the request.
    #[cfg(feature = "h2")]
    has_ended_stream: bool,
    chunked: bool,
    /// The trailer of the body, once that has been read to its end.
    trailers: Trailers,
    /// Names of fields that code before the proxy, or the proxy, has removed or set. The trailer has none of them.
    decided: Vec<String>,
    /// The body has been read to its end.
    read_all: bool,
    /// `piece[begin..]` is the whole body.
    whole: Option<usize>,
    progress: Rc<Progress>,
    /// The backend has taken the whole request.
    done: bool,
}

/// How far sending has come. The reader of the response shares it.
#[derive(Default)]
pub(super) struct Progress {
    /// How many bytes the backend has taken.
    pub(super) taken: Cell<u64>,
    /// When sending ended, with or without an error. The backend's time for a response begins there.
    pub(super) over: Cell<Option<Instant>>,
    /// The client may be silent while the response comes: only bytes that the backend takes then give the response more time.
    pub(super) may_pause: Cell<bool>,
    /// Why sending was given up: the client has not sent a body that can be passed on.
    pub(super) given_up: Cell<Option<io::Error>>,
}

/// Why the request could not be sent.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The client has not sent its whole body.
    Client(io::Error),
    /// The backend has not taken the request.
    Backend(io::Error),
    /// The sender was stopped and can continue later.
    Cancelled(io::Error),
}

impl Sender {
    pub(super) fn new(body: BodyLength) -> Sender {
        Sender {
            spool: None,
            unspooled: 0,
            file: FileProgress::default(),
            head: buffers::take_head(),
            head_sent: 0,
            piece: Vec::new(),
            sent: 0,
            data: 0..0,
            data_sent: 0,
            #[cfg(feature = "h2")]
            has_ended_stream: false,
            chunked: body == BodyLength::Chunked,
            trailers: Trailers::new(),
            decided: Vec::new(),
            read_all: body.is_empty(),
            whole: body.is_empty().then_some(0),
            progress: Rc::default(),
            done: false,
        }
    }

    /// Whether the backend has taken no byte.
    pub(super) fn is_untouched(&self) -> bool {
        self.progress.taken.get() == 0
    }

    /// Makes the sender of a request.
    pub(super) fn of(request: &Request<'_>) -> Sender {
        let mut sender = Sender::new(request.head.body());
        if request.may_have_trailer() {
            sender.decided = decided(request);
        }
        sender
    }

    /// Makes the sender of a request whose body has been received.
    pub(super) fn spooled(request: &Request<'_>, spool: Spool) -> Sender {
        let mut sender = Sender::of(request);
        sender.spool = Some(spool);
        sender
    }

    /// Frees the body, which nobody sends any more.
    pub(super) fn forget_body(&mut self) {
        (self.spool, self.piece) = (None, Vec::new());
    }

    /// Takes the beginning of the body if all of it has been received. Returns whether it has.
    pub(super) fn take_received(&mut self, body: &mut RequestBody<'_>) -> io::Result<bool> {
        if !self.read_all && body.has_all_received() {
            if !self.is_in_file() {
                self.next_piece(body)?;
            }
            return Ok(true);
        }
        Ok(self.read_all)
    }

    /// Whether the body is in the spool's file, and needs no framing on a connection.
    fn is_in_file(&self) -> bool {
        !self.chunked && self.spool.as_ref().is_some_and(|spool| spool.file().is_some())
    }

    /// Whether the request can be sent from its beginning again, whatever a backend has taken.
    pub(super) fn can_restart(&self) -> bool {
        self.spool.is_some() || self.whole.is_some()
    }

    /// Starts again for another backend. Only valid if no byte was taken or the body can be sent again
    /// ([`can_restart`](Sender::can_restart)).
    pub(super) fn restart(&mut self) {
        self.head.clear();
        if let Some(begin) = self.whole {
            self.sent = begin;
        } else if self.spool.is_some() {
            (self.unspooled, self.read_all, self.sent, self.data) = (0, false, 0, 0..0);
            self.piece.clear();
        }
        (self.head_sent, self.data_sent, self.done) = (0, 0, false);
        #[cfg(feature = "h2")]
        {
            self.has_ended_stream = false;
        }
        self.progress.taken.set(0);
        self.progress.over.set(None);
    }

    /// Gives back memory that is not needed before the request is sent again.
    pub(super) fn shrink(&mut self) {
        buffers::give_head(std::mem::take(&mut self.head));
        if self.spool.is_some() && self.whole.is_none() {
            // The spool has it.
            (self.piece, self.sent, self.data) = (Vec::new(), 0, 0..0);
        }
        self.piece.shrink_to_fit();
    }

    /// The memory that it holds apart from the spool, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.piece.capacity()
    }

    /// Whether the backend has taken the whole request.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn progress(&self) -> Rc<Progress> {
        self.progress.clone()
    }

    /// Takes the part of the body that has already been received, to be sent together with the head.
    pub(super) fn collect(&mut self, body: &mut RequestBody<'_>) -> io::Result<()> {
        let is_here = self.spool.is_some() || body.has_received();
        match !self.read_all && self.piece.is_empty() && is_here && !self.is_in_file() {
            true => self.next_piece(body),
            false => Ok(()),
        }
    }

    /// Sends the head and the current piece, or of that what the open windows of an HTTP/2 stream let through: the backend may
    /// respond without opening them. Returns whether that was the whole request.
    ///
    /// # Suspends
    ///
    /// While the socket of an HTTP/1.1 connection takes no bytes.
    pub(super) fn send_collected(&mut self, carrier: &Carrier) -> Result<bool, Unsent> {
        self.send_piece(carrier, false)
    }

    /// As [`send_collected`](Sender::send_collected). If it `waits` for windows, the whole piece is sent.
    ///
    /// # Suspends
    ///
    /// While the socket takes no bytes, or the windows let none through.
    fn send_piece(&mut self, carrier: &Carrier, waits: bool) -> Result<bool, Unsent> {
        let sent = match carrier {
            Carrier::Bytes(lease) if self.is_in_file() => {
                let most = if waits { PART } else { BEGINNING };
                self.send_file(lease.transport(), most).map(|()| true)
            }
            Carrier::Bytes(lease) => self.write(lease.transport()).map(|()| true),
            #[cfg(feature = "h2")]
            Carrier::Stream(stream) => self.write_to_stream(stream, waits),
        };
        self.done = sent.map_err(backend)? && self.read_all;
        if self.done {
            self.progress.over.set(Some(osier::time::coarse_now()));
        }
        Ok(self.done)
    }

    /// Sends the rest of the request. If the client fails, the connection is shut down, or the stream is reset, and the reader of the
    /// response fails too.
    pub(super) fn send(&mut self, body: &mut RequestBody<'_>, carrier: &Carrier) -> Result<(), Unsent> {
        let sent = self.send_rest(body, carrier);
        if let Err(Unsent::Client(error)) = &sent {
            self.progress
                .given_up
                .set(Some(io::Error::new(error.kind(), error.to_string())));
            carrier.cancel();
        }
        if !matches!(sent, Err(Unsent::Cancelled(_))) {
            self.progress.over.set(Some(osier::time::coarse_now()));
        }
        sent
    }

    fn send_rest(&mut self, body: &mut RequestBody<'_>, carrier: &Carrier) -> Result<(), Unsent> {
        while !self.send_piece(carrier, true)? {
            if self.is_in_file() && matches!(carrier, Carrier::Bytes(_)) {
                continue;
            }
            self.next_piece(body).map_err(|error| match Cancelled::is(&error) {
                true => Unsent::Cancelled(error),
                false => Unsent::Client(error),
            })?;
        }
        Ok(())
    }

    /// Sends the head and up to `most` bytes of the spool's file. Its bytes count as taken when the call returns.
    ///
    /// # Suspends
    ///
    /// While the socket takes no bytes, and while bytes come from the disk.
    fn send_file(&mut self, stream: &Transport, most: u64) -> io::Result<()> {
        let Some((spool, file)) = self.spool.as_ref().and_then(|spool| Some((spool, spool.file()?))) else {
            unreachable!("only a body in a file")
        };
        let (head, head_sent, taken) = (&self.head, &mut self.head_sent, &self.progress.taken);
        let mut has_taken = |count: usize| {
            *head_sent += count;
            taken.update(|taken| taken + count as u64);
            *head_sent
        };
        let before = || {
            let mut sent = has_taken(0);
            if sent < head.len() {
                sent = has_taken(stream.send_joined(&head[sent..]));
            }
            while sent < head.len() {
                sent = match { stream }.write(&head[sent..])? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    count => has_taken(count),
                };
            }
            Ok(())
        };
        let (begin, end) = (self.unspooled, spool.len());
        let already = self.file.sent;
        let sent = stream.send_file(file, (begin, most.min(end - begin)), before, &mut self.file);
        let count = self.file.sent - already;
        self.unspooled = begin + count;
        self.read_all = self.unspooled == end;
        self.progress.taken.update(|taken| taken + count);
        sent.and_then(|()| { stream }.flush())
    }

    fn write(&mut self, mut stream: &Transport) -> io::Result<()> {
        loop {
            let (head, piece) = (&self.head[self.head_sent..], &self.piece[self.sent..]);
            if head.is_empty() && piece.is_empty() {
                return stream.flush();
            }
            let count = match (head, piece) {
                (head, []) => stream.write(head)?,
                ([], piece) => stream.write(piece)?,
                (head, piece) => stream.write_vectored(&[IoSlice::new(head), IoSlice::new(piece)])?,
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.progress.taken.update(|taken| taken + count as u64);
            let of_head = count.min(head.len());
            self.head_sent += of_head;
            self.sent += count - of_head;
        }
    }

    /// Returns whether the stream has taken the whole piece. If it `waits`, it has.
    #[cfg(feature = "h2")]
    fn write_to_stream(&mut self, stream: &Stream, waits: bool) -> io::Result<bool> {
        if self.head_sent == 0 {
            let end = self.read_all && self.data.is_empty() && self.trailers.is_empty();
            stream.send_head(&self.head, end)?;
            (self.head_sent, self.has_ended_stream) = (self.head.len(), end);
            self.progress.taken.update(|taken| taken + self.head.len() as u64);
        }
        loop {
            let data = &self.piece[self.data.clone()][self.data_sent..];
            if self.has_ended_stream || (data.is_empty() && !self.read_all) {
                return Ok(true);
            }
            let end = self.read_all && self.trailers.is_empty();
            if data.is_empty() && !end {
                stream.send_trailers(&self.trailers)?;
                self.has_ended_stream = true;
                return Ok(true);
            }
            let count = match waits {
                true => stream.send(data, end)?,
                false => stream.try_send(data, end)?,
            };
            if count == 0 && !data.is_empty() {
                return Ok(false);
            }
            self.has_ended_stream = end && count == data.len();
            self.data_sent += count;
            self.progress.taken.update(|taken| taken + count as u64);
        }
    }

    /// Reads the next piece of the body and frames it. The current piece has been sent.
    fn next_piece(&mut self, body: &mut RequestBody<'_>) -> io::Result<()> {
        let is_first = self.piece.is_empty();
        let start = if self.chunked { CHUNK_ROOM } else { 0 };
        // The read may be cancelled: until it returns, no byte of the piece may be sent.
        (self.data, self.data_sent) = (0..0, 0);
        let count = match &self.spool {
            Some(spool) => {
                self.piece.clear();
                self.piece.resize(start, 0);
                self.sent = start;
                let count = spool.read_at(self.unspooled, PIECE, &mut self.piece)?;
                self.unspooled += count as u64;
                self.read_all = self.unspooled == spool.len();
                if count == 0 && !self.read_all {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                count
            }
            None => {
                self.piece.resize(start + PIECE, 0);
                self.sent = self.piece.len();
                let count = body.read(&mut self.piece[start..])?;
                self.read_all = count == 0 || body.is_done();
                self.piece.truncate(start + count);
                count
            }
        };
        self.sent = start;
        self.data = start..start + count;
        if self.chunked && count > 0 {
            let line = ChunkHead::new(count as u64);
            let line = line.as_bytes();
            self.sent = start - line.len();
            self.piece[self.sent..start].copy_from_slice(line);
            self.piece.extend_from_slice(CHUNK_END);
        }
        if self.read_all {
            // A client must not set in a trailer what it may not set in the head: the fields that name it, and those that a policy decides on.
            let is_decided = |name: &str| self.decided.iter().any(|known| is_same_name(known, name));
            self.trailers = body
                .trailers()
                .filtered(|name| forwarded::passes(name, false) && !is_decided(name));
        }
        if self.chunked && self.read_all {
            let (size, end) = LAST_CHUNK.split_at(LAST_CHUNK.len() - 2);
            for part in [size, self.trailers.lines(), end] {
                self.piece.extend_from_slice(part);
            }
        }
        self.whole = (is_first && self.read_all).then_some(self.sent);
        Ok(())
    }
}

/// The names of the fields that the head has otherwise than the client has sent them.
fn decided(request: &Request<'_>) -> Vec<String> {
    let mut names = request.changes.names();
    if request.forwarded_id().is_some() {
        names.push(id::FIELD.to_owned());
    }
    if request.trace().is_some() {
        names.extend([trace::PARENT, trace::STATE].map(str::to_owned));
    }
    names
}

impl Drop for Sender {
    fn drop(&mut self) {
        buffers::give_head(std::mem::take(&mut self.head));
    }
}

fn backend(error: io::Error) -> Unsent {
    match Cancelled::is(&error) {
        true => Unsent::Cancelled(error),
        false => Unsent::Backend(error),
    }
}
