//! Encodes connections as bytes, for a process that takes over their sockets: [`NotExportable`], and the writer and reader of values.
//!
//! Numbers are big-endian. Four bytes with its length precede a text. The bytes have no version: their transport has one.

use std::fmt;

/// The reason why a connection cannot be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotExportable(pub(crate) &'static str);

impl fmt::Display for NotExportable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this TLS connection cannot be exported: {}", self.0)
    }
}

impl std::error::Error for NotExportable {}

/// Writes values.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn flag(&mut self, value: bool) {
        self.0.push(value.into());
    }

    pub(crate) fn number(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        let length = u32::try_from(text.len()).expect("no text of a connection has 4 GiB");
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(text);
    }

    pub(crate) fn optional(&mut self, text: Option<&[u8]>) {
        self.flag(text.is_some());
        if let Some(text) = text {
            self.text(text);
        }
    }
}

/// Reads values in the order in which they were written. `None` means that the bytes are not those of a [`Writer`].
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.0.split_off_first()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    pub(crate) fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        match self.flag()? {
            true => self.text().map(Some),
            false => Some(None),
        }
    }

    /// Whether all bytes have been read.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}
