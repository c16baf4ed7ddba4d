//! A response on an HTTP/2 stream. The connection has checked its head and its framing.

use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use osier_http::{Limits, Method, Reject, Reply};

use super::{InterimBytes, NoHead, on_and_on, patiently};
use crate::conn::buffers::{self, Size};
use crate::conn::trailers::Trailers;
use crate::conn::waited::{Beginning, Waited};
use crate::proxy::sender::Progress;
use crate::upstream::carrier::{Carrier, Stream};

/// Bytes of a status line of HTTP/1.1 and of the empty line, with a short reason.
const STATUS_LINE: usize = 24;

/// Bytes of a body that are taken at once, at most.
const PIECE: usize = 16 << 10;

/// Bytes after which no further piece is passed on at once. With the last piece, they fit an empty output.
const AT_ONCE: u64 = 32 << 10;

pub(in crate::proxy) struct Http2Response {
    /// The stream. `None` once the body has been read.
    carrier: Option<Rc<Carrier>>,
    progress: Rc<Progress>,
    /// Set while the request is still being sent. The read timeout counts from the end of the request.
    is_sending: bool,
    is_done: bool,
    trailers: Trailers,
}

impl Http2Response {
    pub(super) fn new(carrier: Rc<Carrier>, progress: Rc<Progress>) -> Http2Response {
        Http2Response {
            carrier: Some(carrier),
            progress,
            is_sending: false,
            is_done: false,
            trailers: Trailers::new(),
        }
    }

    pub(super) fn mark_sending(&mut self) {
        self.is_sending = true;
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn sending(&self) -> Option<&Progress> {
        self.is_sending.then_some(&self.progress)
    }

    pub(super) fn carrier(&self) -> Option<&Rc<Carrier>> {
        self.carrier.as_ref()
    }

    fn stream(&self) -> io::Result<&Stream> {
        match self.carrier.as_deref() {
            Some(Carrier::Stream(stream)) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn read_head<T>(
        &mut self,
        limits: &Limits,
        asked: Method<'_>,
        may_stop: bool,
        mut interim: impl FnMut(&Reply<'_>),
        look: impl FnOnce(&Reply<'_>) -> Result<T, &'static str>,
    ) -> Result<T, NoHead> {
        let (mut begun, mut left) = (false, InterimBytes::of(limits));
        let broken = |error: io::Error, begun| {
            // The connection has refused the response.
            let begun = begun || error.kind() == io::ErrorKind::InvalidData;
            NoHead::Broken { error, begun }
        };
        loop {
            let taken = self.stream().and_then(Stream::take_head);
            let (head, end) = match taken.map_err(|error| broken(error, begun))? {
                Some(taken) => taken,
                None => {
                    let waited = self.wait(&mut on_and_on!(may_stop && !begun));
                    match waited.map_err(|error| broken(error, begun))? {
                        true => continue,
                        false => return Err(NoHead::Silent),
                    }
                }
            };
            let bytes: usize = head
                .fields()
                .iter()
                .map(|(name, value)| name.len() + value.len() + 4)
                .sum();
            if bytes > limits.head_bytes {
                return Err(Reject::HeadTooLarge.into());
            }
            let reply = Reply::from_http2(&head, asked, end);
            if !reply.is_interim() {
                return look(&reply).map_err(NoHead::Malformed);
            }
            left.take(STATUS_LINE + bytes)?;
            interim(&reply);
            begun = true;
        }
    }

    pub(super) fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        let waited = patiently(self.sending(), || self.stream()?.wait_readable(beginning));
        waited.map(|waited| waited != Waited::Stopped)
    }

    pub(super) async fn wait_async(&self, waited: Duration) -> io::Result<()> {
        self.stream()?.wait_readable_async(waited).await
    }

    pub(super) fn take_received(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        while !self.is_done {
            let filled = into.len();
            into.resize(filled + PIECE, 0);
            let read = self.try_read(&mut into[filled..]);
            into.truncate(filled + read.as_ref().map_or(0, |read| read.unwrap_or(0)));
            if read?.is_none() {
                break;
            }
        }
        Ok(self.is_done)
    }

    /// Writes received bytes of the body to `out`. Returns their number.
    ///
    /// # Suspends
    ///
    /// As a write to `out` does.
    pub(super) fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<io::Result<u64>> {
        let (mut piece, mut written) = (buffers::take(Size::K16), 0);
        // Each read opens the window, so without the bound a fast backend would fill the output of a slow client.
        while !self.is_done
            && written < AT_ONCE
            && let Some(count) = self.try_read(&mut piece)?
        {
            if let Err(error) = out.write_all(&piece[..count]) {
                return Ok(Err(error));
            }
            written += count as u64;
        }
        buffers::give(piece);
        Ok(Ok(written))
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_done {
                return Ok(0);
            }
            if let Some(count) = self.try_read(into)? {
                return Ok(count);
            }
            self.wait(&mut on_and_on!())?;
        }
    }

    fn try_read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let read = self.stream()?.try_read(into)?;
        if read == Some(0) {
            self.is_done = true;
            self.trailers = self.stream()?.take_trailers();
            // The stream is over for this end.
            self.carrier = None;
        }
        Ok(read)
    }

    pub(super) fn may_wait(&self) -> bool {
        !self.is_done
    }

    pub(super) fn take_trailers(&mut self) -> Trailers {
        std::mem::take(&mut self.trailers)
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }
}
