//! Turns the connection's bytes into the body bytes of one message, whatever its framing, and finds where the next message
//! begins.

mod chunked;

pub use chunked::{CHUNK_END, ChunkHead, ChunkedDecoder, LAST_CHUNK, Piece, write_chunk};

use crate::backend::ReplyLength;
use crate::message::{Limits, Reject};
use crate::request::BodyLength;

/// The decoder of one body.
///
/// The connection makes one after the head, feeds it the bytes that follow and stops at [`Piece::done`]; what is left
/// of the input begins the next request. It holds no bytes itself.
///
/// ```
/// use osier_http::{BodyDecoder, BodyLength, Limits};
///
/// let mut body = BodyDecoder::new(BodyLength::Known(5), &Limits::default())?;
/// let piece = body.decode(b"helloGET /next", usize::MAX)?;
/// assert_eq!((piece.data, piece.consumed, piece.done), (&b"hello"[..], 5, true));
/// # Ok::<(), osier_http::Reject>(())
/// ```
#[derive(Clone, Debug)]
pub struct BodyDecoder(State);

#[derive(Clone, Debug)]
enum State {
    Known {
        remaining: u64,
    },
    Chunked(ChunkedDecoder),
    /// A response's body: everything that comes.
    UntilClose {
        ended: bool,
    },
}

impl BodyDecoder {
    /// A decoder at the first byte after the head. A route with another bound passes its own [`Limits::body`].
    ///
    /// # Errors
    /// 413 when the announced length is beyond [`Limits::body`]: before a byte of it has been read, and instead of
    /// `100 Continue`.
    #[inline]
    pub fn new(length: BodyLength, limits: &Limits) -> Result<BodyDecoder, Reject> {
        Ok(BodyDecoder(match length {
            BodyLength::None => State::Known { remaining: 0 },
            BodyLength::Known(length) if length > limits.body => return Err(Reject::BodyTooLarge),
            BodyLength::Known(remaining) => State::Known { remaining },
            BodyLength::Chunked => State::Chunked(ChunkedDecoder::new(limits)),
        }))
    }

    /// The decoder of a response's body. [`Limits::body`] does not bound it: what a backend sends streams through.
    pub fn of_reply(length: ReplyLength, limits: &Limits) -> BodyDecoder {
        BodyDecoder(match length {
            ReplyLength::None => State::Known { remaining: 0 },
            ReplyLength::Known(remaining) => State::Known { remaining },
            ReplyLength::Chunked => State::Chunked(ChunkedDecoder::new(&Limits {
                body: u64::MAX,
                ..*limits
            })),
            ReplyLength::UntilClose => State::UntilClose { ended: false },
        })
    }

    /// The connection has ended. Only what lasts until then is done by it.
    ///
    /// # Errors
    /// [`Reject::BodyEnded`] inside of any other body.
    pub fn at_end(&mut self) -> Result<(), Reject> {
        if let State::UntilClose { ended } = &mut self.0 {
            *ended = true;
        }
        if self.is_done() { Ok(()) } else { Err(Reject::BodyEnded) }
    }

    /// Takes framing and at most `max` bytes of data from the front of `input`, which holds the connection's bytes
    /// that have not been consumed.
    ///
    /// # Errors
    /// As [`ChunkedDecoder::decode`]; a body of known length has none. The decoder is used up after an error.
    #[inline]
    pub fn decode<'i>(&mut self, input: &'i [u8], max: usize) -> Result<Piece<'i>, Reject> {
        match &mut self.0 {
            State::Known { remaining } => {
                let count = usize::try_from(*remaining)
                    .unwrap_or(usize::MAX)
                    .min(input.len())
                    .min(max);
                *remaining -= count as u64;
                Ok(Piece {
                    consumed: count,
                    data: &input[..count],
                    done: *remaining == 0,
                })
            }
            State::Chunked(decoder) => decoder.decode(input, max),
            State::UntilClose { ended } => {
                let count = input.len().min(max);
                Ok(Piece {
                    consumed: count,
                    data: &input[..count],
                    done: *ended,
                })
            }
        }
    }

    /// Bounds what is still to come to `most` bytes of data, unless it is bounded by less.
    ///
    /// # Errors
    /// 413 when more than that has been announced.
    pub fn limit(&mut self, most: u64) -> Result<(), Reject> {
        match &mut self.0 {
            State::Known { remaining } if *remaining > most => Err(Reject::BodyTooLarge),
            // Only a response ends with its connection, and its reader has another bound.
            State::Known { .. } | State::UntilClose { .. } => Ok(()),
            State::Chunked(decoder) => decoder.limit(most),
        }
    }

    /// The number of next bytes that are body bytes and nothing else. Once the buffered input is used up, they may be read from
    /// the connection straight into their destination. Report them by [`advance`](Self::advance).
    #[inline]
    pub fn plain(&self) -> u64 {
        match &self.0 {
            State::Known { remaining } => *remaining,
            State::Chunked(decoder) => decoder.plain(),
            State::UntilClose { ended } => {
                if *ended {
                    0
                } else {
                    u64::MAX
                }
            }
        }
    }

    /// Tells that `count` plain bytes were read past the decoder.
    ///
    /// # Panics
    /// When `count` exceeds [`plain`](Self::plain): the caller has lost its place in the body.
    pub fn advance(&mut self, count: u64) {
        match &mut self.0 {
            State::Known { remaining } => {
                *remaining = remaining.checked_sub(count).expect("advance() beyond plain()");
            }
            State::Chunked(decoder) => decoder.advance(count),
            State::UntilClose { .. } => {}
        }
    }

    /// Whether the whole body has been consumed, so that the next byte belongs to the next request.
    #[inline]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Known { remaining } => *remaining == 0,
            State::Chunked(decoder) => decoder.is_done(),
            State::UntilClose { ended } => *ended,
        }
    }
}
