//! The events that a connection reports to its owner.

use std::sync::Arc;

use super::fields::{RequestHead, ResponseHead};
use super::{ErrorCode, FieldSection, StreamId};
use crate::Reject;

/// Something that the peer has done. Bytes of bodies are borrowed from the received bytes.
///
/// No event of a stream follows its `Reset`, or a call of `reset` or `finish` for it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'i> {
    /// A request. Its stream counts until [`finish`](super::Connection::finish).
    Request {
        /// The new stream.
        stream: StreamId,
        /// The head of the request. Requests with the same head may share it.
        head: Arc<RequestHead>,
        /// Whether the request has no body.
        end: bool,
    },
    /// A response, or an interim response if its status is below 200. Only a client receives it.
    Response {
        /// The stream of the request.
        stream: StreamId,
        /// The head of the response.
        head: Box<ResponseHead>,
        /// Whether the response has no body.
        end: bool,
    },
    /// Bytes of a body. Report them to [`consumed`](super::Connection::consumed) when the handler has read them.
    Data {
        /// The stream.
        stream: StreamId,
        /// The bytes. They are empty only at the end.
        bytes: &'i [u8],
        /// Whether the body ends with them.
        end: bool,
    },
    /// The trailer of a body. It ends the body.
    Trailers {
        /// The stream.
        stream: StreamId,
        /// The fields.
        fields: FieldSection,
    },
    /// The stream is reset. If this endpoint did it, RST_STREAM is already in the output.
    ///
    /// A server may reset a request with NO_ERROR after a whole response, if it did not need the body (RFC 9113 8.1). The response
    /// holds then.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The reason.
        code: ErrorCode,
        /// Whether the peer reset it.
        by_peer: bool,
    },
    /// A request with too many or too large fields. The connection has sent 431 itself; the stream needs no `finish`.
    Refused {
        /// The stream.
        stream: StreamId,
        /// The reason.
        reject: Reject,
    },
    /// A malformed request (RFC 9113 8.1.1). The connection has reset it with PROTOCOL_ERROR itself; the stream needs no `finish`.
    Malformed {
        /// The stream.
        stream: StreamId,
        /// The reason in one line. It is safe to log.
        reason: &'static str,
    },
    /// The peer will end the connection. A server receives no new requests then. A client can send none: each of its streams above
    /// `last` also gets a `Reset` with REFUSED_STREAM, because the peer has not read it.
    GoAway {
        /// The last stream that the peer reads.
        last: StreamId,
        /// The reason.
        code: ErrorCode,
    },
    /// The peer has answered [`ping`](super::Connection::ping).
    Pong,
}
