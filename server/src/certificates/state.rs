//! The state folder: data that the server keeps between runs. Only the server's user can read it.
//!
//! The functions use `osier::fs`: they suspend a fiber while the disk is busy, and block any other thread.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use osier::fs::{self, DirBuilder, File, OpenOptions};

/// The folder of a service that root starts.
const OF_ROOT: &str = "/var/lib/osier";

/// The state folder where none is configured. None for a user without a home.
pub fn default_folder() -> Option<PathBuf> {
    choose(variable, rustix::process::geteuid().is_root())
}

/// The state folder of a server that root starts, where none is configured.
pub fn default_of_root() -> Option<PathBuf> {
    choose(variable, true)
}

/// An absolute path in a variable of the environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| value.starts_with('/'))
}

fn choose(variable: impl Fn(&str) -> Option<String>, is_root: bool) -> Option<PathBuf> {
    // systemd separates several folders by colons.
    let of_service = variable("STATE_DIRECTORY");
    if let Some(first) = of_service.as_deref().and_then(|folders| folders.split(':').next()) {
        return Some(first.into());
    }
    if is_root {
        return Some(OF_ROOT.into());
    }
    let of_user = variable("XDG_DATA_HOME").map(PathBuf::from);
    let of_user = of_user.or_else(|| Some(Path::new(&variable("HOME")?).join(".local/share")));
    of_user.map(|folder| folder.join("osier"))
}

/// Makes a folder that only its owner may enter, and the folders above it.
///
/// # Suspends
/// While the disk is busy.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file that only its owner may read. The file is there whole or not at all, also after a crash.
///
/// # Suspends
/// While the disk is busy.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = write_aside(path, content)?;
    let renamed = fs::rename(&temporary, path);
    clean_up(&temporary, renamed)?;
    sync_folder(path);
    Ok(())
}

/// Writes a file as [`write`] does, unless there is one already. Returns whether it has written.
///
/// # Suspends
/// While the disk is busy.
pub fn write_new(path: &Path, content: &[u8]) -> io::Result<bool> {
    let temporary = write_aside(path, content)?;
    let linked = fs::hard_link(&temporary, path);
    let _ = fs::remove_file(&temporary);
    match linked {
        Ok(()) => {
            sync_folder(path);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A number that no other process has. Containers may share a folder, and each of their servers has the process id 1.
static OWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// Writes a file beside `path` whose name no other process uses.
fn write_aside(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}", *OWN));
    let temporary = path.with_file_name(name);
    // A write that was cancelled may have left it.
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    clean_up(&temporary, written)?;
    Ok(temporary)
}

/// The temporary files of a process that was killed are removed after this time. No write takes so long.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Removes the temporary files that killed processes have left in a folder beside files with one of these extensions. Errors are
/// ignored: such a file only takes up space.
///
/// # Suspends
/// While the disk is busy.
pub fn remove_abandoned(folder: &Path, extensions: &[&str]) {
    let is_ours = |name: &str| {
        let (path, suffix) = name.rsplit_once('.').unwrap_or_default();
        let is_number = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        suffix.len() == 16
            && suffix.bytes().all(is_number)
            && path
                .rsplit_once('.')
                .is_some_and(|(stem, extension)| !stem.is_empty() && extensions.contains(&extension))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_old = || {
            let meta = entry.metadata().ok()?;
            let age = meta.modified().ok()?.elapsed().ok()?;
            Some(meta.is_file() && age > ABANDONED)
        };
        if entry.file_name().to_str().is_some_and(is_ours) && is_old() == Some(true) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Makes the disk store the name of a file. Errors are ignored: the file is in place, and only a crash could bring the
/// old one back.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
}

fn clean_up(temporary: &Path, outcome: io::Result<()>) -> io::Result<()> {
    if outcome.is_err() {
        let _ = fs::remove_file(temporary);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use testkit::Folder;

    #[test]
    fn the_default_is_of_the_service_then_of_the_user() {
        let of = |variables: &[(&str, &str)], is_root| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            choose(|name| find(name).map(|(_, value)| (*value).to_owned()), is_root)
        };
        let home = [("HOME", "/home/ann"), ("XDG_DATA_HOME", "/data")];
        assert_eq!(of(&home, true), Some("/var/lib/osier".into()));
        assert_eq!(of(&home, false), Some("/data/osier".into()));
        assert_eq!(of(&home[..1], false), Some("/home/ann/.local/share/osier".into()));
        assert_eq!(of(&[], false), None);
        assert_eq!(
            of(&[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b")], true),
            Some("/var/lib/a".into())
        );
    }

    #[test]
    fn a_process_with_the_same_id_in_another_container_is_left_alone() {
        let folder = Folder::new();
        let other = folder.write(format!("key.{}", std::process::id()), "half");
        assert!(write_new(&folder.join("key"), b"one").unwrap());
        write(&folder.join("key"), b"two").unwrap();
        assert_eq!(fs::read(other).unwrap(), b"half");
    }

    #[test]
    fn what_killed_processes_have_left_is_removed_after_an_hour_and_nothing_else() {
        let folder = Folder::new();
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        let write = |name: &str, time: Option<std::time::SystemTime>| {
            let file = std::fs::File::create(folder.join(name)).unwrap();
            time.inspect(|time| file.set_modified(*time).unwrap());
        };
        let number = "0123456789abcdef";
        let kept = [
            "a.example.pem",
            &format!("a.example.key.{number}"),
            &format!("pem.{number}"),
            &format!(".pem.{number}"),
            &format!("a.example.pem.{}", number.to_ascii_uppercase()),
            &format!("a.example.pem.{number}0"),
            &format!("a.example.pem.{number}.bak"),
            number,
        ];
        kept.iter().for_each(|name| write(name, Some(old)));
        write(&format!("fresh.example.pem.{number}"), None);
        write(&format!("old.example.pem.{number}"), Some(old));
        write(&format!("old.example.order.{number}"), Some(old));
        std::fs::create_dir(folder.join(format!("folder.pem.{number}"))).unwrap();
        std::fs::File::open(folder.join(format!("folder.pem.{number}")))
            .and_then(|file| file.set_modified(old))
            .unwrap();
        remove_abandoned(folder.path(), &["pem", "order"]);
        let left = std::fs::read_dir(folder.path()).unwrap();
        let left: Vec<_> = left
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(left.len(), kept.len() + 2, "{left:?}");
        assert!(!left.iter().any(|name| name.starts_with("old")), "{left:?}");
        remove_abandoned(&folder.join("nowhere"), &["pem"]);
    }

    #[test]
    fn files_are_whole_and_private() {
        let folder = Folder::new();
        make_folder(&folder.join("a/b")).unwrap();
        let mode = |name: &str| folder.join(name).metadata().unwrap().permissions().mode() & 0o777;
        write(&folder.join("a/b/key"), b"one").unwrap();
        assert_eq!((mode("a/b"), mode("a/b/key")), (0o700, 0o600));
        write(&folder.join("a/b/key"), b"two").unwrap();
        assert!(!write_new(&folder.join("a/b/key"), b"three").unwrap());
        assert_eq!(fs::read(folder.join("a/b/key")).unwrap(), b"two");
        assert!(write_new(&folder.join("a/b/other"), b"four").unwrap());
        assert_eq!(
            fs::read_dir(folder.join("a/b")).unwrap().count(),
            2,
            "no temporary files stay"
        );
    }
}
