//! A quiet client beside a storm of handshakes. Arguments: PORT PATH COUNT.
//!
//! COUNT connections are made, and one more that asks for PATH over TLS. The program prints `ready` and waits for a line on its standard
//! input. Then one thread sends a ClientHello on every connection at once, and waits for the answers: with its answer a server has done
//! its work of the handshake. Meanwhile the quiet client asks, and asks again a millisecond after each answer. The program prints the
//! median and the longest of its times in microseconds, the number of its requests, and the seconds that the storm took. It keeps the
//! connections until its standard input ends.
#![forbid(unsafe_code)]

use load_tls::{Offer, config, name};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustls::ClientConnection;
use std::io::{BufRead, Error, Read, Result, Write, stdin};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, path, count] = &args[..] else {
        panic!("arguments: PORT PATH COUNT");
    };
    let port: u16 = port.parse().expect("a port");
    let count: usize = count.parse().expect("a number");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let config = config(&Offer::default()).map_err(Error::other)?;
    let mut hello = Vec::new();
    let mut connection = ClientConnection::new(config.clone(), name()).map_err(Error::other)?;
    connection.write_tls(&mut hello)?;

    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_nodelay(true)?;
    let mut connection = ClientConnection::new(config, name()).map_err(Error::other)?;
    let mut quiet = rustls::Stream::new(&mut connection, &mut socket);
    for _ in 0..20 {
        ask(&mut quiet, &request)?;
    }
    let storm: Result<Vec<TcpStream>> = (0..count).map(|_| TcpStream::connect(("127.0.0.1", port))).collect();
    let mut storm = storm?;
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    let is_over = AtomicBool::new(false);
    let (times, took) = std::thread::scope(|scope| -> Result<_> {
        let storm = scope.spawn(|| {
            let took = rage(&mut storm, &hello);
            is_over.store(true, Ordering::Relaxed);
            took
        });
        let mut times = Vec::new();
        while times.is_empty() || !is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            ask(&mut quiet, &request)?;
            times.push(start.elapsed());
            std::thread::sleep(PAUSE);
        }
        Ok((times, storm.join().expect("it does not panic")?))
    })?;
    let mut times = times;
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{:.1} {:.1} {} {:.6}",
        micros(times[times.len() / 2]),
        micros(times[times.len() - 1]),
        times.len(),
        took.as_secs_f64()
    );
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Sends `hello` on every connection, and waits until each has an answer.
fn rage(storm: &mut [TcpStream], hello: &[u8]) -> Result<Duration> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let start = Instant::now();
    for (i, socket) in storm.iter_mut().enumerate() {
        socket.write_all(hello)?;
        epoll::add(
            &epoll,
            &*socket,
            EventData::new_u64(i as u64),
            EventFlags::IN | EventFlags::ONESHOT,
        )?;
    }
    let (mut answered, mut events) = (0, Vec::with_capacity(1024));
    while answered < storm.len() {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            let mut record = [0];
            let read = storm[event.data.u64() as usize].read(&mut record)?;
            // A handshake record; an alert is a refusal.
            if read == 0 || record[0] != 22 {
                return Err(Error::other("a handshake was refused"));
            }
            answered += 1;
        }
    }
    Ok(start.elapsed())
}

/// One request, and its answer to the end.
fn ask(stream: &mut (impl Read + Write), request: &str) -> Result<()> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    load_tls::read_answer(stream)
}
