//! The PROXY header of a trusted balancer, which comes before the first request, and in the clear before TLS.

use std::io::{self, Read};
use std::time::Instant;

use osier::dormant::AfterBurst;
use osier::net::Stream;
use osier_http::proxy_protocol::{self, Addresses};

use crate::conn::close::CloseReason;
#[cfg(feature = "tls")]
use crate::conn::handshake::Handshake;
use crate::conn::log::record::{Level, Record};
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

impl Conn {
    /// Reads a part of a balancer's header, and any bytes behind it.
    pub(super) fn announced(&mut self, mut announced: Announced) -> AfterBurst {
        let link = self.link.clone();
        let mut buffers = link.worker.take_buffers();
        let held = announced.bytes.len();
        buffers.input[..held].copy_from_slice(&announced.bytes);
        // The header comes in the clear. Bytes behind it stay in the socket if they are encrypted.
        let received = match link.transport.plain() {
            Some(mut stream) => stream.read(&mut buffers.input[held..]),
            None => link.socket().peek(&mut buffers.input[held..]),
        };
        let filled = match received {
            Ok(count @ 1..) => held + count,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => held,
            _ => {
                link.worker.give_buffers(buffers);
                return self.close(CloseReason::Client);
            }
        };
        let input = &buffers.input[..filled];
        let http = match proxy_protocol::parse(input) {
            Ok(Some(header)) => {
                if let Addresses::Inet { source, .. } = header.addresses
                    && !link.set_proxied(source)
                {
                    link.worker.give_buffers(buffers);
                    Link::abandon(link.socket());
                    return self.close(CloseReason::ClientLimit);
                }
                header.length..filled
            }
            Ok(None) => {
                announced.bytes = input.to_vec();
                if link.transport.plain().is_none() && skip(link.socket(), filled - held).is_err() {
                    link.worker.give_buffers(buffers);
                    return self.close(CloseReason::Client);
                }
                link.worker.give_buffers(buffers);
                let timeouts = &link.worker.server.timeouts;
                let time = if filled == 0 { timeouts.idle } else { timeouts.header };
                announced.deadline = announced.deadline.filter(|_| held > 0).or_else(|| after(time));
                let deadline = announced.deadline;
                self.set_stage(Stage::Announced(announced));
                return AfterBurst::Sleep(deadline);
            }
            Err(malformed) => {
                link.worker.give_buffers(buffers);
                let peer = link.peer();
                let text = format_args!("closed a connection from the trusted peer {peer}: {malformed}");
                let record = Record::new(Level::Warning, text).of_client(peer, false);
                link.worker.server.log(&record);
                return self.close(CloseReason::ProtocolError);
            }
        };
        #[cfg(feature = "tls")]
        if link.transport.plain().is_none() {
            link.worker.give_buffers(buffers);
            return match skip(link.socket(), http.start - held) {
                Ok(()) => self.shake_hands(Handshake::until(after(link.worker.server.timeouts.handshake))),
                Err(_) => self.close(CloseReason::Client),
            };
        }
        let count = http.len();
        buffers.input.copy_within(http, 0);
        if count > 0 {
            return self.first_burst(buffers, count);
        }
        link.worker.give_buffers(buffers);
        self.sleep()
    }
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
