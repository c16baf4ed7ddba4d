//! The words of the poller's tests, and how each test runs on every driver of the build.
#![allow(dead_code, reason = "each test file uses some of it")]

use osier_poll::{Capabilities, Driver, Event, Events, Interest, Mode, Poller, Ready, Token};
use rustix::pipe::{PipeFlags, pipe_with};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Long enough for anything that is to happen on the slowest machine.
pub const SOON: Duration = Duration::from_secs(30);
/// Long enough for an event that is wrongly there to show, if it is there at all: loopback delivers at once.
pub const NOW: Duration = Duration::ZERO;

/// Makes tests of functions that take a driver: one for each.
macro_rules! on_every_driver {
    ($($name:ident)*) => {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        mod epoll {
            $( #[test] fn $name() { super::$name(osier_poll::Driver::Epoll); } )*
        }
        mod portable {
            $( #[test] fn $name() { super::$name(osier_poll::Driver::Portable); } )*
        }
    };
}
pub(crate) use on_every_driver;

pub const A: Token = Token(1);
pub const B: Token = Token(2);

/// A poller with its events, and the words of these tests.
pub struct Bench {
    pub poller: Poller,
    pub events: Events,
}

impl Bench {
    pub fn new(driver: Driver) -> Self {
        Self {
            poller: Poller::with_driver(driver).unwrap(),
            events: Events::with_capacity(16),
        }
    }

    /// Whether the poller has what a test is about; says so if not.
    pub fn has(&self, capability: impl Fn(Capabilities) -> bool, name: &str) -> bool {
        let has = capability(self.poller.capabilities());
        if !has {
            println!("skipped: {:?} has no {name} here", self.poller.driver());
        }
        has
    }

    pub fn watch(&self, fd: impl AsFd, token: Token, interest: Interest, mode: Mode) {
        self.poller.add(fd, token, interest, mode).unwrap();
    }

    pub fn wait(&mut self, timeout: Duration) -> Vec<Event> {
        let count = self.poller.wait(&mut self.events, Some(timeout)).unwrap();
        assert_eq!((count, self.events.is_empty()), (self.events.len(), count == 0));
        let mut events: Vec<Event> = self.events.iter().collect();
        events.sort_by_key(|event| event.token);
        events
    }

    /// Waits until the one event of `token` holds all of `readiness`, and returns what it holds.
    #[track_caller]
    pub fn expect(&mut self, token: Token, readiness: Ready) -> Ready {
        let deadline = Instant::now() + SOON;
        loop {
            let events = self.wait(deadline.saturating_duration_since(Instant::now()));
            assert!(events.iter().all(|event| event.token == token), "{events:?}");
            match events.first() {
                Some(event) if event.readiness.contains(readiness) => return event.readiness,
                _ => assert!(
                    Instant::now() < deadline,
                    "no {readiness:?} of {token:?}, but {events:?}"
                ),
            }
        }
    }

    #[track_caller]
    pub fn expect_nothing(&mut self) {
        assert_eq!(self.wait(NOW), []);
    }
}

pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

pub fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

pub fn read(fd: impl AsFd) -> usize {
    rustix::io::read(fd, &mut [0; 64][..]).unwrap()
}

pub fn write(fd: impl AsFd, bytes: &[u8]) {
    assert_eq!(rustix::io::write(fd, bytes).unwrap(), bytes.len());
}
