//! Attacks in their own bytes: each ends at a limit with a name, and honest clients that look alike do not.

use std::time::{Duration, Instant};

use osier_http::h2::{Connection, ErrorCode, Limits};

use super::peer::*;
use super::target;

/// A name, the number of frames that the budget allows, and the n-th of them.
type Flood = (&'static str, u32, fn(u32) -> Vec<u8>);

const CALM: ErrorCode = ErrorCode::ENHANCE_YOUR_CALM;

/// Feeds `bytes(n)` for n = 0, 1, … until the connection fails, and returns n. Events are served: a request gets `serve`.
fn until_error(peer: &mut Peer, most: u32, mut bytes: impl FnMut(u32) -> Vec<u8>) -> Option<(u32, ErrorCode)> {
    for n in 0..most {
        let (events, error) = peer.try_feed(&bytes(n));
        if let Some(error) = error {
            return Some((n, error.code));
        }
        for event in events {
            // The handler of a stream that is reset ends soon.
            if let Seen::Reset(stream, ..) = event {
                peer.connection.finish(stream);
            }
        }
        let len = peer.connection.output().len();
        peer.connection.advance(len);
    }
    None
}

#[test]
fn rapid_reset_ends_at_reset_burst() {
    let mut peer = Peer::server();
    let attack = |n: u32| [get(2 * n + 1), reset(2 * n + 1, ErrorCode::CANCEL)].concat();
    assert_eq!(until_error(&mut peer, 10_000, attack), Some((400, CALM)));
}

#[test]
fn rapid_reset_with_handlers_that_still_run_is_refused() {
    let mut peer = Peer::server();
    let mut started = 0;
    for n in 0..150 {
        let stream = 2 * n + 1;
        let events = peer.feed(&[get(stream), reset(stream, ErrorCode::CANCEL)].concat());
        started += events.iter().filter(|event| matches!(event, Seen::Request(..))).count();
    }
    assert_eq!((started, peer.connection.streams()), (100, 100));
    let refused = peer.resets();
    assert_eq!(refused.len(), 50);
    assert!(refused.iter().all(|(_, code)| *code == ErrorCode::REFUSED_STREAM));
    // When a handler ends, there is room for one more.
    peer.connection.finish(1);
    assert_eq!(peer.feed(&get(301)).len(), 1);
}

#[test]
fn made_you_reset_ends_at_reset_burst_whatever_makes_the_reset() {
    let ways: [fn(u32) -> Vec<u8>; 7] = [
        |id| window(id, 0),
        |id| window(id, 0x7fff_ffff),
        |id| raw(PRIORITY, 0, id, &[0; 4]),
        |id| data(id, b"x", false),
        |id| headers(id, &[("x", "y")], true),
        |id| headers(id, &[("x", "y")], false),
        |id| [data(id, b"x", true), data(id, b"x", true)].concat(),
    ];
    for way in ways {
        let mut peer = Peer::server();
        let attack = |n: u32| [get(2 * n + 1), way(2 * n + 1)].concat();
        let (rounds, code) = until_error(&mut peer, 10_000, attack).unwrap();
        assert_eq!(code, CALM);
        assert!((399..=400).contains(&rounds), "{rounds}");
    }
    // A response that has begun changes nothing.
    let mut peer = Peer::server();
    for n in 0..1000 {
        let id = 2 * n + 1;
        peer.feed(&get(id));
        peer.connection.send_head(id, 200, [], false);
        let (_, error) = peer.try_feed(&window(id, 0));
        if let Some(error) = error {
            assert_eq!((n, error.code), (400, CALM));
            return;
        }
        peer.connection.finish(id);
    }
    panic!("no limit");
}

#[test]
fn made_you_reset_with_handlers_that_still_run_is_refused() {
    let mut peer = Peer::server();
    let mut started = 0;
    for n in 0..150 {
        let stream = 2 * n + 1;
        let events = peer.feed(&[post(stream), window(stream, 0)].concat());
        started += events.iter().filter(|event| matches!(event, Seen::Request(..))).count();
    }
    assert_eq!((started, peer.connection.streams()), (100, 100));
    let refused = peer
        .resets()
        .into_iter()
        .filter(|(_, code)| *code == ErrorCode::REFUSED_STREAM);
    assert_eq!(refused.count(), 50);
    // When a handler ends, there is room for one more.
    peer.connection.finish(1);
    assert_eq!(peer.feed(&get(301)).len(), 1);
}

#[test]
fn malformed_and_refused_requests_end_at_reset_burst() {
    let malformed = |n: u32| headers(2 * n + 1, &GET[..2], true);
    assert_eq!(until_error(&mut Peer::server(), 10_000, malformed), Some((400, CALM)));
    let many: Vec<_> = GET.into_iter().chain([("x", "y"); 101]).collect();
    let too_large = |n: u32| headers(2 * n + 1, &many, true);
    assert_eq!(until_error(&mut Peer::server(), 10_000, too_large), Some((400, CALM)));
    // 100 run, and the others are refused.
    let beyond = |n: u32| get(2 * n + 1);
    assert_eq!(until_error(&mut Peer::server(), 10_000, beyond), Some((500, CALM)));
}

#[test]
fn clients_that_cancel_often_are_not_punished() {
    // gRPC: a stream is cancelled after its response has begun.
    let mut peer = Peer::server();
    for n in 0..10_000 {
        let id = 2 * n + 1;
        peer.feed(&post(id));
        peer.connection.send_head(id, 200, [], false);
        assert_eq!(
            peer.feed(&reset(id, ErrorCode::CANCEL)),
            [Seen::Reset(id, ErrorCode::CANCEL, true)]
        );
        peer.connection.finish(id);
        peer.frames();
    }
    // Half of all calls are hedged, and cancelled before any response.
    let mut peer = Peer::server();
    for n in 0..10_000 {
        let id = 2 * n + 1;
        peer.feed(&get(id));
        match n % 2 {
            0 => peer.connection.send_head(id, 200, [], true),
            _ => assert_eq!(peer.feed(&reset(id, ErrorCode::CANCEL)).len(), 1),
        }
        peer.connection.finish(id);
        peer.frames();
    }
    // 180 a second, for ever.
    let mut peer = Peer::server();
    for n in 0..2_000 {
        peer.now += Duration::from_millis(1000 / 180);
        peer.feed(&[get(2 * n + 1), reset(2 * n + 1, ErrorCode::CANCEL)].concat());
        peer.connection.finish(2 * n + 1);
    }
}

#[test]
fn a_continuation_flood_ends_after_few_frames() {
    for fragment in [&b""[..], b"\x82"] {
        let mut peer = Peer::server();
        peer.feed(&raw(HEADERS, 0, 1, &block(&GET)));
        let (frames, code) = until_error(&mut peer, 1000, |_| raw(CONTINUATION, 0, 1, fragment)).unwrap();
        assert_eq!((frames, code), (8, CALM));
    }
}

#[test]
fn a_slow_head_ends_at_head_timeout() {
    let mut peer = Peer::server();
    let start = peer.now;
    peer.feed(&raw(HEADERS, 0, 1, &block(&GET)));
    let due = start + Limits::default().head_timeout;
    assert_eq!(peer.connection.next_deadline(), Some(due));
    peer.now = due - Duration::from_millis(1);
    peer.feed(&raw(CONTINUATION, 0, 1, b""));
    assert!(peer.connection.expire(peer.now).is_ok());
    assert_eq!(peer.connection.next_deadline(), Some(due));
    assert_eq!(peer.connection.expire(due).unwrap_err().code, CALM);
    assert!(peer.connection.is_done());
}

#[test]
fn floods_of_frames_without_progress_end_at_frame_burst() {
    let floods: [Flood; 9] = [
        ("SETTINGS", 1000, |_| settings(&[])),
        ("SETTINGS with entries", 667, |_| {
            settings(&[(4, 1), (4, 2), (4, 3), (4, 4), (4, 5)])
        }),
        ("PING", 1000, |_| raw(PING, 0, 0, b"whatever")),
        ("PING answers", 1000, |_| raw(PING, ACK, 0, b"whatever")),
        ("SETTINGS answers", 1000, |_| raw(SETTINGS, ACK, 0, b"")),
        ("PRIORITY", 2000, |_| raw(PRIORITY, 0, 1, &[0; 5])),
        ("PRIORITY_UPDATE", 2000, |_| {
            raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")
        }),
        ("unknown frames", 1000, |_| raw(0xee, 0, 0, b"")),
        ("WINDOW_UPDATE", 9_990, |_| window(0, 1)),
    ];
    for (name, most, bytes) in floods {
        let mut peer = Peer::server();
        let (frames, code) = until_error(&mut peer, 20_000, bytes).unwrap_or_else(|| panic!("{name}: no limit"));
        assert_eq!(code, CALM, "{name}");
        // The SETTINGS frame of the start has cost 10.
        assert!((most - 3..=most).contains(&frames), "{name}: {frames}");
    }
}

#[test]
fn floods_of_data_end_at_frame_burst() {
    let floods: [Flood; 3] = [
        ("empty", 1000, |_| data(1, b"", false)),
        ("only padding", 1000, |_| raw(DATA, PADDED, 1, &[3, 0, 0, 0])),
        ("one byte", 10_000, |_| data(1, b"x", false)),
    ];
    for (name, most, bytes) in floods {
        let mut peer = Peer::server();
        peer.feed(&post(1));
        let (frames, code) = until_error(&mut peer, 20_000, bytes).unwrap_or_else(|| panic!("{name}: no limit"));
        assert_eq!(code, CALM, "{name}");
        assert!((most - 10..=most).contains(&frames), "{name}: {frames}");
    }
    // Requests with an empty last DATA frame, as many clients send them, are free.
    let mut peer = Peer::server();
    for n in 0..5_000 {
        let id = 2 * n + 1;
        peer.feed(&[post(id), data(id, b"", true)].concat());
        peer.connection.send_head(id, 200, [], true);
        peer.connection.finish(id);
        peer.frames();
    }
}

#[test]
fn frames_for_closed_streams_cost() {
    for bytes in [data(1, &[0; 100], false), get(1), reset(1, ErrorCode::CANCEL)] {
        let mut peer = Peer::server();
        peer.feed(&post(1));
        peer.connection.reset(1, ErrorCode::CANCEL);
        peer.connection.finish(1);
        // The window of the stream is used up.
        let most = [
            &data(1, &[0; 16_384], false).repeat(3)[..],
            &data(1, &[0; 16_383], false),
        ]
        .concat();
        assert_eq!(peer.feed(&most), []);
        let (frames, code) = until_error(&mut peer, 20_000, |_| bytes.clone()).unwrap();
        assert_eq!(code, CALM);
        assert!((1990..=2001).contains(&frames), "{frames}");
    }
}

#[test]
fn data_that_nobody_reads_costs_what_read_data_costs_within_its_window() {
    type Drop = fn(&mut Peer, u32);
    let ways: [Drop; 3] = [
        // The reset waits for the answer to a PING, or has been sent.
        |peer, stream| {
            peer.connection.send_head(stream, 413, [], true);
            peer.connection.finish(stream);
        },
        |peer, stream| {
            peer.connection.send_head(stream, 413, [], true);
            peer.connection.finish(stream);
            assert_eq!(peer.resets_when_read(), [(stream, ErrorCode::NO_ERROR)]);
        },
        |peer, stream| peer.connection.finish(stream),
    ];
    for way in ways {
        let limits = Limits {
            frame_rate: 0,
            ..Limits::default()
        };
        let mut peer = Peer::server_with(&limits);
        // Four streams at a time, whose clients send their windows in frames of 100 bytes, while a handler reads a fifth one.
        for round in 0..10 {
            let first = 10 * round + 1;
            (0..5).for_each(|n| drop(peer.feed(&post(first + 2 * n))));
            (0..4).for_each(|n| way(&mut peer, first + 2 * n));
            for _ in 0..655 {
                let frames: Vec<u8> = (0..4).flat_map(|n| data(first + 2 * n, &[0; 100], false)).collect();
                assert_eq!(peer.feed(&frames), []);
                peer.feed(&data(first + 8, &[0; 100], false));
                peer.connection.consumed(first + 8, 100);
                peer.frames();
            }
            // Half of them end; the others are left as they are.
            (0..2).for_each(|n| assert_eq!(peer.feed(&data(first + 2 * n, b"", true)), []));
            peer.connection.send_head(first + 8, 200, [], true);
            assert_eq!(peer.feed(&data(first + 8, b"", true)).len(), 1);
            peer.connection.finish(first + 8);
        }
        // Beyond the window, a frame costs five units: nothing but the SETTINGS frame of the start has cost any so far.
        let most = |_| data(97, &[0; 100], false);
        let (frames, code) = until_error(&mut peer, 20_000, most).unwrap();
        assert_eq!((frames, code), (1998, CALM));
    }
}

#[test]
fn data_of_a_stream_that_is_reset_costs_the_same_while_its_handler_runs() {
    let mut peer = Peer::server_with(&Limits {
        frame_rate: 0,
        frame_burst: 1_000,
        ..Limits::default()
    });
    peer.feed(&post(1));
    peer.connection.reset(1, ErrorCode::CANCEL);
    (0..655).for_each(|_| assert_eq!(peer.feed(&data(1, &[0; 100], false)), []));
    // The end of the body is known when the handler ends, too.
    assert_eq!(peer.feed(&data(1, b"", true)), []);
    peer.connection.finish(1);
    assert!(!peer.connection.has_unread_bodies());
    peer.feed(&post(5));
    peer.connection.reset(5, ErrorCode::CANCEL);
    peer.feed(&headers(5, &[("x", "a trailer")], true));
    peer.connection.finish(5);
    assert!(!peer.connection.has_unread_bodies());
    peer.feed(&post(7));
    peer.connection.reset(7, ErrorCode::CANCEL);
    peer.feed(&data(7, &[0; 16_384], false).repeat(3));
    // The rest of the window is still free after the end of the handler, and no more.
    peer.connection.finish(7);
    assert!(peer.connection.has_unread_bodies());
    let beyond = |_| data(7, &[0; 16_383], false);
    let (frames, code) = until_error(&mut peer, 1_000, beyond).unwrap();
    assert!((198..=200).contains(&frames) && code == CALM, "{frames}");
}

#[test]
fn tiny_data_that_nobody_reads_is_a_flood_as_any_other() {
    let mut peer = Peer::server_with(&Limits {
        frame_rate: 0,
        ..Limits::default()
    });
    peer.feed(&post(1));
    peer.connection.send_head(1, 413, [], true);
    peer.connection.finish(1);
    let (frames, code) = until_error(&mut peer, 20_000, |_| data(1, b"x", false)).unwrap();
    assert_eq!((frames, code), (9_990, CALM));
}

#[test]
fn a_reader_of_bodies_may_update_its_windows_for_each_frame() {
    let mut peer = Peer::server();
    peer.feed(&get(1));
    peer.connection.send_head(1, 200, [], false);
    for _ in 0..20_000 {
        assert_eq!(peer.connection.send_data(1, b"x", false, peer.now), 1);
        peer.frames();
        peer.feed(&[window(0, 1), window(1, 1)].concat());
    }
    // Go's client opens both windows again for every 4 KiB, and this one for every KiB.
    let updates = [window(0, 1024), window(1, 1024)].concat().repeat(16);
    for _ in 0..2_000 {
        assert_eq!(peer.connection.send_data(1, &[0; 16_384], false, peer.now), 16_384);
        peer.frames();
        peer.feed(&updates);
    }
}

/// Sends what the windows let through, as an owner does whose streams have long bodies. Returns the number of DATA frames.
fn send_on(peer: &mut Peer) -> usize {
    let (body, now) = ([0; 1 << 10], peer.now);
    while let Some(stream) = peer.connection.next_writable() {
        peer.connection.send_data(stream, &body, false, now);
    }
    peer.frames().iter().filter(|frame| frame.kind == DATA).count()
}

#[test]
fn a_response_in_crumbs_ends_at_frame_burst() {
    type Opens = fn(u32) -> Vec<u8>;
    let ways: [(&str, Opens); 3] = [
        ("the windows of all streams at once", |n| settings(&[(4, n + 1)])),
        ("the window of one stream", |n| window(2 * (n % 100) + 1, 1)),
        ("255 bytes at a time", |n| window(2 * (n % 100) + 1, 255)),
    ];
    for (name, way) in ways {
        let mut peer = Peer::server_with(&Limits {
            frame_rate: 0,
            ..Limits::default()
        });
        peer.feed(&[settings(&[(4, 0)]), window(0, 1 << 30)].concat());
        for stream in (0..100).map(|n| 2 * n + 1) {
            peer.feed(&get(stream));
            peer.connection.send_head(stream, 200, [], false);
            assert_eq!(peer.connection.send_data(stream, &[0; 1 << 10], false, peer.now), 0);
        }
        peer.frames();
        let mut crumbs = 0;
        let error = (0..100_000).find_map(|n| {
            let error = peer.try_feed(&way(n)).1;
            crumbs += send_on(&mut peer);
            error
        });
        assert_eq!(error.map(|error| error.code), Some(CALM), "{name}: {crumbs}");
        assert!((1_800..=2_100).contains(&crumbs), "{name}: {crumbs}");
    }
}

#[test]
fn answers_to_a_peer_that_does_not_read_are_bounded() {
    let limits = Limits {
        frame_burst: 1 << 30,
        reset_burst: 1 << 30,
        ..Limits::default()
    };
    let floods: [fn(u32) -> Vec<u8>; 3] = [
        |_| raw(PING, 0, 0, b"whatever"),
        |_| settings(&[]),
        |n| headers(2 * n + 1, &GET[..2], true),
    ];
    for bytes in floods {
        let mut peer = Peer::server_with(&limits);
        let mut n = 0;
        let error = loop {
            match peer.try_feed(&bytes(n)).1 {
                Some(error) => break error,
                None => n += 1,
            }
            assert!(peer.connection.output().len() < 40_000);
        };
        assert_eq!(error.code, CALM);
    }
    // A peer that reads slowly but does is no flood, however many frames it sends.
    let mut peer = Peer::server_with(&limits);
    for _ in 0..20_000 {
        peer.feed(&raw(PING, 0, 0, b"whatever"));
        let len = peer.connection.output().len();
        peer.connection.advance(if len > 10_000 { 17 } else { 10 });
    }
}

#[test]
fn output_beyond_its_bound_stops_the_reading() {
    let mut peer = Peer::server();
    peer.feed(&[settings(&[(4, 1 << 20)]), window(0, 1 << 20)].concat());
    peer.feed(&get(1));
    peer.connection.send_head(1, 200, [], false);
    let sent = peer.connection.send_data(1, &vec![0; 1 << 20], false, peer.now);
    assert!(sent <= 64 << 10, "{sent}");
    assert!(peer.connection.wants_input());
    for n in 1..100 {
        peer.feed(&get(2 * n + 1));
        peer.connection
            .send_head(2 * n + 1, 200, [("x", &vec![b'\\'; 1000 + n as usize][..])], true);
    }
    assert!(!peer.connection.wants_input());
    peer.frames();
    assert!(peer.connection.wants_input());
}

#[test]
fn an_hpack_bomb_gets_431() {
    // One entry of the table, named again and again: each byte is a field of more than 4,000 bytes.
    let mut peer = Peer::server();
    let value = "v".repeat(3_900);
    let mut bomb = block(&GET);
    let mut entry = block(&[("x", &value)]);
    entry[0] = 0x40;
    bomb.extend_from_slice(&entry);
    bomb.extend_from_slice(&[0xbe; 100]);
    assert_eq!(
        peer.feed(&raw(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)),
        [Seen::Refused(1)]
    );
    let sent = peer.frames();
    assert_eq!((sent[0].kind, sent[0].flags), (HEADERS, END_HEADERS | END_STREAM));
    assert_eq!(peer.fields(&sent[0]), ":status=431");
    // The table is still right, and a request below the limits goes on.
    let mut fine = block(&GET);
    fine.push(0xbe);
    let events = peer.feed(&raw(HEADERS, END_HEADERS | END_STREAM, 3, &fine));
    assert_eq!(events, [Seen::Request(3, format!("GET http / host=a x={value}"), true)]);
    // Crumbs of a cookie count one by one, and the body of a refused request is not read.
    let crumbs = [&POST[..], &[("cookie", "a=b"); 100]].concat();
    assert_eq!(peer.feed(&headers(5, &crumbs, false)), [Seen::Refused(5)]);
    assert_eq!(peer.resets_when_read(), [(5, ErrorCode::NO_ERROR)]);
    assert_eq!(peer.feed(&data(5, b"x", true)), []);
    // In a trailer, it is the stream that ends.
    peer.feed(&post(7));
    let trailer = headers(7, &[("x", "y"); 101], true);
    assert_eq!(peer.feed(&trailer), [Seen::Reset(7, CALM, false)]);
    // Far above the limits, the rest of the block is not worth the work.
    let bomb = [&block(&GET)[..], &[0xbe; 10_000]].concat();
    assert_eq!(peer.fails(&raw(HEADERS, END_HEADERS | END_STREAM, 9, &bomb)), CALM);
}

#[test]
fn large_heads_of_many_streams_are_refused_at_heads_bytes() {
    let value = "v".repeat(15_000);
    let fields = [&GET[..], &[("x", &value[..])]].concat();
    let mut peer = Peer::server();
    let requests: usize = (0..100)
        .map(|n| peer.feed(&headers(2 * n + 1, &fields, true)).len())
        .sum();
    assert!((17..=33).contains(&requests), "{requests}");
    let refused = peer.resets();
    assert_eq!(refused.len(), 100 - requests);
    assert!(refused.iter().all(|(_, code)| *code == ErrorCode::REFUSED_STREAM));
    (0..100).for_each(|n| peer.connection.finish(2 * n + 1));
    assert_eq!(peer.feed(&headers(201, &fields, true)).len(), 1);
}

#[test]
fn large_trailers_of_many_streams_count_for_heads_bytes() {
    let mut peer = Peer::server();
    // An entry of the table that each trailer names again and again.
    let value = "v".repeat(3_900);
    let mut first = [block(&GET), block(&[("x", &value)])];
    first[1][0] = 0x40;
    peer.feed(&raw(HEADERS, END_HEADERS | END_STREAM, 1, &first.concat()));
    peer.connection.finish(1);
    let streams = || (1..=90).map(|n| 2 * n + 1);
    streams().for_each(|stream| drop(peer.feed(&post(stream))));
    let mut trailers = 0;
    for stream in streams() {
        match &peer.feed(&raw(HEADERS, END_HEADERS | END_STREAM, stream, &[0xbe; 8]))[..] {
            [Seen::Trailers(..)] => trailers += 1,
            seen => assert_eq!(seen, [Seen::Reset(stream, CALM, false)]),
        }
    }
    // 512 KiB, less the heads of the requests.
    assert!((14..=16).contains(&trailers), "{trailers}");
    // They count until their handlers end.
    streams().for_each(|stream| peer.connection.finish(stream));
    peer.feed(&[post(183), raw(HEADERS, END_HEADERS | END_STREAM, 183, &[0xbe; 8])].concat());
    assert!(!peer.connection.is_reset(183));
}

#[test]
fn large_heads_of_responses_count_for_heads_bytes() {
    let value = "v".repeat(30_000);
    let response = |stream, status| {
        let head = block(&[(":status", status), ("x", &value)]);
        let (first, rest) = head.split_at(16_000);
        let rest = raw(CONTINUATION, END_HEADERS, stream, rest);
        [raw(HEADERS, 0, stream, first), rest].concat()
    };
    let mut peer = Peer::client();
    let streams = || (0..100).map(|n| 2 * n + 1);
    streams().for_each(|stream| assert_eq!(peer.connection.request(&target("GET"), [], true), Ok(stream)));
    let mut heads = 0;
    for stream in streams() {
        // The owner is done with interim responses before the next one.
        assert!(matches!(
            peer.feed(&response(stream, "103"))[..],
            [Seen::Response(_, 103, ..)]
        ));
        match &peer.feed(&response(stream, "200"))[..] {
            [Seen::Response(..)] => heads += 1,
            seen => assert_eq!(seen, [Seen::Reset(stream, CALM, false)]),
        }
    }
    assert!((8..=17).contains(&heads), "512 KiB: {heads}");
    // They count until the owner is through with their streams.
    streams().for_each(|stream| peer.connection.finish(stream));
    assert_eq!(peer.connection.request(&target("GET"), [], true), Ok(201));
    assert!(matches!(
        peer.feed(&response(201, "200"))[..],
        [Seen::Response(201, ..)]
    ));
}

#[test]
fn a_silent_client_ends_at_head_timeout_and_unacknowledged_settings_at_stall_timeout() {
    let limits = Limits::default();
    let start = Instant::now();
    let mut silent = Connection::server(&limits, start);
    assert_eq!(silent.next_deadline(), Some(start + limits.head_timeout));
    assert!(
        silent
            .expire(start + limits.head_timeout - Duration::from_millis(1))
            .is_ok()
    );
    assert_eq!(
        silent.expire(start + limits.head_timeout).unwrap_err().code,
        ErrorCode::SETTINGS_TIMEOUT
    );
    let mut peer = Peer::new(Connection::server(&limits, start));
    peer.feed(&[&osier_http::h2::frame::PREFACE[..], &settings(&[])].concat());
    let due = start + limits.stall_timeout;
    assert_eq!(peer.connection.next_deadline(), Some(due));
    assert_eq!(
        peer.connection.expire(due).unwrap_err().code,
        ErrorCode::SETTINGS_TIMEOUT
    );
}

#[test]
fn limits_of_time_may_be_without_end() {
    let limits = Limits {
        head_timeout: Duration::MAX,
        stall_timeout: Duration::MAX,
        ..Limits::default()
    };
    let start = Instant::now();
    let mut silent = Connection::server(&limits, start);
    let day = start + Duration::from_secs(24 * 3600);
    assert!(silent.next_deadline().unwrap() > day);
    assert!(silent.expire(day).unwrap().is_none());
}

#[test]
fn interim_responses_without_end_are_a_flood() {
    let mut peer = Peer::client();
    peer.connection.request(&target("GET"), [], true).unwrap();
    let (frames, code) = until_error(&mut peer, 20_000, |_| headers(1, &[(":status", "103")], false)).unwrap();
    assert_eq!(code, CALM);
    assert!((990..=1000).contains(&frames), "{frames}");
}
