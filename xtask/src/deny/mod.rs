//! `cargo xtask deny`: what may be among the dependencies.
//!
//! The rules stand in `deny.toml`, which cargo-deny reads, too. Sources, bans and duplicate versions are checked from
//! `Cargo.lock`, licences from what cargo knows of each crate: that needs no program and no network. cargo-deny and
//! cargo-audit add advisories, where they are installed and their database can be had; else they are skips.

mod advisories;
mod licences;
mod lock;
mod notices;
mod rules;

pub use notices::notices;

use crate::step::{self, Outcome};
use rules::Rules;
use std::process::ExitCode;
use std::time::Instant;

pub fn main() -> ExitCode {
    let start = Instant::now();
    step::report(&[run()], start.elapsed())
}

/// Prints the licences of the crates in the server.
pub fn print_notices() -> ExitCode {
    match notices() {
        Ok(text) => print!("{text}"),
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// All rules as one step.
pub fn run() -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome {
        name: "deny".into(),
        ..Outcome::default()
    };
    let rules = Rules::read();
    let mut count = 0;
    let own: [(&str, Check); 4] = [
        ("sources", lock::sources),
        ("bans", lock::bans),
        ("duplicates", lock::duplicates),
        ("licences", licences::check),
    ];
    step::say("\ndeny");
    for (name, check) in own {
        let Verdict { looked_at, wrong } = check(&rules);
        step::say(&format!("  {name}: {looked_at} crates, {} wrong", wrong.len()));
        wrong.iter().for_each(|finding| step::say(&format!("    {finding}")));
        let failed = looked_at == 0 || !wrong.is_empty();
        outcome.failed += usize::from(failed);
        outcome.passed += usize::from(!failed);
        if looked_at == 0 {
            outcome
                .complaints
                .push(format!("{name}: looked at no crate, which is a failure"));
        }
        outcome.complaints.extend(wrong);
        count = count.max(looked_at);
    }
    for (name, result) in advisories::check() {
        match result {
            Ok(true) => outcome.passed += 1,
            Ok(false) => {
                outcome.failed += 1;
                outcome.complaints.push(format!("{name}: see its output above"));
            }
            Err(why) => outcome.skipped.push(format!("{name}: {why}")),
        }
    }
    outcome.checked = format!("{count} crates by {} rules", own.len());
    outcome.took = start.elapsed();
    outcome
}

type Check = fn(&Rules) -> Verdict;

/// The result of a rule.
pub struct Verdict {
    looked_at: usize,
    /// One line for each finding.
    wrong: Vec<String>,
}
