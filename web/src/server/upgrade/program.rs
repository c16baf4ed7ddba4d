//! The program that an upgrade starts, and the end of its process.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::new::VARIABLE;
use super::{Item, Items};
use crate::conn::handover::format::DESCRIPTORS_MAX;

/// The time for a program to become ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time that in-flight requests get in the old process.
const DRAIN: Duration = Duration::from_secs(3600);

/// The longest wait for the end of a process that has closed its socket: the kernel closes that a moment before the process has
/// ended, and on a busy machine the moment may be seconds. Taking a process that has ended for one that serves would end this one
/// too.
const ENDING: Duration = Duration::from_secs(10);

/// Time between two looks at a process that ends.
const TICK: Duration = Duration::from_millis(2);

/// The program that an upgrade starts, with its arguments and items.
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    pub(super) patience: Duration,
    pub(super) drain: Duration,
    /// [`ENDING`], or less in a test.
    pub(super) ending: Duration,
    pub(super) items: Arc<Items>,
}

osier_queue::impl_debug!(Program, self => {
    path: self.path, arguments: self.arguments, patience: self.patience, drain: self.drain, items: self.items.len()
});

impl Program {
    /// The program at `path`, without arguments.
    pub fn new(path: impl Into<PathBuf>) -> Program {
        Program {
            path: path.into(),
            arguments: Vec::new(),
            patience: PATIENCE,
            drain: DRAIN,
            ending: ENDING,
            items: Arc::default(),
        }
    }

    /// The program that is at the path of this process's program now, with the arguments of this process.
    ///
    /// # Errors
    ///
    /// The system's error, if it does not know the path.
    pub fn this() -> io::Result<Program> {
        let path = env::current_exe()?;
        // Linux adds this to the name of a file that was removed, or replaced by another.
        let path = match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
            Some(path) if Path::new(path).exists() => path.into(),
            _ => path,
        };
        Ok(Program::new(path).args(env::args_os().skip(1)))
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Sets the time within which the program must be ready; 30 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Program {
        self.patience = patience;
        self
    }

    /// Sets how long in-flight requests may go on in the old process; an hour by default. The graceful shutdown follows.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Program {
        self.drain = drain;
        self
    }

    /// Gives the new process an item, for [`Upgrade::take`](super::Upgrade::take).
    ///
    /// # Panics
    ///
    /// With more than 128 descriptors, or 8 MiB.
    #[must_use]
    pub fn give(mut self, name: &str, item: Item) -> Program {
        assert!(item.descriptors.len() <= DESCRIPTORS_MAX && item.bytes.len() <= 8 << 20);
        let items = Arc::get_mut(&mut self.items).expect("no upgrade runs with it while it is changed");
        items.push((name.to_owned(), item));
        self
    }

    /// The path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn spawn(&self, channel: UnixStream) -> impl FnOnce() -> io::Result<Child> + Send + 'static {
        let own = std::process::id().to_string();
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .stdin(OwnedFd::from(channel))
            .env(VARIABLE, &own);
        // The new process gets the sockets as items. It inherits systemd's watchdog, which then no longer names this process.
        for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if env::var("WATCHDOG_PID").is_ok_and(|pid| pid == own) {
            command.env_remove("WATCHDOG_PID");
        }
        move || command.spawn()
    }
}

/// Waits for the end of a process that ends. One that does not end in time is killed, and has no status.
pub(super) fn wait_or_kill(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let status = wait_for_end(child, limit).ok().flatten();
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    status
}

/// Waits for the end of a process, for `limit` at most. `None` if it goes on.
pub(super) fn wait_for_end(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            None if begun.elapsed() < limit => std::thread::sleep(TICK),
            status => return Ok(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Upgrade;
    use super::super::new::hello;
    use super::*;
    use crate::conn::handover::channel;
    use crate::conn::handover::format::Message;

    /// A process that runs for minutes after these commands. The upgrade does not wait for its end.
    fn outliving(commands: &str) -> Program {
        let mut program = Program::new("/bin/sh").args(["-c", &format!("{commands}; exec sleep 600")]);
        program.ending = Duration::from_millis(50);
        program
    }

    fn lives(id: u32) -> bool {
        let id = rustix::process::Pid::from_raw(id as i32).expect("an id");
        rustix::process::test_kill_process(id).is_ok()
    }

    #[test]
    fn a_process_that_closes_its_socket_before_it_is_ready_is_killed() {
        let folder = testkit::Folder::new();
        let id = folder.join("id");
        let program = outliving(&format!("echo $$ > {}; exec 0<&-", id.display()));
        osier::run(move || {
            let upgrade = Upgrade::made(None);
            let why = upgrade.start(&program).unwrap_err().to_string();
            assert_eq!(why, "'/bin/sh' has closed the connection to this process");
            let id = std::fs::read_to_string(id).unwrap();
            assert!(!lives(id.trim().parse().unwrap()));
            let next = upgrade.start(&Program::new("/none")).unwrap_err().to_string();
            assert!(next.contains("cannot start"), "{next}");
        });
    }

    #[test]
    fn a_process_that_closes_its_socket_while_it_serves_lives_on() {
        let (near, far) = UnixStream::pair().unwrap();
        // The first messages of a process that serves.
        let said = testkit::Folder::new();
        let path = said.join("said");
        let program = outliving(&format!("cat {} >&0; exec 0<&-", path.display()));
        osier::run(move || {
            let (sending, _) = channel::open(near).unwrap();
            let ready = Message::Ready { servers: Vec::new() };
            for message in [hello(), ready, Message::Accepting] {
                sending.send(&message, &[]).unwrap();
            }
            drop(sending);
            std::io::copy(&mut &far, &mut std::fs::File::create(path).unwrap()).unwrap();
            let successor = Upgrade::made(None).start(&program).unwrap();
            let id = successor.id();
            assert_eq!(successor.hand_over(|| ()), Ok(()));
            assert!(lives(id), "nobody may end a process that serves");
            let id = rustix::process::Pid::from_raw(id as i32).unwrap();
            rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        });
    }

    #[test]
    fn a_program_does_not_show_its_secrets() {
        let item = Item {
            bytes: b"hunter2".to_vec(),
            descriptors: Vec::new(),
        };
        let shown = format!("{item:?}");
        let shown = format!("{shown} {:?}", Program::new("/bin/true").give("tickets", item));
        let secret = format!("{:?}", b"hunter2");
        assert!(shown.contains("/bin/true") && shown.contains("bytes: 7"), "{shown}");
        assert!(!shown.contains(secret.trim_matches(['[', ']'])), "{shown}");
    }
}
