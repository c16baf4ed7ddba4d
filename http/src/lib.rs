//! A strict HTTP/1.0 and HTTP/1.1 server codec without I/O: bytes in, requests out; responses in, bytes out.
#![forbid(unsafe_code)]

mod body;
mod byte;
mod chunked;
mod framing;
mod limits;
mod method;
mod reject;
mod request;
mod response;
mod scan;
mod status;
mod target;

pub use body::BodyDecoder;
pub use chunked::{CHUNK_END, ChunkHead, ChunkedDecoder, LAST_CHUNK, Piece, write_chunk};
pub use framing::BodyLength;
pub use limits::Limits;
pub use method::Method;
pub use reject::Reject;
pub use request::{Head, Headers, Slots, Version};
pub use response::{CONTINUE, DateLine, Exchange, HeadWriter, HeaderError, ResponseBody, Sent, Transfer, write_reject};
pub use scan::{HeadScanner, LEADING_EMPTY_LINES};
pub use status::reason_phrase;
pub use target::Form;
