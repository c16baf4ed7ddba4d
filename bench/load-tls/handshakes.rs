//! TLS handshakes, one connection after another in each of 16 threads. Arguments: PORT VERSION full|resumed GROUP MILLISECONDS.
//!
//! Each thread makes one connection with a request first, which brings a ticket. Then the program prints `ready`. After a line on its
//! standard input it connects for MILLISECONDS. Each connection ends after its handshake: with close_notify, and with the end of what the
//! server sends. A client that resumes waits for the next ticket first. The program prints the number of handshakes and the seconds, and
//! waits until its standard input ends.
#![forbid(unsafe_code)]

use load_tls::{Offer, Tickets, config, group, name, version};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use std::io::{BufRead, Error, Read, Result, Write, stdin};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const THREADS: usize = 16;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [port, tls, kind, exchange, millis] = &args[..] else {
        panic!("arguments: PORT VERSION full|resumed GROUP MILLISECONDS");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (port, load) = (number(port) as u16, Duration::from_millis(number(millis)));
    let wanted = match &kind[..] {
        "full" => HandshakeKind::Full,
        "resumed" => HandshakeKind::Resumed,
        _ => panic!("{kind:?} is neither full nor resumed"),
    };
    let mut clients = Vec::new();
    for _ in 0..THREADS {
        let tickets = (wanted == HandshakeKind::Resumed).then(Arc::<Tickets>::default);
        let offer = Offer {
            version: version(tls),
            group: group(exchange),
            tickets: tickets.clone(),
            ..Offer::default()
        };
        let config = config(&offer).map_err(Error::other)?;
        ask_once(port, &config)?;
        clients.push(Client {
            port,
            config,
            wanted,
            tickets,
        });
    }
    println!("ready");
    stdin().lock().read_line(&mut String::new())?;

    let start = Instant::now();
    let counts: Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || client.connect_until(start + load)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        ended.collect()
    });
    println!("{} {:.6}", counts?.iter().sum::<u64>(), start.elapsed().as_secs_f64());
    stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// One request on a connection of its own, read to its end with the ticket before it.
fn ask_once(port: u16, config: &Arc<ClientConfig>) -> Result<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    let mut connection = ClientConnection::new(config.clone(), name()).map_err(Error::other)?;
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    // A server that ends without close_notify has still answered.
    let _ = stream.read_to_end(&mut answer);
    match answer.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(Error::other("the first request was not answered well")),
    }
}

/// The work of one thread.
struct Client {
    port: u16,
    config: Arc<ClientConfig>,
    wanted: HandshakeKind,
    tickets: Option<Arc<Tickets>>,
}

impl Client {
    fn connect_until(&self, end: Instant) -> Result<u64> {
        let mut count = 0;
        while Instant::now() < end {
            self.connect()?;
            count += 1;
        }
        Ok(count)
    }

    fn connect(&self) -> Result<()> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.set_nodelay(true)?;
        let mut connection = ClientConnection::new(self.config.clone(), name()).map_err(Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        let (kind, wanted) = (connection.handshake_kind(), self.wanted);
        if kind != Some(wanted) {
            return Err(Error::other(format!("a handshake was {kind:?}, not {wanted:?}")));
        }
        while self.tickets.as_ref().is_some_and(|tickets| tickets.is_empty()) {
            if connection.read_tls(&mut socket)? == 0 {
                return Err(Error::other("no ticket came"));
            }
            connection.process_new_packets().map_err(Error::other)?;
        }
        connection.send_close_notify();
        while connection.wants_write() {
            connection.write_tls(&mut socket)?;
        }
        socket.shutdown(Shutdown::Write)?;
        // A reset ends it as well.
        while socket.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
        Ok(())
    }
}
