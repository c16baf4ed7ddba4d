//! A write timeout fires for a peer that takes nothing, and not for a peer that reads slowly.

use osier::net::{TcpListener, TcpStream};
use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

/// Shorter than Linux takes to report a full send buffer as writable again at the pace of [`read_steadily`].
const LIMIT: Duration = Duration::from_millis(400);

/// Sends `count` bytes to `client`, which gets the server's address and runs on another thread.
fn send<T: Send + 'static>(
    count: usize,
    progress: usize,
    client: impl FnOnce(std::net::TcpStream) -> T + Send + 'static,
) -> (std::io::Result<()>, T) {
    osier::run(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = thread::spawn(move || client(std::net::TcpStream::connect(address).unwrap()));
        let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_write_progress(progress);
        let sent = stream.write_all(&vec![b'x'; count]);
        drop(stream);
        (sent, osier::unblock(move || client.join().unwrap()))
    })
}

/// Reads to the end in small pieces, at 1.6 MB/s. Returns the number of bytes.
fn read_steadily(mut stream: std::net::TcpStream) -> usize {
    let (mut piece, mut count) = ([0; 16 << 10], 0);
    loop {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return count,
            Ok(read) => count += read,
        }
        // The pace is what is tested.
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_slow_but_steady_reader_gets_everything() {
    const COUNT: usize = 5 << 20;
    let (sent, read) = send(COUNT, 0, read_steadily);
    sent.expect("the reader takes something all the time");
    assert_eq!(read, COUNT);
}

#[test]
fn a_reader_that_stands_still_is_given_up() {
    // Its socket stays open until the writer has given up.
    let (sent, _silent) = send(64 << 20, 0, |stream| stream);
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn a_reader_below_its_least_progress_is_given_up_and_one_above_is_not() {
    const COUNT: usize = 5 << 20;
    // 10 MB/s, and 10 kB/s.
    let (sent, _) = send(64 << 20, 4 << 20, read_steadily);
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::TimedOut);
    let (sent, read) = send(COUNT, 4 << 10, read_steadily);
    sent.expect("the reader takes more than that");
    assert_eq!(read, COUNT);
}
