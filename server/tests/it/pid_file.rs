//! The PID file belongs to one server, and `osier upgrade` signals nothing but a server.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use testkit::{eventually, wait_for};

use crate::support::serving::{Serving, file, has_ended};
use crate::support::sites::Sites;
use crate::support::{Folder, Server, Signal, osier};

/// A process that ends with the test.
struct Process(Child);

impl Process {
    /// A process that SIGUSR2 would end.
    fn sleep() -> Process {
        Process(Command::new("sleep").arg("600").spawn().unwrap())
    }

    /// Starts a second server, which has to end. Returns its status and what it says.
    fn second(folder: &Folder) -> (Option<i32>, String) {
        let said = folder.join("second");
        let mut command = osier();
        command.arg("second.toml").current_dir(folder.path());
        command.stderr(File::create(&said).unwrap());
        let mut second = Process(command.spawn().unwrap());
        let status = wait_for("the end of the second server", || second.0.try_wait().unwrap());
        (status.code(), fs::read_to_string(said).unwrap())
    }

    fn id(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn upgrade(folder: &Folder, of: &[&str]) -> (Option<i32>, String) {
    let mut command = osier();
    let output = command
        .arg("upgrade")
        .args(of)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn upgrade_leaves_other_processes_alone() {
    let folder = Sites::folder();
    let sleep = Process::sleep();
    let id = sleep.id();
    // The child may not have become `sleep` yet.
    let comm = || fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
    eventually("the sleep", || comm() == "sleep\n");
    folder.write("pid", format!("{id}\n"));
    folder.write("site.toml", file("", "x"));
    let expected = format!("osier: process {id} is 'sleep' and no running osier server");
    for of in [id.to_string(), "site.toml".into()] {
        let (status, said) = upgrade(&folder, &[&of]);
        assert!(status == Some(2) && said.starts_with(&expected), "{of}: {said}");
    }
    assert!(!has_ended(id));
    for of in ["0", "-1", "-2147483648"] {
        let (status, said) = upgrade(&folder, &["--", of]);
        assert_eq!((status, said), (Some(2), format!("osier: {of} is not a process id\n")));
    }
}

#[test]
fn a_second_server_may_not_have_the_same_pid_file() {
    let first = Serving::start(&file("", "first"));
    let id = first.id();
    let folder = &first.0.folder;
    folder.write(
        "second.toml",
        format!("{}[[listen]]\naddress = \"127.0.0.1:0\"\n", file("", "second")),
    );
    let (status, text) = Process::second(folder);
    let expected = format!("/pid' (process {id}); stop it, or give each server its own 'pid_file'");
    assert!(status == Some(2) && text.contains(&expected), "{text}");
    assert_eq!(first.id(), id);
    // The new process of an upgrade takes the file over, and the next one from it.
    let second = first.upgrade();
    eventually("the end of the first process", || has_ended(id));
    assert!(Process::second(folder).1.contains(&format!("(process {second})")));
    first.upgrade();
    first.signal(Signal::TERM);
    eventually("the end of the file", || !folder.join("pid").exists());
}

#[test]
fn the_file_of_a_dead_server_stops_nobody() {
    let folder = Sites::folder();
    // The id belongs to something else by now.
    let sleep = Process::sleep();
    folder.write("pid", format!("{}\n", sleep.id()));
    folder.write(
        "site.toml",
        format!("workers = 2\n{}[[listen]]\naddress = \"127.0.0.1:0\"\n", file("", "x")),
    );
    let start = || {
        let mut command = osier();
        command
            .arg("site.toml")
            .current_dir(folder.path())
            .stderr(Stdio::null());
        Server::spawn(command)
    };
    let written = || fs::read_to_string(folder.join("pid")).unwrap_or_default();
    for end in [Signal::KILL, Signal::TERM] {
        let mut server = start();
        eventually("the id", || written() == format!("{}\n", server.id()));
        server.signal(end);
        server.wait();
    }
    assert!(!folder.join("pid").exists());
}
