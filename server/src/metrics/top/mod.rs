//! `osier top ADDR`: shows the work of a running server, from its admin listener.
//!
//! On a terminal, the view is written again every two seconds, cut to the size of the terminal. If the server goes
//! away, or is too busy to answer, the view says so, and the server is asked again. Elsewhere, and with `--once`, the
//! view is written once, with the rates since the start of the server.

mod scrape;
mod view;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use self::scrape::{Failed, Scrape};

/// The time between two views.
const INTERVAL: Duration = Duration::from_secs(2);

/// Clears a terminal and moves the cursor to its first place.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the server whose `[admin]` listens at `address`, until the program is ended.
///
/// # Errors
/// One line: why there is nothing to show.
pub fn run(address: &str, once: bool) -> Result<(), String> {
    let address = &named(address)?;
    let mut out = io::stdout();
    let is_last = once || !out.is_terminal();
    let mut before: Option<Scrape> = None;
    let mut view = String::new();
    loop {
        let text = match Scrape::take(address) {
            Ok(now) => {
                // A process that has started since counts from 0.
                let same = before.as_ref().filter(|before| before.uptime <= now.uptime);
                view = view::text(address, &now, same);
                before = Some(now);
                view.clone()
            }
            // The first answer says whether the address is the right one.
            Err(failed) if is_last || (view.is_empty() && !matches!(failed, Failed::Busy(_))) => {
                return Err(failed.to_string());
            }
            Err(failed) if view.is_empty() => format!("{failed}; trying again\n"),
            Err(failed) => {
                before = None;
                format!("{failed}; trying again. The last view:\n\n{view}")
            }
        };
        let shown = match is_last {
            true => printable(&text, usize::MAX),
            false => CLEAR.to_owned() + &fitting(&text, size(&out)),
        };
        // The reader may have gone.
        if out.write_all(shown.as_bytes()).and_then(|()| out.flush()).is_err() || is_last {
            return Ok(());
        }
        thread::sleep(INTERVAL);
    }
}

/// The address in the form that [`Scrape::take`] reads: `HOST:PORT`, or `unix:PATH`.
fn named(address: &str) -> Result<String, String> {
    let address = address.strip_prefix("http://").unwrap_or(address);
    if address.starts_with("unix:") {
        return Ok(address.to_owned());
    }
    if address.starts_with('/') {
        return Ok(format!("unix:{address}"));
    }
    let address = address.split('/').next().unwrap_or_default();
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match address.rsplit_once(':') {
        None if is_port(address) => Ok(format!("127.0.0.1:{address}")),
        Some(("", port)) if is_port(port) => Ok(format!("127.0.0.1:{port}")),
        Some((_, port)) if is_port(port) => Ok(address.to_owned()),
        _ => Err(format!(
            "'{address}' has no port: give the address of [admin], as in osier top 127.0.0.1:9090"
        )),
    }
}

/// The columns and rows of the terminal. `None` if they are not known.
fn size(out: &io::Stdout) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 1).then_some((columns, rows))
}

/// The part of a text that a terminal of this size shows without scrolling.
fn fitting(text: &str, size: Option<(usize, usize)>) -> String {
    let Some((columns, rows)) = size else {
        return printable(text, usize::MAX);
    };
    let (lines, all) = (rows - 1, text.lines().count());
    if all <= lines {
        return printable(text, columns);
    }
    let rest = format!("{} more lines", all - (lines - 1));
    let shown: Vec<&str> = text.lines().take(lines - 1).chain([&*rest]).collect();
    printable(&shown.join("\n"), columns)
}

/// The first `columns` characters of each line. Names that clients choose may not control the terminal.
fn printable(text: &str, columns: usize) -> String {
    let mut printable = String::with_capacity(text.len());
    for line in text.lines() {
        let shown = line.chars().take(columns);
        printable.extend(shown.map(|char| if char.is_control() { '?' } else { char }));
        printable.push('\n');
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_write_it() {
        for (written, meant) in [
            ("9000", Ok("127.0.0.1:9000")),
            (":9000", Ok("127.0.0.1:9000")),
            ("localhost:9000", Ok("localhost:9000")),
            ("[::1]:9000", Ok("[::1]:9000")),
            ("http://127.0.0.1:9000/metrics", Ok("127.0.0.1:9000")),
            ("unix:/run/a", Ok("unix:/run/a")),
            ("/run/a", Ok("unix:/run/a")),
            ("localhost", Err(())),
            ("example.org:http", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(named(written).map_err(|_| ()), meant.map(str::to_owned), "{written}");
        }
    }

    #[test]
    fn a_view_is_cut_to_the_terminal() {
        let text = "abcdef\n\u{1b}[2J\u{9b}\nc\nd\n";
        assert_eq!(fitting(text, None), "abcdef\n?[2J?\nc\nd\n");
        assert_eq!(fitting(text, Some((4, 5))), "abcd\n?[2J\nc\nd\n");
        assert_eq!(fitting(text, Some((20, 4))), "abcdef\n?[2J?\n2 more lines\n");
        assert_eq!(fitting(text, Some((20, 2))), "4 more lines\n");
    }
}
