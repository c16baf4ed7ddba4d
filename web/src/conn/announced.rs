//! The PROXY header of a trusted balancer, which comes before the first request, and in the clear before TLS.

use std::io::{self, Read};
use std::ops::Range;
use std::time::Instant;

use osier::dormant::AfterBurst;
use osier::net::Stream;
use osier_http::proxy_protocol::{self, Addresses};

use crate::conn::close::CloseReason;
#[cfg(feature = "tls")]
use crate::conn::handshake::Handshake;
use crate::conn::worker::{INPUT_BYTES, Link};
use crate::conn::{Conn, Stage, after};

/// The received part of a PROXY header.
#[derive(Default)]
pub(super) struct Announced {
    pub(super) bytes: Vec<u8>,
    /// Set when the first byte arrives.
    pub(super) deadline: Option<Instant>,
}

/// A full input buffer is enough to decide whether the bytes are a PROXY header.
const _: () = assert!(proxy_protocol::HEADER_MAX < INPUT_BYTES);

enum Found {
    /// All bytes so far, which end inside the header.
    Part(Vec<u8>),
    /// The whole header, and the place of the bytes behind it in the buffer. Empty with TLS.
    Whole(Range<usize>),
}

impl Conn {
    /// Reads a part of a balancer's header, and any bytes behind it.
    pub(super) fn announced(&mut self, announced: Announced) -> AfterBurst {
        let link = self.link.clone();
        let mut buffers = link.worker.take_buffers();
        let found = find_header(&link, &mut buffers.input, &announced.bytes);
        if let Ok(Found::Whole(http)) = &found
            && !http.is_empty()
        {
            buffers.input.copy_within(http.clone(), 0);
            return self.first_burst(buffers, http.len());
        }
        link.worker.give_buffers(buffers);
        let timeouts = &link.worker.server.timeouts;
        match found {
            Ok(Found::Part(bytes)) => {
                let time = if bytes.is_empty() {
                    timeouts.idle
                } else {
                    timeouts.header
                };
                let begun = announced.deadline.filter(|_| !announced.bytes.is_empty());
                let deadline = begun.or_else(|| after(time));
                self.set_stage(Stage::Announced(Announced { bytes, deadline }));
                AfterBurst::Sleep(deadline)
            }
            #[cfg(feature = "tls")]
            Ok(Found::Whole(_)) if link.transport.plain().is_none() => {
                self.shake_hands(Handshake::until(after(timeouts.handshake)))
            }
            Ok(Found::Whole(_)) => self.sleep(),
            Err(reason) => self.close(reason),
        }
    }
}

/// Reads behind the `held` bytes of the header. It comes in the clear; with TLS, the bytes behind it stay in the socket.
///
/// # Suspends
///
/// Only if the socket has no bytes after all.
///
/// # Errors
///
/// Why the connection closes.
fn find_header(link: &Link, input: &mut [u8], held: &[u8]) -> Result<Found, CloseReason> {
    input[..held.len()].copy_from_slice(held);
    let free = &mut input[held.len()..];
    let received = match link.transport.plain() {
        Some(mut stream) => stream.read(free),
        None => link.socket().peek(free),
    };
    let filled = match received {
        Ok(count @ 1..) => held.len() + count,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => held.len(),
        _ => return Err(CloseReason::Client),
    };
    let skip_up_to = |place: usize| match link.transport.plain() {
        Some(_) => Ok(()),
        None => skip(link.socket(), place - held.len()).map_err(|_| CloseReason::Client),
    };
    let header = match proxy_protocol::parse(&input[..filled]) {
        Ok(Some(header)) => header,
        Ok(None) => {
            skip_up_to(filled)?;
            return Ok(Found::Part(input[..filled].to_vec()));
        }
        Err(malformed) => {
            link.complain_of_header(&malformed);
            return Err(CloseReason::ProtocolError);
        }
    };
    if let Addresses::Inet { source, .. } = header.addresses
        && !link.set_proxied(source)
    {
        Link::abandon(link.socket());
        return Err(CloseReason::ClientLimit);
    }
    skip_up_to(header.length)?;
    Ok(Found::Whole(match link.transport.plain() {
        Some(_) => header.length..filled,
        None => 0..0,
    }))
}

/// Takes `count` bytes that have arrived out of the socket.
fn skip(mut socket: &Stream, mut count: usize) -> io::Result<()> {
    let mut bytes = [0; 256];
    while count > 0 {
        let piece = count.min(bytes.len());
        socket.read_exact(&mut bytes[..piece])?;
        count -= piece;
    }
    Ok(())
}
