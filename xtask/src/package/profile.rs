//! Profile-guided optimisation: the server is built with counters, runs under load (`training.rs`), and is built again.
//!
//! The compiler then knows which code is hot. It puts that code together, apart from the code that handles what is rare, and a request
//! touches fewer lines and pages of the program. docs/internal/speed.md has the figures.
//!
//! The profile of a target is only good for that target, so a package is optimised where its binary runs on the machine that builds it.

use super::training;
use crate::peers;
use crate::step;
use crate::test::host;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options of rustc for a build with counters, and for one that uses what they have counted.
pub enum Build {
    Counting,
    Guided(PathBuf),
}

impl Build {
    pub fn option(&self) -> String {
        match self {
            // Where the counts go is told at run time.
            Build::Counting => "-Cprofile-generate".into(),
            Build::Guided(profile) => format!("-Cprofile-use={}", profile.display()),
        }
    }
}

/// The profile of the server that counts, made in `folder`, once for each binary and each load. Without the programs that make it there is
/// none, and a line says why.
///
/// # Errors
/// One line that says what failed.
pub fn of(step: &str, binary: &Path, folder: &Path) -> Result<Option<PathBuf>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    // cargo builds again when an option changes, and does not look into the file that an option names.
    let built = fs::metadata(binary).and_then(|metadata| metadata.modified());
    let built = built.map_err(|error| format!("{}: {error}", binary.display()))?;
    let mut hasher = DefaultHasher::new();
    (built, include_str!("training.rs")).hash(&mut hasher);
    let profile = folder.join(format!("{:016x}.profdata", hasher.finish()));
    if profile.exists() {
        return Ok(Some(profile));
    }
    let merger = match needed() {
        Ok(merger) => merger,
        Err(why) => {
            step::say(&format!("{step}: {why}"));
            return Ok(None);
        }
    };
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed)?;
    }
    fs::create_dir_all(folder).map_err(failed)?;
    training::train(binary, folder)?;
    let counts = fs::read_dir(folder).map_err(failed)?.flatten();
    let counts = counts
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "profraw"));
    let mut merging = Command::new(merger);
    merging
        .args(["merge", "--sparse", "--output"])
        .arg(&profile)
        .args(counts);
    match step::succeeds(&mut merging) {
        true => Ok(Some(profile)),
        false => Err(format!("{}: failed", step::shown(&merging))),
    }
}

/// Installs the programs that make a profile, and returns the one that makes it of all counts.
///
/// # Errors
/// One line that says why there can be no profile.
pub fn needed() -> Result<PathBuf, String> {
    let without = |why| format!("the server has no profile: {why}");
    if let Some(missing) = peers::install(peers::FOR_PACKAGES).into_iter().next() {
        return Err(without(missing));
    }
    merger().ok_or_else(|| without("llvm-profdata: not installed (rustup component add llvm-tools)".into()))
}

/// The program of the toolchain that makes one profile of all counts.
fn merger() -> Option<PathBuf> {
    let sysroot = step::output(Command::new("rustc").args(["--print", "sysroot"]));
    let program = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(host())
        .join("bin/llvm-profdata");
    if !program.exists() {
        step::succeeds(Command::new("rustup").args(["component", "add", "llvm-tools"]));
    }
    program.exists().then_some(program)
}
