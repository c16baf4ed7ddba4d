//! Each example, started as a reader would start it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running example, killed when dropped.
struct Running(Child);

impl Running {
    fn start(program: &str, args: &[&str]) -> Running {
        let child = Command::new(program).args(args).stdout(Stdio::piped()).spawn();
        Running(child.expect("the example was built with this test"))
    }

    /// What follows `prefix` in the line that it prints once it listens.
    fn addr(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let addr = line.trim().strip_prefix(prefix).expect("it says where it listens");
        addr.trim_end_matches('/').to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

#[test]
fn echo_echoes() {
    let mut echo = Running::start(env!("CARGO_BIN_EXE_echo"), &["127.0.0.1:0", "2"]);
    let addr = echo.addr("echo on ");
    let mut clients: Vec<_> = (0..10).map(|_| connect(&addr)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let said = format!("hello from {n}").repeat(1000);
        client.write_all(said.as_bytes()).unwrap();
        let mut heard = vec![0; said.len()];
        client.read_exact(&mut heard).unwrap();
        assert_eq!(heard, said.as_bytes());
    }
}

#[test]
fn hello_greets() {
    let mut hello = Running::start(env!("CARGO_BIN_EXE_hello"), &["127.0.0.1:0", "2"]);
    let addr = hello.addr("hello on http://");
    for (path, body) in [("/", "Hello, World!"), ("/Ada", "Hello, Ada!\n")] {
        let mut client = connect(&addr);
        write!(
            client,
            "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(&format!("\r\n\r\n{body}")),
            "{answer}"
        );
    }
}

#[test]
fn wrong_arguments_are_named() {
    for program in [env!("CARGO_BIN_EXE_echo"), env!("CARGO_BIN_EXE_hello")] {
        for args in [["nowhere", "1"], ["127.0.0.1:0", "many"]] {
            let output = Command::new(program).args(args).output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{program} {args:?}: {text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}
