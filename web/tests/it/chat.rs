//! The chat over raw WebSockets: what guests see of each other, and what is refused.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Site, connect_narrowly, eventually, site_with};
use crate::ws_client::{Peer, handshake, masked};
use osier_web::chat::{Chat, Options};
use osier_web::{Request, Router, Server, Timeouts};

fn chat_site(options: Options) -> Site {
    let chat = Chat::with(options);
    let router = Router::new().get("/chat", chat.handler());
    site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"))
}

/// The next message as JSON.
fn next(peer: &mut Peer) -> serde_json::Value {
    let got = peer.frame().expect("a message");
    assert_eq!(got.0, 0x81, "{got:?}");
    serde_json::from_slice(&got.1).expect("JSON")
}

/// Returns the next message of a kind, and skips those before it.
fn next_of(peer: &mut Peer, kind: &str) -> serde_json::Value {
    loop {
        let message = next(peer);
        if message["is"] == kind {
            return message;
        }
    }
}

fn enter(site: &Site, room: &str, name: &str) -> (Peer, serde_json::Value) {
    enter_at(site.addr, room, name)
}

fn enter_at(addr: SocketAddr, room: &str, name: &str) -> (Peer, serde_json::Value) {
    let mut peer = Peer::open(addr, &format!("/chat?room={room}&name={name}"));
    assert!(peer.head.starts_with("HTTP/1.1 101"), "{}", peer.head);
    let first = next(&mut peer);
    assert_eq!(first["is"], "history", "it comes first");
    (peer, first["lines"].clone())
}

fn say(peer: &mut Peer, text: &str) {
    peer.text(&serde_json::json!({ "text": text }).to_string());
}

#[test]
fn guests_hear_each_other_in_their_room_and_newcomers_what_was_said() {
    let site = chat_site(Options {
        history: 3,
        burst: 100,
        ..Options::default()
    });
    let (mut ada, before) = enter(&site, "lobby", "Ada");
    assert_eq!(before, serde_json::json!([]));
    assert_eq!(next(&mut ada), serde_json::json!({"is": "here", "count": 1}));
    let (mut bob, _) = enter(&site, "", "Bob+%F0%9F%98%80");
    assert_eq!(next(&mut ada)["count"], 2);
    let (mut eve, _) = enter(&site, "elsewhere", "Eve");
    for n in 0..5 {
        say(&mut bob, &format!(" line {n} \"quoted\" <b> "));
        for peer in [&mut ada, &mut bob] {
            let line = next_of(peer, "line");
            assert_eq!(line["name"], "Bob 😀");
            assert_eq!(line["text"], format!("line {n} \"quoted\" <b>"));
            assert!(line["at"].as_u64().is_some_and(|at| at > 1_500_000_000_000), "{line}");
        }
    }
    let (_late, lines) = enter(&site, "lobby", "Late");
    let texts: Vec<_> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["text"].clone())
        .collect();
    assert_eq!(texts, [2, 3, 4].map(|n| format!("line {n} \"quoted\" <b>")));
    say(&mut eve, "alone");
    assert_eq!(next_of(&mut eve, "line")["text"], "alone");
    drop(bob);
    let mut counts = Vec::new();
    while counts.last() != Some(&2) {
        counts.push(next_of(&mut ada, "here")["count"].as_u64().unwrap());
    }
    assert_eq!(counts, [3, 2]);
}

#[test]
fn what_is_too_long_too_fast_or_no_line_is_not_said() {
    let site = chat_site(Options {
        line_bytes: 100,
        burst: 3,
        line_every: Duration::from_secs(3600),
        ..Options::default()
    });
    let (mut ada, _) = enter(&site, "lobby", "Ada");
    say(&mut ada, &"x".repeat(101));
    assert!(
        next_of(&mut ada, "notice")["text"]
            .as_str()
            .unwrap()
            .contains("100 bytes")
    );
    say(&mut ada, "   ");
    for n in 0..3 {
        say(&mut ada, &format!("{n}"));
        assert_eq!(next_of(&mut ada, "line")["text"], format!("{n}"));
    }
    say(&mut ada, "too fast");
    assert!(
        next_of(&mut ada, "notice")["text"]
            .as_str()
            .unwrap()
            .starts_with("Not so fast")
    );
    ada.text("no line");
    ada.expect_close(1003);
    let (mut bob, lines) = enter(&site, "lobby", "Bob");
    assert_eq!(lines.as_array().unwrap().len(), 3);
    bob.send(&masked(0x81, &[b'x'; 1000]));
    while let Some(got) = bob.frame() {
        if got.0 == 0x88 {
            assert_eq!(got.1[..2], 1009_u16.to_be_bytes());
            break;
        }
    }
}

#[test]
fn a_guest_that_takes_nothing_is_disconnected_and_counted() {
    const LINE: usize = 60_000;
    let chat = Chat::with(Options {
        line_bytes: LINE,
        burst: u32::MAX,
        ..Options::default()
    });
    let router = Router::new().get("/chat", chat.clone().handler());
    let timeouts = Timeouts {
        write: Duration::from_millis(300),
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let (mut ada, _) = enter(&site, "lobby", "Ada");
    let mut silent = connect_narrowly(site.addr);
    silent.write_all(handshake("/chat?name=Silent").as_bytes()).unwrap();
    eventually("it has come", || chat.stats().guests == 2);
    assert_eq!(chat.stats().rooms, 1);
    // Once the kernel keeps no more for it, the write to it waits, and then times out.
    let mut said = 0;
    eventually("it is disconnected", || {
        say(&mut ada, &"x".repeat(LINE));
        next_of(&mut ada, "line");
        said += 1;
        chat.stats().slow > 0
    });
    eventually("its seat is free", || chat.stats().guests == 1);
    assert_eq!((chat.stats().lines, chat.stats().rejected), (said, 0));
}

#[test]
fn no_burst_of_others_disconnects_a_guest_that_listens() {
    // On one worker, all speak before the listener has a turn. On two, they also speak while it takes its turn.
    for workers in [1, 2] {
        let chat = Chat::new();
        let router = Router::new().get("/chat", chat.clone().handler());
        let site = site_with(workers, Server::new(router), |server| server.bind("127.0.0.1:0"));
        let (mut ada, _) = enter(&site, "lobby", "Ada");
        let mut others: Vec<_> = (0..20).map(|_| enter(&site, "lobby", "Bob").0).collect();
        let burst: Vec<u8> = (0..10).flat_map(|_| masked(0x81, br#"{"text":"x"}"#)).collect();
        others.iter_mut().for_each(|other| other.send(&burst));
        for _ in 0..200 {
            assert_eq!(next_of(&mut ada, "line")["text"], "x");
        }
        assert_eq!((chat.stats().slow, chat.stats().lines), (0, 200), "{workers}");
    }
}

#[test]
fn a_request_that_is_no_handshake_opens_no_room() {
    let site = chat_site(Options {
        rooms_per_client: 1,
        ..Options::default()
    });
    let (_ada, _) = enter(&site, "one", "Ada");
    // The client may open no other room.
    let status = |head: &str| Peer::with(site.addr, head.as_bytes()).head[9..12].to_owned();
    let second = handshake("/chat?room=two");
    assert_eq!(status(&second), "429");
    let foreign = second.replace("\r\n\r\n", "\r\nOrigin: https://elsewhere.example\r\n\r\n");
    assert_eq!(status(&foreign), "403");
    assert_eq!(status("GET /chat?room=two HTTP/1.1\r\nHost: test\r\n\r\n"), "400");
}

#[test]
fn rooms_are_named_and_bounded() {
    let site = chat_site(Options {
        rooms: 2,
        ..Options::default()
    });
    let status =
        |query: &str| Peer::with(site.addr, handshake(&format!("/chat?{query}")).as_bytes()).head[9..12].to_owned();
    assert_eq!(status("room=No+Such"), "400");
    assert_eq!(status(&format!("room={}", "a".repeat(33))), "400");
    let (one, _) = enter(&site, "one", "A");
    let (_two, _) = enter(&site, "two", "B");
    assert_eq!(status("room=three"), "503");
    assert_eq!(status("room=lobby"), "101", "the lobby has a place of its own");
    drop(one);
    eventually("the empty room is given up", || status("room=three") == "101");
    assert_eq!(site.get("/chat?room=two").status, 400, "no handshake");
}

#[test]
fn a_client_opens_so_many_rooms_and_an_empty_room_forgets() {
    let site = chat_site(Options {
        rooms_per_client: 2,
        ..Options::default()
    });
    let status =
        |query: &str| Peer::with(site.addr, handshake(&format!("/chat?{query}")).as_bytes()).head[9..12].to_owned();
    let (mut one, _) = enter(&site, "one", "A");
    say(&mut one, "remember me");
    next_of(&mut one, "line");
    let (_two, _) = enter(&site, "two", "A");
    assert_eq!(status("room=three"), "429");
    assert_eq!(status("room=two"), "101", "it is open");
    assert_eq!(status(""), "101", "the lobby");
    drop(one);
    eventually("the empty room leaves with its history", || {
        enter(&site, "one", "A").1 == serde_json::json!([])
    });
}

/// Ends the talk, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn who_comes_in_the_middle_of_a_talk_misses_nothing_and_hears_nothing_twice() {
    let site = chat_site(Options {
        history: 8,
        burst: u32::MAX,
        ..Options::default()
    });
    let (addr, is_over) = (site.addr, AtomicBool::new(false));
    let is_over = &is_over;
    let number = |line: &serde_json::Value| line["text"].as_str().unwrap().parse::<u32>().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut ada, _) = enter_at(addr, "lobby", "Ada");
            for n in 0_u32.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                say(&mut ada, &n.to_string());
                assert_eq!(number(&next_of(&mut ada, "line")), n);
            }
        });
        let _over = Over(is_over);
        let mut met = 0;
        while met < 300 {
            let (mut guest, lines) = enter(&site, "lobby", "Bob");
            let Some(last) = lines.as_array().unwrap().last() else {
                continue;
            };
            met += 1;
            assert_eq!(number(&next_of(&mut guest, "line")), number(last) + 1);
        }
    });
}

#[test]
fn nobody_is_woken_while_nobody_speaks() {
    let chat = Chat::new();
    let turns = |_: &mut Request<'_>| {
        let workers = osier::inspect::metrics().expect("a worker asks").workers;
        workers.iter().map(|worker| worker.turns).sum::<u64>().to_string()
    };
    let router = Router::new().get("/turns", turns);
    let router = router.get("/chat", chat.handler());
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut guests: Vec<Peer> = (0..20).map(|_| enter(&site, "quiet", "Ada").0).collect();
    // Everybody has heard of the last one, and nothing is under way.
    for guest in &mut guests {
        while next_of(guest, "here")["count"] != 20 {}
    }
    let mut client = site.connect();
    let mut turns = || client.get("/turns").text().parse::<u64>().unwrap();
    let before = turns();
    // Real time: a loop that turns for nothing has its chance.
    std::thread::sleep(Duration::from_millis(500));
    // The second request's own, and the clock's.
    let woken = turns() - before;
    assert!(woken < 5, "{woken} turns of the loops in half a second without a line");
}

#[test]
fn a_burst_of_lines_from_another_server_disconnects_no_guest() {
    let Some(broker) = testkit::Redis::start(&[]) else {
        return;
    };
    let start = || {
        let chat = Chat::with(Options {
            burst: 1000,
            ..Options::default()
        });
        let address = osier_web::Address::Unix(broker.socket());
        let chat = chat.shared(osier_web::pubsub::Options::new(address), "lines");
        let router = Router::new().get("/chat", chat.handler());
        site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"))
    };
    let (near, far) = (start(), start());
    let ((mut ada, _), (mut bob, _)) = (enter(&near, "lobby", "Ada"), enter(&far, "lobby", "Bob"));
    broker.wait_for_listeners("lines", 2);
    let lines: Vec<u8> = (0..500)
        .flat_map(|n| masked(0x81, format!(r#"{{"text":"{n}"}}"#).as_bytes()))
        .collect();
    ada.send(&lines);
    for n in 0..500 {
        assert_eq!(next_of(&mut bob, "line")["text"], n.to_string());
    }
}
