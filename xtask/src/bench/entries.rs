//! Entries of HttpArena, a public benchmark, built from a checkout of its repository. Nothing of it is part of this one.
//!
//! The checkout stands in the folder of the bench: `git clone --depth 1 https://github.com/MDA2AV/HttpArena target/bench/HttpArena`.
//! Without it the bench has no rows of the arena. An entry expects its files in `/data` and `/certs`; in the copy that is built, they are
//! folders of the checkout. An entry listens on fixed ports.

use crate::{step, test};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The port of an entry for HTTP/1.1 in the clear.
pub const HTTP: u16 = 8080;

/// The port of an entry for HTTP/2 over TLS.
pub const H2: u16 = 8443;

/// The folder of the checkout, if there is one.
pub fn checkout() -> Option<PathBuf> {
    let folder = test::bench_target_dir().join("HttpArena");
    folder.join("data/dataset.json").exists().then_some(folder)
}

/// The binary of the entry in Rust that has this name. The first call builds it.
pub fn built(name: &str) -> Result<PathBuf, String> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("building does not panic");
    built.entry(name.into()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> Result<PathBuf, String> {
    let checkout = checkout().ok_or("there is no checkout of HttpArena")?;
    let target = test::bench_target_dir().join("arena");
    let sources = target.join("sources").join(name);
    copy(&checkout.join("frameworks").join(name), &sources, &checkout)?;
    let mut command = step::cargo();
    command.args(["build", "--release", "--manifest-path"]);
    command.arg(sources.join("Cargo.toml")).env("CARGO_TARGET_DIR", &target);
    match step::run(&mut command, Duration::from_secs(30 * 60), |_| true) {
        true => Ok(target.join("release").join(format!("httparena-{name}"))),
        false => Err(format!("the entry {name} did not build")),
    }
}

/// Copies the texts of a folder. A text that is the same already is left alone, so that cargo builds what has changed.
fn copy(from: &Path, to: &Path, checkout: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    std::fs::create_dir_all(to).map_err(failed)?;
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &place, checkout)?;
            continue;
        }
        let text = here(&std::fs::read_to_string(&path).map_err(failed)?, &path, checkout);
        if std::fs::read_to_string(&place).ok().as_ref() != Some(&text) {
            std::fs::write(&place, text).map_err(failed)?;
        }
    }
    Ok(())
}

/// A text with the folders of the checkout in place of those of a container. A manifest is no part of the workspace around it.
fn here(text: &str, path: &Path, checkout: &Path) -> String {
    let mut text = text.to_string();
    for folder in ["data", "certs"] {
        let place = format!("\"{}/{folder}/", checkout.display());
        text = text.replace(&format!("\"/{folder}/"), &place);
    }
    if path.ends_with("Cargo.toml") && !text.contains("[workspace]") {
        text += "\n[workspace]\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_manifests_are_put_here() {
        let here = |text, name| here(text, Path::new(name), Path::new("/there"));
        assert_eq!(
            here("open(\"/data/static/a\")", "src/main.rs"),
            "open(\"/there/data/static/a\")"
        );
        assert_eq!(
            here("\"/certs/server.crt\" /data/", "main.rs"),
            "\"/there/certs/server.crt\" /data/"
        );
        assert_eq!(here("[package]\n", "actix/Cargo.toml"), "[package]\n\n[workspace]\n");
    }
}
