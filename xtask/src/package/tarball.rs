//! The tarballs of static binaries, for any Linux: unpacked below `/usr/local`, everything is in its place.

use super::build::{self, System, dist};
use super::epoch;
use super::stage::Stage;
use crate::root;
use crate::step::{self, Outcome};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Builds the tarball for a system. The step is `tarball-` and the processor.
pub fn package(system: &System) -> Outcome {
    let start = Instant::now();
    let step = format!("tarball-{}", system.processor);
    let binary = match build::fixed(&step, system) {
        Ok(binary) => binary,
        Err(outcome) => return *outcome,
    };
    // The help text comes from a binary that runs here.
    let speaker = if system.runs_here() {
        Ok(binary.clone())
    } else {
        build::speaker(&step)
    };
    let speaker = match speaker {
        Ok(speaker) => speaker,
        Err(outcome) => return *outcome,
    };
    let outcome = |ok, count| Outcome::one_check(&step, ok, count, "files in the tarball", start.elapsed());
    match pack(system, &binary, &speaker) {
        Ok((tarball, count)) => {
            step::say(&format!("made {}", tarball.display()));
            outcome(true, count)
        }
        Err(why) => Outcome {
            complaints: vec![why],
            ..outcome(false, 0)
        },
    }
}

/// Lines of the service that only Debian's systems understand: others have no such group.
const DEBIANS: &str = "# The group of the sockets of php-fpm.\nSupplementaryGroups=www-data\n";

fn pack(system: &System, binary: &Path, speaker: &Path) -> Result<(PathBuf, usize), String> {
    let name = format!("osier-{}-{}-linux-musl", env!("CARGO_PKG_VERSION"), system.processor);
    let stage = Stage::new(&name)?;
    stage.copy(binary, "bin/osier", 0o755)?;
    stage.texts("share", speaker)?;
    stage.documents("share")?;
    stage.copy("packaging/site.toml", "share/doc/osier/site.toml", 0o644)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        stage.copy(licence, &format!("share/doc/osier/{licence}"), 0o644)?;
    }
    for unit in ["osier.service", "osier.socket"] {
        let path = root().join("packaging").join(unit);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = text
            .replace("/usr/bin/osier", "/usr/local/bin/osier")
            .replace(DEBIANS, "");
        stage.write(&format!("lib/systemd/system/{unit}"), 0o644, text)?;
    }
    let tarball = dist().join(format!("{name}.tar.gz"));
    let folder = stage.folder.parent().expect("a stage has a parent");
    let time = format!("--mtime=@{}", epoch::seconds());
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--format=gnu",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        &time,
    ]);
    tar.args(["--use-compress-program=gzip -9 -n", "--verbose", "--file"])
        .arg(&tarball);
    tar.arg("--directory").arg(folder).arg(&name);
    let mut count = 0;
    let ok = step::run(&mut tar, Duration::from_secs(600), |line| {
        count += usize::from(!line.ends_with('/'));
        false
    });
    match ok {
        true => Ok((tarball, count)),
        false => Err("tar failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_what_is_taken_out() {
        let service = fs::read_to_string(root().join("packaging/osier.service")).unwrap();
        assert!(service.contains(DEBIANS) && service.contains("/usr/bin/osier"));
    }
}
