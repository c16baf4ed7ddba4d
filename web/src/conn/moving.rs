//! Moves connections to another process in an upgrade: the old process collects them, the new one adopts them.
//!
//! ```text
//!   the collecting fiber of each worker ── wake ──▶ a connection at rest ── move_away ──▶ Line ─▶ the new process ─▶ adopt
//!   the end of a burst ─────────────────────────────────────┘
//! ```
//!
//! A connection moves on its own fiber, so nothing else touches it. Once its record is queued, this process neither reads from its socket
//! nor writes to it.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Extensions;
use osier::memory::Account;
use osier::net::Stream;
use osier_http::HeadScanner;

use crate::conn::close::CloseReason;
use crate::conn::handover::line::{BATCH, Leaving, Line};
use crate::conn::handover::record::{Record, Saved};
#[cfg(feature = "tls")]
use crate::conn::handshake::Handshake;
use crate::conn::log::record::{Level, Record as LogRecord};
use crate::conn::serve::{Local, Service};
use crate::conn::upgrade::{Session, Takeover};
use crate::conn::worker::{Closes, Link, RESTING};
use crate::conn::{Announced, Conn, PARTIAL_ROOM, Partial, Stage, after};

/// Time between two looks of a worker for connections that have begun to rest without moving.
const TICK: Duration = Duration::from_millis(10);

/// Time after which a connection that could not move is tried again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Makes the session of a connection anew.
type Restore<'r> = dyn Fn(&Saved) -> Option<Box<dyn Session>> + 'r;

/// The work of a collecting fiber.
pub(crate) struct Collecting {
    pub(crate) line: Arc<Line>,
    /// The name of the server.
    pub(crate) server: Arc<str>,
    /// Set to end it.
    pub(crate) stop: Arc<AtomicBool>,
    /// Incremented when every connection has been asked once.
    pub(crate) passed: Arc<AtomicUsize>,
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
        line: Arc::clone(&task.line),
        server: task.server,
    })));
    worker.closes.set(Closes::Fixed);
    let (mut asked, mut since) = (HashSet::new(), osier::time::now());
    let mut is_first = true;
    while !task.stop.load(Ordering::Acquire) {
        let mut count = 0;
        for link in worker.links() {
            if !link.is_busy() && asked.insert(Rc::as_ptr(&link)) {
                osier::dormant::wake(link.socket());
                count += 1;
                if count % BATCH == 0 {
                    osier::yield_now();
                    task.line.wait_for_room();
                }
            }
        }
        if is_first {
            // The connections that were woken last run now.
            osier::yield_now();
            task.passed.fetch_add(1, Ordering::Release);
            is_first = false;
        }
        osier::sleep(TICK);
        if osier::time::now().saturating_duration_since(since) >= ASK_AGAIN {
            asked.clear();
            since = osier::time::now();
        }
    }
    worker.leaving.replace(None);
    if worker.closes.get() == Closes::Fixed {
        worker.closes.set(Closes::None);
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
        let Ok(socket) = self.link.socket().try_clone() else {
            return false;
        };
        let Some(record) = self.record(&leaving.server) else {
            return false;
        };
        if record.tls.is_none() && self.link.transport.plain().is_none() {
            // Its session has been saved and goes on nowhere.
            self.link.ends(CloseReason::Failed);
            return true;
        }
        self.link.moves();
        leaving.line.post_connection((record, socket));
        true
    }

    /// The state of the connection, if it is at rest and can move.
    fn record(&mut self, server: &Arc<str>) -> Option<Record> {
        let link = self.link.clone();
        let is_plain = link.transport.plain().is_some();
        let tls = match is_plain {
            true => None,
            false => Some(link.transport.export()?),
        };
        let mut record = Record {
            server: server.to_string(),
            peer: link.peer(),
            is_proxied: link.is_proxied(),
            is_fresh: link.is_fresh(),
            is_announced: false,
            received: Vec::new(),
            tls,
            http2: None,
            session: None,
        };
        match self.stage.as_deref_mut() {
            None => {}
            // The export fails for TLS connections that cannot move.
            #[cfg(feature = "tls")]
            Some(Stage::Handshake(_)) => {}
            Some(Stage::Head(partial)) => record.received = partial.bytes[..partial.filled].to_vec(),
            Some(Stage::Announced(announced)) => {
                record.is_announced = true;
                record.received = announced.bytes.clone();
            }
            Some(Stage::Session(taken)) if taken.io.buffered().is_empty() => {
                record.session = Some(taken.session.save(&mut taken.io)?);
                // It may have sent something, and the number of a record of TLS is used once.
                record.tls = record.tls.and_then(|_| link.transport.export());
            }
            #[cfg(feature = "h2")]
            Some(Stage::Streams(streams)) => record.http2 = Some(streams.export()?),
            Some(_) => return None,
        }
        Some(record)
    }

    /// Makes the worker of `local` serve a connection of another process, which the caller has counted. `restore` makes its session.
    pub(crate) fn adopt(local: &Rc<Local>, stream: Stream, record: Record, restore: &Restore<'_>) {
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
            Ok(()) => stage_of(&record, local, &link, restore),
            Err(_) => None,
        };
        let Some((stage, patience)) = stage else {
            link.ends(CloseReason::Failed);
            worker.unlink(&link);
            return;
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
    local: &Rc<Local>,
    link: &Rc<Link>,
    restore: &Restore<'_>,
) -> Option<(Option<Stage>, Duration)> {
    let timeouts = &local.worker.server.timeouts;
    let _ = link;
    if let Some(session) = &record.session {
        let session = restore(session)?;
        let begins = Stage::Begins(Takeover::Rest(session), Extensions::new());
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
    let (mut bytes, filled) = (record.received.clone(), record.received.len());
    bytes.resize(filled + PARTIAL_ROOM, 0);
    let partial = Partial {
        charge: Account::HEADS.charge(bytes.len()),
        bytes,
        filled,
        scanner: HeadScanner::new(),
        since: osier::time::coarse_now(),
    };
    Some((Some(Stage::Head(Box::new(partial))), timeouts.header))
}
