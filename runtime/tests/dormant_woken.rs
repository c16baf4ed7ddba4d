//! A connection at rest that waits for more than its socket.

use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use osier::dormant::{Cause, Dormant, Next, park_local};
use osier::io::Source;
use osier::net::{TcpListener, TcpStream};
use osier::sync::Event;

struct Waits {
    stream: TcpStream,
    event: Arc<Event>,
    wait: Option<Pin<Box<dyn Future<Output = ()>>>>,
    panics: bool,
}

impl Dormant for Waits {
    fn source(&self) -> &dyn Source {
        &self.stream
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let event = self.event.clone();
        let wait = self
            .wait
            .get_or_insert_with(|| Box::pin(async move { event.wait_async().await }));
        let polled = wait.as_mut().poll(cx);
        assert!(!(self.panics && polled.is_ready()), "as the test wants it");
        polled
    }

    fn wake(&mut self, cause: Cause) -> Next {
        match cause {
            // It is not asked: it would go on for ever.
            Cause::Woken if self.panics => {}
            Cause::Woken => {
                self.wait = None;
                self.stream.write_all(b"w").expect("the client reads");
            }
            Cause::Readable => {
                // A read that fills its buffer would leave the next wake-up to a socket that may be empty.
                match self.stream.read(&mut [0; 64]) {
                    Ok(1) => self.stream.write_all(b"r").expect("the client reads"),
                    _ => return Next::End,
                }
            }
            Cause::Deadline | Cause::Shutdown => return Next::End,
        }
        Next::Sleep(None)
    }
}

fn rested(panics: bool) -> (TcpStream, Arc<Event>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let event = Arc::new(Event::new());
    let connection = Waits {
        stream: listener.accept().unwrap().0,
        event: event.clone(),
        wait: None,
        panics,
    };
    park_local(Box::new(connection), None).unwrap();
    (client, event)
}

#[test]
fn a_leaf_in_the_box_wakes_it_from_any_thread() {
    osier::run(|| {
        let (mut client, event) = rested(false);
        let mut byte = [0];
        for _ in 0..100 {
            event.set();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"w");
            let other = event.clone();
            std::thread::spawn(move || other.set()).join().unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"w");
            client.write_all(b"x").unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"r");
        }
    });
}

#[test]
fn a_poll_that_panics_ends_the_connection_and_nothing_else() {
    osier::run(|| {
        let (mut client, event) = rested(true);
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        event.set();
        assert_eq!(client.read(&mut [0]).expect("the connection ends"), 0);
    });
}
