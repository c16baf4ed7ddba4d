//! The stand-in for the epoll back-end on systems without epoll: the same surface, but no value of it exists.

use crate::{Capabilities, Event, Interest, Mode, Token};
use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub(crate) struct RawEvents(pub(crate) Vec<RawEvent>);

pub(crate) type RawEvent = Infallible;

#[derive(Debug)]
pub(crate) struct Epoll(Infallible);

impl Epoll {
    pub(crate) const IS_THERE: bool = false;

    pub(crate) fn new() -> io::Result<Self> {
        let message = "this system has no epoll: choose OSIER_DRIVER=portable";
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

    pub(crate) fn wait(&self, _: &mut Vec<RawEvent>, _: Option<Duration>) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn notify(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

pub(crate) fn event(raw: &RawEvent) -> Event {
    match *raw {}
}
