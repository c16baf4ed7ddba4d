//! Builds the server for a package: the release profile, optimised for what it does most (`profile.rs`), without a path of this
//! machine in the binary.

use super::profile::{self, Build};
use crate::step::{self, Outcome, cargo};
use crate::test::{host, target_dir};
use crate::{peers, root};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Far beyond a build of everything with link-time optimisation on two busy cores.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Where the packages and their builds lie.
pub fn dist() -> PathBuf {
    target_dir().join("dist")
}

/// A system that a tarball is for.
pub struct System {
    /// The target of rustc.
    pub target: &'static str,
    /// The processor, as uname(1) names it.
    pub processor: &'static str,
    /// C compilers for it, the best first. zstd and aws-lc-rs are C, and nothing else.
    compilers: &'static [&'static str],
}

/// The systems of the tarballs. With musl the binary is static.
pub const SYSTEMS: &[System] = &[
    System {
        target: "x86_64-unknown-linux-musl",
        processor: "x86_64",
        compilers: &["x86_64-linux-musl-gcc", "musl-gcc", "cc"],
    },
    System {
        target: "aarch64-unknown-linux-musl",
        processor: "aarch64",
        compilers: &["aarch64-linux-musl-gcc", "aarch64-linux-gnu-gcc"],
    },
];

impl System {
    /// Whether its servers run on this machine.
    pub fn runs_here(&self) -> bool {
        host().starts_with(self.processor)
    }
}

/// Builds the server for this machine.
///
/// # Errors
/// The outcome of a step that cannot go on.
pub fn native(step: &str) -> Result<PathBuf, Box<Outcome>> {
    optimised(step, &host(), true, |_| {})
}

/// Builds a static server.
///
/// # Errors
/// The outcome of a step that cannot go on: skipped where the target or its C compiler is missing.
pub fn fixed(step: &str, system: &System) -> Result<PathBuf, Box<Outcome>> {
    let target = system.target;
    let skipped = |why: String| Err(Box::new(Outcome::skipped(step, why)));
    if !step::succeeds(Command::new("rustup").args(["target", "add", target])) {
        return skipped(format!("rustup cannot install {target}"));
    }
    let is_native = system.runs_here();
    let mut compilers = system.compilers.iter().filter(|name| is_native || **name != "cc");
    let Some(compiler) = compilers.find(|name| peers::is_there(name)) else {
        return skipped(format!(
            "no C compiler for {target}: one of {}",
            system.compilers.join(", ")
        ));
    };
    let variable = target.replace('-', "_");
    optimised(step, target, is_native, |build| {
        build.env(format!("CC_{variable}"), compiler);
        // The target brings the C library with it; the linker of another processor only has to know the instructions.
        if !is_native {
            build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), compiler);
        }
    })
}

/// Builds the server, and twice where it runs here: the first one counts.
fn optimised(
    step: &str,
    target: &str,
    runs_here: bool,
    prepare: impl Fn(&mut Command),
) -> Result<PathBuf, Box<Outcome>> {
    let built = |folder: &str, kind: Option<&Build>| {
        let folder = dist().join(folder);
        let mut build = command(&folder, target, kind);
        prepare(&mut build);
        finish(step, &mut build, folder.join(target).join("release/osier"))
    };
    if !runs_here {
        return built("build", None);
    }
    let counting = built("counting", Some(&Build::Counting))?;
    match profile::of(step, &counting, &dist().join("training").join(target)) {
        Ok(profile) => built("build", profile.map(Build::Guided).as_ref()),
        Err(why) => Err(Box::new(Outcome {
            complaints: vec![why],
            ..Outcome::one_check(step, false, 0, "files", Duration::ZERO)
        })),
    }
}

/// Builds a server whose help text can be read here: quickly, with the profile of the tests.
///
/// # Errors
/// The outcome of a step that cannot go on.
pub fn speaker(step: &str) -> Result<PathBuf, Box<Outcome>> {
    let mut build = cargo();
    build.args([
        "build",
        "--locked",
        "--package",
        "osier-server",
        "--no-default-features",
    ]);
    finish(step, &mut build, target_dir().join("debug/osier"))
}

fn command(folder: &Path, target: &str, kind: Option<&Build>) -> Command {
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--package", "osier-server"]);
    // With a target, the options are not for build scripts.
    command.args(["--target", target]).arg("--target-dir").arg(folder);
    let options = remaps().into_iter().chain(kind.map(Build::option));
    command.env("CARGO_ENCODED_RUSTFLAGS", options.collect::<Vec<_>>().join("\x1f"));
    command
}

/// The options by which debug information and panics name paths that are the same on every machine.
fn remaps() -> Vec<String> {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cargo_home = home("CARGO_HOME").or_else(|| Some(home("HOME")?.join(".cargo")));
    let pairs = [
        (cargo_home, "/usr/src/cargo"),
        (Some(root().to_path_buf()), "/usr/src/osier"),
    ];
    let found = pairs.into_iter().filter_map(|(from, to)| Some((from?, to)));
    found
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect()
}

fn finish(step: &str, command: &mut Command, binary: PathBuf) -> Result<PathBuf, Box<Outcome>> {
    if step::run(command, LIMIT, |_| true) {
        return Ok(binary);
    }
    let outcome = Outcome::one_check(step, false, 0, "files", Duration::ZERO);
    Err(Box::new(outcome))
}
