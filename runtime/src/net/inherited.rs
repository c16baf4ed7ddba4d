//! Sockets that somebody else has opened for this process before it began: systemd, or who speaks its protocol.
//!
//! The protocol (sd_listen_fds(3)): `LISTEN_PID` is this process, `LISTEN_FDS` says how many descriptors there are from 3 on, `LISTEN_FDNAMES` names them,
//! separated by colons.
//!
//! # Safety
//! This file may use `unsafe` to take ownership of those descriptors, which is right only if nobody in the process has it. Three things see to it: they
//! are taken once in the life of the process; the environment names this process by its id; and only a descriptor without close-on-exec is taken, which is how
//! one comes through an `exec`, while the standard library and this crate open none like that.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor that is passed on.
const FIRST: RawFd = 3;
/// No unit has more; a larger number is a mistake.
const MOST: u32 = 1024;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// A descriptor that was open when the process began.
#[derive(Debug)]
pub struct Inherited {
    /// `FileDescriptorName=` of the socket unit; `unknown` if it was not told, as systemd has it.
    pub name: String,
    /// The descriptor, now close-on-exec. A listening socket becomes a [`TcpListener`](super::TcpListener) or [`UnixListener`](super::UnixListener) by `from`.
    pub fd: OwnedFd,
}

/// Takes the sockets that systemd has opened for this process: none if it was not started by one, or when they have been taken before.
///
/// The variables of the environment stay; a child does not take them for its own, because of `LISTEN_PID`.
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
/// `InvalidData` when the variables contradict themselves, or name a descriptor that is not open, or was not inherited.
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
    if pid != std::process::id() || count == 0 || TAKEN.swap(true, Ordering::AcqRel) {
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
    let take = |index: u32| {
        let name = names.get(index as usize).map_or("unknown", |name| *name).to_owned();
        let fd = take(FIRST + index as RawFd)?;
        Ok(Inherited { name, fd })
    };
    (0..count).map(take).collect()
}

fn take(raw: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for the questions of the next lines alone, which are answered with an error for a number that is not open. Nobody closes it
    // meanwhile: see the module.
    let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
    let flags = match fcntl_getfd(borrowed) {
        Err(Errno::BADF) => return Err(invalid(format!("LISTEN_FDS: descriptor {raw} is not open"))),
        flags => flags?,
    };
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(invalid(format!("LISTEN_FDS: descriptor {raw} was not inherited")));
    }
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and nobody else's: passed through exec to this process by its id, and taken for the first time. See the module.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
