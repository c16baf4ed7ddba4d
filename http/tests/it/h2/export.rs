//! A server's connection as bytes, and the one that another process makes of them.

use osier_http::h2::{Connection, ErrorCode, Limits};

use super::peer::*;

/// The same peer after the connection has moved.
fn moved(mut peer: Peer) -> Peer {
    let exported = peer.connection.export().unwrap();
    // The other process has other limits. Those that the peer knows hold.
    let other = Limits {
        max_streams: 1,
        stream_window: 9,
        decoder_table: 0,
        ..Limits::default()
    };
    peer.connection = Connection::import(&other, &exported, peer.now).unwrap();
    assert!(peer.connection.is_idle());
    peer
}

/// The reason for which a connection stays.
fn refusal(peer: &Peer) -> String {
    let refused = peer.connection.export().unwrap_err().to_string();
    refused.rsplit(": ").next().unwrap().to_owned()
}

fn exchange(peer: &mut Peer, stream: u32) -> String {
    assert_eq!(peer.feed(&get(stream)).len(), 1);
    let server = [("server", &b"a server of a certain name"[..])];
    peer.connection.send_head(stream, 200, server, true);
    peer.connection.finish(stream);
    let frame = peer.frames().remove(0);
    format!("{} in {} bytes", peer.fields(&frame), frame.payload.len())
}

#[test]
fn tables_and_ids_go_on() {
    let mut peer = Peer::server();
    let mut before = vec![];
    for stream in [1, 3, 5] {
        before.push(exchange(&mut peer, stream));
    }
    peer = moved(peer);
    // The field is indexed since its second occurrence.
    assert_eq!(exchange(&mut peer, 7), before[2]);
    assert_ne!(before[0], before[2]);
    assert_eq!(peer.fails(&get(5)), ErrorCode::STREAM_CLOSED);
}

/// Programs of one version of the upgrade protocol hand over to each other only while the layout stays as it is.
#[test]
fn the_layout_belongs_to_the_version_of_the_transport() {
    let mut peer = Peer::server_with(&Limits {
        max_streams: 100,
        stream_window: 70_000,
        connection_window: 80_000,
        max_frame: 16_384,
        head_bytes: 9_000,
        decoder_table: 4_096,
        extended_connect: true,
        ..Limits::default()
    });
    peer.feed(&settings(&[(4, 100_000)]));
    peer.frames();
    for stream in [1, 3] {
        exchange(&mut peer, stream);
    }
    let exported = peer.connection.export().unwrap();
    let sum = exported
        .iter()
        .fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
    assert_eq!(
        (exported.len(), sum),
        (352, 3_274_144_126),
        "the layout has changed: raise VERSION in web/src/conn/handover/fields.rs, and say in CHANGELOG.md that the next upgrade is a restart"
    );
}

#[test]
fn a_connection_moves_when_the_client_knows_that_its_tunnels_have_ended() {
    let mut peer = Peer::server();
    peer.feed(&headers(1, &EXTENDED_CONNECT, false));
    peer.connection.send_head(1, 200, [], true);
    peer.frames();
    peer.connection.finish(1);
    for _ in 0..2 {
        peer.frames();
        assert_eq!(refusal(&peer), "the settings of both ends have not arrived yet");
        peer.feed(&raw(SETTINGS, ACK, 0, b""));
    }
    peer.frames();
    let mut peer = moved(peer);
    exchange(&mut peer, 3);
}

#[test]
fn a_field_that_the_peer_has_indexed_is_known() {
    let mut peer = Peer::server();
    // `x: yz` with incremental indexing, and then by its index alone.
    let head = |stream, field: &[u8]| {
        let block = [&block(&GET)[..], field].concat();
        raw(HEADERS, END_HEADERS | END_STREAM, stream, &block)
    };
    peer.feed(&head(1, b"\x40\x01x\x02yz"));
    peer.connection.send_head(1, 204, [], true);
    peer.connection.finish(1);
    peer.frames();
    let mut peer = moved(peer);
    let line = "GET http / host=a x=yz".to_owned();
    assert_eq!(peer.feed(&head(3, b"\xbe")), [Seen::Request(3, line, true)]);
}

#[test]
fn windows_and_resets_are_remembered() {
    let mut peer = Peer::server();
    peer.feed(&[settings(&[(4, 10)]), post(1), data(1, &[7; 9], false)].concat());
    peer.connection.reset(1, ErrorCode::CANCEL);
    peer.connection.finish(1);
    peer.frames();
    let mut peer = moved(peer);
    // The reset and these bytes have crossed.
    assert_eq!(peer.feed(&data(1, &[7; 9], false)), []);
    peer.feed(&get(3));
    peer.connection.send_head(3, 200, [], false);
    let now = peer.now;
    assert_eq!(peer.connection.send_data(3, &[7; 99], true, now), 10);
}

#[test]
fn a_reset_that_waits_for_the_client_is_sent_by_the_other_process() {
    let mut peer = Peer::server();
    for stream in [1, 3, 5] {
        peer.feed(&post(stream));
        peer.connection.send_head(stream, 413, [], true);
        peer.connection.finish(stream);
    }
    let pings: Vec<_> = peer.frames().into_iter().filter(|frame| frame.kind == PING).collect();
    // A client that answers late, or never, does not keep the connection from moving.
    let mut peer = moved(peer);
    let answer = |n: usize| raw(PING, ACK, 0, &pings[n].payload);
    assert_eq!(peer.feed(&answer(0)), []);
    assert_eq!(peer.resets(), [(1, ErrorCode::NO_ERROR)]);
    assert_eq!(peer.feed(&[data(3, &[0; 9], true), answer(1)].concat()), []);
    assert_eq!(peer.resets(), [], "the client has ended the body");
    let mut peer = moved(peer);
    assert_eq!(peer.feed(&answer(2)), []);
    assert_eq!(peer.resets(), [(5, ErrorCode::NO_ERROR)]);
}

#[test]
fn limits_that_the_peer_knows_hold() {
    let peer = Peer::server_with(&Limits {
        max_streams: 2,
        ..Limits::default()
    });
    let mut peer = moved(peer);
    let events = peer.feed(&[post(1), post(3), post(5)].concat());
    assert_eq!(events.len(), 2);
    assert_eq!(peer.resets(), [(5, ErrorCode::REFUSED_STREAM)]);
    // Within the window that the peer was told.
    (0..4).for_each(|_| drop(peer.feed(&data(1, &[7; 15_000], false))));
}

#[test]
fn what_cannot_move_says_why() {
    assert_eq!(refusal(&Peer::client()), "it is a client's end");
    let peer = Peer::new(Connection::server(&Limits::default(), std::time::Instant::now()));
    assert_eq!(refusal(&peer), "the settings of both ends have not arrived yet");
    let mut peer = Peer::server();
    peer.feed(&get(1));
    assert_eq!(refusal(&peer), "it is not at rest");
    let mut peer = Peer::server();
    peer.feed(&get(1)[..7]);
    assert_eq!(refusal(&peer), "it is not at rest");
    let mut peer = Peer::server();
    peer.feed(&raw(PING, 0, 0, &[1; 8]));
    assert_eq!(refusal(&peer), "it is not at rest");
    peer.frames();
    peer.connection.shutdown(peer.now);
    assert_eq!(refusal(&peer), "it is ending");
}

#[test]
fn bytes_that_are_no_connection_are_refused() {
    let mut peer = Peer::server();
    peer.feed(&post(1));
    exchange(&mut peer, 3);
    peer.connection.send_head(1, 413, [], true);
    peer.connection.finish(1);
    peer.frames();
    let exported = peer.connection.export().unwrap();
    let import = |bytes: &[u8]| Connection::import(&Limits::default(), bytes, peer.now);
    for length in 0..exported.len() {
        assert!(import(&exported[..length]).is_err(), "{length}");
    }
    assert!(import(&[&exported[..], &[0]].concat()).is_err());
    // A changed byte may stand for another connection, but never for a panic.
    for place in 0..exported.len() {
        // Four bytes may be the largest number of 32 bits.
        for (value, count) in [(0, 1), (1, 1), (0x7f, 1), (0xff, 1), (0xff, 4)] {
            let mut changed = exported.clone();
            changed[place..].iter_mut().take(count).for_each(|byte| *byte = value);
            if let Ok(connection) = import(&changed) {
                let mut peer = Peer::new(connection);
                let bytes = [settings(&[(4, 99)]), window(0, 9), post(5), data(5, b"abc", true)].concat();
                let _ = peer.try_feed(&bytes);
                peer.connection.send_head(5, 200, [("server", &b"x"[..])], false);
                let now = peer.now;
                peer.connection.send_data(5, b"abc", true, now);
                peer.connection.finish(5);
                peer.connection.ping();
            }
        }
    }
}
