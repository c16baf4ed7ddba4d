//! The `osier` web server. It serves the sites of a configuration file, a folder of files, or a built-in welcome site.
//!
//! # Layout
//!
//! `config` reads the command line, and reads and checks a configuration file with the help of `reader`. `handler`
//! defines what a route can do. `run` opens everything, serves, reloads, upgrades and shuts down. `site` finds the
//! site, the route and the handler of a request. `policy` holds the checks and changes around a handler. `welcome` is
//! the built-in site. `certificates` obtains, keeps and serves certificates. `log` holds the access log and the lines
//! for the operator. `metrics` holds the counters, and shows the counters of a running server in a terminal. `process`
//! covers the PID file, systemd, the root folder and privileges.
#![forbid(unsafe_code)]

mod certificates;
mod config;
mod handler;
mod log;
mod metrics;
mod policy;
mod process;
mod reader;
mod run;
mod site;
mod welcome;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::certificates::{state, trust};
use crate::config::cli;
use crate::config::origin::Origin;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(cli::Exit { text, status: 0 }) => {
            // The reader of the pipe may be gone: `osier --help | head -1` is no error.
            let _ = writeln!(std::io::stdout(), "{text}");
            return ExitCode::SUCCESS;
        }
        Err(cli::Exit { text, status }) => {
            say(format_args!("{text}"));
            return ExitCode::from(status);
        }
    };
    let (file, strict) = match command {
        cli::Command::Serve(origin) => return serve(origin),
        cli::Command::Trust(file) => return trust(file),
        cli::Command::Upgrade(of) => return upgrade(&of),
        cli::Command::Top { address, once } => return top(&address, once),
        cli::Command::Check { file, strict } => (file, strict),
    };
    if file.is_dir() {
        let folder = file.display();
        say(format_args!(
            "osier: {folder} is a folder; check takes a configuration file; see osier --help"
        ));
        return ExitCode::from(2);
    }
    match config::load(&file, None) {
        Ok(config::Loaded { mut config, warnings }) => {
            if let Some(warnings) = &warnings {
                say(format_args!("{warnings}"));
            }
            let mut found = run::unreadable_to_user(&mut config, &file);
            found.extend(config::htaccess::served(&config));
            for text in &found {
                say(format_args!("{}: warning: {text}", file.display()));
            }
            if strict && (warnings.is_some() || !found.is_empty()) {
                return ExitCode::from(2);
            }
            let _ = writeln!(std::io::stdout(), "{}: ok ({})", file.display(), config.summary());
            ExitCode::SUCCESS
        }
        Err(report) => {
            say(format_args!("{report}"));
            ExitCode::from(2)
        }
    }
}

/// Writes a line to standard error. Goes on without it if the reader of the pipe is gone.
fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints where the internal authority's root certificate is.
fn trust(file: Option<PathBuf>) -> ExitCode {
    let configured = match file.map(|file| config::load(&file, None)).transpose() {
        Ok(loaded) => loaded.and_then(|loaded| loaded.config.state),
        Err(report) => {
            say(format_args!("{report}"));
            return ExitCode::from(2);
        }
    };
    let state = configured.or_else(state::default_folder);
    let text = state.ok_or_else(|| "there is no state folder: HOME is not set".to_owned());
    match text.and_then(|state| trust::text(&state)) {
        Ok(text) => {
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            say(format_args!("osier: {why}"));
            ExitCode::from(2)
        }
    }
}

/// Shows what a running server does.
fn top(address: &str, once: bool) -> ExitCode {
    match metrics::top::run(address, once) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(format_args!("osier: {why}"));
            ExitCode::from(2)
        }
    }
}

/// Makes a running server hand over to a new process.
fn upgrade(of: &Path) -> ExitCode {
    match run::ask::upgrade(of) {
        Ok(text) => {
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(run::Failure::Mistakes(report)) => {
            say(format_args!("{report}"));
            ExitCode::from(2)
        }
        Err(run::Failure::Start(why)) => {
            say(format_args!("osier: {why}"));
            ExitCode::from(2)
        }
    }
}

fn serve(origin: Origin) -> ExitCode {
    match run::run(origin) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(run::Failure::Mistakes(report)) => say(format_args!("{report}")),
        Err(run::Failure::Start(why)) => say(format_args!("osier: {why}")),
    }
    ExitCode::from(2)
}
