//! `cargo xtask bench`: comes with the programs of `bench/`; until then it only sees to the programs it will need.

use crate::peers;
use std::process::ExitCode;

pub fn main(_args: &[String]) -> ExitCode {
    for why in peers::install(peers::FOR_BENCH) {
        println!("skipped: {why}");
    }
    eprintln!("there is no bench yet");
    ExitCode::FAILURE
}
