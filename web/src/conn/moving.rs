//! Moves connections to another process in an upgrade: the old process collects them, the new one adopts them.
//!
//! ```text
//!   the collecting fiber of each worker ─ wake ─▶ a connection at rest ─ move_away ─▶ Dialog ─▶ new process ─▶ adopt
//!   the end of a burst ───────────────────────────────────┘
//! ```
//!
//! A connection moves on its own fiber, so nothing else touches it. Once its record is queued, this process neither reads from its socket
//! nor writes to it.
//!
//! A record is made in this order: the session saves itself and sends what it has queued, HTTP/2 is exported, TLS is exported. TLS comes
//! last, because its state changes with each record that is sent: two processes that used one number would break the encryption. A
//! connection whose session has saved itself has to end if it cannot move then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::{self, Rc};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::Extensions;
use osier::net::Stream;
use osier_http::HeadScanner;

use crate::conn::announced::Announced;
use crate::conn::close::CloseReason;
use crate::conn::handover::dialog::{BATCH, Dialog, Leaving, Moving, RECORD_MAX};
use crate::conn::handover::record::{Record, Saved};
#[cfg(feature = "tls")]
use crate::conn::handshake::Handshake;
use crate::conn::head::Partial;
use crate::conn::log::record::{Level, Record as LogRecord};
use crate::conn::serve::{Local, Service};
use crate::conn::tunnel::TunnelReport;
use crate::conn::upgrade::{Session, Takeover};
use crate::conn::worker::{Closes, Link, RESTING};
use crate::conn::{Conn, End, Stage, Taken, after};

/// Time between two looks of a worker for connections that have begun to rest without moving.
const TICK: Duration = Duration::from_millis(10);

/// The same once most connections have moved.
const LATER_TICK: Duration = Duration::from_millis(50);

/// Time after which a connection that could not move is asked again. It doubles each time, up to the longest: in general a connection moves
/// by itself when it can, at the end of a burst.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The longest such time.
const ASK_SELDOM: Duration = Duration::from_secs(60);

/// Makes the session of a connection anew, given the socket to its backend if it is a tunnel.
type Restore<'r> = dyn Fn(&Record, Option<Stream>) -> Option<Box<dyn Session>> + 'r;

/// The work of a collecting fiber.
pub(crate) struct Collecting {
    pub(crate) dialog: Arc<Dialog>,
    /// The name of the server.
    pub(crate) server: Arc<str>,
    /// It ends with this.
    pub(crate) goes_on: Weak<()>,
    /// Incremented when every connection has been asked once.
    pub(crate) passed: Arc<AtomicUsize>,
}

impl Collecting {
    fn is_over(&self) -> bool {
        self.goes_on.strong_count() == 0
    }
}

/// Makes the connections of this worker move, until it is stopped.
///
/// # Suspends
///
/// Until then.
pub(crate) fn collect(service: &Service, task: Collecting) {
    let local = Local::here(service);
    let worker = &local.worker;
    worker.leaving.replace(Some(Rc::new(Leaving {
        dialog: Arc::clone(&task.dialog),
        server: Arc::clone(&task.server),
    })));
    worker.closes.set(Closes::Fixed);
    let (mut asked, begun) = (Asked::default(), osier::time::now());
    let mut is_first = true;
    while !task.is_over() {
        let (mut count, now) = (0, osier::time::now());
        for link in worker.links() {
            if task.is_over() {
                break;
            }
            if asked.is_due(&link, now) {
                osier::dormant::wake(link.socket());
                count += 1;
                if count % BATCH == 0 {
                    osier::yield_now();
                    task.dialog.wait_for_room(|| task.is_over());
                }
            }
        }
        if is_first {
            // The connections that were woken last run now.
            osier::yield_now();
            task.passed.fetch_add(1, Ordering::Release);
            is_first = false;
        }
        asked.forget_ended(now);
        osier::sleep(match now.saturating_duration_since(begun) < ASK_AGAIN {
            true => TICK,
            false => LATER_TICK,
        });
    }
    worker.leaving.replace(None);
    if worker.closes.get() == Closes::Fixed {
        worker.closes.set(Closes::None);
    }
}

/// The connections of a worker that have been asked to move, and are still there.
#[derive(Default)]
struct Asked {
    /// The key is the address of the link, whose memory is not used again while there is a weak reference to it.
    links: HashMap<*const Link, AskedLink>,
    /// When those that have ended were forgotten last.
    swept: Option<Instant>,
}

struct AskedLink {
    link: rc::Weak<Link>,
    again: Instant,
    pause: Duration,
    /// Whether a burst of it ran at the last look, or streams did, whose end wakes nobody.
    was_busy: bool,
}

impl Asked {
    /// Whether a connection is to be asked now. It is noted as asked then.
    fn is_due(&mut self, link: &Rc<Link>, now: Instant) -> bool {
        let asked = match self.links.entry(Rc::as_ptr(link)) {
            Entry::Vacant(_) if link.is_busy() => return false,
            Entry::Vacant(new) => {
                new.insert(AskedLink {
                    link: Rc::downgrade(link),
                    again: now + ASK_AGAIN,
                    pause: ASK_AGAIN,
                    was_busy: false,
                });
                return true;
            }
            Entry::Occupied(asked) => asked.into_mut(),
        };
        if link.is_busy() {
            asked.was_busy = true;
            return false;
        }
        if std::mem::take(&mut asked.was_busy) {
            asked.pause = Duration::ZERO;
        } else if now < asked.again {
            return false;
        }
        asked.pause = (2 * asked.pause).clamp(ASK_AGAIN, ASK_SELDOM);
        asked.again = now + asked.pause;
        true
    }

    /// Forgets those that have ended, once in a while.
    fn forget_ended(&mut self, now: Instant) {
        if self
            .swept
            .is_none_or(|swept| now.saturating_duration_since(swept) >= ASK_AGAIN)
        {
            self.swept = Some(now);
            self.links.retain(|_, asked| asked.link.strong_count() > 0);
        }
    }
}

/// A reason for which a connection does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CannotMove {
    /// The connection goes on in this process.
    Now,
    /// The connection cannot go on in this process either.
    AndEnds,
}

impl CannotMove {
    /// A session that has saved itself is gone.
    fn after(record: &Record) -> CannotMove {
        match record.session.is_some() || record.tunnel.is_some() {
            false => CannotMove::Now,
            true => CannotMove::AndEnds,
        }
    }
}

/// Lets a session save itself. If it could not send all that it wanted, a part of a message may have been sent, behind which nobody can go on.
fn save(taken: &mut Taken) -> Result<Saved, CannotMove> {
    taken.io.has_failed = false;
    let saved = taken.session.save(&mut taken.io);
    match taken.io.has_failed {
        true => Err(CannotMove::AndEnds),
        false => saved.ok_or(CannotMove::Now),
    }
}

impl Conn {
    /// Queues the connection for the new process if this process hands over, and the connection rests and can move. Returns whether this
    /// process is done with it.
    ///
    /// # Suspends
    ///
    /// While a session sends what it has queued.
    #[cold]
    pub(super) fn move_away(&mut self, leaving: &Leaving) -> bool {
        if !leaving.dialog.is_open() {
            return false;
        }
        let Ok(socket) = self.link.socket().try_clone() else {
            return false;
        };
        let mut report = None;
        let made = self.record(&leaving.server, &mut report).and_then(|(record, backend)| {
            let stays = CannotMove::after(&record);
            let moving = Moving {
                record,
                socket,
                backend,
                report: report.take(),
            };
            // The handover may have ended while the session was sending.
            match leaving.dialog.post_connection(moving) {
                true => Ok(()),
                false => Err(stays),
            }
        });
        match made {
            Ok(()) => self.link.moves(),
            Err(CannotMove::Now) => return false,
            Err(CannotMove::AndEnds) => self.link.ends(CloseReason::Failed),
        }
        true
    }

    /// The state of the connection, if it is at rest and can move. That of a tunnel comes with the socket to its backend, and `report`
    /// gets the report of its end.
    fn record(
        &mut self,
        server: &Arc<str>,
        report: &mut Option<TunnelReport>,
    ) -> Result<(Record, Option<Stream>), CannotMove> {
        let link = self.link.clone();
        let mut record = Record {
            server: server.to_string(),
            peer: link.peer(),
            is_proxied: link.is_proxied(),
            is_fresh: link.is_fresh(),
            is_announced: false,
            received: Vec::new(),
            tls: None,
            http2: None,
            session: None,
            tunnel: None,
        };
        let mut backend = None;
        match self.stage.as_deref_mut() {
            None => {}
            // The export fails for TLS connections that cannot move.
            #[cfg(feature = "tls")]
            Some(Stage::Handshake(_)) => {}
            Some(Stage::Head(partial)) => record.received = partial.received().to_vec(),
            Some(Stage::Announced(announced)) => {
                record.is_announced = true;
                record.received = announced.bytes.clone();
            }
            Some(Stage::Session(taken)) if taken.io.buffered().is_empty() && link.transport.is_exportable() => {
                // The stream of a pair stays: its bytes would cross both processes, and nobody could say goodbye at the end.
                if taken.io.end == End::Pair {
                    return Err(CannotMove::Now);
                }
                match taken.session.save_tunnel() {
                    Some((tunnel, socket, to_come)) => {
                        (record.tunnel, backend, *report) = (Some(tunnel), Some(socket), to_come);
                    }
                    None => record.session = Some(save(taken)?),
                }
            }
            #[cfg(feature = "h2")]
            Some(Stage::Streams(streams)) => record.http2 = Some(streams.export().ok_or(CannotMove::Now)?),
            Some(_) => return Err(CannotMove::Now),
        }
        if link.transport.plain().is_none() {
            let exported = link.transport.export();
            record.tls = Some(exported.ok_or_else(|| CannotMove::after(&record))?);
        }
        match record.bytes() <= RECORD_MAX {
            true => Ok((record, backend)),
            false => Err(CannotMove::after(&record)),
        }
    }

    /// Makes the worker of `local` serve a connection of another process, which the caller has counted. `restore` makes its session.
    pub(crate) fn adopt(local: &Rc<Local>, moving: Moving, restore: &Restore<'_>) {
        let Moving {
            record,
            socket: stream,
            backend,
            report,
        } = moving;
        let worker = &local.worker;
        let (server, timeouts) = (&worker.server, &worker.server.timeouts);
        server.set_pace(&stream);
        let prepared = stream
            .set_read_timeout(Some(RESTING))
            .and_then(|()| stream.set_write_timeout(Some(timeouts.write)));
        let transport = match &record.tls {
            None => Some(stream.into()),
            Some(exported) => server.import(stream, exported),
        };
        let Some(transport) = transport else {
            server.not_adopted(worker.index, record.peer, record.is_proxied);
            return server.log(&LogRecord::new(
                Level::Error,
                format_args!("closed a connection that the old process handed over: its TLS state cannot be read"),
            ));
        };
        let link = worker.adopt(transport, &record);
        let stage = match prepared {
            Ok(()) => stage_of(&record, (backend, report), local, &link, restore),
            Err(_) => None,
        };
        let Some((stage, patience)) = stage else {
            link.ends(CloseReason::Failed);
            worker.unlink(&link);
            return server.log(&LogRecord::new(
                Level::Error,
                format_args!("closed a connection that the old process handed over: nothing here goes on with it"),
            ));
        };
        // Its first look sets its deadline, and refuses a head that is beyond the limits of this server.
        let wants_look = matches!(&stage, Some(Stage::Head(_)));
        let conn = Box::new(Conn {
            link: link.clone(),
            local: local.clone(),
            stage: stage.map(Box::new),
        });
        if let Err(error) = osier::dormant::park_local(conn, after(patience)) {
            let text =
                format_args!("closed a connection that the old process handed over: cannot watch its socket: {error}");
            return server.log(&LogRecord::new(Level::Error, text));
        }
        if wants_look || link.transport.has_unread() {
            osier::dormant::wake(link.socket());
        }
    }
}

/// The stage in which a connection goes on, and how long it may rest. `None` for one that cannot go on.
fn stage_of(
    record: &Record,
    (backend, report): (Option<Stream>, Option<TunnelReport>),
    local: &Rc<Local>,
    link: &Rc<Link>,
    restore: &Restore<'_>,
) -> Option<(Option<Stage>, Duration)> {
    let timeouts = &local.worker.server.timeouts;
    let _ = link;
    if record.session.is_some() || record.tunnel.is_some() {
        let mut session = restore(record, backend)?;
        if let Some(report) = report {
            session.has_come_back(report);
        }
        let begins = Stage::Begins(Takeover::Rest(session), Extensions::new(), End::Client);
        return Some((Some(begins), Duration::ZERO));
    }
    #[cfg(feature = "h2")]
    if let Some(exported) = &record.http2 {
        let streams = local.app.multiplex_imported(local, link, exported)?;
        link.speaks(link.transport.spoken(true));
        return Some((Some(Stage::Streams(streams)), Duration::ZERO));
    }
    if record.is_announced {
        let begun = !record.received.is_empty();
        let patience = if begun { timeouts.header } else { timeouts.idle };
        let announced = Announced {
            bytes: record.received.clone(),
            deadline: after(patience).filter(|_| begun),
        };
        return Some((Some(Stage::Announced(announced)), patience));
    }
    #[cfg(feature = "tls")]
    if record.tls.is_some() && !link.transport.is_established() {
        let patience = timeouts.handshake;
        return Some((Some(Stage::Handshake(Handshake::until(after(patience)))), patience));
    }
    if record.received.is_empty() {
        return Some((None, timeouts.idle));
    }
    // The record does not tell whether the connection begins with these bytes. A client that is moved within the first four bytes of a
    // later head can switch to HTTP/2 by sending its preface there. Only that client is affected.
    let is_first = true;
    let partial = Partial::new(&record.received, HeadScanner::new(), is_first);
    Some((Some(Stage::Head(Box::new(partial))), timeouts.header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::upgrade::Upgraded;
    use crate::{Router, Server, Timeouts};
    use osier::dormant::{AfterBurst, Cause};
    use std::cell::Cell;
    use std::io::Write;

    /// Sends so many bytes before it moves.
    struct Talks(usize);

    impl Session for Talks {
        fn wake(&mut self, _: &mut Upgraded, _: Cause) -> AfterBurst {
            AfterBurst::Sleep(None)
        }

        fn save(&mut self, io: &mut Upgraded) -> Option<Saved> {
            let _ = io.write_all(&vec![b'x'; self.0]);
            Some(Saved {
                part: "talks".into(),
                bytes: Vec::new(),
            })
        }
    }

    /// Lets a session move that sends so many bytes to a client that reads nothing. Returns how many connections are on their way after
    /// its end here.
    fn moved(bytes: usize, dialog: Dialog) -> usize {
        osier::run(move || {
            let timeouts = Timeouts {
                write: Duration::from_millis(20),
                ..Timeouts::default()
            };
            let server = Server::new(Router::new()).timeouts(timeouts);
            let local = Local::here(&server.service(osier::workers(), None));
            let dialog = Arc::new(dialog);
            local.worker.leaving.replace(Some(Rc::new(Leaving {
                dialog: Arc::clone(&dialog),
                server: "web".into(),
            })));
            let takeover = (Takeover::Rest(Box::new(Talks(bytes))), Extensions::new());
            let _client = Conn::begin_with(takeover, End::Client, &local, ([127, 0, 0, 1], 1).into()).unwrap();
            // The first burst of the connection comes first.
            let begun = std::time::Instant::now();
            while !local.worker.is_empty() && (dialog.is_open() || begun.elapsed() < TICK) {
                osier::sleep(Duration::from_millis(1));
            }
            dialog.take_back().len()
        })
    }

    #[test]
    fn a_session_that_cannot_send_all_does_not_move() {
        assert_eq!(moved(10, Dialog::new()), 1);
        assert_eq!(moved(64 << 20, Dialog::new()), 0);
    }

    #[test]
    fn no_connection_moves_to_a_process_that_is_gone() {
        let broken = Dialog::new();
        broken.break_off(|| "it has ended".into());
        assert_eq!(moved(10, broken), 0);
    }

    /// Counts how often it is asked to move, and does not.
    struct Stays(Rc<Cell<u32>>);

    impl Session for Stays {
        fn wake(&mut self, io: &mut Upgraded, _: Cause) -> AfterBurst {
            // A socket whose bytes nobody asks for counts as readable, and wakes at once.
            while matches!(io.stream().try_read(&mut [0; 16]), Ok(1..)) {}
            AfterBurst::Sleep(None)
        }

        fn save(&mut self, _: &mut Upgraded) -> Option<Saved> {
            self.0.update(|count| count + 1);
            None
        }
    }

    #[test]
    fn a_connection_that_cannot_move_is_asked_less_and_less() {
        let clock = osier::time::VirtualClock::new();
        let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
        runtime.run(|| {
            let service = Server::new(Router::new()).service(1, None);
            let (local, asked) = (Local::here(&service), Rc::new(Cell::new(0)));
            let takeover = (Takeover::Rest(Box::new(Stays(asked.clone()))), Extensions::new());
            let _client = Conn::begin_with(takeover, End::Client, &local, ([127, 0, 0, 1], 1).into()).unwrap();
            let goes_on = Arc::new(());
            let task = Collecting {
                dialog: Arc::new(Dialog::new()),
                server: "web".into(),
                goes_on: Arc::downgrade(&goes_on),
                passed: Arc::default(),
            };
            let collecting = osier::spawn_local(move || collect(&service, task));
            // It is asked at once, and after 1, 3, 7 and 15 seconds: each time before a burst and after it.
            osier::sleep(Duration::from_secs(20));
            assert!((4..=12).contains(&asked.get()), "{asked:?}");
            drop(goes_on);
            collecting.join().unwrap();
        });
    }
}
