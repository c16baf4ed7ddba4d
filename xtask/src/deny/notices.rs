//! The licences of the crates in the server's binary, with their texts, for a package to carry.

use super::licences::{Crate, crates};
use std::fs;
use std::path::{Path, PathBuf};

/// One chapter for each crate: its name, its licence, and the files that say so.
///
/// # Errors
/// One line, when cargo lists no crate, or a crate's folder is missing.
pub fn notices() -> Result<String, String> {
    notices_of(crates(&["--package", "osier-server"]))
}

fn notices_of(crates: Vec<Crate>) -> Result<String, String> {
    if crates.is_empty() {
        return Err("cargo tree lists no crate of osier-server".into());
    }
    let mut text =
        String::from("The program osier contains these crates. The licence of each stands below its name.\n");
    for Crate { name, version, licence } in crates {
        if name.starts_with("osier") {
            continue;
        }
        let folder =
            source(&name, &version).ok_or_else(|| format!("no folder of {name} {version}: run cargo fetch"))?;
        text += &format!("\n{}\n{name} {version}: {licence}\n", "=".repeat(72));
        for file in licence_files(&folder) {
            let content = fs::read(&file).unwrap_or_default();
            text += &format!("\n{}\n", String::from_utf8_lossy(&content).trim());
        }
    }
    Ok(text)
}

/// Where cargo has unpacked a crate of the registry.
fn source(name: &str, version: &str) -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let folders = registries.map(|registry| registry.path().join(format!("{name}-{version}")));
    folders.into_iter().find(|folder| folder.is_dir())
}

/// The files of a crate that hold its licence, in order.
fn licence_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let begins = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        path.is_file() && begins.iter().any(|begin| name.starts_with(begin))
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_licence).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_no_crates_is_a_failure() {
        assert!(notices_of(vec![]).unwrap_err().contains("cargo tree"));
    }
}
