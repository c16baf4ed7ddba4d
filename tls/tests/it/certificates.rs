//! Certificates that one end refuses: names, times, authorities, clients.

use std::io::{self, Read, Write};
use std::sync::Arc;

use osier::sync::Event;
use osier_tls::{Acceptor, ClientCertificates, Connector, Error, Hello, Identity, Resolver, Stream};
use rcgen::date_time_ymd;

use crate::made::{AUTHORITY, Authority, LOCALHOST, Made, pair, shake};

/// The error of the client and of the server in a handshake that both refuse.
fn both_fail(connector: &Connector, acceptor: &Acceptor) -> (io::Error, io::Error) {
    let (client, server) = pair(connector, acceptor);
    osier::run(move || {
        let (client, server) = shake(&client, &server);
        (client.unwrap_err(), server.unwrap_err())
    })
}

/// A client that trusts the authority refuses this certificate, and says so in an alert.
fn is_refused(made: &Made, reason: &str) {
    let (client, server) = both_fail(&AUTHORITY.connector(), &made.acceptor());
    assert_eq!(client.kind(), io::ErrorKind::InvalidData);
    let error = Error::of(&client).unwrap();
    assert!(error.is_certificate() && error.to_string().contains(reason), "{error}");
    assert!(Error::of(&server).unwrap().is_alert(), "{server}");
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    is_refused(&AUTHORITY.issue("example.org"), "not valid for name");
}

#[test]
fn an_expired_certificate_is_refused() {
    let made = AUTHORITY.issue_with("localhost", |params| params.not_after = date_time_ymd(2020, 1, 1));
    is_refused(&made, "expired");
}

#[test]
fn a_certificate_that_is_not_yet_valid_is_refused() {
    let made = AUTHORITY.issue_with("localhost", |params| params.not_before = date_time_ymd(2090, 1, 1));
    is_refused(&made, "not valid yet");
}

#[test]
fn an_unknown_authority_is_refused() {
    is_refused(
        &Authority::new("Somebody else").issue("localhost"),
        "no authority that is trusted here has signed it",
    );
}

#[test]
fn a_client_without_verification_accepts_any_certificate() {
    let connector = Connector::builder().dangerous_without_verification().build().unwrap();
    let (client, server) = pair(
        &connector,
        &Authority::new("Somebody else").issue("example.org").acceptor(),
    );
    osier::run(move || {
        let (client, server) = shake(&client, &server);
        client.and(server)
    })
    .unwrap();
}

fn with_clients(clients: ClientCertificates) -> Acceptor {
    let builder = Acceptor::builder(LOCALHOST.identity()).client_certificates(clients);
    builder.build().unwrap()
}

fn authority() -> Vec<u8> {
    AUTHORITY.pem.clone().into_bytes()
}

fn connector_of(client: &Made) -> Connector {
    let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes());
    builder.identity(client.identity()).build().unwrap()
}

#[test]
fn a_client_shows_its_certificate() {
    let made = AUTHORITY.issue("somebody");
    let expected = made.identity().chain().next().unwrap().to_vec();
    for clients in [
        ClientCertificates::Required(authority()),
        ClientCertificates::Optional(authority()),
    ] {
        let (client, server) = pair(&connector_of(&made), &with_clients(clients));
        let shown = osier::run(move || {
            let (client, shaken) = shake(&client, &server);
            client.and(shaken).unwrap();
            server.peer_certificates().to_vec()
        });
        assert_eq!(shown, [expected.clone().into_boxed_slice()]);
    }
}

#[test]
fn a_client_without_a_certificate_may_be_refused() {
    let acceptor = with_clients(ClientCertificates::Required(authority()));
    let (mut client, server) = pair(&AUTHORITY.connector(), &acceptor);
    osier::run(move || {
        // The server stays: bytes that it leaves unread would make the system reset the connection.
        let serving = osier::spawn(move || (server.handshake(), server));
        // In TLS 1.3 the client is done before the server has looked: it meets the alert at its first read.
        let error = client.write_all(b"hello").and_then(|()| client.read_exact(&mut [0]));
        assert!(Error::of(&error.unwrap_err()).unwrap().is_alert());
        let (refused, _server) = serving.join().unwrap();
        let error = refused.unwrap_err();
        assert!(Error::of(&error).unwrap().is_certificate(), "{error}");
    });
}

#[test]
fn a_client_without_a_certificate_may_be_welcome() {
    let acceptor = with_clients(ClientCertificates::Optional(authority()));
    let (client, server) = pair(&AUTHORITY.connector(), &acceptor);
    osier::run(move || {
        let (client, shaken) = shake(&client, &server);
        client.and(shaken).unwrap();
        assert!(server.peer_certificates().is_empty());
    });
}

#[test]
fn a_client_of_another_authority_is_refused() {
    let stranger = Authority::new("Somebody else").issue("somebody");
    let acceptor = with_clients(ClientCertificates::Optional(authority()));
    let (client, server) = pair(&connector_of(&stranger), &acceptor);
    osier::run(move || {
        let (_, server) = shake(&client, &server);
        assert!(Error::of(&server.unwrap_err()).unwrap().is_certificate());
    });
}

#[test]
fn a_certificate_on_a_list_of_its_issuer_is_refused() {
    let numbered = |serial: u64| AUTHORITY.issue_with("somebody", |params| params.serial_number = Some(serial.into()));
    let lists = [
        &AUTHORITY.pem,
        &AUTHORITY.revoke(&[7]),
        &Authority::new("Somebody else").revoke(&[8]),
    ];
    let authorities: Vec<u8> = lists.into_iter().flat_map(|pem| pem.bytes()).collect();
    for (serial, is_revoked) in [(7, true), (8, false)] {
        let acceptor = with_clients(ClientCertificates::Required(authorities.clone()));
        let (client, server) = pair(&connector_of(&numbered(serial)), &acceptor);
        let shaken = osier::run(move || shake(&client, &server).1);
        let refused = shaken.err().map(|error| Error::of(&error).unwrap().is_certificate());
        assert_eq!(refused, is_revoked.then_some(true), "{serial}");
    }
    let broken = [
        &AUTHORITY.pem,
        "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
    ]
    .concat();
    let broken = ClientCertificates::Required(broken.into_bytes());
    let builder = Acceptor::builder(LOCALHOST.identity()).client_certificates(broken);
    assert!(builder.build().unwrap_err().to_string().contains("cannot be used"));
}

/// Knows two names, and a name for validations alone.
struct Two {
    first: Identity,
    second: Identity,
}

impl Resolver for Two {
    fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
        match hello.server_name()? {
            "localhost" if hello.offers_only(b"acme-tls/1") => Some(self.second.clone()),
            "localhost" => Some(self.first.clone()),
            _ => None,
        }
    }
}

fn two() -> Acceptor {
    let resolver = Two {
        first: LOCALHOST.identity(),
        second: AUTHORITY.issue("localhost").identity(),
    };
    Acceptor::builder(resolver)
        .alpn(["http/1.1", "acme-tls/1"])
        .build()
        .unwrap()
}

#[test]
fn a_resolver_sees_the_name_and_the_protocols() {
    for (offered, is_first) in [
        (&["http/1.1"][..], true),
        (&["acme-tls/1"], false),
        (&["acme-tls/1", "http/1.1"], true),
    ] {
        let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes()).alpn(offered);
        let (client, server) = pair(&builder.build().unwrap(), &two());
        osier::run(move || {
            let (shaken, other) = shake(&client, &server);
            shaken.and(other).unwrap();
            let own = LOCALHOST.identity();
            assert_eq!(&*client.peer_certificates()[0] == own.chain().next().unwrap(), is_first);
            let expected: &[u8] = if is_first { b"http/1.1" } else { b"acme-tls/1" };
            assert_eq!(client.protocol(), Some(expected));
        });
    }
}

/// Knows two names. The fiber that asks for `slow.test` is suspended until somebody sets `may_go_on`.
struct Suspending {
    slow: Identity,
    asked: Arc<Event>,
    may_go_on: Arc<Event>,
}

impl Resolver for Suspending {
    fn find(&self, hello: &Hello<'_>) -> Option<Identity> {
        if hello.server_name()? != "slow.test" {
            return Some(LOCALHOST.identity());
        }
        self.asked.set();
        self.may_go_on.wait();
        Some(self.slow.clone())
    }
}

#[test]
fn a_resolver_that_suspends_holds_up_no_other_handshake_of_its_worker() {
    let (asked, may_go_on) = (Arc::new(Event::manual()), Arc::new(Event::manual()));
    let slow = AUTHORITY.issue("slow.test").identity();
    let resolver = Suspending {
        slow: slow.clone(),
        asked: Arc::clone(&asked),
        may_go_on: Arc::clone(&may_go_on),
    };
    let acceptor = Acceptor::builder(resolver).build().unwrap();
    let (near, far) = osier::net::UnixStream::pair().unwrap();
    let waiting = (
        AUTHORITY.connector().connect("slow.test", near).unwrap(),
        acceptor.accept(far),
    );
    let (client, server) = pair(&AUTHORITY.connector(), &acceptor);
    let shown = |client: &Stream, identity: &Identity| {
        let own = identity.chain().next().unwrap();
        assert_eq!(&*client.peer_certificates()[0], own);
    };
    osier::Runtime::builder().workers(1).build().unwrap().run(move || {
        let handshake = osier::spawn(move || {
            let (client, server) = shake(&waiting.0, &waiting.1);
            client.and(server).map(|()| waiting)
        });
        asked.wait();
        let (shaken, other) = shake(&client, &server);
        shaken.and(other).unwrap();
        shown(&client, &LOCALHOST.identity());
        assert_eq!(server.server_name(), Some("localhost"));
        may_go_on.set();
        let (client, server) = handshake.join().unwrap().unwrap();
        shown(&client, &slow);
        assert_eq!(server.server_name(), Some("slow.test"));
    });
}

#[test]
fn an_unknown_name_is_refused() {
    let (near, far) = osier::net::UnixStream::pair().unwrap();
    let client = AUTHORITY.connector().connect("example.org", near).unwrap();
    let server = two().accept(far);
    osier::run(move || {
        let (client, shaken) = shake(&client, &server);
        assert!(Error::of(&client.unwrap_err()).unwrap().is_alert());
        let refused = shaken.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            refused.to_string(),
            "the client asks for \"example.org\", for which there is no certificate"
        );
        assert_eq!(server.server_name(), Some("example.org"));
    });
}

#[test]
fn a_client_that_offers_other_protocols_is_refused() {
    let builder = Connector::builder().ca_pem(AUTHORITY.pem.as_bytes()).alpn(["gopher"]);
    let (client, server) = both_fail(&builder.build().unwrap(), &two());
    assert!(Error::of(&client).unwrap().is_alert(), "{client}");
    assert!(server.to_string().contains("known protocol"), "{server}");
}

#[test]
fn an_identity_is_complete() {
    let other = AUTHORITY.issue("localhost");
    let (chain, key) = (LOCALHOST.chain.as_bytes(), LOCALHOST.key.as_bytes());
    let message = |chain, key| Identity::from_pem(chain, key).unwrap_err().to_string();
    assert!(
        Identity::from_pem(chain, other.key.as_bytes())
            .unwrap_err()
            .is_key_mismatch()
    );
    assert_eq!(message(b"", key), "the certificate file has no certificate in PEM");
    assert_eq!(
        message(chain, chain),
        "the key file has no private key in PEM, or one with a passphrase"
    );
    assert!(
        message(b"-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----\n", key)
            .starts_with("the certificate file cannot be read")
    );
    assert!(
        message(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", key)
            .starts_with("the certificate cannot be used")
    );
}

#[test]
fn a_name_behind_an_alert_is_still_that_of_the_client() {
    let (near, mut far) = osier::net::UnixStream::pair().unwrap();
    let client = AUTHORITY.connector().connect("localhost", near).unwrap();
    osier::run(move || {
        assert_eq!(client.try_handshake().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        client.socket().shutdown(std::net::Shutdown::Write).unwrap();
        let mut hello = Vec::new();
        far.read_to_end(&mut hello).unwrap();
        let (mut near, far) = osier::net::UnixStream::pair().unwrap();
        let server = two().accept(far);
        // A warning, which may come before every message.
        near.write_all(&[21, 3, 1, 0, 2, 1, 90]).unwrap();
        assert_eq!(server.try_handshake().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        near.write_all(&hello).unwrap();
        assert_eq!(server.try_handshake().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(server.server_name(), Some("localhost"));
    });
}
