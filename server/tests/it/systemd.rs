//! The packaged service under a real systemd.
//!
//! `systemd/machine.sh` starts systemd as process 1 of namespaces, which have the units of `packaging/` and a loopback network of their own.
//! This test runs itself again inside, as [`inside`], so that its connections and its `systemctl` are those of that machine. Nothing of it
//! is seen outside, and all of it ends with the machine.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::serving::{fixed, has_ended};
use crate::support::{Client, Folder};
use crate::upgrade::{InFlight, load};

/// The status of `machine.sh` where a machine cannot be made.
const CANNOT: i32 = 77;
/// `machine.sh` sets it inside.
const MARK: &str = "OSIER_TEST_MACHINE";
/// The longest wait for the machine. Its boot takes two seconds, and has taken half a minute on a busy system.
const PATIENCE: Duration = Duration::from_secs(180);
const FILE: &str = "/etc/osier/site.toml";
const PROGRAM: &str = "/usr/bin/osier";
/// The script of the package that runs after its files have been unpacked.
const POSTINST: &str = "/etc/osier/postinst";

#[test]
fn the_packaged_service_under_a_real_systemd() {
    let (folder, here) = (Folder::new(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-eu"]);
    command.arg(here.join("tests/it/systemd/machine.sh")).arg(folder.path());
    command
        .arg(env!("CARGO_BIN_EXE_osier"))
        .arg(here.join("../packaging").canonicalize().unwrap());
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "systemd::inside", "--ignored", "--nocapture"]);
    let Ok(output) = command.output() else {
        return testkit::skip("there is no unshare");
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) if said.contains("1 passed") => {}
        // unshare ends with 1, and says why.
        Some(CANNOT | 1) if !said.contains("machine.sh") => {
            testkit::skip(format_args!("no systemd can be started: {}", said.trim()));
        }
        _ => panic!("{said}"),
    }
}

#[test]
#[ignore = "the inside of another test: cargo test -p osier-server --test it systemd::the_packaged_service"]
fn inside() {
    if std::env::var_os(MARK).is_none() {
        return testkit::skip("another test runs it, inside a machine");
    }
    wait_for("the end of the boot", || {
        let state = Command::new("systemctl").arg("is-system-running").output().unwrap();
        state.stdout == b"running\n"
    });
    for (name, step) in [
        ("starts and reloads", starts_and_reloads as fn()),
        ("upgrades", upgrades),
        ("upgrades that fail", upgrades_that_fail),
        ("upgrades of the package", upgrades_of_the_package),
        ("stops", stops),
        ("restarts", restarts),
        ("a socket unit", a_socket_unit),
    ] {
        let begun = Instant::now();
        if let Err(panic) = std::panic::catch_unwind(step) {
            print!("{}", journal());
            std::panic::resume_unwind(panic);
        }
        println!("{name}: {:?}", begun.elapsed());
    }
}

fn starts_and_reloads() {
    systemctl("start osier");
    assert_eq!(property("ActiveState"), "active");
    assert_eq!(property("StatusText"), "1 site, 1 route, 1 listener");
    assert_ne!(fs::metadata(format!("/proc/{}", main_process())).unwrap().uid(), 0);
    // The file of the packages has the built-in site.
    let mut client = connect();
    client.send("GET", "/", &[]);
    assert_eq!(client.receive("GET").status, 200);
    let old = main_process();
    let said = run(PROGRAM, &["upgrade", FILE]);
    wait_for("the end of the old process", || has_ended(old));
    let new = main_process();
    assert_eq!(said, format!("osier: process {new} has taken over from process {old}"));

    write(&file(""));
    systemctl("reload osier");
    wait_for("the new configuration", || {
        journal().contains("reloaded /etc/osier/site.toml")
    });
    assert_eq!(fixed(&mut client), "answer");

    write(&format!("workerz = 1\n{}", file("")));
    let refused = try_systemctl("reload osier");
    assert!(!refused.status.success(), "{refused:?}");
    assert!(journal().contains("unknown key 'workerz'"));
    assert_eq!(property("ActiveState"), "active");
    // The check of the unit has kept that from the server, which checks it, too.
    signal("HUP");
    wait_for("the status", || {
        property("StatusText")
            .starts_with("the reload failed, the old configuration stays: /etc/osier/site.toml:1:1: unknown key")
    });
    assert_eq!(fixed(&mut client), "answer");

    write(&file(""));
    systemctl("reload osier");
    wait_for("the status", || {
        property("StatusText") == "1 site, 2 routes, 1 listener"
    });
}

/// Also three in a row. No client notices any.
fn upgrades() {
    let address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients = [true, false].map(|is_kept| {
        let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
        thread::spawn(move || load(address, is_kept, &stop, &answers))
    });
    let mut kept = connect();
    assert_eq!(fixed(&mut kept), "answer");
    for _ in 0..3 {
        let seen = answers.load(Ordering::Relaxed);
        upgrade();
        wait_for("more answers", || answers.load(Ordering::Relaxed) > seen + 20);
        assert_eq!(fixed(&mut kept), "answer");
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap().unwrap();
    }
    assert_eq!(fixed(&mut kept), "answer");
    assert_eq!(
        (property("ActiveState"), property("NRestarts")),
        ("active".into(), "0".into())
    );
}

fn upgrades_that_fail() {
    let (old, mut kept) = (main_process(), connect());
    fs::write("/run/broken", "#!/bin/sh\nexit 3\n").unwrap();
    run("chmod", &["755", "/run/broken"]);
    write(&file("upgrade.program = \"/run/broken\"\n"));
    systemctl("reload osier");
    signal("USR2");
    wait_for("the status", || {
        property("StatusText")
            == "the upgrade failed, the old process goes on: '/run/broken' has ended before it was ready (exit status: 3)"
    });
    write(&file(""));
    systemctl("reload osier");
    wait_for("the status", || {
        property("StatusText") == "1 site, 2 routes, 1 listener"
    });
    write(&format!("workerz = 1\n{}", file("")));
    signal("USR2");
    wait_for("the status", || {
        property("StatusText").contains("cannot take over: /etc/osier/site.toml:1:1: unknown key")
    });
    assert!(
        journal().contains("unknown key 'workerz' in the file; did you mean 'workers'?; this process goes on serving")
    );
    assert_eq!((property("ActiveState"), main_process()), ("active".into(), old));
    assert_eq!(fixed(&mut kept), "answer");
    write(&file(""));
    upgrade();
    assert_eq!(property("StatusText"), "1 site, 2 routes, 1 listener");
    assert_eq!(fixed(&mut kept), "answer");

    // One that dies while the old process is busy.
    let backend = TcpListener::bind("127.0.0.1:9000").unwrap();
    let (old, mut in_flight) = (main_process(), InFlight::over(connect(), &backend));
    signal("USR2");
    wait_for("the new main process", || main_process() != old);
    signal("KILL");
    wait_for("the old main process", || main_process() == old);
    wait_for("the status", || {
        property("StatusText").contains("this one serves again")
    });
    in_flight.end();
    assert_eq!(fixed(&mut connect()), "answer");
    assert_eq!(property("NRestarts"), "0");
}

/// The server hands over to the new program. It is restarted only if it cannot, and goes on if a restart would end it.
fn upgrades_of_the_package() {
    if !["deb-systemd-helper", "deb-systemd-invoke"].into_iter().all(is_there) {
        return testkit::skip("this is no Debian: the scripts of the package cannot run");
    }
    let configure = || {
        let mut script = Command::new(POSTINST);
        script
            .args(["configure", "0.0.1-1"])
            .env("DPKG_MAINTSCRIPT_PACKAGE", "osier");
        let output = script.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let begun = || property("ActiveEnterTimestampMonotonic");
    let backend = TcpListener::bind("127.0.0.1:9000").unwrap();
    let (old, since, mut kept) = (main_process(), begun(), connect());
    assert_eq!(fixed(&mut kept), "answer");
    let mut in_flight = InFlight::over(connect(), &backend);
    let said = configure();
    let new = main_process();
    assert!(
        said.contains(&format!("process {new} has taken over from process {old}")),
        "{said}"
    );
    in_flight.end();
    assert_eq!(fixed(&mut kept), "answer");
    wait_for("the end of the old process", || has_ended(old));
    assert_eq!((property("ActiveState"), begun()), ("active".into(), since.clone()));

    let old = main_process();
    write(&format!("workerz = 1\n{}", file("")));
    let said = configure();
    assert!(said.contains("unknown key 'workerz'"), "{said}");
    assert!(said.contains("the old program goes on serving"), "{said}");
    assert_eq!((main_process(), fixed(&mut kept)), (old, "answer".into()));

    write(&file("").replace("pid_file", "# pid_file"));
    let said = configure();
    assert!(said.contains("names no 'pid_file'"), "{said}");
    assert_ne!(begun(), since);
    assert_eq!(fixed(&mut connect()), "answer");

    // The administrator forbids restarts.
    write(&file(""));
    systemctl("restart osier");
    let old = main_process();
    write_to("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n");
    run("chmod", &["755", "/usr/sbin/policy-rc.d"]);
    configure();
    fs::remove_file("/usr/sbin/policy-rc.d").unwrap();
    assert_eq!((property("ActiveState"), main_process()), ("active".into(), old));
}

/// In-flight requests have their time: in the process that systemd has started, in the new one of an upgrade, and in both of them.
fn stops() {
    let backend = TcpListener::bind("127.0.0.1:9000").unwrap();
    let begin = || InFlight::over(connect(), &backend);
    for (is_upgraded, is_old_busy) in [(false, false), (true, false), (true, true)] {
        let old = main_process();
        let mut in_flight: Vec<InFlight> = is_old_busy.then(begin).into_iter().collect();
        if is_upgraded {
            signal("USR2");
            wait_for("the new process", || main_process() != old);
            wait_for("the end of the old process", || is_old_busy || has_ended(old));
        }
        in_flight.push(begin());
        systemctl("stop --no-block osier");
        let stopping = format!("osier[{}]: stopping: ", main_process());
        wait_for("the shutdown", || journal().contains(&stopping));
        for request in &mut in_flight {
            request.end();
        }
        wait_for("the end", || property("ActiveState") != "deactivating");
        assert_eq!(
            (property("ActiveState"), property("Result")),
            ("inactive".into(), "success".into())
        );
        systemctl("start osier");
    }
}

fn restarts() {
    upgrade();
    signal("KILL");
    restarted("1");

    write_to(
        "/etc/systemd/system/osier.service.d/test.conf",
        "[Service]\nWatchdogSec=1\n",
    );
    systemctl("daemon-reload");
    systemctl("restart osier");
    upgrade();
    // The new process serves the watchdog.
    for _ in 0..2 {
        let last = property("WatchdogTimestampMonotonic");
        wait_for("a sign of life", || property("WatchdogTimestampMonotonic") != last);
    }
    signal("STOP");
    restarted("1");
    assert!(journal().contains("Watchdog timeout"));
    fs::remove_file("/etc/systemd/system/osier.service.d/test.conf").unwrap();
    systemctl("daemon-reload");
}

fn a_socket_unit() {
    let text = file("").replace("127.0.0.1:8080", "systemd:web");
    write(&text);
    for step in documented_steps() {
        systemctl(step);
    }
    assert_eq!(property("ActiveState"), "active");
    systemctl("stop osier");
    // The first connection starts it.
    assert_eq!(property("ActiveState"), "inactive");
    let mut kept = Client::new(SocketAddr::from(([127, 0, 0, 1], 80)));
    assert_eq!(fixed(&mut kept), "answer");
    for _ in 0..2 {
        upgrade();
        assert_eq!(fixed(&mut kept), "answer");
    }
    signal("STOP");
    let state = format!("/proc/{}/stat", main_process());
    wait_for("its stop", || fs::read_to_string(&state).unwrap().contains(") T "));
    let mut waiting = Client::new(SocketAddr::from(([127, 0, 0, 1], 80)));
    waiting.send("GET", "/fixed", &[]);
    signal("KILL");
    // The backlog has stayed.
    assert_eq!(waiting.receive("GET").text(), "answer");
    systemctl("stop osier.socket osier");
    assert_eq!(property("Result"), "success");
}

/// The steps of docs/install.md after the change of the file.
fn documented_steps() -> impl Iterator<Item = &'static str> {
    let section = include_str!("../../../docs/install.md")
        .split("### Socket activation")
        .nth(1)
        .unwrap();
    let lines = section.split("```").nth(1).unwrap().lines();
    lines.filter_map(|line| Some(line.strip_prefix("sudo systemctl ")?.split("  ").next().unwrap()))
}

#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    testkit::wait_within(PATIENCE, what, || condition().then_some(()));
}

fn restarted(times: &str) {
    wait_for("the restart", || {
        property("NRestarts") == times && property("ActiveState") == "active"
    });
    assert_eq!(fixed(&mut connect()), "answer");
}

/// Upgrades, and waits until the old process has ended.
fn upgrade() {
    let old = main_process();
    signal("USR2");
    wait_for("the new main process", || main_process() != old);
    wait_for("the end of the old process", || has_ended(old));
    assert_eq!(property("ActiveState"), "active");
}

/// The configuration.
fn file(top: &str) -> String {
    format!(
        "{top}pid_file = \"/run/osier/osier.pid\"\nworkers = 2\n[[listen]]\naddress = \"127.0.0.1:8080\"\n[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/fixed\"\nrespond = \"answer\"\n\
         [[site.route]]\npath = \"/up\"\nproxy = {{ to = \"127.0.0.1:9000\", buffer = false }}\n"
    )
}

fn write(text: &str) {
    write_to(FILE, text);
}

fn write_to(path: &str, text: &str) {
    fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn connect() -> Client {
    Client::new(SocketAddr::from(([127, 0, 0, 1], 8080)))
}

fn main_process() -> i32 {
    property("MainPID").parse().unwrap()
}

fn property(name: &str) -> String {
    run("systemctl", &["show", "osier", "--value", "--property", name])
}

/// Sends a signal to the main process.
fn signal(name: &str) {
    systemctl(&format!("kill --kill-who=main --signal={name} osier"));
}

fn journal() -> String {
    run("journalctl", &["--unit=osier", "--no-pager"])
}

fn systemctl(words: &str) {
    run("systemctl", &words.split(' ').collect::<Vec<_>>());
}

fn try_systemctl(words: &str) -> Output {
    Command::new("systemctl").args(words.split(' ')).output().unwrap()
}

fn is_there(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$0\" >/dev/null", program])
        .status();
    found.is_ok_and(|status| status.success())
}

/// Runs a program that succeeds. Returns what it says.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}
