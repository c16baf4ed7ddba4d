//! The chunked transfer coding (RFC 9112 7.1), strictly, both ways.

use crate::{Limits, Reject};

/// A piece of body, cut out of the connection's bytes by a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'i> {
    /// Input bytes that are used up, framing and data together. What follows belongs to the next call, and after
    /// the end of the body to the next request.
    pub consumed: usize,
    /// Body bytes: the last `data.len()` of the consumed ones. Empty only when more input is needed, when the caller
    /// allowed no data, or at the end of the body.
    pub data: &'i [u8],
    /// The body has ended.
    pub done: bool,
}

/// The incremental decoder.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    remaining: u64,
}

impl ChunkedDecoder {
    /// A decoder at the beginning of a body.
    pub const fn new(limits: &Limits) -> ChunkedDecoder {
        let _ = limits;
        ChunkedDecoder { remaining: 0 }
    }

    /// Takes framing and at most `max` bytes of one chunk's data from the front of `input`.
    ///
    /// # Errors
    /// 400 for malformed framing, 413 beyond the body limit, 431 beyond the trailer limits.
    pub fn decode<'i>(&mut self, input: &'i [u8], max: usize) -> Result<Piece<'i>, Reject> {
        let _ = (input, max);
        Err(Reject::ChunkSize)
    }

    /// How many of the next input bytes are plain data of the chunk that is under way; see [`BodyDecoder::plain`](crate::BodyDecoder::plain).
    #[inline]
    pub fn plain(&self) -> u64 {
        self.remaining
    }

    /// Tells that `count` plain bytes were taken past the decoder.
    ///
    /// # Panics
    /// When `count` exceeds [`plain`](Self::plain): the caller has lost its place in the body.
    pub fn advance(&mut self, count: u64) {
        self.remaining = self.remaining.checked_sub(count).expect("advance() beyond plain()");
    }

    /// Whether the last chunk and the trailer section have been consumed.
    #[inline]
    pub fn is_done(&self) -> bool {
        false
    }
}

/// What ends each chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";

/// What ends a chunked body: the last chunk and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The line before a chunk's data, made without allocation.
#[derive(Clone, Copy, Debug)]
pub struct ChunkHead {
    line: [u8; 18],
    start: u8,
}

impl ChunkHead {
    /// The head of a chunk of `length` bytes.
    ///
    /// # Panics
    /// When `length` is 0, which would end the body: send [`LAST_CHUNK`] for that.
    pub fn new(length: u64) -> ChunkHead {
        assert!(
            length > 0,
            "a chunk of length 0 ends the body: send LAST_CHUNK for that"
        );
        let mut line = *b"................\r\n";
        let mut start = 16;
        let mut rest = length;
        while rest > 0 {
            start -= 1;
            line[start as usize] = b"0123456789abcdef"[(rest % 16) as usize];
            rest /= 16;
        }
        ChunkHead { line, start }
    }

    /// The line's bytes, CRLF included.
    pub fn as_bytes(&self) -> &[u8] {
        &self.line[self.start as usize..]
    }
}

/// Appends `data` as one chunk; nothing when it is empty, as that would end the body.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(ChunkHead::new(data.len() as u64).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(CHUNK_END);
    }
}
