//! A connection sees the same and says the same however its bytes are split, and survives any bytes.

use osier_http::h2::{Error, ErrorCode};
use proptest::collection::vec;
use proptest::prelude::*;

use super::peer::*;
use crate::cut::cut;

/// Frames that make sense together, and now and then some that do not.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let stream = || prop_oneof![8 => (0..6u32).prop_map(|n| 2 * n + 1), 1 => Just(0u32), 1 => Just(2u32)];
    let bytes = vec(any::<u8>(), 0..40);
    let fields = vec(("[a-z]{1,8}", "[ -~]{0,20}"), 0..4);
    let frame = prop_oneof![
        6 => (stream(), fields.clone(), any::<bool>(), any::<bool>()).prop_map(|(id, fields, end, is_cut)| {
            let fields = fields.iter().map(|(name, value)| (&name[..], value.trim()));
            let block = block(&GET.into_iter().chain(fields).collect::<Vec<_>>());
            let (first, rest) = block.split_at(if is_cut { block.len() / 2 } else { block.len() });
            match is_cut {
                false => raw(HEADERS, END_HEADERS | u8::from(end), id, first),
                true => [raw(HEADERS, u8::from(end), id, first), raw(CONTINUATION, END_HEADERS, id, rest)].concat(),
            }
        }),
        6 => (stream(), bytes.clone(), any::<bool>()).prop_map(|(id, bytes, end)| data(id, &bytes, end)),
        2 => (stream(), bytes.clone(), 0..5u8).prop_map(|(id, bytes, padding)| {
            raw(DATA, PADDED, id, &[&[padding], &bytes[..], &vec![0; usize::from(padding)]].concat())
        }),
        2 => (stream(), fields).prop_map(|(id, fields)| {
            let fields = fields.iter().map(|(name, value)| (&name[..], value.trim()));
            headers(id, &fields.collect::<Vec<_>>(), true)
        }),
        2 => stream().prop_map(|id| reset(id, ErrorCode::CANCEL)),
        2 => (stream(), 0..100_000u32).prop_map(|(id, by)| window(id, by)),
        1 => vec((1..9u16, 0..70_000u32), 0..3).prop_map(|entries| settings(&entries)),
        1 => Just(raw(PING, 0, 0, b"whatever")),
        1 => stream().prop_map(|id| raw(PRIORITY_UPDATE, 0, 0, &[&id.to_be_bytes()[..], b"u=1, i"].concat())),
        1 => (any::<u8>(), any::<u8>(), stream(), bytes).prop_map(|(kind, flags, id, bytes)| raw(kind, flags, id, &bytes)),
    ];
    vec(frame, 0..20).prop_map(|frames| frames.concat())
}

/// The events and the output of a server, with the pieces of bodies joined.
fn outcome(pieces: &[&[u8]], responds: bool) -> (Vec<Seen>, Option<Error>, Vec<Sent>) {
    let mut peer = Peer::server();
    let mut all: Vec<Seen> = Vec::new();
    for piece in pieces {
        let (events, error) = peer.try_feed(piece);
        for event in events {
            match (all.last_mut(), event) {
                (Some(Seen::Data(stream, bytes, end @ false)), Seen::Data(id, more, ended)) if *stream == id => {
                    bytes.extend_from_slice(&more);
                    *end = ended;
                }
                (_, event) => all.push(event),
            }
        }
        if error.is_some() {
            return (all, error, peer.frames());
        }
    }
    if responds {
        for stream in [1, 3, 5, 7] {
            peer.connection.send_head(stream, 200, [("x", &b"y"[..])], false);
            peer.connection.send_data(stream, &[0; 1000], true, peer.now);
            peer.connection.finish(stream);
        }
    }
    (all, None, peer.frames())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing(bytes in frames(), cuts in vec(1..60usize, 1..8), responds in any::<bool>()) {
        let pieces = cut(&bytes, &cuts);
        prop_assert_eq!(outcome(&pieces, responds), outcome(&[&bytes], responds));
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..300), cuts in vec(1..60usize, 1..8)) {
        let pieces = cut(&bytes, &cuts);
        outcome(&pieces, true);
    }
}
