//! The stand-in for the portable back-end where the feature `portable` is off: the same surface, but no value of it exists.

use crate::{Capabilities, Event, Interest, Mode, Token};
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Portable(Infallible);

impl Portable {
    pub(crate) fn new() -> io::Result<Self> {
        let message = "the portable driver is not compiled in: turn on the feature `portable` of osier or osier-poll";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        match self.0 {}
    }

    pub(crate) fn add(&self, _: BorrowedFd<'_>, _: Token, _: Interest, _: Mode) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn modify(&self, _: BorrowedFd<'_>, _: Token, _: Interest, _: Mode) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn delete(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _: &mut Vec<Event>, _: usize, _: Option<Duration>) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn notify(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self.0 {}
    }
}
