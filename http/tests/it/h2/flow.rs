//! Flow control in both directions, the order of responses, and the output's bounds.

use std::time::Duration;

use osier_http::h2::{ErrorCode, Limits, Priority};

use super::peer::*;

/// The DATA frames in the output: stream, length, whether they end the stream.
fn data_frames(peer: &mut Peer) -> Vec<(u32, usize, bool)> {
    let sent = peer.frames().into_iter().filter(|frame| frame.kind == DATA);
    sent.map(|frame| (frame.stream, frame.payload.len(), frame.flags & END_STREAM != 0))
        .collect()
}

/// The WINDOW_UPDATE frames in the output: stream and increment.
fn updates(peer: &mut Peer) -> Vec<(u32, u32)> {
    let sent = peer.frames().into_iter().filter(|frame| frame.kind == WINDOW_UPDATE);
    sent.map(|frame| (frame.stream, u32::from_be_bytes(frame.payload.try_into().unwrap())))
        .collect()
}

/// A server with these requests, whose responses have begun.
fn responding(streams: &[u32]) -> Peer {
    let mut peer = Peer::server();
    for &stream in streams {
        peer.feed(&get(stream));
        peer.connection.send_head(stream, 200, [], false);
    }
    peer.frames();
    peer
}

#[test]
fn a_body_is_cut_into_frames_and_stops_at_the_windows() {
    let mut peer = responding(&[1]);
    assert_eq!(peer.connection.room(1), 65_535);
    let body = vec![7; 100_000];
    assert_eq!(peer.connection.send_data(1, &body, true, peer.now), 65_535);
    assert_eq!(
        data_frames(&mut peer),
        [
            (1, 16_384, false),
            (1, 16_384, false),
            (1, 16_384, false),
            (1, 16_383, false)
        ]
    );
    assert_eq!(peer.connection.next_writable(), None);
    // Both windows are shut: one of them is not enough.
    peer.feed(&window(1, 100_000));
    assert_eq!(peer.connection.next_writable(), None);
    peer.feed(&window(0, 5));
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &body[65_535..], true, peer.now), 5);
    peer.feed(&window(0, 100_000));
    assert_eq!(
        (peer.connection.next_writable(), peer.connection.room(1)),
        (Some(1), 16_384)
    );
    assert_eq!(peer.connection.send_data(1, &body[65_540..], true, peer.now), 16_384);
    assert_eq!(data_frames(&mut peer), [(1, 5, false), (1, 16_384, false)]);
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &body[81_924..], true, peer.now), 16_384);
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &body[98_308..], true, peer.now), 1_692);
    assert_eq!(data_frames(&mut peer), [(1, 16_384, false), (1, 1_692, true)]);
    peer.connection.finish(1);
    assert!(peer.connection.is_idle());
}

#[test]
fn an_empty_end_needs_no_window() {
    let mut peer = Peer::server();
    peer.feed(&settings(&[(4, 0)]));
    peer.feed(&get(1));
    peer.connection.send_head(1, 200, [], false);
    assert_eq!(peer.connection.send_data(1, b"", false, peer.now), 0);
    assert_eq!(peer.connection.send_data(1, b"", true, peer.now), 0);
    assert_eq!(data_frames(&mut peer), [(1, 0, true)]);
    peer.connection.finish(1);
    assert_eq!(peer.frames(), []);
}

#[test]
fn a_smaller_initial_window_makes_windows_negative() {
    let mut peer = responding(&[1]);
    assert_eq!(peer.connection.send_data(1, &[0; 1000], false, peer.now), 1000);
    peer.feed(&settings(&[(4, 400)]));
    assert_eq!(peer.connection.room(1), 0);
    assert_eq!(peer.connection.send_data(1, &[0; 1000], false, peer.now), 0);
    peer.feed(&window(1, 600));
    assert_eq!(peer.connection.next_writable(), None);
    peer.feed(&window(1, 1));
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &[0; 1000], false, peer.now), 1);
    // A change of the setting opens the window, too (RFC 9113 6.9.2).
    peer.feed(&settings(&[(4, 410)]));
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &[0; 1000], false, peer.now), 10);
}

#[test]
fn frames_are_as_long_as_the_peer_allows() {
    let mut peer = responding(&[1]);
    peer.feed(&settings(&[(5, 20_000)]));
    peer.connection.send_data(1, &[0; 30_000], true, peer.now);
    assert_eq!(data_frames(&mut peer), [(1, 20_000, false), (1, 10_000, true)]);
}

#[test]
fn bytes_that_a_handler_has_read_open_both_windows() {
    let limits = Limits {
        connection_window: 256 << 10,
        ..Limits::default()
    };
    let mut peer = Peer::server_with(&limits);
    peer.feed(&post(1));
    for _ in 0..3 {
        peer.feed(&data(1, &[0; 16_384], false));
    }
    assert_eq!(updates(&mut peer), []);
    peer.connection.consumed(1, 32_766);
    assert_eq!(updates(&mut peer), []);
    peer.connection.consumed(1, 1);
    assert_eq!(updates(&mut peer), [(1, 32_767)]);
    // More than the stream holds counts as all of it.
    peer.connection.consumed(1, 1_000_000);
    assert_eq!(updates(&mut peer), []);
    for _ in 0..2 {
        peer.feed(&data(1, &[0; 16_384], false));
    }
    peer.connection.consumed(1, 2 * 16_384);
    assert_eq!(updates(&mut peer), [(1, 49_153)]);
    for _ in 0..2 {
        peer.feed(&data(1, &[0; 16_384], false));
        peer.connection.consumed(1, 16_384);
    }
    assert_eq!(updates(&mut peer), [(1, 32_768)]);
    // The connection's window is 256 KiB, and half of it has been read.
    peer.feed(&data(1, &[0; 16_384], false));
    peer.connection.consumed(1, 16_384);
    assert_eq!(updates(&mut peer), [(0, 131_072)]);
}

#[test]
fn the_whole_body_of_a_reset_stream_counts_until_it_is_read_or_dropped() {
    let limits = Limits {
        connection_window: 65_535,
        ..Limits::default()
    };
    let mut peer = Peer::server_with(&limits);
    for id in [1, 3] {
        peer.feed(&post(id));
        peer.feed(&data(id, &[0; 16_384], false));
        peer.feed(&data(id, &[0; 16_383], true));
        peer.feed(&reset(id, ErrorCode::CANCEL));
        assert_eq!(updates(&mut peer), []);
    }
    // Its handler may still read it.
    peer.connection.consumed(1, 32_767);
    assert_eq!(updates(&mut peer), [(0, 32_767)]);
    peer.connection.finish(1);
    assert_eq!(updates(&mut peer), []);
    peer.connection.finish(3);
    assert_eq!(updates(&mut peer), [(0, 32_767)]);
}

#[test]
fn padding_and_unwanted_bytes_are_given_back_at_once() {
    let limits = Limits {
        connection_window: 65_535,
        stream_window: 65_535,
        ..Limits::default()
    };
    let mut peer = Peer::server_with(&limits);
    peer.feed(&post(1));
    // One byte of data and 255 of padding: no handler reads, and the peer may go on for ever.
    let padded = raw(DATA, PADDED, 1, &[&[254], &[0; 255][..]].concat());
    for _ in 0..1000 {
        peer.feed(&padded);
        peer.connection.consumed(1, 1);
    }
    assert!(updates(&mut peer).len() >= 4);
    // A reset stream gives back what its handler has not read, and what still arrives.
    peer.feed(&post(3));
    for round in 0..20 {
        peer.feed(&data(3, &[0; 16_000], false));
        if round == 0 {
            peer.connection.reset(3, ErrorCode::CANCEL);
        }
    }
    peer.connection.finish(3);
    peer.feed(&data(3, &[0; 16_000], true));
    // So does one that is finished with a body unread, and RST_STREAM tells the client to stop (RFC 9113 8.1).
    peer.feed(&post(5));
    peer.feed(&data(5, &[0; 16_000], false));
    peer.connection.send_head(5, 200, [], true);
    peer.frames();
    peer.connection.finish(5);
    assert_eq!(peer.resets_when_read(), [(5, ErrorCode::NO_ERROR)]);
    for _ in 0..20 {
        peer.feed(&data(5, &[0; 16_000], false));
    }
}

#[test]
fn a_larger_stream_window_holds_after_the_acknowledgement() {
    let limits = Limits {
        stream_window: 100_000,
        ..Limits::default()
    };
    let connection = osier_http::h2::Connection::server(&limits, std::time::Instant::now());
    let mut peer = Peer::new(connection);
    peer.feed(&[&osier_http::h2::frame::PREFACE[..], &settings(&[]), &post(1)].concat());
    for _ in 0..4 {
        peer.feed(&data(1, &[0; 16_383], false));
    }
    peer.feed(&raw(SETTINGS, ACK, 0, b""));
    peer.feed(&data(1, &[0; 16_384], false));
    peer.feed(&data(1, &[0; 16_384], false));
    peer.feed(&data(1, &[0; 1_700], false));
    peer.frames();
    peer.feed(&data(1, &[0], false));
    assert_eq!(peer.resets(), [(1, ErrorCode::FLOW_CONTROL_ERROR)]);
}

/// A server with requests of these priorities, all of whom wait with more to send than the output takes.
fn waiting(priorities: &[Option<&'static str>]) -> Peer {
    let mut peer = Peer::server();
    peer.feed(&[settings(&[(4, 1 << 20)]), window(0, 1 << 24)].concat());
    for (n, priority) in priorities.iter().enumerate() {
        let stream = 2 * n as u32 + 1;
        let fields = priority.map(|priority| ("priority", priority));
        let all: Vec<_> = GET.into_iter().chain(fields).collect();
        peer.feed(&headers(stream, &all, true));
        peer.connection.send_head(stream, 200, [], false);
    }
    // The first to come takes the output, so that the others wait.
    peer.feed(&get(2 * priorities.len() as u32 + 1));
    let filler = 2 * priorities.len() as u32 + 1;
    peer.connection.send_head(filler, 200, [], false);
    peer.connection.send_data(filler, &vec![0; 60_000], false, peer.now);
    while peer.connection.room(filler) > 0 {
        let room = peer.connection.room(filler);
        peer.connection.send_data(filler, &vec![0; room], false, peer.now);
    }
    for n in 0..priorities.len() {
        assert_eq!(
            peer.connection.send_data(2 * n as u32 + 1, &[0; 1000], false, peer.now),
            0
        );
    }
    assert_eq!(peer.connection.next_writable(), None);
    peer.frames();
    peer
}

/// Grants turns and lets each stream send 20,000 bytes of what it has, until `turns` are over.
fn turns(peer: &mut Peer, turns: usize) -> Vec<u32> {
    let mut order = Vec::new();
    while order.len() < turns {
        match peer.connection.next_writable() {
            Some(stream) => {
                order.push(stream);
                let sent = peer.connection.send_data(stream, &[0; 100_000], false, peer.now);
                assert!(sent > 0);
            }
            None => assert!(!peer.frames().is_empty()),
        }
    }
    order
}

#[test]
fn urgent_streams_go_first() {
    let mut peer = waiting(&[Some("u=5"), Some("u=1"), Some("u=0, i"), Some("u=1")]);
    assert_eq!(
        peer.connection.priority(1),
        Priority {
            urgency: 5,
            incremental: false
        }
    );
    assert_eq!(turns(&mut peer, 3), [5, 5, 5]);
    peer.connection.reset(5, ErrorCode::CANCEL);
    assert_eq!(turns(&mut peer, 3), [3, 3, 3]);
    // PRIORITY_UPDATE changes the order.
    peer.feed(&raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=0"));
    assert_eq!(turns(&mut peer, 2), [1, 1]);
    peer.connection.finish(1);
    peer.connection.finish(3);
    assert_eq!(turns(&mut peer, 2), [7, 7]);
}

#[test]
fn incremental_streams_take_turns_and_so_do_those_without_a_signal() {
    let mut peer = waiting(&[None, Some("i"), None]);
    assert_eq!(turns(&mut peer, 7), [1, 3, 5, 1, 3, 5, 1]);
    let mut peer = waiting(&[None, Some("u=3"), Some("u=3")]);
    assert_eq!(turns(&mut peer, 3), [3, 3, 3]);
}

#[test]
fn an_early_priority_counts_for_its_stream() {
    let mut peer = Peer::server();
    peer.feed(&raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=0"));
    peer.feed(&raw(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1"));
    peer.feed(&get(1));
    peer.feed(&headers(3, &[&GET[..], &[("priority", "u=6")]].concat(), true));
    assert_eq!(
        peer.connection.priority(3),
        Priority {
            urgency: 1,
            incremental: false
        }
    );
}

#[test]
fn a_stream_without_window_does_not_hold_up_others() {
    let mut peer = responding(&[1, 3]);
    peer.feed(&window(0, 1 << 20));
    assert_eq!(peer.connection.send_data(1, &[0; 65_535], false, peer.now), 65_535);
    peer.frames();
    assert_eq!(peer.connection.send_data(1, &[0; 10], false, peer.now), 0);
    assert_eq!(peer.connection.send_data(3, &[0; 10], false, peer.now), 10);
}

#[test]
fn room_is_reserved_for_a_granted_stream_until_it_is_used_or_given_up() {
    let mut peer = waiting(&[None, None]);
    assert_eq!(
        (peer.connection.next_writable(), peer.connection.next_writable()),
        (Some(1), Some(3))
    );
    assert_eq!((peer.connection.room(1), peer.connection.room(3)), (16_384, 16_384));
    // The filler finds only what is left.
    assert_eq!(peer.connection.room(5), 65_536 - 2 * 16_384);
    peer.connection.finish(1);
    assert_eq!(peer.connection.room(5), 65_536 - 16_384 - 13);
    assert_eq!(peer.connection.send_data(3, &[0; 10], true, peer.now), 10);
    assert_eq!(peer.connection.room(5), 65_536 - 13 - 19);
}

#[test]
fn a_stalled_body_is_reset_in_time() {
    let mut peer = responding(&[1, 3]);
    let start = peer.now;
    let stall = Limits::default().stall_timeout;
    assert_eq!(peer.connection.next_deadline(), None);
    peer.connection.send_data(1, &[0; 70_000], false, peer.now);
    peer.frames();
    assert_eq!(peer.connection.next_deadline(), Some(start + stall));
    // A peer that opens one byte again and again makes no progress.
    for _ in 0..29 {
        peer.now += Duration::from_secs(1);
        peer.feed(&[window(0, 1), window(1, 1)].concat());
        assert_eq!(peer.connection.next_writable(), Some(1));
        assert_eq!(peer.connection.send_data(1, &[0; 70_000], false, peer.now), 1);
    }
    assert_eq!(peer.connection.next_deadline(), Some(start + stall));
    assert_eq!(peer.connection.expire(peer.now).unwrap().map(seen), None);
    peer.frames();
    let event = peer.connection.expire(start + stall).unwrap().map(seen);
    assert_eq!(event, Some(Seen::Reset(1, ErrorCode::CANCEL, false)));
    assert_eq!(peer.resets(), [(1, ErrorCode::CANCEL)]);
    assert_eq!(peer.connection.expire(start + stall).unwrap().map(seen), None);
    assert_eq!(peer.connection.next_deadline(), None);
}

#[test]
fn bodies_that_have_sent_nothing_are_reset() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut peer = responding(&[1, 3]);
    let reset = |peer: &mut Peer| peer.connection.reset_stalled(PATIENCE, peer.now).unwrap().map(seen);
    // The window of the first stream is shut. The second one has a window, and goes on.
    peer.connection.send_data(1, &[0; 70_000], false, peer.now);
    peer.frames();
    peer.now += PATIENCE - Duration::from_millis(1);
    peer.feed(&window(0, 1 << 20));
    assert_eq!(peer.connection.send_data(3, &[0; 10], false, peer.now), 10);
    assert_eq!(reset(&mut peer), None);
    // One byte is progress.
    peer.feed(&window(1, 1));
    assert_eq!(peer.connection.next_writable(), Some(1));
    assert_eq!(peer.connection.send_data(1, &[0; 70_000], false, peer.now), 1);
    peer.now += PATIENCE - Duration::from_millis(1);
    assert_eq!(reset(&mut peer), None);
    peer.now += Duration::from_millis(1);
    assert_eq!(reset(&mut peer), Some(Seen::Reset(1, ErrorCode::CANCEL, false)));
    assert_eq!(reset(&mut peer), None);
    assert_eq!(peer.resets(), [(1, ErrorCode::CANCEL)]);
}

#[test]
fn a_body_is_reset_that_waits_for_a_shut_window_of_the_connection() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut peer = responding(&[1, 3]);
    let reset = |peer: &mut Peer| peer.connection.reset_stalled(PATIENCE, peer.now).unwrap().map(seen);
    peer.feed(&window(3, 1 << 20));
    assert_eq!(peer.connection.send_data(1, &[0; 10], false, peer.now), 10);
    peer.frames();
    assert_eq!(peer.connection.send_data(3, &[0; 70_000], false, peer.now), 65_525);
    assert_eq!(peer.connection.send_data(1, b"xy", false, peer.now), 0);
    peer.frames();
    // What another stream sends is progress of the connection.
    peer.now += PATIENCE - Duration::from_millis(1);
    peer.feed(&window(0, 1));
    assert_eq!(peer.connection.next_writable(), Some(3));
    assert_eq!(peer.connection.send_data(3, &[0; 70_000], false, peer.now), 1);
    peer.now += Duration::from_millis(1);
    assert_eq!(reset(&mut peer), None);
    peer.now += PATIENCE;
    for stream in [1, 3] {
        assert_eq!(reset(&mut peer), Some(Seen::Reset(stream, ErrorCode::CANCEL, false)));
    }
    assert_eq!(reset(&mut peer), None);
}

#[test]
fn a_slow_reader_is_no_stalled_one() {
    let mut peer = responding(&[1]);
    let stall = Limits::default().stall_timeout;
    peer.connection.send_data(1, &[0; 70_000], false, peer.now);
    peer.frames();
    for _ in 0..5 {
        peer.now += stall - Duration::from_secs(1);
        peer.feed(&[window(0, 1024), window(1, 1024)].concat());
        assert_eq!(peer.connection.next_writable(), Some(1));
        assert_eq!(peer.connection.send_data(1, &[0; 70_000], false, peer.now), 1024);
        assert_eq!(peer.connection.next_deadline(), Some(peer.now + stall));
    }
    // A stream that waits for others and not for its windows is not stalled either.
    let mut peer = waiting(&[None, None]);
    peer.now += stall;
    assert_eq!(peer.connection.expire(peer.now).unwrap().map(seen), None);
    assert_eq!(peer.connection.next_deadline(), Some(peer.now + stall));
}

#[test]
fn a_stream_that_waits_for_others_is_not_stalled_while_they_go_on() {
    let mut peer = responding(&[1]);
    let stall = Limits::default().stall_timeout;
    peer.feed(
        &[
            window(1, 1 << 20),
            headers(3, &[&GET[..], &[("priority", "u=7")]].concat(), true),
        ]
        .concat(),
    );
    peer.connection.send_head(3, 200, [], false);
    peer.frames();
    // The connection's window is shut, and the first stream takes whatever the client opens.
    assert_eq!(peer.connection.send_data(1, &[0; 100_000], false, peer.now), 65_535);
    assert_eq!(peer.connection.send_data(3, &[0; 1000], false, peer.now), 0);
    for _ in 0..3 {
        peer.frames();
        peer.now += stall - Duration::from_secs(1);
        peer.feed(&window(0, 1024));
        assert_eq!(peer.connection.next_writable(), Some(1));
        assert_eq!(peer.connection.send_data(1, &[0; 100_000], false, peer.now), 1024);
        assert_eq!(peer.connection.expire(peer.now).unwrap().map(seen), None);
    }
    // Now the client opens nothing any more: both streams are stalled.
    peer.frames();
    peer.now += stall;
    for stream in [1, 3] {
        let event = peer.connection.expire(peer.now).unwrap().map(seen);
        assert_eq!(event, Some(Seen::Reset(stream, ErrorCode::CANCEL, false)));
    }
    assert_eq!(peer.connection.expire(peer.now).unwrap().map(seen), None);
}

#[test]
fn a_lent_buffer_comes_back() {
    let mut peer = responding(&[1]);
    let buffer = Vec::with_capacity(1 << 16);
    let place = buffer.as_ptr();
    peer.connection.rest();
    peer.connection.lend(buffer);
    peer.connection.send_data(1, &[0; 10_000], false, peer.now);
    assert_eq!(peer.connection.output().as_ptr(), place);
    assert!(peer.connection.reclaim().is_none());
    peer.connection.advance(10_009);
    assert_eq!(peer.connection.reclaim().map(|buffer| buffer.as_ptr()), Some(place));
    assert!(peer.connection.reclaim().is_none());
}
