//! Runtimes on a virtual clock: what advances the clock, and that nothing else differs.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::given::pass;
use futures_lite::StreamExt;
use osier::embed::Local;
use osier::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use osier::sync::{Event, mpsc};
use osier::time::{Sleep, VirtualClock, interval, now, sleep_until};
use osier::{Runtime, select, spawn, spawn_future, spawn_local, timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// A limit for tests of virtual hours: enough for a busy machine, too little for one real sleep.
const SOON: Duration = Duration::from_secs(20);

fn on(clock: &VirtualClock, workers: usize) -> Runtime {
    let builder = Runtime::builder().workers(workers).clock(clock.clone());
    builder.build().unwrap()
}

/// A clock that only the test advances.
fn by_hand() -> VirtualClock {
    let clock = VirtualClock::new();
    clock.auto_advance(false);
    clock
}

#[test]
fn a_day_of_sleeps_takes_milliseconds_and_each_is_exact() {
    for workers in [1, 2, 4] {
        let (clock, started) = (VirtualClock::new(), Instant::now());
        on(&clock, workers).run(|| {
            for hour in 1..=24 {
                pass(HOUR);
                assert_eq!(now() - (clock.now() - clock.elapsed()), HOUR * hour);
            }
        });
        assert_eq!(clock.elapsed(), DAY);
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[test]
fn a_clock_starts_where_it_is_told_to() {
    let start = Instant::now().checked_sub(HOUR).unwrap();
    let clock = VirtualClock::starting_at(start);
    assert_eq!(clock.now(), start);
    on(&clock, 1).run(|| {
        assert_eq!(now(), start);
        pass(SECOND);
        osier::block_on(Sleep::new(SECOND));
        assert_eq!(now(), start + 2 * SECOND);
    });
}

#[test]
fn equal_deadlines_fire_in_order_and_earlier_ones_first() {
    let clock = VirtualClock::new();
    on(&clock, 1).run(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = now();
        let at = |name, after: Duration| {
            let order = Arc::clone(&order);
            spawn_local(move || {
                sleep_until(start + after);
                assert_eq!(now() - start, after);
                order.lock().unwrap().push(name);
            })
        };
        let fibers = [
            at("third", HOUR),
            at("first", SECOND),
            at("fourth", HOUR),
            at("second", HOUR - MS),
            at("fifth", HOUR),
            at("last", DAY),
        ];
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(
            *order.lock().unwrap(),
            ["first", "second", "third", "fourth", "fifth", "last"]
        );
    });
}

#[test]
fn no_sleep_is_early_whatever_its_length() {
    let clock = VirtualClock::new();
    on(&clock, 2).run(|| {
        let fibers: Vec<_> = (0..500u64)
            .map(|n| {
                spawn(move || {
                    let length = Duration::from_nanos(n * n * 7_654_321);
                    let start = now();
                    pass(length);
                    let slept = now() - start;
                    // On time to the tick: no other fiber has had anything to do at this time.
                    assert!(slept >= length && slept < length + 2 * MS, "{slept:?} of {length:?}");
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn of_timeouts_that_race_the_earlier_wins_by_a_millisecond() {
    let clock = VirtualClock::new();
    on(&clock, 2).run(|| {
        let slow = |length: Duration| move || pass(length);
        assert!(timeout(HOUR, slow(HOUR + MS)).is_err());
        assert!(timeout(HOUR, slow(HOUR - MS)).is_ok());
        let nested = timeout(HOUR, || timeout(HOUR - MS, slow(DAY)));
        assert!(matches!(nested, Ok(Err(_))), "the inner one");
        let nested = timeout(HOUR - MS, || timeout(HOUR, slow(DAY)));
        assert!(nested.is_err(), "the outer one");
        let first = select! {
            () = Sleep::new(HOUR + MS) => "late",
            () = Sleep::new(HOUR) => "early",
            timeout DAY => "timeout",
        };
        assert_eq!(first, "early");
        let (sender, mut receiver) = mpsc::channel(1);
        let value = spawn(move || {
            pass(HOUR - MS);
            sender.send(7).unwrap();
        });
        assert_eq!(timeout(HOUR, || receiver.recv()).unwrap(), Ok(7));
        value.join().unwrap();
    });
}

#[test]
fn an_interval_keeps_its_grid_over_a_day() {
    let clock = VirtualClock::new();
    on(&clock, 1).run(|| {
        let start = now();
        let mut ticks = interval(HOUR);
        for hour in 0..24 {
            assert_eq!(ticks.tick(), start + HOUR * hour);
            assert_eq!(now(), start + HOUR * hour);
        }
        // Three are missed: one comes at once, the others are left out.
        clock.advance(HOUR * 3 + SECOND);
        assert_eq!(ticks.tick(), start + HOUR * 24);
        assert_eq!(ticks.tick(), start + HOUR * 27);
        let tick = osier::block_on(ticks.next()).unwrap();
        assert_eq!((tick, now()), (start + HOUR * 28, start + HOUR * 28));
    });
}

#[test]
fn the_clock_waits_for_the_busy_one_of_two_workers() {
    let clock = VirtualClock::new();
    on(&clock, 2).run(|| {
        let busy = Arc::new(AtomicBool::new(true));
        let theirs = Arc::clone(&busy);
        let sleeper = osier::fiber::Builder::new().worker(0).spawn(move || {
            pass(HOUR);
            assert!(!theirs.load(Ordering::SeqCst), "the other worker was at work");
        });
        let worker = osier::fiber::Builder::new().worker(1).spawn({
            let clock = clock.clone();
            move || {
                let before = clock.elapsed();
                let until = Instant::now() + 20 * MS;
                while Instant::now() < until {
                    osier::yield_now();
                }
                assert_eq!(clock.elapsed(), before);
                busy.store(false, Ordering::SeqCst);
            }
        });
        worker.join().unwrap();
        sleeper.join().unwrap();
    });
}

#[test]
fn messages_between_workers_come_before_time_goes_on() {
    for workers in [2, 4] {
        let clock = VirtualClock::new();
        on(&clock, workers).run(|| {
            let (listener, rounds) = (TcpListener::bind("127.0.0.1:0").unwrap(), 200);
            let address = listener.local_addr().unwrap();
            let echo = osier::fiber::Builder::new().worker(1).spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let mut byte = [0];
                while stream.read(&mut byte).unwrap() == 1 {
                    stream.write_all(&byte).unwrap();
                }
            });
            let client = osier::fiber::Builder::new().worker(0).spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                // It would be over if the clock advanced past a response that is under way.
                stream.set_read_timeout(Some(SECOND)).unwrap();
                for round in 0..rounds {
                    stream.write_all(&[round as u8]).unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(byte, [round as u8]);
                }
            });
            client.join().unwrap();
            echo.join().unwrap();
        });
        assert_eq!(clock.elapsed(), Duration::ZERO);
    }
}

#[test]
fn wake_ups_between_workers_come_before_time_goes_on() {
    let clock = VirtualClock::new();
    on(&clock, 2).run(|| {
        let events = Arc::new([Event::new(), Event::new()]);
        let players = [0, 1].map(|worker| {
            let events = Arc::clone(&events);
            osier::fiber::Builder::new().worker(worker).spawn(move || {
                for _ in 0..500 {
                    if worker == 0 {
                        events[1].set();
                    }
                    assert!(events[worker].wait_timeout(SECOND), "time went on");
                    if worker == 1 {
                        events[0].set();
                    }
                }
            })
        });
        players.into_iter().for_each(|player| player.join().unwrap());
    });
    assert_eq!(clock.elapsed(), Duration::ZERO);
}

#[test]
fn deadlines_of_sockets_and_tasks_are_on_the_clock() {
    let clock = VirtualClock::new();
    let started = Instant::now();
    on(&clock, 2).run(|| {
        let (mut one, _two) = UnixStream::pair().unwrap();
        one.set_read_timeout(Some(HOUR)).unwrap();
        assert_eq!(one.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(HOUR)).unwrap();
        assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        let task = spawn_future(async {
            let start = now();
            Sleep::new(HOUR).await;
            now() - start
        });
        assert_eq!(task.join().unwrap(), HOUR);
        assert!(!Event::new().wait_timeout(HOUR));
    });
    assert_eq!(clock.elapsed(), 4 * HOUR);
    assert!(started.elapsed() < SOON);
}

#[test]
fn without_auto_advance_a_thread_moves_the_clock() {
    for workers in [1, 3] {
        let clock = by_hand();
        let runtime = on(&clock, workers);
        let (start, woken) = (clock.now(), Arc::new(AtomicUsize::new(0)));
        let sleepers: Vec<_> = (1..=6)
            .map(|hour| {
                let woken = Arc::clone(&woken);
                runtime.spawn(move || {
                    sleep_until(start + HOUR * hour);
                    woken.fetch_add(1, Ordering::SeqCst);
                    now() - start
                })
            })
            .collect();
        for (hour, sleeper) in (1..).zip(sleepers) {
            assert_eq!(woken.load(Ordering::SeqCst), hour - 1, "the clock has not moved there");
            clock.advance(HOUR);
            assert_eq!(sleeper.join().unwrap(), HOUR * hour as u32);
        }
    }
}

#[test]
fn auto_advance_is_switched_while_everybody_sleeps() {
    let clock = by_hand();
    let runtime = on(&clock, 2);
    let sleeper = runtime.spawn(|| pass(DAY));
    let held = clock.hold();
    clock.auto_advance(true);
    assert_eq!(clock.elapsed(), Duration::ZERO);
    assert!(!sleeper.is_finished());
    drop(held);
    sleeper.join().unwrap();
    assert_eq!(clock.elapsed(), DAY);
}

#[test]
fn work_on_the_pool_holds_the_clock() {
    let clock = VirtualClock::new();
    on(&clock, 2).run(|| {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let sleeper = spawn(|| pass(HOUR));
        let work = spawn(move || osier::unblock(move || released.recv().unwrap()));
        // Both wait, and a thread of the pool is at work for one of them.
        // Real time: the clock gets its chance to go wrong.
        std::thread::sleep(20 * MS);
        assert_eq!(clock.elapsed(), Duration::ZERO);
        release.send(()).unwrap();
        work.join().unwrap();
        assert_eq!(clock.elapsed(), Duration::ZERO);
        sleeper.join().unwrap();
        assert_eq!(clock.elapsed(), HOUR);
        let text = timeout(SECOND, || osier::fs::read_to_string("/proc/self/comm")).unwrap();
        assert!(!text.unwrap().is_empty());
        assert!(timeout(SECOND, || TcpListener::bind("localhost:0")).unwrap().is_ok());
    });
}

#[test]
fn two_runtimes_share_a_clock() {
    let clock = VirtualClock::new();
    let (one, two) = (on(&clock, 1), on(&clock, 2));
    let start = clock.now();
    let hold = clock.hold();
    let sleepers = [
        one.spawn(move || {
            pass(2 * HOUR);
            now() - start
        }),
        two.spawn(move || {
            pass(HOUR);
            now() - start
        }),
    ];
    drop(hold);
    let slept = sleepers.map(|sleeper| sleeper.join().unwrap());
    assert_eq!(slept, [2 * HOUR, HOUR]);
    drop(one);
    two.run(|| pass(HOUR));
    assert_eq!(clock.elapsed(), 3 * HOUR);
}

#[test]
fn an_embedded_runtime_turns_to_the_next_deadline() {
    let clock = VirtualClock::new();
    let local = Runtime::builder().clock(clock.clone()).build_local().unwrap();
    let fiber = local.spawn(|| pass(DAY));
    local.run_until(|| fiber.is_finished()).unwrap();
    assert_eq!(clock.elapsed(), DAY);
    clock.auto_advance(false);
    let fiber = local.spawn(|| pass(DAY));
    local.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(local.next_deadline().map(|next| next <= clock.now() + DAY), Some(true));
    clock.advance(DAY);
    local.run_until(|| fiber.is_finished()).unwrap();
    let plain = Local::new().unwrap();
    let fiber = plain.spawn(now);
    plain.run_until(|| fiber.is_finished()).unwrap();
    assert!(fiber.join().unwrap() <= Instant::now(), "the machine's time again");
}

#[test]
fn a_remote_that_was_a_day_ahead_serves_the_next_runtime() {
    let started = Instant::now();
    for _ in 0..3 {
        on(&VirtualClock::new(), 2).run(|| {
            pass(DAY);
            osier::block_on(Sleep::new(DAY));
        });
        crate::given::on(2).run(|| {
            pass(MS);
            osier::block_on(Sleep::new(MS));
        });
    }
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_shutdown_is_not_kept_by_a_clock_that_stands() {
    let clock = by_hand();
    let started = Instant::now();
    on(&clock, 2).run(|| {
        drop(spawn(|| pass(DAY)));
        osier::yield_now();
    });
    let runtime = Runtime::builder().workers(1).clock(clock).shutdown_timeout(20 * MS);
    runtime.build().unwrap().run(|| {
        drop(spawn_local(|| osier::shield(|| pass(DAY))));
        osier::yield_now();
    });
    assert!(started.elapsed() < SOON, "the shutdown timeout is the machine's");
}

/// The timer of a wait stays for the next one, which has a later deadline.
#[test]
fn the_timer_of_one_read_ends_no_other() {
    let clock = VirtualClock::new();
    on(&clock, 1).run(|| {
        let start = now();
        let (near, mut far) = UnixStream::pair().unwrap();
        let read = |near: &UnixStream| (&*near).read(&mut [0]).map_err(|error| error.kind());
        let writer = spawn_local(move || {
            for _ in 0..5 {
                pass(3 * SECOND);
                far.write_all(b"x").unwrap();
            }
            far
        });
        near.set_read_timeout(Some(10 * SECOND)).unwrap();
        for count in 1..=4 {
            assert_eq!((read(&near), now() - start), (Ok(1), 3 * count * SECOND));
        }
        // A shorter limit counts at once.
        near.set_read_timeout(Some(SECOND)).unwrap();
        assert_eq!((read(&near), now() - start), (Err(ErrorKind::TimedOut), 13 * SECOND));
        near.set_read_timeout(None).unwrap();
        assert_eq!((read(&near), now() - start), (Ok(1), 15 * SECOND));
        near.set_read_timeout(Some(10 * SECOND)).unwrap();
        assert_eq!((read(&near), now() - start), (Err(ErrorKind::TimedOut), 25 * SECOND));
        drop(writer.join());
        // A timer of the reads would end this wait at another time.
        pass(HOUR);
        assert_eq!(now() - start, HOUR + 25 * SECOND);
    });
    assert_eq!(clock.elapsed(), HOUR + 25 * SECOND);
}

/// While a socket is waited for, a worker with nothing to do gives the outside a millisecond before the clock jumps. A timer that is due when it
/// is set is something to do.
#[test]
fn a_timer_that_is_due_at_once_waits_for_no_socket() {
    let started = Instant::now();
    on(&VirtualClock::new(), 1).run(|| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = spawn_local(move || theirs.read(&mut [0]).unwrap());
        osier::yield_now();
        let past = now();
        (0..30_000).for_each(|_| sleep_until(past));
        drop(ours);
        reader.join().unwrap();
    });
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[test]
fn the_clock_does_not_move_to_a_timer_that_was_dropped() {
    let clock = VirtualClock::new();
    on(&clock, 1).run(|| {
        let event = Arc::new(Event::new());
        select! { () = Sleep::new(HOUR) => panic!("an hour has passed"), default => {} }
        let from_outside = Arc::clone(&event);
        let outside = std::thread::spawn(move || {
            // Real time: the clock gets its chance to go wrong.
            std::thread::sleep(20 * MS);
            from_outside.set();
        });
        event.wait();
        outside.join().unwrap();
    });
    assert_eq!(clock.elapsed(), Duration::ZERO);
}

/// The timers of futures have a wheel of their own, which stays behind while fibers sleep. A timer that is set meanwhile first moves to a lower
/// level there. That is something to do, and no look at the sockets.
#[test]
fn the_clock_asks_the_sockets_before_it_jumps_to_the_timer_of_a_future() {
    const ROUNDS: u32 = 50;
    let looked = on(&VirtualClock::new(), 1).run(|| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut looked = Duration::ZERO;
        // So that no timer stands at the beginning of a slot of an upper level, which has 64 ticks.
        pass(40 * MS);
        for _ in 0..ROUNDS {
            pass(108 * MS);
            let started = Instant::now();
            select! {
                _ = ours.readable_async() => panic!("nobody writes"),
                () = Sleep::new(20 * MS) => {}
            }
            looked += started.elapsed();
        }
        looked
    });
    // Each jump waits a millisecond for bytes that are on their way.
    assert!(looked >= ROUNDS * MS, "{looked:?} for {ROUNDS} jumps");
}
