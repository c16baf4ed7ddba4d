//! Synchronous clients on fibers: redis over Osier's streams, and unchanged, outside of the worker.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{net, thread};

use osier::net::{TcpStream, UnixStream};
use osier_mixing::peer::Peer;
use osier_mixing::redis::Connection;
use osier_mixing::{listen, pattern, run, run_on};
use redis::{Commands, ConnectionLike, ErrorKind, ServerErrorKind};

#[test]
fn redis_runs_its_commands_over_our_streams() {
    let server = match Peer::redis() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    run(|| {
        let connect = || Connection::new(UnixStream::connect(server.socket()).expect("it listens"));
        let mut redis = connect();
        assert!(redis.check_connection());
        let () = redis.set("greeting", "grüße").unwrap();
        assert_eq!(redis.get::<_, String>("greeting").unwrap(), "grüße");
        assert_eq!(redis.get::<_, Option<i64>>("nothing").unwrap(), None);
        let long = pattern(1 << 20);
        let () = redis.set("long", &long).unwrap();
        assert!(redis.get::<_, Vec<u8>>("long").unwrap() == long);

        let wrong = redis.incr::<_, _, i64>("greeting", 1).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
        assert!(redis.is_open(), "an error that the server tells is an answer");

        let (a, b): (i64, Vec<String>) = redis::pipe()
            .atomic()
            .incr("count", 5)
            .rpush("list", &["x", "y"])
            .ignore()
            .lrange("list", 0, -1)
            .query(&mut redis)
            .unwrap();
        assert_eq!((a, b), (5, vec!["x".into(), "y".into()]));

        // One waits for what another brings.
        let waiting = osier::scope(|scope| {
            let waiter = scope.spawn(|| connect().blpop::<_, (String, String)>("queue", 30.0));
            let () = redis.rpush("queue", "job").unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(waiting.unwrap(), ("queue".into(), "job".into()));

        // Given up in the middle of an exchange it is of no more use, and says so.
        let mut given_up = connect();
        let waited = osier::timeout(Duration::from_millis(10), || {
            given_up.blpop::<_, (String, String)>("empty", 30.0)
        });
        assert!(waited.is_err());
        assert!(!given_up.is_open());
    });
}

#[test]
fn fifty_fibers_ask_redis_at_once() {
    let server = match Peer::redis() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    run(|| {
        osier::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| {
                    let mut redis = Connection::new(UnixStream::connect(server.socket()).expect("it listens"));
                    for _ in 0..20 {
                        redis.incr::<_, _, i64>("shared", 1).expect("it is a number");
                    }
                });
            }
        });
        let mut redis = Connection::new(UnixStream::connect(server.socket()).expect("it listens"));
        assert_eq!(redis.get::<_, i64>("shared").unwrap(), 1000);
    });
}

/// The example, and where it listens.
struct Example {
    child: Child,
    address: String,
}

impl Example {
    fn start(redis: &str) -> Example {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redis"));
        command.args(["127.0.0.1:0", redis]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("redis on http://");
        let address = address.expect("it says where it listens").trim_end_matches('/').into();
        Example { child, address }
    }

    /// The status and the body of a response.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = net::TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_example_asks_redis_in_blocking_style() {
    let server = match Peer::redis() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    let example = Example::start(&format!("unix:{}", server.socket().display()));
    let get = |path| example.ask("GET", path, "");
    assert_eq!(get("/greeting"), (404, "404 Not Found\n".into()));
    assert_eq!(example.ask("PUT", "/greeting", "hello\r\nthere").0, 204);
    assert_eq!(get("/greeting"), (200, "hello\r\nthere".into()));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(example.ask("POST", "/visits", "").0, 200)));
        }
    });
    assert_eq!(get("/visits"), (200, "80".into()));
    assert_eq!(example.ask("POST", "/greeting", "").0, 502, "no number");
    assert_eq!(
        get("/greeting").0,
        200,
        "the connection is whole after an error of Redis's"
    );
    drop(server);
    assert_eq!(get("/greeting").0, 502);
}

#[test]
fn an_address_that_is_none_ends_the_example() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis"));
    let output = command.args(["127.0.0.1:0", "nowhere"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn redis_with_its_own_connection_blocks_off_the_worker() {
    let server = match Peer::redis() {
        Ok(server) => server,
        Err(why) => return println!("skipped: {why}"),
    };
    // One worker: if it were blocked, the second fiber could not bring what the first one waits for.
    run_on(1, || {
        let url = format!("redis+unix://{}", server.socket().display());
        let client = redis::Client::open(url).unwrap();
        let waiter = osier::spawn({
            let client = client.clone();
            move || osier::unblock(move || client.get_connection()?.blpop::<_, (String, String)>("queue", 30.0))
        });
        osier::yield_now();
        let pushed = osier::unblock(move || client.get_connection()?.rpush::<_, _, i64>("queue", "job"));
        assert_eq!(pushed.unwrap(), 1);
        assert_eq!(waiter.join().unwrap().unwrap(), ("queue".into(), "job".into()));
    });
}

#[test]
fn a_plain_blocking_protocol_needs_nothing_at_all() {
    // The simplest synchronous client: a line there, a line back, over std's own buffers.
    run(|| {
        let (listener, address) = listen();
        osier::spawn(move || -> io::Result<()> {
            let (stream, _) = listener.accept()?;
            let mut lines = BufReader::new(&stream);
            let mut line = String::new();
            while lines.read_line(&mut line)? > 0 {
                (&stream).write_all(line.to_uppercase().as_bytes())?;
                line.clear();
            }
            Ok(())
        });
        let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
        let mut heard = String::new();
        for n in 0..100 {
            // In one piece: `writeln!` would make three packets of it, and wait for the first to be acknowledged.
            let line = format!("line {n}\n");
            stream.get_mut().write_all(line.as_bytes()).unwrap();
            heard.clear();
            stream.read_line(&mut heard).unwrap();
            assert_eq!(heard, format!("LINE {n}\n"));
        }
    });
}
