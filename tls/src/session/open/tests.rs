//! Two ends in memory: what they send, take and refuse.

use rustls::{CipherSuite, ConnectionTrafficSecrets};

use super::*;
use crate::session::Session;
use crate::{Acceptor, Connector, Identity};

/// One end in memory: its session, and what it has received.
struct End {
    session: Session,
    received: Vec<u8>,
    peer_closed: bool,
}

impl End {
    /// Takes all records of `input`, and appends those to send to `out`.
    fn take(&mut self, input: &mut [u8], out: &mut Buffer) -> Result<usize, Error> {
        let mut consumed = 0;
        loop {
            let (count, step) = self.call(&mut input[consumed..], out, Goal::Read);
            consumed += count;
            if step? != Step::Plain {
                return Ok(consumed);
            }
        }
    }

    fn call(&mut self, input: &mut [u8], out: &mut Buffer, goal: Goal<'_>) -> (usize, Result<Step, Error>) {
        let mut sink = Sink {
            plain: &mut |bytes| self.received.extend_from_slice(bytes),
            records: out,
            peer_closed: &mut self.peer_closed,
        };
        self.session.advance(input, &mut sink, goal)
    }

    fn send(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = Buffer::default();
        self.call(&mut [], &mut out, Goal::Encrypt(plain)).1.unwrap();
        out.filled().to_vec()
    }

    /// Sends a record of any kind.
    fn send_kind(&mut self, kind: u8, plain: &[u8]) -> Vec<u8> {
        let mut out = Buffer::default();
        self.open().protect(kind, plain, &mut out).unwrap();
        out.filled().to_vec()
    }

    /// Sends with new keys from the next record on.
    fn change_keys(&mut self) {
        let open = self.open();
        open.sending.update(open.suite).unwrap();
    }

    fn open(&mut self) -> &mut Open {
        match &mut self.session.phase {
            super::super::Phase::Open(open) => open,
            _ => panic!("the handshake is done"),
        }
    }
}

/// Two ends after their handshake: client and server.
fn ends() -> [End; 2] {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
    let connector = Connector::builder().ca_pem(chain.as_bytes()).build().unwrap();
    let acceptor = Acceptor::builder(identity).build().unwrap();
    let end = |session| End {
        session,
        received: Vec::new(),
        peer_closed: false,
    };
    let mut ends = [end(connector.session("localhost").unwrap()), end(acceptor.session())];
    let mut flights = [Buffer::default(), Buffer::default()];
    for turn in 0..6 {
        let [mine, other] = &mut flights;
        let (out, input) = if turn % 2 == 0 { (mine, other) } else { (other, mine) };
        let count = ends[turn % 2].take(input.filled(), out).unwrap();
        input.consume(count);
    }
    ends
}

/// The error of an end that takes these records, and the alert that it sends.
fn refused(end: &mut End, mut records: Vec<u8>) -> (Error, bool) {
    let mut out = Buffer::default();
    let error = end.take(&mut records, &mut out).unwrap_err();
    (error, !out.is_empty())
}

#[test]
fn records_go_both_ways_and_keys_are_made_again_after_a_rest() {
    let [mut client, mut server] = ends();
    for n in 0..100_u8 {
        client.session.rest();
        server
            .take(&mut client.send(&[n; 300]), &mut Buffer::default())
            .unwrap();
        server.session.rest();
        client.take(&mut server.send(&[n; 3]), &mut Buffer::default()).unwrap();
    }
    assert_eq!((server.received.len(), client.received.len()), (30_000, 300));
    assert_eq!(server.open().receiving.traffic.number, 100);
}

#[test]
fn a_key_that_has_served_long_enough_is_changed() {
    let [mut client, mut server] = ends();
    client.open().records_max = 10;
    for n in 0..50 {
        assert!(client.open().sending.traffic.number < 10, "{n}");
        server.take(&mut client.send(b"x"), &mut Buffer::default()).unwrap();
    }
    assert_eq!(server.received, [b'x'; 50]);
}

#[test]
fn asked_for_new_keys_an_end_changes_them_once_before_its_next_bytes() {
    let [mut client, mut server] = ends();
    for _ in 0..3 {
        let mut asked = client.send_kind(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1]);
        client.change_keys();
        server.take(&mut asked, &mut Buffer::default()).unwrap();
    }
    let mut answer = server.send(b"hello");
    // The message of five bytes, and the bytes.
    assert_eq!(answer.len(), 2 * (HEAD_BYTES + 1 + TAG_BYTES) + 5 + 5);
    client.take(&mut answer, &mut Buffer::default()).unwrap();
    server.take(&mut client.send(b"world"), &mut Buffer::default()).unwrap();
    assert_eq!(
        (&client.received[..], &server.received[..]),
        (&b"hello"[..], &b"world"[..])
    );
}

#[test]
fn endless_changes_of_keys_are_refused() {
    let [mut client, mut server] = ends();
    for n in 0.. {
        let mut asked = client.send_kind(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0]);
        client.change_keys();
        if let Err(error) = server.take(&mut asked, &mut Buffer::default()) {
            assert_eq!((n, error), (32, PeerMisbehaved::TooManyKeyUpdateRequests.into()));
            return;
        }
    }
}

#[test]
fn endless_empty_records_are_refused() {
    let [mut client, mut server] = ends();
    for n in 0.. {
        // An empty record between does not let other records begin to count anew.
        if n == 16 {
            server
                .take(&mut client.send_kind(ALERT, &[1, 90]), &mut Buffer::default())
                .unwrap();
        }
        let mut empty = client.send_kind(APPLICATION_DATA, b"");
        if let Err(error) = server.take(&mut empty, &mut Buffer::default()) {
            assert_eq!((n, error), (32, PeerMisbehaved::TooManyEmptyFragments.into()));
            break;
        }
    }
    assert_eq!(server.open().warnings, 1);
}

#[test]
fn a_message_may_be_spread_over_records() {
    let [mut client, mut server] = ends();
    for part in [&[KEY_UPDATE][..], &[0, 0], &[1], &[0]] {
        server
            .take(&mut client.send_kind(HANDSHAKE, part), &mut Buffer::default())
            .unwrap();
    }
    client.change_keys();
    server.take(&mut client.send(b"hello"), &mut Buffer::default()).unwrap();
    assert_eq!(server.received, b"hello");

    server
        .take(&mut client.send_kind(HANDSHAKE, &[KEY_UPDATE]), &mut Buffer::default())
        .unwrap();
    let (error, alerts) = refused(&mut server, client.send(b"hello"));
    assert_eq!(error, PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
    assert!(alerts);
}

#[test]
fn a_message_that_cannot_be_right_is_refused_by_its_head() {
    for head in [
        [KEY_UPDATE, 0, 0xff, 0xff],
        [KEY_UPDATE, 0, 0, 0],
        [NEW_SESSION_TICKET, 0, 1, 0],
        [1, 0, 1, 0],
    ] {
        let [mut client, mut server] = ends();
        let (_, alerts) = refused(&mut server, client.send_kind(HANDSHAKE, &head));
        assert!(alerts, "{head:?}");
    }
    // A client waits for the rest of a ticket.
    let [mut client, mut server] = ends();
    client
        .take(
            &mut server.send_kind(HANDSHAKE, &[NEW_SESSION_TICKET, 0, 1, 0]),
            &mut Buffer::default(),
        )
        .unwrap();
    assert!(refused(&mut client, server.send_kind(HANDSHAKE, &[0; 256])).1);
}

#[test]
fn padding_is_removed() {
    let [mut client, mut server] = ends();
    // The kind 0 makes the last byte of the plain bytes the kind, and zeros behind it padding.
    let padded = [&b"hello"[..], &[APPLICATION_DATA], &[0; 1000]].concat();
    server
        .take(&mut client.send_kind(0, &padded), &mut Buffer::default())
        .unwrap();
    server
        .take(&mut client.send_kind(APPLICATION_DATA, b""), &mut Buffer::default())
        .unwrap();
    assert_eq!(server.received, b"hello");
}

#[test]
fn wrong_records_are_refused_with_an_alert() {
    let long = vec![0; RECORD_BYTES + 1];
    let wrong: [(u8, &[u8]); 9] = [
        (HANDSHAKE, &[]),
        (HANDSHAKE, &[1, 0, 0, 0]),
        (HANDSHAKE, &[NEW_SESSION_TICKET, 0, 0, 0]),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2]),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE, 0, 0, 1, 0]),
        (HANDSHAKE, &[KEY_UPDATE, 1, 0, 0]),
        (20, &[1]),
        (0, &[0; 100]),
        (APPLICATION_DATA, &long),
    ];
    for (kind, plain) in wrong {
        let [mut client, mut server] = ends();
        let (error, alerts) = refused(&mut server, client.send_kind(kind, plain));
        assert!(alerts, "{kind} {error}");
    }
    for head in [
        [20, 3, 3, 0, 1],
        [22, 3, 3, 0, 1],
        [21, 3, 3, 0, 2],
        [23, 3, 3, 0x41, 1],
        [23, 3, 3, 0, 0],
    ] {
        let [_, mut server] = ends();
        assert!(refused(&mut server, head.to_vec()).1, "{head:?}");
    }
    let [mut client, mut server] = ends();
    let mut record = client.send(b"hello");
    let at = record.len() - 1;
    record[at] ^= 1;
    assert_eq!(refused(&mut server, record), (Error::DecryptError, true));
}

#[test]
fn alerts_end_a_connection() {
    let [mut client, mut server] = ends();
    for _ in 0..4 {
        server
            .take(&mut client.send_kind(ALERT, &[1, 90]), &mut Buffer::default())
            .unwrap();
    }
    let mut out = Buffer::default();
    client.call(&mut [], &mut out, Goal::CloseNotify).1.unwrap();
    server.take(out.filled(), &mut Buffer::default()).unwrap();
    assert!(server.peer_closed);

    let [mut client, mut server] = ends();
    let (error, alerts) = refused(&mut server, client.send_kind(ALERT, &[2, 40]));
    assert_eq!(
        (error, alerts),
        (Error::AlertReceived(AlertDescription::HandshakeFailure), false)
    );
    let [mut client, mut server] = ends();
    for _ in 0..4 {
        server
            .take(&mut client.send_kind(ALERT, &[1, 90]), &mut Buffer::default())
            .unwrap();
    }
    assert!(refused(&mut server, client.send_kind(ALERT, &[1, 90])).1);
    let [mut client, mut server] = ends();
    assert!(refused(&mut server, client.send_kind(ALERT, &[1])).1);
}

/// rustls makes the next keys of both directions too.
#[test]
fn the_next_keys_are_those_of_rustls() {
    let [mut client, _] = ends();
    let open = client.open();
    for _ in 0..3 {
        open.sending.update(open.suite).unwrap();
        open.receiving.update(open.suite).unwrap();
        let kernel = open.kernel.as_mut().unwrap();
        for (half, (_, expected)) in [
            (&open.sending, kernel.update_tx_secret().unwrap()),
            (&open.receiving, kernel.update_rx_secret().unwrap()),
        ] {
            let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = expected else {
                panic!("the suite that the server prefers")
            };
            assert_eq!(
                (
                    &half.traffic.key.as_ref()[..key.as_ref().len()],
                    half.traffic.iv.as_ref()
                ),
                (key.as_ref(), iv.as_ref())
            );
        }
    }
}

#[test]
fn keys_of_another_secret_are_not_changed() {
    let [mut client, mut server] = ends();
    let other = server.open().receiving.traffic.secret.as_ref().to_vec();
    let open = server.open();
    open.sending.traffic.secret = open.suite.secret(&other).unwrap();
    let before = open.sending.traffic.number;
    assert!(open.sending.update(open.suite).is_err());
    assert!(open.receiving.update(open.suite).is_ok());
    assert!(open.export(&mut Writer::default()).is_err());
    // What follows from the handshake still serves.
    assert_eq!(server.open().sending.traffic.number, before);
    let mut record = server.send(b"hello");
    client.take(&mut record, &mut Buffer::default()).unwrap();
    assert_eq!(client.received, b"hello");
}

/// The client's first traffic secret of RFC 8448, section 3, and its first record.
#[test]
fn a_record_is_that_of_the_rfc() {
    let secret = [
        0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce, 0x65, 0x52, 0x87, 0x5a,
        0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7, 0xc1, 0x75, 0x04, 0xa5,
    ];
    let suite = Suite::new(CipherSuite::TLS13_AES_128_GCM_SHA256).unwrap();
    let secret = suite.secret(&secret).unwrap();
    let mut half = Half::new(suite, Traffic::of(suite, secret, 0));
    let mut record = vec![
        0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf, 0xfa, 0xfe, 0x82, 0x28,
        0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa, 0x66, 0xbc, 0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8,
        0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5, 0x4a, 0x9a, 0x20, 0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62,
        0x92, 0xa2, 0x97, 0x70, 0x14, 0xbd, 0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49, 0x15, 0xe4,
    ];
    let expected: Vec<u8> = (0..50).collect();
    assert_eq!(half.open(&mut record).unwrap(), (APPLICATION_DATA, &expected[..]));
}
