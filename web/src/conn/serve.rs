//! The seam between a connection and what answers its requests: bytes in, responses into the output, and what comes next.
//!
//! A connection knows no requests, and what serves them knows no sleep. The call crosses the seam once for each time that bytes
//! have come, not once for each request.

use std::io;

use osier_http::HeadScanner;

use crate::conn::output::Output;
use crate::conn::peer::Peer;
use crate::conn::upgrade::Takeover;

/// Answers requests.
pub(crate) trait Serve: Send + Sync {
    /// Answers the requests that are whole in `input`, in order; their responses are in `output`, or have left already.
    ///
    /// # Suspends
    ///
    /// When a handler or a flush does.
    fn serve(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input) -> After;

    /// Answers a client whose request head did not come as a whole in time.
    ///
    /// # Suspends
    ///
    /// Until the client has taken the response.
    fn head_timed_out(&self, peer: Peer<'_>, output: &Output<'_>) -> io::Result<()>;
}

/// The bytes of the connection that have not been answered: `start..end`.
pub(crate) struct Input {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The next step of a connection, after its requests have been answered.
pub(crate) enum After {
    /// Waits for bytes; what is left of the input is an incomplete head, which the scanner has seen.
    Wait(HeadScanner),
    /// Closes after its last response, while the client may still be sending.
    Linger,
    /// Closes.
    End,
    /// The client is gone: closes, and nothing more is sent.
    Gone,
    /// Is no longer HTTP; the rest of the input is the new protocol's.
    Taken(Takeover),
}
