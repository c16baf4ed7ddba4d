//! The part of a head that has arrived: it rests without a stack until the head is whole.

use std::io;
use std::time::Instant;

use osier::dormant::AfterBurst;
use osier::memory::{self, Account, Charge, Pressure};
use osier_http::HeadScanner;

use crate::conn::close::CloseReason;
use crate::conn::{Conn, Stage};

/// Free bytes at first, behind the received part of an incomplete head.
const PARTIAL_ROOM: usize = 256;

/// The part of an incomplete head that is kept even near the limit of memory.
const PARTIAL_ALWAYS: usize = 4 << 10;

/// The received part of a head. Each byte is scanned once, however slowly the bytes arrive.
pub(super) struct Partial {
    bytes: Vec<u8>,
    /// Length of the received part of `bytes`. Free bytes follow.
    filled: usize,
    scanner: HeadScanner,
    /// Whether the connection begins with it, and may still turn out to speak HTTP/2.
    is_first: bool,
    /// When the server began to wait for the rest.
    since: Instant,
    charge: Charge,
}

impl Partial {
    /// Keeps a copy of the received part, which the scanner has seen or will see.
    pub(super) fn new(received: &[u8], scanner: HeadScanner, is_first: bool) -> Partial {
        let mut bytes = Vec::with_capacity(received.len() + PARTIAL_ROOM);
        bytes.extend_from_slice(received);
        bytes.resize(bytes.capacity(), 0);
        Partial {
            charge: Account::HEADS.charge(bytes.len()),
            bytes,
            filled: received.len(),
            scanner,
            is_first,
            since: osier::time::coarse_now(),
        }
    }

    /// The received part.
    pub(super) fn received(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Conn {
    /// Reads more bytes of an incomplete head, to the place where they stay until the head is
    /// whole.
    pub(super) fn go_on(&mut self, mut partial: Box<Partial>) -> AfterBurst {
        let limits = &self.link.worker.server.limits;
        if partial.filled == partial.bytes.len() {
            // The scanner has refused any head that is longer than the limit.
            let room = (2 * partial.filled).min(limits.head_bytes.max(partial.filled) + PARTIAL_ROOM);
            let room = room.max(PARTIAL_ROOM);
            partial.bytes.resize(room, 0);
        }
        match self.link.transport.receive(&mut partial.bytes[partial.filled..]) {
            Ok(0) => return self.close(CloseReason::Client),
            Ok(count) => partial.filled += count,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => return self.close(CloseReason::Client),
        }
        let received = &partial.bytes[..partial.filled];
        let is_http2 = match partial.is_first {
            true => self.is_http2(received),
            false => Some(false),
        };
        partial.is_first = is_http2.is_none();
        if is_http2.is_none() || (is_http2 == Some(false) && matches!(partial.scanner.scan(received, limits), Ok(None)))
        {
            return self.rest_in_partial(partial);
        }
        let mut buffers = self.link.worker.take_buffers();
        let Partial { mut bytes, filled, .. } = *partial;
        if filled <= buffers.input.len() {
            buffers.input[..filled].copy_from_slice(&bytes[..filled]);
        } else {
            bytes.resize(bytes.capacity(), 0);
            buffers.input = bytes.into_boxed_slice();
        }
        match is_http2 {
            #[cfg(feature = "h2")]
            Some(true) => self.begin_http2(buffers, filled),
            _ => self.burst(buffers, filled),
        }
    }

    /// Rests in the middle of a head, of which these bytes have arrived. The scanner has seen them.
    pub(super) fn rest_in_head(&mut self, received: &[u8], scanner: HeadScanner, is_first: bool) -> AfterBurst {
        self.link.end();
        // The time since this connection was accepted is of no request yet, and not of the next one on this worker.
        self.link.worker.age.set(0);
        self.rest_in_partial(Box::new(Partial::new(received, scanner, is_first)))
    }

    /// Rests until more of a head arrives. Near the limit of memory a long one is not waited for.
    pub(super) fn rest_in_partial(&mut self, mut partial: Box<Partial>) -> AfterBurst {
        partial.charge.resize(partial.bytes.len());
        if partial.filled > PARTIAL_ALWAYS && memory::pressure() == Pressure::Critical {
            return self.close(CloseReason::Evicted);
        }
        let server = &self.link.worker.server;
        let time = server.rates.head_time(partial.filled, server.timeouts.header);
        let deadline = partial.since.checked_add(time);
        self.set_stage(Stage::Head(partial));
        AfterBurst::Sleep(deadline)
    }
}
