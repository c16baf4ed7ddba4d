//! The publisher's fiber: from the queue to the broker, in order, until each message was answered.
//!
//! A message whose answer did not come is repeated on a new connection: who has had it knows its number. One that was refused is not,
//! nor one at which the broker hangs up again and again: behind it all others would wait for ever.

use std::collections::VecDeque;
use std::{fmt, io};

use osier::pubsub::Subscriber;

use super::connection::{Connection, Outage};
use super::{Outbound, Shared, wire};

/// Messages sent to the broker in one write.
const BATCH: usize = 128;

/// So many new connections that end at the same message, sent alone, are its fault. With the waits between them it takes a second
/// and a half: longer than a broker needs to be killed and come back.
const FATAL_MAX: u32 = 5;

struct Publisher<'s> {
    shared: &'s Shared,
    connection: Option<Connection>,
    outage: Outage,
    /// Numbered, and not answered yet.
    batch: VecDeque<Outbound>,
    /// Attempts since the last answer.
    failures: u32,
    /// Of these, those of a new connection to the first message alone.
    fatal: u32,
}

pub(super) fn run(shared: &Shared, mut queue: Subscriber<Outbound>) {
    let mut publisher = Publisher {
        shared,
        connection: None,
        outage: Outage::none(),
        batch: VecDeque::new(),
        failures: 0,
        fatal: 0,
    };
    let mut told = 0;
    // Numbered here and not by who publishes: on the wire the numbers must be in order, or others take the late one for a
    // repetition. A number stays with its message through all attempts.
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
        publisher.pass_on();
        let dropped = queue.dropped();
        if dropped > told {
            let lost = dropped - told;
            shared.log(format_args!(
                "redis {}: {lost} messages were not passed on: more than {} came while it was away",
                shared.options.address, shared.options.queue
            ));
            told = dropped;
        }
    }
}

impl Publisher<'_> {
    /// Returns when the batch is empty.
    fn pass_on(&mut self) {
        while !self.batch.is_empty() {
            let is_new = self.connection.is_none();
            let open = match self.connection.take() {
                Some(open) => Ok(open),
                None => Connection::open(&self.shared.options),
            };
            let mut connection = match open {
                Ok(connection) => connection,
                Err(error) => {
                    self.wait(&error);
                    continue;
                }
            };
            // After a failure one by one, to see at which message the connection ends.
            let count = if self.failures == 0 { self.batch.len() } else { 1 };
            let before = self.batch.len();
            let (refused, published) = connection.publish(&mut self.batch, count);
            if let Some((first, why)) = refused.first() {
                self.tell_dropped(refused.len(), first, why);
            }
            let is_answered = self.batch.len() < before;
            if is_answered {
                (self.failures, self.fatal) = (0, 0);
                self.outage.over();
            }
            match published {
                Ok(()) => self.connection = Some(connection),
                Err(error) => {
                    // A broker that is slow is not one that will not have the message.
                    let hung_up = error.kind() != io::ErrorKind::TimedOut;
                    self.fatal += u32::from(hung_up && !is_answered && is_new && count == 1);
                    if self.fatal == FATAL_MAX
                        && let Some(message) = self.batch.pop_front()
                    {
                        self.tell_dropped(1, &message, format_args!("it hangs up: {error}"));
                        (self.failures, self.fatal) = (0, 0);
                    }
                    self.wait(&error);
                }
            }
        }
    }

    fn wait(&mut self, error: &io::Error) {
        self.failures += 1;
        // A connection that was kept may have died unheard, so one failure is no outage.
        if self.failures > 1 && self.outage.failed() {
            let address = &self.shared.options.address;
            self.shared
                .log(format_args!("redis {address}: cannot publish: {error}"));
        }
        self.outage.sleep();
    }

    fn tell_dropped(&self, count: usize, first: &Outbound, why: impl fmt::Display) {
        self.shared.log(format_args!(
            "redis {} does not take {count} messages, which were dropped; the first has {} bytes and is for the room {:?}: {why}",
            self.shared.options.address,
            first.bytes.len(),
            first.room,
        ));
    }
}
