//! The lines of the error log, and where they go.

use super::*;
use crate::log::operator::About;
use crate::log::text::Client;
use osier_web::RequestId;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::{UnixDatagram, UnixStream};
use testkit::Folder;

fn log() -> (Log<UnixStream>, UnixStream) {
    let (stream, reader) = UnixStream::pair().unwrap();
    reader.set_nonblocking(true).unwrap();
    let mut log = Log::new(Shared::new(stream));
    log.in_journal = false;
    (log, reader)
}

fn read(reader: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let _ = reader.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

/// The lines without their times, which must be RFC 3339.
fn read_untimed(reader: &mut UnixStream) -> String {
    read(reader)
        .lines()
        .map(|line| {
            let (time, rest) = line.split_at(24);
            assert!(
                time.ends_with('Z') && &time[10..11] == "T" && &time[19..20] == ".",
                "{line}"
            );
            format!("{}\n", &rest[1..])
        })
        .collect()
}

fn say(log: &mut Log<UnixStream>, level: Level, text: &str, now: Instant) {
    log.say(&Line::new(level, format_args!("{text}")), now);
}

fn about() -> About<'static> {
    About {
        site: Some("example.org"),
        host: Some("www.example.org"),
        client: Some(Client(Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))))),
        id: None,
    }
}

#[test]
fn a_cause_is_written_once_a_second() {
    let (mut log, mut reader) = log();
    let start = Instant::now();
    for n in 0..100 {
        say(&mut log, Level::Error, &format!("GET /{n} failed: no backend"), start);
        say(
            &mut log,
            Level::Info,
            &format!("GET /{n} was refused with 400: a bare line feed"),
            start,
        );
    }
    say(&mut log, Level::Info, "reloaded", start);
    say(&mut log, Level::Info, "reloaded", start);
    assert_eq!(
        read_untimed(&mut reader),
        "error osier: GET /0 failed: no backend\n\
         info osier: GET /0 was refused with 400: a bare line feed\n\
         info osier: reloaded\ninfo osier: reloaded\n"
    );
    say(&mut log, Level::Error, "GET / failed: no backend", start + REPEAT);
    assert_eq!(
        read_untimed(&mut reader),
        "error osier: 99 more lines with this cause: ... failed: no backend\n\
         info osier: 99 more lines with this cause: ... was refused with 400: a bare line feed\n\
         error osier: GET / failed: no backend\n"
    );
    for n in 0..3 {
        say(
            &mut log,
            Level::Error,
            &format!("GET /{n} failed: no backend"),
            start + REPEAT,
        );
    }
    log.count_repeated(None);
    log.count_repeated(None);
    assert_eq!(
        read_untimed(&mut reader),
        "error osier: 3 more lines with this cause: ... failed: no backend\n",
        "at the end, once"
    );
}

#[test]
fn each_failed_login_has_a_line_until_a_program_has_seen_enough() {
    let (mut log, mut reader) = log();
    let start = Instant::now();
    let text = format!("{LOGIN_FAILED}client 192.0.2.7, user \"ada\", realm \"\": wrong password");
    for _ in 0..25 {
        say(&mut log, Level::Warning, &text, start);
    }
    log.count_repeated(Some(start + REPEAT));
    assert_eq!(
        read_untimed(&mut reader),
        format!("warning osier: {text}\n").repeat(10)
            + &format!("warning osier: 15 more lines with this cause: {text}\n")
    );
}

#[test]
fn a_client_with_ever_new_causes_fills_no_disk() {
    let (mut log, mut reader) = log();
    let start = Instant::now();
    for n in 0..1000 {
        say(
            &mut log,
            Level::Info,
            &format!("GET / was refused with 400: two fields X-{n}"),
            start,
        );
    }
    // The failure of a backend is no client's choice.
    say(&mut log, Level::Error, "GET / failed: no backend", start);
    let text = read_untimed(&mut reader);
    assert_eq!(text.lines().count(), REMEMBERED + 1, "{text}");
    assert!(text.ends_with("error osier: GET / failed: no backend\n"), "{text}");
    say(&mut log, Level::Info, "reloaded", start + REPEAT);
    assert_eq!(
        read_untimed(&mut reader),
        "info osier: 936 more lines with other causes\ninfo osier: reloaded\n"
    );
    say(&mut log, Level::Info, "reloaded", start + 2 * REPEAT);
    assert_eq!(read_untimed(&mut reader), "info osier: reloaded\n");
}

#[test]
fn a_client_that_connects_again_and_again_fills_no_disk() {
    let (mut log, mut reader) = log();
    let start = Instant::now();
    let at = |n: u32| format!("192.0.2.1:{n}");
    for n in 0..100 {
        say(&mut log, Level::Info, "closed an HTTP/2 connection: a frame", start);
        let line = format!("closed a connection from the trusted peer {}: no header", at(n));
        say(&mut log, Level::Warning, &line, start);
    }
    assert_eq!(read_untimed(&mut reader).lines().count(), 2);
    log.count_repeated(Some(start + REPEAT));
    let text = read_untimed(&mut reader);
    let expected = [
        "info osier: 99 more lines with this cause: closed ...: a frame",
        "warning osier: 99 more lines with this cause: closed ...: no header",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn lines_that_nobody_takes_are_counted_and_stop_nobody() {
    let (mut log, mut reader) = log();
    let start = Instant::now();
    for n in 0..1000 {
        say(&mut log, Level::Error, &format!("{n}: {}", "x".repeat(3000)), start);
    }
    assert!(log.lost > 0, "the socket has room for all");
    let lost = log.lost;
    read(&mut reader);
    say(&mut log, Level::Info, "back", start);
    let expected = format!("warning osier: {lost} lines were lost here because nobody read them\ninfo osier: back\n");
    assert_eq!(read_untimed(&mut reader), expected);
}

#[test]
fn a_long_line_is_cut_between_characters() {
    let (mut log, mut reader) = log();
    say(&mut log, Level::Error, &"ü".repeat(5000), Instant::now());
    let text = read(&mut reader);
    assert!(text.len() <= LONGEST && text.ends_with("ü\n"), "{}", text.len());
    log.in_journal = true;
    for x in ["x", "ü"] {
        say(&mut log, Level::Error, &x.repeat(5000), Instant::now());
        let line = read(&mut reader);
        let is_whole = line.starts_with("<3>") && line.ends_with(&format!("{x}\n"));
        assert!(line.len() <= LONGEST && is_whole, "{}", line.len());
    }
    log.in_journal = false;
    log.settings.json = true;
    for text in ["ü", "\"", "\\", "\u{1b}", "a\"\\"] {
        say(&mut log, Level::Error, &text.repeat(5000), Instant::now());
        let line = read(&mut reader);
        assert!(line.len() <= LONGEST, "{}", line.len());
        serde_json::from_str::<serde_json::Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn only_standard_error_has_a_report_in_part_and_says_so() {
    let (mut log, mut reader) = log();
    let mistakes: String = (1..=60)
        .map(|n| format!("site.toml:{n}:1: {}\n", "\"x".repeat(40)))
        .collect();
    let line = Line {
        level: Level::Error,
        about: About::default(),
        text: format_args!("site.toml has mistakes:"),
        report: &mistakes,
    };
    let is_whole = |text: &str| {
        let shown = text.matches("site.toml:").count();
        let more = format!("... {} more lines: run 'osier check'", 60 - shown);
        assert!(shown > 15 && text.contains(&more), "{text}");
    };
    for in_journal in [false, true] {
        log.in_journal = in_journal;
        log.say(&line, Instant::now());
        let text = read(&mut reader);
        assert!(text.len() <= LONGEST && text.ends_with("'osier check'\n"), "{text}");
        is_whole(&text);
    }
    log.in_journal = false;
    log.settings.json = true;
    log.say(&line, Instant::now());
    let text = read(&mut reader);
    assert!(text.len() <= LONGEST, "{}", text.len());
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    is_whole(object["text"].as_str().unwrap());
    let folder = Folder::new();
    let path = folder.join("errors");
    for json in [false, true] {
        log.settings.json = json;
        log.queue = Queue::open(&To::File(path.clone())).unwrap();
        log.say(&line, Instant::now());
        log.queue.take().unwrap().writer.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.matches("site.toml:").count() == 60, "{text}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_line_says_what_it_is_about() {
    let (mut log, mut reader) = log();
    let line = |about, text| Line {
        level: Level::Error,
        about,
        text,
        report: "",
    };
    let id = RequestId::random();
    let known = About {
        id: Some(id),
        ..about()
    };
    log.say(&line(known, format_args!("GET / failed: one")), Instant::now());
    let strange = About {
        site: None,
        client: Some(Client(None)),
        ..known
    };
    log.say(&line(strange, format_args!("GET / failed: two")), Instant::now());
    assert_eq!(
        read_untimed(&mut reader),
        format!(
            "error site=example.org client=192.0.2.1 id={id} osier: GET / failed: one\n\
             error host=www.example.org client=unix id={id} osier: GET / failed: two\n"
        )
    );
    log.settings.json = true;
    log.say(&line(known, format_args!("GET / failed: three")), Instant::now());
    let object: serde_json::Value = serde_json::from_str(&read(&mut reader)).unwrap();
    assert_eq!(object["site"], "example.org");
    assert_eq!(object["client"], "192.0.2.1");
    assert_eq!(object["id"], id.to_string());
    assert_eq!(object["text"], "GET / failed: three");
    assert_eq!(object["level"], "error");
    assert_eq!(object["time"].as_str().map(str::len), Some(24));
}

#[test]
fn nothing_in_a_text_looks_like_another_line() {
    let (mut log, mut reader) = log();
    let evil = "GET /\r\n2026-11-23T03:31:45.123Z error osier: \x1b[2Jforged\u{2028}\u{202e}";
    for json in [false, true] {
        log.settings.json = json;
        say(&mut log, Level::Error, evil, Instant::now());
        let text = read(&mut reader);
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(
            !text.trim_end().contains(|c: char| c.is_control() || c == '\u{202e}'),
            "{text:?}"
        );
    }
}

#[test]
fn less_serious_lines_are_left_out() {
    let (mut log, mut reader) = log();
    for (level, expected) in [
        (Level::Error, "error osier: e\n"),
        (Level::Warning, "error osier: e\nwarning osier: w\n"),
        (Level::Info, "error osier: e\nwarning osier: w\ninfo osier: i\n"),
        (
            Level::Debug,
            "error osier: e\nwarning osier: w\ninfo osier: i\ndebug osier: d\n",
        ),
    ] {
        log.settings.level = level;
        for (level, text) in [
            (Level::Error, "e"),
            (Level::Warning, "w"),
            (Level::Info, "i"),
            (Level::Debug, "d"),
        ] {
            say(&mut log, level, text, Instant::now());
        }
        assert_eq!(read_untimed(&mut reader), expected);
    }
}

#[test]
fn the_journal_gets_a_priority_before_each_line() {
    let (mut log, mut reader) = log();
    log.in_journal = true;
    log.say(
        &Line {
            level: Level::Warning,
            about: about(),
            text: format_args!("site.toml has mistakes"),
            report: "site.toml:1:1: one\nsite.toml:2:1: two\n",
        },
        Instant::now(),
    );
    assert_eq!(
        read(&mut reader),
        "<4>site=example.org client=192.0.2.1 site.toml has mistakes\n\
         <4>site=example.org client=192.0.2.1 site.toml:1:1: one\n\
         <4>site=example.org client=192.0.2.1 site.toml:2:1: two\n"
    );
}

#[test]
fn syslog_gets_a_datagram_for_each_line() {
    let folder = Folder::new();
    let path = folder.join("log");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let (mut log, mut reader) = log();
    log.queue = Queue::open(&To::Syslog(syslog::Settings {
        to: syslog::To::Unix(path),
        format: None,
        facility: syslog::DAEMON,
        tag: "web".into(),
    }))
    .unwrap();
    say(&mut log, Level::Error, "GET / failed: x\ny", Instant::now());
    let mut piece = [0; 1024];
    let count = receiver.recv(&mut piece).unwrap();
    let message = String::from_utf8(piece[..count].to_vec()).unwrap();
    assert!(message.starts_with("<27>"), "{message}");
    let text = format!(" web[{}]: GET / failed: x\\ny", std::process::id());
    assert!(message.ends_with(&text), "{message}");
    assert_eq!(read(&mut reader), "");
}
