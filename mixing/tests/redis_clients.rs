//! Synchronous clients on fibers: redis over Osier's streams, and unchanged, outside of the worker.

use std::io::{self, Write};
use std::time::Duration;

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
            let mut lines = io::BufReader::new(&stream);
            let mut line = String::new();
            while io::BufRead::read_line(&mut lines, &mut line)? > 0 {
                (&stream).write_all(line.to_uppercase().as_bytes())?;
                line.clear();
            }
            Ok(())
        });
        let mut stream = io::BufReader::new(TcpStream::connect(address).unwrap());
        let mut heard = String::new();
        for n in 0..100 {
            // In one piece: `writeln!` would make three packets of it, and wait for the first to be acknowledged.
            let line = format!("line {n}\n");
            stream.get_mut().write_all(line.as_bytes()).unwrap();
            heard.clear();
            io::BufRead::read_line(&mut stream, &mut heard).unwrap();
            assert_eq!(heard, format!("LINE {n}\n"));
        }
    });
}
