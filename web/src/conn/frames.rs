//! How the output of an HTTP/2 connection gets to the peer.

use std::cell::RefCell;
use std::io;

use osier_http::h2::{self, StreamId};

use crate::conn::transport::Transport;

/// One end of an HTTP/2 connection whose writer's fiber runs.
pub(crate) trait Writer {
    fn machine(&self) -> &RefCell<h2::Connection>;
    fn transport(&self) -> &Transport;

    /// Whether the connection has ended.
    fn is_lost(&self) -> bool;

    /// Wakes a stream that may go on sending.
    fn wake(&self, stream: StreamId);

    /// Waits until the peer takes bytes.
    ///
    /// # Suspends
    ///
    /// Until then.
    ///
    /// # Errors
    ///
    /// `TimedOut` if that takes too long, and the errors of the socket.
    fn wait_writable(&self) -> io::Result<()>;

    /// Wakes the streams that may go on sending.
    fn wake_writable(&self) {
        loop {
            let next = self.machine().borrow_mut().next_writable();
            let Some(stream) = next else { return };
            self.wake(stream);
        }
    }

    /// Writes the output until none is left, or the connection has ended.
    ///
    /// # Suspends
    ///
    /// While the peer takes no more.
    ///
    /// # Errors
    ///
    /// The errors of the transport and of [`wait_writable`](Writer::wait_writable).
    fn write_output(&self) -> io::Result<()> {
        while !self.write_at_once(1)? {
            self.wait_writable()?;
        }
        Ok(())
    }

    /// Writes the output as far as the peer takes it at once. Returns whether the peer has taken all, or the connection has ended.
    /// Fewer bytes than `least` stay in the output: they leave with those that follow.
    ///
    /// # Errors
    ///
    /// The errors of the transport.
    fn write_at_once(&self, least: usize) -> io::Result<bool> {
        while !self.is_lost() {
            let machine = self.machine().borrow();
            let written = match machine.output() {
                bytes if bytes.len() < least => self.transport().try_flush().map(|()| None),
                bytes => self.transport().try_write(bytes).map(Some),
            };
            drop(machine);
            match written {
                Ok(None) => break,
                Ok(Some(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(Some(count)) => {
                    self.machine().borrow_mut().advance(count);
                    self.wake_writable();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
