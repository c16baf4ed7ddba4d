//! The chunked transfer coding (RFC 9112 7.1): a strict decoder, and an encoder.
//!
//! The decoder takes framing byte by byte and data in whole pieces. It holds no data, and its result does not depend on how the
//! input is split. A size is bare hex digits, and every line ends in CRLF. Extensions and trailers are parsed strictly and bounded.
//! Extensions are dropped.

use crate::message::byte::{is_token, is_value};
use crate::message::{FieldLines, Limits, Reject};

/// A piece of a body, found by a decoder in the bytes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'i> {
    /// The number of consumed input bytes, framing and data together. The bytes after them belong to the next call, or after the
    /// end of the body to the next request.
    pub consumed: usize,
    /// The body bytes: the last `data.len()` consumed bytes. Empty only if more input is needed, if the caller allowed no data,
    /// or at the end of the body.
    pub data: &'i [u8],
    /// The body has ended.
    pub done: bool,
}

/// The incremental decoder of one chunked body.
///
/// ```
/// use osier_http::{ChunkedDecoder, Limits};
///
/// let mut decoder = ChunkedDecoder::new(&Limits::default());
/// let input = b"5;a=b\r\nhello\r\n0\r\n\r\nGET /next";
/// let first = decoder.decode(input, usize::MAX)?;
/// assert_eq!((first.data, first.consumed, first.done), (&b"hello"[..], 12, false));
/// let last = decoder.decode(&input[first.consumed..], usize::MAX)?;
/// assert_eq!((last.data, last.consumed, last.done), (&b""[..], 7, true));
/// # Ok::<(), osier_http::Reject>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    state: State,
    /// The size so far, in a size line. The number of data bytes to come, in a chunk.
    remaining: u64,
    digits: u8,
    /// The bytes still allowed for the body, the extensions and the trailer section, and the fields still allowed in it.
    body_left: u64,
    extension_left: usize,
    trailer_left: usize,
    fields_left: usize,
    name: TrailerName,
    /// The lines of the trailer section so far.
    #[expect(
        clippy::box_collection,
        reason = "few bodies have one, and every connection has a decoder"
    )]
    trailer: Option<Box<Vec<u8>>>,
}

/// The part of the body that the next byte belongs to.
///
/// ```text
///   Size ─┬───────────────────────────▶ SizeLf ─┬─▶ Data ─▶ DataCr ─▶ DataLf ─▶ Size
///         └▶ ExtStart … ExtEnd ────────▲        └─▶ TrailerStart ─▶ EndLf ─▶ Done
///            (a list of name[=value])               ▲  └▶ TrailerName ─▶ TrailerValue ─▶ TrailerLf
///                                                   └──────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A digit of the size, or the byte after the size.
    Size,
    /// White space or the name of an extension, after its semicolon.
    ExtStart,
    ExtName,
    /// White space after a name: `=` or `;` must follow.
    ExtNameGap,
    /// White space or a value, after the equals sign.
    ExtValueStart,
    ExtValue,
    ExtQuoted,
    ExtEscaped,
    /// After the closing quote.
    ExtEnd,
    /// White space before a semicolon.
    ExtGap,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

impl ChunkedDecoder {
    /// Makes a decoder at the beginning of a body.
    pub const fn new(limits: &Limits) -> ChunkedDecoder {
        ChunkedDecoder {
            state: State::Size,
            remaining: 0,
            digits: 0,
            body_left: limits.body,
            extension_left: limits.chunk_extension_bytes,
            trailer_left: limits.trailer_bytes,
            fields_left: limits.header_count,
            name: TrailerName::NONE,
            trailer: None,
        }
    }

    /// Takes framing and at most `max` bytes of one chunk's data from the beginning of `input`.
    ///
    /// # Errors
    /// 400 for malformed framing and for too many bytes of extensions, 413 beyond the body limit, 431 beyond the trailer limits.
    /// Do not use the decoder after an error.
    pub fn decode<'i>(&mut self, input: &'i [u8], max: usize) -> Result<Piece<'i>, Reject> {
        let mut at = 0;
        while self.state != State::Done {
            if self.state == State::Data {
                let available = (input.len() - at).min(max);
                let count = usize::try_from(self.remaining).map_or(available, |remaining| remaining.min(available));
                self.advance(count as u64);
                return Ok(Piece {
                    consumed: at + count,
                    data: &input[at..at + count],
                    done: false,
                });
            }
            let Some(&byte) = input.get(at) else { break };
            self.state = self.step(byte)?;
            at += 1;
        }
        Ok(Piece {
            consumed: at,
            data: &[],
            done: self.state == State::Done,
        })
    }

    /// Lowers the bound on the rest of the body to `most` bytes of data.
    ///
    /// # Errors
    /// 413 if the rest of the current chunk is longer.
    pub fn limit(&mut self, most: u64) -> Result<(), Reject> {
        let later = most.checked_sub(self.plain()).ok_or(Reject::BodyTooLarge)?;
        self.body_left = self.body_left.min(later);
        Ok(())
    }

    /// The number of following input bytes that are only data of the current chunk; see
    /// [`BodyDecoder::plain`](crate::BodyDecoder::plain).
    #[inline]
    pub fn plain(&self) -> u64 {
        if self.state == State::Data { self.remaining } else { 0 }
    }

    /// Reports that `count` bytes of [`plain`](Self::plain) were read without the decoder.
    ///
    /// # Panics
    /// Panics if `count` exceeds [`plain`](Self::plain).
    pub fn advance(&mut self, count: u64) {
        self.remaining = self.plain().checked_sub(count).expect("advance() beyond plain()");
        if self.state == State::Data && self.remaining == 0 {
            self.state = State::DataCr;
        }
    }

    /// Whether the last chunk and the trailer section have been consumed.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the fields of the trailer section, once the body [is done](Self::is_done). Fields that frame a message are left out.
    pub fn take_trailers(&mut self) -> FieldLines {
        let lines = self.trailer.take_if(|_| self.state == State::Done);
        let mut fields = FieldLines::new();
        for line in lines.iter().flat_map(|lines| lines.split(|&byte| byte == b'\n')) {
            let Some(colon) = memchr::memchr(b':', line) else {
                continue;
            };
            if let Ok(name) = str::from_utf8(&line[..colon]) {
                // The parser has checked both. A reserved field is left out.
                let _ = fields.push(name, line[colon + 1..].trim_ascii());
            }
        }
        fields
    }

    /// Takes one byte of framing.
    #[inline]
    fn step(&mut self, byte: u8) -> Result<State, Reject> {
        match self.state {
            State::Size => self.size(byte),
            State::ExtStart
            | State::ExtName
            | State::ExtNameGap
            | State::ExtValueStart
            | State::ExtValue
            | State::ExtQuoted
            | State::ExtEscaped
            | State::ExtEnd
            | State::ExtGap => self.extension(byte),
            State::SizeLf => self.size_end(byte),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataLf if byte == b'\n' => Ok(State::Size),
            State::DataCr | State::DataLf => Err(Reject::ChunkEnd),
            State::TrailerStart | State::TrailerName | State::TrailerValue | State::TrailerLf | State::EndLf => {
                self.trailer(byte)
            }
            State::Data | State::Done => unreachable!("decode() steps only through framing"),
        }
    }

    fn size(&mut self, byte: u8) -> Result<State, Reject> {
        if let Some(digit) = char::from(byte).to_digit(16) {
            // Sixteen digits fill the u64. One more is an overflow, or leading zeros that no honest client sends.
            if self.digits == 16 {
                return Err(Reject::ChunkSize);
            }
            self.digits += 1;
            self.remaining = self.remaining << 4 | u64::from(digit);
            return Ok(State::Size);
        }
        match byte {
            _ if self.digits == 0 => Err(Reject::ChunkSize),
            b'\r' => Ok(State::SizeLf),
            b';' | b' ' | b'\t' => {
                self.state = State::ExtGap;
                self.extension(byte)
            }
            _ => Err(Reject::ChunkSize),
        }
    }

    /// Checks and drops a byte of an extension. RFC 9112 7.1.1:
    /// `chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )`.
    fn extension(&mut self, byte: u8) -> Result<State, Reject> {
        use State::*;
        let state = match (self.state, byte) {
            // A line ends after a name or a value, with CRLF. A line feed is never allowed inside an extension or a quoted value.
            (ExtName | ExtValue | ExtEnd, b'\r') => return Ok(SizeLf),
            (ExtStart, b' ' | b'\t') => ExtStart,
            (ExtStart | ExtName, _) if is_token(byte) => ExtName,
            (ExtName | ExtNameGap, b' ' | b'\t') => ExtNameGap,
            (ExtName | ExtNameGap, b'=') => ExtValueStart,
            (ExtValueStart, b' ' | b'\t') => ExtValueStart,
            (ExtValueStart, b'"') => ExtQuoted,
            (ExtValueStart | ExtValue, _) if is_token(byte) => ExtValue,
            (ExtQuoted, b'"') => ExtEnd,
            (ExtQuoted, b'\\') => ExtEscaped,
            (ExtQuoted | ExtEscaped, _) if is_value(byte) => ExtQuoted,
            (ExtName | ExtNameGap | ExtValue | ExtEnd | ExtGap, b';') => ExtStart,
            (ExtValue | ExtEnd | ExtGap, b' ' | b'\t') => ExtGap,
            _ => return Err(Reject::ChunkExtension),
        };
        // The bound counts for the whole body: many short chunks with long extensions must not cost more than their data.
        self.extension_left = self
            .extension_left
            .checked_sub(1)
            .ok_or(Reject::ChunkExtensionTooLong)?;
        Ok(state)
    }

    fn size_end(&mut self, byte: u8) -> Result<State, Reject> {
        if byte != b'\n' {
            return Err(Reject::ChunkSize);
        }
        self.digits = 0;
        if self.remaining == 0 {
            return Ok(State::TrailerStart);
        }
        self.body_left = self.body_left.checked_sub(self.remaining).ok_or(Reject::BodyTooLarge)?;
        Ok(State::Data)
    }

    /// Checks and keeps a byte of the trailer section. The section stays apart from the head, whose framing it could change.
    fn trailer(&mut self, byte: u8) -> Result<State, Reject> {
        self.trailer_left = self.trailer_left.checked_sub(1).ok_or(Reject::TrailerTooLarge)?;
        if self.trailer.is_some() || self.state == State::TrailerStart && byte != b'\r' {
            self.trailer.get_or_insert_default().push(byte);
        }
        match (self.state, byte) {
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerStart, _) if is_token(byte) => {
                self.fields_left = self.fields_left.checked_sub(1).ok_or(Reject::TrailerTooLarge)?;
                self.name = TrailerName::NONE;
                self.name.push(byte);
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') if self.name.is_forbidden() => Err(Reject::TrailerForbidden),
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerName, _) if is_token(byte) => {
                self.name.push(byte);
                Ok(State::TrailerName)
            }
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_value(byte) => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::EndLf, b'\n') => Ok(State::Done),
            _ => Err(Reject::Trailer),
        }
    }
}

/// The beginning of the current trailer field's name, in lower case: as many bytes as the longest forbidden name has.
#[derive(Clone, Debug)]
struct TrailerName {
    bytes: [u8; 17],
    /// Saturates at one more than the array. A name of that length is not forbidden.
    length: u8,
}

impl TrailerName {
    const NONE: TrailerName = TrailerName {
        bytes: [0; 17],
        length: 0,
    };

    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(usize::from(self.length)) {
            *slot = byte.to_ascii_lowercase();
        }
        self.length = (self.length + 1).min(18);
    }

    fn is_forbidden(&self) -> bool {
        self.bytes
            .get(..usize::from(self.length))
            .is_some_and(|name| FORBIDDEN_TRAILERS.contains(&name))
    }
}

/// Names that no trailer field may have, in lower case: RFC 9110 6.5.1, fields that are needed "for message framing, routing", and
/// hop-by-hop fields.
pub(crate) const FORBIDDEN_TRAILERS: [&[u8]; 10] = [
    b"connection",
    b"content-encoding",
    b"content-length",
    b"expect",
    b"host",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// The end of each chunk's data.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The end of a chunked body: the last chunk and an empty trailer section.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The line before a chunk's data, made without allocation.
#[derive(Clone, Copy, Debug)]
pub struct ChunkHead {
    line: [u8; 18],
    start: u8,
}

impl ChunkHead {
    /// Makes the head of a chunk of `length` bytes.
    ///
    /// # Panics
    /// Panics if `length` is 0, which would end the body. Use [`LAST_CHUNK`] to end it.
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

/// Appends `data` as one chunk. Appends nothing if `data` is empty, because an empty chunk would end the body.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(ChunkHead::new(data.len() as u64).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(CHUNK_END);
    }
}
