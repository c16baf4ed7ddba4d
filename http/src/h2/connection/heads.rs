//! HEADERS and CONTINUATION frames: new streams, responses and trailers (RFC 9113 6.2, 6.10 and 8).

use std::sync::Arc;
use std::time::Instant;

use super::data::{CLOSED, CLOSED_COST};
use super::repeated::{BLOCK_MAX, Received, Request};
use super::{Connection, Incoming, Partial};
use crate::Reject;
use crate::h2::event::Event;
use crate::h2::fields::{Block, Built, Malformed, Purpose};
use crate::h2::frame::{self, HeadersWriter, Role};
use crate::h2::hpack::BlockStatus;
use crate::h2::stream::{Direction, ResetBy, Stream, StreamId};
use crate::h2::{Error, ErrorCode, Priority};

impl Connection {
    /// A HEADERS frame begins.
    pub(super) fn block_begins<'i>(
        &mut self,
        id: StreamId,
        ended: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let (purpose, event) = match self.streams.get(id) {
            Some(_) => self.purpose_in_stream(id, now)?,
            None if self.role == Role::Server => (self.purpose_of_new(id, now)?, None),
            None => (self.closed_frame(id, now).map(|()| Purpose::Discard)?, None),
        };
        if ended && purpose == Purpose::Discard && !self.peer_ends_reset(id) {
            self.forgotten.peer_ends(id);
        }
        let is_new = purpose == Purpose::Request;
        let is_refused = is_new && self.is_full();
        self.incoming = Some(Incoming {
            stream: id,
            ended,
            is_refused,
            purpose: if is_refused { Purpose::Discard } else { purpose },
        });
        Ok(event)
    }

    /// The purpose of a block for a stream in the table.
    fn purpose_in_stream<'i>(&mut self, id: StreamId, now: Instant) -> Result<(Purpose, Option<Event<'i>>), Error> {
        let Some(stream) = self.streams.get(id) else {
            return Err(CLOSED);
        };
        let asks_for_tunnel = stream.is_connect && self.role == Role::Server;
        let code = match (stream.reset, stream.receiving) {
            (Some(ResetBy::Peer), _) => return Err(CLOSED),
            (Some(ResetBy::Us), _) => {
                self.spend(CLOSED_COST, now)?;
                return Ok((Purpose::Discard, None));
            }
            (None, Direction::Head) => return Ok((Purpose::Response, None)),
            (None, Direction::Ended) if stream.sending == Direction::Ended => return Err(CLOSED),
            (None, Direction::Ended) => ErrorCode::STREAM_CLOSED,
            // RFC 9113 8.5: frames other than DATA "MUST be treated as a stream error" in a tunnel. A request for one has no trailer
            // either: nothing would bound its memory, because the heads of tunnels do not count.
            (None, Direction::Body) if stream.is_tunnel || asks_for_tunnel => ErrorCode::PROTOCOL_ERROR,
            (None, Direction::Body) => return Ok((Purpose::Trailers, None)),
        };
        let event = self.stream_error(id, code, now)?;
        Ok((Purpose::Discard, event))
    }

    /// The purpose of a block for a stream that is not in a server's table.
    fn purpose_of_new(&mut self, id: StreamId, now: Instant) -> Result<Purpose, Error> {
        if id.is_multiple_of(2) {
            return Err(Error::protocol("a client opened a stream with an even identifier"));
        }
        if self.ending.ignores(id) {
            self.spend(CLOSED_COST, now)?;
            return Ok(Purpose::Discard);
        }
        if id > self.highest {
            self.note_opened(id);
            return Ok(Purpose::Request);
        }
        self.closed_frame(id, now)?;
        Ok(Purpose::Discard)
    }

    /// Whether the peer has as many streams as it may have. A stream counts whose handler still runs, unless both sides have ended
    /// it: the peer cannot know of that handler.
    fn is_full(&self) -> bool {
        let most = self.most_streams();
        self.streams.len() >= most && self.active() >= most
    }

    /// The number of streams that count against the limit.
    pub(super) fn active(&self) -> usize {
        let counts = |stream: &&Stream| stream.reset.is_some() || !stream.is_closed();
        self.streams.iter().filter(counts).count()
    }

    fn begin_block(&self, purpose: Purpose, now: Instant) -> Partial {
        let takes_protocol = self.role == Role::Server && self.limits.extended_connect;
        Partial {
            block: Block::new(purpose, takes_protocol),
            since: now,
        }
    }

    /// The input has ended, perhaps within a block: its deadline begins.
    pub(super) fn hold_block(&mut self, now: Instant) {
        if let Some(incoming) = self.incoming.filter(|_| self.partial.is_none()) {
            self.partial = Some(Box::new(self.begin_block(incoming.purpose, now)));
        }
    }

    /// A piece of the current block.
    pub(super) fn block_piece<'i>(
        &mut self,
        fragment: &[u8],
        last: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let (Some(incoming), partial) = (self.incoming.take(), self.partial.take()) else {
            return Err(Error::protocol("a field block without HEADERS"));
        };
        let is_whole = last && self.decoder.is_at_start();
        if is_whole
            && incoming.purpose == Purpose::Request
            && let Some(last) = &self.received
            && last.means(fragment, incoming.ended, &self.decoder)
        {
            let request = last.request.clone();
            return self.request_begins(incoming.stream, request, incoming.ended, now);
        }
        let Partial { mut block, since } = match partial {
            Some(partial) => *partial,
            None => self.begin_block(incoming.purpose, now),
        };
        let changes = self.decoder.changes();
        let status = self.decoder.decode(fragment, last, &mut |name: &[u8], value: &[u8]| {
            block.field(name, value)
        })?;
        if !last {
            self.incoming = Some(incoming);
            self.partial = Some(Box::new(Partial { block, since }));
            return Ok(None);
        }
        let is_repeatable = is_whole && changes == self.decoder.changes() && fragment.len() <= BLOCK_MAX;
        self.block_ends(incoming, block, status, is_repeatable.then_some(fragment), now)
    }

    fn block_ends<'i>(
        &mut self,
        incoming: Incoming,
        block: Block,
        status: BlockStatus,
        repeatable: Option<&[u8]>,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let Incoming {
            stream,
            ended,
            is_refused,
            purpose,
        } = incoming;
        if is_refused {
            return self
                .refuse(stream, ErrorCode::REFUSED_STREAM, ended, now)
                .map(|()| None);
        }
        let is_new = purpose == Purpose::Request;
        let beyond = match status {
            BlockStatus::TooLarge => Some(Reject::HeadTooLarge),
            BlockStatus::TooMany => Some(Reject::TooManyHeaders),
            _ => None,
        };
        if let Some(reject) = beyond.filter(|_| purpose != Purpose::Discard) {
            return match is_new {
                true => self.answer_beyond(stream, reject, ended, now),
                false => self.stream_error(stream, ErrorCode::ENHANCE_YOUR_CALM, now),
            };
        }
        match block.finish(ended) {
            Err(Malformed(reason)) if is_new => {
                self.refuse(stream, ErrorCode::PROTOCOL_ERROR, ended, now)?;
                Ok(Some(Event::Malformed { stream, reason }))
            }
            Err(Malformed(_)) => self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, now),
            Ok(Built::Nothing) => Ok(None),
            Ok(Built::Request { head, length, priority }) => {
                let request = Request {
                    head: Arc::new(head),
                    length,
                    priority,
                };
                if let Some(block) = repeatable {
                    self.keep_request(block, &request);
                }
                self.request_begins(stream, request, ended, now)
            }
            Ok(Built::Response { head, length }) => self.response(stream, head, length, ended, now),
            Ok(Built::Trailers(fields)) => {
                let (heads, most) = (&mut self.heads, self.limits.heads_bytes);
                let Some(state) = self.streams.get_mut(stream).filter(|state| state.reset.is_none()) else {
                    return Ok(None);
                };
                if state.length_left.is_some_and(|left| left > 0) {
                    return self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, now);
                }
                if !state.holds(&fields, heads, most) {
                    return self.stream_error(stream, ErrorCode::ENHANCE_YOUR_CALM, now);
                }
                state.receiving = Direction::Ended;
                Ok(Some(Event::Trailers { stream, fields }))
            }
        }
    }

    /// Keeps a request that the client may repeat.
    fn keep_request(&mut self, block: &[u8], request: &Request) {
        let kept = self.received.get_or_insert_with(|| {
            let (block, request) = (Vec::new(), request.clone());
            Box::new(Received {
                block,
                changes: 0,
                request,
            })
        });
        kept.block.clear();
        kept.block.extend_from_slice(block);
        kept.changes = self.decoder.changes();
        kept.request = request.clone();
    }

    /// A request has arrived.
    fn request_begins<'i>(
        &mut self,
        stream: StreamId,
        request: Request,
        ended: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let Request { head, length, priority } = request;
        let bytes = head.fields().memory();
        if self.heads + bytes > self.limits.heads_bytes {
            self.refuse(stream, ErrorCode::REFUSED_STREAM, ended, now)?;
            return Ok(None);
        }
        self.heads += bytes;
        let receiving = if ended { Direction::Ended } else { Direction::Body };
        let mut state = self.open(stream, receiving, Direction::Head);
        state.head_bytes = bytes as u32;
        state.is_connect = head.method() == "CONNECT";
        state.is_head = head.method() == "HEAD";
        state.length_left = length.filter(|_| !state.is_connect);
        if let Some(priority) = self.early_priority(stream).or(priority) {
            state.priority = priority;
            self.has_priorities = true;
        }
        self.streams.push(state);
        Ok(Some(Event::Request {
            stream,
            head,
            end: ended,
        }))
    }

    /// A head of a response has arrived.
    fn response<'i>(
        &mut self,
        stream: StreamId,
        head: Box<crate::h2::ResponseHead>,
        length: Option<u64>,
        end: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let status = head.status();
        let (heads, most) = (&mut self.heads, self.limits.heads_bytes);
        let Some(state) = self.streams.get_mut(stream).filter(|state| state.reset.is_none()) else {
            return Ok(None);
        };
        if status < 200 {
            self.spend(INTERIM_COST, now)?;
        } else {
            if !state.holds(head.fields(), heads, most) {
                return self.stream_error(stream, ErrorCode::ENHANCE_YOUR_CALM, now);
            }
            state.is_bodiless = state.is_head || matches!(status, 204 | 304);
            state.is_tunnel = state.is_connect && (200..300).contains(&status);
            state.length_left = length.filter(|_| !state.is_bodiless && !state.is_tunnel);
            if end && state.length_left.is_some_and(|left| left > 0) {
                return self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, now);
            }
            state.receiving = if end { Direction::Ended } else { Direction::Body };
        }
        Ok(Some(Event::Response { stream, head, end }))
    }

    /// Resets a stream that has not been opened.
    fn refuse(&mut self, stream: StreamId, code: ErrorCode, ended: bool, now: Instant) -> Result<(), Error> {
        self.output.answer(|out| frame::reset(out, stream, code));
        if !ended {
            self.forget(stream, self.first_window().into());
        }
        self.spend_reset(now)
    }

    /// Sends 431 (RFC 6585) for a request whose fields are beyond the limits.
    fn answer_beyond<'i>(
        &mut self,
        stream: StreamId,
        reject: Reject,
        ended: bool,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        let (encoder, max_frame) = (&mut self.encoder, self.peer.max_frame_size);
        self.output.answer(|out| {
            let headers = HeadersWriter::begin(out);
            encoder.begin(out);
            encoder.status(out, 431);
            headers.finish(out, stream, true, max_frame);
        });
        if !ended {
            self.reset_when_read(stream, self.first_window().into());
        }
        self.spend_reset(now)?;
        Ok(Some(Event::Refused { stream, reject }))
    }

    /// The priority that the client has sent before the stream. Those of lower streams can never be used.
    fn early_priority(&mut self, stream: StreamId) -> Option<Priority> {
        if self.early.is_empty() {
            return None;
        }
        let found = self
            .early
            .iter()
            .find(|(id, _)| *id == stream)
            .map(|(_, priority)| *priority);
        self.early.retain(|(id, _)| *id > stream);
        found
    }
}

/// The cost of an interim response. No response has many.
const INTERIM_COST: u32 = 10;
