//! Relays the body of a response to the client, by splicing or by reading ahead.
//!
//! While the client takes all bytes at once, they go from socket to socket without a copy ([`osier::io::splice`]). That takes 0.3
//! of the CPU time of copying, for 1 MiB over loopback. For a slow client another fiber reads ahead (`body::ahead`), so that the
//! client does not hold the backend. When the client has caught up, the relay splices again.
//!
//! ```text
//!   backend ─▶ pipe of the thread ─▶ client            `splice`: only without framing and without code that has to see the bytes
//!                 │ not taken at once      ▲
//!                 ▼                        │ the client keeps up, and much of the body is left
//!              pass_on ─▶ client ──────────┘
//! ```
//!
//! Where splicing is impossible, the client may still keep up (`body::relay`). Behind that, reader and writer take turns. One piece goes back and
//! forth and stays in the processor's cache. The pieces come from the worker's own buffer pool for the same reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use osier::Cancelled;

use super::Settings;
use super::backend_response::BackendResponse;
use crate::body::ahead::{Bounds, PIECE, Piece, Source, Stopped};
use crate::body::incoming::BodyError;
use crate::body::relay::{pass_on, pause};
use crate::body::spool::has_room;
use crate::conn::buffers::Size;
use crate::conn::output::Outlet;
use crate::conn::peer::SLOW_AFTER;
use crate::conn::trailers::Trailers;
use crate::conn::transport::Transport;
use crate::conn::waited::Beginning;
use crate::upstream::Upstream;

/// The least rest of a body, in bytes, that is worth splicing.
const SPLICE_LEAST: u64 = 32 << 10;

/// The most bytes spliced in one call.
const SPLICED: usize = 256 << 10;

/// A response, and the place where its trailer stays when it has been read.
struct Relayed<'t> {
    response: BackendResponse,
    trailers: &'t RefCell<Trailers>,
}

impl Source for Relayed<'_> {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.response.read(into)?;
        if count == 0 {
            *self.trailers.borrow_mut() = self.response.take_trailers();
        }
        Ok(count)
    }

    fn pass_on(&mut self, out: &mut dyn Write) -> io::Result<(u64, bool)> {
        let count = self.response.pass_on(out)??;
        let has_ended = self.response.is_done();
        if has_ended {
            *self.trailers.borrow_mut() = self.response.take_trailers();
        }
        Ok((count, has_ended))
    }

    fn may_wait(&self) -> bool {
        self.response.may_wait()
    }

    fn wait(&mut self, beginning: &mut Beginning<'_>) -> io::Result<bool> {
        match self.response.may_wait() {
            true => self.response.wait(beginning),
            false => Ok(true),
        }
    }

    fn is_worth_splicing(&self) -> bool {
        self.response.is_plain_for(SPLICE_LEAST)
    }
}

/// How a body is relayed.
pub(super) struct Relay {
    /// How much is read ahead of the client.
    bounds: Bounds,
    context: Context,
}

impl Relay {
    pub(super) fn new(settings: &Settings, is_stream: bool, backend: usize) -> Relay {
        Relay {
            bounds: settings.bounds(is_stream),
            context: Context {
                upstream: settings.upstream.clone(),
                backend,
            },
        }
    }

    /// Passes the body on: first `received`, then the rest of `backend`, and its trailer. If `out` lets it, it pauses where the backend sends
    /// nothing for a while.
    ///
    /// # Suspends
    ///
    /// While the backend sends, and while the client reads.
    ///
    /// # Errors
    ///
    /// The errors of writing to the client and of reading from the backend, and an incomplete body.
    pub(super) fn run(self, backend: BackendResponse, received: Vec<u8>, out: &mut dyn Outlet) -> io::Result<()> {
        out.write_all(&received)?;
        drop(received);
        self.go_on(backend, out)
    }

    fn go_on(self, backend: BackendResponse, out: &mut dyn Outlet) -> io::Result<()> {
        match self.pass_on(backend, out) {
            Ok(None) => Ok(()),
            Ok(Some((silent, waited))) => {
                let go_on = move |backend, waited: io::Result<()>, out: &mut dyn Outlet| match waited {
                    Ok(()) => self.go_on(backend, out),
                    Err(error) => Err(self.context.explain(error)),
                };
                pause(
                    silent,
                    async move |backend| backend.wait_async(waited).await,
                    go_on,
                    out,
                );
                Ok(())
            }
            Err(error) => Err(self.context.explain(error)),
        }
    }

    /// Passes the body on to its end. Returns a backend that sends nothing for a while, and how long that is.
    fn pass_on(
        &self,
        backend: BackendResponse,
        out: &mut dyn Outlet,
    ) -> io::Result<Option<(BackendResponse, Duration)>> {
        let (bounds, trailers) = (&self.bounds, RefCell::default());
        let mut backend = Some(Relayed {
            response: backend,
            trailers: &trailers,
        });
        let mut can_splice = true;
        loop {
            let mut rest = VecDeque::new();
            if can_splice {
                // A short life: the pieces below are freed one by one as the client takes them.
                let mut bytes = Vec::new();
                match splice(&mut backend, &mut bytes, bounds, out)? {
                    Splicing::Ends => {}
                    Splicing::IsImpossible => can_splice = false,
                    Splicing::IsSilent(waited) => return Ok(backend.map(|relayed| (relayed.response, waited))),
                }
                rest = Piece::copy(&bytes);
            }
            match pass_on(&mut backend, rest, bounds, can_splice, out)? {
                Stopped::Done => {
                    out.set_trailers(trailers.take());
                    return Ok(None);
                }
                Stopped::KeepsUp => {}
                Stopped::Silent(waited) => return Ok(backend.map(|relayed| (relayed.response, waited))),
            }
        }
    }
}

/// Why the body is not spliced further.
enum Splicing {
    /// The client has not taken all bytes at once, or nothing is left that is worth it.
    Ends,
    IsImpossible,
    /// The backend has sent nothing for a while, and the body may pause.
    IsSilent(Duration),
}

/// Splices until the client does not take all bytes at once; `rest` then holds the bytes still to be written.
fn splice(
    backend: &mut Option<Relayed<'_>>,
    rest: &mut Vec<u8>,
    bounds: &Bounds,
    out: &mut dyn Outlet,
) -> io::Result<Splicing> {
    let body = backend.as_mut().map(|relayed| &mut relayed.response);
    let Some(body) = body.filter(|body| body.is_plain_for(SPLICE_LEAST)) else {
        return Ok(Splicing::Ends);
    };
    let patience = out.patience();
    while rest.is_empty() && body.is_plain_for(1) {
        // Bytes that the client does not take are copied to memory.
        let most = if has_room(SPLICED, bounds.ample()) {
            bounds.memory.clamp(PIECE, SPLICED)
        } else if has_room(PIECE, bounds.shared) {
            PIECE
        } else {
            Size::K16.bytes()
        };
        let Some(to) = out.direct()?.and_then(Transport::plain) else {
            return Ok(Splicing::IsImpossible);
        };
        let mut look = Beginning {
            lasts: Duration::ZERO,
            goes_on: &mut || false,
        };
        if patience == Some(Duration::ZERO) && !body.wait(&mut look)? {
            return Ok(Splicing::IsSilent(Duration::ZERO));
        }
        match body.splice(to, (most, patience.is_some()), rest) {
            Ok(None) => return Ok(Splicing::IsSilent(SLOW_AFTER)),
            Ok(Some(sent)) => out.sent(sent)?,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(Splicing::IsImpossible),
            Err(error) => return Err(error),
        }
    }
    if body.is_done() {
        // Give the connection back, or close it, at once.
        *backend = None;
    }
    Ok(Splicing::Ends)
}

/// The context of a failing body, for the log.
struct Context {
    upstream: Upstream,
    backend: usize,
}

impl Context {
    fn explain(&self, error: io::Error) -> io::Error {
        if Cancelled::is(&error) || BodyError::of(&error).is_some() {
            return error;
        }
        let (name, label) = (self.upstream.name(), self.upstream.label(self.backend));
        let upstream = match name == label {
            true => String::new(),
            false => format!("upstream {name}: "),
        };
        io::Error::new(error.kind(), format!("{upstream}backend {label}: {error}"))
    }
}
