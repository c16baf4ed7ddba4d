//! The rest of a response on its way to a slow client: it goes without a stack while the client takes nothing.

use std::io;
use std::net::Shutdown;

use osier::dormant::AfterBurst;

use crate::conn::close::CloseReason;
use crate::conn::log::record::{Level, Record};
use crate::conn::rest::Unsent;
use crate::conn::worker::Link;
use crate::conn::{Conn, EMPTY_LINE, First, Stage, after};

/// A response that is not all sent.
pub(super) struct Sending {
    pub(super) unsent: Box<Unsent>,
    /// Received bytes of the next requests.
    pub(super) received: Box<[u8]>,
    /// The number of bytes that the client had not acknowledged when the connection went to rest.
    pub(super) unacknowledged: Option<usize>,
}

impl Conn {
    /// Rests until the client takes bytes. The connection stays busy: a drain waits for the response.
    pub(super) fn rest_until_writable(&mut self, mut sending: Box<Sending>) -> AfterBurst {
        sending.unacknowledged = self.link.socket().unacknowledged();
        self.set_stage(Stage::Sending(sending));
        AfterBurst::SleepUntilWritable(after(self.link.worker.server.timeouts.write))
    }

    /// Sends on.
    pub(super) fn send_on(&mut self, mut sending: Box<Sending>) -> AfterBurst {
        match sending.unsent.rest.send(&self.link.transport) {
            Ok(()) => self.rest_is_sent(*sending),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.rest_until_writable(sending),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let text = format_args!("the response body of a slow client failed: a file has become shorter");
                let record = Record::new(Level::Error, text).of_client(self.link.peer(), self.link.is_proxied());
                self.link.worker.server.log(&record);
                self.close(CloseReason::Failed)
            }
            Err(error) => self.close(CloseReason::of_output(&error)),
        }
    }

    /// Gives the client more time if it has acknowledged bytes since the connection went to rest.
    pub(super) fn expect_more(&mut self, sending: Box<Sending>) -> AfterBurst {
        if self.link.socket().progressed(sending.unacknowledged) {
            return self.rest_until_writable(sending);
        }
        Link::abandon(self.link.socket());
        self.close(CloseReason::WriteTimeout)
    }

    /// Goes on as after a burst.
    pub(super) fn rest_is_sent(&mut self, sending: Sending) -> AfterBurst {
        let Sending { unsent, received, .. } = sending;
        let (keep_alive, keep_alive_asked) = (unsent.keep_alive, unsent.keep_alive_asked);
        drop(unsent);
        let worker = self.link.worker.clone();
        worker.server.set_pace(self.link.socket());
        if !keep_alive {
            self.link.end();
            let nothing_left = received.is_empty() && (!keep_alive_asked || worker.draining.get());
            return match nothing_left {
                true => self.leave(CloseReason::LastResponse),
                false => self.linger(CloseReason::LastResponse),
            };
        }
        if !received.is_empty() && *received != *EMPTY_LINE {
            return self.burst_on([&received, &[]], First::Input);
        }
        self.link.end();
        if worker.draining.get() && self.link.socket().shutdown(Shutdown::Read).is_err() {
            return self.close(CloseReason::Shutdown);
        }
        self.sleep()
    }
}
