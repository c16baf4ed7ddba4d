//! The commands of this repository: `cargo xtask {quick, test, ci, api, deny, tidy, package, release, sim, bench, upgrade}`.
//!
//! People and `.ci/run` use the same commands. A command is a list of steps (`step/`). A step says how many things it
//! checked and fails when it checked none. The program uses std alone: it builds in seconds on a machine that has only the
//! Rust toolchain.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod deny;
mod package;
mod peers;
mod quick;
mod release;
mod running;
mod sim;
mod step;
mod test;
mod tidy;
mod unchanged;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  quick [CRATE]    fmt, clippy and the tests of one crate; of all crates, the unit tests
  test [STEP]...   every test; installs the programs that tests talk to, and asks before it installs large ones
                   steps: peers tests portable valgrind miri loom docs mixing mixing-docs poll-backend corpus fuzz asan
                   bench instructions features api package targets; only if named: aarch64 aws-lc-rs
  ci               fmt, tidy, clippy, rustdoc and all of `test`
  api [--write]    compares the lists of the public API in docs/internal/api with the source, or writes them
  deny [notices]   licences, duplicate versions, bans and advisories of the dependencies: deny.toml
                   notices: prints the licence of every crate in the server, for packages
  tidy             the rules that no compiler checks: paths and names in documents, rooms, circles, islands, ...
  package [NAME]   the .deb, the static tarballs and SHA256SUMS, in target/dist
                   names: manual deb tarball-x86_64 tarball-aarch64
  release          whether this commit can be released, and the notes of that release: docs/internal/release.md
  sim [--seeds N] [--scenario NAME]
                   simulations of servers, gateways and an example, 10,000 seeds each unless N says so
                   names: server http2 pool proxy fastcgi pubsub chat upgrade acme counter
  bench [--all] [--rows PATTERN]... [--quick] [--against DIR]
                   this server and its rivals, in turn, on this machine; adds the run to bench/runs, and makes
                   bench/RESULTS.md of the last runs of each row
  bench results    makes bench/RESULTS.md anew
  bench instructions
                   counts the instructions of hot paths; writes bench/instructions.txt
  bench --builds   build times of hello on osier-web, axum, actix-web and may_minihttp, and of the server
  upgrade [--clear N] [--tls N] [--guests N] [--upgrades N] [--pause SECONDS] [--only NAME]
                   what clients notice while osier, nginx and HAProxy are upgraded under load";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        return usage();
    };
    // Every path below is relative to the root, whatever directory the reader stands in.
    std::env::set_current_dir(root()).expect("this program was built inside the repository it works on");
    match command.as_str() {
        "quick" => quick::main(rest),
        "test" => test::main(rest),
        "api" => test::api::main(rest),
        "ci" if rest.is_empty() => ci::main(),
        "deny" if rest.is_empty() => deny::main(),
        "deny" if rest == ["notices"] => deny::print_notices(),
        "package" => package::main(rest),
        "release" if rest.is_empty() => release::main(),
        "tidy" if rest.is_empty() => tidy::main(),
        "sim" => sim::main(rest),
        "bench" => bench::main(rest),
        "upgrade" => bench::upgrade::main(rest),
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
