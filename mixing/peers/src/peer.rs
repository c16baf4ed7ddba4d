//! Servers that run as processes of their own. A test starts one on a socket in a directory of its own, and stops it by its id.
//!
//! A server that is not installed is an error with the reason, which the test prints as its "skipped: why".

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{io, thread};

use crate::postgres::Session;

/// The user that PostgreSQL runs as where the test runs as root, which it refuses: nobody.
const NOBODY: u32 = 65534;

/// A running server; dropping it stops it.
pub struct Peer {
    child: Child,
    command: Command,
    ready: fn(UnixStream) -> bool,
    socket: PathBuf,
    directory: Directory,
}

impl Peer {
    /// Starts `redis-server`.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub fn redis() -> Result<Peer, String> {
        let program = find("redis-server", &[])?;
        let directory = Directory::new("redis");
        let socket = directory.0.join("socket");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        Peer::start(command, socket, directory, |_| true)
    }

    /// Makes a cluster and starts `postgres` on it. Its user `osier` needs no password.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub fn postgres() -> Result<Peer, String> {
        let places = versions("/usr/lib/postgresql");
        let (initdb, postgres) = (find("initdb", &places)?, find("postgres", &places)?);
        let directory = Directory::new("postgres");
        let data = directory.0.join("data");
        let ended = as_user(Command::new(initdb), &directory)
            .args([
                "--auth=trust",
                "--username=osier",
                "--no-sync",
                "--no-locale",
                "--encoding=UTF8",
            ])
            .arg(&data)
            .output()
            .map_err(|error| format!("initdb: {error}"))?;
        if !ended.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&ended.stderr).trim()));
        }
        let mut command = as_user(Command::new(postgres), &directory);
        command.args(["-F", "-c", "listen_addresses="]);
        command.arg("-k").arg(&directory.0).arg("-D").arg(&data);
        let socket = directory.0.join(".s.PGSQL.5432");
        // It listens before it has started.
        let ready = |stream| Session::start(stream, "osier", "postgres").is_ok();
        Peer::start(command, socket, directory, ready)
    }

    fn start(
        mut command: Command,
        socket: PathBuf,
        directory: Directory,
        ready: fn(UnixStream) -> bool,
    ) -> Result<Peer, String> {
        let name = command.get_program().display().to_string();
        let log = fs::File::create(directory.0.join("log")).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|error| format!("{name}: its log: {error}"))?;
        let spawned = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let mut peer = Peer {
            child: spawned.map_err(|error| format!("{name}: {error}"))?,
            command,
            ready,
            socket,
            directory,
        };
        peer.wait_until_ready();
        Ok(peer)
    }

    fn wait_until_ready(&mut self) {
        // A minute in all: far more than either takes.
        for _ in 0..1200 {
            if UnixStream::connect(&self.socket).is_ok_and(self.ready) {
                return;
            }
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        // It is there and does not work: no reason to skip.
        let log = fs::read_to_string(self.directory.0.join("log")).unwrap_or_default();
        let name = self.command.get_program().display();
        panic!("{name} does not answer on {}: {log}", self.socket.display());
    }

    /// Stops the server and starts it again, on the same socket and with the same data.
    ///
    /// # Panics
    ///
    /// If it does not come back.
    pub fn restart(&mut self) {
        self.stop();
        self.child = self.command.spawn().expect("it has been started before");
        self.wait_until_ready();
    }

    fn stop(&mut self) {
        // SIGINT: both end at once, and take their own children with them.
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        if !sent.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }

    /// The Unix socket that it listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The directory of that socket.
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A directory that goes with its value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("osier-mixing-{name}-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("there is a directory for temporary files");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `command` in `directory`, and as nobody where this is root.
fn as_user(mut command: Command, directory: &Directory) -> Command {
    command.current_dir(&directory.0);
    if is_root().unwrap_or(false) && chown(&directory.0, Some(NOBODY), Some(NOBODY)).is_ok() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn is_root() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// Where `program` is: in the search path, in `/usr/sbin`, or in one of `places`.
fn find(program: &str, places: &[PathBuf]) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .chain(places.iter().cloned())
        .map(|place| place.join(program));
    files
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{program} is not installed"))
}

/// Debian has the programs of each version of PostgreSQL apart.
fn versions(parent: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("bin")).collect()
}
