//! A counter on several servers. A client adds at any of them, and the servers exchange their entries.
//!
//! Each addition is an entry, and the count is the number of entries. Requests are text lines: `add KEY`, `have ENTRY ENTRY ..`,
//! `count`. The response is the count. The code is plain and blocking: it runs on real sockets (`main.rs`) and in a simulation (`../tests/it/simulation.rs`).

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use osier::net::{TcpListener, TcpStream};

/// How long a client waits for a server, and a server for another.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request, which has all entries of a server.
const LINE_BYTES: u64 = 1 << 20;
/// Time between two exchanges.
const GOSSIP: Duration = Duration::from_secs(1);

/// The side that names an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// The server that takes it. A client whose answer is lost asks again, and then there are two entries.
    ByServer,
    /// The client that adds it. The same addition has the same name at every server.
    ByClient,
}

type Entries = Arc<Mutex<BTreeSet<String>>>;

/// Serves on `listener`, and sends entries to the servers at `others`.
pub fn serve(name: &str, listener: &TcpListener, others: Vec<String>, naming: Naming) -> io::Result<()> {
    let entries = Entries::default();
    let told = Arc::clone(&entries);
    osier::spawn(move || gossip(&told, &others));
    loop {
        let (stream, _) = listener.accept()?;
        let (name, entries) = (name.to_string(), Arc::clone(&entries));
        osier::spawn(move || answer(&stream, &name, &entries, naming));
    }
}

fn answer(stream: &TcpStream, name: &str, entries: &Entries, naming: Naming) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if lines.by_ref().take(LINE_BYTES).read_line(&mut line)? == 0 {
            return Ok(());
        }
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut words = line.split_whitespace();
        let count = {
            let mut entries = entries.lock().expect("nobody panics with it");
            match words.next() {
                Some("add") => {
                    let number = entries.len();
                    entries.extend(words.map(|key| match naming {
                        Naming::ByServer => format!("{name}-{number}"),
                        Naming::ByClient => key.to_string(),
                    }));
                }
                Some("have") => entries.extend(words.map(str::to_string)),
                _ => {}
            }
            entries.len()
        };
        let mut out = stream;
        out.write_all(format!("{count}\n").as_bytes())?;
    }
}

/// Sends all entries to the other servers, again and again.
fn gossip(entries: &Entries, others: &[String]) {
    loop {
        osier::sleep(GOSSIP);
        let all: Vec<String> = entries.lock().expect("nobody panics with it").iter().cloned().collect();
        for other in others {
            // A server that is down gets them the next time.
            let _ = ask(other, &format!("have {}\n", all.join(" ")));
        }
    }
}

/// Adds at one of the servers. It asks the next one when the first does not answer.
pub fn add(servers: &[String], key: &str) {
    for server in servers.iter().cycle() {
        if ask(server, &format!("add {key}\n")).is_ok() {
            return;
        }
        osier::sleep(PATIENCE / 10);
    }
}

/// The count at a server.
pub fn count(server: &str) -> io::Result<usize> {
    ask(server, "count\n")
}

fn ask(server: &str, line: &str) -> io::Result<usize> {
    let talk = || {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(line.as_bytes())?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        answer.trim().parse().map_err(|_| io::ErrorKind::UnexpectedEof.into())
    };
    osier::timeout(PATIENCE, talk).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
