//! Encodes numbers, texts and lists as bytes, and decodes them. The decoder trusts no length and no count.

/// The version of the messages, raised with every change of their layout.
pub(crate) const VERSION: u16 = 3;

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The head has an impossible length, kind or number of descriptors.
    Head,
    /// The checksum in the head does not fit the payload.
    Checksum,
    /// The payload does not have the layout of its kind.
    Payload,
    /// The other process speaks this version, and this process does not.
    Version(u16),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Head => f.write_str("the head of a message is malformed"),
            Malformed::Checksum => f.write_str("a message has a wrong checksum"),
            Malformed::Payload => f.write_str("the content of a message is malformed"),
            Malformed::Version(theirs) => write!(
                f,
                "the other program speaks version {theirs} of the upgrade protocol, this one version {VERSION}: restart the server \
                 instead"
            ),
        }
    }
}

impl std::error::Error for Malformed {}

/// Appends fields to bytes.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends the length of the bytes, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }
}

/// Takes fields off the front of bytes.
pub(crate) struct Fields<'b>(pub(crate) &'b [u8]);

impl<'b> Fields<'b> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Payload)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Payload)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// The bytes of [`Writer::bytes`].
    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| Malformed::Payload)
    }

    /// Reads a count and so many items. Memory grows with the items that are present, not with the count.
    pub(crate) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Fields<'b>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(item(self)?);
        }
        Ok(list)
    }
}
