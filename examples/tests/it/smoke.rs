//! Starts each example as a reader would.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::common::{Running, connect};

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

/// The output of a program that ends by itself.
fn output(program: &str) -> String {
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_event_is_polled_for_and_its_waiter_resumed_by_hand() {
    assert_eq!(
        output(env!("CARGO_BIN_EXE_resume_by_hand")),
        "the event is set, the flag is false\n1 resumed, the flag is true\n"
    );
}

#[test]
fn fibers_run_inside_a_poll_loop_beside_its_own_descriptors() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_poll_loop"))
        .arg("127.0.0.1:0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut running = Running(child);
    let mut line = move || lines.next().map(Result::unwrap);
    let first = line().unwrap();
    let addr = first.strip_prefix("echo on ").unwrap();
    for round in 0..3 {
        let mut client = connect(addr);
        client.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        client.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        writeln!(stdin, "line {round}").unwrap();
        assert_eq!(line().unwrap(), format!("the host read \"line {round}\""));
    }
    // Lines that come together, and one that comes in two pieces.
    stdin.write_all(b"one\ntwo\nthr").unwrap();
    assert_eq!(line().unwrap(), "the host read \"one\"");
    assert_eq!(line().unwrap(), "the host read \"two\"");
    stdin.write_all(b"ee\n").unwrap();
    assert_eq!(line().unwrap(), "the host read \"three\"");
    drop(stdin);
    assert_eq!(line().unwrap(), "a fiber heard it");
    assert_eq!(line(), None);
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn fibers_run_inside_a_calloop_loop() {
    let text = output(env!("CARGO_BIN_EXE_calloop_host"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..3],
        ["beat 1 of a fiber", "beat 2 of a fiber", "beat 3 of a fiber"]
    );
    let frames = lines[3]
        .strip_prefix("the host drew ")
        .and_then(|rest| rest.split(' ').next());
    assert!(frames.unwrap().parse::<u32>().unwrap() > 1, "{text}");
}
