//! Received bytes: frames, and what each of them means.

use std::time::Instant;

use super::Connection;
use crate::h2::event::Event;
use crate::h2::frame::{Event as Frame, Step};
use crate::h2::{Error, ErrorCode};

impl Connection {
    /// Reads some of `input`, and returns how many bytes it has consumed and at most one event. The owner calls it with the rest
    /// of its input until all bytes are consumed and there is no event. An incomplete frame is kept inside, in fewer than 100
    /// bytes.
    ///
    /// # Errors
    /// The connection has failed. GOAWAY is in the output; write it and close. Later calls return the same error.
    pub fn receive<'i>(&mut self, input: &'i [u8], now: Instant) -> Result<(usize, Option<Event<'i>>), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if let Some(event) = self.events.pop_front() {
            return Ok((0, Some(event)));
        }
        self.read(input, now).map_err(|error| self.fail(error))
    }

    fn read<'i>(&mut self, input: &'i [u8], now: Instant) -> Result<(usize, Option<Event<'i>>), Error> {
        let mut consumed = 0;
        loop {
            let step = self.step(&input[consumed..])?;
            consumed += step.consumed;
            let Some(frame) = step.event else {
                self.hold_block(now);
                return Ok((consumed, None));
            };
            let event = self.frame(frame, now)?;
            if self.output.is_flooded() {
                return Err(Error::new(
                    ErrorCode::ENHANCE_YOUR_CALM,
                    "the peer does not read the answers to its frames",
                ));
            }
            match event.or_else(|| self.events.pop_front()) {
                None => {}
                event => return Ok((consumed, event)),
            }
        }
    }

    /// Reads the next part of a frame. Bytes of an incomplete part go to `held`, so all of `input` is consumed if there is no event.
    fn step<'i>(&mut self, input: &'i [u8]) -> Result<Step<'i>, Error> {
        if self.held.is_empty() {
            let step = self.reader.read(input)?;
            if step.event.is_some() {
                return Ok(step);
            }
            self.held.extend_from_slice(&input[step.consumed..]);
        } else {
            // Byte by byte, so that no byte behind the part is taken. A part is short, and few parts are cut.
            for (at, byte) in input.iter().enumerate() {
                self.held.push(*byte);
                let step = self.reader.read(&self.held)?;
                let event = step.event.map(|event| with_bytes(event, &input[..=at]));
                self.held.drain(..step.consumed);
                let consumed = at + 1;
                if event.is_some() {
                    return Ok(Step { consumed, event });
                }
                if self.held.is_empty() {
                    // The part had no event: the next one follows in the input.
                    let next = self.step(&input[consumed..])?;
                    return Ok(Step {
                        consumed: consumed + next.consumed,
                        ..next
                    });
                }
            }
        }
        Ok(Step {
            consumed: input.len(),
            event: None,
        })
    }

    fn frame<'i>(&mut self, frame: Frame<'i>, now: Instant) -> Result<Option<Event<'i>>, Error> {
        match frame {
            Frame::Data {
                stream,
                length,
                padding,
            } => self.data_begins(stream, length, padding, now),
            Frame::DataPiece {
                stream,
                data,
                last,
                end_stream,
            } => self.data_piece(stream, data, last && end_stream, now),
            Frame::Headers { stream, end_stream } => self.block_begins(stream, end_stream, now),
            Frame::Block {
                stream: _,
                fragment,
                last,
            } => self.block_piece(fragment, last, now),
            Frame::Reset { stream, code } => self.peer_resets(stream, code, now),
            Frame::Setting(setting) => self.setting(setting, now),
            Frame::SettingsEnd => self.settings_end(now),
            Frame::SettingsAck => self.settings_acknowledged(now),
            Frame::Ping(payload) => self.ping_received(payload, now),
            Frame::Pong(payload) => self.pong_received(payload, now),
            Frame::GoAway { last_stream, code } => self.peer_ends(last_stream, code, now),
            Frame::WindowUpdate { stream, increment } => self.window_update(stream, increment, now),
            Frame::PriorityUpdate { stream, priority } => self.priority_update(stream, priority, now),
            Frame::Priority { .. } => self.spend(5, now).map(|()| None),
            Frame::Unknown { length, .. } => self.spend(10 + length / 1024, now).map(|()| None),
            Frame::StreamError { stream, code, reason } => {
                if self.is_idle_id(stream) {
                    return Err(Error::new(code, reason));
                }
                self.stream_error(stream, code, now)
            }
        }
    }

    /// Resets a stream because its peer has broken a rule (RFC 9113 5.4.2). Every such reset counts.
    pub(super) fn stream_error<'i>(
        &mut self,
        stream: u32,
        code: ErrorCode,
        now: Instant,
    ) -> Result<Option<Event<'i>>, Error> {
        self.spend_reset(now)?;
        let Some(state) = self.streams.get(stream) else {
            return Ok(None);
        };
        if state.is_closed() {
            return Ok(None);
        }
        self.reset(stream, code);
        Ok(Some(Event::Reset {
            stream,
            code,
            by_peer: false,
        }))
    }
}

/// The same event, with its bytes taken from the input that ends with them. Only the last byte of a held part can be one of a body
/// or a block.
fn with_bytes<'i>(event: Frame<'_>, input: &'i [u8]) -> Frame<'i> {
    let end_of = |bytes: &[u8]| &input[input.len() - bytes.len()..];
    match event {
        Frame::DataPiece {
            stream,
            data,
            last,
            end_stream,
        } => Frame::DataPiece {
            stream,
            data: end_of(data),
            last,
            end_stream,
        },
        Frame::Block { stream, fragment, last } => Frame::Block {
            stream,
            fragment: end_of(fragment),
            last,
        },
        Frame::Data {
            stream,
            length,
            padding,
        } => Frame::Data {
            stream,
            length,
            padding,
        },
        Frame::Headers { stream, end_stream } => Frame::Headers { stream, end_stream },
        Frame::Priority { stream } => Frame::Priority { stream },
        Frame::Reset { stream, code } => Frame::Reset { stream, code },
        Frame::Setting(setting) => Frame::Setting(setting),
        Frame::SettingsEnd => Frame::SettingsEnd,
        Frame::SettingsAck => Frame::SettingsAck,
        Frame::Ping(payload) => Frame::Ping(payload),
        Frame::Pong(payload) => Frame::Pong(payload),
        Frame::GoAway { last_stream, code } => Frame::GoAway { last_stream, code },
        Frame::WindowUpdate { stream, increment } => Frame::WindowUpdate { stream, increment },
        Frame::PriorityUpdate { stream, priority } => Frame::PriorityUpdate { stream, priority },
        Frame::Unknown { kind, length } => Frame::Unknown { kind, length },
        Frame::StreamError { stream, code, reason } => Frame::StreamError { stream, code, reason },
    }
}
