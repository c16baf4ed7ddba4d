//! A stream that has left HTTP: the DATA of an extended CONNECT (RFC 8441) is the byte stream of another protocol.
//!
//! ```text
//!   stream ◀─▶ two fibers ◀─▶ a pair of sockets ◀─▶ the connection of the handler's code (conn/upgrade.rs)
//! ```
//!
//! The handler's code gets one end of a pair of sockets, as it would get the socket of an HTTP/1.1 connection.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use http::Extensions;
use osier::sync::{Event, Interrupt};

use crate::conn::Conn;
use crate::conn::stream::ClientStream;
use crate::conn::trailers::Trailers;
use crate::conn::upgrade::Takeover;
use crate::server::h2::stream::Stream;

/// The bytes that one direction moves at once.
const PIECE: usize = 8 << 10;

/// The time that the client has to end its direction after the handler's code has ended its own.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Runs the handler's code until both directions have ended.
///
/// # Suspends
///
/// Until then.
pub(super) fn run(stream: &Stream, takeover: Takeover, extensions: Extensions) {
    let shared = &stream.shared;
    // Without descriptors the stream is reset.
    let Ok(inner) = Conn::begin_with((takeover, extensions), &shared.local, shared.link.peer()) else {
        return;
    };
    let (has_ended, stop) = (Event::new(), Interrupt::new());
    osier::scope(|scope| {
        scope.spawn_local(|| {
            let copied = stop.guard(|| {
                copy(
                    |into| stream.read(into, Duration::MAX),
                    |bytes| (&inner).write_all(bytes),
                )
            });
            let how = match copied {
                Ok(Ok(())) => Shutdown::Write,
                _ => Shutdown::Both,
            };
            let _ = inner.shutdown(how);
            has_ended.set();
        });
        let copied = copy(|into| (&inner).read(into), |bytes| stream.write(bytes));
        if copied.and_then(|()| stream.end(&[], &Trailers::new())).is_err() {
            let _ = inner.shutdown(Shutdown::Both);
        }
        if !has_ended.wait_timeout(LAST_BYTES) {
            stop.set();
        }
    });
}

/// Copies one direction to its end.
///
/// # Suspends
///
/// When `read` or `write` does.
fn copy(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match read(&mut piece)? {
            0 => return Ok(()),
            count => write(&piece[..count])?,
        }
    }
}
