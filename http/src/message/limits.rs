//! The bounds of a message's parts. The parsers check them while the bytes arrive.

/// The bounds of a request's parts. A part exactly at its bound is accepted.
///
/// ```
/// use osier_http::Limits;
///
/// let limits = Limits { body: 64 << 20, ..Limits::default() };
/// assert_eq!(limits.request_line, 8 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DefaultBodyLimit")]
pub struct Limits {
    /// The most bytes of the request line without its CRLF. The status is 414 beyond it. Default: 8 KiB.
    pub request_line: usize,
    /// The most bytes of the head, from the first byte to the end of the empty line. The status is 431 beyond it.
    /// Default: 32 KiB.
    pub head_bytes: usize,
    /// The most fields in the head, and the most in the trailer section. The status is 431 beyond it. Default: 100.
    ///
    /// The [`Slots`](crate::Slots) of the parser also bound the fields in the head.
    pub header_count: usize,
    /// The most bytes of the decoded body. The status is 413 beyond it. Default: 2 MiB.
    pub body: u64,
    /// The most bytes of all chunk extensions of one body. The status is 400 beyond it. Default: 16 KiB.
    pub chunk_extension_bytes: usize,
    /// The most bytes of the trailer section with its empty line. The status is 431 beyond it. Default: 8 KiB.
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
