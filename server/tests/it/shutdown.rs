//! SIGTERM and SIGINT: a graceful shutdown finishes transfers and closes idle connections within a bound. A second signal ends at once.

use crate::support::{Folder, Server, Signal, osier, pattern};
use std::fs::{self, File};
use std::io::Read;
use std::net::TcpStream;

const LARGE: usize = 64 << 20;

/// A client in the middle of a large download, of which it has read the head.
fn downloading(server: &Server) -> crate::support::Client {
    let mut client = server.connect();
    client.send("GET", "/large.bin", &[]);
    assert_eq!(client.receive_head().status, 200);
    client
}

/// Waits until no new connection is taken.
fn await_closed_door(server: &Server) {
    testkit::eventually("a closed door", || TcpStream::connect(server.address).is_err());
}

#[test]
fn a_download_in_flight_finishes_and_the_status_is_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let whole = pattern(LARGE);
        folder.write("large.bin", &whole);
        let mut server = Server::start(&folder, &["--drain", "60"]);
        let mut idle = server.connect();
        idle.send("GET", "/missing", &[]);
        assert_eq!(idle.receive("GET").status, 404);
        let mut busy = downloading(&server);
        server.signal(signal);
        await_closed_door(&server);
        assert!(
            idle.receive_rest().is_empty(),
            "{signal:?}: the idle connection is closed without a word"
        );
        assert!(server.is_running(), "{signal:?}: it waits for the download");
        assert!(busy.receive_rest() == whole, "{signal:?}: the download is complete");
        assert_eq!(server.wait().code(), Some(0), "{signal:?}");
    }
}

/// Each worker looks at the queues of all others, so a look must be cheap. It was not, and 1024 workers took more than two minutes, so half
/// as many would take an eighth of that. Now they take two seconds.
#[test]
fn many_workers_end_together() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &["-w", "512"]);
    let stat = format!("/proc/{}/stat", server.id());
    // The time in user mode and in the kernel, in hundredths of a second.
    let cpu_time = || -> Option<u64> {
        let text = fs::read_to_string(&stat).ok()?;
        let (_, fields) = text.rsplit_once(')')?;
        let mut times = fields
            .split_whitespace()
            .skip(11)
            .map_while(|field| field.parse::<u64>().ok());
        Some(times.next()? + times.next()?)
    };
    let begin = cpu_time().unwrap_or(0);
    server.signal(Signal::TERM);
    let mut end = begin;
    testkit::eventually("the end of all workers", || {
        end = cpu_time().unwrap_or(end);
        !server.is_running()
    });
    assert_eq!(server.wait().code(), Some(0));
    assert!(end - begin < 1000, "{} hundredths of a second of CPU time", end - begin);
}

#[test]
fn the_wait_is_bounded() {
    let folder = Folder::new();
    folder.write("large.bin", pattern(LARGE));
    let mut command = osier();
    let said = folder.join("stderr");
    command.stderr(File::create(&said).unwrap()).arg(folder.path());
    command.args(["-l", "127.0.0.1:0", "--drain", "500ms"]);
    let mut server = Server::spawn(command);
    let mut stuck = downloading(&server);
    server.signal(Signal::TERM);
    // The client reads nothing for as long as the server lives.
    assert_eq!(server.wait().code(), Some(0));
    let said = fs::read_to_string(&said).unwrap();
    let line = "osier: 1 connection was closed, still busy after 0.5 s (--drain)\n";
    assert!(
        said.contains("stopping: 1 connection is open; ") && said.ends_with(line),
        "{said}"
    );
    let mut received = 0;
    let mut piece = vec![0; 1 << 20];
    while let Ok(count @ 1..) = stuck.stream.read(&mut piece) {
        received += count;
    }
    assert!(received < LARGE, "{received} bytes");
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = Folder::new();
    folder.write("large.bin", pattern(LARGE));
    let mut server = Server::start(&folder, &["--drain", "86400"]);
    let _stuck = downloading(&server);
    server.signal(Signal::TERM);
    await_closed_door(&server);
    assert!(server.is_running());
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(128 + 2));
}

#[test]
fn with_nothing_to_do_it_ends_by_itself() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}
