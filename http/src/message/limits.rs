//! The bounds a peer's request must keep, each checked as the bytes come. One value per server; every parser takes it by reference.

/// The bounds of a request's parts. A part exactly at its bound is accepted.
///
/// ```
/// use osier_http::Limits;
///
/// let limits = Limits { body: 64 << 20, ..Limits::default() };
/// assert_eq!(limits.request_line, 8 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the request line without its CRLF; beyond it 414. Default 8 KiB.
    pub request_line: usize,
    /// Bytes of the whole head, from the first byte to the end of the empty line; beyond it 431. Default 32 KiB.
    pub head_bytes: usize,
    /// Header fields in the head, and again in the trailer; beyond it 431. Default 100.
    ///
    /// The [`Slots`](crate::Slots) given to the parser bound it too.
    pub header_count: usize,
    /// Bytes of the body after chunked decoding; beyond it 413. Default 2 MiB.
    pub body: u64,
    /// Bytes of chunk extensions in one whole body; beyond it 400. Default 16 KiB.
    pub chunk_extension_bytes: usize,
    /// Bytes of the trailer section, its empty line included; beyond it 431. Default 8 KiB.
    pub trailer_bytes: usize,
}

impl Limits {
    /// The defaults, usable in constants.
    pub const DEFAULT: Limits = Limits {
        request_line: 8 << 10,
        head_bytes: 32 << 10,
        header_count: 100,
        body: 2 << 20,
        chunk_extension_bytes: 16 << 10,
        trailer_bytes: 8 << 10,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
