//! The response vectors: the bytes of a backend's response to a GET, and the result that a gateway must get. They are also seeds
//! of the fuzz corpus.

use osier_http::Reject::{self, *};

/// The expected result of a vector. Bytes after the end of a body are left over; they show that the end was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This body, and whether the connection can be kept.
    Body(&'static [u8], bool),
    /// The response is refused, in its head or in its body.
    Refuse(Reject),
    /// The connection ends inside the head.
    Wait,
}
use Expected::{Body, Refuse, Wait};

/// A name, the bytes up to the end of the connection, and the expected result under the default limits.
pub type Vector = (&'static str, &'static [u8], Expected);

#[rustfmt::skip]
pub const VECTORS: &[Vector] = &[
    // Accepted: strictness must not cost an honest backend.
    ("known length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Body(b"hello", true)),
    ("known length, more behind", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200", Body(b"hello", true)),
    ("length 0", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nX-T: 1\r\n\r\n", Body(b"hello!", true)),
    ("chunked in any case", b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n", Body(b"", true)),
    ("until the end", b"HTTP/1.1 200 OK\r\n\r\nall of it", Body(b"all of it", false)),
    ("until the end, nothing", b"HTTP/1.1 200 OK\r\n\r\n", Body(b"", false)),
    ("closing", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", Body(b"x", false)),
    ("1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", Body(b"x", false)),
    ("1.0 kept", b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", Body(b"x", true)),
    ("1.0 until the end", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nx", Body(b"x", false)),
    ("no reason", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("an empty reason", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("a reason beyond ASCII", b"HTTP/1.1 200 \xc3\x9cber\r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("a status nobody knows", b"HTTP/1.1 799 Huh\r\nContent-Length: 1\r\n\r\nx", Body(b"x", true)),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n", Body(b"", true)),
    ("204 with length 0", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("204 that lies", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", Body(b"", false)),
    ("204 that lies in chunks", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Body(b"", false)),
    ("304 with the length of what it stands for", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", Body(b"", true)),
    ("101", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x00", Body(b"", false)),
    ("100 before the answer", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", Body(b"x", true)),
    ("103 twice before the answer", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 N\r\n\r\n", Body(b"", true)),
    ("white space around a value", b"HTTP/1.1 200 OK\r\nContent-Length: \t1 \r\n\r\nx", Body(b"x", true)),
    ("bytes beyond ASCII in a value", b"HTTP/1.1 200 OK\r\nX: caf\xc3\xa9 \xff\r\nContent-Length: 0\r\n\r\n", Body(b"", true)),
    ("empty list members in Connection", b"HTTP/1.1 200 OK\r\nConnection: , close ,\r\nContent-Length: 0\r\n\r\n", Body(b"", false)),
    ("nothing", b"", Wait),
    ("the beginning of a status line", b"HTTP/1.1 2", Wait),
    ("a head that has not ended", b"HTTP/1.1 200 OK\r\nA: b\r\n", Wait),
    ("an interim answer alone", b"HTTP/1.1 100 Continue\r\n\r\n", Wait),

    // Two framings.
    ("CL and TE", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refuse(LengthAndEncoding)),
    ("TE and CL", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", Refuse(LengthAndEncoding)),
    ("CL and TE where there is no body", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", Refuse(LengthAndEncoding)),
    ("two lengths that differ", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", Refuse(ContentLengthRepeated)),
    ("two lengths that agree", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", Refuse(ContentLengthRepeated)),
    ("a list of lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", Refuse(ContentLength)),
    ("a signed length", b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", Refuse(ContentLength)),
    ("a negative length", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Refuse(ContentLength)),
    ("a length in hex", b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello", Refuse(ContentLength)),
    ("an empty length", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", Refuse(ContentLength)),
    ("a length beyond 64 bits", b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", Refuse(ContentLength)),
    ("xchunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", Refuse(TransferEncoding)),
    ("identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello", Refuse(TransferEncoding)),
    ("chunked, identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", Refuse(TransferEncoding)),
    ("gzip, chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Refuse(TransferCoding)),
    ("chunked twice", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refuse(TransferEncodingRepeated)),
    ("chunked in 1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refuse(TransferEncodingIn10)),

    // Broken heads.
    ("bare LF after the status line", b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", Refuse(BareLf)),
    ("bare LF after a field", b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n", Refuse(BareLf)),
    ("bare LF at the end", b"HTTP/1.1 200 OK\r\nA: b\r\n\n", Refuse(BareLf)),
    ("bare CR in a value", b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", Refuse(HeaderValue)),
    ("bare CR in the reason", b"HTTP/1.1 200 O\rK\r\n\r\n", Refuse(StatusLine)),
    ("NUL in a value", b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", Refuse(HeaderValue)),
    ("fold", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Refuse(HeaderName)),
    ("fold on the first field", b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", Refuse(HeaderName)),
    ("space before the colon", b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", Refuse(HeaderName)),
    ("a line without a colon", b"HTTP/1.1 200 OK\r\nhello\r\n\r\n", Refuse(HeaderName)),
    ("an empty name", b"HTTP/1.1 200 OK\r\n: b\r\n\r\n", Refuse(HeaderName)),
    ("bytes beyond ASCII in a name", b"HTTP/1.1 200 OK\r\n\xc3\xa9: b\r\n\r\n", Refuse(HeaderName)),
    ("a malformed Connection", b"HTTP/1.1 200 OK\r\nConnection: a b\r\n\r\n", Refuse(Connection)),
    ("no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n", Refuse(StatusLine)),
    ("HTTP/2", b"HTTP/2 200\r\n\r\n", Refuse(StatusLine)),
    ("HTTP/1.2", b"HTTP/1.2 200 OK\r\n\r\n", Refuse(StatusLine)),
    ("lower case", b"http/1.1 200 OK\r\n\r\n", Refuse(StatusLine)),
    ("an empty line before", b"\r\nHTTP/1.1 200 OK\r\n\r\n", Refuse(StatusLine)),
    ("two digits", b"HTTP/1.1 20 OK\r\n\r\n", Refuse(StatusLine)),
    ("four digits", b"HTTP/1.1 2000 OK\r\n\r\n", Refuse(StatusLine)),
    ("a status below 100", b"HTTP/1.1 099 Low\r\n\r\n", Refuse(StatusLine)),
    ("a status of letters", b"HTTP/1.1 OK 200\r\n\r\n", Refuse(StatusLine)),

    // Broken bodies.
    ("short of its length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", Refuse(BodyEnded)),
    ("short of its chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell", Refuse(BodyEnded)),
    ("without the last chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", Refuse(BodyEnded)),
    ("without the end of the trailer", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", Refuse(BodyEnded)),
    ("bare LF after a chunk size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", Refuse(ChunkSize)),
    ("bare LF in a chunk extension", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n", Refuse(ChunkExtension)),
    ("chunk size 0x5", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", Refuse(ChunkSize)),
    ("chunk size beyond 64 bits", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", Refuse(ChunkSize)),
    ("chunk longer than its size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", Refuse(ChunkEnd)),
    ("a trailer that frames", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", Refuse(TrailerForbidden)),
];
