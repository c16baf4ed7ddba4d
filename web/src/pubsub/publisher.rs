//! The publisher's fiber: publishes queued messages in order, and keeps each until the broker has
//! replied to it.
//!
//! A message without a reply is repeated on a new connection; receivers recognise the repetition by
//! its number. A message is dropped if the broker rejects it, or if the broker closes [`FATAL_MAX`]
//! new connections at it. Otherwise it would block all later messages forever.

use std::collections::VecDeque;
use std::{fmt, io};

use osier::pubsub::Subscriber;

use super::connection::{Connection, LONGEST_WAIT, Outage};
use super::{Outbound, RedisState, wire};

/// Maximum messages sent to the broker in one write.
const BATCH: usize = 128;

/// Number of new connections that must end at the same message, sent alone, before the message is
/// dropped. With the delays between them this takes over 1.1 s, longer than a killed broker needs to
/// restart.
const FATAL_MAX: u32 = 5;

/// The state of the publisher's fiber.
struct Publisher<'s> {
    shared: &'s RedisState,
    connection: Option<Connection>,
    outage: Outage,
    /// Numbered messages without a reply.
    batch: VecDeque<Outbound>,
    /// Failed attempts since the last reply.
    failures: u32,
    /// Failed attempts since the last reply on a new connection that carried one message only.
    fatal: u32,
}

/// Publishes the messages of `queue` until the fiber is cancelled.
pub(super) fn run(shared: &RedisState, mut queue: Subscriber<Outbound>) {
    let mut publisher = Publisher {
        shared,
        connection: None,
        outage: Outage::none(),
        batch: VecDeque::new(),
        failures: 0,
        fatal: 0,
    };
    let mut reported = 0;
    // Numbers are assigned here and not by `publish`: on the wire they must be in order, or
    // receivers take the late message for a repetition. A message keeps its number through all
    // attempts.
    let mut sequence = 0_u64;
    let mut numbered = |message: Outbound| {
        sequence += 1;
        let bytes = wire::pack(&shared.node, sequence, &message.bytes);
        Outbound { bytes, ..message }
    };
    while let Ok(message) = queue.recv() {
        publisher.batch.push_back(numbered(message));
        while publisher.batch.len() < BATCH
            && let Ok(message) = queue.try_recv()
        {
            publisher.batch.push_back(numbered(message));
        }
        publisher.publish_batch();
        let dropped = queue.dropped();
        if dropped > reported {
            let lost = dropped - reported;
            shared.log(format_args!(
                "redis {}: {lost} messages were not published: more than {} waited while it was unreachable",
                shared.options.address, shared.options.queue
            ));
            reported = dropped;
        }
    }
}

impl Publisher<'_> {
    /// Publishes until the batch is empty.
    fn publish_batch(&mut self) {
        while !self.batch.is_empty() {
            let is_new = self.connection.is_none();
            let open = match self.connection.take() {
                Some(open) => Ok(open),
                None => self.shared.options.open(),
            };
            let mut connection = match open {
                Ok(connection) => connection,
                Err(error) => {
                    self.wait(&error);
                    continue;
                }
            };
            // The other processes may not be there again, and the broker keeps nothing for them.
            if is_new && self.shared.was_away() {
                osier::sleep(LONGEST_WAIT);
            }
            // After a failure messages are sent one by one, to find the one at which the connection
            // ends.
            let count = if self.failures == 0 { self.batch.len() } else { 1 };
            let before = self.batch.len();
            let (refused, published) = connection.publish(&mut self.batch, count);
            if let Some((first, why)) = refused.first() {
                self.log_dropped(refused.len(), first, why);
            }
            let is_answered = self.batch.len() < before;
            if is_answered {
                (self.failures, self.fatal) = (0, 0);
                self.outage.over();
            }
            match published {
                Ok(()) => self.connection = Some(connection),
                Err(error) => {
                    // A timeout means a slow broker, not one that rejects the message.
                    let hung_up = error.kind() != io::ErrorKind::TimedOut;
                    self.fatal += u32::from(hung_up && !is_answered && is_new && count == 1);
                    if self.fatal == FATAL_MAX
                        && let Some(message) = self.batch.pop_front()
                    {
                        self.log_dropped(1, &message, format_args!("it closes the connection: {error}"));
                        (self.failures, self.fatal) = (0, 0);
                    }
                    self.wait(&error);
                }
            }
        }
    }

    fn wait(&mut self, error: &io::Error) {
        self.failures += 1;
        // A kept connection may have failed unnoticed, so one failure is not an outage.
        if self.failures > 1 && self.outage.failed() {
            let address = &self.shared.options.address;
            self.shared
                .log(format_args!("redis {address}: cannot publish: {error}"));
        }
        self.outage.sleep();
    }

    fn log_dropped(&self, count: usize, first: &Outbound, why: impl fmt::Display) {
        self.shared.log(format_args!(
            "redis {} rejects {count} messages, which were dropped; the first has {} bytes and is for the room {:?}: {why}",
            self.shared.options.address,
            first.bytes.len(),
            first.room,
        ));
    }
}
