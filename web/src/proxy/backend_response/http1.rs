//! A response on a leased HTTP/1.1 connection, parsed strictly.
//!
//! At the end of the response the connection is kept if it can serve another request, and closed otherwise. It is closed if another fiber
//! still sends the request then.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use osier::io::Spliced;
use osier::net::Stream;
use osier_http::{BodyDecoder, Limits, Method, Reject, Reply, ReplyOutline, ReplyScanner, Slots};

use super::{InterimBytes, NoHead, on_and_on, patiently};
use crate::conn::buffers::{self, Size};
use crate::conn::peer::SLOW_AFTER;
use crate::conn::trailers::Trailers;
use crate::conn::waited::{Beginning, Waited};
use crate::proxy::sender::Progress;
use crate::upstream::Lease;
use crate::upstream::carrier::Carrier;

pub(in crate::proxy) struct Http1Response {
    /// The leased connection. `None` once the body has been read.
    carrier: Option<Rc<Carrier>>,
    /// The input buffer. It grows for a long head. It is empty, without memory, while the backend is waited for.
    buffer: Box<[u8]>,
    /// The received bytes that have not been taken.
    unread: Range<usize>,
    decoder: BodyDecoder,
    /// The backend keeps the connection open.
    keep: bool,
    progress: Rc<Progress>,
    /// Set while the request is still being sent. The read timeout counts from the end of the request.
    is_sending: bool,
}

impl Http1Response {
    /// Makes a response of which nothing has been read.
    pub(super) fn new(carrier: Rc<Carrier>, progress: Rc<Progress>) -> Http1Response {
        Http1Response {
            carrier: Some(carrier),
            buffer: Box::default(),
            unread: 0..0,
            decoder: BodyDecoder::of_reply(osier_http::ReplyLength::None, &Limits::DEFAULT),
            keep: false,
            progress,
            is_sending: false,
        }
    }

    /// Notes that the request is still being sent.
    pub(super) fn mark_sending(&mut self) {
        self.is_sending = true;
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn sending(&self) -> Option<&Progress> {
        self.is_sending.then_some(&self.progress)
    }

    /// Notes that the connection cannot serve another request.
    pub(super) fn close_after(&mut self) {
        self.keep = false;
    }

    pub(super) fn carrier(&self) -> Option<&Rc<Carrier>> {
        self.carrier.as_ref()
    }

    fn lease(&self) -> io::Result<&Lease> {
        let lease = self.carrier.as_deref().and_then(Carrier::lease);
        lease.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// The connection, for another protocol, and the bytes received after the head.
    pub(super) fn into_tunnel(mut self) -> Option<(Rc<Carrier>, Vec<u8>)> {
        let received = self.buffer[self.unread.clone()].to_vec();
        self.carrier.take().map(|carrier| (carrier, received))
    }

    /// Reads heads: passes those of interim responses to `interim` and that of the final response to `look`, whose error says
    /// why it cannot be passed on. With `may_stop`, it stops where nothing comes for [`SLOW_AFTER`].
    pub(super) fn read_head<T>(
        &mut self,
        limits: &Limits,
        asked: Method<'_>,
        may_stop: bool,
        mut interim: impl FnMut(&Reply<'_>),
        look: impl FnOnce(&Reply<'_>) -> Result<T, &'static str>,
    ) -> Result<T, NoHead> {
        let (mut begun, mut left) = (false, InterimBytes::of(limits));
        loop {
            let mut outline = ReplyOutline::new();
            let (length, is_usual) = self.find_head(limits, &mut outline, may_stop, &mut begun)?;
            let head = &self.buffer[self.unread.start..self.unread.start + length];
            self.unread.start += length;
            let mut slots: Slots = Slots::new();
            let reply = match is_usual {
                true => Reply::outlined(head, &outline, asked)?,
                false => Reply::parse(head, &mut slots, limits, asked)?,
            };
            if reply.is_interim() {
                left.take(length)?;
                interim(&reply);
                continue;
            }
            self.decoder = BodyDecoder::of_reply(reply.body(), limits);
            self.keep = reply.keep_alive();
            return look(&reply).map_err(NoHead::Malformed);
        }
    }

    /// Returns the length of the head, and whether `outline` has its parts.
    fn find_head(
        &mut self,
        limits: &Limits,
        outline: &mut ReplyOutline,
        may_stop: bool,
        begun: &mut bool,
    ) -> Result<(usize, bool), NoHead> {
        let mut scanner = ReplyScanner::new();
        let mut is_first_look = true;
        loop {
            if !self.unread.is_empty() {
                *begun = true;
                let received = &self.buffer[self.unread.clone()];
                // Only at the first look. A head in pieces is left to the scanner, which resumes.
                if std::mem::take(&mut is_first_look)
                    && let Some(end) = outline.find(received, limits)
                {
                    return Ok((end, true));
                }
                match scanner.scan(received, limits) {
                    Ok(Some(end)) => return Ok((end, false)),
                    Ok(None) => {}
                    Err(reject) => return Err(not_http1(received).map_or_else(|| reject.into(), NoHead::Malformed)),
                }
            }
            let received = match self.wait(&mut on_and_on!(may_stop && !*begun)) {
                Ok(false) => return Err(NoHead::Silent),
                // Behind TLS it may be a record without data.
                Ok(true) if may_stop && !*begun => match self.receive_arrived() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    received => received,
                },
                Ok(true) => self.receive(),
                Err(error) => Err(error),
            };
            let broken = |error| NoHead::Broken { error, begun: *begun };
            match received {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) if !*begun && self.is_too_early() => return Err(NoHead::TooEarly),
                Ok(_) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// Waits until the backend has sent bytes, within the stream's read timeout. Nothing is held meanwhile but received bytes.
    /// Returns false if the wait is stopped.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(super) fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        if self.unread.is_empty() {
            self.unread = 0..0;
            buffers::give(std::mem::take(&mut self.buffer));
        }
        let lease = self.lease()?;
        let limit = lease.stream().read_timeout()?.unwrap_or(Duration::MAX);
        patiently(self.sending(), || match lease.wait_readable(limit, beginning)? {
            Waited::Late => Err(io::ErrorKind::TimedOut.into()),
            waited => Ok(waited == Waited::Readable),
        })
    }

    /// Waits as [`wait`](Http1Response::wait) does, without a stack. The backend has been silent for `waited`.
    pub(super) async fn wait_async(&self, waited: Duration) -> io::Result<()> {
        let lease = self.lease()?;
        let limit = lease.stream().read_timeout()?.unwrap_or(Duration::MAX);
        lease.wait_readable_async(limit.saturating_sub(waited)).await
    }

    /// Makes room after `unread`, in a larger buffer if necessary. The scanner limits how large it gets.
    fn make_room(&mut self) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
        if self.unread.end < self.buffer.len() {
            return;
        }
        if self.buffer.is_empty() {
            self.buffer = buffers::take(Size::K16);
        } else if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        } else {
            let mut larger = vec![0; 2 * self.buffer.len()].into_boxed_slice();
            larger[..self.unread.end].copy_from_slice(&self.buffer);
            self.buffer = larger;
        }
    }

    fn is_too_early(&self) -> bool {
        self.lease()
            .is_ok_and(|lease| lease.is_too_early(self.progress.taken.get()))
    }

    /// Receives what has arrived, or fails with `WouldBlock`.
    fn receive_arrived(&mut self) -> io::Result<usize> {
        self.receive_by(|lease, into, _| lease.transport().try_read(into))
    }

    fn receive(&mut self) -> io::Result<usize> {
        self.receive_by(read)
    }

    #[inline]
    fn receive_by(
        &mut self,
        read: impl FnOnce(&Lease, &mut [u8], Option<&Progress>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.make_room();
        let carrier = self.carrier.as_deref();
        let lease = carrier.and_then(Carrier::lease).ok_or(io::ErrorKind::NotConnected)?;
        let sending = self.is_sending.then_some(&*self.progress);
        let count = read(lease, &mut self.buffer[self.unread.end..], sending)?;
        self.unread.end += count;
        Ok(count)
    }

    /// Appends the received part of the body to `into`. Returns whether that is the whole body.
    pub(super) fn take_received(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        self.write_received(into)??;
        Ok(self.decoder.is_done())
    }

    /// Writes the received part of the body to `out`, after a read if there is none. Returns the number of its bytes.
    ///
    /// # Suspends
    ///
    /// Until the backend has sent bytes, unless [`wait`](Http1Response::wait) has found some; and as a write to `out` does.
    pub(super) fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<io::Result<u64>> {
        if self.may_wait() && self.receive()? == 0 {
            self.decoder.at_end().map_err(invalid)?;
        }
        self.write_received(out)
    }

    fn write_received(&mut self, out: &mut (impl Write + ?Sized)) -> io::Result<io::Result<u64>> {
        let mut written = 0;
        while !self.decoder.is_done() && !self.unread.is_empty() {
            let piece = self.decoder.decode(&self.buffer[self.unread.clone()], usize::MAX);
            let piece = piece.map_err(invalid)?;
            if let Err(error) = out.write_all(piece.data) {
                return Ok(Err(error));
            }
            written += piece.data.len() as u64;
            self.unread.start += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
        if self.decoder.is_done() {
            self.finish();
        }
        Ok(Ok(written))
    }

    /// Reads bytes of the body. Returns 0 at its end.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.decoder.is_done() {
            if self.unread.is_empty() {
                self.unread = 0..0;
                let plain = usize::try_from(self.decoder.plain()).unwrap_or(usize::MAX);
                if plain > 0 {
                    let end = plain.min(into.len());
                    let lease = self.lease()?;
                    match read(lease, &mut into[..end], self.sending())? {
                        0 => self.decoder.at_end().map_err(invalid)?,
                        count => {
                            self.decoder.advance(count as u64);
                            if self.decoder.is_done() {
                                self.finish();
                            }
                            return Ok(count);
                        }
                    }
                    continue;
                }
            } else {
                let piece = self.decoder.decode(&self.buffer[self.unread.clone()], into.len());
                let piece = piece.map_err(invalid)?;
                self.unread.start += piece.consumed;
                if !piece.data.is_empty() {
                    let count = piece.data.len();
                    into[..count].copy_from_slice(piece.data);
                    if self.decoder.is_done() {
                        self.finish();
                    }
                    return Ok(count);
                }
                if piece.consumed > 0 {
                    continue;
                }
            }
            if self.receive()? == 0 {
                self.decoder.at_end().map_err(invalid)?;
            }
        }
        self.finish();
        Ok(0)
    }

    /// Whether the next `count` bytes on the connection belong to the body, and none has been received.
    pub(super) fn is_plain_for(&self, count: u64) -> bool {
        self.unread.is_empty() && self.decoder.plain() >= count
    }

    /// Splices at most `most` bytes of the body to `to`, or fails with `Unsupported`. Bytes that `to` does not take at once are appended to `rest`. Requires
    /// [`is_plain_for`](Http1Response::is_plain_for) one byte. With `may_stop`, it returns `None` if the backend sends nothing for
    /// [`SLOW_AFTER`].
    pub(super) fn splice(
        &mut self,
        to: &Stream,
        (most, may_stop): (usize, bool),
        rest: &mut Vec<u8>,
    ) -> io::Result<Option<io::Result<usize>>> {
        debug_assert!(self.is_plain_for(1));
        let lease = self.lease()?;
        let from = lease.transport().plain().ok_or(io::ErrorKind::Unsupported)?;
        let most = usize::try_from(self.decoder.plain()).unwrap_or(usize::MAX).min(most);
        let limit = from.read_timeout()?;
        let may_stop = may_stop && limit.is_none_or(|limit| limit > SLOW_AFTER);
        if may_stop {
            from.set_read_timeout(Some(SLOW_AFTER))?;
        }
        let spliced = patiently(self.sending(), || osier::io::splice(from, to, most, rest));
        if may_stop {
            from.set_read_timeout(limit)?;
        }
        let Spliced { taken, sent } = match spliced {
            Err(error) if may_stop && error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() => {
                return Ok(None);
            }
            spliced => spliced?,
        };
        match taken {
            0 => self.decoder.at_end().map_err(invalid)?,
            count => self.decoder.advance(count as u64),
        }
        if self.decoder.is_done() {
            self.finish();
        }
        Ok(Some(sent))
    }

    /// Whether a read of the body may have to wait for the backend.
    pub(super) fn may_wait(&self) -> bool {
        self.unread.is_empty() && !self.decoder.is_done()
    }

    pub(super) fn take_trailers(&mut self) -> Trailers {
        Trailers::of(self.decoder.take_trailers().iter())
    }

    /// Whether the body has ended.
    pub(super) fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Ends the response. The connection is kept unless the backend closes it, the request is still being sent, or unexpected
    /// bytes follow.
    fn finish(&mut self) {
        if let Some(Carrier::Bytes(lease)) = self.carrier.take().and_then(Rc::into_inner)
            && self.keep
            && self.unread.is_empty()
        {
            lease.keep();
        }
    }
}

impl Drop for Http1Response {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.buffer));
    }
}

/// Reads within the stream's read timeout, counted from the end of the request.
fn read(lease: &Lease, into: &mut [u8], sending: Option<&Progress>) -> io::Result<usize> {
    let mut stream = lease.transport();
    patiently(sending, || stream.read(into))
}

/// The protocol that a backend speaks instead, with the remedy, if its first bytes show one.
#[cold]
fn not_http1(received: &[u8]) -> Option<&'static str> {
    match received {
        // A TLS alert.
        [0x15, 3, ..] => Some("it speaks TLS; write https:// before its address"),
        // The head of a SETTINGS frame on the stream 0.
        [0, _, _, 4, 0, 0, 0, 0, 0, ..] => Some("it speaks HTTP/2; write h2c:// before its address"),
        _ => None,
    }
}

fn invalid(reject: Reject) -> io::Error {
    let kind = match reject {
        Reject::BodyEnded => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::InvalidData,
    };
    // The status of a `Reject` is for requests.
    io::Error::new(kind, reject.reason())
}
