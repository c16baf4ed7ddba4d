//! Rooms that span three processes over a broker that crashes.
//!
//! Invariants:
//! - A process receives its own messages once, in order.
//! - It receives the messages of another at most once, in order.
//! - While nothing fails, it receives all of them; so it does once everything is well again.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use osier::net::{TcpListener, TcpStream};
use osier::pubsub::Policy;
use osier::sim::{Faults, World};
use osier_web::Address;
use osier_web::pubsub::{Options, Redis};

use super::{SECOND, below, once_in, some_of};

/// The connections that have subscribed, by channel.
type Channels = Arc<Mutex<BTreeMap<Vec<u8>, Vec<Arc<TcpStream>>>>>;

/// A broker that knows what the crate asks of one. A subscriber that takes nothing holds nobody up for long.
pub fn broker() -> io::Result<()> {
    broker_of(&Channels::default())
}

fn broker_of(channels: &Channels) -> io::Result<()> {
    channels.lock().unwrap().clear();
    let listener = TcpListener::bind("0.0.0.0:6379")?;
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_write_timeout(Some(5 * SECOND))?;
        let (stream, channels) = (Arc::new(stream), Arc::clone(channels));
        osier::spawn(move || {
            let served = serve(&stream, &channels);
            channels
                .lock()
                .unwrap()
                .values_mut()
                .for_each(|all| leave(all, &stream));
            served
        });
    }
}

fn leave(subscribers: &mut Vec<Arc<TcpStream>>, stream: &Arc<TcpStream>) {
    subscribers.retain(|other| !Arc::ptr_eq(other, stream));
}

fn serve(stream: &Arc<TcpStream>, channels: &Channels) -> io::Result<()> {
    let mut reader = BufReader::new(&**stream);
    while let Some(words) = command(&mut reader)? {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut out = &**stream;
        match words[..] {
            [b"PING"] => out.write_all(b"+PONG\r\n")?,
            [b"SUBSCRIBE", channel] => {
                let subscribers = &mut *channels.lock().unwrap();
                subscribers
                    .entry(channel.to_vec())
                    .or_default()
                    .push(Arc::clone(stream));
                let head = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n", channel.len());
                out.try_write(&[head.as_bytes(), channel, b"\r\n:1\r\n"].concat())?;
            }
            [b"UNSUBSCRIBE", channel] => {
                let subscribers = &mut *channels.lock().unwrap();
                leave(subscribers.get_mut(channel).expect("one that is subscribed to"), stream);
                let head = format!("*3\r\n$11\r\nunsubscribe\r\n${}\r\n", channel.len());
                out.try_write(&[head.as_bytes(), channel, b"\r\n:0\r\n"].concat())?;
            }
            [b"PUBLISH", channel, message] => {
                publish(channels, channel, message);
                out.write_all(b":1\r\n")?;
            }
            ref other => panic!("the broker knows no such command: {other:?}"),
        }
    }
    Ok(())
}

fn publish(channels: &Channels, channel: &[u8], message: &[u8]) {
    let head = format!("*3\r\n$7\r\nmessage\r\n${}\r\n", channel.len());
    let length = format!("\r\n${}\r\n", message.len());
    let bytes = [head.as_bytes(), channel, length.as_bytes(), message, b"\r\n"].concat();
    let subscribers = &mut *channels.lock().unwrap();
    // A subscriber without room loses its connection: a part of a message would be no message.
    subscribers
        .entry(channel.to_vec())
        .or_default()
        .retain(|stream| match stream.try_write(&bytes) {
            Ok(count) if count == bytes.len() => true,
            _ => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                false
            }
        });
}

fn command(reader: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = number(reader, "*")? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(reader, "$")?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        word.truncate(length);
        words.push(word);
    }
    Ok(Some(words))
}

fn number(reader: &mut impl BufRead, mark: &str) -> io::Result<Option<usize>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let digits = line.strip_prefix(mark).expect("the mark of the protocol");
    Ok(Some(digits.trim_end().parse().expect("a number")))
}

/// The messages that each process has received, with the process that has sent them.
type Received = Arc<Mutex<BTreeMap<u32, Vec<(u32, u32)>>>>;

/// A process that publishes `count` messages and listens for ever.
fn process(number: u32, count: u32, received: Received) {
    let redis = connect();
    let room = redis.room::<String>("lobby");
    let mut all = room.subscribe(10_000, Policy::DropOldest);
    let listener = osier::spawn(move || {
        while let Ok(message) = all.recv() {
            let (from, sequence) = message.split_once(':').unwrap();
            let message = (from.parse().unwrap(), sequence.parse().unwrap());
            received.lock().unwrap().entry(number).or_default().push(message);
        }
    });
    osier::sleep(10 * SECOND);
    for sequence in 0..count {
        room.publish(format!("{number}:{sequence}"));
        if once_in(3) {
            osier::sleep(some_of(4 * SECOND));
        }
    }
    // The end: after everything is well again.
    osier::sleep(300 * SECOND);
    room.publish(format!("{number}:{count}"));
    let _ = listener.join();
}

const MESSAGES: u32 = 15;

fn scenario(world: &World) {
    let broker = world.host("broker", broker);
    let received = Received::default();
    let processes: Vec<_> = (0..3)
        .map(|number| {
            let received = Arc::clone(&received);
            world.host(&format!("process-{number}"), move || {
                process(number, MESSAGES, Arc::clone(&received));
            })
        })
        .collect();
    osier::sleep(9 * SECOND);
    let calm = once_in(3);
    if !calm {
        world.faults(match below(2) {
            0 => Faults::mild(),
            _ => Faults {
                reset: 50,
                ..Faults::rough()
            },
        });
        for _ in 0..below(5) {
            osier::sleep(some_of(10 * SECOND));
            let process = &processes[below(3) as usize];
            match below(4) {
                0 => broker.crash(),
                1 => broker.kill(),
                2 => drop(world.reset(process, &broker)),
                _ => world.partition(process, &broker),
            }
            osier::sleep(some_of(20 * SECOND));
            broker.restart();
            world.heal(process, &broker);
        }
        osier::sleep(60 * SECOND);
        world.faults(Faults::none());
    }
    osier::sleep(600 * SECOND);

    let received = received.lock().unwrap();
    for listener in 0..3 {
        for sender in 0..3 {
            let from = received[&listener].iter().filter(|(from, _)| *from == sender);
            let sequence: Vec<u32> = from.map(|&(_, sequence)| sequence).collect();
            assert!(
                sequence.is_sorted_by(|one, next| one < next),
                "process {listener} receives of {sender}: {sequence:?}"
            );
            if calm || listener == sender {
                assert_eq!(sequence.len() as u32, MESSAGES + 1, "process {listener} of {sender}");
            }
            assert_eq!(
                sequence.last(),
                Some(&MESSAGES),
                "{listener} of {sender}, when all is well"
            );
        }
    }
}

#[test]
fn rooms_of_processes_lose_order_for_nobody_and_deliver_nothing_twice() {
    super::check(&[], 20, scenario);
}

/// Messages that are published while the broker is away reach a process that has noticed the outage, too.
fn outage(world: &World) {
    let broker = world.host("broker", broker);
    let (heard, said, is_away) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicBool::new(false)),
    );
    let hearing = Arc::clone(&heard);
    world.host("listener", move || {
        let redis = connect();
        let mut all = redis.room::<String>("lobby").subscribe(1000, Policy::DropOldest);
        while let Ok(message) = all.recv() {
            hearing.lock().unwrap().push(message);
        }
    });
    let (saying, away) = (Arc::clone(&said), Arc::clone(&is_away));
    world.host("speaker", move || {
        let room = connect().room::<String>("lobby");
        for n in 0.. {
            osier::sleep(SECOND / 10);
            if away.load(Ordering::SeqCst) {
                room.publish(n.to_string());
                saying.lock().unwrap().push(n.to_string());
            }
        }
    });
    osier::sleep(20 * SECOND);
    broker.kill();
    is_away.store(true, Ordering::SeqCst);
    osier::sleep(SECOND / 5 + some_of(20 * SECOND));
    is_away.store(false, Ordering::SeqCst);
    broker.restart();
    osier::sleep(100 * SECOND);
    assert_eq!(*heard.lock().unwrap(), *said.lock().unwrap());
}

fn connect() -> Redis {
    let mut options = Options::new(Address::Tcp("broker:6379".into()));
    options.log = Box::new(|_| ());
    options.connect()
}

#[test]
fn what_waits_for_a_broker_reaches_the_other_processes() {
    super::check(&[], 20, outage);
}

/// A room that is left and asked for again, about when it leaves the broker, misses nothing from the moment at which it is shared. In the
/// end it leaves the broker.
fn leaving(world: &World) {
    let channels = Channels::default();
    let at_broker = Arc::clone(&channels);
    let broker = world.host("broker", move || broker_of(&at_broker));
    let (is_well, is_over, visits) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let over = Arc::clone(&is_over);
    let speaker = world.host("speaker", move || {
        let redis = connect();
        let room = redis.room::<String>("news");
        for n in 0.. {
            if over.load(Ordering::SeqCst) {
                break;
            }
            room.publish(n.to_string());
            osier::sleep(SECOND / 3);
        }
        drop(room);
        osier::sleep(1000 * SECOND);
    });
    let (well, over, counted) = (Arc::clone(&is_well), Arc::clone(&is_over), Arc::clone(&visits));
    world.host("guest", move || {
        let redis = connect();
        while !over.load(Ordering::SeqCst) {
            let room = redis.room::<String>("news");
            let mut all = room.subscribe(10_000, Policy::DropOldest);
            if once_in(2) {
                while !room.is_shared() && !over.load(Ordering::SeqCst) {
                    osier::sleep(SECOND / 20);
                }
                let was_well = well.load(Ordering::SeqCst);
                while all.try_recv().is_ok() {}
                osier::sleep(SECOND + some_of(5 * SECOND));
                let heard: Vec<u32> = std::iter::from_fn(|| all.try_recv().ok())
                    .map(|message| message.parse().unwrap())
                    .collect();
                assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
                if was_well && well.load(Ordering::SeqCst) && !over.load(Ordering::SeqCst) {
                    let (first, last) = (heard[0], heard[heard.len() - 1]);
                    assert_eq!(heard.len() as u32, last - first + 1, "{heard:?}");
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            drop((room, all));
            osier::sleep(some_of(match below(2) {
                0 => SECOND,
                _ => 20 * SECOND,
            }));
        }
        osier::sleep(1000 * SECOND);
    });
    osier::sleep(100 * SECOND);
    if once_in(2) {
        is_well.store(false, Ordering::SeqCst);
        for _ in 0..below(5) {
            osier::sleep(some_of(10 * SECOND));
            match below(2) {
                0 => broker.kill(),
                _ => drop(world.reset(&speaker, &broker)),
            }
            osier::sleep(some_of(3 * SECOND));
            broker.restart();
        }
        osier::sleep(60 * SECOND);
        is_well.store(true, Ordering::SeqCst);
    }
    let before = visits.load(Ordering::SeqCst);
    osier::sleep(200 * SECOND);
    assert!(visits.load(Ordering::SeqCst) > before, "it is shared again");
    is_over.store(true, Ordering::SeqCst);
    osier::sleep(100 * SECOND);
    let are_left = channels.lock().unwrap().values().all(Vec::is_empty);
    assert!(are_left, "the broker still has subscribers");
}

#[test]
fn a_room_that_nobody_has_leaves_the_broker_and_comes_back_when_it_is_asked_for() {
    super::check(&[], 4, leaving);
}
