//! An open socket: a descriptor of the system, or an end of a simulated connection.
//!
//! Every call on a socket ends in a function that takes an [`Fd`]. This is the one place where a simulation differs from the
//! system. Without the feature `sim` no value of the second kind exists, so an [`Fd`] is a descriptor and the compiler removes
//! the other arms.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::wait::simulated::{Endpoint, Simulated};

/// An open socket, and the right to close it.
pub(crate) enum Opened {
    System(OwnedFd),
    Simulated(Endpoint),
}

/// A socket for one call.
#[derive(Clone, Copy)]
pub(crate) enum Fd<'a> {
    System(BorrowedFd<'a>),
    Simulated(Simulated<'a>),
}

impl Opened {
    #[inline]
    pub(crate) fn fd(&self) -> Fd<'_> {
        match self {
            Opened::System(fd) => Fd::System(fd.as_fd()),
            Opened::Simulated(endpoint) => Fd::Simulated(endpoint.simulated()),
        }
    }

    /// The descriptor. A simulated socket is closed, and a stand-in returned.
    pub(crate) fn into_fd(self) -> OwnedFd {
        match self {
            Opened::System(fd) => fd,
            Opened::Simulated(endpoint) => endpoint.into_stand_in(),
        }
    }
}

impl<'a> Fd<'a> {
    /// The descriptor for a call that no simulation knows. For a simulated socket it is a stand-in: a socket of the system that is
    /// not connected.
    #[inline]
    pub(crate) fn of_system(self) -> BorrowedFd<'a> {
        match self {
            Fd::System(fd) => fd,
            Fd::Simulated(socket) => socket.stand_in(),
        }
    }
}

impl From<OwnedFd> for Opened {
    fn from(fd: OwnedFd) -> Opened {
        Opened::System(fd)
    }
}

impl From<Endpoint> for Opened {
    fn from(endpoint: Endpoint) -> Opened {
        Opened::Simulated(endpoint)
    }
}
