//! Decodes the body of one message, in any framing, and finds where the next message begins.

mod chunked;

#[cfg(feature = "h2")]
pub(crate) use chunked::FORBIDDEN_TRAILERS;
pub use chunked::{CHUNK_END, ChunkHead, ChunkedDecoder, LAST_CHUNK, Piece, write_chunk};

use crate::backend::ReplyLength;
use crate::message::{FieldLines, Limits, Reject};
use crate::request::BodyLength;

/// The decoder of one body.
///
/// Make one after each head, feed it the bytes that follow, and stop at [`Piece::done`]. The rest of the input begins the next
/// request. The decoder holds no bytes.
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
    /// All bytes until the connection or the stream ends, and at most `left`.
    UntilClose {
        left: u64,
        ended: bool,
    },
}

impl BodyDecoder {
    /// Makes the decoder of a request's body. [`Limits::body`] may differ from that of the head, for a route with its own bound.
    ///
    /// # Errors
    /// 413 if the Content-Length exceeds [`Limits::body`]. Send it instead of `100 Continue`; no byte of the body has been read.
    #[inline]
    pub fn new(length: BodyLength, limits: &Limits) -> Result<BodyDecoder, Reject> {
        Ok(BodyDecoder(match length {
            BodyLength::None => State::Known { remaining: 0 },
            BodyLength::Known(length) if length > limits.body => return Err(Reject::BodyTooLarge),
            BodyLength::Known(remaining) => State::Known { remaining },
            BodyLength::Chunked => State::Chunked(ChunkedDecoder::new(limits)),
        }))
    }

    /// Makes the decoder of a request's body that the end of its HTTP/2 stream ends: [`at_end`](Self::at_end) reports the end.
    /// After [`plain`](Self::plain) has become 0, one more byte makes [`decode`](Self::decode) fail with 413.
    pub fn until_end(limits: &Limits) -> BodyDecoder {
        BodyDecoder(State::UntilClose {
            left: limits.body,
            ended: false,
        })
    }

    /// Makes the decoder of a response's body. [`Limits::body`] does not apply, as a gateway streams the body.
    pub fn of_reply(length: ReplyLength, limits: &Limits) -> BodyDecoder {
        BodyDecoder(match length {
            ReplyLength::None => State::Known { remaining: 0 },
            ReplyLength::Known(remaining) => State::Known { remaining },
            ReplyLength::Chunked => State::Chunked(ChunkedDecoder::new(&Limits {
                body: u64::MAX,
                ..*limits
            })),
            ReplyLength::UntilClose => State::UntilClose {
                left: u64::MAX,
                ended: false,
            },
        })
    }

    /// Notes that the connection or the stream has ended, which ends a body without a length.
    ///
    /// # Errors
    /// [`Reject::BodyEnded`] if any other body is incomplete.
    pub fn at_end(&mut self) -> Result<(), Reject> {
        if let State::UntilClose { ended, .. } = &mut self.0 {
            *ended = true;
        }
        if self.is_done() { Ok(()) } else { Err(Reject::BodyEnded) }
    }

    /// Takes framing and at most `max` bytes of data from the beginning of `input`. `input` holds the bytes of the connection that
    /// have not been consumed.
    ///
    /// # Errors
    /// The errors of [`ChunkedDecoder::decode`], and 413 for a byte beyond the bound of [`until_end`](Self::until_end). Other bodies
    /// have none. Do not use the decoder after an error.
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
            State::UntilClose { left, ended } => {
                if *left == 0 && !input.is_empty() {
                    return Err(Reject::BodyTooLarge);
                }
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len()).min(max);
                *left -= count as u64;
                Ok(Piece {
                    consumed: count,
                    data: &input[..count],
                    done: *ended,
                })
            }
        }
    }

    /// Lowers the bound on the rest of the body to `most` bytes of data.
    ///
    /// # Errors
    /// 413 if the rest is already known to be longer.
    pub fn limit(&mut self, most: u64) -> Result<(), Reject> {
        match &mut self.0 {
            State::Known { remaining } if *remaining > most => Err(Reject::BodyTooLarge),
            State::Known { .. } => Ok(()),
            State::UntilClose { left, .. } => {
                *left = most.min(*left);
                Ok(())
            }
            State::Chunked(decoder) => decoder.limit(most),
        }
    }

    /// The number of following bytes that are only body bytes. When no input is buffered, they may be read from the connection
    /// straight into their destination; report them to [`advance`](Self::advance).
    #[inline]
    pub fn plain(&self) -> u64 {
        match &self.0 {
            State::Known { remaining } => *remaining,
            State::Chunked(decoder) => decoder.plain(),
            State::UntilClose { left, ended } => match ended {
                true => 0,
                false => *left,
            },
        }
    }

    /// Reports that `count` bytes of [`plain`](Self::plain) were read without the decoder.
    ///
    /// # Panics
    /// Panics if `count` exceeds [`plain`](Self::plain).
    pub fn advance(&mut self, count: u64) {
        match &mut self.0 {
            State::Known { remaining } => {
                *remaining = remaining.checked_sub(count).expect("advance() beyond plain()");
            }
            State::Chunked(decoder) => decoder.advance(count),
            State::UntilClose { left, .. } => *left = left.checked_sub(count).expect("advance() beyond plain()"),
        }
    }

    /// Takes the fields of the trailer section, which only a chunked body that [is done](Self::is_done) has.
    pub fn take_trailers(&mut self) -> FieldLines {
        match &mut self.0 {
            State::Chunked(decoder) => decoder.take_trailers(),
            State::Known { .. } | State::UntilClose { .. } => FieldLines::new(),
        }
    }

    /// Whether the whole body has been consumed, so that the next byte belongs to the next request.
    #[inline]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Known { remaining } => *remaining == 0,
            State::Chunked(decoder) => decoder.is_done(),
            State::UntilClose { ended, .. } => *ended,
        }
    }
}
