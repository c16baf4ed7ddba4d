//! Frames out of bytes, whatever the pieces in which the bytes arrive.
//!
//! ```text
//!   Preface ─▶ Head ─┬─▶ Prefix ─▶ Data ────┐        Prefix: the length of the padding, the priority of RFC 7540
//!    (server)   ▲    ├─▶ Prefix ─▶ Block ───┤
//!               │    ├─▶ Settings ──────────┤
//!               │    ├─▶ Fixed ─────────────┤        Fixed: a short payload that is read at once
//!               │    └──────────────────────┴─▶ Skip: padding, debug data, payloads without effect
//!               └───────────────────────────────┘
//! ```
//!
//! The reader checks what a frame can show by itself: lengths, padding, reserved stream identifiers, values of settings, and that
//! CONTINUATION frames follow their block without a gap. The states of streams, windows and counts belong to the connection.

use super::event::{Event, Step};
use super::head::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameHead, GOAWAY, HEADERS, PADDED, PING, PRIORITY,
    PRIORITY_UPDATE, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY,
};
use super::{DEFAULT_MAX_FRAME_SIZE, FRAME_HEAD, MAX_31, PREFACE, Setting};
use crate::h2::{Error, ErrorCode, Priority};

/// The side of the connection that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads what a client sends: the preface comes first.
    Server,
    /// Reads what a server sends.
    Client,
}

/// The reader of one connection's frames. It allocates nothing.
#[derive(Clone, Debug)]
pub struct FrameReader {
    state: State,
    role: Role,
    /// The bytes of the padding at the end of the frame.
    padding: u8,
    /// The first frame must be SETTINGS.
    first: bool,
    head: FrameHead,
    /// The bytes of the payload that have not been read, with the padding. In `Preface`: the bytes of it that are missing.
    left: u32,
    /// The stream whose field block is open, or 0. Only CONTINUATION of this stream may follow.
    block: u32,
    /// The CONTINUATION frames that the open block may still have.
    continuations_left: u16,
    max_continuations: u16,
    max_frame_size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Preface,
    Head,
    Prefix,
    Data,
    Block,
    Settings,
    Fixed,
    Skip,
}

/// The bytes of an RFC 7540 priority.
const PRIORITY_BYTES: u32 = 5;
/// The longest value of PRIORITY_UPDATE that is read. `u=7, i` has six bytes.
const PRIORITY_VALUE_MAX: u32 = 64;

impl FrameReader {
    /// The most bytes that [`read`](FrameReader::read) leaves unconsumed when it needs more input.
    pub const HELD: usize = 4 + PRIORITY_VALUE_MAX as usize - 1;

    /// Makes a reader at the beginning of a connection. It accepts frames of 16,384 bytes and 8 CONTINUATION frames a block.
    pub const fn new(role: Role) -> FrameReader {
        let (state, left) = match role {
            Role::Server => (State::Preface, PREFACE.len() as u32),
            Role::Client => (State::Head, 0),
        };
        FrameReader {
            state,
            role,
            padding: 0,
            first: true,
            head: FrameHead {
                length: 0,
                kind: 0,
                flags: 0,
                stream: 0,
            },
            left,
            block: 0,
            continuations_left: 0,
            max_continuations: 8,
            max_frame_size: DEFAULT_MAX_FRAME_SIZE,
        }
    }

    /// A server's reader that continues after a whole frame of another reader, with the bounds of `bounds`.
    pub(in crate::h2) fn between_frames(max_frame_size: u32, bounds: &FrameReader) -> FrameReader {
        FrameReader {
            state: State::Head,
            first: false,
            left: 0,
            max_frame_size,
            ..bounds.clone()
        }
    }

    /// Sets the longest accepted payload. Call it when the peer has acknowledged our SETTINGS_MAX_FRAME_SIZE.
    pub fn set_max_frame_size(&mut self, bytes: u32) {
        self.max_frame_size = bytes;
    }

    /// Sets how many CONTINUATION frames a field block may have.
    pub fn set_max_continuations(&mut self, frames: u16) {
        self.max_continuations = frames;
    }

    /// Whether no frame and no field block is open.
    pub fn is_between_frames(&self) -> bool {
        self.state == State::Head && self.block == 0
    }

    /// Reads up to the next event. Pass all bytes that have not been consumed, and drop those that this call consumes.
    ///
    /// # Errors
    /// A connection error: send GOAWAY. Do not use the reader after it.
    #[inline]
    pub fn read<'i>(&mut self, input: &'i [u8]) -> Result<Step<'i>, Error> {
        let mut rest = input;
        let event = self.next(&mut rest)?;
        Ok(Step {
            consumed: input.len() - rest.len(),
            event,
        })
    }

    fn next<'i>(&mut self, rest: &mut &'i [u8]) -> Result<Option<Event<'i>>, Error> {
        loop {
            match self.state {
                State::Preface => {
                    self.preface(rest)?;
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Head => {
                    let Some((head, after)) = rest.split_first_chunk::<FRAME_HEAD>() else {
                        return Ok(None);
                    };
                    *rest = after;
                    self.head = FrameHead::read(head);
                    if let Some(event) = self.begin()? {
                        return Ok(Some(event));
                    }
                }
                State::Prefix => match self.prefix(rest)? {
                    Some(event) => return Ok(Some(event)),
                    None => return Ok(None),
                },
                State::Data => return Ok(self.data(rest)),
                State::Block => match self.fragment(rest) {
                    Some(event) => return Ok(Some(event)),
                    None if self.state == State::Block => return Ok(None),
                    None => {}
                },
                State::Settings => match self.setting(rest)? {
                    Some(event) => return Ok(Some(event)),
                    None if self.left > 0 && rest.len() < 6 => return Ok(None),
                    None => {}
                },
                State::Fixed => return self.fixed(rest),
                State::Skip => {
                    self.take(rest, self.left);
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
            }
        }
    }

    fn preface(&mut self, rest: &mut &[u8]) -> Result<(), Error> {
        let expected = &PREFACE[PREFACE.len() - self.left as usize..];
        if self
            .take(rest, self.left)
            .iter()
            .zip(expected)
            .any(|(is, should)| is != should)
        {
            return Err(Error::protocol("the bytes are not the preface of HTTP/2"));
        }
        Ok(())
    }

    /// Takes at most `most` bytes of the payload.
    fn take<'i>(&mut self, rest: &mut &'i [u8], most: u32) -> &'i [u8] {
        let (taken, after) = rest.split_at(rest.len().min(most as usize));
        *rest = after;
        self.left -= taken.len() as u32;
        taken
    }

    /// Goes to the padding, if there is any, and to the next frame.
    fn end(&mut self) {
        self.state = if self.left == 0 { State::Head } else { State::Skip };
    }

    /// Checks the head that was read, and chooses the state for its payload.
    fn begin<'i>(&mut self) -> Result<Option<Event<'i>>, Error> {
        let head = self.head;
        if self.first && (head.kind != SETTINGS || head.has(ACK)) {
            return Err(Error::protocol(
                "the peer does not speak HTTP/2: its first frame is not SETTINGS",
            ));
        }
        self.first = false;
        if head.length > self.max_frame_size {
            return Err(Error::size("a frame is longer than SETTINGS_MAX_FRAME_SIZE"));
        }
        let goes_on = head.kind == CONTINUATION && self.block != 0 && head.stream == self.block;
        if !goes_on && (self.block != 0 || head.kind == CONTINUATION) {
            return Err(Error::protocol(match self.block {
                0 => "CONTINUATION without an open field block",
                _ => "a field block is interrupted",
            }));
        }
        self.left = head.length;
        self.padding = 0;
        self.state = self.payload()?;
        Ok(match (head.kind, self.state) {
            (SETTINGS, State::Head) => Some(Event::SettingsAck),
            (DATA, State::Data) => Some(self.data_event()),
            (HEADERS, State::Block) => Some(self.headers_event()),
            (PRIORITY, State::Skip) if head.length == PRIORITY_BYTES => Some(Event::Priority { stream: head.stream }),
            (PRIORITY, _) => Some(Event::StreamError {
                stream: head.stream,
                code: ErrorCode::FRAME_SIZE_ERROR,
                reason: "PRIORITY does not have five bytes",
            }),
            (_, State::Skip) => Some(Event::Unknown {
                kind: head.kind,
                length: head.length,
            }),
            _ => None,
        })
    }

    /// The state for the payload of the head, which is checked for its type's rules.
    fn payload(&mut self) -> Result<State, Error> {
        let FrameHead {
            length, kind, stream, ..
        } = self.head;
        let on_stream = |state| match stream {
            0 => Err(Error::protocol("a frame of a stream is on stream 0")),
            _ => Ok(state),
        };
        let on_connection = |state| match stream {
            0 => Ok(state),
            _ => Err(Error::protocol("a frame of the connection is on a stream")),
        };
        let exactly = |bytes, state| match length == bytes {
            true => Ok(state),
            false => Err(Error::size("a frame has a length that its type does not allow")),
        };
        match kind {
            DATA if self.head.has(PADDED) => on_stream(State::Prefix),
            DATA => on_stream(State::Data),
            HEADERS => {
                self.block = stream;
                self.continuations_left = self.max_continuations;
                let prefix = self.head.has(PADDED) || self.head.has(WITH_PRIORITY);
                on_stream(if prefix { State::Prefix } else { State::Block })
            }
            CONTINUATION => {
                let left = self.continuations_left.checked_sub(1);
                let error = Error::new(
                    ErrorCode::ENHANCE_YOUR_CALM,
                    "too many CONTINUATION frames in a field block",
                );
                self.continuations_left = left.ok_or(error)?;
                Ok(State::Block)
            }
            PRIORITY => on_stream(State::Skip),
            RST_STREAM => exactly(4, on_stream(State::Fixed)?),
            SETTINGS if self.head.has(ACK) => exactly(0, on_connection(State::Head)?),
            SETTINGS if !length.is_multiple_of(6) => {
                Err(Error::size("the length of SETTINGS is not a multiple of six"))
            }
            SETTINGS => on_connection(State::Settings),
            PUSH_PROMISE => Err(Error::protocol("PUSH_PROMISE, which this endpoint never allows")),
            PING => exactly(8, on_connection(State::Fixed)?),
            GOAWAY if length < 8 => Err(Error::size("GOAWAY is shorter than eight bytes")),
            GOAWAY => on_connection(State::Fixed),
            WINDOW_UPDATE => exactly(4, State::Fixed),
            PRIORITY_UPDATE if self.role == Role::Client => Err(Error::protocol("PRIORITY_UPDATE from a server")),
            PRIORITY_UPDATE if length < 4 => Err(Error::size("PRIORITY_UPDATE is shorter than four bytes")),
            PRIORITY_UPDATE if length > 4 + PRIORITY_VALUE_MAX => on_connection(State::Skip),
            PRIORITY_UPDATE => on_connection(State::Fixed),
            _ => Ok(State::Skip),
        }
    }

    /// Reads the bytes before the data or the fragment. `None` until they are complete.
    fn prefix<'i>(&mut self, rest: &mut &[u8]) -> Result<Option<Event<'i>>, Error> {
        let padded = self.head.has(PADDED);
        let priority = self.head.kind == HEADERS && self.head.has(WITH_PRIORITY);
        let bytes = u32::from(padded) + if priority { PRIORITY_BYTES } else { 0 };
        if self.left < bytes {
            return Err(Error::size("a frame is too short for its flags"));
        }
        if rest.len() < bytes as usize {
            return Ok(None);
        }
        let prefix = self.take(rest, bytes);
        if padded {
            self.padding = prefix[0];
        }
        if u32::from(self.padding) > self.left {
            return Err(Error::protocol("the padding is longer than its frame"));
        }
        Ok(Some(if self.head.kind == DATA {
            self.state = State::Data;
            self.data_event()
        } else {
            self.state = State::Block;
            self.headers_event()
        }))
    }

    fn data_event<'i>(&self) -> Event<'i> {
        Event::Data {
            stream: self.head.stream,
            length: self.head.length,
            padding: u32::from(self.head.has(PADDED)) + u32::from(self.padding),
        }
    }

    fn headers_event<'i>(&self) -> Event<'i> {
        Event::Headers {
            stream: self.head.stream,
            end_stream: self.head.has(END_STREAM),
        }
    }

    #[inline]
    fn data<'i>(&mut self, rest: &mut &'i [u8]) -> Option<Event<'i>> {
        let data = self.take(rest, self.left - u32::from(self.padding));
        let last = self.left == u32::from(self.padding);
        if last {
            self.end();
        } else if data.is_empty() {
            return None;
        }
        Some(Event::DataPiece {
            stream: self.head.stream,
            data,
            last,
            end_stream: last && self.head.has(END_STREAM),
        })
    }

    /// A piece of the field block. `None` for an empty CONTINUATION frame that does not end the block, and if input is missing.
    fn fragment<'i>(&mut self, rest: &mut &'i [u8]) -> Option<Event<'i>> {
        let fragment = self.take(rest, self.left - u32::from(self.padding));
        let whole = self.left == u32::from(self.padding);
        if whole {
            self.end();
        }
        let last = whole && self.head.has(END_HEADERS);
        if last {
            self.block = 0;
        } else if fragment.is_empty() {
            return None;
        }
        Some(Event::Block {
            stream: self.head.stream,
            fragment,
            last,
        })
    }

    /// An entry or the end of SETTINGS. `None` after an entry without effect, and if input is missing.
    fn setting<'i>(&mut self, rest: &mut &[u8]) -> Result<Option<Event<'i>>, Error> {
        if self.left == 0 {
            self.state = State::Head;
            return Ok(Some(Event::SettingsEnd));
        }
        let Some(&[i0, i1, v0, v1, v2, v3]) = rest.first_chunk::<6>() else {
            return Ok(None);
        };
        self.take(rest, 6);
        let setting = Setting::read(u16::from_be_bytes([i0, i1]), u32::from_be_bytes([v0, v1, v2, v3]))?;
        if self.role == Role::Client && setting == Some(Setting::EnablePush(true)) {
            return Err(Error::protocol("a server sends SETTINGS_ENABLE_PUSH of 1"));
        }
        Ok(setting.map(Event::Setting))
    }

    /// A payload that is read at once; only GOAWAY has bytes after it.
    fn fixed<'i>(&mut self, rest: &mut &[u8]) -> Result<Option<Event<'i>>, Error> {
        let head = self.head;
        let bytes = if head.kind == GOAWAY { 8 } else { head.length };
        if rest.len() < bytes as usize {
            return Ok(None);
        }
        let payload = self.take(rest, bytes);
        self.end();
        let word = u32::from_be_bytes(*payload.first_chunk().expect("each of these types has four bytes"));
        let octets = || *payload.first_chunk().expect("PING and GOAWAY have eight bytes");
        Ok(Some(match head.kind {
            RST_STREAM => Event::Reset {
                stream: head.stream,
                code: ErrorCode(word),
            },
            PING if head.has(ACK) => Event::Pong(octets()),
            PING => Event::Ping(octets()),
            GOAWAY => Event::GoAway {
                last_stream: word & MAX_31,
                code: ErrorCode((u64::from_be_bytes(octets()) & u64::from(u32::MAX)) as u32),
            },
            WINDOW_UPDATE => return window_update(head.stream, word & MAX_31).map(Some),
            _ => return priority_update(head.length, word & MAX_31, &payload[4..]).map(Some),
        }))
    }
}

fn window_update<'i>(stream: u32, increment: u32) -> Result<Event<'i>, Error> {
    let reason = "a WINDOW_UPDATE of 0";
    match (increment, stream) {
        (0, 0) => Err(Error::protocol(reason)),
        (0, _) => Ok(Event::StreamError {
            stream,
            code: ErrorCode::PROTOCOL_ERROR,
            reason,
        }),
        _ => Ok(Event::WindowUpdate { stream, increment }),
    }
}

fn priority_update<'i>(length: u32, stream: u32, value: &[u8]) -> Result<Event<'i>, Error> {
    if stream == 0 {
        return Err(Error::protocol("PRIORITY_UPDATE for stream 0"));
    }
    Ok(match Priority::parse(value) {
        Some(priority) => Event::PriorityUpdate { stream, priority },
        None => Event::Unknown {
            kind: PRIORITY_UPDATE,
            length,
        },
    })
}
