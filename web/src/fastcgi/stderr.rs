//! Logs what a backend writes to its standard error, line by line, with the request that it is about.
//!
//! `exchange` adds pieces of any length. Each request may log at most 64 KiB; further bytes are counted.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::RequestId;
use crate::conn::log::record::{Level, Record};
use crate::conn::worker::Worker;

/// The longest line, in bytes. A longer one is cut into several.
const LINE: usize = 4 << 10;

/// The most bytes that one request may log.
const TOTAL: usize = 64 << 10;

/// The request that lines are about.
pub struct About {
    client: (SocketAddr, bool),
    id: RequestId,
    /// The host, the method, a space and the target: one allocation, because nearly no request has a line.
    texts: String,
    /// The length of the host.
    host: Option<usize>,
}

impl About {
    /// `client`: its address, and whether a trusted proxy has named it. `line`: the method and the target, both cut.
    pub fn new(client: (SocketAddr, bool), host: Option<&str>, id: RequestId, line: (&str, &str)) -> About {
        let (method, target) = line;
        let named = host.unwrap_or_default();
        let mut texts = String::with_capacity(named.len() + method.len() + 1 + target.len());
        for part in [named, method, " ", target] {
            texts.push_str(part);
        }
        About {
            client,
            id,
            texts,
            host: host.map(str::len),
        }
    }
}

/// The standard error of one request's script.
pub struct Stderr {
    worker: Rc<Worker>,
    about: About,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// Bytes that count towards [`TOTAL`].
    written: usize,
    /// Bytes beyond them.
    left_out: usize,
}

impl Stderr {
    pub fn new(worker: Rc<Worker>, about: About) -> Stderr {
        Stderr {
            worker,
            about,
            line: Vec::new(),
            written: 0,
            left_out: 0,
        }
    }

    /// Logs a line about the request.
    pub fn say(&self, level: Level, what: fmt::Arguments<'_>) {
        let About {
            client: (client, is_proxied),
            id,
            texts,
            host,
        } = &self.about;
        let (name, request) = texts.split_at(host.unwrap_or(0));
        let text = format_args!("fastcgi {request}: {what}");
        let record = Record::new(level, text)
            .of_client(*client, *is_proxied)
            .of_request(host.map(|_| name), *id);
        self.worker.server.log(&record);
    }

    /// Adds a piece of the standard error, and logs the lines that are complete.
    pub fn add(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.written >= TOTAL {
                self.left_out += piece.len();
                return;
            }
            let room = LINE - self.line.len();
            let end = piece.iter().position(|&byte| byte == b'\n').unwrap_or(piece.len());
            let (now, later) = piece.split_at(end.min(room));
            self.line.extend_from_slice(now);
            self.written += now.len();
            piece = later;
            if let Some(rest) = piece.strip_prefix(b"\n") {
                piece = rest;
                self.written += 1;
                self.flush();
            } else if self.line.len() == LINE {
                self.flush();
            }
        }
    }

    /// Logs an unfinished line and the number of bytes that were left out.
    pub fn end(&mut self) {
        self.flush();
        if self.left_out > 0 {
            self.say(
                Level::Warning,
                format_args!("{} more bytes on its standard error", self.left_out),
            );
            self.left_out = 0;
        }
    }

    /// Logs the line so far.
    fn flush(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        if !text.is_empty() {
            self.say(Level::Warning, format_args!("stderr: {}", Visible(&text)));
        }
    }
}

/// A request that breaks off still logs its last line.
impl Drop for Stderr {
    fn drop(&mut self) {
        self.end();
    }
}

/// Text whose control characters, apart from tabs, are escaped. A script's line must not look like several lines of the
/// log or move a terminal's cursor.
struct Visible<'t>(&'t str);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(char::is_control) {
            let (text, control) = match part.chars().next_back() {
                Some(last) if last.is_control() => (&part[..part.len() - last.len_utf8()], Some(last)),
                _ => (part, None),
            };
            f.write_str(text)?;
            match control {
                Some('\t') => f.write_str("\t")?,
                Some(control) => write!(f, "{}", control.escape_default())?,
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(
            Visible("a\tb\x1b[2J\rc\u{85}é").to_string(),
            "a\tb\\u{1b}[2J\\rc\\u{85}é"
        );
    }
}
