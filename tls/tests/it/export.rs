//! A server's stream as bytes, and the stream that another process makes of them.

use std::io::{ErrorKind, Read, Write};

use osier::net::UnixStream;
use osier_tls::{Acceptor, ClientCertificates, Connector, Stream, Tickets};

use crate::made::{AUTHORITY, LOCALHOST};

/// A server with a setting for each thing that travels.
fn acceptor() -> Acceptor {
    let ca = ClientCertificates::Optional(AUTHORITY.pem.clone().into_bytes());
    let builder = Acceptor::builder(LOCALHOST.identity()).alpn(["h2"]);
    builder.client_certificates(ca).build().unwrap()
}

fn connector() -> Connector {
    let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes()).alpn(["h2"]);
    builder.identity(LOCALHOST.identity()).build().unwrap()
}

/// A client, a server, and a second descriptor of the server's socket.
struct Ends {
    client: Stream,
    server: Stream,
    socket: UnixStream,
}

impl Ends {
    fn new() -> Ends {
        let (near, far) = UnixStream::pair().unwrap();
        let socket = far.try_clone().unwrap();
        let client = connector().connect("localhost", near).unwrap();
        let server = acceptor().accept(far);
        Ends { client, server, socket }
    }

    fn established() -> Ends {
        let ends = Ends::new();
        while !(ends.client.is_established() && ends.server.is_established()) {
            let _ = (ends.client.try_handshake(), ends.server.try_handshake());
        }
        ends
    }

    /// The ends after the server's one has moved.
    fn moved(self) -> Ends {
        let exported = self.server.export().unwrap();
        drop(self.server);
        let server = LOCALHOST.acceptor().import(self.socket.try_clone().unwrap(), &exported);
        Ends {
            server: server.unwrap(),
            ..self
        }
    }

    /// Sends bytes both ways.
    fn talk(&mut self) {
        self.client.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        self.server.read_exact(&mut bytes).unwrap();
        self.server.write_all(&bytes).unwrap();
        self.client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }

    fn refusal(&self) -> String {
        self.server.export().unwrap_err().to_string()
    }
}

/// The outcome of the handshake.
fn agreed(stream: &Stream) -> String {
    let agreed = (
        stream.version(),
        stream.cipher_suite(),
        stream.protocol().map(<[u8]>::to_vec),
        stream.server_name().map(str::to_owned),
        stream.peer_certificates().to_vec(),
        stream.is_resumed(),
    );
    format!("{agreed:?}")
}

#[test]
fn a_moved_stream_goes_on_and_knows_what_was_agreed_on() {
    osier::run(|| {
        let mut ends = Ends::established();
        let before = agreed(&ends.server);
        assert_eq!(
            (ends.server.server_name(), ends.server.peer_certificates().len()),
            (Some("localhost"), 1)
        );
        for _ in 0..3 {
            ends = ends.moved();
            ends.talk();
            ends.talk();
        }
        assert_eq!(agreed(&ends.server), before);
        ends.client.close_notify().unwrap();
        assert_eq!(ends.server.read(&mut [0; 1]).unwrap(), 0);
    });
}

#[test]
fn bytes_that_have_arrived_move_too() {
    osier::run(|| {
        let mut ends = Ends::established();
        // One byte of the record is read, the others are plain bytes that wait.
        ends.client.write_all(b"hello").unwrap();
        ends.server.read_exact(&mut [0; 1]).unwrap();
        let mut ends = ends.moved();
        assert!(ends.server.has_unread());
        let mut rest = [0; 4];
        ends.server.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"ello");
        assert!(!ends.server.has_unread());
    });
}

#[test]
fn a_stream_that_has_seen_nothing_is_empty_and_begins_at_the_other_side() {
    osier::run(|| {
        let ends = Ends::new();
        assert_eq!(ends.server.export(), Ok(Vec::new()));
        let mut ends = ends.moved();
        while !(ends.client.is_established() && ends.server.is_established()) {
            let _ = (ends.client.try_handshake(), ends.server.try_handshake());
        }
        ends.talk();
    });
}

#[test]
fn what_cannot_move_says_why() {
    osier::run(|| {
        let ends = Ends::new();
        let _ = ends.client.try_handshake();
        let _ = ends.server.try_handshake();
        assert!(
            ends.refusal().ends_with("its handshake has begun"),
            "{}",
            ends.refusal()
        );

        let ends = Ends::established();
        let refused = ends.client.export().unwrap_err().to_string();
        assert!(refused.ends_with("it is a client's end"), "{refused}");
        while ends.server.try_write(&[7; 1 << 16]).is_ok() {}
        assert!(
            ends.refusal().ends_with("records wait for room in its socket"),
            "{}",
            ends.refusal()
        );

        let mut ends = Ends::established();
        ends.client.close_notify().unwrap();
        assert_eq!(ends.server.read(&mut [0; 1]).unwrap(), 0);
        assert!(ends.refusal().ends_with("one end has ended it"), "{}", ends.refusal());
    });
}

/// Programs of one version of the upgrade protocol hand over to each other only while the layout stays as it is.
#[test]
fn the_layout_belongs_to_the_version_of_the_transport() {
    let (near, far) = UnixStream::pair().unwrap();
    let connector = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes()).build().unwrap();
    let client = connector.connect("localhost", near).unwrap();
    let server = LOCALHOST.acceptor().accept(far);
    while !(client.is_established() && server.is_established()) {
        let _ = (client.try_handshake(), server.try_handshake());
    }
    // The keys differ from connection to connection, so only the length is known.
    assert_eq!(
        server.export().unwrap().len(),
        134,
        "the layout has changed: raise VERSION in web/src/conn/handover/fields.rs, and say in CHANGELOG.md that the next upgrade is a restart"
    );
}

#[test]
fn bytes_that_are_no_stream_are_refused() {
    let ends = Ends::established();
    let exported = ends.server.export().unwrap();
    let import = |bytes: &[u8]| LOCALHOST.acceptor().import(ends.socket.try_clone().unwrap(), bytes);
    for length in 1..exported.len() {
        let error = import(&exported[..length]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{length}");
    }
    import(&[&exported[..], &[0]].concat()).unwrap_err();
    // A changed byte may stand for another stream, but never for a panic.
    for place in 0..exported.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = exported.clone();
            changed[place] = value;
            if let Ok(stream) = import(&changed) {
                let _ = (stream.try_write(b"x"), stream.try_read(&mut [0; 9]));
            }
        }
    }
}

#[test]
fn sessions_resume_with_keys_that_have_moved() {
    osier::run(|| {
        let tickets = Tickets::rotating(std::time::Duration::from_secs(3600)).unwrap();
        let with = |tickets: Tickets| {
            let builder = Acceptor::builder(LOCALHOST.identity()).tickets(tickets);
            builder.build().unwrap()
        };
        let moved = Tickets::import(&tickets.export()).unwrap();
        let (old, new, connector) = (with(tickets), with(moved), AUTHORITY.connector());
        let mut found = vec![];
        for acceptor in [&old, &new, &LOCALHOST.acceptor()] {
            let (near, far) = UnixStream::pair().unwrap();
            let mut ends = Ends {
                client: connector.connect("localhost", near).unwrap(),
                socket: far.try_clone().unwrap(),
                server: acceptor.accept(far),
            };
            while !(ends.client.is_established() && ends.server.is_established()) {
                let _ = (ends.client.try_handshake(), ends.server.try_handshake());
            }
            ends.talk();
            found.push(ends.server.is_resumed());
        }
        assert_eq!(found, [false, true, false]);
        assert!(Tickets::from_keys(&[7; 48]).unwrap().export().is_empty());
        for wrong in [&[][..], &[0; 16], &[0; 63]] {
            assert!(Tickets::import(wrong).is_none());
        }
    });
}
