//! A server's connection at rest as bytes, for a process that takes over its socket.
//!
//! All numbers have eight bytes, big-endian; an entry of a table is its two lengths, then name and value, the oldest entry first. What the
//! peer knows of this endpoint's limits travels too, and holds in the other process. Budgets and clocks begin anew there.
//! Whoever transports the bytes sees to their version.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::Connection;
use super::ending::Ending;
use crate::h2::frame::{DEFAULT_MAX_FRAME_SIZE, FrameReader, Role, Settings};
use crate::h2::hpack::{Decoder, Encoder};
use crate::h2::limits::MAX_WINDOW;
use crate::h2::stream::{Forgotten, StreamId};
use crate::h2::window::{ReceiveWindow, SendWindow};
use crate::h2::{Limits, Malformed, NotExportable, Priority};

impl Connection {
    /// The state of a server's connection at rest, for another process that gets the connection too.
    ///
    /// The bytes hold the fields that both ends have indexed, such as a client's cookies. This connection stays as it is.
    ///
    /// # Errors
    /// A client's end, and a connection that is not at rest: with streams, with bytes to write, in the middle of a frame, before the settings
    /// of both ends have arrived, or ending.
    pub fn export(&self) -> Result<Vec<u8>, NotExportable> {
        let reasons = [
            (self.role == Role::Client, "it is a client's end"),
            (
                self.greeting.is_some() || self.acknowledgement.is_some(),
                "the settings have not arrived everywhere",
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

    /// The connection that [`export`](Self::export) has written. The limits that the peer was told hold in place of those in `limits`.
    ///
    /// # Errors
    /// Bytes that are no connection.
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
    connection.receive_window = ReceiveWindow::import(&mut from)?;
    connection.highest = from.stream()?;
    connection.used = from.number()?;
    connection.forgotten = Forgotten::import(&mut from)?;
    let early: u32 = from.number()?;
    for _ in 0..early {
        let (stream, urgency, incremental) = (from.stream()?, from.number()?, from.flag()?);
        connection.early.push((stream, Priority { urgency, incremental }));
    }
    connection.updates_due = from.number()?;
    connection.pings = from.number()?;
    connection.decoder = Decoder::import(super::fields(&connection.limits), &mut from)?;
    connection.encoder = Encoder::import(&mut from)?;
    from.0.is_empty().then_some(connection)
}

/// The values that SETTINGS_MAX_FRAME_SIZE may have.
const FRAME_SIZES: RangeInclusive<u32> = DEFAULT_MAX_FRAME_SIZE..=(1 << 24) - 1;

/// Writes values.
#[derive(Default)]
pub(in crate::h2) struct Writer(Vec<u8>);

impl Writer {
    pub(in crate::h2) fn number(&mut self, value: impl Into<u64>) {
        self.0.extend_from_slice(&value.into().to_be_bytes());
    }

    /// A size that may be missing.
    pub(in crate::h2) fn optional(&mut self, value: Option<usize>) {
        self.number(value.is_some());
        self.number(value.unwrap_or(0) as u64);
    }

    pub(in crate::h2) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.number(name.len() as u64);
        self.number(value.len() as u64);
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(value);
    }

    fn settings(&mut self, settings: &Settings) {
        let Settings {
            header_table_size,
            enable_push,
            max_concurrent_streams,
            initial_window_size,
            max_frame_size,
            max_header_list_size,
            enable_connect_protocol,
            no_rfc7540_priorities,
        } = *settings;
        let numbers = [
            header_table_size,
            max_concurrent_streams,
            initial_window_size,
            max_frame_size,
            max_header_list_size,
        ];
        let flags = [enable_push, enable_connect_protocol, no_rfc7540_priorities];
        numbers.into_iter().for_each(|number| self.number(number));
        flags.into_iter().for_each(|flag| self.number(flag));
    }
}

/// Reads values in the order in which they were written. `None` means that the bytes are not those of a [`Writer`].
pub(in crate::h2) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::h2) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        T::try_from(u64::from_be_bytes(*number)).ok()
    }

    pub(in crate::h2) fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0_u8 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(in crate::h2) fn optional(&mut self) -> Option<Option<usize>> {
        let (is_there, size) = (self.flag()?, self.size()?);
        Some(is_there.then_some(size))
    }

    /// A size of a table: a setting has 32 bits.
    pub(in crate::h2) fn size(&mut self) -> Option<usize> {
        let size: u32 = self.number()?;
        Some(size as usize)
    }

    pub(in crate::h2) fn field(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let (name, value): (usize, usize) = (self.number()?, self.number()?);
        let (name, rest) = self.0.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value)?;
        self.0 = rest;
        Some((name, value))
    }

    /// A number that may be negative.
    pub(in crate::h2) fn signed(&mut self) -> Option<i64> {
        let number: u64 = self.number()?;
        Some(number as i64)
    }

    pub(in crate::h2) fn stream(&mut self) -> Option<StreamId> {
        self.number().filter(|id| *id <= MAX_WINDOW)
    }

    fn settings(&mut self) -> Option<Settings> {
        Some(Settings {
            header_table_size: self.number()?,
            max_concurrent_streams: self.number()?,
            initial_window_size: self.number().filter(|size| *size <= MAX_WINDOW)?,
            max_frame_size: self.number().filter(|size| FRAME_SIZES.contains(size))?,
            max_header_list_size: self.number()?,
            enable_push: self.flag()?,
            enable_connect_protocol: self.flag()?,
            no_rfc7540_priorities: self.flag()?,
        })
    }
}
