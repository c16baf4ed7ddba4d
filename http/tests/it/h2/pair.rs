//! Two connections that talk to each other: random requests, sizes, limits, priorities, resets and cuts of the bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use osier_http::h2::{Connection, ErrorCode, Event, Limits, Outgoing, Room, StreamId};
use proptest::collection::vec;
use proptest::prelude::*;

/// A request and its response.
#[derive(Clone, Debug)]
struct Exchange {
    up: usize,
    down: usize,
    up_trailers: bool,
    down_trailers: bool,
    priority: Option<&'static str>,
    end: Ended,
}

/// How an exchange ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Well,
    /// The client resets it when so many bytes of the response have come.
    ByClient(usize),
    /// The server resets it when so many bytes of the request have come.
    ByServer(usize),
    /// The server responds at once, and reads nothing.
    Unread,
}

#[derive(Clone, Debug)]
struct Program {
    limits: [Limits; 2],
    exchanges: Vec<Exchange>,
    /// Numbers of bytes that cross at a time.
    cuts: Vec<usize>,
    /// Whether handlers read only when nothing else happens.
    is_lazy: bool,
    /// Whether one request follows the other, and the server is exported and imported in between.
    moves: bool,
}

fn limits() -> impl Strategy<Value = Limits> {
    let sizes = prop_oneof![1 => 5..100u32, 3 => 100..70_000u32];
    let output = prop_oneof![1024..2000usize, 2000..70_000usize];
    (
        sizes,
        output,
        1..6u32,
        16_384..20_000u32,
        prop_oneof![Just(0u32), 0..5000u32],
    )
        .prop_map(
            |(stream_window, output_bytes, max_streams, max_frame, decoder_table)| Limits {
                stream_window,
                output_bytes,
                max_streams,
                max_frame,
                decoder_table,
                connection_window: 65_535,
                grown_window: 4 * stream_window,
                growth: 16 * stream_window,
                // A window of one byte makes a frame of each.
                frame_burst: 1 << 30,
                ..Limits::default()
            },
        )
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let size = || prop_oneof![3 => 0..3usize, 3 => 0..400usize, 1 => 0..4_000usize];
    let end = prop_oneof![
        6 => Just(Ended::Well),
        1 => (0..500usize).prop_map(Ended::ByClient),
        1 => (0..500usize).prop_map(Ended::ByServer),
        1 => Just(Ended::Unread),
    ];
    let priority = prop::sample::select(vec![None, Some("u=0"), Some("u=5, i"), Some("i"), Some("u=3")]);
    (size(), size(), any::<bool>(), any::<bool>(), priority, end).prop_map(
        |(up, down, up_trailers, down_trailers, priority, end)| Exchange {
            up,
            down,
            up_trailers,
            down_trailers,
            priority,
            end,
        },
    )
}

fn program() -> impl Strategy<Value = Program> {
    let cuts = vec(
        prop_oneof![1 => 5..50usize, 3 => 50..2_000usize, 2 => Just(100_000usize)],
        1..8,
    );
    let exchanges = vec(exchange(), 1..12);
    ([limits(), limits()], exchanges, cuts, any::<bool>(), any::<bool>()).prop_map(
        |(limits, exchanges, cuts, is_lazy, moves)| Program {
            limits,
            exchanges,
            cuts,
            is_lazy,
            moves,
        },
    )
}

/// The bytes of a body, which differ from stream to stream.
fn body(stream: StreamId, from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| (at * 7 + stream as usize * 31) as u8).collect()
}

/// One direction of one stream at one side.
#[derive(Debug, Default)]
struct Flow {
    sent: usize,
    to_send: usize,
    has_trailers: bool,
    sends: bool,
    has_sent: bool,
    received: usize,
    unread: usize,
    has_received: bool,
    is_reset: bool,
    finished: bool,
}

struct Side {
    connection: Connection,
    flows: BTreeMap<StreamId, Flow>,
    input: Vec<u8>,
}

impl Side {
    /// Sends as much of a body as there is room for.
    fn push(&mut self, stream: StreamId, now: Instant) {
        let flow = self.flows.get_mut(&stream).unwrap();
        if !flow.sends || flow.has_sent || flow.is_reset || flow.finished {
            return;
        }
        let bytes = body(stream, flow.sent, flow.to_send);
        flow.sent += self.connection.send_data(stream, &bytes, !flow.has_trailers, now);
        if flow.sent == flow.to_send {
            flow.has_sent = true;
            if flow.has_trailers {
                self.connection.send_trailers(stream, [("sum", &b"x"[..])]);
            }
        }
    }

    fn wake(&mut self, now: Instant) {
        while let Some(stream) = self.connection.next_writable() {
            self.push(stream, now);
        }
    }

    fn finish(&mut self, stream: StreamId) {
        self.flows.get_mut(&stream).unwrap().finished = true;
        self.connection.finish(stream);
    }

    fn read(&mut self, now: Instant) -> bool {
        let mut has_read = false;
        for (stream, flow) in &mut self.flows {
            if flow.unread > 0 {
                let count = std::mem::take(&mut flow.unread);
                self.connection
                    .consumed_within(*stream, count, Room::Beyond(usize::MAX), now);
                self.connection.reader_waits(*stream);
                has_read = true;
            }
        }
        has_read
    }
}

struct Run {
    program: Program,
    sides: [Side; 2],
    now: Instant,
    opened: BTreeMap<StreamId, Exchange>,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Run {
    fn new(program: Program) -> Run {
        let now = Instant::now();
        let side = |connection| Side {
            connection,
            flows: BTreeMap::new(),
            input: Vec::new(),
        };
        let client = side(Connection::client(&program.limits[CLIENT], now));
        let server = side(Connection::server(&program.limits[SERVER], now));
        Run {
            program,
            sides: [client, server],
            now,
            opened: BTreeMap::new(),
        }
    }

    /// Opens as many of the requests that are left as the server allows.
    fn open(&mut self) {
        while !self.program.exchanges.is_empty() && self.sides[CLIENT].connection.slots() > 0 {
            if self.program.moves && self.sides[CLIENT].connection.streams() > 0 {
                return;
            }
            let exchange = self.program.exchanges.remove(0);
            let target = Outgoing {
                method: "POST",
                scheme: "http",
                authority: "a",
                path: "/",
                protocol: None,
            };
            let client = &mut self.sides[CLIENT];
            let fields = exchange.priority.map(|priority| ("Priority", priority.as_bytes()));
            let is_empty = exchange.up == 0 && !exchange.up_trailers;
            let stream = client.connection.request(&target, fields, is_empty).unwrap();
            let flow = Flow {
                to_send: exchange.up,
                has_trailers: exchange.up_trailers,
                sends: !is_empty,
                has_sent: is_empty,
                ..Flow::default()
            };
            client.flows.insert(stream, flow);
            client.push(stream, self.now);
            self.opened.insert(stream, exchange);
        }
    }

    /// Moves up to `most` bytes from one side to the other. False: there was nothing.
    fn cross(&mut self, from: usize, most: usize) -> bool {
        let to = 1 - from;
        if !self.sides[to].connection.wants_input() {
            return false;
        }
        let output = self.sides[from].connection.output();
        let count = output.len().min(most);
        if count == 0 {
            return false;
        }
        let bytes = output[..count].to_vec();
        self.sides[from].connection.advance(count);
        self.sides[from].wake(self.now);
        self.sides[to].input.extend_from_slice(&bytes);
        self.receive(to);
        true
    }

    fn receive(&mut self, at: usize) {
        let input = std::mem::take(&mut self.sides[at].input);
        let mut done = 0;
        loop {
            let side = &mut self.sides[at];
            let (consumed, event) = side.connection.receive(&input[done..], self.now).unwrap();
            done += consumed;
            let Some(event) = event else {
                assert_eq!(done, input.len());
                break;
            };
            match event {
                Event::Request { stream, end, .. } => self.serve(stream, end),
                Event::Response { stream, end, head } => {
                    assert_eq!(head.status(), 200);
                    side.flows.get_mut(&stream).unwrap().has_received = end;
                    self.after(CLIENT, stream);
                }
                Event::Data { stream, bytes, end } => {
                    let flow = side.flows.get_mut(&stream).unwrap();
                    assert!(!flow.finished && !flow.is_reset);
                    assert_eq!(bytes, body(stream, flow.received, flow.received + bytes.len()));
                    flow.received += bytes.len();
                    flow.unread += bytes.len();
                    flow.has_received = end;
                    if !self.program.is_lazy {
                        side.read(self.now);
                    }
                    self.after(at, stream);
                }
                Event::Trailers { stream, fields } => {
                    assert_eq!(fields.first("sum"), Some(&b"x"[..]));
                    side.flows.get_mut(&stream).unwrap().has_received = true;
                    self.after(at, stream);
                }
                Event::Reset { stream, code, by_peer } => {
                    assert!(by_peer, "{code}");
                    side.flows.get_mut(&stream).unwrap().is_reset = true;
                    side.finish(stream);
                }
                other => panic!("{other:?}"),
            }
        }
        self.sides[at].wake(self.now);
    }

    /// The server's handler.
    fn serve(&mut self, stream: StreamId, end: bool) {
        let exchange = &self.opened[&stream];
        let flow = Flow {
            to_send: exchange.down,
            has_trailers: exchange.down_trailers,
            has_received: end,
            ..Flow::default()
        };
        self.sides[SERVER].flows.insert(stream, flow);
        self.after(SERVER, stream);
    }

    /// Goes on with an exchange after something has come.
    fn after(&mut self, at: usize, stream: StreamId) {
        let exchange = &self.opened[&stream];
        let side = &mut self.sides[at];
        let flow = side.flows.get_mut(&stream).unwrap();
        if flow.finished {
            return;
        }
        match (at, exchange.end) {
            (CLIENT, Ended::ByClient(bytes)) if flow.received >= bytes => {
                side.connection.reset(stream, ErrorCode::CANCEL);
                return side.finish(stream);
            }
            (SERVER, Ended::ByServer(bytes)) if flow.received >= bytes => return side.finish(stream),
            _ => {}
        }
        if at == SERVER && !flow.sends && (flow.has_received || exchange.end == Ended::Unread) {
            flow.sends = true;
            side.connection
                .send_head(stream, 200, [("Content-Type", &b"x"[..])], false);
            side.push(stream, self.now);
        }
        self.end_if_done(at, stream);
    }

    fn end_if_done(&mut self, at: usize, stream: StreamId) {
        let exchange = &self.opened[&stream];
        let side = &mut self.sides[at];
        let flow = &side.flows[&stream];
        let has_received = flow.has_received || (at == SERVER && exchange.end == Ended::Unread);
        if flow.has_sent && has_received && !flow.finished {
            side.finish(stream);
        }
    }

    fn run(mut self) {
        // The client learns how many streams it may open.
        while self.cross(SERVER, 1000) | self.cross(CLIENT, 1000) {}
        let mut rounds = 0;
        loop {
            if self.program.moves {
                self.move_server();
            }
            self.open();
            let mut has_moved = false;
            for from in [CLIENT, SERVER] {
                let most = self.program.cuts[rounds % self.program.cuts.len()];
                has_moved |= self.cross(from, most);
                rounds += 1;
            }
            for at in [CLIENT, SERVER] {
                for stream in self.sides[at].flows.keys().copied().collect::<Vec<_>>() {
                    self.end_if_done(at, stream);
                }
                self.sides[at].wake(self.now);
            }
            if !has_moved {
                let has_read = self.sides[CLIENT].read(self.now) | self.sides[SERVER].read(self.now);
                let has_output = self.sides.iter().any(|side| !side.connection.output().is_empty());
                if !has_read && !has_output && self.program.exchanges.is_empty() {
                    break;
                }
            }
            assert!(rounds < 200_000, "no end");
        }
        self.check();
    }

    /// Replaces the server's connection by the one that its export describes, if it is at rest.
    fn move_server(&mut self) {
        let server = &mut self.sides[SERVER].connection;
        if let Ok(exported) = server.export() {
            assert!(server.is_idle());
            *server = Connection::import(&self.program.limits[CLIENT], &exported, self.now).unwrap();
            assert_eq!(server.export().as_deref(), Ok(&exported[..]));
        }
    }

    fn check(mut self) {
        for (stream, exchange) in &self.opened {
            let (client, server) = (&self.sides[CLIENT].flows[stream], self.sides[SERVER].flows.get(stream));
            if exchange.end == Ended::Well {
                let server = server.expect("the server has seen the request");
                assert_eq!(
                    (server.received, client.received),
                    (exchange.up, exchange.down),
                    "{stream}: {exchange:?}"
                );
            }
            assert!(
                client.finished && server.is_none_or(|server| server.finished),
                "{stream}: {exchange:?}"
            );
        }
        for side in &mut self.sides {
            assert_eq!(side.connection.streams(), 0);
            assert!(side.connection.is_idle());
            // Only the times of unused limits may be left.
            let deadline = side.connection.next_deadline();
            assert_eq!(deadline, None);
            assert!(
                side.connection
                    .expire(self.now + Duration::from_secs(3600))
                    .unwrap()
                    .is_none()
            );
        }
        // The windows have come back: a last exchange crosses at once.
        let last = Exchange {
            up: 1,
            down: 1,
            up_trailers: false,
            down_trailers: false,
            priority: None,
            end: Ended::Well,
        };
        if self.opened.len() < 100 {
            self.program.exchanges.push(last);
            self.opened = BTreeMap::new();
            self.sides.iter_mut().for_each(|side| side.flows.clear());
            self.open();
            while self.cross(CLIENT, 1000)
                | self.cross(SERVER, 1000)
                | self.sides[CLIENT].read(self.now)
                | self.sides[SERVER].read(self.now)
            {}
            let (stream, _) = self.opened.first_key_value().unwrap();
            assert_eq!(
                (
                    self.sides[SERVER].flows[stream].received,
                    self.sides[CLIENT].flows[stream].received
                ),
                (1, 1)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn two_connections_understand_each_other(program in program()) {
        Run::new(program).run();
    }
}
