//! `osier top ADDR`: what a running server does, from its admin listener.
//!
//! On a terminal the program rewrites the view every two seconds. Elsewhere, and with `--once`, it writes the view once, with the rates
//! since the start of the server.

mod scrape;
mod view;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use self::scrape::Scrape;

const INTERVAL: Duration = Duration::from_secs(2);

/// Clears a terminal and goes to its first place.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the server whose `[admin]` listens at `address`, until the user ends the program.
///
/// # Errors
/// One line: why there is nothing to show.
pub fn run(address: &str, once: bool) -> Result<(), String> {
    let address = &match address {
        port if port.bytes().all(|byte| byte.is_ascii_digit()) => format!("127.0.0.1:{port}"),
        port if port.starts_with(':') => format!("127.0.0.1{port}"),
        address => address.to_owned(),
    };
    let mut out = io::stdout();
    let mut before: Option<Scrape> = None;
    loop {
        let now = Scrape::take(address)?;
        let text = view::text(address, &now, before.as_ref());
        let is_last = once || !out.is_terminal();
        let clear = if is_last { "" } else { CLEAR };
        // The reader of a pipe may have left.
        if write!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() || is_last {
            return Ok(());
        }
        before = Some(now);
        thread::sleep(INTERVAL);
    }
}
