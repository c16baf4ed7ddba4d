//! The request of an active check, on a connection of its own.

use std::io::{self, Read, Write};

use osier_http::h2::{self, Event, Outgoing};

use super::connection::LIMITS;
use crate::conn::transport::Transport;

/// Sends `GET path` and returns the status of the response.
///
/// # Suspends
///
/// Until the response has come.
///
/// # Errors
///
/// The connection's errors, and `InvalidData` for a malformed response.
pub(in crate::upstream) fn get(mut transport: &Transport, path: &str, authority: &str) -> io::Result<u16> {
    let mut machine = h2::Connection::client(&LIMITS, osier::time::coarse_now());
    let target = Outgoing {
        method: "GET",
        scheme: if transport.plain().is_some() { "http" } else { "https" },
        authority,
        path,
        protocol: None,
    };
    machine.request(&target, [], true).map_err(io::Error::other)?;
    let mut buffer = [0; 4 << 10];
    loop {
        while !machine.output().is_empty() {
            let count = transport.write(machine.output())?;
            machine.advance(count);
        }
        transport.flush()?;
        let count = match transport.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => count,
        };
        let (mut bytes, now) = (&buffer[..count], osier::time::coarse_now());
        loop {
            let (count, event) = machine.receive(bytes, now).map_err(io::Error::other)?;
            bytes = &bytes[count..];
            match event {
                Some(Event::Response { head, .. }) if head.status() >= 200 => return Ok(head.status()),
                Some(Event::Reset { code, .. }) => {
                    return Err(io::Error::other(format!("the stream was reset with {code}")));
                }
                None if bytes.is_empty() => break,
                _ => {}
            }
        }
    }
}
