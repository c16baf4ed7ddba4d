//! The commands of this repository: `cargo xtask {test, ci, bench, tidy}`.
//!
//! Called by people and by `.ci/run`, the same way. One file per command; each is a list of steps (`step.rs`), and a
//! step says how many things it checked and fails when that is zero. Uses std alone, so that it builds in seconds on a
//! machine that has nothing but the Rust toolchain.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod peers;
mod step;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [STEP]...   every test there is; installs the programs the tests talk to, where it may
                   steps: peers tests docs portable poll-backend freebsd bench mixing loom miri valgrind fuzz
  ci               fmt, clippy, rustdoc, tidy and all of `test`
  tidy             what no compiler checks: paths in documents, headers, islands, sorted dependencies
  bench [--all] [--rows PATTERN] [--quick] [--against DIR]
                   this server and its rivals, in turn, on this machine; writes bench/RESULTS.md;
                   with --against, another checkout of this repository is the only rival";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        return usage();
    };
    // Every path below is relative to the root, whatever directory the reader stands in.
    std::env::set_current_dir(root()).expect("this program was built inside the repository it works on");
    match command.as_str() {
        "test" => test::main(rest),
        "ci" if rest.is_empty() => ci::main(),
        "tidy" if rest.is_empty() => tidy::main(),
        "bench" => bench::main(rest),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// The repository's root: the parent of this crate.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask/ lies in the root of the repository")
}
