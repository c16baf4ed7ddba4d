//! A scripted broker. It replies to each command as a test says, so that a test can cause failures
//! that a real broker does not have on demand.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use osier_web::Address;

/// Bytes before the message itself: a mark, the process, the number.
const BEFORE_MESSAGE: usize = 4 + 16 + 8;

pub struct Scripted {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// When each connection was accepted.
    connections: Mutex<Vec<Instant>>,
    /// Messages that [`Command::usual`] has received, each number once.
    published: Mutex<Vec<Vec<u8>>>,
    ended: AtomicBool,
}

pub enum Reply {
    Say(Vec<u8>),
    /// The last bytes. The connection ends after them.
    Last(Vec<u8>),
    HangUp,
}

impl From<&[u8]> for Reply {
    fn from(bytes: &[u8]) -> Reply {
        Reply::Say(bytes.to_vec())
    }
}

impl<const N: usize> From<&[u8; N]> for Reply {
    fn from(bytes: &[u8; N]) -> Reply {
        Reply::Say(bytes.to_vec())
    }
}

pub struct Command<'c> {
    words: Vec<&'c [u8]>,
    shared: &'c Shared,
}

impl Command<'_> {
    pub fn words(&self) -> &[&[u8]] {
        &self.words
    }

    /// The message of a `PUBLISH`.
    pub fn payload(&self) -> Option<&[u8]> {
        match self.words() {
            [b"PUBLISH", _, bytes] => Some(&bytes[BEFORE_MESSAGE..]),
            _ => None,
        }
    }

    /// The reply of a broker with only one client.
    pub fn usual(&self) -> Reply {
        match self.words() {
            [b"PUBLISH", _, bytes] => {
                let mut published = self.shared.published.lock().unwrap();
                if !published.iter().any(|known| known == bytes) {
                    published.push(bytes.to_vec());
                }
                b":0\r\n".into()
            }
            [b"SUBSCRIBE", room] => Reply::Say(subscribed(room)),
            _ => b"+PONG\r\n".into(),
        }
    }
}

pub fn subscribed(room: &[u8]) -> Vec<u8> {
    let head = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n", room.len());
    [head.as_bytes(), room, b"\r\n:1\r\n"].concat()
}

impl Scripted {
    pub fn start(answer: impl Fn(&Command<'_>) -> Reply + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            connections: Mutex::default(),
            published: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let (here, answer) = (shared.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if here.ended.load(Ordering::Acquire) {
                    break;
                }
                here.connections.lock().unwrap().push(Instant::now());
                let (shared, answer) = (here.clone(), answer.clone());
                std::thread::spawn(move || serve(&stream, &shared, &*answer));
            }
        });
        Scripted { address, shared }
    }

    pub fn address(&self) -> Address {
        self.address.to_string().parse().expect("an address")
    }

    pub fn connections(&self) -> Vec<Instant> {
        self.shared.connections.lock().unwrap().clone()
    }

    /// The received messages, in order.
    pub fn published(&self) -> Vec<String> {
        let published = self.shared.published.lock().unwrap();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(&bytes[BEFORE_MESSAGE..]).into_owned();
        published.iter().map(text).collect()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address); // so that it looks
    }
}

fn serve(stream: &TcpStream, shared: &Shared, answer: &dyn Fn(&Command<'_>) -> Reply) {
    let mut reader = BufReader::new(stream);
    let mut stream = stream;
    while let Some(words) = command(&mut reader) {
        let words = words.iter().map(Vec::as_slice).collect();
        let (bytes, is_last) = match answer(&Command { words, shared }) {
            Reply::Say(bytes) => (bytes, false),
            Reply::Last(bytes) => (bytes, true),
            Reply::HangUp => return,
        };
        if stream.write_all(&bytes).is_err() || is_last {
            return;
        }
    }
}

/// Reads the next command. `None` at the end of the connection.
fn command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let count = number(reader, "*")?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(reader, "$")? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

fn number(reader: &mut impl BufRead, mark: &str) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.strip_prefix(mark)?.trim_end().parse().ok()
}
