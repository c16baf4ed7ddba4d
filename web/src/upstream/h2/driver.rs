//! The driver of a connection is dormant between events. It reads, keeps the deadlines, and ends the connection.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use osier::dormant::{AfterBurst, Cause, Dormant};
use osier::sync::Event;

use super::answer::Lost;
use super::connection::Connection;

/// Time between two looks at a connection with streams: a stream that begins to wait for its window reports nothing.
const LOOK: Duration = Duration::from_secs(10);

/// Gets the connection when it has ended.
type Ended = Box<dyn Fn(&Rc<Connection>)>;

pub(super) struct Driver {
    connection: Rc<Connection>,
    ended: Ended,
    idle_timeout: Duration,
    /// The wait for the end of the upstream. `None` once the upstream has ended.
    gone: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Driver {
    /// Makes the driver of `connection`. It calls `ended` at the end.
    pub(super) fn new(
        connection: &Rc<Connection>,
        ended: impl Fn(&Rc<Connection>) + 'static,
        idle_timeout: Duration,
        gone: &Arc<Event>,
    ) -> Driver {
        let gone = gone.clone();
        Driver {
            connection: connection.clone(),
            ended: Box::new(ended),
            idle_timeout,
            gone: Some(Box::pin(async move { gone.wait_async().await })),
        }
    }

    /// Rests until something happens, or ends a connection that is lost or idle.
    fn rest(&mut self) -> AfterBurst {
        let connection = &self.connection;
        let due = connection.expire();
        if connection.lost().is_some() {
            return AfterBurst::End;
        }
        let now = osier::time::coarse_now();
        let look = match connection.is_idle() {
            true => connection.idle_since().checked_add(self.idle_timeout),
            false => now.checked_add(LOOK.min(self.idle_timeout)),
        };
        if connection.is_idle() && (self.gone.is_none() || look.is_some_and(|look| look <= now)) {
            connection.close();
            return AfterBurst::End;
        }
        AfterBurst::Sleep(due.into_iter().chain(look).min())
    }
}

impl Dormant for Driver {
    fn source(&self) -> &dyn osier::io::Source {
        self.connection.transport.socket()
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.gone {
            Some(gone) => gone.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    fn wake(&mut self, cause: Cause) -> AfterBurst {
        match cause {
            Cause::Readable => {
                self.connection.read();
                // TLS may hold bytes that have left the socket, which no event announces.
                while self.connection.transport.has_unread() && self.connection.lost().is_none() {
                    self.connection.read();
                }
            }
            Cause::Woken => self.gone = None,
            Cause::Shutdown => {
                self.connection
                    .lose(Lost::new(std::io::ErrorKind::ConnectionAborted, "the program ends"));
                return AfterBurst::End;
            }
            Cause::Deadline | Cause::Writable => {}
        }
        self.rest()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.connection.lose(Lost::new(
            std::io::ErrorKind::ConnectionAborted,
            "the connection has ended",
        ));
        (self.ended)(&self.connection);
    }
}
