//! Connects to the first of several addresses that answers, with attempts that overlap ("Happy Eyeballs", RFC 8305).
//!
//! ```text
//!   [2001:db8::1] ──────────────────────────────▶ no answer: dropped when another one wins
//!           250 ms  192.0.2.1 ─▶ refused
//!                               [2001:db8::2] ─▶ connected
//! ```
//!
//! The addresses alternate between the two families, and the family of the first one begins. The next attempt begins when the one before it
//! has failed, or has had no answer for [`DELAY`]. So a machine whose way out by IPv6 is cut loses a quarter of a second, and not the two
//! minutes for which the kernel tries. One address alone needs none of this, and a plain thread waits for it without a driver.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::{error, fmt, io, mem, vec};

use rustix::io::Errno;

use super::addr::no_address;
use super::stream::Stream;
use crate::wait::fd::Fd;
use crate::wait::leaf::{Io, Side};
use crate::wait::sleep::Sleep;
use crate::wait::socket::{Direction, Moved};
use crate::wait::{self, Stop};

/// The time that an attempt has before the next one joins it: the "Connection Attempt Delay" that RFC 8305 section 8 recommends.
const DELAY: Duration = Duration::from_millis(250);

/// Makes the socket of an attempt.
pub(super) type Open<'a> = &'a mut dyn FnMut(&SocketAddr) -> io::Result<Stream>;

/// Connects to whichever of `addrs` answers first, at most until `deadline`.
pub(super) fn first_of(
    mut addrs: impl Iterator<Item = SocketAddr>,
    deadline: Option<Instant>,
    open: Open<'_>,
) -> io::Result<Stream> {
    let Some(first) = addrs.next() else {
        return Err(no_address());
    };
    let Some(second) = addrs.next() else {
        let stream = open(&first)?;
        stream
            .watched
            .io(Direction::Write, || deadline, |fd| connect(fd, &first))?;
        return Ok(stream);
    };
    let mut attempts = Attempts::new([first, second].into_iter().chain(addrs));
    match wait::wait(deadline, None, |cx| attempts.poll(cx, open)) {
        Ok(connected) => connected,
        Err(Stop::Elapsed) => Err(attempts.out_of_time()),
        Err(stop) => Err(stop.into()),
    }
}

/// The future face of [`first_of`].
pub(super) async fn first_of_async(
    mut addrs: impl Iterator<Item = SocketAddr> + Send,
    mut open: impl FnMut(&SocketAddr) -> io::Result<Stream> + Send,
) -> io::Result<Stream> {
    let Some(first) = addrs.next() else {
        return Err(no_address());
    };
    let Some(second) = addrs.next() else {
        let stream = open(&first)?;
        Io::new(&stream.watched, Direction::Write, |fd| connect(fd, &first)).await?;
        return Ok(stream);
    };
    let mut attempts = Attempts::new([first, second].into_iter().chain(addrs));
    poll_fn(|cx| attempts.poll(cx, &mut open)).await
}

struct Attempts {
    /// The addresses that were not tried yet.
    untried: vec::IntoIter<SocketAddr>,
    /// The oldest one comes first.
    running: Vec<Attempt>,
    failed: Vec<(SocketAddr, io::Error)>,
    /// The time at which the next attempt begins although none has failed.
    next: Sleep,
}

struct Attempt {
    addr: SocketAddr,
    // Dropped before the stream, which its waiter must not outlive.
    side: Side,
    stream: Stream,
}

impl Attempts {
    fn new(addrs: impl Iterator<Item = SocketAddr>) -> Attempts {
        Attempts {
            untried: alternate(&addrs.collect::<Vec<_>>()).into_iter(),
            running: Vec::new(),
            failed: Vec::new(),
            next: Sleep::forever(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, open: Open<'_>) -> Poll<io::Result<Stream>> {
        loop {
            let mut begin = self.running.is_empty();
            let mut index = 0;
            while let Some(attempt) = self.running.get_mut(index) {
                match attempt.poll(cx) {
                    Poll::Pending => index += 1,
                    Poll::Ready(outcome) => {
                        let Attempt { addr, stream, .. } = self.running.remove(index);
                        match outcome {
                            Ok(()) => return Poll::Ready(Ok(stream)),
                            Err(error) => self.failed.push((addr, error)),
                        }
                        // It was the last one that has begun.
                        begin |= index == self.running.len();
                    }
                }
            }
            if self.untried.len() > 0 && !begin {
                begin = self.next.poll_elapsed(cx)?.is_ready();
            }
            match self.untried.as_slice() {
                [] if self.running.is_empty() => return Poll::Ready(Err(self.failure())),
                [_, ..] if begin => self.begin(open),
                _ => return Poll::Pending,
            }
        }
    }

    /// Begins the next attempt. A socket that cannot be made is one that has failed: the machine may lack a family.
    fn begin(&mut self, open: Open<'_>) {
        for addr in self.untried.by_ref() {
            match open(&addr) {
                Ok(stream) => {
                    let side = Side::default();
                    self.running.push(Attempt { addr, side, stream });
                    self.next = Sleep::new(DELAY);
                    return;
                }
                Err(error) => self.failed.push((addr, error)),
            }
        }
    }

    fn failure(&mut self) -> io::Error {
        match self.failed.last() {
            Some((_, last)) => io::Error::new(last.kind(), Unreached(mem::take(&mut self.failed))),
            None => no_address(),
        }
    }

    fn out_of_time(mut self) -> io::Error {
        let unanswered = |attempt: Attempt| {
            (
                attempt.addr,
                io::Error::new(io::ErrorKind::TimedOut, "no answer in time"),
            )
        };
        self.failed.extend(self.running.drain(..).map(unanswered));
        io::Error::new(io::ErrorKind::TimedOut, Unreached(self.failed))
    }
}

impl Attempt {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let addr = &self.addr;
        self.side
            .poll_io(&self.stream.watched, Direction::Write, cx, |fd| connect(fd, addr))
    }
}

/// Orders addresses so that the families take turns, as RFC 8305 section 4 has it. The order within a family stays.
fn alternate(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_of_first = |addr: &&SocketAddr| addr.is_ipv4() == addrs[0].is_ipv4();
    let mut of_first = addrs.iter().filter(is_of_first);
    let mut others = addrs.iter().filter(|addr| !is_of_first(addr));
    let mut ordered = Vec::with_capacity(addrs.len());
    while ordered.len() < addrs.len() {
        ordered.extend(of_first.next());
        ordered.extend(others.next());
    }
    ordered
}

/// The error of a connect to several addresses: what became of each that was tried.
#[derive(Debug)]
struct Unreached(Vec<(SocketAddr, io::Error)>);

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no address could be connected to: ")?;
        for (number, (addr, error)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{addr}: {error}")?;
        }
        Ok(())
    }
}

impl error::Error for Unreached {
    /// The error of the last address.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.last().map(|(_, error)| error as _)
    }
}

/// Calls connect(2). A second call reports how the first one ended.
fn connect(fd: Fd<'_>, addr: &SocketAddr) -> io::Result<Moved<()>> {
    let fd = match fd {
        Fd::System(fd) => fd,
        Fd::Simulated(socket) => return socket.connect(addr),
    };
    match rustix::net::connect(fd, addr) {
        Ok(()) | Err(Errno::ISCONN) => Ok(Moved::all(())),
        Err(Errno::INPROGRESS | Errno::ALREADY) => Err(io::ErrorKind::WouldBlock.into()),
        // The kernel means that no local port is free, or none for a route. Waiting does not change that.
        Err(Errno::AGAIN) => Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no local port is free")),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_keep_their_order() {
        let ordered = |addrs: &[&str]| {
            let addrs: Vec<SocketAddr> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
            let ordered = alternate(&addrs);
            ordered.iter().map(SocketAddr::to_string).collect::<Vec<_>>()
        };
        let [a, b, c] = ["[2001:db8::1]:80", "[2001:db8::2]:80", "[2001:db8::3]:80"];
        let [one, two] = ["192.0.2.1:80", "192.0.2.2:80"];
        assert_eq!(ordered(&[a, b, c, one, two]), [a, one, b, two, c]);
        assert_eq!(ordered(&[one, two, a]), [one, a, two]);
        assert_eq!(ordered(&[one, two]), [one, two]);
        assert!(ordered(&[]).is_empty());
    }
}
