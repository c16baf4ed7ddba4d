//! The package for Debian and Ubuntu.
//!
//! `dpkg-deb` packs a folder; `dpkg-shlibdeps` reads from the binary which libraries it needs, in which versions. The
//! scripts in `packaging/debian` call the helpers of init-system-helpers as debhelper's do.

use super::build::{dist, native};
use super::epoch;
use super::stage::Stage;
use crate::peers;
use crate::root;
use crate::step::{self, Outcome};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Counts packages of one version.
const REVISION: u32 = 1;

/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Builds the package.
pub fn package() -> Outcome {
    let start = Instant::now();
    let programs = [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev")];
    if let Some((program, package)) = programs.iter().find(|(program, _)| !peers::is_there(program)) {
        return Outcome::skipped("deb", format!("{program} is not installed (package {package})"));
    }
    let binary = match native("deb") {
        Ok(binary) => binary,
        Err(outcome) => return *outcome,
    };
    let outcome = |ok, count| Outcome::one_check("deb", ok, count, "files in the package", start.elapsed());
    match pack(&binary) {
        Ok((package, count)) => {
            step::say(&format!("made {}", package.display()));
            outcome(true, count)
        }
        Err(why) => Outcome {
            complaints: vec![why],
            ..outcome(false, 0)
        },
    }
}

/// Packs the binary. Returns the path of the package and the number of its files.
fn pack(binary: &Path) -> Result<(PathBuf, usize), String> {
    let stage = Stage::new("deb")?;
    stage.copy(binary, "usr/bin/osier", 0o755)?;
    for (from, to) in [
        ("packaging/site.toml", "etc/osier/site.toml"),
        ("packaging/debian/logrotate", "etc/logrotate.d/osier"),
        ("packaging/osier.service", "usr/lib/systemd/system/osier.service"),
        ("packaging/osier.socket", "usr/lib/systemd/system/osier.socket"),
        (
            "packaging/debian/lintian-overrides",
            "usr/share/lintian/overrides/osier",
        ),
    ] {
        stage.copy(from, to, 0o644)?;
    }
    stage.texts("usr/share", binary)?;
    stage.documents("usr/share")?;
    let version = format!("{}-{REVISION}", env!("CARGO_PKG_VERSION"));
    let maintainer = maintainer();
    let doc = "usr/share/doc/osier";
    stage.write(&format!("{doc}/copyright"), 0o644, copyright()?)?;
    stage.write_gz(&format!("{doc}/changelog.gz"), read("CHANGELOG.md")?)?;
    stage.write_gz(
        &format!("{doc}/changelog.Debian.gz"),
        format!(
            "osier ({version}) unstable; urgency=medium\n\n  * Package of osier {}.\n\n -- {maintainer}  {}\n",
            env!("CARGO_PKG_VERSION"),
            epoch::date("+%a, %d %b %Y %H:%M:%S +0000"),
        ),
    )?;
    let files = files(&stage.folder);
    let architecture = step::output(Command::new("dpkg").arg("--print-architecture"));
    let architecture = architecture.trim();
    let size: u64 = files
        .iter()
        .map(|file| {
            fs::metadata(stage.folder.join(file))
                .map_or(0, |data| data.len())
                .div_ceil(1024)
        })
        .sum();
    let control = format!(
        "Package: osier\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {maintainer}\nInstalled-Size: {size}\nDepends: \
         adduser, {}\nRecommends: logrotate\nProvides: httpd\nSection: httpd\nPriority: optional\n{DESCRIPTION}",
        libraries(&stage)?
    );
    stage.write("DEBIAN/control", 0o644, control)?;
    let conffiles = files.iter().filter(|file| file.starts_with("etc/"));
    let conffiles: String = conffiles.map(|file| format!("/{file}\n")).collect();
    stage.write("DEBIAN/conffiles", 0o644, conffiles)?;
    stage.write("DEBIAN/md5sums", 0o644, sums(&stage.folder, &files)?)?;
    for script in SCRIPTS {
        stage.copy(format!("packaging/debian/{script}"), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let package = dist().join(format!("osier_{version}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["-Zxz", "--root-owner-group", "--build"])
        .arg(&stage.folder)
        .arg(&package);
    pack.env("SOURCE_DATE_EPOCH", epoch::seconds().to_string());
    match step::run(&mut pack, Duration::from_secs(600), |_| true) {
        true => Ok((package, files.len())),
        false => Err("dpkg-deb failed".into()),
    }
}

const DESCRIPTION: &str = "\
Description: coroutine web server for folders, sites, proxies and FastCGI
 Osier serves folders, sites from one configuration file, reverse proxies and
 FastCGI applications such as PHP. It is one small, strict, memory-safe
 program that runs one event loop per core.
 .
 After installation it serves its built-in site, with all its documents, on
 http://127.0.0.1:8080. /etc/osier/site.toml says what it serves.
";

/// The field Maintainer: `DEBFULLNAME` and `DEBEMAIL`, as for Debian's own tools.
fn maintainer() -> String {
    let name = std::env::var("DEBFULLNAME").unwrap_or_else(|_| "The Osier developers".into());
    let address = std::env::var("DEBEMAIL").unwrap_or_else(|_| "osier@packages.invalid".into());
    format!("{name} <{address}>")
}

/// The libraries that the binary needs, as the field Depends has them.
fn libraries(stage: &Stage) -> Result<String, String> {
    // dpkg-shlibdeps wants the folder of a source package around it.
    let source = dist().join("stage/source");
    let failed = |error| format!("{}: {error}", source.display());
    fs::create_dir_all(source.join("debian")).map_err(failed)?;
    fs::write(
        source.join("debian/control"),
        "Source: osier\n\nPackage: osier\nArchitecture: any\n",
    )
    .map_err(failed)?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.arg("-O").arg("-e").arg(stage.folder.join("usr/bin/osier"));
    let said = step::output(command.current_dir(&source));
    let depends = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends
        .filter(|depends| depends.contains("libc6 (>= "))
        .map(str::to_string)
        .ok_or_else(|| format!("dpkg-shlibdeps names no C library: {said:?}"))
}

/// The licence of the project, and a pointer to those of the crates.
fn copyright() -> Result<String, String> {
    let mit = read("LICENSE-MIT")?;
    let (notice, terms) = mit
        .split_once("\n\nPermission")
        .ok_or("LICENSE-MIT has no permission")?;
    let holder = notice
        .lines()
        .last()
        .unwrap_or_default()
        .trim_start_matches("Copyright (c) ");
    let indented: String = format!("Permission{terms}")
        .lines()
        .map(|line| {
            if line.is_empty() {
                " .\n".into()
            } else {
                format!(" {line}\n")
            }
        })
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: osier\nComment: The program \
         contains crates of other authors.\n /usr/share/doc/osier/third-party.txt.gz has their licences.\n\nFiles: *\nCopyright: \
         {holder}\nLicense: MIT or Apache-2.0\n\nLicense: MIT\n{indented}\nLicense: Apache-2.0\n On Debian systems, the text of \
         this licence is in\n /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// The files below a folder, relative to it, in order.
fn files(folder: &Path) -> Vec<String> {
    let (mut found, mut folders) = (vec![], vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => found.extend(
                    entry
                        .path()
                        .strip_prefix(folder)
                        .ok()
                        .and_then(Path::to_str)
                        .map(str::to_string),
                ),
            }
        }
    }
    found.sort();
    found
}

/// The control file `md5sums`.
fn sums(folder: &Path, files: &[String]) -> Result<String, String> {
    let sums = step::output(Command::new("md5sum").args(files).current_dir(folder));
    match sums.lines().count() == files.len() {
        true => Ok(sums),
        false => Err("md5sum failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_the_scripts() {
        for script in SCRIPTS {
            let path = root().join("packaging/debian").join(script);
            let output = Command::new("sh").arg("-n").arg(path).output().unwrap();
            assert!(output.status.success(), "{script}: {output:?}");
        }
    }
}
