//! Chat rooms over a real Redis server: several processes, and a broker that dies and comes back
//! while each room goes on within its process. A scripted broker causes the failures that a real one
//! does not have on demand.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::broker::Scripted;
use crate::common::eventually_on_fiber as eventually;
use osier::pubsub::{Policy, Subscriber};
use osier::sync::mpsc;
use osier_web::pubsub::{Options, Redis, Room};
use osier_web::tls::Connector;
use osier_web::wrap::session;
use osier_web::{Address, ws};
use testkit::Redis as Broker;

const PATIENCE: Duration = Duration::from_secs(30);

fn address(broker: &Broker) -> Address {
    Address::Unix(broker.socket())
}

type Lines = Arc<Mutex<Vec<String>>>;

fn connect(address: Address, queue: usize) -> (Redis, Lines) {
    let lines = Lines::default();
    let log = lines.clone();
    let options = Options {
        queue,
        log: Box::new(move |line| log.lock().unwrap().push(line.to_string())),
        ..Options::new(address)
    };
    (options.connect(), lines)
}

fn has(lines: &Lines, text: &str) -> usize {
    lines.lock().unwrap().iter().filter(|line| line.contains(text)).count()
}

fn drain(subscriber: &mut Subscriber<String>) -> Vec<String> {
    std::iter::from_fn(|| subscriber.try_recv().ok()).collect()
}

fn shared(room: &Room<String>) {
    eventually("the broker tells of the room", || room.is_shared());
}

/// Another process: publishes each line it reads, and prints each message it gets. It is this very program, run again.
struct Other {
    child: Child,
    input: ChildStdin,
    /// Waited for by a fiber on whose worker the rooms' fibers may be.
    heard: mpsc::Receiver<String>,
}

const ROOM_OF_CHILD: &str = "OSIER_TEST_ROOM_OF_CHILD";

/// The program that [`Other`] runs, in the form of a test. It does nothing without its variable.
#[test]
fn child_process() {
    let Ok(socket) = std::env::var(ROOM_OF_CHILD) else {
        return;
    };
    osier::run(|| {
        let redis = Redis::connect(Address::Unix(socket.into()));
        let room = redis.room::<String>("lobby");
        let mut subscriber = room.subscribe(10_000, Policy::DropOldest);
        shared(&room);
        println!("\nroom: ready");
        let printing = osier::spawn(move || {
            while let Ok(message) = subscriber.recv() {
                println!("\nroom: {message}");
            }
        });
        osier::unblock(move || {
            std::io::stdin().lines().map_while(Result::ok).for_each(|line| {
                room.publish(line);
            });
        });
        printing.cancel();
    });
}

impl Other {
    fn start(broker: &Broker) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pubsub_redis::child_process", "--nocapture"])
            .env(ROOM_OF_CHILD, broker.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, heard) = mpsc::unbounded();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(message) = line.strip_prefix("room: ") {
                    let _ = tell.send(message.to_owned());
                }
            }
        });
        let input = child.stdin.take().unwrap();
        let mut other = Other { child, input, heard };
        assert_eq!(other.next(), "ready");
        other
    }

    fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    fn next(&mut self) -> String {
        let heard = &mut self.heard;
        heard.recv_timeout(PATIENCE).expect("the other process speaks")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

#[test]
fn two_processes_share_a_room() {
    let Some(broker) = Broker::start(&[]) else { return };
    let mut other = Other::start(&broker);
    osier::run(|| {
        let (redis, _) = connect(address(&broker), 1000);
        let room = redis.room::<String>("lobby");
        let mut here = room.subscribe(10_000, Policy::DropOldest);
        shared(&room);
        for n in 0..200 {
            room.publish(format!("ours {n}"));
            assert_eq!(
                here.try_recv(),
                Ok(format!("ours {n}")),
                "at once, and not by way of the broker"
            );
            other.say(&format!("theirs {n}"));
        }
        let theirs: Vec<String> = (0..200)
            .map(|_| here.recv_timeout(PATIENCE).unwrap().expect("theirs"))
            .collect();
        assert_eq!(theirs, (0..200).map(|n| format!("theirs {n}")).collect::<Vec<_>>());
        let heard: Vec<String> = (0..400).map(|_| other.next()).collect();
        for whose in ["ours", "theirs"] {
            let of: Vec<_> = heard.iter().filter(|line| line.starts_with(whose)).cloned().collect();
            assert_eq!(
                of,
                (0..200).map(|n| format!("{whose} {n}")).collect::<Vec<_>>(),
                "each once, in order"
            );
        }
        // An echo would come by now: another round through the broker has come back after it.
        other.say("last");
        assert_eq!(here.recv_timeout(PATIENCE), Ok(Some("last".into())));
        assert_eq!(drain(&mut here), Vec::<String>::new());
    });
}

#[test]
fn a_broker_that_dies_is_missed_by_nobody_here_and_found_again() {
    let Some(mut broker) = Broker::start(&[]) else { return };
    osier::run(|| {
        let (near, lines) = connect(address(&broker), 1000);
        let gaps = Lines::default();
        let (gap, there_said) = (gaps.clone(), Lines::default());
        let log = there_said.clone();
        let options = Options {
            on_gap: Box::new(move |room| {
                gap.lock().unwrap().push(room.to_owned());
                panic!("on purpose"); // the listener goes on
            }),
            log: Box::new(move |line| log.lock().unwrap().push(line.to_string())),
            ..Options::new(address(&broker))
        };
        let far = options.connect();
        let (room, there) = (near.room::<String>("lobby"), far.room::<String>("lobby"));
        let (mut here, mut across) = (
            room.subscribe(1000, Policy::DropOldest),
            there.subscribe(1000, Policy::DropOldest),
        );
        shared(&room);
        shared(&there);
        room.publish("before".into());
        assert_eq!(across.recv_timeout(PATIENCE), Ok(Some("before".into())));

        assert_eq!(has(&gaps, ""), 0);
        broker.kill();
        eventually("it is noticed", || !room.is_shared() && !there.is_shared());
        let start = Instant::now();
        for n in 0..100 {
            assert_eq!(room.publish(format!("{n}")), 1);
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "nothing waits: {:?}",
            start.elapsed()
        );
        assert_eq!(drain(&mut here).len(), 101, "here it goes on");
        eventually("the log says so", || {
            has(&lines, "rooms work within this process only") == 1
        });
        // Several attempts.
        let attempts = std::os::unix::net::UnixListener::bind(broker.socket()).unwrap();
        osier::unblock(move || (0..4).for_each(|_| drop(attempts.accept().unwrap())));
        assert_eq!(has(&lines, "rooms work within this process only"), 1, "once: {lines:?}");

        broker.restart();
        shared(&room);
        shared(&there);
        assert_eq!(has(&lines, "is back after"), 1, "{lines:?}");
        eventually("the gap is reported", || *gaps.lock().unwrap() == ["lobby"]);
        eventually("its fault is logged", || {
            has(&there_said, "'on_gap' panicked for the room lobby") == 1
        });
        // Messages that waited are forwarded once and in order, if the other process was there
        // first. Later messages always are.
        room.publish("after".into());
        let mut got = Vec::new();
        while got.last().map(String::as_str) != Some("after") {
            got.push(across.recv_timeout(PATIENCE).unwrap().expect("what came after"));
        }
        let numbers: Vec<u32> = got[..got.len() - 1].iter().map(|n| n.parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        assert_eq!(drain(&mut here), ["after"], "no echo");
        assert_eq!(drain(&mut across), Vec::<String>::new());
    });
}

#[test]
fn a_burst_from_another_process_disconnects_no_reader() {
    let Some(broker) = Broker::start(&[]) else { return };
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let ((near, _), (far, _)) = (connect(address(&broker), 1000), connect(address(&broker), 1000));
        let (room, there) = (near.room::<String>("lobby"), far.room::<String>("lobby"));
        shared(&there);
        // It keeps up, but its queue is shorter than the burst.
        let mut subscriber = there.subscribe(16, Policy::Disconnect);
        let reader = osier::spawn(move || subscriber.iter().take(500).count());
        for n in 0..500 {
            room.publish(n.to_string());
        }
        assert_eq!(reader.join().unwrap(), 500);
    });
}

/// A worker has other work, too. One message for each turn of its loop would be slower than other processes publish.
#[test]
fn a_burst_from_another_process_takes_few_turns_of_a_busy_worker() {
    const MESSAGES: usize = 500;
    let Some(broker) = Broker::start(&[]) else { return };
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    runtime.run(|| {
        let (near, _) = connect(address(&broker), 1000);
        let room = near.room::<String>("lobby");
        shared(&room);
        let mut all = room.subscribe(MESSAGES, Policy::DropOldest);
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let busy = osier::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(1)); // a worker at work, while all messages arrive
                counted.fetch_add(1, Ordering::Relaxed);
                osier::yield_now();
            }
        });
        let mut stream = std::os::unix::net::UnixStream::connect(broker.socket()).unwrap();
        stream.write_all(&b"PUBLISH lobby x\r\n".repeat(MESSAGES)).unwrap();
        assert_eq!(all.recv_timeout(PATIENCE), Ok(Some("x".into())));
        let before = turns.load(Ordering::Relaxed);
        for _ in 1..MESSAGES {
            assert_eq!(all.recv_timeout(PATIENCE), Ok(Some("x".into())));
        }
        let turns = turns.load(Ordering::Relaxed) - before;
        busy.cancel();
        assert!(turns < MESSAGES / 3, "{turns} turns for {MESSAGES} messages");
    });
}

#[test]
fn what_waits_for_a_broker_is_bounded_and_the_loss_is_logged() {
    let Some(mut broker) = Broker::start(&[]) else { return };
    broker.kill();
    osier::run(|| {
        let (near, lines) = connect(address(&broker), 10);
        let room = near.room::<String>("lobby");
        for n in 0..500 {
            room.publish(format!("{n}"));
        }
        broker.restart();
        eventually("it was passed on, and the loss logged", || {
            has(&lines, "messages were not published") == 1
        });
        shared(&room);
    });
}

#[test]
fn who_publishes_from_many_threads_at_once_loses_nothing() {
    const THREADS: usize = 8;
    const EACH: usize = 5_000;
    let Some(broker) = Broker::start(&[]) else { return };
    osier::run(move || {
        let (here, _) = connect(address(&broker), THREADS * EACH);
        let (there, _) = connect(address(&broker), 16);
        let room = here.room::<String>("lobby");
        let other = there.room::<String>("lobby");
        let mut subscriber = other.subscribe(THREADS * EACH, Policy::DropNewest);
        shared(&other);
        let publishers = (0..THREADS).map(|thread| {
            let room = room.clone();
            std::thread::spawn(move || {
                for number in 0..EACH {
                    room.publish(format!("{thread} {number}"));
                }
            })
        });
        let publishers: Vec<_> = publishers.collect();
        let mut next = [0; THREADS];
        while next.iter().sum::<usize>() < THREADS * EACH {
            let message = subscriber.recv_timeout(PATIENCE).unwrap();
            let Some(message) = message else {
                panic!("only {next:?} have come")
            };
            let (thread, number) = message.split_once(' ').unwrap();
            let next = &mut next[thread.parse::<usize>().unwrap()];
            assert_eq!(number.parse::<usize>().unwrap(), *next, "thread {thread}");
            *next += 1;
        }
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

#[test]
fn frames_cross_as_frames_and_strangers_messages_as_text() {
    let Some(broker) = Broker::start(&[]) else { return };
    osier::run(|| {
        let (near, _) = connect(address(&broker), 100);
        let (far, _) = connect(address(&broker), 100);
        let (ours, theirs) = (near.room::<ws::Frame>("frames"), far.room::<ws::Frame>("frames"));
        let later = far.room::<ws::Frame>("a room that comes later");
        eventually("all are heard", || {
            ours.is_shared() && theirs.is_shared() && later.is_shared()
        });
        let mut across = theirs.subscribe(8, Policy::DropOldest);
        for frame in [ws::Frame::text("grün"), ws::Frame::binary([0xFF, 0x00])] {
            ours.publish(frame.clone());
            assert_eq!(across.recv_timeout(PATIENCE), Ok(Some(frame)));
        }
        let mut stream = address(&broker).connect(PATIENCE).unwrap();
        stream.write_all(b"PUBLISH frames from-a-stranger\r\n").unwrap();
        assert_eq!(
            across.recv_timeout(PATIENCE),
            Ok(Some(ws::Frame::text("from-a-stranger")))
        );
    });
}

#[test]
fn a_password_is_given_and_tcp_works_too() {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .unwrap()
        .port();
    let port = port.to_string();
    let Some(_broker) = Broker::start(&["--port", &port, "--requirepass", "willow"]) else {
        return;
    };
    let address: Address = format!("127.0.0.1:{port}").parse().unwrap();
    osier::run(|| {
        let (refused, lines) = connect(address.clone(), 10);
        let silent = refused.room::<String>("lobby");
        let options = || Options {
            password: Some("willow".into()),
            ..Options::new(address.clone())
        };
        let (near, far) = (options().connect(), options().connect());
        let (room, there) = (near.room::<String>("lobby"), far.room::<String>("lobby"));
        let mut across = there.subscribe(8, Policy::DropOldest);
        shared(&room);
        shared(&there);
        room.publish("hello".into());
        assert_eq!(across.recv_timeout(PATIENCE), Ok(Some("hello".into())));
        eventually("the log says why", || has(&lines, "NOAUTH") > 0);
        assert!(!silent.is_shared());
    });
}

#[test]
fn the_log_does_not_have_a_password_that_the_broker_repeats() {
    let Some(broker) = Broker::start(&["--rename-command", "AUTH", ""]) else {
        return;
    };
    osier::run(|| {
        let lines = Lines::default();
        let log = lines.clone();
        let options = Options {
            password: Some("willow".into()),
            log: Box::new(move |line| log.lock().unwrap().push(line.to_string())),
            ..Options::new(address(&broker))
        };
        let redis = options.connect();
        let _room = redis.room::<String>("lobby");
        eventually("the log says why", || has(&lines, "unknown command 'AUTH'") > 0);
        assert_eq!(has(&lines, "willow"), 0);
    });
}

#[test]
fn a_bridge_that_is_dropped_leaves_the_broker() {
    let Some(broker) = Broker::start(&[]) else { return };
    osier::run(|| {
        let (redis, _) = connect(address(&broker), 10);
        let room = redis.room::<String>("lobby");
        shared(&room);
        let mut asking = address(&broker).connect(PATIENCE).unwrap();
        let mut listeners = || {
            use std::io::Read;
            asking.write_all(b"PUBSUB NUMSUB lobby\r\n").unwrap();
            let mut reply = [0; 64];
            let count = asking.read(&mut reply).unwrap();
            String::from_utf8_lossy(&reply[..count]).into_owned()
        };
        assert!(listeners().ends_with(":1\r\n"));
        drop(redis);
        assert!(listeners().ends_with(":1\r\n"), "the room holds it");
        drop(room);
        eventually("it has left", || listeners().ends_with(":0\r\n"));
    });
}

#[test]
fn a_message_that_the_broker_refuses_is_dropped_and_the_next_goes_on() {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let broker = Scripted::start(move |command| match command.payload() {
        Some(b"bad") => {
            count.fetch_add(1, Ordering::Relaxed);
            b"-ERR not this one\r\n".into()
        }
        _ => command.usual(),
    });
    osier::run(|| {
        let (redis, lines) = connect(broker.address(), 100);
        let room = redis.room::<String>("lobby");
        for text in ["one", "bad", "two", "bad", "three"] {
            room.publish(text.into());
        }
        eventually("the others were passed on", || {
            broker.published() == ["one", "two", "three"]
        });
        eventually("the log says which, and why", || {
            has(&lines, "is for the room \"lobby\": ") > 0 && has(&lines, "not this one") > 0
        });
        // An error reply is a reply: the message is not sent again, and the connection goes on.
        assert_eq!(refused.load(Ordering::Relaxed), 2, "each once");
        let connections = broker.connections().len();
        assert!(connections <= 2, "who publishes, and who listens: {connections}");
    });
}

#[test]
fn a_message_at_which_the_broker_hangs_up_is_dropped_in_the_end() {
    let fatal = Arc::new(AtomicUsize::new(0));
    let count = fatal.clone();
    let broker = Scripted::start(move |command| match command.payload() {
        Some(b"fatal") => {
            count.fetch_add(1, Ordering::Relaxed);
            crate::broker::Reply::HangUp
        }
        _ => command.usual(),
    });
    osier::run(|| {
        let (redis, lines) = connect(broker.address(), 100);
        let room = redis.room::<String>("lobby");
        for text in ["one", "fatal", "two", "three"] {
            room.publish(text.into());
        }
        eventually("the others were passed on", || {
            broker.published() == ["one", "two", "three"]
        });
        let attempts = fatal.load(Ordering::Relaxed);
        assert!((5..=6).contains(&attempts), "not given up at once: {attempts}");
        eventually("the log says so", || has(&lines, "rejects 1 messages") == 1);
    });
}

#[test]
fn a_broker_that_answers_and_hangs_up_is_asked_ever_more_seldom() {
    let broker = Scripted::start(|command| match command.words() {
        [b"SUBSCRIBE", room] => crate::broker::Reply::Last(crate::broker::subscribed(room)),
        _ => command.usual(),
    });
    osier::run(|| {
        let (redis, lines) = connect(broker.address(), 100);
        let _room = redis.room::<String>("lobby");
        eventually("it tries again", || broker.connections().len() >= 6);
        let times = broker.connections();
        let took = times[5] - times[0]; // 50, 100, 200, 400 and 800 ms
        assert!(took > Duration::from_secs(1), "five waits took {took:?}");
        assert!(has(&lines, "is back after") > 0, "it did answer: {lines:?}");
    });
}

#[test]
fn a_broker_that_hangs_up_after_each_message_is_asked_ever_more_seldom_too() {
    let broker = Scripted::start(|command| match (command.payload(), command.usual()) {
        (Some(_), crate::broker::Reply::Say(bytes)) => crate::broker::Reply::Last(bytes),
        (_, usual) => usual,
    });
    osier::run(|| {
        let (redis, _) = connect(broker.address(), 100);
        let room = redis.room::<String>("lobby");
        let mut start = None;
        for n in 1..=6 {
            room.publish(n.to_string());
            eventually("it is passed on", || broker.published().len() == n);
            start.get_or_insert_with(Instant::now);
        }
        let took = start.unwrap().elapsed(); // 50, 100, 200, 400 and 800 ms
        assert!(took > Duration::from_secs(1), "five waits took {took:?}");
        assert_eq!(broker.published(), ["1", "2", "3", "4", "5", "6"]);
    });
}

#[test]
fn what_a_real_broker_refuses_holds_up_nothing_else() {
    let user = "default on nopass ~* resetchannels &lobby +@all";
    let mut args = vec!["--proto-max-bulk-len", "1mb", "--user"];
    args.extend(user.split(' '));
    let Some(broker) = Broker::start(&args) else { return };
    osier::run(|| {
        let ((near, lines), (far, _)) = (connect(address(&broker), 100), connect(address(&broker), 100));
        let (lobby, forbidden) = (near.room::<String>("lobby"), near.room::<String>("forbidden"));
        let there = far.room::<String>("lobby");
        let mut across = there.subscribe(100, Policy::DropOldest);
        shared(&lobby);
        shared(&there);
        lobby.publish("before".into());
        forbidden.publish("nobody may hear it".into());
        eventually("it is refused", || has(&lines, "rejects 1 messages") == 1);
        lobby.publish("x".repeat(2 << 20));
        eventually("it is too large", || has(&lines, "rejects 1 messages") == 2);
        lobby.publish("after".into());
        for expected in ["before", "after"] {
            assert_eq!(across.recv_timeout(PATIENCE), Ok(Some(expected.into())));
        }
        assert!(has(&lines, "rejects a subscription") > 0, "{lines:?}");
        assert!(lobby.is_shared() && !forbidden.is_shared());
    });
}

#[test]
fn a_room_and_sessions_are_shared_over_tls() {
    let folder = testkit::Folder::new();
    let certificate = crate::tls::Pem::of("localhost");
    let cert = folder.write("chain.pem", &certificate.chain);
    let key = folder.write("key.pem", &certificate.key);
    let port = testkit::free_port().to_string();
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let args = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ];
    let Some(broker) = Broker::start(&args) else { return };
    let connector = |pem: &str| Connector::builder().ca_pem(pem.as_bytes()).build().unwrap();
    let address: Address = format!("localhost:{port}").parse().unwrap();
    osier::run(|| {
        let connect = || {
            let options = Options {
                tls: Some(connector(&certificate.chain)),
                ..Options::new(address.clone())
            };
            options.connect()
        };
        let (one, other) = (connect(), connect());
        let (here, there) = (one.room::<String>("lobby"), other.room::<String>("lobby"));
        let mut heard = there.subscribe(10, Policy::DropOldest);
        shared(&here);
        shared(&there);
        let long = "x".repeat(100_000);
        here.publish("hello".into());
        here.publish(long.clone());
        assert_eq!(heard.recv().unwrap(), "hello");
        assert!(heard.recv().unwrap() == long);

        let store = session::Redis::new(address.clone()).tls(connector(&certificate.chain));
        session::Store::save(&store, "id", b"value", Duration::from_secs(60)).unwrap();
        let (value, _) = session::Store::load(&store, "id").unwrap().expect("it was saved");
        assert_eq!(value, b"value");
        assert!(broker.ask("KEYS *").contains("session:id"));

        let stranger = crate::tls::Pem::of("localhost");
        let store = session::Redis::new(address.clone()).tls(connector(&stranger.chain));
        session::Store::load(&store, "id").expect_err("its authority is unknown");
    });
}
