//! The web server called osier: a folder of files over HTTP, or a page that says how.
//!
//! # Layout
//!
//! `cli` reads the command line, `serve` opens everything and runs. A request goes to `files`, which asks `cache`, then
//! `target` (what the path means), `root` (the way to it, never out of the folder) and `resource` (the file with its
//! encoded siblings); `negotiate`, `conditional` and `range` choose what is sent of it. `listing` writes the page of a
//! folder, `welcome` holds the built-in site, `access_log` keeps the record; `mime` and `calendar` are small tables.
#![forbid(unsafe_code)]

mod access_log;
mod cache;
mod calendar;
mod cli;
mod conditional;
mod files;
mod listing;
mod mime;
mod negotiate;
mod range;
mod resource;
mod root;
#[cfg(test)]
mod scratch;
mod serve;
mod target;
mod welcome;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let settings = match cli::parse(std::env::args_os()) {
        Ok(settings) => settings,
        Err(cli::Exit { text, status: 0 }) => {
            // Nobody may be reading: `osier --help | head -1` is no error.
            let _ = writeln!(std::io::stdout(), "{text}");
            return ExitCode::SUCCESS;
        }
        Err(cli::Exit { text, status }) => {
            eprintln!("{text}");
            return ExitCode::from(status);
        }
    };
    match serve::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("osier: {why}");
            ExitCode::from(2)
        }
    }
}
