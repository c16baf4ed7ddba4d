//! The back-end on Linux's epoll(7).
//!
//! epoll registers a pair of open file and descriptor number. A descriptor that is closed while a duplicate of it lives stays
//! registered, and can no longer be removed. So delete a duplicated descriptor before it is closed.
//!
//! # Safety
//! The system calls are safe. Only the kernel's event type is not [`Send`], because its data may be a pointer. Here it never is.
#![allow(unsafe_code)]

use crate::eventfd::WakeUp;
use crate::{Capabilities, Event, Interest, Mode, Ready, Token};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Events as the kernel wrote them.
pub(crate) struct RawEvents(pub(crate) Vec<epoll::Event>);

pub(crate) type RawEvent = epoll::Event;

// SAFETY: the data of every event is a token, which `add` and `modify` have written as a number and `event` reads as one.
unsafe impl Send for RawEvents {}
// SAFETY: the same.
unsafe impl Sync for RawEvents {}

#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    wake_up: WakeUp,
}

impl Epoll {
    pub(crate) const IS_THERE: bool = true;

    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake_up = WakeUp::new()?;
        epoll::add(
            &epoll,
            &wake_up,
            EventData::new_u64(Token::WAKE_UP.0),
            EventFlags::IN | EventFlags::ET,
        )?;
        Ok(Self { epoll, wake_up })
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            level: true,
            edge: true,
            priority: true,
            read_closed: true,
            forgets_closed: true,
        }
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let data = EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, fd, data, flags(interest, mode))?)
    }

    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let data = EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, fd, data, flags(interest, mode))?)
    }

    pub(crate) fn delete(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Fills the spare capacity of `ready`.
    pub(crate) fn wait(&self, ready: &mut Vec<RawEvent>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(whole_millis);
        match epoll::wait(&self.epoll, spare_capacity(ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(at) = ready.iter().position(|event| event.data.u64() == Token::WAKE_UP.0) {
            ready.swap_remove(at);
            self.wake_up.acknowledge();
        }
        Ok(())
    }

    pub(crate) fn notify(&self) -> io::Result<()> {
        self.wake_up.ring()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Translates a raw event.
#[inline]
pub(crate) fn event(raw: &RawEvent) -> Event {
    Event {
        token: Token(raw.data.u64()),
        readiness: readiness(raw.flags),
    }
}

fn flags(interest: Interest, mode: Mode) -> EventFlags {
    let asked = [
        (Interest::READABLE, EventFlags::IN | EventFlags::RDHUP),
        (Interest::WRITABLE, EventFlags::OUT),
        (Interest::PRIORITY, EventFlags::PRI),
    ];
    let mut flags = match mode {
        Mode::Level => EventFlags::empty(),
        Mode::Edge => EventFlags::ET,
        Mode::Oneshot => EventFlags::ONESHOT,
    };
    for (bit, flag) in asked {
        flags.set(flag, interest.contains(bit));
    }
    flags
}

#[inline]
fn readiness(flags: EventFlags) -> Ready {
    // Most events say this and nothing else.
    match flags == EventFlags::IN {
        true => Ready::READABLE,
        false => readiness_of_each(flags),
    }
}

fn readiness_of_each(flags: EventFlags) -> Ready {
    let bits = [
        (EventFlags::IN, Ready::READABLE),
        (EventFlags::OUT, Ready::WRITABLE),
        (EventFlags::RDHUP, Ready::READ_CLOSED),
        (EventFlags::HUP, Ready::HUP),
        (EventFlags::ERR, Ready::ERROR),
        (EventFlags::PRI, Ready::PRIORITY),
    ];
    let mut readiness = Ready::NONE;
    for (flag, bit) in bits {
        if flags.contains(flag) {
            readiness |= bit;
        }
    }
    readiness
}

/// Rounds a timeout up to milliseconds, and cuts it to the longest that epoll_wait(2) takes.
fn whole_millis(timeout: Duration) -> Timespec {
    let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64;
    Timespec {
        tv_sec: millis / 1000,
        tv_nsec: millis % 1000 * 1_000_000,
    }
}
