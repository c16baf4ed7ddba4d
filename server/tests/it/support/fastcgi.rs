//! An application behind `fastcgi`, without PHP.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Reads a FastCGI request to its end, and answers with what `respond` makes of its encoded parameters and the length of its body.
pub fn answer(stream: &mut TcpStream, respond: impl Fn(&[u8], usize) -> String) {
    let (mut params, mut body, mut header) = (Vec::new(), 0, [0; 8]);
    loop {
        stream.read_exact(&mut header).unwrap();
        let (kind, length) = (header[1], usize::from(u16::from_be_bytes([header[4], header[5]])));
        let mut content = vec![0; length + usize::from(header[6])];
        stream.read_exact(&mut content).unwrap();
        // FCGI_PARAMS, and FCGI_STDIN, whose end is an empty one.
        match (kind, length) {
            (4, _) => params.extend_from_slice(&content[..length]),
            (5, 0) => break,
            (5, _) => body += length,
            _ => {}
        }
    }
    let id = [header[2], header[3]];
    let record = |kind: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[1, kind], &id[..], &length, &[0, 0], content].concat()
    };
    // FCGI_STDOUT twice, FCGI_END_REQUEST.
    let answer = [
        record(6, respond(&params, body).as_bytes()),
        record(6, b""),
        record(3, &[0; 8]),
    ]
    .concat();
    stream.write_all(&answer).unwrap();
}
