//! A folder that becomes a package: files with their permissions, put there one by one.
//!
//! Owners, times and the order of entries are the archiver's to settle: it gets the same ones on every machine.

use super::build::dist;
use super::texts::{self, Text};
use crate::deny;
use crate::root;
use crate::step::succeeds;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Stage {
    pub folder: PathBuf,
}

impl Stage {
    /// Makes an empty folder below the one of the packages.
    ///
    /// # Errors
    /// One line, as for every method.
    pub fn new(name: &str) -> Result<Stage, String> {
        let folder = dist().join("stage").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let stage = Stage { folder };
        stage.folder("")?;
        Ok(stage)
    }

    /// Makes a folder and those above it, readable for everybody.
    fn folder(&self, place: &str) -> Result<(), String> {
        let mut folder = self.folder.clone();
        let failed = |folder: &Path, error| format!("{}: {error}", folder.display());
        for part in [Path::new("")]
            .into_iter()
            .chain(Path::new(place).iter().map(Path::new))
        {
            folder.push(part);
            fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
            fs::set_permissions(&folder, Permissions::from_mode(0o755)).map_err(|error| failed(&folder, error))?;
        }
        Ok(())
    }

    /// Writes a file.
    pub fn write(&self, place: &str, mode: u32, content: impl AsRef<[u8]>) -> Result<(), String> {
        let parent = Path::new(place).parent().and_then(Path::to_str).unwrap_or_default();
        self.folder(parent)?;
        let path = self.folder.join(place);
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Copies a file of the repository, or a built one.
    pub fn copy(&self, from: impl AsRef<Path>, place: &str, mode: u32) -> Result<(), String> {
        let from = root().join(from);
        let content = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
        self.write(place, mode, content)
    }

    /// Writes a file compressed, with neither name nor time in it.
    pub fn write_gz(&self, place: &str, content: impl AsRef<[u8]>) -> Result<(), String> {
        let plain = place.strip_suffix(".gz").expect("the name of a compressed file");
        self.write(plain, 0o644, content)?;
        let path = self.folder.join(plain);
        match succeeds(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&path)) {
            true => Ok(()),
            false => Err(format!("gzip failed at {}", path.display())),
        }
    }

    /// Writes the manual pages and completions below `share`, as the help text of `binary` has them.
    pub fn texts(&self, share: &str, binary: &Path) -> Result<(), String> {
        for Text { place, text } in texts::make(binary)? {
            match place.starts_with("man/") {
                true => self.write_gz(&format!("{share}/{place}.gz"), text)?,
                false => self.write(&format!("{share}/{place}"), 0o644, text)?,
            }
        }
        Ok(())
    }

    /// Writes the documents below `share/doc/osier`.
    pub fn documents(&self, share: &str) -> Result<(), String> {
        let doc = format!("{share}/doc/osier");
        for (name, place) in [
            ("README.md", "README.md"),
            ("docs/configuration.md", "configuration.md"),
            ("docs/rewrite.md", "rewrite.md"),
            ("docs/install.md", "install.md"),
            ("docs/metrics.md", "metrics.md"),
            ("docs/grafana/osier.json", "grafana/osier.json"),
            ("docs/grafana/alerts.yml", "grafana/alerts.yml"),
            ("examples/site.toml", "examples/site.toml"),
        ] {
            self.copy(name, &format!("{doc}/{place}"), 0o644)?;
        }
        self.write_gz(&format!("{doc}/third-party.txt.gz"), deny::notices()?)
    }
}
