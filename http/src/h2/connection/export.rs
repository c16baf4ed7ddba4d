//! Exports a server's connection at rest as bytes, for a process that takes over its socket.
//!
//! The bytes hold the limits that the peer knows, which stay in force in the other process. Budgets and clocks begin anew there. The
//! bytes have no version: their transport has one.

use std::time::Instant;

use super::Connection;
use super::ending::Ending;
use super::send::MOST_UPDATES;
use crate::h2::export::{Reader, Writer};
use crate::h2::frame::{FrameReader, Role};
use crate::h2::hpack::{Decoder, Encoder};
use crate::h2::stream::Forgotten;
use crate::h2::window::{ReceiveWindow, SendWindow};
use crate::h2::{Limits, Malformed, NotExportable, Priority};

impl Connection {
    /// Exports the state of a server's connection at rest, for another process that also gets the socket.
    ///
    /// The bytes hold the fields that both ends have indexed, such as a client's cookies. This connection stays as it is.
    ///
    /// # Errors
    /// A client's end cannot be exported, nor a connection that is not at rest: with streams, with bytes to write, in the middle of a frame,
    /// before the settings of both ends have arrived, or ending.
    pub fn export(&self) -> Result<Vec<u8>, NotExportable> {
        let reasons = [
            (self.role == Role::Client, "it is a client's end"),
            (
                self.greeting.is_some()
                    || self.acknowledgement.is_some()
                    || !self.room.is_settled(self.limits.max_streams),
                "the settings of both ends have not arrived yet",
            ),
            (
                self.failed.is_some() || self.ending != Ending::Not || self.peer_goes_away,
                "it is ending",
            ),
            (!self.is_idle(), "it is not at rest"),
        ];
        if let Some((_, reason)) = reasons.into_iter().find(|(holds, _)| *holds) {
            return Err(NotExportable(reason));
        }
        let mut to = Writer::default();
        let Limits {
            max_streams,
            stream_window,
            connection_window,
            max_frame,
            head_bytes,
            decoder_table,
            extended_connect,
            ..
        } = self.limits;
        let announced = [
            max_streams,
            stream_window,
            connection_window,
            max_frame,
            head_bytes,
            decoder_table,
        ];
        announced.into_iter().for_each(|limit| to.number(limit));
        to.number(extended_connect);
        to.settings(&self.peer);
        to.number(self.send_window.size() as u64);
        self.receive_window.export(&mut to);
        to.number(self.highest);
        to.number(self.used);
        self.forgotten.export(&mut to);
        to.number(self.early.len() as u64);
        for (stream, priority) in &self.early {
            to.number(*stream);
            to.number(priority.urgency);
            to.number(priority.incremental);
        }
        to.number(self.updates_due);
        to.number(self.pings);
        self.decoder.export(&mut to);
        self.encoder.export(&mut to);
        Ok(to.0)
    }

    /// Restores a connection from [exported](Self::export) bytes. The limits that were announced to the peer replace those in `limits`.
    ///
    /// # Errors
    /// The bytes are not an exported connection.
    pub fn import(limits: &Limits, exported: &[u8], now: Instant) -> Result<Connection, Malformed> {
        read(limits, Reader(exported), now).ok_or(Malformed)
    }
}

fn read(limits: &Limits, mut from: Reader<'_>, now: Instant) -> Option<Connection> {
    let limits = Limits {
        max_streams: from.number()?,
        stream_window: from.number()?,
        connection_window: from.number()?,
        max_frame: from.number()?,
        head_bytes: from.number()?,
        decoder_table: from.number()?,
        extended_connect: from.flag()?,
        ..*limits
    };
    let mut connection = Connection::server(&limits, now);
    connection.output = super::Output::new();
    connection.greeting = None;
    connection.acknowledgement = None;
    connection.reader = FrameReader::between_frames(connection.limits.max_frame, &connection.reader);
    connection.peer = from.settings()?;
    connection.send_window = SendWindow::of_size(from.signed()?)?;
    connection.receive_window = ReceiveWindow::import(&mut from, connection.limits.connection_window)?;
    connection.highest = from.stream()?;
    connection.used = from.number()?;
    connection.forgotten = Forgotten::import(&mut from)?;
    let early: u32 = from.number()?;
    for _ in 0..early {
        let (stream, urgency, incremental) = (from.stream()?, from.number()?, from.flag()?);
        connection.early.push((stream, Priority { urgency, incremental }));
    }
    connection.updates_due = from.number().filter(|due| *due <= MOST_UPDATES)?;
    connection.pings = from.number()?;
    connection.decoder = Decoder::import(super::fields(&connection.limits), &mut from)?;
    connection.encoder = Encoder::import(&mut from)?;
    from.0.is_empty().then_some(connection)
}
