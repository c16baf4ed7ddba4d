//! The two styles of WebSocket session beside the protocol: waiting for other events, pings,
//! backpressure, ends, and low use of memory.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, eventually, site, site_with};
use crate::ws_client::{Got, Peer, masked};
use osier::pubsub::{Policy, Pushed, Subscriber, Topic};
use osier_web::{CloseReason, ConnectionEvent, Request, Router, Server, Timeouts, ws};

fn quick() -> ws::Options {
    ws::Options {
        close_within: Duration::from_millis(200),
        ..ws::Options::default()
    }
}

#[test]
fn a_loop_waits_for_its_client_and_a_topic_at_once() {
    let room = Topic::new();
    let chat = room.clone();
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        let room = chat.clone();
        quick().upgrade(request, move |socket| {
            let mut others = room.subscribe(64, Policy::Disconnect);
            loop {
                osier::select! {
                    message = socket.recv_async() => match message? {
                        Some(message) => drop(room.publish(ws::Frame::from(message))),
                        None => return Ok(()),
                    },
                    frame = others.recv_async() => match frame {
                        Ok(frame) => socket.send(frame)?,
                        Err(_) => return socket.close(ws::Close::TRY_AGAIN, "too slow"),
                    },
                }
            }
        })
    });
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::open(site.addr, "/")).collect();
    eventually("all are in the room", || room.subscribers() == 8);
    for round in 0..20 {
        let text = format!("round {round}");
        // The message is in two frames with time between. The wait for the socket is dropped and
        // taken up in the middle of it.
        peers[round % 8].send(&masked(0x01, &text.as_bytes()[..3]));
        room.publish(ws::Frame::text("from the server"));
        peers.iter_mut().for_each(|peer| peer.expect_text("from the server"));
        peers[round % 8].send(&masked(0x80, &text.as_bytes()[3..]));
        peers.iter_mut().for_each(|peer| peer.expect_text(&text));
    }
    drop(peers);
    eventually("all have left", || room.subscribers() == 0);
}

/// Reports the calls of its methods.
struct Recorder {
    events: mpsc::Sender<String>,
    senders: Arc<Mutex<Vec<ws::Sender>>>,
    other: Option<Subscriber<u32>>,
}

impl Recorder {
    fn say(&self, what: impl Into<String>) {
        let _ = self.events.send(what.into());
    }
}

impl ws::Callbacks for Recorder {
    fn on_open(&mut self, sender: &ws::Sender) {
        self.senders.lock().unwrap().push(sender.clone());
        self.say("open");
        sender.send("welcome");
    }

    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        let text = message.as_text().unwrap_or("bytes").to_owned();
        match text.as_str() {
            "bye" => sender.close(4000, "as you like"),
            "panic" => panic!("as the client likes"),
            // Other messages come while the handler waits.
            "sleep" => osier::sleep(Duration::from_millis(20)),
            _ => {}
        }
        sender.send(text.to_uppercase());
        self.say(text);
    }

    fn on_close(&mut self, end: &ws::End) {
        self.say(format!("{end:?}"));
    }

    fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.other.as_mut().map_or(Poll::Pending, |other| other.poll_ready(cx))
    }

    fn on_wake(&mut self, sender: &ws::Sender) {
        while let Some(Ok(number)) = self.other.as_mut().map(Subscriber::try_recv) {
            sender.send(format!("number {number}"));
        }
    }
}

struct Recorded {
    site: crate::common::Site,
    events: mpsc::Receiver<String>,
    senders: Arc<Mutex<Vec<ws::Sender>>>,
    numbers: Topic<u32>,
}

fn recorded(options: ws::Options) -> Recorded {
    let (tell, events) = mpsc::channel();
    let senders = Arc::new(Mutex::new(Vec::new()));
    let numbers = Topic::new();
    let parts = (Mutex::new(tell), senders.clone(), numbers.clone());
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        let recorder = Recorder {
            events: parts.0.lock().unwrap().clone(),
            senders: parts.1.clone(),
            other: Some(parts.2.subscribe(8, Policy::DropOldest)),
        };
        options.upgrade_dormant(request, recorder)
    });
    Recorded {
        site: site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0")),
        events,
        senders,
        numbers,
    }
}

impl Recorded {
    fn expect(&self, what: &str) {
        assert_eq!(self.events.recv_timeout(PATIENCE).as_deref(), Ok(what));
    }
}

#[test]
fn a_handler_is_called_for_what_happens_and_its_sender_works_from_anywhere() {
    let it = recorded(quick());
    let mut peer = Peer::open(it.site.addr, "/");
    it.expect("open");
    peer.expect_text("welcome");
    peer.text("hello");
    it.expect("hello");
    peer.expect_text("HELLO");
    peer.text("sleep"); // the handler suspends, and its client's next message waits
    peer.text("after");
    it.expect("sleep");
    it.expect("after");
    peer.expect_text("SLEEP");
    peer.expect_text("AFTER");

    let sender = it.senders.lock().unwrap()[0].clone();
    thread::spawn(move || assert_eq!(sender.send("from a thread"), Pushed::Queued))
        .join()
        .unwrap();
    peer.expect_text("from a thread");
    it.numbers.publish(7);
    peer.expect_text("number 7");

    peer.text("bye");
    let close = peer.frame().unwrap();
    assert_eq!(close, Got(0x88, [&4000_u16.to_be_bytes()[..], b"as you like"].concat()));
    peer.send(&masked(0x88, &4000_u16.to_be_bytes()));
    peer.expect_end();
    it.expect("bye");
    it.expect(r#"Server(Close { code: 4000, reason: "as you like" })"#);
    let sender = &it.senders.lock().unwrap()[0];
    eventually("the sender knows", || sender.is_closed());
    assert_eq!((sender.send("too late"), it.numbers.subscribers()), (Pushed::Ended, 0));
}

#[test]
fn every_end_is_told_once() {
    let it = recorded(quick());
    let start = || {
        let mut peer = Peer::open(it.site.addr, "/");
        peer.expect_text("welcome");
        it.expect("open");
        peer
    };
    drop(start());
    it.expect("Lost");
    let mut peer = start();
    peer.send(&masked(0x88, b""));
    assert_eq!(peer.frame(), Some(Got(0x88, vec![])));
    it.expect(r#"Client(Close { code: 1005, reason: "" })"#);
    let mut peer = start();
    peer.send(&masked(0xB1, b"reserved bits"));
    peer.expect_close(1002);
    it.expect(
        r#"ProtocolError(Close { code: 1002, reason: "a reserved bit is set, and no extension was agreed on" })"#,
    );
    let mut peer = start();
    peer.text("panic");
    peer.expect_close(1011);
    it.expect("Failed");
    // A peer that does not reply to a close frame is not waited for long.
    let mut peer = start();
    peer.text("bye");
    it.expect("bye");
    assert_eq!(peer.frame().unwrap().0, 0x88);
    it.expect(r#"Server(Close { code: 4000, reason: "as you like" })"#);
    assert!(it.events.try_recv().is_err(), "nothing is reported twice");
}

/// Tells why it has ended.
struct Tells(mpsc::Sender<String>);

impl ws::Callbacks for Tells {
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        match message.as_text() {
            Some("bye") => sender.close(4000, "as you like"),
            Some("much") => (0..MUCH).for_each(|n| _ = sender.send(big(n))),
            _ => panic!("as the client likes"),
        }
    }
    fn on_close(&mut self, end: &ws::End) {
        self.0.send(format!("{end:?}")).unwrap();
    }
}

fn tells(socket: &mut ws::WebSocket<'_>) -> std::io::Result<()> {
    while let Some(message) = socket.read()? {
        match message.as_text() {
            Some("bye") => socket.close(4000, "as you like")?,
            Some("much") => (0..MUCH).try_for_each(|n| socket.send(big(n)))?,
            _ => panic!("as the client likes"),
        }
    }
    Ok(())
}

#[test]
fn both_styles_and_the_server_tell_why_a_websocket_ends() {
    let (tell, told) = mpsc::channel();
    let (reason, reasons) = mpsc::channel();
    let tell = Mutex::new(tell);
    let router = Router::new().get("/{style}/{milliseconds}", move |request: &mut Request<'_>| {
        let tell = tell.lock().unwrap().clone();
        let options = ws::Options {
            ping_after: Duration::from_millis(request.param("milliseconds").unwrap().parse().unwrap()),
            pong_within: Duration::from_millis(10),
            ..quick()
        };
        if request.param("style").as_deref() == Some("callbacks") {
            return options.upgrade_dormant(request, Tells(tell));
        }
        options.upgrade(request, move |socket| {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| tells(socket)));
            let end = socket.closed().map_or("Failed".into(), |end| format!("{end:?}"));
            tell.send(end).unwrap();
            outcome.unwrap_or_else(|payload| panic::resume_unwind(payload))
        })
    });
    let timeouts = Timeouts {
        write: Duration::from_millis(300),
        ..Timeouts::default()
    };
    let server = Server::new(router).timeouts(timeouts).on_connection(move |event| {
        if let ConnectionEvent::Closed(why) = event {
            reason.send(why).unwrap();
        }
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let by = |who: &str, code: u16, why: &str| format!("{who}(Close {{ code: {code}, reason: {why:?} }})");
    for style in ["callbacks", "closure"] {
        let check = |rest: &str, act: &dyn Fn(&mut Peer), end: &str, reason: CloseReason| {
            let mut peer = Peer::open(site.addr, &format!("/{style}/{rest}"));
            act(&mut peer);
            assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok(end), "{style}");
            drop(peer);
            assert_eq!(reasons.recv_timeout(PATIENCE), Ok(reason), "{style}, {end}");
        };
        let says = |text: &'static str| move |peer: &mut Peer| peer.text(text);
        let closes = |peer: &mut Peer| peer.send(&masked(0x88, b"\x0f\xa1enough"));
        let leaves = |peer: &mut Peer| peer.stream.shutdown(Shutdown::Both).unwrap();
        let errs = |peer: &mut Peer| peer.send(&masked(0xB1, b"reserved bits"));
        let (client, server) = (by("Client", 4001, "enough"), by("Server", 4000, "as you like"));
        let error = by(
            "ProtocolError",
            1002,
            "a reserved bit is set, and no extension was agreed on",
        );
        check("60000", &closes, &client, CloseReason::Upgraded);
        check("60000", &says("bye"), &server, CloseReason::Upgraded);
        check("60000", &leaves, "Lost", CloseReason::Client);
        check("10", &|_| (), "PingTimeout", CloseReason::PingTimeout);
        check("60000", &says("much"), "TooSlow", CloseReason::TooSlow);
        check("60000", &errs, &error, CloseReason::ProtocolError);
        check("60000", &says("panic"), "Failed", CloseReason::Failed);
    }
    let peers = ["/callbacks/60000", "/closure/60000"].map(|path| Peer::open(site.addr, path));
    site.stop.shutdown();
    for _ in peers {
        assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok("Shutdown"));
        assert_eq!(reasons.recv_timeout(PATIENCE), Ok(CloseReason::Shutdown));
    }
}

#[test]
fn a_server_that_stops_says_goodbye_in_both_styles() {
    let it = recorded(quick());
    let mut peer = Peer::open(it.site.addr, "/");
    peer.expect_text("welcome");
    it.site.stop.shutdown();
    assert_eq!(peer.frame().unwrap().1[..2], 1001_u16.to_be_bytes());
    it.expect("open");
    it.expect("Shutdown");

    let read = |request: &mut Request<'_>| quick().upgrade(request, |socket| socket.read().map(|_| ()));
    let site = site(Router::new().get("/", read));
    let mut peer = Peer::open(site.addr, "/");
    peer.send(&masked(0x89, b"up?"));
    assert_eq!(peer.frame().unwrap().0, 0x8A);
    site.stop.shutdown();
    assert_eq!(peer.frame().unwrap().1[..2], 1001_u16.to_be_bytes());
}

/// A reset would stop its writes, and many clients read nothing more then.
#[test]
fn a_client_that_is_sending_when_the_server_stops_gets_its_goodbye_and_a_clean_end() {
    struct Rests;
    impl ws::Callbacks for Rests {
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    let site = site(Router::new().get("/", |request: &mut Request<'_>| quick().upgrade_dormant(request, Rests)));
    let mut peer = Peer::open(site.addr, "/");
    let message = masked(0x82, &[0; 1000]);
    peer.send(&message[..500]);
    site.stop.shutdown();
    assert_eq!(peer.frame().unwrap().1[..2], 1001_u16.to_be_bytes());
    peer.send(&message[500..]);
    (0..10_000).for_each(|_| peer.send(&message));
    assert_eq!(peer.stream.read(&mut [0]).expect("a clean end"), 0);
}

#[test]
fn every_websocket_ends_within_the_drain_of_a_server_that_stops() {
    let reads = |request: &mut Request<'_>| quick().upgrade(request, |socket| socket.read().map(drop));
    let sends = |request: &mut Request<'_>| {
        quick().upgrade(request, |socket| {
            loop {
                socket.send("tick")?;
                osier::sleep(Duration::from_millis(10));
            }
        })
    };
    let waits = |request: &mut Request<'_>| {
        let shutdown = Arc::clone(request.shutdown());
        quick().upgrade(request, move |socket| {
            shutdown.wait();
            socket.close(ws::Close::GOING_AWAY, "in the handler's own words")
        })
    };
    struct Rests;
    impl ws::Callbacks for Rests {
        fn on_message(&mut self, _: ws::Message, _: &ws::Sender) {}
    }
    let rests = |request: &mut Request<'_>| quick().upgrade_dormant(request, Rests);
    let router = Router::new()
        .get("/reads", reads)
        .get("/sends", sends)
        .get("/waits", waits)
        .get("/rests", rests)
        .get("/chat", osier_web::chat::Chat::new().handler());
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let paths = ["/reads", "/sends", "/waits", "/rests", "/chat"];
    let mut peers: Vec<(&str, Peer)> = (0..4)
        .flat_map(|_| paths)
        .map(|path| (path, Peer::open(site.addr, path)))
        .collect();
    for (path, peer) in &mut peers {
        assert!(peer.head.starts_with("HTTP/1.1 101"), "{path}: {}", peer.head);
    }
    let start = std::time::Instant::now();
    site.stop.shutdown();
    for (path, peer) in &mut peers {
        // Messages that were sent before come first. No client replies to the close frame.
        let close = std::iter::from_fn(|| peer.frame()).find(|got| got.0 == 0x88);
        let close = close.unwrap_or_else(|| panic!("{path}: no close frame"));
        assert_eq!(close.1[..2], 1001_u16.to_be_bytes(), "{path}");
        peer.expect_end();
    }
    assert_eq!(site.ended.recv_timeout(PATIENCE), Ok(0), "no connection was cut");
    // The drain may take 10 s, and a ping comes after 30 s.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_silent_client_is_pinged_and_a_dead_one_is_let_go() {
    let options = ws::Options {
        ping_after: Duration::from_millis(50),
        // This client has to be faster.
        pong_within: Duration::from_secs(2),
        ..quick()
    };
    let ends = Arc::new(AtomicUsize::new(0));
    let (fiber, counted) = (options.clone(), ends.clone());
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        let ends = counted.clone();
        fiber.upgrade(request, move |socket| {
            let outcome = socket.read();
            assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
            ends.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    });
    let site = site(router);
    let it = recorded(options);
    for (addr, is_dormant) in [(site.addr, false), (it.site.addr, true)] {
        let mut peer = Peer::open(addr, "/");
        if is_dormant {
            peer.expect_text("welcome");
        }
        for _ in 0..3 {
            assert_eq!(peer.frame(), Some(Got(0x89, vec![])));
            peer.send(&masked(0x8A, b""));
        }
        assert_eq!(peer.frame(), Some(Got(0x89, vec![])));
        peer.expect_end();
    }
    eventually("the loop has ended", || ends.load(Ordering::SeqCst) == 1);
    it.expect("open");
    it.expect("PingTimeout");
}

/// More messages than the buffers of a loopback connection hold.
const MUCH: usize = 400;

fn big(n: usize) -> String {
    format!("{n:08}").repeat(8 << 10) // 64 KiB
}

#[test]
fn a_loop_that_sends_waits_for_its_client() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        let sent = counted.clone();
        quick().upgrade(request, move |socket| {
            for n in 0..MUCH {
                socket.send(big(n))?;
                sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        })
    });
    let site = site(router);
    let mut peer = Peer::open(site.addr, "/");
    let stands = AtomicUsize::new(0);
    eventually("it has stopped sending", || {
        // Two looks so far apart have to agree.
        thread::sleep(Duration::from_millis(50));
        let now = sent.load(Ordering::SeqCst);
        now > 0 && stands.swap(now, Ordering::SeqCst) == now
    });
    assert!(sent.load(Ordering::SeqCst) < MUCH, "the client has read nothing");
    (0..MUCH).for_each(|n| peer.expect_text(&big(n)));
    peer.expect_close(1000);
}

#[test]
fn a_slow_client_of_a_handler_meets_the_policy_and_nobody_waits_for_it() {
    for policy in [Policy::Disconnect, Policy::DropOldest, Policy::DropNewest] {
        let it = recorded(ws::Options {
            queue: 8,
            policy,
            ..quick()
        });
        let mut peer = Peer::open(it.site.addr, "/");
        peer.expect_text("welcome");
        let sender = it.senders.lock().unwrap()[0].clone();
        let outcomes: Vec<Pushed> = (0..MUCH).map(|n| sender.send(big(n))).collect();
        let refused = outcomes.iter().filter(|outcome| **outcome != Pushed::Queued).count();
        assert!(refused > 0, "the client has not read, and the queue is short");
        let numbers = |peer: &mut Peer| {
            let mut numbers = Vec::new();
            loop {
                let got = peer.frame().expect("a message, or a close frame");
                if got.0 != 0x81 {
                    return (numbers, got);
                }
                let number: usize = str::from_utf8(&got.1[..8]).unwrap().parse().unwrap();
                numbers.push(number);
                if number == MUCH - 1 {
                    return (numbers, got);
                }
            }
        };
        match policy {
            Policy::Disconnect => {
                let (numbers, close) = numbers(&mut peer);
                assert_eq!(close.1[..2], ws::Close::TRY_AGAIN.to_be_bytes());
                assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>(), "no gap before the end");
                assert_eq!(sender.dropped(), 1);
                it.expect("open");
                it.expect("TooSlow");
            }
            Policy::DropOldest => {
                let (numbers, _) = numbers(&mut peer);
                assert!(
                    numbers.is_sorted() && numbers.ends_with(&[MUCH - 2, MUCH - 1]),
                    "the latest: {numbers:?}"
                );
                assert_eq!(sender.dropped() as usize, MUCH - numbers.len());
            }
            Policy::DropNewest => {
                // The close finds no room either, and follows the queued messages.
                sender.close(4001, "enough");
                let (numbers, mut close) = numbers(&mut peer);
                if close.0 == 0x81 {
                    close = peer.frame().expect("a close frame after the last");
                }
                let queued: Vec<usize> = (0..MUCH).filter(|n| outcomes[*n] == Pushed::Queued).collect();
                assert_eq!(numbers, queued, "what was taken, and nothing that was refused");
                assert_eq!((close.0, &close.1[..2]), (0x88, &4001_u16.to_be_bytes()[..]));
            }
        }
    }
}

#[test]
fn one_frame_is_shared_by_all_who_get_it() {
    let room: Topic<ws::Frame> = Topic::new();
    struct Guest(Topic<ws::Frame>);
    impl ws::Callbacks for Guest {
        fn on_open(&mut self, sender: &ws::Sender) {
            assert!(sender.join(&self.0));
        }
        fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
            match message.as_text() {
                Some("leave") => assert!(sender.leave(&self.0)),
                _ => drop(self.0.publish(message.into())),
            }
        }
    }
    let joined = room.clone();
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        quick().upgrade_dormant(request, Guest(joined.clone()))
    });
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut peers: Vec<Peer> = (0..50).map(|_| Peer::open(site.addr, "/")).collect();
    eventually("all are in the room", || room.subscribers() == 50);
    for n in 0..20 {
        peers[n].text(&format!("{n}"));
        peers.iter_mut().for_each(|peer| peer.expect_text(&format!("{n}")));
    }
    peers[0].text("leave");
    eventually("one has left", || room.subscribers() == 49);
    assert_eq!(room.publish(ws::Frame::text("without you")), 49);
    peers[1..].iter_mut().for_each(|peer| peer.expect_text("without you"));
    drop(peers);
    eventually("nobody is there", || room.subscribers() == 0);
}

#[test]
fn a_message_that_is_cut_by_a_slow_client_waits_without_a_stack() {
    let it = recorded(quick());
    let mut peer = Peer::open(it.site.addr, "/");
    peer.expect_text("welcome");
    for byte in masked(0x81, "grüße, langsam".as_bytes()) {
        peer.stream.write_all(&[byte]).unwrap();
        crate::common::taken(&peer.stream);
    }
    peer.expect_text("GRÜSSE, LANGSAM");
}

#[test]
fn timeouts_of_the_server_for_requests_do_not_end_a_websocket() {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        quick().upgrade(request, |socket| {
            while let Some(message) = socket.read()? {
                socket.send(message)?;
            }
            Ok(())
        })
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(20),
        ..Timeouts::default()
    };
    let site = site_with(1, Server::new(router).timeouts(timeouts), |server| {
        server.bind("127.0.0.1:0")
    });
    let mut peer = Peer::open(site.addr, "/");
    // The connection outlives later ones.
    for _ in 0..3 {
        let mut idle = site.connect();
        assert_eq!(std::io::Read::read(&mut idle.stream, &mut [0]).unwrap(), 0);
    }
    peer.text("still");
    peer.expect_text("still");
}

#[test]
fn a_burst_of_messages_is_answered_whole_however_short_the_queue() {
    struct Echo;
    impl ws::Callbacks for Echo {
        fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
            sender.send(message);
        }
    }
    let short = || ws::Options { queue: 4, ..quick() };
    let fiber = move |request: &mut Request<'_>| {
        short().upgrade(request, |socket| {
            while let Some(message) = socket.read()? {
                socket.send(message)?;
            }
            Ok(())
        })
    };
    let dormant = move |request: &mut Request<'_>| short().upgrade_dormant(request, Echo);
    let site = site(Router::new().get("/fiber", fiber).get("/dormant", dormant));
    let pings: Vec<u8> = (0..500_u16).flat_map(|n| masked(0x89, &n.to_be_bytes())).collect();
    let texts: Vec<u8> = (0..500).flat_map(|n| masked(0x81, format!("{n}").as_bytes())).collect();
    for path in ["/fiber", "/dormant"] {
        let mut peer = Peer::open(site.addr, path);
        peer.send(&pings);
        (0..500_u16).for_each(|n| assert_eq!(peer.frame(), Some(Got(0x8A, n.to_be_bytes().to_vec())), "{path}"));
        peer.send(&texts);
        (0..500).for_each(|n| peer.expect_text(&format!("{n}")));
    }
}

#[test]
fn a_closure_that_panics_says_so_to_its_client_and_to_the_log() {
    let site = site(Router::new().get("/", |request: &mut Request<'_>| {
        quick().upgrade(request, |socket| panic!("a test panics at {:?}", socket.read()?))
    }));
    let mut peer = Peer::open(site.addr, "/");
    peer.text("x");
    peer.expect_close(1011);
    let line = format!(
        "the websocket of {} panicked: a test panics at ",
        peer.stream.local_addr().unwrap()
    );
    assert!(site.logged(&line));
}

/// Panics when its client's path says so, and when it is notified of the end.
struct Panics {
    place: String,
    wakes: u32,
}

impl Panics {
    fn at(&self, place: &str) {
        assert!(self.place != place, "a test panics in {place}");
    }
}

impl ws::Callbacks for Panics {
    fn on_open(&mut self, sender: &ws::Sender) {
        self.at("open");
        sender.send("welcome");
    }

    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        self.at("message");
        sender.send(message);
    }

    fn on_close(&mut self, _: &ws::End) {
        assert!(self.place == "never" || self.place == "storm", "a test panics in close");
    }

    fn on_wake(&mut self, _: &ws::Sender) {
        self.at("wake");
        self.wakes += 1;
    }

    fn poll_woken(&mut self, _: &mut Context<'_>) -> Poll<()> {
        self.at("poll");
        match &*self.place {
            "wake" | "storm" => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

#[test]
fn a_handler_that_panics_or_never_rests_takes_nobody_along() {
    let router = Router::new().get("/{place}", |request: &mut Request<'_>| {
        let place = request.param("place").unwrap_or_default().to_string();
        quick().upgrade_dormant(request, Panics { place, wakes: 0 })
    });
    let site = site_with(1, Server::new(router), |server| server.bind("127.0.0.1:0"));
    let mut well = Peer::open(site.addr, "/never");
    well.expect_text("welcome");
    for place in ["open", "message", "poll", "wake", "close"] {
        for _ in 0..3 {
            let mut peer = Peer::open(site.addr, &format!("/{place}"));
            if place == "message" || place == "close" {
                peer.expect_text("welcome");
                peer.text("go on");
            }
            if place == "close" {
                peer.expect_text("go on");
                peer.send(&masked(0x88, b""));
            }
            // It ends, whatever was sent before.
            let last = std::iter::from_fn(|| peer.frame()).last();
            if place != "close" {
                assert_eq!(last, Some(Got(0x88, 1011_u16.to_be_bytes().to_vec())), "{place}");
                let line = format!(
                    "the websocket of {} panicked: a test panics in {place}",
                    peer.stream.local_addr().unwrap()
                );
                assert!(site.logged(&line), "{place}");
            }
            well.text(place);
            well.expect_text(place);
        }
    }
    let mut storms: Vec<_> = (0..3).map(|_| Peer::open(site.addr, "/storm")).collect();
    for storm in &mut storms {
        storm.expect_text("welcome");
        storm.text("still heard");
        storm.expect_text("still heard");
    }
    well.text("here");
    well.expect_text("here");
}

#[test]
fn a_loop_that_does_not_read_for_long_gives_its_client_time_for_the_pong() {
    let options = ws::Options {
        ping_after: Duration::from_millis(10),
        pong_within: Duration::from_secs(3),
        ..quick()
    };
    let pause = options.ping_after + options.pong_within + Duration::from_millis(100);
    let router = Router::new().get("/", move |request: &mut Request<'_>| {
        options.upgrade(request, move |socket| {
            osier::sleep(pause);
            assert_eq!(socket.read()?, Some("here".into()));
            Ok(())
        })
    });
    let site = site(router);
    let mut peer = Peer::open(site.addr, "/");
    assert_eq!(peer.frame(), Some(Got(0x89, vec![])));
    peer.send(&masked(0x8A, b""));
    peer.text("here");
    while peer.frame().expect("a close frame").1 != 1000_u16.to_be_bytes() {}
}

/// A client that sends faster than the server reads, and never closes.
#[test]
fn a_client_that_goes_on_sending_after_the_close_frame_is_let_go() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let router = Router::new().get("/{style}", move |request: &mut Request<'_>| {
        let tell = tell.lock().unwrap().clone();
        if request.param("style").as_deref() == Some("callbacks") {
            return quick().upgrade_dormant(request, Tells(tell));
        }
        quick().upgrade(request, move |socket| {
            let outcome = tells(socket);
            tell.send(format!("{:?}", socket.closed().unwrap())).unwrap();
            outcome
        })
    });
    let site = site(router);
    for style in ["/callbacks", "/closure"] {
        let mut peer = Peer::open(site.addr, style);
        peer.text("bye");
        let pongs = masked(0x8A, b"").repeat(20_000);
        let sender = thread::spawn(move || while peer.stream.write_all(&pongs).is_ok() {});
        let end = r#"Server(Close { code: 4000, reason: "as you like" })"#;
        assert_eq!(told.recv_timeout(PATIENCE).as_deref(), Ok(end), "{style}");
        sender.join().unwrap();
    }
}
