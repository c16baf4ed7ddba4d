//! The state besides sockets that the new process of an upgrade inherits from the old one.
//!
//! The new process starts with the rights of the old one: its user, its root folder and its Landlock domain. So these
//! settings must be unchanged, and the new process does not apply them again.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use osier_tls::Tickets;
use osier_web::upgrade::{Item, Program, Upgrade};

use crate::config::Config;

/// The name of the item with the [`Confinement`].
pub const CONFINEMENT: &str = "confinement";
/// The name of the item with the memory limit of the system.
pub const MEMORY: &str = "memory";
/// The name of the item with the connection to the service manager.
pub const NOTIFY: &str = "notify";
/// The name of the item with the PID file. Its bytes are the path.
pub const PID_FILE: &str = "pid file";
/// The name of the item with the keys of session tickets.
pub const TICKETS: &str = "tickets";

/// The rights that the old process has dropped. The new process cannot regain them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    user: Option<String>,
    group: Option<String>,
    pub chroot: Option<PathBuf>,
    pub landlock: bool,
}

impl Confinement {
    /// The confinement that a configuration asks for.
    pub fn of(config: &Config) -> Confinement {
        Confinement {
            user: config.user.clone(),
            group: config.group.clone(),
            chroot: config.chroot.clone(),
            landlock: config.landlock,
        }
    }

    /// The confinement that this process inherits from an old process, if that had one.
    ///
    /// # Errors
    /// One line, when the old process has sent something else.
    pub fn inherited(upgrade: &Upgrade) -> Result<Option<Confinement>, String> {
        let Some(Item { bytes, .. }) = upgrade.take(CONFINEMENT) else {
            return Ok(None);
        };
        let read = || -> Option<Confinement> {
            let value: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
            let text = |key: &str| value[key].as_str().map(str::to_owned);
            Some(Confinement {
                user: text("user"),
                group: text("group"),
                chroot: text("chroot").map(PathBuf::from),
                landlock: value["landlock"].as_bool()?,
            })
        };
        let confinement = read().ok_or("the old process has sent a confinement that cannot be read")?;
        Ok(Some(confinement).filter(|confinement| *confinement != Confinement::default()))
    }

    /// Checks that `config` asks for the same confinement.
    ///
    /// # Errors
    /// One line, with the key that has changed.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let asked = Confinement::of(config);
        let keys = [
            ("user", self.user == asked.user),
            ("group", self.group == asked.group),
            ("chroot", self.chroot == asked.chroot),
            ("landlock", self.landlock == asked.landlock),
        ];
        match keys.into_iter().find(|(_, is_same)| !is_same) {
            Some((key, _)) => Err(format!(
                "'{key}' has changed, but a process that takes over keeps the rights of the old one: restart the server"
            )),
            None => Ok(()),
        }
    }

    /// The item for the new process.
    pub fn item(&self) -> Item {
        let value = serde_json::json!({
            "user": self.user,
            "group": self.group,
            "chroot": self.chroot.as_ref().map(|chroot| chroot.display().to_string()),
            "landlock": self.landlock,
        });
        Item {
            bytes: value.to_string().into(),
            descriptors: Vec::new(),
        }
    }
}

/// Takes the old process's connection to the service manager.
pub fn inherited_notify(upgrade: &Upgrade) -> Option<OwnedFd> {
    upgrade.take(NOTIFY)?.descriptors.pop()
}

/// Takes the PID file of the old process, if its path is `path`.
pub fn inherited_pid_file(upgrade: &Upgrade, path: &Path) -> Option<OwnedFd> {
    let mut item = upgrade.take(PID_FILE)?;
    let is_same = item.bytes == path.as_os_str().as_encoded_bytes();
    item.descriptors.pop().filter(|_| is_same)
}

/// Takes the keys that the old process has made for session tickets, so that its clients can resume their sessions.
pub fn inherited_tickets(upgrade: &Upgrade) -> Option<Tickets> {
    Tickets::import(&upgrade.take(TICKETS)?.bytes)
}

/// The path of the running program, as it is at the start.
pub fn executable() -> Result<PathBuf, String> {
    let this: io::Result<Program> = Program::this();
    this.map(|program| program.path().to_owned())
        .map_err(|error| format!("cannot find the path of this program: {error}; set 'program' of [upgrade]"))
}
