//! Files and folders that root opens for the user that the server becomes, or gives to that user: logs, the PID file, Unix sockets, caches.
//!
//! These often lie in folders that the user may write to. An attacker with the rights of that user could leave a symbolic
//! link there, and root would write to its target, or give the target away, at the next start. So root follows a link only
//! if root has made it: the link and its folder belong to root. Every part of a path is looked up in the open folder
//! before it, so nothing changes between a look and its use. A file or socket with a second name (a hard link) is not given
//! away either, nor a device that all may write to. A process that is not root opens every path as it is.
//!
//! Root cannot tell who has moved a file. In a folder of the user, a file of root that has got the name of a log is given
//! away: keep no keys there.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, PROC_SUPER_MAGIC, Stat, Uid, chownat, fstat, fstatfs, mkdirat, openat,
    readlinkat,
};
use rustix::io::Errno;

/// The most symbolic links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens a file to write to it from its beginning, or creates it. Waits for nobody, even if it is a named pipe.
///
/// # Errors
/// Those of the system, and `PermissionDenied` with a reason for a link or a file that root must not use.
pub fn open_to_write(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(path, flags)?;
    let found = fstat(&file)?;
    if rustix::process::geteuid().is_root() && type_of(&found) != FileType::RegularFile {
        return Err(refused("it is not a regular file; name another one"));
    }
    has_one_name(&found)?;
    Ok(file.into())
}

/// Opens a path for calls that need no access to it, such as the rules of Landlock.
///
/// # Errors
/// As [`open_to_write`].
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    open(path, OFlags::PATH)
}

/// Gives a file to a user and a group, and creates it if it is missing. A device that all may write to, such as `/dev/null`,
/// stays as it is.
///
/// # Errors
/// As [`open_to_write`].
pub fn give_file(path: &Path, user: u32, group: u32) -> io::Result<()> {
    // Opened like this, a named pipe waits for no reader, and a device notices nothing.
    let file = match open(path, OFlags::PATH) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?
        }
        opened => opened?,
    };
    let found = fstat(&file)?;
    match type_of(&found) {
        FileType::Directory => Err(io::ErrorKind::IsADirectory.into()),
        _ if (found.st_uid, found.st_gid) == (user, group) => Ok(()),
        FileType::CharacterDevice if found.st_mode & 0o002 != 0 => Ok(()),
        _ => has_one_name(&found).and_then(|()| give(&file, user, group)),
    }
}

/// Gives a folder to a user and a group, but not what is in it.
///
/// # Errors
/// As [`open_to_write`].
pub fn give_folder(path: &Path, user: u32, group: u32) -> io::Result<()> {
    give(&open(path, OFlags::PATH | OFlags::DIRECTORY)?, user, group)
}

/// Makes a folder that only its owner may use, if it is missing.
///
/// # Errors
/// As [`open_to_write`].
pub fn make_folder(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let Some((parent, name)) = path.parent().zip(path.file_name()) else {
        return Ok(()); // the root folder
    };
    let parent = open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    match mkdirat(&parent, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        made => Ok(made?),
    }
}

/// Makes a folder as [`make_folder`] does, and those above it that are missing.
///
/// # Errors
/// As [`open_to_write`].
pub fn make_folders(path: &Path) -> io::Result<()> {
    match (make_folder(path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound && parent != Path::new("") => {
            make_folders(parent)?;
            make_folder(path)
        }
        (made, _) => made,
    }
}

/// Sets the permissions of the file of a Unix socket.
///
/// # Errors
/// As [`open_to_write`]. `InvalidInput` if the file is no socket.
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    let mode = Permissions::from_mode(mode);
    if !rustix::process::geteuid().is_root() {
        return fs::set_permissions(path, mode);
    }
    let file = open_socket(path)?;
    // The call for a descriptor does not take one that was opened like this.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
}

/// Gives the file of a Unix socket to a user and a group.
///
/// # Errors
/// As [`set_socket_mode`].
pub fn give_socket(path: &Path, user: u32, group: u32) -> io::Result<()> {
    give(&open_socket(path)?, user, group)
}

fn open_socket(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path, OFlags::PATH)?;
    let found = fstat(&file)?;
    match type_of(&found) {
        FileType::Socket => has_one_name(&found).map(|()| file),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a socket")),
    }
}

fn give(file: &OwnedFd, user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    chownat(file, "", Some(user), Some(group), AtFlags::EMPTY_PATH).map_err(io::Error::from)
}

fn type_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Refuses a file that is no folder with another name, which may be somebody else's.
fn has_one_name(found: &Stat) -> io::Result<()> {
    match rustix::process::geteuid().is_root() && found.st_nlink > 1 {
        true => Err(refused("it has a second name (a hard link); remove it")),
        false => Ok(()),
    }
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

/// Opens a path. If this process is root, it follows no links but those of root.
fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o666));
    if !rustix::process::geteuid().is_root() {
        return Ok(openat(CWD, path, flags, mode)?);
    }
    let mut left = VecDeque::from(names(&std::path::absolute(path)?));
    let (mut folder, mut at) = (top()?, PathBuf::from("/"));
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        at.push(&name);
        let is_of_kernel = fstatfs(&folder)?.f_type == PROC_SUPER_MAGIC;
        // A link of procfs leads to an open file, which the text of the link need not name: `/dev/stdout`.
        if left.is_empty() && is_of_kernel {
            return Ok(openat(&folder, &name, flags, mode)?);
        }
        let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(&folder, &name, look, Mode::empty()) {
            Err(Errno::NOENT) if left.is_empty() => None,
            found => Some(found?),
        };
        match found {
            Some(link) if type_of(&fstat(&link)?) == FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                // Where root is a mere user of the host, `/proc/self` belongs to nobody.
                if !is_of_kernel && (fstat(&link)?.st_uid != 0 || fstat(&folder)?.st_uid != 0) {
                    return Err(refused(format!(
                        "'{}' is a symbolic link that somebody other than root may have made; remove it, or name its target",
                        at.display()
                    )));
                }
                let target = readlinkat(&link, "", Vec::new())?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                at.pop();
                if target.is_absolute() {
                    (folder, at) = (top()?, PathBuf::from("/"));
                }
                for name in names(&target).into_iter().rev() {
                    left.push_front(name);
                }
            }
            // Should it become a link now, `NOFOLLOW` does not follow it.
            _ if left.is_empty() => return Ok(openat(&folder, &name, flags | OFlags::NOFOLLOW, mode)?),
            Some(below) => folder = below,
            None => return Err(Errno::NOENT.into()),
        }
    }
    Ok(folder)
}

/// The root folder.
fn top() -> io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The parts of a path without the root folder.
fn names(path: &Path) -> Vec<OsString> {
    let named = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    use super::*;
    use testkit::Folder;

    const NOBODY: u32 = 65534;

    /// A folder of root with the folder `theirs` of somebody else. None unless this is root.
    fn folder() -> Option<Folder> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give files away");
            return None;
        }
        let folder = Folder::new();
        fs::create_dir(folder.join("theirs")).unwrap();
        chown(folder.join("theirs"), Some(NOBODY), Some(NOBODY)).unwrap();
        Some(folder)
    }

    fn owner(path: &Path) -> u32 {
        fs::metadata(path).unwrap().uid()
    }

    #[test]
    fn links_of_root_in_its_own_folders_are_followed() {
        let Some(folder) = folder() else { return };
        symlink("theirs", folder.join("link")).unwrap();
        symlink(folder.join("theirs/../link/./log"), folder.join("log")).unwrap();
        give_file(&folder.join("log"), NOBODY, NOBODY).unwrap();
        assert_eq!(owner(&folder.join("theirs/log")), NOBODY);
        // Root's link lies in a folder of somebody else, who may have moved it there.
        symlink("../x", folder.join("theirs/moved")).unwrap();
        let error = give_file(&folder.join("link/moved"), NOBODY, NOBODY).unwrap_err();
        let expected = format!("'{}' is a symbolic link that", folder.join("theirs/moved").display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(!folder.join("x").exists());
        symlink("circle", folder.join("circle")).unwrap();
        let error = give_file(&folder.join("circle"), NOBODY, NOBODY).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn folders_are_made_where_no_link_of_others_leads() {
        let Some(folder) = folder() else { return };
        make_folders(&folder.join("a/b/c")).unwrap();
        make_folders(&folder.join("a/b/c")).unwrap();
        assert_eq!(fs::metadata(folder.join("a/b")).unwrap().mode() & 0o777, 0o700);
        assert!(make_folder(&folder.join("x/y")).is_err());
        symlink("../a", folder.join("theirs/a")).unwrap();
        assert!(make_folders(&folder.join("theirs/a/d/e")).is_err());
        assert!(!folder.join("a/d").exists());
    }

    #[test]
    fn a_file_with_a_second_name_stays_as_it_is() {
        let Some(folder) = folder() else { return };
        let (file, second) = (folder.write("file", "precious"), folder.join("theirs/log"));
        fs::hard_link(&file, &second).unwrap();
        assert!(give_file(&second, NOBODY, NOBODY).is_err());
        assert!(open_to_write(&second).is_err());
        assert_eq!(
            (owner(&file), fs::read_to_string(&file).unwrap()),
            (0, "precious".into())
        );
        // A backup that links files has nothing to do with it.
        chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
        give_file(&second, NOBODY, NOBODY).unwrap();
    }

    #[test]
    fn only_a_socket_is_given_as_a_socket_and_only_a_folder_as_a_folder() {
        let Some(folder) = folder() else { return };
        let file = folder.write("file", "");
        assert!(give_socket(&file, NOBODY, NOBODY).is_err());
        assert!(set_socket_mode(&file, 0o777).is_err());
        assert!(give_folder(&file, NOBODY, NOBODY).is_err());
        assert!(give_file(folder.path(), NOBODY, NOBODY).is_err());
        assert_eq!((owner(&file), owner(folder.path())), (0, 0));
    }

    #[test]
    fn an_open_file_may_be_named_by_its_descriptor() {
        let Some(folder) = folder() else { return };
        let (reader, _writer) = std::io::pipe().unwrap();
        symlink(format!("/proc/self/fd/{}", reader.as_raw_fd()), folder.join("stdout")).unwrap();
        give_file(&folder.join("stdout"), NOBODY, NOBODY).unwrap();
        assert_eq!(fstat(&reader).unwrap().st_uid, NOBODY);
    }

    #[test]
    fn a_device_for_all_stays_that_of_root() {
        let Some(folder) = folder() else { return };
        let null = folder.join("null");
        let device = rustix::fs::makedev(1, 3);
        let made = rustix::fs::mknodat(
            CWD,
            &null,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        );
        if let Err(error) = made {
            println!("skipped: this root makes no devices: {error}");
            return;
        }
        fs::set_permissions(&null, Permissions::from_mode(0o666)).unwrap();
        give_file(&null, NOBODY, NOBODY).unwrap();
        assert_eq!(owner(&null), 0);
        // Only its group may write to a terminal.
        fs::set_permissions(&null, Permissions::from_mode(0o620)).unwrap();
        give_file(&null, NOBODY, NOBODY).unwrap();
        assert_eq!(owner(&null), NOBODY);
    }

    #[test]
    fn a_socket_with_a_second_name_stays_as_it_is() {
        let Some(folder) = folder() else { return };
        let (socket, second) = (folder.join("socket"), folder.join("theirs/socket"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::hard_link(&socket, &second).unwrap();
        assert!(give_socket(&second, NOBODY, NOBODY).is_err());
        assert!(set_socket_mode(&second, 0o777).is_err());
        assert_eq!(owner(&socket), 0);
    }

    /// The links of procfs belong to a user of the host that has no number there.
    #[test]
    fn a_container_of_a_mere_user_has_its_standard_output() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root becomes a mere user");
            return;
        }
        let test = std::env::current_exe().unwrap();
        let name = "process::handed::tests::within_the_container";
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args([
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--mount-proc",
            "--fork",
        ]);
        // The folder of the test program may be closed to this user.
        command.args(["/proc/self/fd/0", "--exact", name, "--ignored", "--nocapture"]);
        let output = command.stdin(File::open(test).unwrap()).output();
        match output {
            Ok(output) if !String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
                println!("skipped: no container: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => println!("skipped: no container: {error}"),
        }
    }

    #[test]
    #[ignore = "the child process of another test: cargo test -p osier-server --bin osier process::handed"]
    fn within_the_container() {
        assert_ne!(fs::symlink_metadata("/proc/self").unwrap().uid(), 0);
        let (reader, _writer) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        give_file(Path::new(&path), 0, 0).unwrap();
    }
}
