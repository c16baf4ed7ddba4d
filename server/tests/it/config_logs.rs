//! The settings of both logs: levels, formats and destinations, the reason of a refusal, and request ids.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::thread;

use crate::config_check::mistakes;
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, DEADLINE, Signal, make_fifo};
use crate::upgrade::{echoes, echoing_backend, tunnel_over};
use serde_json::Value;

/// A backend that answers every request with its head.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut piece) = (Vec::new(), [0; 1024]);
            while !head.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..count]);
            }
            let length = head.len();
            let fields = "Connection: close\r\nX-Request-ID: of-the-backend";
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {length}\r\n\r\n"
            );
            let _ = stream.write_all(&head);
        }
    });
    address
}

pub const SITE: &str = "[[site]]\ndefault = true\n";
pub const FILES: &str = "[[site.route]]\nfiles = \"www\"\n";
/// A route whose backend is not there.
const DEAD: &str = "[[site.route]]\npath = \"/dead\"\nproxy = \"127.0.0.1:1\"\n";

/// The lines of a file below the folder, once one of them has `text`.
fn lines_with(sites: &Sites, file: &str, text: &str) -> Vec<String> {
    let read = || std::fs::read_to_string(sites.folder.join(file)).unwrap_or_default();
    wait_for(text, || read().contains(text));
    read().lines().map(String::from).collect()
}

fn line_with(sites: &Sites, file: &str, text: &str) -> String {
    let lines = lines_with(sites, file, text);
    lines.into_iter().find(|line| line.contains(text)).unwrap()
}

/// Splits `2026-11-23T03:31:45.123Z` off a line.
fn untimed(line: &str) -> &str {
    let (time, rest) = line.split_at(24);
    let shape: String = time
        .chars()
        .map(|char| if char.is_ascii_digit() { '0' } else { char })
        .collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{line}");
    rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"))
}

// ---- the error log ----

#[test]
fn an_error_line_says_when_where_and_for_whom() {
    let file = format!("[[site]]\nhost = \"example.org\"\nrequest_id = true\n{DEAD}{SITE}{DEAD}");
    let sites = Sites::start(&file);
    let reply = sites.get("example.org", "/dead/a");
    let id = reply.field("x-request-id").unwrap().to_owned();
    let line = line_with(&sites, "stderr", "/dead/a");
    let expected =
        format!("error site=example.org client=127.0.0.1 id={id} osier: GET /dead/a failed: cannot connect to ");
    assert!(untimed(&line).starts_with(&expected), "{line}");
    // The same cause, within the same second or later.
    sites.get("other.example", "/dead/b");
    let reloaded = sites.hang_up();
    let info = reloaded.lines().find(|line| line.contains("reloaded")).unwrap();
    assert!(
        untimed(info).starts_with("info osier: reloaded ") && info.contains("site.toml (2 sites, "),
        "{info}"
    );
}

#[test]
fn one_line_a_cause_and_second_for_proxies_too() {
    let sites = Sites::start(&format!("{SITE}{DEAD}"));
    let mut client = sites.connect();
    for n in 0..200 {
        client.send("GET", &format!("/dead/{n}"), &[]);
        assert_eq!(client.receive("GET").status, 502);
    }
    let said = sites.said();
    let failures = said.lines().filter(|line| line.contains("failed: ")).count();
    // A line a second at most, and its count.
    assert!((1..50).contains(&failures), "{failures} lines:\n{said}");
}

#[test]
fn a_level_leaves_out_what_is_less_serious() {
    let with = |level: &str| Sites::start(&format!("error_log = {{ level = \"{level}\" }}\n{SITE}{DEAD}{FILES}"));
    for (level, has_refusal) in [("error", false), ("warning", false), ("info", true), ("debug", true)] {
        let sites = with(level);
        let mut client = sites.connect();
        client.send_raw(b"GET /\x01 HTTP/1.1\r\n\r\n");
        assert_eq!(client.receive("GET").status, 400);
        sites.get("x", "/dead");
        let said = sites.wait_until_said(" failed: ");
        assert_eq!(said.contains("was refused with 400"), has_refusal, "{level}: {said}");
        assert_eq!(said.contains(" info "), has_refusal, "{level}: {said}");
    }
}

#[test]
fn refusals_have_their_reason_and_are_counted_in_time() {
    // Listens, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let folder = Sites::folder();
    make_fifo(&folder.join("www/fifo"));
    let slow =
        format!("[[site.route]]\npath = \"/slow\"\nlimits = {{ time = \"50ms\" }}\nproxy = \"127.0.0.1:{port}\"\n");
    let sites = Sites::start_in(
        folder,
        &format!("error_log = {{ file = \"errors\" }}\n{SITE}{slow}{FILES}"),
    );
    assert_eq!(sites.get("x", "/slow").status, 504);
    let line = line_with(&sites, "errors", "GET /slow");
    assert!(
        line.ends_with("GET /slow failed: there was no response within 'limits.time'"),
        "{line}"
    );
    let refused = "GET /fifo was refused with 403: it is neither a file nor a folder";
    for _ in 0..5 {
        assert_eq!(sites.get("x", "/fifo").status, 403);
    }
    assert!(untimed(&line_with(&sites, "errors", refused)).starts_with("info site=default client=127.0.0.1 id="));
    // Nothing else is logged, and the count belongs to no request.
    let counted = line_with(&sites, "errors", " more line");
    let counted = untimed(&counted);
    assert!(
        counted.starts_with("info osier: ") && counted.ends_with(&refused.replace("GET /fifo", "with this cause: ...")),
        "{counted}"
    );
}

#[test]
fn the_error_log_is_a_file_of_objects_that_can_be_rotated() {
    let text = format!("error_log = {{ file = \"errors\", format = \"json\" }}\n{SITE}{DEAD}");
    let sites = Sites::start(&text);
    sites.get("x", "/dead");
    let line = line_with(&sites, "errors", "/dead failed");
    let object: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&object["level"], &object["site"]),
        (&"error".into(), &"default".into())
    );
    assert_eq!(object["client"], "127.0.0.1");
    assert_eq!(object["id"].as_str().map(str::len), Some(16));
    assert!(
        object["text"]
            .as_str()
            .unwrap()
            .starts_with("GET /dead failed: cannot connect"),
        "{line}"
    );
    assert_eq!(object["time"].as_str().map(str::len), Some(24), "{line}");
    std::fs::rename(sites.folder.join("errors"), sites.folder.join("errors.1")).unwrap();
    sites.server.signal(Signal::USR1);
    lines_with(&sites, "errors", "open anew");
    // A reload moves it back to standard error.
    sites.reload(&format!("{SITE}{FILES}"));
    assert_eq!(sites.said().lines().count(), 1, "{}", sites.said());
}

#[test]
fn the_error_log_has_the_lines_from_before_it_was_open() {
    let sites = Sites::start(&format!(
        "error_log = {{ file = \"errors\" }}\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n\
         [[site]]\ndefault = true\ntls = {{ cert = \"none.pem\", key = \"none.key\" }}\n{FILES}"
    ));
    let line = line_with(&sites, "errors", "SELF-SIGNED");
    assert!(untimed(&line).starts_with("error osier: "), "{line}");
    assert!(
        sites.said().lines().any(|said| said == line),
        "{line}\n{}",
        sites.said()
    );
    // They are there once, also after a reload.
    sites.server.signal(Signal::HUP);
    let lines = lines_with(&sites, "errors", "osier: reloaded ");
    assert_eq!(lines.iter().filter(|line| line.contains("SELF-SIGNED")).count(), 1);
}

#[test]
fn mistakes_of_a_reload_are_one_object() {
    let sites = Sites::start(&format!(
        "error_log = {{ file = \"errors\", format = \"json\" }}\n{SITE}{FILES}"
    ));
    std::fs::write(sites.folder.join("site.toml"), "wrokers = 1\n[[site]]\n").unwrap();
    sites.server.signal(Signal::HUP);
    let line = line_with(&sites, "errors", "the old configuration stays");
    let object: Value = serde_json::from_str(&line).unwrap();
    assert!(
        object["text"]
            .as_str()
            .unwrap()
            .contains("site.toml:1:1: unknown key 'wrokers'"),
        "{line}"
    );
}

#[test]
fn the_journal_reads_the_priority() {
    let text = format!("{SITE}{DEAD}");
    let sites = Sites::start_with(Sites::folder(), &text, |command| {
        // The test's folder is the working directory of the command.
        let folder = command.get_current_dir().unwrap();
        let found = std::fs::metadata(folder.join("stderr")).unwrap();
        command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    });
    sites.get("x", "/dead");
    let line = line_with(&sites, "stderr", "/dead failed");
    assert!(line.starts_with("<3>site=default client=127.0.0.1 id="), "{line}");
    let said = sites.reload("wrokers = 1\n[[site]]\n");
    assert!(
        said.lines().all(|line| line.starts_with("<3>")) && said.lines().count() > 2,
        "{said}"
    );
    // A file that is not the journal's.
    let other = Sites::start_with(Sites::folder(), &text, |command| {
        command.env("JOURNAL_STREAM", "1:1");
    });
    other.get("x", "/dead");
    assert!(untimed(&line_with(&other, "stderr", "/dead failed")).starts_with("error "));
}

/// Receives messages until one has `text`.
fn message_with(receive: impl Fn(&mut [u8]) -> usize, text: &str) -> String {
    loop {
        let mut piece = vec![0; 65_536];
        let count = receive(&mut piece);
        let message = String::from_utf8(piece[..count].to_vec()).unwrap();
        assert!(!message.contains('\n'), "{message}");
        if message.contains(text) {
            return message;
        }
    }
}

#[test]
fn syslog_gets_both_logs_over_a_unix_socket() {
    let folder = Sites::folder();
    let socket = UnixDatagram::bind(folder.join("log")).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let receive = |piece: &mut [u8]| socket.recv(piece).unwrap();
    let path = folder.join("log").display().to_string();
    let sites = Sites::start_in(
        folder,
        &format!(
            "error_log = {{ syslog = \"{path}\" }}\n\
             log = {{ format = \"$method $path $status\", syslog = {{ to = \"unix:{path}\", facility = \"local7\", tag = \"web\" }} }}\n\
             {SITE}{DEAD}{FILES}"
        ),
    );
    let pid = sites.server.id();
    sites.get("x", "/dead");
    let error = message_with(receive, "/dead failed");
    assert!(error.starts_with("<27>"), "{error}");
    let begin = format!(" osier[{pid}]: site=default client=127.0.0.1 id=");
    assert!(error.contains(&begin), "{error}");
    sites.get("x", "/a.txt");
    let access = message_with(receive, "GET /a.txt 200");
    assert!(
        access.starts_with("<190>") && access.contains(&format!(" web[{pid}]: GET /a.txt 200")),
        "{access}"
    );
}

#[test]
fn syslog_gets_lines_over_udp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let receive = |piece: &mut [u8]| socket.recv(piece).unwrap();
    let to = socket.local_addr().unwrap();
    let sites = Sites::start(&format!("error_log = {{ syslog = \"{to}\" }}\n{SITE}{DEAD}"));
    sites.get("x", "/dead");
    let message = message_with(receive, "/dead failed");
    let (header, text) = message.split_once(" - - ").unwrap();
    let parts: Vec<&str> = header.split(' ').collect();
    assert_eq!((parts[0], parts[3]), ("<27>1", "osier"), "{message}");
    assert_eq!(parts[1].len(), 24, "{message}");
    assert_eq!(parts[4], sites.server.id().to_string(), "{message}");
    assert!(text.starts_with("site=default client=127.0.0.1 id="), "{message}");
}

#[test]
fn a_log_whose_reader_is_missing_waits_for_it() {
    let folder = Sites::folder();
    make_fifo(&folder.join("pipe"));
    let path = folder.join("late");
    let sites = Sites::start_in(
        folder,
        &format!(
            "error_log = {{ syslog = \"{}\" }}\nlog = {{ file = \"pipe\" }}\n{SITE}{DEAD}{FILES}",
            path.display()
        ),
    );
    sites.get("x", "/dead");
    assert_eq!(sites.get("x", "/a.txt").status, 200);
    assert!(sites.said().contains("late"), "{}", sites.said());
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    message_with(|piece| socket.recv(piece).unwrap(), "/dead failed");
    message_with(
        |piece| socket.recv(piece).unwrap(),
        "/pipe': it is a pipe that nobody reads",
    );
    let mut pipe = std::fs::File::open(sites.folder.join("pipe")).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("GET /a.txt") {
        let mut piece = [0; 1024];
        let count = pipe.read(&mut piece).unwrap();
        seen.extend_from_slice(&piece[..count]);
    }
}

#[test]
fn a_syslog_daemon_that_takes_nothing_holds_up_nobody() {
    let folder = Sites::folder();
    let socket = UnixDatagram::bind(folder.join("full")).unwrap();
    let path = folder.join("full").display().to_string();
    let mut sites = Sites::start_in(folder, &format!("log = {{ syslog = \"{path}\" }}\n{SITE}{FILES}"));
    let mut client = sites.connect();
    for n in 0..2000 {
        client.send("GET", &format!("/a.txt?{n}"), &[]);
        assert_eq!(client.receive("GET").status, 200);
    }
    drop(client);
    sites.server.signal(Signal::TERM);
    assert_eq!(sites.server.wait().code(), Some(0));
    let said = sites.said();
    assert!(
        said.contains("lines are lost at the end") || said.contains("lines are missing"),
        "{said}"
    );
    drop(socket);
}

#[test]
fn a_stop_tells_of_lost_lines_when_syslog_takes_those_of_the_error_log_neither() {
    let folder = Sites::folder();
    let _socket = UnixDatagram::bind(folder.join("full")).unwrap();
    let to = format!("{{ syslog = \"{}\" }}", folder.join("full").display());
    let text = format!("error_log = {to}\nlog = {to}\n{SITE}{DEAD}{FILES}");
    let mut sites = Sites::start_in(folder, &text);
    let mut client = sites.connect();
    for n in 0..2000 {
        client.send("GET", &format!("/a.txt?{n}"), &[]);
        assert_eq!(client.receive("GET").status, 200);
    }
    drop(client);
    sites.server.signal(Signal::TERM);
    assert_eq!(sites.server.wait().code(), Some(0));
    let said = sites.said();
    let is_told = |line: &&str| line.contains("access log: ") && line.ends_with(" lines are lost at the end");
    assert_eq!(said.lines().filter(is_told).count(), 1, "{said}");
}

// ---- why a request was refused ----

#[test]
fn the_reason_of_a_refusal_is_logged_and_not_sent() {
    let text = "[[listen]]\naddress = \"127.0.0.1:0\"\ntimeouts = { header = \"200ms\", body = \"300ms\" }\nhead = { bytes = \"2KiB\", request_line = \"1KiB\", fields = 20 }\n\
         [[site]]\nhost = \"a.example\"\n\
         [[site.route]]\npath = \"/files\"\nfiles = \"www\"\n\
         [[site.route]]\npath = \"/small\"\nlimits = { body = 4 }\nproxy = \"127.0.0.1:1\"\n\
         [[site.route]]\npath = \"/tiny\"\nlimits = { body = 3 }\nproxy = \"127.0.0.1:1\"\n\
         [[site.route]]\nproxy = \"127.0.0.1:1\"\n";
    let sites = Sites::start(text);
    let long = "x".repeat(1500);
    let head = "Host: a.example\r\n";
    for (request, status, line) in [
        (
            "GET /\x01 HTTP/1.1\r\n\r\n".to_owned(),
            400,
            "a request was refused with 400: a malformed request line",
        ),
        (
            "GET / HTTP/1.1\nHost: a\n\n".to_owned(),
            400,
            "a request was refused with 400: a line feed without a carriage return before it",
        ),
        (
            format!("GET /{long} HTTP/1.1\r\n{head}\r\n"),
            414,
            "a request was refused with 414: the request line is longer than the limit of 1024 bytes ('head.request_line' of [[listen]])",
        ),
        (
            format!("GET / HTTP/1.1\r\n{head}X: {long}\r\nY: {long}\r\n\r\n"),
            431,
            "a request was refused with 431: the head is larger than the limit of 2048 bytes ('head.bytes' of [[listen]])",
        ),
        (
            "GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
            421,
            "GET /x was refused with 421: no site has this host",
        ),
        (
            format!("GET /a/../b HTTP/1.1\r\n{head}\r\n"),
            400,
            "GET /a/../b was refused with 400: the path has a '.' or '..' segment",
        ),
        (
            format!("POST /small HTTP/1.1\r\n{head}Content-Length: 5\r\n\r\nhello"),
            413,
            "POST /small was refused with 413: the body is larger than the limit of 4 bytes ('limits.body')",
        ),
        (
            format!("POST /tiny HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            413,
            "POST /tiny was refused with 413: the body is larger than the limit of 3 bytes ('limits.body')",
        ),
        (
            format!("GET / HTTP/1.1\r\n{head}{}\r\n", "A: b\r\n".repeat(20)),
            431,
            "a request was refused with 431: more header fields than the limit of 20 ('head.fields' of [[listen]])",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            400,
            "POST / was refused with 400: a malformed chunk size",
        ),
        (
            "GET / HTTP/1.1\r\nHo".to_owned(),
            408,
            "a request was refused with 408: its head did not arrive in time ('timeouts.header' or 'rates.head')",
        ),
        (
            format!("POST / HTTP/1.1\r\n{head}Content-Length: 5\r\n\r\nx"),
            408,
            "POST / was refused with 408: the request's body timed out ('timeouts.body' or 'rates.body')",
        ),
    ] {
        let mut client = sites.connect();
        client.send_raw(request.as_bytes());
        let reply = client.receive("GET");
        assert_eq!(reply.status, status, "{request:?}: {}", sites.said());
        assert!(
            ["127.0.0.1", "no site has", "timeouts."]
                .iter()
                .all(|text| !reply.text().contains(text)),
            "{}",
            reply.text()
        );
        let logged = line_with(&sites, "stderr", line);
        assert!(untimed(&logged).starts_with("info "), "{logged}");
        let about = if status == 421 {
            "host=evil.example client=127.0.0.1 id="
        } else {
            "site=a.example client=127.0.0.1 id="
        };
        assert!(logged.contains(about), "{logged}");
    }
}

// ---- the access log ----

#[test]
fn the_line_of_a_tunnel_comes_at_its_end_and_says_how_it_has_ended() {
    let backend = echoing_backend();
    let to = backend.local_addr().unwrap();
    let sites = Sites::start(&format!(
        "log = {{ file = \"log\", format = \"json\" }}\n{SITE}[[site.route]]\npath = \"/up\"\nproxy = \"{to}\"\n\
         [[site.route]]\npath = \"/a.txt\"\nlog = {{ file = \"lines\", format = \"$path $received $bytes $tunnel_end\" }}\nfiles = \"www\"\n{FILES}"
    ));
    let mut stream = tunnel_over(sites.connect().stream);
    echoes(&mut stream, b"hello");
    sites.ask("GET", "x", "/sub/", &[]);
    let lines = lines_with(&sites, "log", "/sub/");
    assert_eq!(lines.len(), 1, "the tunnel has not ended: {lines:?}");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"bye");
    let line: Value = serde_json::from_str(&line_with(&sites, "log", "\"status\":101")).unwrap();
    assert_eq!(
        (&line["method"], &line["target"]),
        (&"GET".into(), &"/up".into()),
        "{line}"
    );
    assert_eq!(
        (&line["host"], &line["version"]),
        (&"x".into(), &"HTTP/1.1".into()),
        "{line}"
    );
    assert_eq!((&line["received"], &line["bytes"]), (&5.into(), &8.into()), "{line}");
    let told = (&line["tunnel_backend"], &line["tunnel_end"]);
    assert_eq!(told, (&to.to_string().into(), &"client".into()), "{line}");
    assert!(line["seconds"].is_f64() && line["id"].is_string(), "{line}");

    sites.ask("GET", "x", "/a.txt", &[]);
    assert_eq!(line_with(&sites, "lines", "/a.txt"), "/a.txt 0 10 -");

    let sites = Sites::start(&format!(
        "log = {{ file = \"log\", format = \"$path $received $bytes $tunnel_end\" }}\n{SITE}[[site.route]]\n\
         proxy = {{ to = \"{to}\", tunnel_idle = \"100ms\" }}\n"
    ));
    let mut stream = tunnel_over(sites.connect().stream);
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(line_with(&sites, "log", "/up"), "/up 0 0 idle_timeout");
}

/// Rotates the log `first`, which the configuration no longer has. The server holds neither file open.
fn rotated_while_closed(sites: &Sites) {
    let [file, rotated] = ["first", "first.1"].map(|name| sites.folder.join(name));
    let is_closed = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", sites.server.id())).unwrap();
        let mut names = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        !names.any(|name| name == file || name == rotated)
    };
    wait_for("the log is closed", is_closed);
    std::fs::rename(&file, &rotated).unwrap();
    sites.hang_up();
    assert!(is_closed() && !file.exists());
}

/// The line goes to a new file after a rotation, and keeps little of what a client has sent.
#[test]
fn the_line_of_a_tunnel_goes_to_its_log_after_two_reloads_and_a_rotation() {
    let backend = echoing_backend();
    let to = backend.local_addr().unwrap();
    let text = |log: &str| {
        let form = "$path $header_x_long $tunnel_end";
        format!(
            "log = {{ file = \"{log}\", format = \"{form}\" }}\n{SITE}[[site.route]]\npath = \"/up\"\nproxy = \"{to}\"\n{FILES}"
        )
    };
    let sites = Sites::start(&text("first"));
    let mut client = sites.connect();
    let long = format!("X-Long: {}", "a".repeat(3000));
    send(
        &mut client,
        "GET",
        "x",
        "/up",
        &["Connection: Upgrade", "Upgrade: echo", &long],
    );
    assert_eq!(client.receive_head().status, 101);
    for log in ["second", "third"] {
        sites.reload(&text(log));
    }
    rotated_while_closed(&sites);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let line = line_with(&sites, "first", "/up");
    assert_eq!(line, format!("/up {} client", "a".repeat(1024)));
}

#[test]
fn the_line_of_a_slow_response_goes_to_its_log_after_two_reloads() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = backend.local_addr().unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let backend = thread::spawn(move || {
        let mut client = Client::over(backend.accept().unwrap().0);
        client.receive_head_of_request();
        client.send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        client.send_raw(&[b'a'; 50_000]);
        ended.recv().unwrap();
        client.send_raw(&[b'b'; 50_000]);
    });
    let text = |log: &str| {
        let keys = format!("log = {{ file = \"{log}\", format = \"$path $bytes\" }}\n");
        format!("{keys}{SITE}[[site.route]]\npath = \"/slow\"\nproxy = \"{to}\"\n{FILES}")
    };
    let sites = Sites::start(&text("first"));
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/slow", &[]);
    assert_eq!(client.receive_head().status, 200);
    for log in ["second", "third"] {
        sites.reload(&text(log));
    }
    rotated_while_closed(&sites);
    end.send(()).unwrap();
    assert_eq!(line_with(&sites, "first", "/slow"), "/slow 100000");
    backend.join().unwrap();
}

/// Clients and support need the id of a WebSocket as that of any request.
#[test]
fn a_101_has_the_fields_of_the_policies() {
    let backend = echoing_backend();
    let to = backend.local_addr().unwrap();
    let sites = Sites::start(&format!(
        "{SITE}request_id = true\ncompress = true\ncors = {{ origins = \"*\" }}\nserver_timing = true\n\
         headers = {{ X-Frame-Options = \"DENY\" }}\n[[site.route]]\nproxy = \"{to}\"\n"
    ));
    let mut client = sites.connect();
    let fields = [
        "Connection: Upgrade",
        "Upgrade: echo",
        "Origin: https://a.example",
        "Accept-Encoding: gzip",
    ];
    send(&mut client, "GET", "x", "/", &fields);
    let head = client.receive_head();
    assert_eq!((head.status, head.field("upgrade")), (101, Some("echo")));
    assert_eq!(head.field("x-request-id").map(str::len), Some(16));
    assert_eq!(head.field("x-frame-options"), Some("DENY"));
    assert!(head.field("server-timing").is_some());
    for name in [
        "access-control-allow-origin",
        "content-encoding",
        "vary",
        "content-length",
        "transfer-encoding",
    ] {
        assert_eq!(head.field(name), None, "{name}");
    }
    echoes(&mut client.stream, b"hello");
}

#[test]
fn a_log_that_cannot_be_opened_again_is_named() {
    let folder = Sites::folder();
    folder.write("logs/access", "");
    let sites = Sites::start_in(folder, &format!("log = {{ file = \"logs/access\" }}\n{SITE}{FILES}"));
    std::fs::remove_dir_all(sites.folder.join("logs")).unwrap();
    sites.server.signal(Signal::USR1);
    let line = line_with(&sites, "stderr", "cannot reopen the access log");
    assert!(line.contains("/logs/access': No such file or directory"), "{line}");
}

/// A request with fields that would break out of their places.
const HOSTILE: &[&str] = &[
    "User-Agent: x\" 200 0 \"y\tz|\\ \u{e4}\u{1f600}",
    "Referer: http://a/ b",
];

#[test]
fn a_template_chooses_the_fields_of_a_line() {
    let form = "$time_combined|$host|$client|$site|$method|$path|$query|$status|$bytes|$request_id|\\\"$header_user_agent\\\"|$header_referer|$duration_ms";
    let sites = Sites::start(&format!(
        "log = {{ file = \"log\", format = \"{form}\" }}\n{SITE}{FILES}"
    ));
    sites.ask("GET", "Example.org:80", "/a.txt?q=%0A|", HOSTILE);
    let line = line_with(&sites, "log", "/a.txt");
    let parts: Vec<&str> = line.split('|').collect();
    assert_eq!(
        parts[1..9],
        [
            "Example.org:80",
            "127.0.0.1",
            "default",
            "GET",
            "/a.txt",
            "q=%0A\\x7c",
            "200",
            "10"
        ],
        "{line}"
    );
    assert_eq!(parts[9].len(), 16, "{line}");
    // Between quotes only quotes are escaped, so the separator shows.
    assert_eq!(
        parts[10..12].join("|"),
        "\"x\\\" 200 0 \\\"y\\x09z|\\\\ \\xc3\\xa4\\xf0\\x9f\\x98\\x80\"",
        "{line}"
    );
    assert_eq!(parts[12], "http://a/ b", "{line}");
    assert!(parts[13].parse::<f64>().is_ok() && parts[13].contains('.'), "{line}");
    assert!(
        line.is_ascii() && !line.contains(|char: char| char.is_ascii_control()),
        "{line}"
    );
}

#[test]
fn no_client_chooses_the_priority_of_a_line_in_the_journal() {
    let text = |log: &str| format!("log = {log}\n[[site]]\n[[site.route]]\nrespond = \"x\"\n");
    let agent = ["User-Agent: <0>lost"];
    let sites = Sites::start(&text("\"$header_user_agent $status\""));
    sites.ask("GET", "x", "/", &agent);
    sites.wait_until_said("\\x3c0>lost 200\n");
    // The text of the template completes nothing of a client's.
    for form in ["<$header_x_number> $status", "<0$header_x_number> $status"] {
        sites.reload(&text(&format!("\"{form}\"")));
        sites.ask("GET", "x", "/", &["X-Number: 0"]);
        let line = form.replace("$header_x_number", "0").replace("$status", "200\n");
        sites.wait_until_said(&line.replace('<', "\n\\x3c"));
    }
    sites.reload(&text("\"<$header_x_number> $status\""));
    sites.ask("GET", "x", "/", &["X-Number: no"]);
    sites.wait_until_said("\n<no> 200\n");
    // The text of the template itself is the operator's, and a file has no priorities.
    sites.reload(&text("\"<6>$header_user_agent $status\""));
    sites.ask("GET", "x", "/", &agent);
    sites.wait_until_said("\n<6>\\x3c0\\x3elost 200\n");
    sites.reload(&text("{ file = \"log\", format = \"$header_user_agent\" }"));
    sites.ask("GET", "x", "/", &agent);
    line_with(&sites, "log", "<0>lost");
}

#[test]
fn chosen_fields_of_an_object_and_milliseconds() {
    let fields = "[\"time\", \"site\", \"host\", \"path\", \"status\", \"duration_ms\", \"request_id\", \"header_user_agent\", \"header_x_none\"]";
    let text = format!(
        "log = {{ file = \"all\", format = \"json\" }}\n{SITE}[[site.route]]\npath = \"/a.txt\"\n\
         log = {{ file = \"some\", format = \"json\", fields = {fields} }}\nfiles = \"www\"\n{FILES}"
    );
    let sites = Sites::start(&text);
    sites.ask("GET", "example.org", "/a.txt", HOSTILE);
    sites.ask("GET", "example.org", "/sub/", HOSTILE);
    let object: Value = serde_json::from_str(&line_with(&sites, "some", "a.txt")).unwrap();
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.len(), 8, "{keys:?}");
    assert_eq!(
        (&object["site"], &object["host"]),
        (&"default".into(), &"example.org".into())
    );
    assert_eq!((&object["path"], &object["status"]), (&"/a.txt".into(), &200.into()));
    assert!(object["duration_ms"].is_f64(), "{object}");
    assert_eq!(object["header_user_agent"], "x\" 200 0 \"y\tz|\\ \u{e4}\u{1f600}");
    assert_eq!(object["time"].as_str().map(str::len), Some(24), "{object}");
    let whole: Value = serde_json::from_str(&line_with(&sites, "all", "/sub/")).unwrap();
    assert_eq!(whole["host"], "example.org");
    assert_eq!(whole["time"].as_str().map(str::len), Some(24), "{whole}");
}

// ---- request ids ----

/// The value of a field in the head that the backend has received.
fn received(head: &str, name: &str) -> Vec<String> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let values = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    values.map(|(_, value)| value.to_owned()).collect()
}

fn numbered(of_listener: &str, of_site: &str) -> Sites {
    let backend = echo();
    Sites::start(&format!(
        "log = {{ file = \"log\", format = \"$path $request_id\" }}\n[[listen]]\naddress = \"127.0.0.1:0\"\n{of_listener}\n\
         {SITE}{of_site}\n\
         [[site.route]]\npath = \"/off\"\nrequest_id = false\nproxy = \"{backend}\"\n\
         [[site.route]]\npath = \"/quiet\"\nrequest_id = {{ response = false }}\nproxy = \"{backend}\"\n\
         [[site.route]]\npath = \"/mute\"\nrequest_id = {{ backends = false }}\nproxy = \"{backend}\"\n\
         [[site.route]]\nproxy = \"{backend}\"\n"
    ))
}

#[test]
fn an_id_goes_to_the_backend_the_client_and_the_log() {
    let sites = numbered("", "request_id = true");
    // The client's own is replaced, in both spellings.
    let mine = &["X-Request-ID: mine", "X_Request_ID: mine"];
    let reply = sites.ask("GET", "x", "/one", mine);
    let id = reply.field("x-request-id").unwrap().to_owned();
    assert!(
        id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    assert_eq!(
        received(reply.text(), "x-request-id"),
        [id.as_str()],
        "{}",
        reply.text()
    );
    assert!(received(reply.text(), "x_request_id").is_empty(), "{}", reply.text());
    line_with(&sites, "log", &format!("/one {id}"));
    let other = sites.ask("GET", "x", "/two", &[]);
    assert_ne!(other.field("x-request-id"), Some(id.as_str()));

    let quiet = sites.ask("GET", "x", "/quiet", mine);
    assert_eq!(quiet.field("x-request-id"), Some("of-the-backend"));
    assert_eq!(received(quiet.text(), "x-request-id")[0].len(), 16);
    let mute = sites.ask("GET", "x", "/mute", mine);
    assert_eq!(mute.field("x-request-id").map(str::len), Some(16));
    assert_eq!(received(mute.text(), "x-request-id"), ["mine"]);
    let off = sites.ask("GET", "x", "/off", mine);
    assert_eq!(off.field("x-request-id"), Some("of-the-backend"));
    assert_eq!(received(off.text(), "x-request-id"), ["mine"]);
}

#[test]
fn a_trusted_proxy_may_name_the_id() {
    let trusted = "real_ip = { from = \"127.0.0.1\" }";
    for (of_listener, of_site) in [
        (trusted, "request_id = true"),
        ("", "request_id = true\nreal_ip = { from = \"127.0.0.1\" }"),
    ] {
        let sites = numbered(of_listener, of_site);
        let given = "7f3c8f2e-6d3f-4f9b-9d0e-0b3f5b9f2c11";
        let reply = sites.ask("GET", "x", "/given", &[&format!("X-Request-Id: {given}")]);
        assert_eq!(reply.field("x-request-id"), Some(given));
        assert_eq!(received(reply.text(), "x-request-id"), [given]);
        line_with(&sites, "log", &format!("/given {given}"));
        // What is too long, has other characters or comes twice is not taken.
        let long = format!("X-Request-ID: {}", "x".repeat(65));
        for fields in [
            &[long.as_str()][..],
            &["X-Request-ID: a b"],
            &["X-Request-ID: a\"b"],
            &["X-Request-ID: a", "X-Request-ID: b"],
            &["X-Request-ID:"],
        ] {
            let reply = sites.ask("GET", "x", "/bad", fields);
            let id = reply.field("x-request-id").unwrap();
            assert!(
                id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{fields:?}: {id}"
            );
            assert_eq!(received(reply.text(), "x-request-id"), [id], "{fields:?}");
        }
    }
    let sites = numbered("real_ip = { from = \"10.0.0.0/8\" }", "request_id = true");
    let reply = sites.ask("GET", "x", "/stranger", &["X-Request-ID: mine"]);
    assert_eq!(reply.field("x-request-id").map(str::len), Some(16));
}

// ---- mistakes ----

#[test]
fn a_trace_reaches_the_backend_and_the_log() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let log = "log = { file = \"access\", format = \"$path $trace_id $span_id $parent_id\" }";
    let sites = Sites::start(&format!(
        "{SITE}{log}\ntrace = true\n\
         [[site.route]]\npath = \"/off\"\ntrace = false\nrespond = 200\n\
         [[site.route]]\npath = \"/trusted\"\ntrace = {{ incoming = \"trusted\", sampled = false }}\nproxy = \"{0}\"\n\
         [[site.route]]\nproxy = \"{0}\"\n",
        echo()
    ));
    let field = &[&*format!("traceparent: {PARENT}")];
    let seen = |path: &str| {
        let reply = sites.ask("GET", "x", path, field);
        let mut lines = reply.text().lines();
        let parent = lines.find_map(|line| line.strip_prefix("traceparent: "));
        parent.expect("the backend gets one").to_owned()
    };
    let traced = seen("/a");
    assert!(
        traced.starts_with(&PARENT[..36]) && traced != PARENT && traced.ends_with("-01"),
        "{traced}"
    );
    // This client is no proxy, so its trace does not go on.
    let begun = seen("/trusted");
    assert!(!begun.contains(&PARENT[3..35]) && begun.ends_with("-00"), "{begun}");
    assert_eq!(sites.ask("GET", "x", "/off", field).status, 200);
    let lines = lines_with(&sites, "access", "/off");
    let ids = |field: &str| format!("{} {}", &field[3..35], &field[36..52]);
    let expected = [
        format!("/a {} {}", ids(&traced), &PARENT[36..52]),
        format!("/trusted {} -", ids(&begun)),
        "/off - - -".to_owned(),
    ];
    assert_eq!(lines, expected);
    let said = mistakes(&format!("{SITE}trace = {{ incoming = \"some\" }}\n{FILES}"));
    assert!(said.len() == 1 && said[0].contains("choose among"), "{said:?}");
}
