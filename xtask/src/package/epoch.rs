//! The point in time that a package carries: `SOURCE_DATE_EPOCH`, else the time of the last commit.
//!
//! So packing the same files again makes an equal package.

use crate::step;
use std::process::Command;

/// Seconds since 1970.
pub fn seconds() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .and_then(|text| text.parse().ok());
    let committed = || {
        let text = step::output(Command::new("git").args(["log", "-1", "--format=%ct"]));
        text.trim().parse().ok()
    };
    given.or_else(committed).unwrap_or(0)
}

/// That time in UTC, in a format of date(1).
pub fn date(format: &str) -> String {
    let mut date = Command::new("date");
    date.args(["--utc", &format!("--date=@{}", seconds()), format]);
    step::output(date.env("LC_ALL", "C")).trim().to_string()
}
