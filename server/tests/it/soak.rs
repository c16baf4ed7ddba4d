//! A soak: clients of all kinds for a while, after which the server holds no more memory than after the first part of it.
//!
//! `OSIER_SOAK=600 cargo test --release -p osier-server --test it soak -- --ignored --nocapture`

use crate::support::Client;
use crate::support::sites::{Sites, send};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::resident_bytes_of;

/// Seconds without `OSIER_SOAK`.
const SECONDS: u64 = 60;

/// The most bytes by which the memory may grow between the first quarter and the end, both at rest.
const GROWTH: usize = 1 << 20;

/// Time at rest before a look at the memory: the server gives pools and free memory back within seconds.
const REST: Duration = Duration::from_secs(6);

/// A backend that answers each request with its body, or with 100 KB, and keeps the connection. It ends with the test's process.
fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The server closes the connection at any time.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    address
}

fn serve(stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if body.is_empty() {
            body = vec![b'x'; 100_000];
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        reader.get_mut().write_all(&[head.as_bytes(), &body].concat())?;
    }
}

/// One round of a client of each kind. Returns the number of responses that were right.
fn round(address: SocketAddr, number: usize) -> usize {
    let mut client = Client::new(address);
    let mut right = 0;
    for target in ["/a.txt", "/fixed", "/app/x", "/packed/b.txt", "/nothing"] {
        send(&mut client, "GET", "x", target, &["Accept-Encoding: gzip"]);
        let reply = client.receive("GET");
        right += usize::from(reply.status == if target == "/nothing" { 404 } else { 200 });
    }
    let body = vec![b'y'; 1 + number * 7919 % 400_000];
    send(
        &mut client,
        "POST",
        "x",
        "/app/post",
        &[&format!("Content-Length: {}", body.len())],
    );
    client.send_raw(&body);
    let reply = client.receive("POST");
    right += usize::from(reply.status == 200 && reply.body == body);
    // Clients that leave: within a head, a body and a response, and without a request.
    for text in [
        "GET /a.txt HT",
        "POST /app/half HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
        "GET /app/unread HTTP/1.1\r\nHost: x\r\n\r\n",
        "no request at all\r\n\r\n",
        "",
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(text.as_bytes());
        if number.is_multiple_of(2) {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let _ = stream.read(&mut [0; 100]);
        }
    }
    right
}

#[test]
#[ignore = "takes OSIER_SOAK seconds: OSIER_SOAK=60 cargo test --release -p osier-server --test it soak -- --ignored"]
fn memory_stays_flat_under_clients_of_all_kinds() {
    let seconds = std::env::var("OSIER_SOAK").map_or(SECONDS, |seconds| seconds.parse().expect("a number of seconds"));
    let application = application();
    let file = |text: &str| {
        format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\n[[site.route]]\npath = \"/fixed\"\nrespond = \"{text}\"\n\
             [[site.route]]\npath = \"/app\"\nproxy = \"{application}\"\n\
             [[site.route]]\npath = \"/packed\"\ncompress = true\nfiles = \"www\"\n[[site.route]]\nfiles = \"www\"\n"
        )
    };
    let folder = Sites::folder();
    folder.write("www/a.txt", "a".repeat(50_000));
    folder.write("www/packed/b.txt", "bc".repeat(30_000));
    let mut sites = Sites::start_in(folder, &file("x"));
    let (address, process) = (sites.addresses[0], sites.server.id());
    let (rounds, right) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let load = |time: Duration| {
        let (over, reloads) = (AtomicBool::new(false), &sites);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let number = rounds.fetch_add(1, Ordering::Relaxed);
                        right.fetch_add(round(address, number), Ordering::Relaxed);
                    }
                });
            }
            let (begun, mut count) = (Instant::now(), 0);
            while begun.elapsed() < time {
                thread::sleep(Duration::from_secs(1).min(time)); // between two reloads
                count += 1;
                let said = reloads.reload(&file(&format!("{count}")));
                assert!(said.contains("reloaded"), "{said}");
            }
            over.store(true, Ordering::Relaxed);
        });
        thread::sleep(REST);
        resident_bytes_of(process).expect("RssAnon in /proc")
    };
    let first = load(Duration::from_secs(seconds) / 4);
    let last = load(Duration::from_secs(seconds) * 3 / 4);
    let (rounds, right) = (rounds.into_inner(), right.into_inner());
    println!("{rounds} rounds in {seconds} s: {first} bytes after the first quarter, {last} at the end");
    assert!(sites.server.is_running(), "{}", sites.said());
    assert_eq!(right, 6 * rounds, "responses that were right");
    assert!(last <= first + GROWTH, "{first} bytes grew to {last}");
}
