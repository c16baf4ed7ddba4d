//! An upgrade: this process starts a new one, which takes over its sockets and connections (`osier_web::upgrade`).
//!
//! ```text
//!   SIGUSR2 ─▶ checks ─▶ Successor starts (a fiber) ─▶ Asked::Prepared ─▶ it hands over (a fiber) ─▶ Asked::HandedOver ─▶ end
//!                 └─ refused ─┐                            └─ failed ─┐                                └─ failed ─┐
//!                             └──────────── a line in the log, and the server goes on ────────────────────────────┘
//! ```
//!
//! Only the first fiber of the server changes this state. If this process is asked to end during a handover, it
//! finishes the handover first: the new process serves by then, and must keep everything that it takes over.

use std::env;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use osier::JoinHandle;
use osier_web::SocketFile;
use osier_web::upgrade::{Item, Program, Successor};

use crate::config::Bind;
use crate::process::root::inside;

use super::Origin;
use super::arrival::{CONFINEMENT, MEMORY, NOTIFY, PID_FILE, TICKETS};
use super::signals::{Asked, Requests};
use super::sites::Sites;

/// The state of an upgrade.
#[derive(Default)]
pub struct Upgrading {
    outcome: Arc<Mutex<Outcome>>,
    is_busy: bool,
    /// The fiber that hands over.
    handover: Option<JoinHandle<()>>,
    /// The servers of the new process.
    servers: Vec<String>,
    /// The servers of this process that it could not bind again, and keeps until the handover is over.
    kept: Vec<String>,
    /// The socket files that go when the new process serves. They are taken before the sockets close, so nobody else's can be among them.
    files: Arc<Mutex<Vec<(Bind, SocketFile)>>>,
    /// Whether a reload was requested during the upgrade.
    reload_waits: bool,
}

/// The result of a step, which the step's fiber leaves for the first fiber.
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

    /// Delays a reload until the upgrade has failed. After a successful one, the new process has read the
    /// configuration.
    pub fn delay_reload(&mut self) {
        self.reload_waits = true;
    }

    /// Begins an upgrade. [`Asked::Prepared`] follows.
    ///
    /// # Errors
    /// One line: why the upgrade cannot begin. Nothing has changed then.
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
            let prepared = upgrade.start(&program).map_err(String::from);
            *lock(&outcome) = Outcome::Prepared(prepared);
            requests.add(Asked::Prepared);
        }));
        Ok(())
    }

    /// Hands over to the new process, if it is ready. [`Asked::HandedOver`] follows.
    ///
    /// # Errors
    /// One line: why the new process is not ready.
    pub fn hand_over(&mut self, sites: &mut Sites, requests: &Arc<Requests>) -> Result<(), String> {
        let Outcome::Prepared(prepared) = std::mem::take(&mut *lock(&self.outcome)) else {
            return Ok(());
        };
        let mut successor = prepared.inspect_err(|_| self.is_busy = false)?;
        let id = successor.id();
        self.servers = successor.servers().to_vec();
        let (kept, files) = sites.leave(|name| self.takes(name));
        self.kept = kept;
        successor.keep(self.kept.clone());
        *lock(&self.files) = files;
        let files = Arc::clone(&self.files);
        successor.before_closing(move || lock(&files).clear());
        let say = &sites.process.say;
        say.info(format_args!("upgrade: process {id} is ready, and takes over"));
        for kept in &self.kept {
            say.info(format_args!(
                "upgrade: {kept} stays open until the end of the handover: this process could not open it again if the new one failed"
            ));
        }
        let (outcome, requests) = (Arc::clone(&self.outcome), Arc::clone(requests));
        let notify = sites.process.notify.clone();
        let fiber = osier::fiber::Builder::new().name("upgrade");
        self.handover = Some(fiber.spawn(move || {
            let mut serves = false;
            let done = successor.hand_over(|| {
                serves = true;
                notify.main_process(id);
                requests.add(Asked::TakenOver);
            });
            if serves && done.is_err() {
                notify.main_process(std::process::id());
            }
            *lock(&outcome) = Outcome::HandedOver(done.map_err(String::from));
            requests.add(Asked::HandedOver);
        }));
        Ok(())
    }

    /// Ends a handover that is under way, because this process shuts down. Returns whether the new process has taken
    /// over.
    ///
    /// # Suspends
    /// Until the connections at rest have moved.
    pub fn finish(&mut self, sites: &Sites) -> bool {
        let Some(handover) = self.handover.take() else {
            return false;
        };
        sites.process.upgrade.end_soon();
        let _ = handover.join();
        matches!(*lock(&self.outcome), Outcome::HandedOver(Ok(())))
    }

    /// Ends the upgrade once the handover is over. Returns when the new process has taken over.
    ///
    /// # Errors
    /// One line: why the new process has not taken over.
    pub fn end(&mut self) -> Result<(), String> {
        match std::mem::take(&mut *lock(&self.outcome)) {
            Outcome::HandedOver(Err(why)) => {
                (self.is_busy, self.handover) = (false, None);
                Err(why)
            }
            _ => Ok(()),
        }
    }

    /// Whether the new process has the server of this name.
    pub fn takes(&self, name: &str) -> bool {
        self.servers.iter().any(|known| known == name)
    }

    /// Whether the server of this name stops listening when the new process serves.
    pub fn gives_up(&self, name: &str) -> bool {
        !self.takes(name) && !self.kept.iter().any(|known| known == name)
    }

    /// Takes the socket files that are still there, because the new process has never served.
    pub fn take_files(&mut self) -> Vec<(Bind, SocketFile)> {
        std::mem::take(&mut *lock(&self.files))
    }

    /// Returns whether a delayed reload is due, and forgets it.
    pub fn take_reload(&mut self) -> bool {
        std::mem::take(&mut self.reload_waits)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program to start, with its arguments and the items for [`arrival`](super::arrival).
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
        .give(CONFINEMENT, confinement.item())
        .give(MEMORY, process.memory.item());
    let of_descriptor = |descriptor, bytes: &[u8]| Item {
        bytes: bytes.to_vec(),
        descriptors: vec![descriptor],
    };
    let tickets = process.tickets.export();
    if !tickets.is_empty() {
        let item = Item {
            bytes: tickets,
            descriptors: Vec::new(),
        };
        program = program.give(TICKETS, item);
    }
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
