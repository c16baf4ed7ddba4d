//! Python's `h2` at the other end: as a client of our server, and as a server of our client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use osier_http::h2::{Connection, Event, Limits, StreamId};

const PYTHON: &str = "/usr/bin/python3";

/// Reads and writes for both scripts: `step` returns false at the end of the input.
const COMMON: &str = r#"
import sys, os, h2.connection, h2.config, h2.events, h2.settings
def start(client):
    global conn
    conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client, header_encoding="utf-8"))
    conn.initiate_connection()
def flush():
    data = conn.data_to_send()
    while data:
        data = data[os.write(0, data):]
def step():
    flush()
    data = os.read(0, 65536)
    return conn.receive_data(data) if data else None
pending = {}
def push():
    for stream, (data, trailers) in list(pending.items()):
        while data:
            n = min(conn.local_flow_control_window(stream), conn.max_outbound_frame_size, len(data))
            if n == 0:
                break
            conn.send_data(stream, data[:n])
            data = data[n:]
        pending[stream] = (data, trailers)
        if not data:
            conn.send_headers(stream, trailers, end_stream=True) if trailers else conn.end_stream(stream)
            del pending[stream]
"#;

/// Sends requests with bodies of many sizes, and checks that each comes back with its own trailer.
const CLIENT: &str = r#"
start(True)
sizes = [0, 1, 100, 16384, 16385, 65535, 70000, 200000]
want, got, ended = {}, {}, {}
for size in sizes:
    stream = conn.get_next_available_stream_id()
    want[stream] = bytes((i * 7 + size) % 256 for i in range(size))
    got[stream] = b""
    conn.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":path", "/%d" % size), (":authority", "a"),
                               ("cookie", "a=1"), ("cookie", "b=2"), ("x-long", "v" * 5000)])
    pending[stream] = (want[stream], [("sum", str(size))])
while len(ended) < len(sizes):
    push()
    events = step()
    assert events is not None, "the server has closed"
    for event in events:
        if isinstance(event, h2.events.ResponseReceived):
            fields = dict(event.headers)
            assert fields[":status"] == "200" and fields["x-cookie"] == "a=1; b=2", fields
        elif isinstance(event, h2.events.DataReceived):
            got[event.stream_id] += event.data
            conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            assert dict(event.headers) == {"sum": str(len(want[event.stream_id]))}, event.headers
        elif isinstance(event, h2.events.StreamEnded):
            ended[event.stream_id] = True
        elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
            raise SystemExit("unexpected: %r" % event)
assert got == want
conn.close_connection()
flush()
"#;

/// Sends every body back, with its trailer.
const SERVER: &str = r#"
start(False)
bodies = {}
while True:
    push()
    events = step()
    if events is None:
        break
    for event in events:
        if isinstance(event, h2.events.RequestReceived):
            bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            bodies[event.stream_id] += event.data
            conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            conn.send_headers(event.stream_id, [(":status", "103"), ("link", "</x>")])
            conn.send_headers(event.stream_id, [(":status", "200"), ("x-long", "v" * 5000)])
            pending[event.stream_id] = (bodies.pop(event.stream_id), [("sum", "1")])
"#;

/// Starts a script with one end of a socket as its standard input. `None` if there is no `h2` for Python.
fn start(script: &str) -> Option<(Child, UnixStream)> {
    let has_h2 = Command::new(PYTHON)
        .args(["-c", "import h2.connection"])
        .stderr(Stdio::null())
        .status();
    if !has_h2.is_ok_and(|status| status.success()) {
        println!("skipped: {PYTHON} has no module h2 (python3-h2)");
        return None;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let script = format!("{COMMON}{script}");
    let mut command = Command::new(PYTHON);
    let child = command
        .args(["-c", &script])
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    Some((child, ours))
}

/// Lets streams go on with `push` and writes the output until nothing is left. Then reads more input.
fn exchange(
    connection: &mut Connection,
    socket: &mut UnixStream,
    mut push: impl FnMut(&mut Connection, StreamId),
) -> Vec<u8> {
    loop {
        while let Some(stream) = connection.next_writable() {
            push(connection, stream);
        }
        if connection.output().is_empty() {
            break;
        }
        socket.write_all(connection.output()).unwrap();
        connection.advance(connection.output().len());
    }
    let mut input = vec![0; 16 << 10];
    let count = socket.read(&mut input).expect("the script goes on");
    assert!(count > 0, "the script has ended");
    input.truncate(count);
    input
}

/// The body and the state of one stream.
#[derive(Default)]
struct Echo {
    received: Vec<u8>,
    sent: usize,
    sum: Vec<u8>,
    cookie: Vec<u8>,
}

impl Echo {
    /// Sends as much as there is room for. True: that was all.
    fn push(&mut self, connection: &mut Connection, stream: StreamId, now: Instant) -> bool {
        self.sent += connection.send_data(stream, &self.received[self.sent..], false, now);
        let is_whole = self.sent == self.received.len();
        if is_whole {
            connection.send_trailers(stream, [("sum", &self.sum[..])]);
            connection.finish(stream);
        }
        is_whole
    }
}

#[test]
fn a_python_client_gets_its_bodies_back() {
    let Some((mut child, mut socket)) = start(CLIENT) else {
        return;
    };
    let now = Instant::now();
    let mut connection = Connection::server(&Limits::default(), now);
    let mut echoes: BTreeMap<StreamId, Echo> = BTreeMap::new();
    let mut goes_away = false;
    while !goes_away {
        let input = exchange(&mut connection, &mut socket, |connection, stream| {
            if echoes.get_mut(&stream).unwrap().push(connection, stream, now) {
                echoes.remove(&stream);
            }
        });
        let mut at = 0;
        loop {
            let (consumed, event) = connection.receive(&input[at..], now).unwrap();
            at += consumed;
            let Some(event) = event else { break };
            match event {
                Event::Request { stream, head, .. } => {
                    let cookie = head.fields().first("cookie").unwrap().to_vec();
                    let echo = Echo {
                        cookie,
                        ..Echo::default()
                    };
                    echoes.insert(stream, echo);
                }
                Event::Data { stream, bytes, .. } => {
                    echoes.get_mut(&stream).unwrap().received.extend_from_slice(bytes);
                    connection.consumed(stream, bytes.len());
                }
                Event::Trailers { stream, fields } => {
                    let echo = echoes.get_mut(&stream).unwrap();
                    echo.sum = fields.first("sum").unwrap().to_vec();
                    connection.send_head(stream, 200, [("X-Cookie", &echo.cookie[..])], false);
                    if echo.push(&mut connection, stream, now) {
                        echoes.remove(&stream);
                    }
                }
                Event::GoAway { .. } => goes_away = true,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(connection.is_done() && echoes.is_empty());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_python_server_sends_our_bodies_back() {
    let Some((mut child, mut socket)) = start(SERVER) else {
        return;
    };
    let now = Instant::now();
    let mut connection = Connection::client(&Limits::default(), now);
    let sizes = [0, 1, 100, 16_384, 16_385, 65_535, 70_000, 200_000];
    let mut echoes: BTreeMap<StreamId, (Vec<u8>, usize, Vec<u8>, u32)> = BTreeMap::new();
    for size in sizes {
        let body: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
        let stream = connection
            .request(&super::target("POST"), [("x", &b"y"[..])], false)
            .unwrap();
        let sent = connection.send_data(stream, &body, true, now);
        echoes.insert(stream, (body, sent, Vec::new(), 0));
    }
    let mut ended = 0;
    while ended < sizes.len() {
        let input = exchange(&mut connection, &mut socket, |connection, stream| {
            let (body, sent, ..) = echoes.get_mut(&stream).unwrap();
            *sent += connection.send_data(stream, &body[*sent..], true, now);
        });
        let mut at = 0;
        loop {
            let (consumed, event) = connection.receive(&input[at..], now).unwrap();
            at += consumed;
            let Some(event) = event else { break };
            match event {
                Event::Response { stream, head, .. } => {
                    let heads = &mut echoes.get_mut(&stream).unwrap().3;
                    assert_eq!(head.status(), if *heads == 0 { 103 } else { 200 });
                    *heads += 1;
                }
                Event::Data { stream, bytes, .. } => {
                    echoes.get_mut(&stream).unwrap().2.extend_from_slice(bytes);
                    connection.consumed(stream, bytes.len());
                }
                Event::Trailers { stream, fields } => {
                    assert_eq!(fields.first("sum"), Some(&b"1"[..]));
                    let (body, _, received, heads) = &echoes[&stream];
                    assert_eq!((received == body, *heads), (true, 2), "{} bytes", body.len());
                    connection.finish(stream);
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(connection.streams(), 0);
    drop(socket);
    assert!(child.wait().unwrap().success());
}
