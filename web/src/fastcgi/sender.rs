//! Sends the request body to the backend, record by record, while the response is read.
//!
//! The handler's fiber reads the response. In [`while_sending`] a second fiber of the same worker sends the body, so
//! that a backend may answer before it has read everything, or answer each piece. When reading ends first, the second
//! fiber is stopped between two calls. No byte is lost, and the next `while_sending` continues: the first one belongs
//! to the handler, the next one to the body of its response.
//!
//! A sender that fails shuts the connection to the backend down, which ends the reading. [`Progress`] has the reason. A
//! panic of the sender ends the reading in the same way, and then goes on in the fiber that reads.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::rc::Rc;

use osier::Cancelled;
use osier_http::fastcgi::{RECORD_HEAD, STDIN_END, stdin_head};

use crate::RequestBody;
use crate::body::spool::Spool;
use crate::conn::transport::Transport;
use crate::upstream::attempt;

/// The most bytes in one record: enough for few calls, and few enough for a socket's send buffer.
const RECORD: usize = 32 << 10;

/// The source of the body.
pub enum Source {
    /// The whole body, read before.
    Spool(Spool),
    /// The client, which is still sending a body of this length.
    Client(u64),
}

/// The state of sending, for the side that reads.
#[derive(Default)]
pub struct Progress {
    /// Whether the whole body has been sent, or the backend reads no more.
    done: Cell<bool>,
    /// How many bytes of the request have been written to the connection.
    pub sent: Cell<u64>,
    failed: RefCell<Option<Failed>>,
}

/// Why the body could not be sent.
pub enum Failed {
    /// The client did not send it.
    Client(io::Error),
    /// The backend did not take it in time.
    TimedOut,
    /// The spooled body could not be read.
    Spool(io::Error),
}

impl Progress {
    pub fn is_done(&self) -> bool {
        self.done.get()
    }

    /// Takes the reason why the body could not be sent, if there is one.
    pub fn failure(&self) -> Option<Failed> {
        self.failed.borrow_mut().take()
    }
}

/// Sends one request body.
pub struct Sender {
    source: Source,
    /// How many bytes of the body have been put into records.
    taken: u64,
    /// The current record.
    record: Vec<u8>,
    /// How many bytes of `record` have been sent.
    sent: usize,
    /// Whether the last record is in `record`, or has been sent.
    ended: bool,
    /// Whether the opening holds the whole body.
    joined: bool,
    progress: Rc<Progress>,
}

impl Sender {
    pub fn new(source: Source) -> Sender {
        Sender {
            source,
            taken: 0,
            record: Vec::new(),
            sent: 0,
            ended: false,
            joined: false,
            progress: Rc::default(),
        }
    }

    /// Makes the sender of an empty body.
    pub fn of_nothing() -> Sender {
        Sender::new(Source::Spool(Spool::in_memory(Vec::new())))
    }

    pub fn len(&self) -> u64 {
        match &self.source {
            Source::Spool(spool) => spool.len(),
            Source::Client(len) => *len,
        }
    }

    pub fn progress(&self) -> Rc<Progress> {
        self.progress.clone()
    }

    /// Starts again for another connection. Returns false if that is too late: bytes of the client have been taken.
    pub fn begin_again(&mut self) -> bool {
        if matches!(self.source, Source::Client(_)) && self.taken > 0 {
            return false;
        }
        self.progress = Rc::default();
        if !self.joined {
            (self.taken, self.sent, self.ended) = (0, 0, false);
            self.record.clear();
        }
        true
    }

    /// Appends the whole body to `opening` if it is spooled and has at most `bound` bytes. One call then sends
    /// everything.
    pub fn join(&mut self, opening: &mut Vec<u8>, bound: usize) -> io::Result<()> {
        let Source::Spool(spool) = &self.source else {
            return Ok(());
        };
        if spool.len() > bound as u64 {
            return Ok(());
        }
        while self.taken < spool.len() {
            self.taken += record(opening, |to| spool.read_at(self.taken, RECORD, to))? as u64;
        }
        opening.extend_from_slice(&STDIN_END);
        (self.ended, self.joined) = (true, true);
        Ok(())
    }

    /// Notes that the opening has been sent. With a [joined](Sender::join) body, that was the whole request.
    pub fn opened(&self) {
        if self.is_done() {
            self.progress.done.set(true);
        }
    }

    pub fn is_done(&self) -> bool {
        self.ended && self.sent == self.record.len()
    }

    /// Sends the rest of the body. Returns early when cancelled.
    fn run(&mut self, mut stream: &Transport, client: &mut RequestBody<'_>) {
        while !self.is_done() {
            let done = if self.sent < self.record.len() {
                self.write(&mut stream)
            } else {
                self.next(client)
            };
            match done {
                Ok(()) => {}
                Err(Stop::Paused) => return,
                Err(Stop::Closed) => {
                    // The backend may have answered without reading the rest.
                    self.progress.done.set(true);
                    return;
                }
                Err(Stop::Failed(why)) => {
                    *self.progress.failed.borrow_mut() = Some(why);
                    // The end of the connection wakes the reader. An error means that the connection has ended already.
                    let _ = stream.socket().shutdown(Shutdown::Both);
                    return;
                }
            }
        }
        self.progress.done.set(true);
    }

    /// Sends bytes of the current record.
    fn write(&mut self, stream: &mut &Transport) -> Result<(), Stop> {
        match stream.write(&self.record[self.sent..]) {
            Ok(0) => Err(Stop::Closed),
            Ok(count) => {
                self.sent += count;
                self.progress.sent.update(|sent| sent + count as u64);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if Cancelled::is(&error) => Err(Stop::Paused),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Stop::Failed(Failed::TimedOut)),
            Err(_) => Err(Stop::Closed),
        }
    }

    /// Makes the next record.
    fn next(&mut self, client: &mut RequestBody<'_>) -> Result<(), Stop> {
        self.record.clear();
        self.sent = 0;
        let left = self.len() - self.taken;
        if left == 0 {
            self.record.extend_from_slice(&STDIN_END);
            self.ended = true;
            return Ok(());
        }
        let room = usize::try_from(left).unwrap_or(RECORD).min(RECORD);
        let (source, taken) = (&self.source, self.taken);
        let filled = record(&mut self.record, |to| match source {
            Source::Spool(spool) => spool.read_at(taken, room, to),
            Source::Client(_) => {
                let at = to.len();
                to.resize(at + room, 0);
                let count = client.read(&mut to[at..]);
                to.truncate(at + *count.as_ref().unwrap_or(&0));
                count
            }
        });
        match filled {
            Ok(0) => Err(Stop::Failed(Failed::Spool(io::ErrorKind::UnexpectedEof.into()))),
            Ok(count) => {
                self.taken += count as u64;
                Ok(())
            }
            Err(error) => {
                self.record.clear();
                Err(match source {
                    _ if Cancelled::is(&error) => Stop::Paused,
                    Source::Client(_) => Stop::Failed(Failed::Client(error)),
                    Source::Spool(_) => Stop::Failed(Failed::Spool(error)),
                })
            }
        }
    }
}

/// The reason why sending stops.
enum Stop {
    /// The reader of [`while_sending`] is done.
    Paused,
    /// The backend reads no more.
    Closed,
    Failed(Failed),
}

/// Appends a record whose content `fill` appends, at most [`RECORD`] bytes. Returns the length of the content.
fn record(to: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> io::Result<usize>) -> io::Result<usize> {
    let at = to.len();
    to.extend_from_slice(&stdin_head(0));
    let count = fill(to)?;
    let length = u16::try_from(count).expect("RECORD fits");
    to[at..at + RECORD_HEAD].copy_from_slice(&stdin_head(length));
    Ok(count)
}

/// Runs `read` on this fiber while another fiber sends the rest of the body.
///
/// # Cancellation
///
/// Both fibers stop.
///
/// # Panics
///
/// When the sending fiber has panicked, with its payload.
pub fn while_sending<T>(
    sender: &mut Sender,
    stream: &Transport,
    client: &mut RequestBody<'_>,
    read: impl FnOnce() -> T,
) -> T {
    if sender.is_done() {
        return read();
    }
    // The next read of the body meets the error of this call, if there is one.
    let _ = client.invite();
    let give_up = || {
        // An error means that the connection has ended already.
        let _ = stream.socket().shutdown(Shutdown::Both);
    };
    // `Progress` has the failure of the sending fiber.
    attempt::while_sending(move || sender.run(stream, client), give_up, read).0
}
