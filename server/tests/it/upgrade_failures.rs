//! Upgrades that fail, that a shutdown ends, and whose new process dies: the old process goes on or serves again.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use rustix::process::{Pid, kill_process};

use crate::config_system::with_sockets;
use crate::support::serving::{Serving, file, fixed, has_ended};
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, DEADLINE, Server, Signal, osier, pattern, urls};
use crate::upgrade::{InFlight, ask_unix, echoes, echoing_backend, tunnel, with_backend};

#[test]
fn a_new_process_that_cannot_serve_changes_nothing() {
    let within = |time: &str| {
        file(
            &format!("[upgrade]\nprogram = \"program\"\ntimeout = \"{time}\""),
            "old",
        )
    };
    let mut sites = Serving::start(&within("5m"));
    let mut client = sites.0.connect();
    assert_eq!(fixed(&mut client), "old");
    fs::write(sites.0.folder.join("hello"), hello_of_version_9()).unwrap();
    for (program, expected) in [
        ("exit 3", "has ended before it was ready (exit status: 3)"),
        ("kill -SEGV $$", "has ended before it was ready (signal: 11"),
        ("exec sleep 60", "was not ready within 0.3 s"),
        (
            "cat hello >&0; exec sleep 60",
            "speaks version 9 of the upgrade protocol, this one version 3: restart the server instead",
        ),
        (
            "echo nonsense nonsense >&0; exec sleep 60",
            "the head of a message is malformed",
        ),
        ("exec cat >&0", "cannot take over: the head of a message is malformed"),
    ] {
        sites.program(program);
        let is_late = expected.contains("0.3 s");
        if is_late {
            sites.0.reload(&within("300ms"));
        }
        let said = sites.fail();
        if is_late {
            sites.0.reload(&within("5m"));
        }
        assert!(
            said.contains(expected) && said.contains("; this process goes on"),
            "{program}: {said}"
        );
        assert_eq!(fixed(&mut client), "old");
        assert_eq!(sites.0.get("x", "/fixed").text(), "old");
    }
    fs::remove_file(sites.0.folder.join("program")).unwrap();
    let said = sites.fail();
    assert!(
        said.contains("cannot start '") && said.contains("No such file"),
        "{said}"
    );
    // This program takes over, once its configuration has no mistake.
    let program = env!("CARGO_BIN_EXE_osier");
    sites.program(&format!("exec {program} \"$@\""));
    let good = fs::read_to_string(sites.0.folder.join("site.toml")).unwrap();
    fs::write(sites.0.folder.join("site.toml"), format!("workerz = 1\n{good}")).unwrap();
    let before = sites.0.said().len();
    sites.signal(Signal::USR2);
    wait_for("the refusal", || {
        sites.0.said()[before..].contains("this process goes on")
    });
    let said = sites.0.said()[before..].to_owned();
    assert!(said.contains("unknown key 'workerz'"), "{said}");
    assert_eq!(fixed(&mut client), "old");
    fs::write(sites.0.folder.join("site.toml"), good.replace("\"old\"", "\"new\"")).unwrap();
    sites.upgrade();
    sites.first_has_ended();
    assert_eq!(fixed(&mut client), "new");
}

/// The first message of a process of version 9, whose id is 1.
fn hello_of_version_9() -> Vec<u8> {
    // The length, the kind, and the CRC-32 of the rest.
    let head = [14, 0, 0, 0, 1, 0, 0, 0, 146, 119, 221, 142];
    [&head[..], b"osier-up", &[9, 0, 1, 0, 0, 0]].concat()
}

#[test]
fn one_upgrade_at_a_time_and_a_shutdown_ends_it() {
    let mut sites = Serving::start(&file("[upgrade]\nprogram = \"program\"\ntimeout = \"60s\"", "x"));
    sites.program("echo $$ > child; exec sleep 600");
    sites.signal(Signal::USR2);
    let child = testkit::wait_for("the new process", || {
        let id = fs::read_to_string(sites.0.folder.join("child"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        Pid::from_raw(id)
    });
    sites.signal(Signal::USR2);
    sites
        .0
        .wait_until_said("upgrade: another upgrade is under way; this process goes on");
    sites.signal(Signal::HUP);
    sites.0.wait_until_said("SIGHUP waits");
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
    sites.signal(Signal::TERM);
    sites.first_has_ended();
    wait_for("the end of the new process", || has_ended(child.as_raw_pid()));
    assert!(!sites.0.folder.join("pid").exists());
}

fn kill(id: i32, signal: Signal) {
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

/// A listener at a Unix socket, besides one at a port.
const UNIX: &str = "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:socket\"\n";

#[test]
fn a_shutdown_of_the_old_process_leaves_the_new_one_and_its_files() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!("{}{UNIX}", with_backend(&backend, ""));
    let mut sites = Serving::start(&text);
    let path = sites.0.folder.join("socket");
    let mut in_flight = InFlight::begin(&sites, &backend);
    let old = sites.id();
    let new = sites.upgrade();
    kill(old, Signal::TERM);
    sites
        .0
        .wait_until_said("and this one ends; 1 connection is open; in-flight requests get at most 10 s");
    // The old process finishes the request.
    assert!(!in_flight.end());
    sites.first_has_ended();
    assert_eq!(sites.id(), new);
    assert!(!has_ended(new));
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
    ask_unix(&mut UnixStream::connect(&path).unwrap());
}

#[test]
fn a_new_process_that_cannot_start_leaves_the_files_of_unix_sockets() {
    let text = format!("{}{UNIX}", file("[admin]\naddress = \"unix:admin\"", "x"));
    let mut sites = Serving::start(&text);
    let files = ["socket", "admin"].map(|name| sites.0.folder.join(name));
    // It fails once it has taken over the others.
    fs::create_dir(sites.0.folder.join("taken")).unwrap();
    let more = format!("{text}[[listen]]\naddress = \"unix:taken\"\n");
    fs::write(sites.0.folder.join("site.toml"), more).unwrap();
    let said = sites.fail();
    assert!(said.contains("cannot take over: "), "{said}");
    ask_unix(&mut UnixStream::connect(&files[0]).unwrap());
    assert!(files[1].exists());
    // The process that takes over removes them at its end.
    fs::write(sites.0.folder.join("site.toml"), text).unwrap();
    sites.upgrade();
    sites.first_has_ended();
    ask_unix(&mut UnixStream::connect(&files[0]).unwrap());
    assert!(files[1].exists());
    sites.signal(Signal::TERM);
    wait_for("the end of the files", || files.iter().all(|file| !file.exists()));
}

#[test]
fn a_shutdown_of_the_new_process_ends_the_old_one() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sites = Serving::start(&with_backend(&backend, ""));
    let mut in_flight = InFlight::begin(&sites, &backend);
    let new = sites.upgrade();
    sites.signal(Signal::TERM);
    wait_for("the end of the new process", || has_ended(new));
    sites
        .0
        .wait_until_said("and this one ends; 1 connection is open; in-flight requests get at most 10 s");
    assert!(!in_flight.end());
    sites.first_has_ended();
    assert!(!sites.0.said().contains("serves again"), "{}", sites.0.said());
    assert!(!sites.0.folder.join("pid").exists());
}

#[test]
fn a_shutdown_ends_the_processes_of_all_earlier_upgrades() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sites = Serving::start(&with_backend(&backend, ""));
    let mut in_flight = InFlight::begin(&sites, &backend);
    let second = sites.upgrade();
    let third = sites.upgrade();
    wait_for("the end of the second process", || has_ended(second));
    let ends = "and this one ends; 1 connection is open; in-flight requests get at most 10 s";
    assert!(!sites.0.said().contains(ends), "{}", sites.0.said());
    sites.signal(Signal::TERM);
    wait_for("the end of the third process", || has_ended(third));
    sites.0.wait_until_said(ends);
    assert!(!in_flight.end());
    sites.first_has_ended();
    // Nobody has the port any more.
    TcpListener::bind(sites.0.addresses[0]).unwrap();
}

/// The service manager takes notifications of every process of the service.
#[test]
fn the_old_process_does_not_hide_from_the_watchdog_that_the_new_one_is_stuck() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Sites::folder();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    let path = folder.join("notify");
    let mut sites = Serving::start_with(folder, &with_backend(&backend, ""), |command| {
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "300000");
    });
    let mut in_flight = InFlight::begin(&sites, &backend);
    let new = sites.upgrade();
    kill(new, Signal::STOP);
    // The last notifications of both. Then ten times the pause between two.
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let sent = (0..50).take_while(|_| manager.recv(&mut [0; 2000]).is_ok()).count();
    assert!(sent < 50, "the old process goes on");
    kill(new, Signal::KILL);
    // It is the service again.
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let heard = || {
        let mut buffer = [0; 2000];
        let count = manager.recv(&mut buffer).unwrap();
        buffer[..count].to_vec()
    };
    sites.0.wait_until_said("this process goes on serving");
    while heard() != b"WATCHDOG=1" {}
    assert!(in_flight.end());
    sites.signal(Signal::TERM);
    sites.first_has_ended();
}

#[test]
fn the_old_process_serves_again_with_all_listeners_when_the_new_one_crashes() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Sites::folder();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let (path, text) = (folder.join("notify"), with_backend(&backend, ""));
    let two = format!("{text}{UNIX}");
    let mut sites = Serving::start_with(folder, &two, |command| {
        command.env("NOTIFY_SOCKET", path);
    });
    let mut in_flight = InFlight::begin(&sites, &backend);
    let (old, socket) = (sites.id(), sites.0.folder.join("socket"));
    // The new configuration has one listener alone.
    let one = format!("{text}[[listen]]\naddress = \"127.0.0.1:0\"\n");
    fs::write(sites.0.folder.join("site.toml"), one).unwrap();
    let new = sites.upgrade();
    kill(new, Signal::KILL);
    // The old process may see its end before it reads that it serves.
    sites.0.wait_until_said("this process goes on serving");
    assert_eq!(sites.id(), old);
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
    // The new process had given it up, so it is another one.
    ask_unix(&mut UnixStream::connect(&socket).unwrap());
    assert!(in_flight.end());
    let back = format!("MAINPID={old}");
    let heard = || {
        let mut buffer = [0; 2000];
        let count = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    while heard() != back {}
    // With the configuration as before, the next upgrade succeeds.
    fs::write(sites.0.folder.join("site.toml"), two).unwrap();
    sites.upgrade();
    sites.first_has_ended();
}

/// The old process could not open a socket of systemd again, so it keeps it, and serves there if the new process fails.
#[test]
fn a_socket_of_systemd_and_a_port_of_the_system_are_kept_until_the_handover_is_over() {
    let (folder, web) = (Sites::folder(), TcpListener::bind("127.0.0.1:0").unwrap());
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = format!(
        "workers = 2\n{}[[listen]]\naddress = \"127.0.0.1:0\"\n",
        with_backend(&backend, "")
    );
    let chosen = "[[listen]]\naddress = \"127.0.0.2:0\"\n";
    let two = format!("{one}{chosen}[[listen]]\naddress = \"systemd:web\"\n");
    fs::write(folder.join("site.toml"), two).unwrap();
    let mut command = with_sockets(&folder, &[&web], "web");
    command.stderr(fs::File::create(folder.join("stderr")).unwrap());
    command.process_group(0);
    let server = Server::spawn(command);
    let web = web.local_addr().unwrap();
    let listening = urls(&server.ready_line).map(|url| url.split('/').next().unwrap().parse().unwrap());
    // The connection that keeps the handover from its end is one that moves.
    let addresses = listening.filter(|address| *address != web).collect();
    let sites = Serving(Sites {
        server,
        folder,
        addresses,
    });
    let mut in_flight = InFlight::begin(&sites, &backend);
    fs::write(sites.0.folder.join("site.toml"), one).unwrap();
    let new = sites.upgrade();
    let connect = || Client::over(TcpStream::connect(web).unwrap());
    let mut waiting = connect();
    send(&mut waiting, "GET", "x", "/fixed", &[]);
    kill(new, Signal::KILL);
    sites.0.wait_until_said("this process goes on serving");
    assert_eq!(waiting.receive("GET").text(), "x");
    assert_eq!(fixed(&mut connect()), "x");
    assert_eq!(
        fixed(&mut Client::over(TcpStream::connect(sites.0.addresses[1]).unwrap())),
        "x"
    );
    let said = sites.0.said();
    for kept in ["systemd:web", "127.0.0.2:0"] {
        assert!(
            said.contains(&format!("upgrade: {kept} stays open until the end of the handover")),
            "{said}"
        );
    }
    assert!(!said.contains("no longer listen"), "{said}");
    assert!(in_flight.end());
}

/// Somebody else has taken one of the addresses that the new process has given up: this one alone is lost, until a reload.
#[test]
fn the_old_process_binds_each_address_again_that_is_free() {
    let listen = |address: &str| format!("[[listen]]\naddress = \"{address}\"\n");
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = format!("workers = 2\n{}{}", with_backend(&backend, ""), listen("127.0.0.1:0"));
    let [taken, free] = ["127.0.0.2:0", "127.0.0.3:0"].map(|any| TcpListener::bind(any).unwrap().local_addr().unwrap());
    let gone: String = [&taken.to_string(), &free.to_string(), "unix:socket"]
        .map(listen)
        .concat();
    let sites = Serving::start(&format!("{one}{gone}"));
    let socket = sites.0.folder.join("socket");
    let mut in_flight = InFlight::begin(&sites, &backend);
    fs::write(sites.0.folder.join("site.toml"), &one).unwrap();
    let new = sites.upgrade();
    assert!(!socket.exists());
    let other = TcpListener::bind(taken).unwrap();
    kill(new, Signal::KILL);
    sites.0.wait_until_said("this process goes on serving");
    let said = sites.0.said();
    let why = |address: std::net::SocketAddr| format!("this process no longer listens on {address}: cannot listen");
    assert!(said.contains(&why(taken)) && !said.contains(&why(free)), "{said}");
    for mut client in [free, sites.0.addresses[0]].map(|address| Client::over(TcpStream::connect(address).unwrap())) {
        assert_eq!(fixed(&mut client), "x");
    }
    ask_unix(&mut UnixStream::connect(&socket).unwrap());
    assert!(in_flight.end());
    drop(other);
    sites.0.reload(&format!("{one}{gone}"));
    assert_eq!(fixed(&mut Client::over(TcpStream::connect(taken).unwrap())), "x");
    sites.signal(Signal::TERM);
    wait_for("the end of the file", || !socket.exists());
}

/// A message of the upgrade protocol.
fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let crc = payload.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    });
    let mut frame = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    frame.extend([kind, 0, 0, 0]);
    frame.extend((!crc).to_le_bytes());
    frame.extend(payload);
    frame
}

/// The new process is one that serves, and cannot read the first connections that it gets.
#[test]
fn a_new_process_that_takes_no_more_connections_goes_on_serving() {
    let mut sites = Serving::start(&file("[upgrade]\nprogram = \"program\"", "x"));
    let mut client = sites.0.connect();
    assert_eq!(fixed(&mut client), "x");
    let failed = message(13, b"\x05\0\0\0no rm");
    fs::write(sites.0.folder.join("said"), [serving(), failed].concat()).unwrap();
    sites.program("echo $$ > child; cat said >&0; exec sleep 600");
    sites.signal(Signal::USR2);
    wait_for("the failure", || {
        let said = sites.0.said();
        said.contains("upgrade: the new process takes no more connections: no rm; they end here")
    });
    let child: i32 = fs::read_to_string(sites.0.folder.join("child"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    send(&mut client, "GET", "x", "/fixed", &[]);
    let reply = client.receive("GET");
    assert_eq!((reply.text(), reply.field("connection")), ("x", Some("close")));
    sites.first_has_ended();
    assert!(!has_ended(child), "nobody may end a process that serves");
    kill(child, Signal::KILL);
}

/// The kernel closes the socket of a process that ends before the process has ended. Here the time between is long.
#[test]
fn the_old_process_serves_again_when_the_new_one_ends_long_after_its_socket() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Sites::folder();
    let path = folder.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let text = with_backend(&backend, "[upgrade]\nprogram = \"program\"");
    let sites = Serving::start_with(folder, &text, |command| {
        command.env("NOTIFY_SOCKET", path);
    });
    let mut in_flight = InFlight::begin(&sites, &backend);
    fs::write(sites.0.folder.join("said"), serving()).unwrap();
    let wait = "until [ -e end ]; do sleep 0.01; done";
    sites.program(&format!("cat said >&0; {wait}; exec 0<&-; sleep 2"));
    sites.signal(Signal::USR2);
    let new = testkit::wait_for("the new process", || {
        let mut buffer = [0; 2000];
        let count = manager.recv(&mut buffer).unwrap();
        let said = String::from_utf8_lossy(&buffer[..count]).into_owned();
        said.strip_prefix("MAINPID=")?.parse().ok()
    });
    fs::write(sites.0.folder.join("end"), "").unwrap();
    sites.0.wait_until_said("this one serves again: it has ended");
    assert!(has_ended(new), "until then the new process may serve");
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
    assert!(in_flight.end());
}

/// The new process dies before it has taken a tunnel, which goes on in the old one: only its true end is in the access log.
#[test]
fn a_tunnel_that_comes_back_is_logged_at_its_end() {
    let backend = echoing_backend();
    let log = "log = { file = \"lines\", format = \"$path $received $bytes $tunnel_end\" }";
    let text = format!("{log}\n{}", with_backend(&backend, "[upgrade]\nprogram = \"program\""));
    let mut sites = Serving::start(&text);
    let lines = |sites: &Serving| {
        let lines = fs::read_to_string(sites.0.folder.join("lines")).unwrap_or_default();
        let tunnels = lines.lines().filter(|line| line.starts_with("/up "));
        tunnels.map(String::from).collect::<Vec<_>>()
    };
    let mut first = tunnel(sites.0.addresses[0]);
    echoes(&mut first, b"hello");
    fs::write(sites.0.folder.join("said"), serving()).unwrap();
    // It reads the connection, and does not say that it has taken it.
    sites.program("cat said >&0; sleep 2; exec 0<&-");
    sites.signal(Signal::USR2);
    sites.0.wait_until_said("this one serves again: it has ended");
    echoes(&mut first, b" again");
    assert_eq!(lines(&sites), [""; 0]);
    first.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye");
    wait_for("the line", || lines(&sites) == ["/up 11 14 client"]);

    // The next one takes its tunnel.
    sites.program(&format!("exec '{}' \"$@\"", env!("CARGO_BIN_EXE_osier")));
    let mut second = tunnel(sites.0.addresses[0]);
    echoes(&mut second, b"hello");
    sites.upgrade();
    sites.first_has_ended();
    assert_eq!(lines(&sites)[1..], ["/up 5 5 moved"]);
    echoes(&mut second, b"on");
}

/// The messages of a new process that has a server, and serves.
fn serving() -> Vec<u8> {
    let hello = message(1, b"osier-up\x03\0\x01\0\0\0");
    let (ready, accepting) = (message(4, b"\x01\0\0\0\x0b\0\0\x00127.0.0.1:0"), message(7, b""));
    [hello, ready, accepting].concat()
}

/// A download keeps the old process while the new one dies.
#[test]
fn the_old_process_serves_again_when_the_new_one_dies_later() {
    let folder = Sites::folder();
    let content = pattern(16 << 20);
    folder.write("www/large.bin", &content);
    let path = folder.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let heard_up_to = |last: String| {
        let mut buffer = [0; 2000];
        while manager
            .recv(&mut buffer)
            .is_ok_and(|count| buffer[..count] != *last.as_bytes())
        {}
    };
    let mut sites = Serving::start_with(folder, &file("", "x"), |command| {
        command.env("NOTIFY_SOCKET", path);
    });
    let mut download = sites.0.connect();
    send(&mut download, "GET", "x", "/large.bin", &[]);
    assert_eq!(download.receive_head().status, 200);
    let old = sites.id();
    let new = sites.upgrade();
    assert_eq!(sites.0.get("x", "/fixed").text(), "x");
    heard_up_to(format!("MAINPID={new}"));
    kill(new, Signal::KILL);
    wait_for("the old process", || sites.id() == old);
    let why = "upgrade: the new process has failed, and this one serves again: it has ended; this process goes on";
    assert!(sites.0.said().contains(why), "{}", sites.0.said());
    heard_up_to(format!("MAINPID={old}"));
    let mut kept = sites.0.connect();
    assert_eq!(fixed(&mut kept), "x");
    // The next upgrade moves everything.
    assert_ne!(sites.upgrade(), new);
    let mut body = download.take_unread();
    let missing = content.len() - body.len();
    (&download.stream).take(missing as u64).read_to_end(&mut body).unwrap();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    sites.first_has_ended();
    assert_eq!((fixed(&mut kept), fixed(&mut download)), ("x".into(), "x".into()));
}

#[test]
fn a_new_process_refuses_an_old_one_of_another_version() {
    let folder = Sites::folder();
    fs::write(folder.join("site.toml"), file("", "x")).unwrap();
    let (mut old, new) = UnixStream::pair().unwrap();
    old.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut command = osier();
    command.arg("site.toml").current_dir(folder.path());
    command.env("OSIER_UPGRADE", std::process::id().to_string());
    let child = command
        .stdin(std::os::fd::OwnedFd::from(new))
        .stderr(std::process::Stdio::piped())
        .spawn();
    // It holds the other end.
    drop(command);
    old.write_all(&hello_of_version_9()).unwrap();
    let output = child.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let why = "speaks version 9 of the upgrade protocol, this one version 3: restart the server instead";
    assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("osier-up") && answer.contains(why), "{answer:?}");
    // Without an old process the variable says nothing.
    let server = Server::start(&folder, &[]);
    assert_eq!(server.get("/www/a.txt").text(), "the file a");
}
