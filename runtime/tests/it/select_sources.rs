//! `select!` over the runtime's own leaves: events, mailboxes, channels, descriptors, timers, tasks. Also the places where it
//! must not wait.

use std::future::pending;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::given::on;
use osier::io::readable_async;
use osier::net::{UnixListener, UnixStream};
use osier::sync::{Event, Mailbox, mpsc};
use osier::time::Sleep;
use osier::{select, spawn_future};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

#[test]
fn a_signal_on_its_way_to_a_loser_goes_to_the_next() {
    on(1).run(|| {
        let (event, stop) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let (theirs, stopped) = (Arc::clone(&event), Arc::clone(&stop));
        let first = osier::spawn_local(move || {
            select! {
                biased;
                () = stopped.wait_async() => "stopped",
                () = theirs.wait_async() => "signaled",
            }
        });
        osier::yield_now();
        let theirs = Arc::clone(&event);
        let second = osier::spawn_local(move || theirs.wait());
        osier::yield_now();
        // Both become ready while the first fiber sleeps, which is first in line for the event.
        event.set();
        stop.set();
        assert_eq!(first.join().unwrap(), "stopped");
        second.join().unwrap();
        assert!(!event.is_set() && !stop.is_set());
    });
}

#[test]
fn an_event_that_is_set_after_its_arm_has_lost_stays_set() {
    on(1).run(|| {
        let event = Event::new();
        select! { () = event.wait_async() => unreachable!("not set"), timeout SHORT => {} }
        event.set();
        assert!(select! { () = event.wait_async() => true, default => false });
        assert!(!event.is_set());
    });
}

#[test]
fn an_event_in_two_arms_releases_one_of_them_per_set() {
    on(1).run(|| {
        let event = Event::new();
        let mut wins = [0, 0];
        for _ in 0..100 {
            event.set();
            let winner = select! { () = event.wait_async() => 0, () = event.wait_async() => 1 };
            wins[winner] += 1;
            assert!(!event.is_set());
        }
        assert_eq!(wins[0] + wins[1], 100);
        assert!(wins.iter().all(|&wins| wins > 10), "{wins:?}");
    });
}

#[test]
fn flags_of_a_losing_arm_stay_in_the_mailbox() {
    on(1).run(|| {
        let mailbox = Mailbox::new();
        let other = Mailbox::new();
        mailbox.raise(0b01);
        other.raise(0b10);
        let won = select! {
            biased;
            flags = mailbox.wait_any_async(0b11) => flags,
            flags = other.wait_any_async(0b11) => flags,
        };
        assert_eq!((won & 0b01, other.state()), (0b01, 0b10));
        // Not all of them: the other arm has its turn.
        let all = select! {
            _ = other.wait_all_async(0b11) => true,
            timeout SHORT => false,
        };
        assert_eq!((all, other.state()), (false, 0b10));
    });
}

#[test]
fn a_chat_waits_for_its_client_and_its_room_at_once() {
    let path = std::env::temp_dir().join(format!("osier-select-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    on(2).run(|| {
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        let mut server = listener.accept().unwrap().0;
        let (room, mut subscription) = mpsc::channel::<&str>(8);
        let chat = osier::spawn(move || {
            let mut heard = Vec::new();
            let mut buf = [0; 64];
            loop {
                // A hang-up of either is a value: end of file, or a receive error.
                select! {
                    ready = readable_async(&server) => {
                        ready.unwrap();
                        match server.read(&mut buf).unwrap() {
                            0 => return heard,
                            n => heard.push(String::from_utf8_lossy(&buf[..n]).into_owned()),
                        }
                    }
                    text = subscription.recv_async() => server.write_all(text.unwrap().as_bytes()).unwrap(),
                    timeout LONG => panic!("nothing has happened for an hour"),
                }
            }
        });
        let mut reply = [0; 5];
        for _ in 0..50 {
            room.send("hello").unwrap();
            client.read_exact(&mut reply).unwrap();
            assert_eq!(&reply, b"hello");
            client.write_all(b"x").unwrap();
        }
        drop(client);
        assert_eq!(chat.join().unwrap().concat().len(), 50);
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn tasks_and_timers_are_arms() {
    on(1).run(|| {
        let mut task = spawn_future(async {
            Sleep::new(SHORT).await;
            7
        });
        let mut late = Sleep::new(LONG);
        let outcome = select! {
            outcome = &mut task => outcome.unwrap(),
            () = &mut late => 0,
        };
        assert_eq!(outcome, 7);
        late.reset(std::time::Instant::now());
        select! { () = &mut late => {}, timeout LONG => panic!("its time has come") }
    });
}

#[test]
fn in_a_future_s_poll_only_default_does_not_panic() {
    on(1).run(|| {
        let waits = spawn_future(async {
            select! { () = pending() => {} }
        });
        let payload = waits.join().unwrap_err();
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        assert!(
            text.expect("a panic's message is a text").contains("inside a future"),
            "{text:?}"
        );
        let asks = spawn_future(async {
            select! { () = pending() => 0, default => 1 }
        });
        assert_eq!(asks.join().unwrap(), 1);
        let awaits = spawn_future(async {
            osier::select_async! { () = pending() => 0, timeout SHORT => 1 }
        });
        assert_eq!(awaits.join().unwrap(), 1);
    });
}
