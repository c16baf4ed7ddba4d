//! Windows that grow while a reader waits for its peer, and that shrink again.

use std::collections::BTreeMap;
use std::time::Duration;

use osier_http::h2::{ErrorCode, Limits, Room};

use super::peer::*;

const FRAME: i64 = 16_384;
const FIRST: i64 = 65_535;

/// A client that sends as much as the windows allow, and a server whose readers take it.
struct Uploads {
    peer: Peer,
    /// The window of the connection, as the client knows it.
    connection: i64,
    /// Those of the streams, and the bytes that nobody has read.
    streams: BTreeMap<u32, (i64, i64)>,
    /// How far windows may grow.
    room: Room,
}

impl Uploads {
    fn new(limits: &Limits) -> Uploads {
        Uploads {
            peer: Peer::server_with(limits),
            connection: limits.connection_window.into(),
            streams: BTreeMap::new(),
            room: Room::Beyond(usize::MAX),
        }
    }

    fn open(&mut self, stream: u32) {
        assert_eq!(self.peer.feed(&post(stream)).len(), 1);
        self.streams.insert(stream, (FIRST, 0));
    }

    fn window(&self, stream: u32) -> i64 {
        self.streams[&stream].0 + self.streams[&stream].1
    }

    /// Sends one frame. Returns its length: 0 if a window is shut.
    fn send(&mut self, stream: u32) -> i64 {
        let (window, held) = self.streams.get_mut(&stream).unwrap();
        let count = FRAME.min(*window).min(self.connection);
        if count > 0 {
            *window -= count;
            *held += count;
            self.connection -= count;
            let events = self.peer.feed(&data(stream, &vec![0; count as usize], false));
            assert_eq!(events.len(), 1, "{:?}", self.peer.frames());
        }
        count
    }

    /// Sends until a window is shut. Returns the bytes.
    fn fill(&mut self, stream: u32) -> i64 {
        let mut sent = 0;
        while let count @ 1.. = self.send(stream) {
            sent += count;
        }
        sent
    }

    /// Has the reader take `count` bytes.
    fn take(&mut self, stream: u32, count: i64) {
        let now = self.peer.now;
        self.peer
            .connection
            .consumed_within(stream, count as usize, self.room, now);
        self.streams.get_mut(&stream).unwrap().1 -= count;
        self.updates();
    }

    /// Reads the WINDOW_UPDATE frames in the output.
    fn updates(&mut self) {
        for frame in self.peer.frames() {
            assert_ne!(frame.kind, RST_STREAM);
            if frame.kind != WINDOW_UPDATE {
                continue;
            }
            let by = i64::from(u32::from_be_bytes(frame.payload.try_into().unwrap()));
            match frame.stream {
                0 => self.connection += by,
                stream => self.streams.get_mut(&stream).unwrap().0 += by,
            }
        }
    }

    /// Sends all that the windows allow, which a reader takes that is as fast as the client, again and again.
    fn run(&mut self, stream: u32, bytes: i64) {
        let mut done = 0;
        while done < bytes {
            let mut held = self.fill(stream);
            assert!(held > 0, "a reader that has taken everything has opened the windows");
            done += held;
            while held > 0 {
                let piece = held.min(FRAME);
                self.take(stream, piece);
                held -= piece;
            }
            self.peer.connection.reader_waits(stream);
        }
    }

    /// The end of the body, its handler and its response.
    fn end(&mut self, stream: u32) {
        self.peer.feed(&data(stream, b"", true));
        self.peer.connection.send_head(stream, 200, [], true);
        self.peer.connection.finish(stream);
        self.updates();
        self.streams.remove(&stream);
    }

    fn grown(&self) -> i64 {
        self.peer.connection.grown() as i64
    }
}

const MIB: i64 = 1 << 20;

#[test]
fn a_window_grows_to_its_bound_while_the_reader_waits() {
    let mut uploads = Uploads::new(&Limits::default());
    uploads.open(1);
    uploads.run(1, 100_000);
    assert!(
        (FIRST + 1..FIRST * 4).contains(&uploads.window(1)),
        "{}",
        uploads.window(1)
    );
    assert_eq!(uploads.grown(), 0, "the connection has room for it");
    uploads.run(1, 100 * MIB);
    // Half of `connection_window`, and half of `growth`. Less is announced only in steps.
    let all = 9 * MIB;
    assert!(
        (all - MIB / 4..=all).contains(&uploads.window(1)),
        "{}",
        uploads.window(1)
    );
    assert_eq!(uploads.grown(), 8 * MIB);
    assert!(uploads.connection > 9 * MIB, "{}", uploads.connection);
}

#[test]
fn no_window_grows_for_a_reader_that_never_waits_or_a_peer_that_is_slow() {
    let mut uploads = Uploads::new(&Limits::default());
    uploads.open(1);
    for _ in 0..1000 {
        uploads.fill(1);
        uploads.take(1, FRAME);
    }
    assert_eq!(uploads.window(1), FIRST);
    uploads.open(3);
    for _ in 0..100 {
        assert_eq!(uploads.send(3), FRAME);
        uploads.take(3, FRAME);
        uploads.peer.connection.reader_waits(3);
        uploads.peer.now += Duration::from_millis(600);
    }
    assert!(uploads.window(3) <= FIRST, "{}", uploads.window(3));
    uploads.run(3, MIB);
    assert!(uploads.window(3) > FIRST);
}

#[test]
fn bodies_that_nobody_reads_hold_no_more_than_the_window_of_the_connection() {
    let mut uploads = Uploads::new(&Limits::default());
    let mut held = 0;
    for stream in (1..160).step_by(2) {
        uploads.open(stream);
        uploads.peer.connection.reader_waits(stream);
        held += uploads.fill(stream);
    }
    assert_eq!(held, 2 * MIB);
    assert_eq!(
        uploads.peer.fails(&data(159, b"x", false)),
        ErrorCode::FLOW_CONTROL_ERROR
    );
}

#[test]
fn a_body_whose_reader_stops_takes_nothing_from_the_others() {
    let mut uploads = Uploads::new(&Limits::default());
    for stream in [1, 3, 5] {
        uploads.open(stream);
    }
    // Each has at most half of what the others leave.
    for (stream, most) in [(1, 9 * MIB), (3, 5 * MIB), (5, 3 * MIB)] {
        uploads.run(stream, 100 * MIB);
        let window = uploads.window(stream);
        assert!((most - MIB / 4..=most).contains(&window), "{stream}: {window}");
    }
    assert_eq!(uploads.grown(), 14 * MIB);
    assert!(uploads.connection <= 16 * MIB);
    for stream in [3, 5] {
        uploads.end(stream);
    }
    assert!(uploads.fill(1) > 8 * MIB);
    // It holds half of the window that all share, and what it has grown by.
    let left = uploads.connection;
    assert!(left >= MIB - MIB / 4, "{left}");
    uploads.open(7);
    uploads.run(7, 100 * MIB);
    assert!(uploads.window(7) > 4 * MIB, "{}", uploads.window(7));
}

#[test]
fn without_growth_a_window_is_half_of_that_of_the_connection() {
    let limits = Limits {
        growth: 0,
        ..Limits::default()
    };
    let mut uploads = Uploads::new(&limits);
    uploads.open(1);
    uploads.run(1, 50 * MIB);
    assert!(
        (MIB - MIB / 4..=MIB).contains(&uploads.window(1)),
        "{}",
        uploads.window(1)
    );
    assert_eq!(uploads.grown(), 0);
    assert!(uploads.connection <= 2 * MIB);
}

#[test]
fn a_lack_of_memory_makes_windows_small_again() {
    let mut uploads = Uploads::new(&Limits::default());
    uploads.open(1);
    uploads.run(1, 100 * MIB);
    uploads.room = Room::Shared;
    uploads.run(1, 20 * MIB);
    assert_eq!(uploads.grown(), 0);
    assert!((MIB - MIB / 4..=MIB).contains(&uploads.window(1)) && uploads.connection <= 2 * MIB);
    uploads.room = Room::Least;
    uploads.run(1, 20 * MIB);
    assert!(uploads.window(1) <= FIRST && uploads.connection <= 2 * MIB);
    // Then there is none for more than the window of the connection.
    uploads.room = Room::Beyond(0);
    uploads.run(1, 20 * MIB);
    assert!((MIB - MIB / 4..=MIB).contains(&uploads.window(1)) && uploads.grown() == 0);
    uploads.room = Room::Beyond(usize::MAX);
    uploads.run(1, 100 * MIB);
    assert_eq!(uploads.grown(), 8 * MIB);
}

/// The bytes that the stalled stream holds are its own: the others do not pay for a window that becomes smaller.
#[test]
fn a_stalled_body_holds_up_no_other_when_memory_becomes_short() {
    for room in [Room::Shared, Room::Least] {
        let mut uploads = Uploads::new(&Limits::default());
        uploads.open(1);
        uploads.run(1, 100 * MIB);
        assert!(uploads.fill(1) > 8 * MIB);
        uploads.room = room;
        uploads.take(1, 1);
        uploads.open(3);
        for _ in 0..10 * 64 {
            assert_eq!(uploads.send(3), FRAME, "{room:?}");
            uploads.take(3, FRAME);
        }
    }
}

#[test]
fn a_window_shrinks_for_a_reader_that_has_become_slow() {
    let mut uploads = Uploads::new(&Limits::default());
    uploads.open(1);
    uploads.run(1, 100 * MIB);
    assert_eq!(uploads.grown(), 8 * MIB);
    // It takes a frame whenever the client has filled the window, and never waits.
    for _ in 0..20 * 64 {
        uploads.fill(1);
        uploads.take(1, FRAME);
    }
    assert_eq!(uploads.grown(), 0);
    let (window, held) = uploads.streams[&1];
    assert!((MIB - MIB / 4..=MIB).contains(&(window + held)), "{window} {held}");
    // It is fast again.
    while let count @ 1.. = uploads.streams[&1].1.min(FRAME) {
        uploads.take(1, count);
    }
    uploads.peer.connection.reader_waits(1);
    uploads.run(1, 100 * MIB);
    assert_eq!(uploads.grown(), 8 * MIB);
}

#[test]
fn the_end_of_a_stream_takes_its_growth_back() {
    for is_reset in [false, true] {
        let mut uploads = Uploads::new(&Limits::default());
        uploads.open(1);
        uploads.run(1, 100 * MIB);
        match is_reset {
            true => {
                // In the middle, with bytes that nobody has read.
                assert!(uploads.fill(1) > 8 * MIB);
                uploads.peer.feed(&reset(1, ErrorCode::CANCEL));
                uploads.peer.connection.finish(1);
                uploads.updates();
            }
            false => uploads.end(1),
        }
        // The bytes of the reset stream have paid for it. Otherwise the client knows of a larger window until it has used that.
        let left = if is_reset { 0 } else { 8 * MIB };
        assert_eq!(uploads.grown(), left);
        assert!(uploads.connection <= 2 * MIB + left);
        uploads.open(3);
        for _ in 0..9 * 64 {
            assert_eq!(uploads.send(3), FRAME);
            uploads.take(3, FRAME);
        }
        assert_eq!((uploads.grown(), uploads.window(3)), (0, FIRST));
        assert!((2 * MIB - MIB / 4..=2 * MIB).contains(&uploads.connection));
    }
}

#[test]
fn a_connection_that_moves_takes_its_growth_back_in_the_other_process() {
    let mut uploads = Uploads::new(&Limits::default());
    uploads.open(1);
    uploads.run(1, 100 * MIB);
    uploads.end(1);
    let exported = uploads.peer.connection.export().unwrap();
    uploads.peer.connection =
        osier_http::h2::Connection::import(&Limits::default(), &exported, uploads.peer.now).unwrap();
    assert_eq!(uploads.grown(), 8 * MIB);
    uploads.open(3);
    uploads.run(3, 10 * MIB);
    let all = 2 * MIB + uploads.grown();
    assert!(
        (all - MIB / 4..=all).contains(&uploads.connection),
        "{}",
        uploads.connection
    );
}

#[test]
fn a_response_grows_its_window_at_the_client() {
    let mut peer = Peer::client();
    let stream = peer.connection.request(&super::target("GET"), [], true).unwrap();
    peer.frames();
    peer.feed(&headers(stream, &[(":status", "200")], false));
    let mut window = FIRST;
    for _ in 0..200 {
        peer.feed(&data(stream, &[0; FRAME as usize], false));
        peer.connection
            .consumed_within(stream, FRAME as usize, Room::Beyond(usize::MAX), peer.now);
        peer.connection.reader_waits(stream);
        window -= FRAME;
        let updates = peer.frames().into_iter().filter(|frame| frame.stream == stream);
        window += updates
            .map(|frame| i64::from(u32::from_be_bytes(frame.payload.try_into().unwrap())))
            .sum::<i64>();
    }
    assert!(window > MIB, "{window}");
}
