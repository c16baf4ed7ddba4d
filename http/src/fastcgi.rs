//! FastCGI 1.0 records, the web server's side, without I/O: a request out, the application's streams in.
//!
//! One request has a connection to itself until it has ended, under the id 1: applications multiplex badly or not at all.
//!
//! ```text
//!   to the application                                   from it, in any order and any pieces
//!   begin ─▶ ParamsWriter … finish ─▶ stdin … end        STDOUT (a CGI response) and STDERR, each ended by an empty
//!                                     or ABORT           record or by END_REQUEST, which ends the request
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
const ABORT: u8 = 2;
const END: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const RESPONDER: u8 = 1;
const KEEP_CONNECTION: u8 = 1;
/// The length of END_REQUEST: the application's status, the protocol's, three reserved bytes.
const END_LENGTH: usize = 8;

/// Ends the request's body.
pub const STDIN_END: [u8; RECORD_HEAD] = record_head(STDIN, 0);
/// Asks the application to give the request up; it still answers with its end.
pub const ABORT_REQUEST: [u8; RECORD_HEAD] = record_head(ABORT, 0);

/// The head of a record of the request's body, whose `length` bytes follow, unpadded.
pub const fn stdin_head(length: u16) -> [u8; RECORD_HEAD] {
    record_head(STDIN, length)
}

const fn record_head(kind: u8, length: u16) -> [u8; RECORD_HEAD] {
    let ([id_high, id_low], [high, low]) = (REQUEST_ID.to_be_bytes(), length.to_be_bytes());
    [VERSION, kind, id_high, id_low, high, low, 0, 0]
}

/// Begins a request to an application that answers it (a responder); `keep_connection`: it is to leave the connection open.
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

/// Appends one name and its value, up to 2 GiB each, in the form of a parameter. [`ParamsWriter::pairs`] writes pairs that many
/// requests share.
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

/// Writes the request's parameters, in as many records as they need.
#[must_use = "parameters end with finish"]
pub struct ParamsWriter<'o> {
    output: &'o mut Vec<u8>,
    /// The start of the record that is being filled.
    head: usize,
}

impl<'o> ParamsWriter<'o> {
    /// Begins the parameters, after [`begin`].
    pub fn new(output: &'o mut Vec<u8>) -> ParamsWriter<'o> {
        let head = output.len();
        output.extend_from_slice(&record_head(PARAMS, 0));
        ParamsWriter { output, head }
    }

    /// One name and its value, up to 2 GiB each; neither is looked at.
    #[inline]
    pub fn pair(&mut self, name: &[u8], value: &[u8]) {
        let bytes = 2 + name.len() + value.len();
        // Nearly all of them: short, with room in the record that is being filled.
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

    /// Pairs that [`pair`](fn@pair) has made before.
    pub fn pairs(&mut self, made: &[u8]) {
        self.write(made);
    }

    /// Ends the parameters.
    pub fn finish(mut self) {
        self.close();
        // An empty record is the end, so a record that was just begun is one already.
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

    /// The room that is left in the record that is being filled.
    fn room(&self) -> usize {
        RECORD_MAX - (self.output.len() - self.head - RECORD_HEAD)
    }

    /// Writes the length into the head of the record that was filled.
    fn close(&mut self) {
        let filled = self.output.len() - self.head - RECORD_HEAD;
        let length = u16::try_from(filled).expect("write fills a record with RECORD_MAX bytes at most");
        self.output[self.head + 4..self.head + 6].copy_from_slice(&length.to_be_bytes());
    }
}

/// A length of a name or value: one byte, or four with the highest bit set.
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

/// One thing that the application has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// A piece of its response, never empty.
    Stdout(&'i [u8]),
    /// A piece for the error log, never empty.
    Stderr(&'i [u8]),
    /// The request has ended.
    End {
        /// The exit status that a program would have had.
        app_status: u32,
        /// 0: complete; 1: it does not multiplex; 2: overloaded; 3: unknown role.
        protocol_status: u8,
    },
}

/// The result of one [`Decoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'i> {
    /// The number of input bytes that are used up.
    pub consumed: usize,
    /// `None`: it needs more input, or has nothing to say any more.
    pub event: Option<Event<'i>>,
}

/// The application sends something that is not FastCGI 1.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A record of another version: perhaps it does not speak FastCGI at all.
    Version(u8),
    /// END_REQUEST of this length instead of 8.
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

/// Takes an application's records apart, however its bytes are split; holds none of its content.
///
/// Records about the connection instead of the request (id 0), of other requests, and of types that a responder does not send
/// are passed over.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So many bytes of the head are there.
    Head { bytes: [u8; RECORD_HEAD], count: usize },
    /// Content and padding still to come, of a stream or of what is passed over.
    Content { kind: u8, content: usize, padding: usize },
    /// So many bytes of END_REQUEST are there.
    End {
        bytes: [u8; END_LENGTH],
        count: usize,
        padding: usize,
    },
    /// The request has ended; the padding of its end is still to come.
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
    /// A decoder at the beginning of a request.
    pub fn new() -> Decoder {
        Decoder { state: State::START }
    }

    /// Whether the request has ended, and all that belongs to it is used up: then a kept connection takes the next one.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Ended { padding: 0 })
    }

    /// Takes the next event from the beginning of `input`. To be called with what it did not consume, followed by what has
    /// come since, until it says `None`.
    ///
    /// # Errors
    ///
    /// [`Malformed`]; the connection is of no use then.
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
            // Type 0 is nobody's.
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

/// Copies what is missing of a part of fixed length; says how much.
fn fill<const N: usize>(part: &mut [u8; N], count: &mut usize, input: &[u8]) -> usize {
    let taken = input.len().min(N - *count);
    part[*count..*count + taken].copy_from_slice(&input[..taken]);
    *count += taken;
    taken
}

/// Passes over what is left of the padding; whether that is all.
fn skip(padding: &mut usize, input: &[u8], consumed: &mut usize) -> bool {
    let skipped = input.len().min(*padding);
    *padding -= skipped;
    *consumed += skipped;
    *padding == 0
}
