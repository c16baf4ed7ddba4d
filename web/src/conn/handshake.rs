//! The TLS handshake of a connection. It needs no stack while it waits for the client.
//!
//! ```text
//!   bytes ─▶ shake_hands ─┬─ few in this turn ─▶ try_handshake ─▶ idle, or rest until readable or writable
//!                         └─ others ─▶ HandshakeQueue, at rest ─▶ called, PER_TURN a turn ─▶ try_handshake
//! ```
//!
//! A handshake whose certificate is being ordered tries again at rest, every [`RETRY`] until its time is over. It gives up where
//! [`DEFERRED`] others of its worker wait.
//!
//! A client that speaks HTTP in the clear gets a 400 in the clear, because a browser shows it and an alert says nothing.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osier::dormant::AfterBurst;

use crate::conn::close::CloseReason;
use crate::conn::handshake_queue::HandshakeQueue;
use crate::conn::log::record::{Level, Record};
use crate::conn::transport::Transport;
use crate::conn::{Conn, Stage, after};

/// The response to a request in the clear.
const SPEAKS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
    content-length: 48\r\nconnection: close\r\n\r\nthis port speaks TLS: write https:// in the URL\n";

/// The time after which a handshake asks again for a certificate that is being ordered.
const RETRY: Duration = Duration::from_millis(200);

/// The most handshakes of a worker that wait for certificates.
const DEFERRED: usize = 128;

/// A handshake at rest.
pub(super) struct Handshake {
    deadline: Option<Instant>,
    place: Place,
}

/// The place of a handshake in the queue of its worker.
enum Place {
    /// It waits for its client.
    None,
    /// It joins the queue with the next poll.
    Last,
    Numbered(u64),
    /// Its certificate is being ordered.
    Deferred {
        _counted: Deferred,
    },
}

/// One of the handshakes of a worker that wait for certificates.
struct Deferred(Rc<HandshakeQueue>);

impl Deferred {
    /// `None` if there are too many already.
    fn one_more(queue: &Rc<HandshakeQueue>) -> Option<Deferred> {
        let count = queue.deferred.get();
        (count < DEFERRED).then(|| {
            queue.deferred.set(count + 1);
            Deferred(queue.clone())
        })
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.0.deferred.set(self.0.deferred.get() - 1);
    }
}

impl Handshake {
    /// A handshake that waits for its client, until then.
    pub(super) fn until(deadline: Option<Instant>) -> Handshake {
        Handshake {
            deadline,
            place: Place::None,
        }
    }

    fn has_been_called(&self, queue: &HandshakeQueue) -> bool {
        matches!(self.place, Place::Numbered(number) if queue.has_called(number))
    }

    /// Ready once a queued handshake is called.
    pub(super) fn poll_called(&mut self, queue: &HandshakeQueue, cx: &mut Context<'_>) -> Poll<()> {
        match self.place {
            Place::Last => self.place = Place::Numbered(queue.join(cx.waker())),
            Place::Numbered(_) if self.has_been_called(queue) => return Poll::Ready(()),
            Place::None | Place::Numbered(_) | Place::Deferred { .. } => {}
        }
        Poll::Pending
    }

    /// Whether it waits for a certificate, and has time left.
    pub(super) fn tries_again(&self) -> bool {
        let is_over = self
            .deadline
            .is_some_and(|deadline| deadline <= osier::time::coarse_now());
        matches!(self.place, Place::Deferred { .. }) && !is_over
    }
}

impl Conn {
    /// Goes on with the handshake, as far as bytes have arrived. It may have to wait in the queue before.
    pub(super) fn shake_hands(&mut self, handshake: Handshake) -> AfterBurst {
        let (link, deadline) = (self.link.clone(), handshake.deadline);
        let queue = &link.worker.handshakes;
        let has_turn = handshake.has_been_called(queue) || queue.admits();
        if !has_turn {
            self.set_stage(Stage::Handshake(Handshake {
                deadline,
                place: Place::Last,
            }));
            return AfterBurst::SleepUntilWoken(deadline);
        }
        let Transport::Tls(stream) = &link.transport else {
            unreachable!("only TLS has a handshake")
        };
        match stream.try_handshake() {
            Ok(()) => self.begin_protocol(stream.protocol()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.set_stage(Stage::Handshake(Handshake::until(deadline)));
                match stream.has_unsent() {
                    true => AfterBurst::SleepUntilWritable(deadline),
                    false => self.watched(AfterBurst::Sleep(deadline)),
                }
            }
            Err(error) if osier_tls::Error::of(&error).is_some_and(osier_tls::Error::is_deferred) => {
                drop(handshake);
                match Deferred::one_more(queue) {
                    Some(counted) => self.defer(counted, deadline),
                    None => self.refuse_client(&error),
                }
            }
            Err(error) => self.refuse_client(&error),
        }
    }

    /// Rests until it is time to ask for the certificate again.
    #[cold]
    fn defer(&mut self, counted: Deferred, deadline: Option<Instant>) -> AfterBurst {
        self.set_stage(Stage::Handshake(Handshake {
            deadline,
            place: Place::Deferred { _counted: counted },
        }));
        AfterBurst::SleepUntilWoken(deadline.into_iter().chain(after(RETRY)).min())
    }

    /// Rests until the first request, in the protocol that the handshake has agreed on.
    fn begin_protocol(&mut self, alpn: Option<&[u8]>) -> AfterBurst {
        #[cfg(feature = "h2")]
        if alpn == Some(b"h2") && self.link.worker.server.http2.is_some() {
            return self.begin_http2(self.link.worker.take_buffers(), 0);
        }
        let _ = alpn;
        self.link.speaks(self.link.transport.spoken(false));
        AfterBurst::Sleep(after(self.link.worker.server.timeouts.idle))
    }

    /// Ends a connection whose handshake has failed.
    #[cold]
    fn refuse_client(&mut self, error: &io::Error) -> AfterBurst {
        let is_plain_http = osier_tls::Error::of(error).is_some_and(osier_tls::Error::is_plain_http);
        let is_left = !is_plain_http && osier_tls::Error::of(error).is_none();
        if is_left {
            return self.close(CloseReason::Client);
        }
        let text = format_args!("a TLS handshake has failed: {error}");
        let record = Record::new(Level::Info, text).of_client(self.link.peer(), self.link.is_proxied());
        self.link.worker.server.log(&record);
        if is_plain_http {
            // A new socket has room for it.
            let _ = self.link.socket().try_write(SPEAKS_TLS);
        }
        self.linger(CloseReason::ProtocolError)
    }
}
