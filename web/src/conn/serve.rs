//! The interface between a connection and the code that serves its requests: input bytes, the
//! output, and the next step of the connection.
//!
//! A connection does not know requests, and the serving code does not know when a connection rests.
//! A connection calls the serving code once for each burst, not once for each request.

use std::io;

use http::Extensions;
use osier_http::HeadScanner;

use crate::conn::output::Output;
use crate::conn::peer::Peer;
use crate::conn::upgrade::Takeover;

/// The code that serves requests.
pub(crate) trait Serve: Send + Sync {
    /// Serves the requests that are whole in `input`, in order. Their responses are in `output` or
    /// already sent.
    ///
    /// # Suspends
    ///
    /// Suspends when a handler or a flush does.
    fn serve(&self, peer: Peer<'_>, output: &Output<'_>, input: &mut Input) -> After;

    /// Responds to a client whose request head did not arrive as a whole in time.
    ///
    /// # Suspends
    ///
    /// May suspend until the client has taken the response.
    fn head_timed_out(&self, peer: Peer<'_>, output: &Output<'_>) -> io::Result<()>;
}

/// The input of a connection. The bytes `start..end` are not served yet.
pub(crate) struct Input {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The next step of a connection after a burst.
pub(crate) enum After {
    /// Wait for bytes. The rest of the input is an incomplete head, which the scanner has seen.
    Wait(HeadScanner),
    /// Close after the last response, while the client may still be sending (a lingering close).
    Linger,
    /// Close.
    End,
    /// Close without sending anything, because the client is gone.
    Gone,
    /// Leave HTTP. The rest of the input belongs to the new protocol. The connection keeps the
    /// extensions of the request until it ends.
    Taken(Takeover, Extensions),
}
