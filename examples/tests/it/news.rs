//! The ticker upgrades itself while readers follow it and writers write.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use testkit::eventually;

use crate::common::{Running, connect};

const WRITERS: usize = 2;
const LINES: usize = 150;
const UPGRADES: usize = 3;

/// A client of one connection. It fails if the connection ends.
struct Kept(BufReader<TcpStream>);

impl Kept {
    fn connect(addr: &str) -> Kept {
        Kept(BufReader::new(connect(addr)))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection has ended");
        line.truncate(line.trim_end().len());
        line
    }

    /// Sends a request, and reads the head of the response. Returns its fields in lower case.
    fn ask(&mut self, method: &str, path: &str, fields: &str, body: &str) -> String {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
        self.0.get_mut().write_all(head.as_bytes()).unwrap();
        let mut head = String::new();
        loop {
            match self.line().as_str() {
                "" => return head.to_ascii_lowercase(),
                line => head = head + line + "\n",
            }
        }
    }

    /// The id of the process that serves this connection.
    fn process(&mut self) -> i32 {
        let head = self.ask("GET", "/process", "", "");
        assert!(
            head.starts_with("http/1.1 200 ") && !head.contains("connection:"),
            "{head}"
        );
        self.line().parse().unwrap()
    }

    /// The next chunk of a body. Empty at the end of the response.
    fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        String::from_utf8(chunk).unwrap()
    }
}

/// Reads until line `last`, on one connection. Returns the lines, and how often the stream has ended.
fn follow(addr: &str, last: usize) -> (Vec<String>, usize) {
    let (mut client, mut lines, mut ends) = (Kept::connect(addr), Vec::new(), 0);
    while lines.len() < last {
        let fields = match lines.len() {
            0 => String::new(),
            count => format!("Last-Event-ID: {count}\r\n"),
        };
        let head = client.ask("GET", "/news", &fields, "");
        assert!(
            head.starts_with("http/1.1 200 ") && !head.contains("connection:"),
            "{head}"
        );
        let mut events = String::new();
        while lines.len() < last {
            let chunk = client.chunk();
            if chunk.is_empty() {
                ends += 1;
                assert_eq!(events, "", "half an event");
                break;
            }
            events += &chunk;
            while let Some((event, rest)) = events.split_once("\n\n") {
                let number = lines.len() + 1;
                let text = event.strip_suffix(&format!("\nid: {number}"));
                let text = text.unwrap_or_else(|| panic!("{event:?} is not line {number}"));
                lines.push(text.strip_prefix("data: ").unwrap().to_owned());
                events = rest.to_owned();
            }
        }
    }
    (lines, ends)
}

/// The processes of an upgraded program. Its drop ends them.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

#[test]
fn readers_of_a_program_that_upgrades_itself_get_every_line_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_news"));
    command.arg("127.0.0.1:0").stdout(Stdio::piped()).process_group(0);
    let mut news = Running(command.spawn().unwrap());
    let _group = Group(Pid::from_child(&news.0));
    let addr = news.addr("news on http://");
    let written = AtomicUsize::new(0);
    let mut watch = Kept::connect(&addr);
    let mut serving = watch.process();
    assert_eq!(serving as u32, news.0.id());
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| follow(&addr, WRITERS * LINES))).collect();
        for writer in 0..WRITERS {
            let (addr, written) = (&addr, &written);
            scope.spawn(move || {
                let mut client = Kept::connect(addr);
                for line in 0..LINES {
                    let head = client.ask("POST", "/news", "", &format!("{writer}-{line}"));
                    assert!(
                        head.starts_with("http/1.1 204 ") && !head.contains("connection:"),
                        "{head}"
                    );
                    written.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(std::time::Duration::from_millis(3));
                }
            });
        }
        for upgrade in 1..=UPGRADES {
            let due = upgrade * WRITERS * LINES / (UPGRADES + 1);
            eventually("some lines", || written.load(Ordering::Relaxed) >= due);
            kill_process(Pid::from_raw(serving).unwrap(), Signal::USR2).unwrap();
            let old = serving;
            eventually("the new process", || {
                serving = watch.process();
                serving != old
            });
        }
        for reader in readers {
            let (lines, ends) = reader.join().unwrap();
            assert_eq!(ends, UPGRADES, "each old process has ended the stream");
            for writer in 0..WRITERS {
                let of_writer = lines.iter().filter_map(|line| line.strip_prefix(&format!("{writer}-")));
                let numbers: Vec<usize> = of_writer.map(|number| number.parse().unwrap()).collect();
                assert_eq!(numbers, (0..LINES).collect::<Vec<_>>(), "writer {writer}");
            }
        }
    });
    assert!(news.0.wait().unwrap().success(), "the first process ends by itself");
    kill_process(Pid::from_raw(serving).unwrap(), Signal::TERM).unwrap();
    // It ends after its connections.
    assert_eq!(watch.0.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_line_has_a_greatest_length() {
    let mut news = Running::start(env!("CARGO_BIN_EXE_news"), &["127.0.0.1:0"]);
    let addr = news.addr("news on http://");
    for (length, status) in [(1000, "http/1.1 204 "), (1001, "http/1.1 413 ")] {
        let head = Kept::connect(&addr).ask("POST", "/news", "", &"x".repeat(length));
        assert!(head.starts_with(status), "{length}: {head}");
    }
}
