//! An alarm: a descriptor that becomes readable at a given time. It is a timerfd, where the system has one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

#[cfg(not(target_vendor = "apple"))]
mod timerfd {
    use super::*;
    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    use std::os::fd::OwnedFd;

    pub(crate) struct Alarm(OwnedFd);

    impl Alarm {
        pub(crate) fn new() -> io::Result<Alarm> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Ok(Alarm(timer))
        }

        /// Makes the descriptor readable after `left`, which is not zero: that would stop the timer.
        pub(crate) fn set(&self, left: Duration) -> io::Result<()> {
            let value = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let setting = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: value,
            };
            rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting)?;
            Ok(())
        }
    }

    impl AsFd for Alarm {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}
#[cfg(not(target_vendor = "apple"))]
pub(crate) use timerfd::Alarm;

/// Stands for the timerfd on systems without: there is no value of it.
#[cfg(target_vendor = "apple")]
pub(crate) struct Alarm(std::convert::Infallible);

#[cfg(target_vendor = "apple")]
impl Alarm {
    pub(crate) fn new() -> io::Result<Alarm> {
        let message = "this system has no timerfd, so a runtime cannot run inside another loop";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    pub(crate) fn set(&self, _: Duration) -> io::Result<()> {
        match self.0 {}
    }
}

#[cfg(target_vendor = "apple")]
impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}
