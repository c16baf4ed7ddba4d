//! The WebSocket protocol as a table, over raw TCP, with both styles of session: framing, pings,
//! reserved bits, opcodes, fragmentation, UTF-8, closing, sizes. The cases are those of chapters 1
//! to 7 and 9 of the Autobahn suite, written anew. Each row is what a client sends and what it must
//! get.

use std::io::{Read, Write};
use std::time::Duration;

use crate::common::{Site, site};
use crate::ws_client::{Got, KEY, Peer, handshake, masked};
use crate::ws_table::{Case, Want, cases, close, join};
use osier_web::{Request, Router, ws};

struct Echo;

impl ws::Callbacks for Echo {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        sender.send(message);
    }
}

fn options() -> ws::Options {
    ws::Options {
        message_bytes: 4 << 20,
        frame_bytes: 2 << 20,
        close_within: Duration::from_millis(300),
        queue: 4096,
        protocols: vec!["chat.v2".into(), "chat.v1".into()],
        ..ws::Options::default()
    }
}

/// An echo in each style.
fn echoes() -> Site {
    let fiber = |request: &mut Request<'_>| {
        options().upgrade(request, |socket| {
            while let Some(message) = socket.read()? {
                socket.send(message)?;
            }
            Ok(())
        })
    };
    let dormant = |request: &mut Request<'_>| options().upgrade_dormant(request, Echo);
    site(Router::new().get(STYLES[0], fiber).get(STYLES[1], dormant))
}

const STYLES: [&str; 2] = ["/fiber", "/dormant"];

fn run(site: &Site, style: &str, (name, send, want): &Case, piece: usize) {
    let mut peer = Peer::open(site.addr, style);
    for piece in send.chunks(piece.max(1)) {
        if peer.stream.write_all(piece).is_err() {
            break; // refused, and closed, before all of it was sent
        }
    }
    let frames = match want {
        Want::Frames(frames) | Want::Close(frames, _) => frames.as_slice(),
        Want::Empty => &[],
    };
    for (first, payload) in frames {
        assert_eq!(
            peer.frame(),
            Some(Got(*first, payload.clone())),
            "{style}: {name}, in pieces of {piece}"
        );
    }
    match want {
        Want::Frames(_) => {
            peer.text("still here");
            peer.expect_text("still here");
            peer.send(&close(1000, ""));
            peer.expect_close(1000);
        }
        Want::Close(_, code) => {
            let got = peer
                .frame()
                .unwrap_or_else(|| panic!("{style}: {name}: no close frame"));
            assert_eq!(
                (got.0, &got.1[..2]),
                (0x88, &code.to_be_bytes()[..]),
                "{style}: {name}, in pieces of {piece}"
            );
            peer.expect_end();
        }
        Want::Empty => {
            assert_eq!(peer.frame(), Some(Got(0x88, vec![])), "{style}: {name}");
            peer.expect_end();
        }
    }
}

#[test]
fn every_case_in_both_styles_at_once_and_in_small_pieces() {
    let site = echoes();
    let cases = cases();
    for style in STYLES {
        for case in &cases {
            run(&site, style, case, usize::MAX);
            if case.1.len() < 200 {
                run(&site, style, case, 1);
            }
        }
    }
    println!("{} cases, in two styles", cases.len());
    assert!(cases.len() > 150, "{}", cases.len());
}

#[test]
fn what_comes_behind_the_handshake_is_not_lost() {
    let site = echoes();
    for style in STYLES {
        let early = join(&[handshake(style).into_bytes(), masked(0x81, b"early")]);
        let mut peer = Peer::with(site.addr, &early);
        peer.expect_text("early");
        peer.text("later");
        peer.expect_text("later");
    }
}

/// A reset would stop its writes, and many clients read nothing more then: they would not see the close frame.
#[test]
fn a_client_may_send_a_message_beyond_the_limit_to_its_end() {
    let site = echoes();
    for style in STYLES {
        let mut peer = Peer::open(site.addr, style);
        let length: u64 = 16 << 20;
        peer.send(&join(&[vec![0x82, 0xff], length.to_be_bytes().to_vec(), vec![0; 4]]));
        peer.send(&vec![b'x'; length as usize]);
        let got = peer.frame().expect("a close frame");
        assert_eq!(got.1[..2], 1009_u16.to_be_bytes(), "{style}");
        assert_eq!(peer.stream.read(&mut [0]).expect("a clean end"), 0, "{style}");
    }
}

#[test]
fn a_client_that_breaks_the_rules_ends_a_session_whose_times_are_endless() {
    let options = || ws::Options {
        close_within: Duration::MAX,
        ping_after: Duration::MAX,
        pong_within: Duration::MAX,
        ..options()
    };
    let fiber = move |request: &mut Request<'_>| options().upgrade(request, |socket| socket.read().map(drop));
    let dormant = move |request: &mut Request<'_>| options().upgrade_dormant(request, Echo);
    let site = site(Router::new().get(STYLES[0], fiber).get(STYLES[1], dormant));
    for style in STYLES {
        let mut peer = Peer::open(site.addr, style);
        // The opcode is reserved.
        peer.send(&masked(0x83, b""));
        let got = peer.frame().expect("a close frame");
        assert_eq!(got.1.get(..2), Some(&1002_u16.to_be_bytes()[..]), "{style}: {got:?}");
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        peer.expect_end();
    }
}

#[test]
fn the_handshake_is_strict() {
    let site = echoes();
    let ask = |change: &dyn Fn(String) -> String| site.ask(&change(handshake("/fiber")));
    let replaced = |from: &'static str, to: &'static str| ask(&move |head| head.replace(from, to));
    let without = |line: &'static str| replaced(line, "");

    let peer = Peer::open(site.addr, "/fiber");
    assert!(peer.head.starts_with("HTTP/1.1 101 "), "{}", peer.head);
    assert!(
        peer.head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "RFC 6455's example: {}",
        peer.head
    );
    assert!(!peer.head.to_lowercase().contains("sec-websocket-extensions"));

    assert_eq!(without("Upgrade: websocket\r\n").status, 400);
    assert_eq!(replaced("Upgrade: websocket", "Upgrade: h2c").status, 400);
    assert_eq!(without("Connection: Upgrade\r\n").status, 400);
    let old = replaced("Version: 13", "Version: 8");
    assert_eq!((old.status, old.header("sec-websocket-version")), (426, Some("13")));
    // RFC 9110 15.5.22, 7.8: it names the protocol, and the option that says that this is for the next hop alone.
    assert_eq!(
        (old.header("upgrade"), old.header("connection")),
        (Some("websocket"), Some("upgrade"))
    );
    assert_eq!(without("Sec-WebSocket-Version: 13\r\n").status, 426);
    assert_eq!(replaced(KEY, "c2hvcnQ=").status, 400);
    assert_eq!(replaced("Sec-WebSocket-Key", "X").status, 400);
    assert_eq!(
        ask(&|head| head.replace("\r\n\r\n", &format!("\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"))).status,
        400
    );
    assert_eq!(replaced("HTTP/1.1", "HTTP/1.0").status, 400);

    let ask = |extra: &str| {
        let head = handshake("/fiber").replace("\r\n\r\n", &format!("\r\n{extra}\r\n\r\n"));
        Peer::with(site.addr, head.as_bytes()).head
    };
    assert!(ask("Origin: http://TEST").starts_with("HTTP/1.1 101"), "the same host");
    assert!(ask("Origin: http://elsewhere").starts_with("HTTP/1.1 403"));
    assert!(ask("Origin: null").starts_with("HTTP/1.1 403"));
    let agreed = ask("Sec-WebSocket-Protocol: chat.v1, other\r\nSec-WebSocket-Protocol: chat.v2");
    assert!(agreed.contains("sec-websocket-protocol: chat.v2\r\n"), "{agreed}");
    let none = ask("Sec-WebSocket-Protocol: other");
    assert!(
        none.starts_with("HTTP/1.1 101") && !none.contains("sec-websocket-protocol"),
        "{none}"
    );
    let deflate = ask("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits");
    assert!(
        deflate.starts_with("HTTP/1.1 101") && !deflate.contains("xtensions"),
        "not offered, not agreed on: {deflate}"
    );
    let tokens = handshake("/fiber").replace("Connection: Upgrade", "Connection: keep-alive, UPGRADE");
    assert!(
        Peer::with(site.addr, tokens.as_bytes())
            .head
            .starts_with("HTTP/1.1 101")
    );
}

#[test]
fn an_origin_may_be_any_or_one_of_a_list() {
    let with = |origins: ws::Origins| {
        move |request: &mut Request<'_>| {
            let options = ws::Options {
                origins: origins.clone(),
                ..options()
            };
            options.upgrade_dormant(request, Echo)
        }
    };
    let list = ws::Origins::These(vec!["https://osier.example".into()]);
    let site = site(
        Router::new()
            .get("/any", with(ws::Origins::Any))
            .get("/list", with(list)),
    );
    let ask = |path: &str, origin: &str| {
        let head = handshake(path).replace("\r\n\r\n", &format!("\r\nOrigin: {origin}\r\n\r\n"));
        Peer::with(site.addr, head.as_bytes()).head[9..12].to_owned()
    };
    assert_eq!(ask("/any", "http://elsewhere"), "101");
    assert_eq!(ask("/list", "https://osier.example"), "101");
    assert_eq!(ask("/list", "http://osier.example"), "403");
    assert_eq!(ask("/list", "http://test"), "403");
}
