//! Stands in for simulated sockets where the feature `sim` is off: the same surface as `sim/endpoint.rs`, with types that have no value.

use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use async_task::Runnable;
use osier_poll::{Interest, Token};

use crate::wait::socket::{Direction, Moved};

pub(crate) struct Endpoint(Infallible);

#[derive(Clone, Copy)]
pub(crate) struct Simulated<'a>(Infallible, PhantomData<&'a Endpoint>);

/// Whether a simulated worker runs on this thread.
#[cfg_attr(not(feature = "fs"), allow(dead_code))]
#[inline(always)]
pub(crate) fn is_here() -> bool {
    false
}

#[inline(always)]
pub(crate) fn stream_socket() -> Option<Endpoint> {
    None
}

#[cfg_attr(not(feature = "datagrams"), allow(dead_code))]
#[inline(always)]
pub(crate) fn datagram_socket() -> Option<Endpoint> {
    None
}

/// The simulated socket that a descriptor stands for.
#[inline(always)]
pub(crate) fn behind(_: BorrowedFd<'_>) -> Option<Endpoint> {
    None
}

#[inline(always)]
pub(crate) fn look_up(_: &str) -> Option<(Duration, io::Result<Vec<IpAddr>>)> {
    None
}

#[inline(always)]
pub(crate) fn random() -> Option<u64> {
    None
}

/// The time of day.
#[inline(always)]
pub(crate) fn system_now() -> Option<std::time::SystemTime> {
    None
}

/// The time on the clock of the host whose work for the pool this is.
#[inline(always)]
pub(crate) fn pooled_now() -> Option<std::time::Instant> {
    None
}

/// Takes work that blocks, if this is a simulation.
#[inline(always)]
pub(crate) fn defer(job: Runnable) -> Result<(), Runnable> {
    Err(job)
}

impl Endpoint {
    #[inline]
    pub(crate) fn simulated(&self) -> Simulated<'_> {
        match self.0 {}
    }

    pub(crate) fn into_stand_in(self) -> OwnedFd {
        match self.0 {}
    }
}

macro_rules! never {
    ($(fn $name:ident($($arg:ty),*) -> $output:ty;)*) => {
        #[allow(dead_code, reason = "some are called by features only")]
        impl<'a> Simulated<'a> {
            $(pub(crate) fn $name(self $(, _: $arg)*) -> $output {
                match self.0 {}
            })*
        }
    };
}

never! {
    fn clone_endpoint() -> Endpoint;
    fn stand_in() -> BorrowedFd<'a>;
    fn register(Token, Interest) -> io::Result<()>;
    fn listen(&SocketAddr, bool) -> io::Result<()>;
    fn bind(&SocketAddr) -> io::Result<()>;
    fn connect(&SocketAddr) -> io::Result<Moved<()>>;
    fn accept() -> io::Result<(Endpoint, SocketAddr)>;
    fn read(&mut [u8]) -> io::Result<Moved<usize>>;
    fn read_vectored(&mut [IoSliceMut<'_>]) -> io::Result<Moved<usize>>;
    fn peek(&mut [u8]) -> io::Result<usize>;
    fn write(&[u8]) -> io::Result<usize>;
    fn write_vectored(&[IoSlice<'_>]) -> io::Result<usize>;
    fn receive(&mut [u8], bool) -> io::Result<(usize, SocketAddr)>;
    fn send_to(&[u8], &SocketAddr) -> io::Result<usize>;
    fn is_ready(Direction) -> bool;
    fn shutdown(Shutdown) -> io::Result<()>;
    fn local_addr() -> io::Result<SocketAddr>;
    fn peer_addr() -> io::Result<SocketAddr>;
    fn take_error() -> Option<io::Error>;
    fn set_linger(Option<Duration>) -> ();
    fn linger() -> Option<Duration>;
    fn unacknowledged() -> Option<i32>;
}
