//! Signals besides those of the shutdown, and what the service manager is told.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, Server, Signal, osier};

const SITE: &str = "[[site]]\ndefault = true\n[[site.route]]\nrespond = \"x\"\n";

/// The service manager's end of NOTIFY_SOCKET.
fn manager(folder: &Folder) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
    socket.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
    socket
}

fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 2000];
    let count = manager.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}

#[test]
fn usr1_opens_logs_anew() {
    let folder = Sites::folder();
    let file = format!("log = {{ file = \"log\" }}\n{SITE}");
    let mut sites = Sites::start_in(folder, &file);
    let (log, old) = (sites.folder.join("log"), sites.folder.join("log.1"));
    let lines = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    sites.get("x", "/first");
    wait_for("the first line", || lines(&log).contains("/first"));
    fs::rename(&log, &old).unwrap();
    sites.server.signal(Signal::USR1);
    sites.wait_until_said("osier: the log files are open anew");
    sites.get("x", "/second");
    wait_for("the second line", || lines(&log).contains("/second"));
    assert!(!lines(&old).contains("/second"));
    assert!(!sites.said().contains("reloaded"), "{}", sites.said());
    assert!(sites.server.is_running());
    assert_eq!(sites.get("x", "/").text(), "x");
}

#[test]
fn a_folder_takes_the_same_signals() {
    let folder = Folder::new();
    folder.write("www/a.txt", "a");
    let (log, said) = (folder.join("log"), folder.join("stderr"));
    let mut command = osier();
    command
        .args(["www", "-l", "127.0.0.1:0", "--log-file", "log"])
        .current_dir(folder.path());
    command.stderr(fs::File::create(&said).unwrap());
    let mut server = Server::spawn(command);
    let says = |text: &str| wait_for(text, || fs::read_to_string(&said).unwrap().contains(text));
    fs::rename(&log, folder.join("log.1")).unwrap();
    server.signal(Signal::USR1);
    says("the log files are open anew");
    assert!(log.exists());
    server.signal(Signal::HUP);
    says("osier: reloaded 'www'");
    assert_eq!(server.get("/a.txt").text(), "a");
    server.signal(Signal::USR2);
    says("is ready, and takes over");
    assert!(server.wait().success());
    assert_eq!(server.get("/a.txt").text(), "a");
    let said = fs::read_to_string(&said).unwrap();
    let new = said
        .split("upgrade: process ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let new = rustix::process::Pid::from_raw(new.unwrap().parse().unwrap()).unwrap();
    rustix::process::kill_process(new, Signal::TERM).unwrap();
}

#[test]
fn a_failed_reload_tells_its_reason() {
    let folder = Sites::folder();
    let manager = manager(&folder);
    let path = folder.join("notify");
    let sites = Sites::start_with(folder, SITE, |command| {
        command.env("NOTIFY_SOCKET", path);
    });
    assert!(heard(&manager).starts_with("READY=1\n"));
    let said = sites.reload(&SITE.replace("\"x\"", "9"));
    assert!(said.contains("the old configuration stays"), "{said}");
    assert!(heard(&manager).starts_with("RELOADING=1\n"));
    let status = heard(&manager);
    assert!(
        status.contains("STATUS=the reload failed, the old configuration stays: "),
        "{status}"
    );
    assert!(
        status.contains("site.toml:5:11: 'respond' must be a whole number"),
        "{status}"
    );
    assert_eq!(status.lines().count(), 2, "{status}");
    assert!(sites.reload(SITE).contains("reloaded"));
    assert!(heard(&manager).starts_with("RELOADING=1\n"));
    assert_eq!(heard(&manager), "READY=1\nSTATUS=1 site, 1 route, 1 listener");
}

#[test]
fn the_watchdog_is_served_while_every_worker_runs() {
    let start = |prepare: &dyn Fn(&mut Command)| {
        let folder = Sites::folder();
        let manager = manager(&folder);
        let path = folder.join("notify");
        let sites = Sites::start_with(folder, SITE, |command| {
            command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "600000");
            prepare(command);
        });
        assert!(heard(&manager).starts_with("READY=1\n"));
        (sites, manager)
    };
    let (sites, manager) = start(&|_| {});
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(heard(&manager), "WATCHDOG=1");
    }
    // Five of them, 200 ms apart. None comes without a pause.
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    assert_eq!(sites.get("x", "/").text(), "x");
    // It belongs to another process.
    let (_sites, manager) = start(&|command| {
        command.env("WATCHDOG_PID", "1");
    });
    manager.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(manager.recv(&mut [0; 100]).is_err());
}
