//! The web server called osier: a folder of files over HTTP, or a page that says how.
//!
//! # Layout
//!
//! `cli` reads the command line, `serve` opens everything and runs; [`osier_web::files`] answers. `welcome` holds the
//! built-in site, `access_log` keeps the record; `config` reads and checks a configuration file.
#![forbid(unsafe_code)]

#[allow(dead_code)] // until site.rs asks it
mod access;
mod access_log;
#[allow(dead_code)] // until site.rs asks it
mod auth;
mod cli;
#[allow(dead_code)] // until site.rs asks it
mod config;
#[allow(dead_code)] // until site.rs asks it
mod cors;
#[allow(dead_code)] // until site.rs asks it
mod headers;
#[allow(dead_code)] // until serve.rs asks it
mod privileges;
#[allow(dead_code)] // until site.rs asks it
mod rate;
#[allow(dead_code, unused_imports)] // until site.rs asks it
mod rewrite;
#[allow(dead_code)] // until site.rs asks it
mod say;
#[cfg(test)]
mod scratch;
mod serve;
#[allow(dead_code)] // until serve.rs asks it
mod sockets;
mod welcome;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
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
    let outcome = match command {
        cli::Command::Folder(settings) => serve::run(settings),
        cli::Command::Check(file) => match config::load(&file) {
            Ok(config) => {
                let _ = writeln!(std::io::stdout(), "{}: ok ({})", file.display(), config.summary());
                return ExitCode::SUCCESS;
            }
            Err(report) => {
                eprintln!("{report}");
                return ExitCode::from(2);
            }
        },
        cli::Command::Sites(file) => Err(format!("'{}' can be checked, but not served yet", file.display())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("osier: {why}");
            ExitCode::from(2)
        }
    }
}
