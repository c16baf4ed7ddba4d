//! A reactor for each client: a mailbox with one flag for each operation. The operations' callbacks only store their result and raise
//! their flag. One callback for each client takes the flags, reacts, and waits again. So it never runs twice at once, and each
//! run meets a *set* of events. Each client here sends a line and expects it back; the server closes connections that are silent for too long.
//!
//! ```text
//! cargo run -p osier-examples --bin reactor -- [CLIENTS]
//! ```

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use osier::callbacks::{CancelHandle, Handle, IoQueue, Socket, Status, Timer};
use osier::sync::Mailbox;

const RECEIVED: u32 = 1;
const SENT: u32 = 1 << 1;
const TIMED_OUT: u32 = 1 << 2;
const SILENCE: Duration = Duration::from_secs(10);

/// Results that callbacks leave for the loop.
#[derive(Default)]
struct Results {
    received: Mutex<Option<io::Result<Vec<u8>>>>,
    sent: Mutex<Option<io::Result<Vec<u8>>>>,
}

/// State of the loop alone. Each run hands it on to the next.
struct Client {
    queue: Handle,
    socket: Socket,
    flags: Arc<Mailbox>,
    results: Arc<Results>,
    receiving: bool,
    sending: bool,
    silence: Option<CancelHandle<std::time::Instant>>,
    ending: bool,
    served: Arc<AtomicUsize>,
}

impl Client {
    fn begin_receive(&mut self) {
        let (flags, results) = (Arc::clone(&self.flags), Arc::clone(&self.results));
        let received = move |_, n: io::Result<usize>, mut buffer: Vec<u8>| {
            *results.received.lock().unwrap() = Some(n.map(|n| {
                buffer.truncate(n);
                buffer
            }));
            flags.raise(RECEIVED);
        };
        self.receiving = self.receiving || self.socket.recv(vec![0; 1024], received).is_ok();
    }

    fn begin_send(&mut self, bytes: Vec<u8>) {
        let (flags, results) = (Arc::clone(&self.flags), Arc::clone(&self.results));
        let sent = move |_, n: io::Result<usize>, mut buffer: Vec<u8>| {
            *results.sent.lock().unwrap() = Some(n.map(|n| buffer.split_off(n)));
            flags.raise(SENT);
        };
        self.sending = self.sending || self.socket.send(bytes, sent).is_ok();
    }

    fn begin_silence(&mut self) {
        let flags = Arc::clone(&self.flags);
        let expired = move |_, _| flags.raise(TIMED_OUT);
        self.silence = Timer::new(&self.queue).wait(SILENCE, expired).ok();
    }

    /// Cancels all outstanding operations. Each still raises its flag.
    fn end(&mut self) {
        self.ending = true;
        self.socket.close();
        self.silence.iter().for_each(|silence| _ = silence.cancel());
    }

    /// One run of the loop.
    fn react(mut self) {
        let events = self.flags.take(Mailbox::ALL);
        if events & TIMED_OUT != 0 {
            self.silence = None;
            self.end();
        }
        if events & RECEIVED != 0 {
            self.receiving = false;
            let received = self.results.received.lock().unwrap().take();
            match received.expect("left before the flag was raised") {
                Ok(bytes) if !bytes.is_empty() => {
                    self.silence.iter().for_each(|silence| _ = silence.reschedule(SILENCE));
                    self.begin_send(bytes);
                }
                _ => self.end(),
            }
        }
        if events & SENT != 0 {
            self.sending = false;
            let sent = self.results.sent.lock().unwrap().take();
            match sent.expect("left before the flag was raised") {
                Ok(left) if left.is_empty() && !self.ending => self.begin_receive(),
                Ok(left) if !self.ending => self.begin_send(left),
                _ => self.end(),
            }
        }
        if self.ending && !self.receiving && !self.sending && self.silence.is_none() {
            self.served.fetch_add(1, SeqCst);
            return;
        }
        let (queue, flags) = (self.queue.clone(), Arc::clone(&self.flags));
        let next = move |status, _| {
            if status == Status::Done {
                self.react();
            }
        };
        let _ = queue.wait_any(&flags, Mailbox::ALL, next);
    }
}

fn accept(queue: Handle, listener: Socket, left: usize, served: Arc<AtomicUsize>) {
    if left == 0 {
        return listener.close();
    }
    let next = listener.clone();
    let accepted = move |_, accepted: io::Result<Socket>| {
        let Ok(socket) = accepted else { return };
        let mut client = Client {
            queue: queue.clone(),
            socket,
            flags: Arc::default(),
            results: Arc::default(),
            receiving: false,
            sending: false,
            silence: None,
            ending: false,
            served: Arc::clone(&served),
        };
        client.begin_silence();
        client.begin_receive();
        client.react();
        accept(queue, next, left - 1, served);
    };
    let _ = listener.accept(accepted);
}

fn main() -> io::Result<()> {
    let clients = std::env::args()
        .nth(1)
        .map_or(100, |text| text.parse().expect("CLIENTS"));
    let queue = IoQueue::new(2)?;
    let listener = Socket::new(&queue);
    listener.listen((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = listener.local_addr()?;
    let served = Arc::new(AtomicUsize::new(0));
    accept(Handle::clone(&queue), listener, clients, Arc::clone(&served));

    let talking = thread::spawn(move || {
        let mut streams = (0..clients)
            .map(|_| TcpStream::connect(address))
            .collect::<io::Result<Vec<_>>>()?;
        let mut echoed = 0;
        for (n, stream) in streams.iter_mut().enumerate() {
            let said = format!("client {n}\n");
            stream.write_all(said.as_bytes())?;
            stream.shutdown(Shutdown::Write)?;
            let mut heard = String::new();
            stream.read_to_string(&mut heard)?;
            echoed += usize::from(heard == said);
        }
        io::Result::Ok(echoed)
    });
    while served.load(SeqCst) < clients {
        queue.iterate()?;
    }
    let echoed = talking.join().expect("it does not panic")?;
    println!("{echoed} of {clients} clients heard what they said");
    Ok(())
}
