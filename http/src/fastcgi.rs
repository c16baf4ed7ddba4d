//! The web server's side of FastCGI 1.0, without I/O: it writes the records of a request and reads those of the backend.
//!
//! A connection carries one request at a time, with the id 1: backends multiplex badly or not at all.
//!
//! ```text
//!   to the backend                                       from it, in any order and any pieces
//!   begin ─▶ ParamsWriter … finish ─▶ stdin … end        STDOUT (a CGI response) and STDERR, each ended by an empty
//!                                                        record or by END_REQUEST, which ends the request
//!
//!   record: version 1 │ type │ id (2) │ content length (2) │ padding length │ 0 │ content │ padding
//! ```
//!
//! Source: FastCGI Specification, Open Market, 1996, version 1.0.

use std::{error, fmt};

/// The most bytes in one record's content.
pub const RECORD_MAX: usize = 65_535;
/// The bytes before a record's content.
pub const RECORD_HEAD: usize = 8;

const VERSION: u8 = 1;
const REQUEST_ID: u16 = 1;
const BEGIN: u8 = 1;
const END: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;
/// The length of END_REQUEST's content: the backend's status, the protocol's status, and three reserved bytes.
const END_LENGTH: usize = 8;

/// The record that ends the request's body.
pub const STDIN_END: [u8; RECORD_HEAD] = record_head(STDIN, 0);

/// The head of a record of the request's body. Its `length` bytes follow, without padding.
pub const fn stdin_head(length: u16) -> [u8; RECORD_HEAD] {
    record_head(STDIN, length)
}

const fn record_head(kind: u8, length: u16) -> [u8; RECORD_HEAD] {
    let ([id_high, id_low], [high, low]) = (REQUEST_ID.to_be_bytes(), length.to_be_bytes());
    [VERSION, kind, id_high, id_low, high, low, 0, 0]
}

/// Begins a request to a responder. `keep_connection` asks the backend to keep the connection open.
///
/// ```
/// use osier_http::fastcgi::{self, Decoder, Event, ParamsWriter};
///
/// let mut request = Vec::new();
/// fastcgi::begin(&mut request, false);
/// let mut params = ParamsWriter::new(&mut request);
/// params.pair(b"SCRIPT_FILENAME", b"/srv/index.php");
/// params.pair(b"QUERY_STRING", b"");
/// params.finish();
/// request.extend_from_slice(&fastcgi::stdin_head(5));
/// request.extend_from_slice(b"hello");
/// request.extend_from_slice(&fastcgi::STDIN_END);
///
/// let answer = b"\x01\x06\0\x01\0\x02\x06\0ok\0\0\0\0\0\0\x01\x03\0\x01\0\x08\0\0\0\0\0\0\0\0\0\0";
/// let mut decoder = Decoder::new();
/// let first = decoder.decode(answer)?;
/// assert_eq!(first.event, Some(Event::Stdout(b"ok")));
/// let last = decoder.decode(&answer[first.consumed..])?;
/// assert_eq!(last.event, Some(Event::End { app_status: 0, protocol_status: 0 }));
/// # Ok::<(), osier_http::fastcgi::Malformed>(())
/// ```
pub fn begin(output: &mut Vec<u8>, keep_connection: bool) {
    output.extend_from_slice(&record_head(BEGIN, 8));
    let flags = if keep_connection { KEEP_CONNECTION } else { 0 };
    output.extend_from_slice(&[0, RESPONDER, flags, 0, 0, 0, 0, 0]);
}

/// Appends a name and its value, up to 2 GiB each, encoded as a parameter. Use it with [`ParamsWriter::pairs`] to encode the
/// parameters that many requests share only once.
#[inline]
pub fn pair(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if name.len() < 128 && value.len() < 128 {
        to.reserve(2 + name.len() + value.len());
        to.extend_from_slice(&[name.len() as u8, value.len() as u8]);
    } else {
        to.extend_from_slice(length(name.len()).bytes());
        to.extend_from_slice(length(value.len()).bytes());
    }
    to.extend_from_slice(name);
    to.extend_from_slice(value);
}

/// Writes the parameters of a request, in as many records as they need.
#[must_use = "parameters end with finish"]
pub struct ParamsWriter<'o> {
    output: &'o mut Vec<u8>,
    /// The start of the record that is being filled.
    head: usize,
}

impl<'o> ParamsWriter<'o> {
    /// Begins the parameters. Call [`begin`] before.
    pub fn new(output: &'o mut Vec<u8>) -> ParamsWriter<'o> {
        let head = output.len();
        output.extend_from_slice(&record_head(PARAMS, 0));
        ParamsWriter { output, head }
    }

    /// Writes a name and its value, up to 2 GiB each. Neither is checked.
    #[inline]
    pub fn pair(&mut self, name: &[u8], value: &[u8]) {
        let bytes = 2 + name.len() + value.len();
        // The usual case: short, and the current record has room.
        if name.len() < 128 && value.len() < 128 && bytes <= self.room() {
            pair(self.output, name, value);
        } else {
            self.pair_in_parts(name, value);
        }
    }

    #[cold]
    fn pair_in_parts(&mut self, name: &[u8], value: &[u8]) {
        let (name_length, value_length) = (length(name.len()), length(value.len()));
        for part in [name_length.bytes(), value_length.bytes(), name, value] {
            self.write(part);
        }
    }

    /// Writes pairs that [`pair`](fn@pair) has encoded.
    pub fn pairs(&mut self, made: &[u8]) {
        self.write(made);
    }

    /// Ends the parameters.
    pub fn finish(mut self) {
        self.close();
        // An empty record ends the parameters. A record that was just begun is already empty.
        if self.head < self.output.len() - RECORD_HEAD {
            self.output.extend_from_slice(&record_head(PARAMS, 0));
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            if room == 0 {
                self.close();
                self.head = self.output.len();
                self.output.extend_from_slice(&record_head(PARAMS, 0));
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.output.extend_from_slice(now);
            bytes = later;
        }
    }

    /// The room in the current record, in bytes.
    fn room(&self) -> usize {
        RECORD_MAX - (self.output.len() - self.head - RECORD_HEAD)
    }

    /// Writes the length into the head of the current record.
    fn close(&mut self) {
        let filled = self.output.len() - self.head - RECORD_HEAD;
        let length = u16::try_from(filled).expect("write fills a record with RECORD_MAX bytes at most");
        self.output[self.head + 4..self.head + 6].copy_from_slice(&length.to_be_bytes());
    }
}

/// The encoded length of a name or value: one byte, or four with the highest bit set.
struct Length {
    bytes: [u8; 4],
    count: usize,
}

impl Length {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

fn length(length: usize) -> Length {
    match u8::try_from(length) {
        Ok(short @ 0..=127) => Length {
            bytes: [short, 0, 0, 0],
            count: 1,
        },
        _ => Length {
            bytes: (length as u32 | 1 << 31).to_be_bytes(),
            count: 4,
        },
    }
}

/// An event in the backend's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// A piece of the response, never empty.
    Stdout(&'i [u8]),
    /// A piece of the standard error, never empty.
    Stderr(&'i [u8]),
    /// The request has ended.
    End {
        /// The exit status of the script.
        app_status: u32,
        /// 0: complete; 1: the backend cannot multiplex; 2: overloaded; 3: unknown role.
        protocol_status: u8,
    },
}

/// The result of one [`Decoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'i> {
    /// The number of consumed input bytes.
    pub consumed: usize,
    /// The event. `None` if more input is needed, or if the request has ended.
    pub event: Option<Event<'i>>,
}

/// Why the bytes of the backend are not FastCGI 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// A record has another version. The backend may not speak FastCGI at all.
    Version(u8),
    /// END_REQUEST has this length instead of 8.
    EndLength(u16),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Version(version) => write!(
                f,
                "a record of version {version}, not 1: is that a FastCGI application?"
            ),
            Malformed::EndLength(length) => write!(f, "an end of request of {length} bytes instead of {END_LENGTH}"),
        }
    }
}

impl error::Error for Malformed {}

/// The incremental decoder of a backend's records. It holds no content, and its result does not depend on how the input is
/// split.
///
/// Records about the connection (id 0), of other requests, and of types that a responder does not send are skipped.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The first `count` bytes of a record's head.
    Head { bytes: [u8; RECORD_HEAD], count: usize },
    /// The numbers of content and padding bytes to come, in a record of a stream or a skipped one.
    Content { kind: u8, content: usize, padding: usize },
    /// The first `count` bytes of END_REQUEST's content.
    End {
        bytes: [u8; END_LENGTH],
        count: usize,
        padding: usize,
    },
    /// The request has ended. The number of padding bytes to come.
    Ended { padding: usize },
}

impl State {
    const START: State = State::Head {
        bytes: [0; RECORD_HEAD],
        count: 0,
    };
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Makes a decoder at the beginning of a request.
    pub fn new() -> Decoder {
        Decoder { state: State::START }
    }

    /// Whether the request has ended and all of its bytes are consumed. A kept connection can carry the next request then.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Ended { padding: 0 })
    }

    /// Takes the next event from the beginning of `input`, which holds the bytes that have not been consumed. Call it until the
    /// event is `None`, and again when more bytes have arrived.
    ///
    /// # Errors
    ///
    /// [`Malformed`]. Close the connection then.
    pub fn decode<'i>(&mut self, input: &'i [u8]) -> Result<Step<'i>, Malformed> {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match &mut self.state {
                State::Head { bytes, count } => {
                    consumed += fill(bytes, count, rest);
                    if *count < RECORD_HEAD {
                        return Ok(Step { consumed, event: None });
                    }
                    self.state = content_of(*bytes)?;
                }
                State::Content { kind, content, padding } => {
                    let (kind, available) = (*kind, rest.len().min(*content));
                    *content -= available;
                    consumed += available;
                    if available > 0
                        && let Some(event) = stream(kind, &rest[..available])
                    {
                        return Ok(Step {
                            consumed,
                            event: Some(event),
                        });
                    }
                    if *content == 0 && skip(padding, &input[consumed..], &mut consumed) {
                        self.state = State::START;
                    } else {
                        return Ok(Step { consumed, event: None });
                    }
                }
                State::End { bytes, count, padding } => {
                    consumed += fill(bytes, count, rest);
                    if *count < END_LENGTH {
                        return Ok(Step { consumed, event: None });
                    }
                    let [a, b, c, d, protocol_status, ..] = *bytes;
                    let event = Event::End {
                        app_status: u32::from_be_bytes([a, b, c, d]),
                        protocol_status,
                    };
                    let mut padding = *padding;
                    skip(&mut padding, &input[consumed..], &mut consumed);
                    self.state = State::Ended { padding };
                    return Ok(Step {
                        consumed,
                        event: Some(event),
                    });
                }
                State::Ended { padding } => {
                    skip(padding, rest, &mut consumed);
                    return Ok(Step { consumed, event: None });
                }
            }
        }
    }
}

/// The state after a record's head.
fn content_of(head: [u8; RECORD_HEAD]) -> Result<State, Malformed> {
    let [version, kind, id_high, id_low, high, low, padding, _] = head;
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    let (content, padding) = (u16::from_be_bytes([high, low]), usize::from(padding));
    let ours = u16::from_be_bytes([id_high, id_low]) == REQUEST_ID;
    match kind {
        END if ours && usize::from(content) != END_LENGTH => Err(Malformed::EndLength(content)),
        END if ours => Ok(State::End {
            bytes: [0; END_LENGTH],
            count: 0,
            padding,
        }),
        _ => Ok(State::Content {
            // No type is 0, so the record is skipped.
            kind: if ours { kind } else { 0 },
            content: content.into(),
            padding,
        }),
    }
}

fn stream(kind: u8, bytes: &[u8]) -> Option<Event<'_>> {
    match kind {
        STDOUT => Some(Event::Stdout(bytes)),
        STDERR => Some(Event::Stderr(bytes)),
        _ => None,
    }
}

/// Copies input into the missing bytes of `part`. Returns how many bytes.
fn fill<const N: usize>(part: &mut [u8; N], count: &mut usize, input: &[u8]) -> usize {
    let taken = input.len().min(N - *count);
    part[*count..*count + taken].copy_from_slice(&input[..taken]);
    *count += taken;
    taken
}

/// Skips padding. Returns whether all of it has been skipped.
fn skip(padding: &mut usize, input: &[u8], consumed: &mut usize) -> bool {
    let skipped = input.len().min(*padding);
    *padding -= skipped;
    *consumed += skipped;
    *padding == 0
}
