//! A server whose process changes by upgrades.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::thread;

use rustix::process::{Pid, kill_process, kill_process_group};

use super::sites::{Sites, send, wait_for};
use super::{Client, Folder, Signal, osier};

const ROUTES: &str = "[[site]]\ndefault = true\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n\
     [[site.route]]\nfiles = \"www\"\n";

pub fn file(top: &str, answer: &str) -> String {
    format!("pid_file = \"pid\"\n{top}\n{}", ROUTES.replace('@', answer))
}

/// A server whose process changes. Its drop ends every process that has served: they have one group.
pub struct Serving(pub Sites);

impl Serving {
    pub fn start(text: &str) -> Serving {
        Serving::start_in(Sites::folder(), text)
    }

    pub fn start_in(folder: Folder, text: &str) -> Serving {
        Serving::start_with(folder, text, |_| {})
    }

    pub fn start_with(folder: Folder, text: &str, prepare: impl FnOnce(&mut Command)) -> Serving {
        Serving(Sites::start_with(folder, text, |command| {
            command.process_group(0);
            prepare(command);
        }))
    }

    /// The id of the process that serves, as the PID file has it.
    pub fn id(&self) -> i32 {
        let read = || fs::read_to_string(self.0.folder.join("pid")).ok()?.trim().parse().ok();
        testkit::wait_for("a PID file", read)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id()).unwrap(), signal).unwrap();
    }

    /// Runs `osier upgrade`.
    pub fn ask(&self) -> Output {
        let mut command = osier();
        command.args(["upgrade", "site.toml"]).current_dir(self.0.folder.path());
        command.output().unwrap()
    }

    /// Upgrades, and returns the id of the new process.
    pub fn upgrade(&self) -> i32 {
        let old = self.id();
        let output = self.ask();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let new = self.id();
        assert!(output.status.success(), "{output:?}\n{}", self.0.said());
        let expected = format!("osier: process {new} has taken over from process {old}\n");
        assert_eq!(said, expected);
        new
    }

    /// Asks for an upgrade that fails. Returns what the server says then.
    pub fn fail(&self) -> String {
        let (old, before) = (self.id(), self.0.said().len());
        let output = self.ask();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(&format!("process {old} goes on")), "{told}");
        assert_eq!(self.id(), old);
        self.0.said()[before..].to_owned()
    }

    /// Writes a program for the next upgrade.
    pub fn program(&self, text: &str) {
        let path = self.0.folder.join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Waits until the first process has ended, which it does when it has no connection left.
    pub fn first_has_ended(&mut self) {
        let status = self.0.server.wait();
        assert!(status.success(), "{status:?}\n{}", self.0.said());
    }

    /// Upgrades, and waits until the old process has ended.
    pub fn replace(&self) {
        let old = self.id();
        self.upgrade();
        wait_for("the end of the old process", || has_ended(old));
    }
}

/// Whether the process has ended. Nobody may have noticed yet.
pub fn has_ended(id: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{id}/stat"));
    state.map_or(true, |state| state.contains(") Z "))
}

impl Drop for Serving {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", self.0.said());
        }
        // The process before the last one would serve again if that one ended alone.
        let _ = kill_process_group(Pid::from_raw(self.0.server.id() as i32).unwrap(), Signal::KILL);
    }
}

/// Asks for `/fixed` on an open connection.
pub fn fixed<S: Read + Write>(client: &mut Client<S>) -> String {
    send(client, "GET", "x", "/fixed", &[]);
    let reply = client.receive("GET");
    assert_eq!((reply.status, reply.field("connection")), (200, None));
    reply.text().to_owned()
}
