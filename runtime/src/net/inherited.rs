//! Socket activation: takes the sockets that systemd, or another program with its protocol, opened for this process.
//!
//! The protocol is that of sd_listen_fds(3). `LISTEN_PID` is the id of this process. `LISTEN_FDS` is the number of
//! descriptors; the first is 3. `LISTEN_FDNAMES` has their names, separated by colons.
//!
//! # Safety
//! This file may use `unsafe` to take ownership of those descriptors. That is sound only if nothing else in the
//! process owns them. Three conditions ensure it:
//! - The descriptors are taken once in the life of the process.
//! - The environment names this process by its id.
//! - Only a descriptor without close-on-exec is taken. An `exec` passes only such descriptors on, and neither the
//!   standard library nor this crate opens any.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor that the protocol passes on.
const FIRST: RawFd = 3;
/// The most descriptors that are believed. No unit has more, so a larger number is a mistake.
const MOST: u32 = 1024;

/// Locked until the descriptors are taken, so that they are taken once.
static TAKEN: Mutex<bool> = Mutex::new(false);

/// A descriptor that was open when the process began.
#[derive(Debug)]
pub struct Inherited {
    /// The name: `FileDescriptorName=` of the socket unit. `unknown` if the environment has no names, as systemd
    /// defines it.
    pub name: String,
    /// The descriptor, now close-on-exec. `From` makes a listening socket a [`TcpListener`](super::TcpListener) or
    /// [`UnixListener`](super::UnixListener).
    pub fd: OwnedFd,
}

/// Takes the sockets that systemd has opened for this process, all or none. Returns none if there are none or if they were taken
/// before.
///
/// The environment variables stay. A child ignores them, because `LISTEN_PID` is not its id.
///
/// ```
/// for socket in osier::net::inherited()? {
///     println!("{}: {:?}", socket.name, socket.fd);
/// }
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
///
/// `InvalidData` if the variables contradict each other, or name a descriptor that is not open or was not inherited.
pub fn inherited() -> io::Result<Vec<Inherited>> {
    let variable = |name: &str| env::var_os(name).map(OsString::into_string);
    let number = |name: &str| match variable(name) {
        None => Ok(None),
        Some(text) => {
            let parsed = text.ok().and_then(|text| text.parse::<u32>().ok());
            parsed
                .map(Some)
                .ok_or_else(|| invalid(format!("{name} is not a number")))
        }
    };
    let (Some(pid), Some(count)) = (number("LISTEN_PID")?, number("LISTEN_FDS")?) else {
        return Ok(Vec::new());
    };
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if pid != std::process::id() || count == 0 || *taken {
        return Ok(Vec::new());
    }
    if count > MOST {
        return Err(invalid(format!("LISTEN_FDS is {count}: more than {MOST}")));
    }
    let names = variable("LISTEN_FDNAMES").and_then(Result::ok).unwrap_or_default();
    let names: Vec<&str> = names.split(':').filter(|_| !names.is_empty()).collect();
    if !names.is_empty() && names.len() != count as usize {
        return Err(invalid(format!(
            "LISTEN_FDNAMES has {} names for {count} descriptors",
            names.len()
        )));
    }
    let descriptors = FIRST..FIRST + count as RawFd;
    descriptors.clone().try_for_each(check)?;
    *taken = true;
    let take = |(index, raw)| {
        let name = names.get(index).map_or("unknown", |name| *name).to_owned();
        Ok(Inherited { name, fd: take(raw)? })
    };
    descriptors.enumerate().map(take).collect()
}

/// Borrows a descriptor for calls that return an error if it is not open.
fn borrow(raw: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the callers below make such calls alone. Nobody closes it meanwhile: see the module.
    unsafe { BorrowedFd::borrow_raw(raw) }
}

/// Whether the descriptor may be taken.
fn check(raw: RawFd) -> io::Result<()> {
    match fcntl_getfd(borrow(raw)) {
        Err(Errno::BADF) => Err(invalid(format!("LISTEN_FDS: descriptor {raw} is not open"))),
        Ok(flags) if flags.contains(FdFlags::CLOEXEC) => {
            Err(invalid(format!("LISTEN_FDS: descriptor {raw} was not inherited")))
        }
        flags => Ok(flags.map(drop)?),
    }
}

/// Takes a descriptor that [`check`] has allowed.
fn take(raw: RawFd) -> io::Result<OwnedFd> {
    fcntl_setfd(borrow(raw), FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open. An exec passed it to this process, named by its id, and this takes it for the
    // first time. See the module.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
