//! An upgrade: this process starts a new one, which takes over its sockets and connections (`osier_web::upgrade`).
//!
//! ```text
//!   SIGUSR2 ─▶ checks ─▶ Successor starts (a fiber) ─▶ Asked::Prepared ─▶ it hands over (a fiber) ─▶ Asked::HandedOver ─▶ end
//!                 └─ refused ─┐                            └─ failed ─┐                                └─ failed ─┐
//!                             └──────────── a line in the log, and the server goes on ────────────────────────────┘
//! ```
//!
//! The new process is started with what this one has: its user, its root folder, its Landlock domain. So these settings must be what
//! they were, and the new process leaves them alone. The first fiber alone changes the state here.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use osier_web::upgrade::{Item, Program, Successor, Upgrade};

use crate::config::Config;
use crate::process::root::inside;

use super::Origin;
use super::signals::{Asked, Requests};
use super::sites::Sites;

/// The name of the item with the [`Confinement`].
const CONFINEMENT: &str = "confinement";
/// The name of the item with the connection to the service manager.
const NOTIFY: &str = "notify";
/// The name of the item with the PID file. Its bytes are the path.
const PID_FILE: &str = "pid file";

/// The rights that the old process has given up, and the new one does not have either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    user: Option<String>,
    group: Option<String>,
    pub chroot: Option<PathBuf>,
    landlock: bool,
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

    /// The confinement of this process, if the old process had one. The new process cannot get out of it.
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

    /// Checks that `config` asks for the same.
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
                "'{key}' has changed, and a process that takes over has the rights of the old one: restart the server"
            )),
            None => Ok(()),
        }
    }

    fn item(&self) -> Item {
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

/// Takes the connection to the service manager that the old process has.
pub fn inherited_notify(upgrade: &Upgrade) -> Option<OwnedFd> {
    upgrade.take(NOTIFY)?.descriptors.pop()
}

/// Takes the PID file of the old process, if it is this one.
pub fn inherited_pid_file(upgrade: &Upgrade, path: &Path) -> Option<OwnedFd> {
    let mut item = upgrade.take(PID_FILE)?;
    let is_same = item.bytes == path.as_os_str().as_encoded_bytes();
    item.descriptors.pop().filter(|_| is_same)
}

/// The state of an upgrade.
#[derive(Default)]
pub struct Upgrading {
    outcome: Arc<Mutex<Outcome>>,
    is_busy: bool,
    /// A reload was asked for meanwhile.
    reload_waits: bool,
}

/// What the fiber of a step leaves.
#[derive(Default)]
enum Outcome {
    #[default]
    None,
    Prepared(Result<Successor, String>),
    HandedOver(Result<(), String>),
}

impl Upgrading {
    /// Whether an upgrade is under way.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes that a reload is due if the upgrade fails.
    pub fn delay_reload(&mut self) {
        self.reload_waits = true;
    }

    /// Begins an upgrade. [`Asked::Prepared`] follows.
    ///
    /// # Errors
    /// One line: why it cannot begin. Nothing has happened then.
    pub fn begin(&mut self, sites: &Sites, requests: &Arc<Requests>) -> Result<(), String> {
        if self.is_busy {
            return Err("another upgrade is under way".into());
        }
        let program = program(sites)?;
        sites
            .process
            .say
            .info(format_args!("upgrade: starting '{}'", program.path().display()));
        self.is_busy = true;
        let (outcome, requests) = (Arc::clone(&self.outcome), Arc::clone(requests));
        let upgrade = sites.process.upgrade.clone();
        let fiber = osier::fiber::Builder::new().name("upgrade");
        drop(fiber.spawn(move || {
            let prepared = upgrade.start(&program);
            *lock(&outcome) = Outcome::Prepared(prepared);
            requests.add(Asked::Prepared);
        }));
        Ok(())
    }

    /// Hands over to the new process, if it is ready. [`Asked::HandedOver`] follows.
    ///
    /// # Errors
    /// One line: why the new process is not ready.
    pub fn hand_over(&mut self, sites: &Sites, requests: &Arc<Requests>) -> Result<(), String> {
        let Outcome::Prepared(prepared) = std::mem::take(&mut *lock(&self.outcome)) else {
            return Ok(());
        };
        let successor = prepared.inspect_err(|_| self.is_busy = false)?;
        let id = successor.id();
        sites
            .process
            .say
            .info(format_args!("upgrade: process {id} is ready, and takes over"));
        let (outcome, requests) = (Arc::clone(&self.outcome), Arc::clone(requests));
        let notify = sites.process.notify.clone();
        let fiber = osier::fiber::Builder::new().name("upgrade");
        drop(fiber.spawn(move || {
            let done = successor.hand_over(|| notify.main_process(id));
            *lock(&outcome) = Outcome::HandedOver(done);
            requests.add(Asked::HandedOver);
        }));
        Ok(())
    }

    /// Ends the upgrade. Returns whether a reload is due.
    ///
    /// # Errors
    /// One line: why the new process has not taken over.
    pub fn end(&mut self) -> Result<(), String> {
        match std::mem::take(&mut *lock(&self.outcome)) {
            Outcome::HandedOver(Err(why)) => {
                self.is_busy = false;
                Err(why)
            }
            _ => Ok(()),
        }
    }

    /// Whether a reload was asked for while an upgrade was under way that has failed.
    pub fn take_reload(&mut self) -> bool {
        std::mem::take(&mut self.reload_waits)
    }
}

fn lock(outcome: &Mutex<Outcome>) -> std::sync::MutexGuard<'_, Outcome> {
    outcome.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program to start, and what it gets.
fn program(sites: &Sites) -> Result<Program, String> {
    let (process, config) = (&sites.process, &sites.config);
    let confinement = &process.confinement;
    let path = config
        .upgrade
        .program
        .clone()
        .map_or_else(|| process.executable.clone(), Ok)?;
    if confinement.landlock && process.may_execute.as_deref() != path.parent() {
        return Err(format!(
            "'landlock' forbids this process to start '{}': set 'program' of [upgrade], and restart the server once",
            path.display()
        ));
    }
    let path = match &process.root {
        None => path,
        Some(root) => inside(Some(root), &path).ok_or_else(|| {
            format!(
                "'{}' is not inside of the root folder '{}', so this process cannot start it: restart the server, or set 'program' \
                 of [upgrade] to one that is, with the libraries that it needs",
                path.display(),
                root.display()
            )
        })?,
    };
    let arguments: Vec<OsString> = match &sites.origin {
        Origin::File(file) => vec!["serve".into(), file.into()],
        Origin::Line(_) => env::args_os().skip(1).collect(),
    };
    let mut program = Program::new(path)
        .args(arguments)
        .patience(config.upgrade.timeout)
        .drain(config.upgrade.drain)
        .give(CONFINEMENT, confinement.item());
    let of_descriptor = |descriptor, bytes: &[u8]| Item {
        bytes: bytes.to_vec(),
        descriptors: vec![descriptor],
    };
    if let Some(descriptor) = process.notify.descriptor() {
        program = program.give(NOTIFY, of_descriptor(descriptor, b""));
    }
    if let (Some(file), Some(path)) = (&process.pid_file, &config.pid_file) {
        let descriptor = file
            .descriptor()
            .map_err(|error| format!("cannot copy the PID file: {error}"))?;
        program = program.give(PID_FILE, of_descriptor(descriptor, path.as_os_str().as_encoded_bytes()));
    }
    Ok(program)
}

/// The path of the running program, as it is at the start.
pub fn executable() -> Result<PathBuf, String> {
    let this: io::Result<Program> = Program::this();
    this.map(|program| program.path().to_owned()).map_err(|error| {
        format!("the system does not tell the path of this program: {error}; set 'program' of [upgrade]")
    })
}
