//! Backends of the gateways: each answers every request on a connection with the same bytes.

use osier::net::{TcpListener, TcpStream};
use std::io::{Read, Result, Write};
use std::net::SocketAddr;

/// The end of a request of HTTP/1 without a body.
pub const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// The end of a request of FastCGI: an empty record of its standard input.
pub const END_OF_STDIN: &[u8] = &[1, 5, 0, 1, 0, 0, 0, 0];

/// Starts a backend on this worker. It answers when what it has received ends with `end`.
pub fn start(end: &'static [u8], answer: Vec<u8>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    osier::spawn_local(move || {
        while let Ok((stream, _)) = listener.accept() {
            let answer = answer.clone();
            osier::spawn_local(move || serve(&stream, end, &answer));
        }
    });
    Ok(address)
}

fn serve(mut stream: &TcpStream, end: &[u8], answer: &[u8]) -> Result<()> {
    let (mut buf, mut filled) = ([0; 8192], 0);
    loop {
        match stream.read(&mut buf[filled..])? {
            0 => return Ok(()),
            read => filled += read,
        }
        if buf[..filled].ends_with(end) {
            stream.write_all(answer)?;
            filled = 0;
        }
    }
}

/// An answer of HTTP/1, with the fields of nginx.
pub fn http() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\n\
    Server: nginx\r\n\
    Date: Sat, 28 Nov 2026 06:53:06 GMT\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 13\r\n\
    Last-Modified: Sat, 28 Nov 2026 06:53:06 GMT\r\n\
    Connection: keep-alive\r\n\
    ETag: \"6b0a7a52-d\"\r\n\
    Accept-Ranges: bytes\r\n\r\n\
    Hello, World!"
        .to_vec()
}

/// An answer of FastCGI: a record of standard output, and the end of the request.
pub fn fastcgi() -> Vec<u8> {
    let output = b"Content-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
    let mut answer = vec![1, 6, 0, 1, 0, output.len() as u8, 0, 0];
    answer.extend(output);
    answer.extend([1, 3, 0, 1, 0, 8, 0, 0]);
    answer.extend([0; 8]);
    answer
}
