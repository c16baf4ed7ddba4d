//! Writes and reads the values of a connection as bytes.
//!
//! Numbers have eight bytes, big-endian. An entry of a table is its two lengths, then name and value. The oldest entry comes first.

use std::ops::RangeInclusive;

use super::frame::{DEFAULT_MAX_FRAME_SIZE, Settings};
use super::limits::MAX_WINDOW;

/// The values that SETTINGS_MAX_FRAME_SIZE may have.
const FRAME_SIZES: RangeInclusive<u32> = DEFAULT_MAX_FRAME_SIZE..=(1 << 24) - 1;

/// Writes values.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, value: impl Into<u64>) {
        self.0.extend_from_slice(&value.into().to_be_bytes());
    }

    /// A size that may be missing.
    pub(super) fn optional(&mut self, value: Option<usize>) {
        self.number(value.is_some());
        self.number(value.unwrap_or(0) as u64);
    }

    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.number(name.len() as u64);
        self.number(value.len() as u64);
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(value);
    }

    pub(super) fn settings(&mut self, settings: &Settings) {
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
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        T::try_from(u64::from_be_bytes(*number)).ok()
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0_u8 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn optional(&mut self) -> Option<Option<usize>> {
        let (is_there, size) = (self.flag()?, self.size()?);
        Some(is_there.then_some(size))
    }

    /// A size of a table: a setting has 32 bits.
    pub(super) fn size(&mut self) -> Option<usize> {
        let size: u32 = self.number()?;
        Some(size as usize)
    }

    pub(super) fn field(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let (name, value): (usize, usize) = (self.number()?, self.number()?);
        let (name, rest) = self.0.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value)?;
        self.0 = rest;
        Some((name, value))
    }

    /// A number that may be negative.
    pub(super) fn signed(&mut self) -> Option<i64> {
        let number: u64 = self.number()?;
        Some(number as i64)
    }

    /// A window, which may be negative.
    pub(super) fn window(&mut self) -> Option<i64> {
        let most = i64::from(MAX_WINDOW);
        self.signed().filter(|window| (-most..=most).contains(window))
    }

    pub(super) fn stream(&mut self) -> Option<u32> {
        self.number().filter(|id| *id <= MAX_WINDOW)
    }

    pub(super) fn settings(&mut self) -> Option<Settings> {
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
