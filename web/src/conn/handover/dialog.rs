//! The exchange of messages with the other process: the queue in front of the socket, and the state that the other
//! process has reported.
//!
//! ```text
//!   connections, parts, the handover ─▶ queue ─▶ the sender's fiber ─▶ socket
//!                               Heard, parts ◀─ the reader's fiber ◀─ socket
//! ```
//!
//! One queue keeps the order: what is said in a chat and the guests of the chat arrive in the order in which they were
//! queued. The sender waits until the other process has taken a batch of connections before it sends another batch. A
//! batch that was not taken comes back with [`Dialog::take_back`].
//!
//! # States
//!
//! ```text
//!   open ── finish, close ─▶ closed: the sender ends when the queue is empty
//!     └──── break_off ─────▶ broken: the sender ends, and what is queued waits ── take_back ─▶ closed
//! ```
//!
//! No connection begins to move unless the dialog is [open](Dialog::is_open). One that is moving already is queued
//! while the dialog is broken, and comes back with the others. A closed dialog refuses it, because nobody would look
//! for it there.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use osier::net::Stream;
use osier::sync::Event;

use super::channel::Sending;
use super::format::{DESCRIPTORS_MAX, Message, PAYLOAD_MAX};
use super::record::Record;
use crate::conn::tunnel::{TunnelEnd, TunnelReport};
use crate::lock;

/// The most connections of a batch, and the number of queued ones at which no more are woken to move.
pub(crate) const BATCH: usize = 64;

/// The size of its records at which a batch takes no further one.
const BATCH_BYTES: usize = 4 << 20;

/// The largest record that moves. A batch that ends with such a record still fits into one message.
pub(crate) const RECORD_MAX: usize = 8 << 20;

/// How often a fiber looks whether something has been sent.
const TICK: Duration = Duration::from_millis(2);

const _: () = assert!(BATCH_BYTES + RECORD_MAX < PAYLOAD_MAX);
// A tunnel has two.
const _: () = assert!(2 * BATCH <= DESCRIPTORS_MAX);

/// The process to which the connections of a worker go.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) dialog: Arc<Dialog>,
    /// The name of the server.
    pub(crate) server: Arc<str>,
}

/// A connection that moves. Its sockets stay open here until the other process has taken the connection.
pub(crate) struct Moving {
    pub(crate) record: Record,
    pub(crate) socket: Stream,
    /// The socket to the backend, if the connection is a tunnel.
    pub(crate) backend: Option<Stream>,
    /// The report of the end of a tunnel, if somebody wants it.
    pub(crate) report: Option<TunnelReport>,
}

enum Outgoing {
    Message(Message),
    Connection(Box<Moving>),
}

/// The state that the other process has reported so far.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The names of the servers of a process that is ready.
    pub(crate) ready: Option<Vec<String>>,
    /// Whether the other process serves.
    pub(crate) accepting: bool,
    /// Whether the other process, which is the old one, accepts no more connections.
    pub(crate) closed: bool,
    /// Whether the other process hands over to a third one.
    pub(crate) leaving: bool,
    /// Whether the other process shuts down because somebody has asked it to.
    pub(crate) stopping: bool,
    /// Whether the other process serves, but can take no more connections.
    pub(crate) failed: bool,
    /// The number of the last batch that the other process has taken.
    taken: u32,
    /// The reason why nothing more will arrive.
    pub(crate) broken: Option<String>,
}

#[derive(Default)]
struct Queue {
    outgoing: VecDeque<Outgoing>,
    /// The number of connections in `outgoing`.
    connections: usize,
    /// The number of entries that have been added.
    added: u64,
    /// The number of entries that have left this process, each connection among them taken.
    sent: u64,
    /// Whether the queue takes no more connections. The sender then ends when the queue is empty.
    is_closed: bool,
    is_broken: bool,
    has_sender_ended: bool,
    /// The batch that was sent and has not been taken. The sender has the other reference.
    untaken: Arc<Vec<Moving>>,
    /// The number of the last batch.
    batch: u32,
}

impl Queue {
    fn add(&mut self, outgoing: Outgoing) -> u64 {
        self.outgoing.push_back(outgoing);
        self.added += 1;
        self.added
    }
}

/// The exchange of messages with one other process.
pub(crate) struct Dialog {
    queue: Mutex<Queue>,
    heard: Mutex<Heard>,
    /// Set when an entry is queued, or the dialog is closed or broken. Only the sender waits.
    filled: Event,
    /// Set when `heard` changes. Only the sender waits.
    answered: Event,
    /// Set when `heard` changes. Only the fiber of the handover waits.
    changed: Event,
    /// Set when the sender has sent something, or has ended. Only the fiber in [`send_through`](Dialog::send_through)
    /// waits.
    written: Event,
    /// Set while fewer than [`BATCH`] connections are queued, and for good once the dialog is broken. Written under the
    /// lock of the queue.
    room: Event,
}

// The queue has keys of connections.
osier_queue::impl_debug!(Dialog, self => { is_open: self.is_open(), has_delivered: self.has_delivered(), .. });

impl Dialog {
    pub(crate) fn new() -> Dialog {
        let room = Event::manual();
        room.set();
        Dialog {
            queue: Mutex::default(),
            heard: Mutex::default(),
            filled: Event::new(),
            answered: Event::new(),
            changed: Event::new(),
            written: Event::new(),
            room,
        }
    }

    /// Queues a message. Never waits.
    pub(crate) fn post(&self, message: Message) {
        self.add(message);
    }

    /// Queues a message, and waits until it has left this process, with everything before it. Returns whether it has.
    ///
    /// # Suspends
    ///
    /// Until then, or until the sender has ended. One fiber at a time may wait.
    pub(crate) fn send_through(&self, message: Message) -> bool {
        let number = self.add(message);
        loop {
            if let Some(is_sent) = self.is_sent(number) {
                return is_sent;
            }
            self.written.wait();
        }
    }

    /// Queues a message, and waits until it has left this process, for `limit` at most. Returns whether it has, and `None` if the sender still
    /// tries.
    ///
    /// # Suspends
    ///
    /// Until then, or until the sender has ended. Any number of fibers may wait.
    pub(crate) fn send_within(&self, message: Message, limit: Duration) -> Option<bool> {
        let (number, begun) = (self.add(message), osier::time::now());
        loop {
            let is_sent = self.is_sent(number);
            if is_sent.is_some() || osier::time::now().saturating_duration_since(begun) >= limit {
                return is_sent;
            }
            osier::sleep(TICK);
        }
    }

    fn add(&self, message: Message) -> u64 {
        let number = lock(&self.queue).add(Outgoing::Message(message));
        self.filled.set();
        number
    }

    /// Whether the entry with this number has left this process. `None` while it may still do so.
    fn is_sent(&self, number: u64) -> Option<bool> {
        let queue = lock(&self.queue);
        let is_sent = queue.sent >= number;
        (is_sent || queue.has_sender_ended).then_some(is_sent)
    }

    /// Whether connections may begin to move.
    pub(crate) fn is_open(&self) -> bool {
        let queue = lock(&self.queue);
        !queue.is_closed && !queue.is_broken
    }

    /// Queues a connection. Never waits. Returns whether it is queued: a closed dialog takes none.
    #[must_use]
    pub(crate) fn post_connection(&self, moving: Moving) -> bool {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return false;
        }
        queue.add(Outgoing::Connection(Box::new(moving)));
        queue.connections += 1;
        if queue.connections >= BATCH && !queue.is_broken {
            self.room.reset();
        }
        drop(queue);
        self.filled.set();
        true
    }

    /// Waits until fewer than [`BATCH`] connections are queued, the dialog is broken, or the caller `is_over`: a new process may take
    /// nothing for long.
    ///
    /// # Suspends
    ///
    /// Until then.
    pub(crate) fn wait_for_room(&self, is_over: impl Fn() -> bool) {
        while !is_over() && !self.room.wait_timeout(TICK) {}
    }

    /// Whether every connection that was queued has been taken.
    pub(crate) fn has_delivered(&self) -> bool {
        let queue = lock(&self.queue);
        queue.connections == 0 && queue.untaken.is_empty()
    }

    /// Lets the sender end when it has sent what is queued.
    pub(crate) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.filled.set();
    }

    /// Queues the last message and closes the dialog: no connection comes behind it.
    pub(crate) fn finish(&self, last: Message) {
        let mut queue = lock(&self.queue);
        queue.add(Outgoing::Message(last));
        queue.is_closed = true;
        drop(queue);
        self.filled.set();
    }

    /// Changes the state that the other process has reported.
    pub(crate) fn hear(&self, note: impl FnOnce(&mut Heard)) {
        note(&mut lock(&self.heard));
        self.answered.set();
        self.changed.set();
    }

    /// Notes that a batch has been taken.
    pub(crate) fn hear_taken(&self, batch: u32) {
        self.hear(|heard| heard.taken = batch);
    }

    /// Notes that nothing more will arrive. The first reason counts.
    pub(crate) fn break_off(&self, why: impl FnOnce() -> String) {
        self.hear(|heard| {
            heard.broken.get_or_insert_with(why);
        });
        let mut queue = lock(&self.queue);
        queue.is_broken = true;
        self.room.set();
        self.filled.set();
    }

    /// Notes that nothing more can be sent. If the other process has closed the socket, the reader has the better
    /// reason.
    pub(crate) fn break_off_writing(&self, error: &io::Error) {
        if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            self.break_off(|| format!("cannot write to the other process: {error}"));
        }
    }

    /// The reason why the dialog is broken, if it is.
    pub(crate) fn why_broken(&self) -> Option<String> {
        lock(&self.heard).broken.clone()
    }

    /// Looks at the state that the other process has reported.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&lock(&self.heard))
    }

    /// Waits until `found` returns a value from the reported state, for `limit` at most. Returns `None` after that
    /// time.
    ///
    /// # Suspends
    ///
    /// Until then. One fiber at a time may wait.
    ///
    /// # Errors
    ///
    /// The reason why the dialog is broken.
    pub(crate) fn wait_for<T>(
        &self,
        limit: Duration,
        mut found: impl FnMut(&mut Heard) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let begun = osier::time::now();
        loop {
            {
                let mut heard = lock(&self.heard);
                if let Some(found) = found(&mut heard) {
                    return Ok(Some(found));
                }
                if let Some(why) = &heard.broken {
                    return Err(why.clone());
                }
            }
            let left = limit.saturating_sub(osier::time::now().saturating_duration_since(begun));
            if left.is_zero() {
                return Ok(None);
            }
            self.changed.wait_timeout(left);
        }
    }

    /// Waits until the reported state changes, for `limit` at most.
    ///
    /// # Suspends
    ///
    /// Until then. One fiber at a time may wait.
    pub(crate) fn wait_a_while(&self, limit: Duration) {
        self.changed.wait_timeout(limit);
    }

    /// Closes the dialog, and returns the connections that the other process has not taken. Call it when the sender's
    /// fiber has ended.
    pub(crate) fn take_back(&self) -> Vec<Moving> {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let mut back = Arc::into_inner(mem::take(&mut queue.untaken)).unwrap_or_default();
        queue.connections = 0;
        for outgoing in mem::take(&mut queue.outgoing) {
            if let Outgoing::Connection(moving) = outgoing {
                back.push(*moving);
            }
        }
        back
    }

    /// The work of the sender's fiber: sends until the dialog is closed or broken.
    pub(crate) fn send_all(&self, sending: &Sending) {
        let mut outcome = Ok(());
        while outcome.is_ok()
            && let Some(outgoing) = self.next()
        {
            let sent = match outgoing {
                Outgoing::Message(message) => sending.send(&message, &[]).map(|()| 1),
                Outgoing::Connection(first) => self.send_batch(*first, sending),
            };
            outcome = sent.map(|count| {
                lock(&self.queue).sent += count;
                self.written.set();
            });
        }
        lock(&self.queue).has_sender_ended = true;
        self.written.set();
        if let Err(error) = outcome {
            self.break_off_writing(&error);
        }
    }

    /// The first entry of the queue. `None` when the dialog is closed and the queue empty, or when the dialog is
    /// broken.
    fn next(&self) -> Option<Outgoing> {
        loop {
            if self.look(|heard| heard.broken.is_some()) {
                return None;
            }
            {
                let mut queue = lock(&self.queue);
                match queue.outgoing.pop_front() {
                    None if queue.is_closed => return None,
                    None => {}
                    some => return some,
                }
            }
            self.filled.wait();
        }
    }

    /// Sends a connection with the next ones in the queue, and waits until the other process has taken them. Returns
    /// their number, or 0 if the dialog breaks before.
    fn send_batch(&self, first: Moving, sending: &Sending) -> io::Result<u64> {
        let mut queue = lock(&self.queue);
        let mut bytes = first.record.bytes();
        let mut moving = vec![first];
        while moving.len() < BATCH
            && bytes < BATCH_BYTES
            && let Some(Outgoing::Connection(_)) = queue.outgoing.front()
            && let Some(Outgoing::Connection(next)) = queue.outgoing.pop_front()
        {
            bytes += next.record.bytes();
            moving.push(*next);
        }
        let count = moving.len() as u64;
        queue.batch += 1;
        let batch = queue.batch;
        queue.connections = queue.connections.saturating_sub(moving.len());
        let records: Vec<Record> = moving.iter().map(|moving| moving.record.clone()).collect();
        queue.untaken = Arc::new(moving);
        let moving = Arc::clone(&queue.untaken);
        drop(queue);
        let sockets = moving
            .iter()
            .flat_map(|moving| [Some(&moving.socket), moving.backend.as_ref()]);
        let descriptors: Vec<_> = sockets.flatten().map(AsFd::as_fd).collect();
        sending.send(&Message::Connections { batch, records }, &descriptors)?;
        loop {
            let (taken, is_broken) = self.look(|heard| (heard.taken == batch, heard.broken.is_some()));
            if taken {
                break;
            }
            if is_broken {
                return Ok(0);
            }
            self.answered.wait();
        }
        let mut queue = lock(&self.queue);
        queue.untaken = Arc::default();
        if queue.connections < BATCH {
            self.room.set();
        }
        drop(queue);
        let moved = Arc::into_inner(moving).unwrap_or_default();
        let reports = moved.into_iter().filter_map(|moved| moved.report);
        reports.for_each(|report| report.tell(TunnelEnd::Moved));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel;
    use super::*;
    use std::os::unix::net::UnixStream;

    fn moving(port: u16) -> Moving {
        let record = Record {
            server: String::new(),
            peer: ([127, 0, 0, 1], port).into(),
            is_proxied: false,
            is_fresh: false,
            is_announced: false,
            received: Vec::new(),
            tls: None,
            http2: None,
            session: None,
            tunnel: None,
        };
        Moving {
            record,
            socket: osier::net::UnixStream::from(UnixStream::pair().unwrap().0).into(),
            backend: None,
            report: None,
        }
    }

    /// The number of the next batch with the ports of its records, or 0 with the bytes of a message of a part.
    fn received(receiving: &mut channel::Receiving) -> (u32, Vec<u16>) {
        match receiving.receive().unwrap().unwrap().0 {
            Message::Connections { batch, records } => {
                (batch, records.iter().map(|record| record.peer.port()).collect())
            }
            Message::Part { bytes, .. } => (0, bytes.into_iter().map(u16::from).collect()),
            other => panic!("{other:?}"),
        }
    }

    fn part(number: u8) -> Message {
        Message::Part {
            name: "part".into(),
            bytes: vec![number],
        }
    }

    #[test]
    fn everything_arrives_in_order_and_untaken_connections_come_back() {
        osier::run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let dialog = Arc::new(Dialog::new());
            let ((sending, _near), (_far, mut receiving)) = (channel::open(near).unwrap(), channel::open(far).unwrap());
            assert!(dialog.post_connection(moving(1)));
            assert!(dialog.post_connection(moving(2)));
            dialog.post(part(3));
            assert!(dialog.post_connection(moving(4)));
            assert!(dialog.post_connection(moving(5)));
            dialog.post(part(6));
            assert!(dialog.post_connection(moving(7)));
            let sender = Arc::clone(&dialog);
            let sender = osier::spawn(move || sender.send_all(&sending));
            assert_eq!(received(&mut receiving), (1, vec![1, 2]));
            dialog.hear_taken(1);
            assert_eq!(received(&mut receiving), (0, vec![3]));
            assert_eq!(received(&mut receiving), (2, vec![4, 5]));
            assert!(!dialog.has_delivered());
            dialog.break_off(|| "it is gone".into());
            sender.join().unwrap();
            let back: Vec<u16> = dialog
                .take_back()
                .iter()
                .map(|moving| moving.record.peer.port())
                .collect();
            assert_eq!(back, [4, 5, 7]);
            assert!(!dialog.post_connection(moving(8)), "nobody would find it");
            assert!(dialog.has_delivered());
            let waited = dialog.wait_for(Duration::from_secs(60), |heard| heard.accepting.then_some(()));
            assert_eq!(waited, Err("it is gone".into()));
        });
    }

    #[test]
    fn who_moves_connections_waits_for_room() {
        osier::run(|| {
            let dialog = Arc::new(Dialog::new());
            (0..BATCH - 1).for_each(|_| assert!(dialog.post_connection(moving(1))));
            dialog.wait_for_room(|| false);
            assert!(dialog.post_connection(moving(1)));
            assert!(!dialog.room.is_set());
            dialog.wait_for_room(|| true);
            dialog.break_off(|| "over".into());
            dialog.wait_for_room(|| false);
            // Connections that were moving already do not make anybody wait for a sender that has ended.
            (0..2 * BATCH).for_each(|_| assert!(dialog.post_connection(moving(1))));
            dialog.wait_for_room(|| false);
            assert!(!dialog.is_open());
            assert_eq!(dialog.take_back().len(), 3 * BATCH);
        });
    }

    #[test]
    fn a_batch_of_large_records_fits_into_a_message() {
        osier::run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let dialog = Arc::new(Dialog::new());
            let ((sending, _near), (_far, mut receiving)) = (channel::open(near).unwrap(), channel::open(far).unwrap());
            for _ in 0..BATCH {
                let mut moving = moving(1);
                moving.record.received = vec![7; PAYLOAD_MAX / BATCH];
                assert!(dialog.post_connection(moving));
            }
            dialog.finish(Message::Done);
            let sender = Arc::clone(&dialog);
            let sender = osier::spawn(move || sender.send_all(&sending));
            let mut count = 0;
            while let Some((Message::Connections { batch, records }, descriptors)) = receiving.receive().unwrap() {
                assert_eq!(records.len(), descriptors.len());
                count += records.len();
                dialog.hear_taken(batch);
            }
            assert_eq!(count, BATCH);
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_message_that_is_sent_through_has_left_this_process() {
        osier::run(|| {
            let (near, far) = UnixStream::pair().unwrap();
            let dialog = Arc::new(Dialog::new());
            let ((sending, _near), (_far, mut receiving)) = (channel::open(near).unwrap(), channel::open(far).unwrap());
            let sender = Arc::clone(&dialog);
            let sender = osier::spawn(move || sender.send_all(&sending));
            dialog.post(part(1));
            assert!(dialog.send_through(part(2)));
            assert_eq!(received(&mut receiving), (0, vec![1]));
            assert_eq!(received(&mut receiving), (0, vec![2]));
            dialog.break_off(|| "it is gone".into());
            sender.join().unwrap();
            assert!(!dialog.send_through(part(3)));
        });
    }
}
