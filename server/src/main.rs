//! The web server called osier: the sites of a configuration file, a folder of files, or a page that says how.
//!
//! # Layout
//!
//! `cli` reads the command line. For a folder, `serve` opens everything and runs; [`osier_web::files`] answers. For a
//! configuration file, `config` reads and checks it, `sites` runs and reloads with its `listeners`, `site` answers, with `access`, `auth`,
//! `cors`, `headers`, `rate` and `rewrite` around or in place of a handler. `welcome` holds the built-in site, `access_log`
//! keeps the record, `say` takes the lines for the operator.
#![forbid(unsafe_code)]

mod access;
mod access_log;
mod admin;
mod auth;
mod cli;
mod config;
mod cors;
mod headers;
mod listeners;
mod metrics;
mod opened;
mod privileges;
mod rate;
mod rewrite;
mod say;
#[cfg(test)]
#[path = "../../web/src/files/scratch.rs"]
mod scratch;
mod serve;
mod site;
mod sites;
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
        cli::Command::Check(file) => match config::load(&file, None) {
            Ok(config) => {
                let _ = writeln!(std::io::stdout(), "{}: ok ({})", file.display(), config.summary());
                return ExitCode::SUCCESS;
            }
            Err(report) => {
                eprintln!("{report}");
                return ExitCode::from(2);
            }
        },
        cli::Command::Sites(file) => match sites::run(&file) {
            Err(sites::Failure::Mistakes(report)) => {
                eprintln!("{report}");
                return ExitCode::from(2);
            }
            Err(sites::Failure::Start(why)) => Err(why),
            Ok(()) => Ok(()),
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("osier: {why}");
            ExitCode::from(2)
        }
    }
}
