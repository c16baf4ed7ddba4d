//! The web server called osier: the sites of a configuration file, a folder of files, or a page that says how.
//!
//! # Layout
//!
//! `cli` reads the command line. `config` reads and checks a configuration file. `run` opens what is to be served, serves, reloads and
//! ends. `site` finds the site, the route and the handler of a request, with each `policy` around the handler. `welcome` is the built-in
//! site. `log` holds the access log and the operator's lines, `metrics` the counters, `process` what the system hands over and what the
//! process gives up.
#![forbid(unsafe_code)]

mod cli;
mod config;
mod log;
mod metrics;
mod policy;
mod process;
mod run;
#[cfg(test)]
#[path = "../../web/src/files/scratch.rs"]
mod scratch;
mod site;
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
        cli::Command::Folder(settings) => run::folder::run(settings),
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
        cli::Command::Sites(file) => match run::sites::run(&file) {
            Err(run::sites::Failure::Mistakes(report)) => {
                eprintln!("{report}");
                return ExitCode::from(2);
            }
            Err(run::sites::Failure::Start(why)) => Err(why),
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
