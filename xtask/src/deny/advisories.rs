//! Advisories: cargo-deny and cargo-audit, where they are installed and have their database.

use crate::step::{self, cargo, say, succeeds};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A copy of the database for cargo-audit, where nothing may be fetched.
const DATABASE: &str = "OSIER_ADVISORY_DB";

/// Runs both programs. Each says whether it is content, or why it did not run.
pub fn check() -> [(&'static str, Result<bool, String>); 2] {
    [("cargo-deny", deny()), ("cargo-audit", audit())].map(|(name, result)| {
        if let Err(why) = &result {
            say(&format!("skipped: {name}: {why}"));
        }
        (name, result)
    })
}

fn deny() -> Result<bool, String> {
    if !succeeds(cargo().args(["deny", "--version"])) {
        return Err("not installed (cargo install --locked cargo-deny)".into());
    }
    if !succeeds(cargo().args(["deny", "fetch", "db"])) {
        return Err("its database of advisories cannot be had".into());
    }
    let mut check = cargo();
    check.args(["deny", "--locked", "--offline", "--all-features", "check"]);
    // Some skips are for crates of tests and of other systems, which Cargo.lock has and cargo-deny does not look at.
    check.args(["--allow", "unmatched-skip"]);
    Ok(step::run(&mut check, LIMIT, |_| true))
}

fn audit() -> Result<bool, String> {
    if !succeeds(cargo().args(["audit", "--version"])) {
        return Err("not installed (cargo install --locked cargo-audit)".into());
    }
    let mut check = cargo();
    check.arg("audit");
    if let Some(database) = std::env::var_os(DATABASE) {
        check.args(["--no-fetch", "--stale", "--db"]).arg(database);
    }
    let mut is_loaded = false;
    let ok = step::run(&mut check, LIMIT, |line| {
        is_loaded |= line.contains("security advisories");
        true
    });
    match is_loaded {
        true => Ok(ok),
        false => Err("its database of advisories cannot be had".into()),
    }
}
