//! The access log: every line parses, whatever the client has sent, and no line is missing at the end.

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, Server, Signal};
use std::io::BufRead;

/// Serves a few requests, ends the server, returns the log.
fn logged(arguments: &[&str]) -> String {
    let folder = Folder::new();
    folder.write("a.txt", "hello");
    folder.write("large.bin", crate::support::pattern(100_000));
    let logs = Folder::new();
    let log = logs.join("access.log");
    let mut server = Server::start(&folder, &[arguments, &["--log-file", log.to_str().unwrap()]].concat());
    let mut client = server.connect();
    for (method, target, fields) in [
        (
            "GET",
            "/a.txt?x=1",
            &["Referer: http://example.org/\"quoted\"", "User-Agent: test/1.0"][..],
        ),
        ("HEAD", "/a.txt", &[]),
        ("GET", "/missing", &["User-Agent: tab\there \\ \"and\" \u{e4}"]),
        ("GET", "/large.bin", &["Range: bytes=0-99"]),
        ("GET", "/large.bin", &[]),
        ("DELETE", "/a.txt", &[]),
    ] {
        client.send(method, target, fields);
        client.receive(method);
    }
    client.send_raw(b"GET /\x01 HTTP/1.1\r\n\r\n");
    assert_eq!(client.receive("GET").status, 400);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn a_log_that_was_renamed_is_opened_anew_on_sighup() {
    let folder = Folder::new();
    folder.write("a.txt", "hello");
    let logs = Folder::new();
    let (log, old) = (logs.join("access.log"), logs.join("access.log.1"));
    let mut server = Server::start(&folder, &["--log-file", log.to_str().unwrap()]);
    // One connection through it all: nothing is restarted.
    let mut client = server.connect();
    client.send("GET", "/a.txt?before", &[]);
    client.receive("GET");
    std::fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    testkit::eventually("a new log", || log.exists());
    client.send("GET", "/a.txt?after", &[]);
    client.receive("GET");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let (old, new) = (
        std::fs::read_to_string(old).unwrap(),
        std::fs::read_to_string(log).unwrap(),
    );
    assert_eq!(
        old.matches("?before").count() + new.matches("?before").count(),
        1,
        "{old}{new}"
    );
    assert!(!old.contains("?after") && new.contains("?after"), "{old}|{new}");
}

#[test]
fn combined() {
    let log = logged(&[]);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 7, "{log}");
    for line in &lines {
        let (client, rest) = line.split_once(" - - [").unwrap_or_else(|| panic!("{line}"));
        assert_eq!(client, "127.0.0.1");
        let (time, rest) = rest.split_once("] \"").unwrap();
        assert_eq!((time.len(), &time[2..3], &time[20..]), (26, "/", " +0000"), "{time}");
        // Quotes inside are escaped, so that every other bare one opens.
        let unescaped = rest.replace("\\\\", "").replace("\\\"", "");
        assert_eq!(unescaped.matches('"').count(), 5, "{line}");
        assert!(
            line.is_ascii() && !line.bytes().any(|byte| byte.is_ascii_control()),
            "{line}"
        );
    }
    assert!(
        lines[0].contains("\"GET /a.txt?x=1 HTTP/1.1\" 200 5 \"http://example.org/\\\"quoted\\\"\" \"test/1.0\""),
        "{log}"
    );
    assert!(lines[1].contains("\"HEAD /a.txt HTTP/1.1\" 200 0 \"-\" \"-\""), "{log}");
    assert!(
        lines[2].contains("\" 404 14 \"-\" \"tab\\x09here \\\\ \\\"and\\\" \\xc3\\xa4\""),
        "{log}"
    );
    assert!(lines[3].contains("\" 206 100 "), "{log}");
    assert!(lines[4].contains("\" 200 100000 "), "{log}");
    assert!(lines[5].contains("\"DELETE /a.txt HTTP/1.1\" 405 "), "{log}");
    assert!(lines[6].contains("] \"-\" 400 "), "{log}");
}

#[test]
fn json() {
    let log = logged(&["--log", "json"]);
    assert_eq!(log.lines().count(), 7, "{log}");
    let objects: Vec<Vec<(String, String)>> = log.lines().map(parse_flat_object).collect();
    let value = |line: usize, name: &str| {
        let found = objects[line].iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(
        (value(0, "method"), value(0, "target"), value(0, "status")),
        ("GET".into(), "/a.txt?x=1".into(), "200".into())
    );
    assert_eq!(
        (value(0, "referer"), value(0, "client")),
        ("http://example.org/\"quoted\"".into(), "127.0.0.1".into())
    );
    assert_eq!(value(2, "user_agent"), "tab\there \\ \"and\" \u{e4}");
    assert_eq!((value(4, "bytes"), value(5, "status")), ("100000".into(), "405".into()));
    assert_eq!((value(0, "time").len(), value(0, "version")), (24, "HTTP/1.1".into()));
    assert!(value(0, "seconds").parse::<f64>().is_ok(), "{log}");
}

/// A strict parser of what one line may be: an object of strings and numbers.
fn parse_flat_object(line: &str) -> Vec<(String, String)> {
    let mut rest = line
        .strip_prefix('{')
        .and_then(|line| line.strip_suffix('}'))
        .unwrap_or_else(|| panic!("{line}"));
    let mut members = Vec::new();
    loop {
        let (name, after) = parse_string(rest);
        let after = after.strip_prefix(':').unwrap_or_else(|| panic!("{line}"));
        let (value, after) = if after.starts_with('"') {
            parse_string(after)
        } else {
            let end = after.find(',').unwrap_or(after.len());
            assert!(after[..end].parse::<f64>().is_ok(), "{line}");
            (after[..end].to_string(), &after[end..])
        };
        members.push((name, value));
        match after.strip_prefix(',') {
            Some(after) => rest = after,
            None => {
                assert!(after.is_empty(), "{line}");
                return members;
            }
        }
    }
}

fn parse_string(text: &str) -> (String, &str) {
    let mut chars = text
        .strip_prefix('"')
        .unwrap_or_else(|| panic!("no string: {text}"))
        .char_indices();
    let mut value = String::new();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &text[at + 2..]),
            '\\' => match chars.next().unwrap().1 {
                'u' => {
                    let digits: String = (0..4).map(|_| chars.next().unwrap().1).collect();
                    value.push(char::from_u32(u32::from_str_radix(&digits, 16).unwrap()).unwrap());
                }
                escaped @ ('"' | '\\') => value.push(escaped),
                other => panic!("escape {other}"),
            },
            char => {
                assert!(!char.is_control(), "a bare control character in {text:?}");
                value.push(char);
            }
        }
    }
    panic!("unended string: {text}")
}

#[test]
fn a_pipe_is_a_log_while_somebody_reads_it() {
    let folder = Folder::new();
    folder.write("a.txt", "hello");
    let pipes = Folder::new();
    let pipe = pipes.join("pipe");
    crate::support::make_fifo(&pipe);

    // For both, so that the pipe is never without a reader, and opening it waits for nobody.
    let reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut server = Server::start(&folder, &["--log-file", pipe.to_str().unwrap()]);
    let mut client = server.connect();
    client.send("GET", "/a.txt?piped", &[]);
    client.receive("GET");
    let mut line = String::new();
    std::io::BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.contains("\"GET /a.txt?piped HTTP/1.1\" 200"), "{line}");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// Docker splits lines of 16 KiB, the journal those of 48 KiB. A client would choose how the second part begins.
#[test]
fn a_line_on_standard_error_is_not_so_long_that_readers_split_it() {
    let (agent, referer) = (vec![0xff; 12_000], b"\"".repeat(12_000));
    let fields = [b"User-Agent: ", &*agent, b"\r\nReferer: ", &*referer].concat();
    let request = [b"GET / HTTP/1.1\r\nHost: x\r\n", &*fields, b"\r\n\r\n"].concat();
    for (format, end) in [("combined", '"'), ("json", '}')] {
        let sites = Sites::start(&format!(
            "log = \"{format}\"\n[[site]]\n[[site.route]]\nrespond = 404\n"
        ));
        let mut client = sites.connect();
        client.send_raw(&request);
        assert_eq!(client.receive("GET").status, 404);
        let line = || {
            sites
                .said()
                .lines()
                .find(|line| line.contains("GET"))
                .map(str::to_owned)
        };
        wait_for("the line", || line().is_some_and(|line| line.ends_with(end)));
        let line = line().unwrap();
        assert!(
            line.len() < 16 << 10 && line.contains(" 404") | line.contains(":404"),
            "{}",
            line.len()
        );
    }
}
