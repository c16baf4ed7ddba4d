//! Meters: where the time of a fiber goes. The clock is virtual; a fiber that computes advances it.

use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use osier::fiber::{self, Activity, Meter, Part};
use osier::net::{TcpListener, TcpStream};
use osier::sync::{Event, Mutex, Semaphore};
use osier::time::{Stamp, VirtualClock};

const SECOND: Duration = Duration::from_secs(1);

/// Runs `body` on a fiber of a runtime with one worker.
fn run(body: impl FnOnce(&VirtualClock) + Send) {
    let clock = VirtualClock::new();
    let runtime = osier::Runtime::builder().workers(1).clock(clock.clone());
    runtime.build().unwrap().run(|| body(&clock));
}

/// The activities of a meter that have taken time, in whole seconds.
fn spent(meter: &Meter) -> Vec<(Activity, u64)> {
    let seconds = |activity| (activity, meter.spent(activity).as_secs());
    Activity::ALL
        .iter()
        .copied()
        .map(seconds)
        .filter(|(_, seconds)| *seconds > 0)
        .collect()
}

/// Runs `body` on this fiber under a meter.
fn metered(body: impl FnOnce()) -> Rc<Meter> {
    let meter = Meter::since(Stamp::now());
    let attached = meter.attach();
    body();
    drop(attached);
    meter
}

#[test]
fn each_wait_counts_as_what_it_waits_for() {
    run(|clock| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (mutex, semaphore, event) = (Mutex::new(()), Semaphore::new(0), Event::new());
        osier::scope(|scope| {
            scope.spawn_local(|| {
                let held = mutex.lock();
                let (mut stream, _) = listener.accept().unwrap();
                osier::sleep(2 * SECOND);
                stream.write_all(b"x").unwrap();
                osier::sleep(3 * SECOND);
                drop(held);
                osier::sleep(4 * SECOND);
                semaphore.add_permits(1);
                osier::sleep(5 * SECOND);
                event.set();
            });
            let meter = metered(|| {
                let mut stream = TcpStream::connect(addr).unwrap();
                stream.read_exact(&mut [0]).unwrap();
                drop(mutex.lock());
                drop(semaphore.acquire());
                event.wait();
                osier::sleep(6 * SECOND);
                clock.advance(7 * SECOND);
            });
            let expected = [
                (Activity::Running, 7),
                (Activity::Network, 2),
                (Activity::Lock, 7),
                (Activity::Sleep, 6),
                (Activity::Other, 5),
            ];
            assert_eq!(spent(&meter), expected);
        });
    });
}

#[test]
fn a_wait_behind_other_fibers_is_no_wait_for_what_has_come() {
    run(|clock| {
        osier::scope(|scope| {
            // It sleeps first, so it wakes first, and computes.
            scope.spawn_local(|| {
                osier::sleep(SECOND);
                clock.advance(3 * SECOND);
            });
            osier::yield_now();
            let meter = metered(|| osier::sleep(SECOND));
            assert_eq!(spent(&meter), [(Activity::Ready, 3), (Activity::Sleep, 1)]);
        });
        // A fiber that computes before it wakes another: until then the other waits for it.
        let event = Event::new();
        osier::scope(|scope| {
            scope.spawn_local(|| {
                clock.advance(2 * SECOND);
                event.set();
                clock.advance(4 * SECOND);
            });
            let meter = metered(|| event.wait());
            assert_eq!(spent(&meter), [(Activity::Ready, 4), (Activity::Other, 2)]);
        });
        // One that yields waits for nothing but its turn.
        osier::scope(|scope| {
            scope.spawn_local(|| clock.advance(SECOND));
            let meter = metered(osier::yield_now);
            assert_eq!(spent(&meter), [(Activity::Ready, 1)]);
        });
    });
}

#[test]
fn a_label_counts_waits_for_sockets_and_others_but_no_locks() {
    run(|_| {
        let mutex = Mutex::new(());
        osier::scope(|scope| {
            scope.spawn_local(|| {
                let _held = mutex.lock();
                osier::sleep(SECOND);
            });
            osier::yield_now();
            let meter = metered(|| {
                fiber::waits_for(Activity::Client, || {
                    drop(mutex.lock());
                    osier::spawn_local(|| osier::sleep(2 * SECOND)).join().unwrap();
                    fiber::waits_for(Activity::Writing, || {
                        osier::spawn_local(|| osier::sleep(3 * SECOND)).join().unwrap();
                    });
                    osier::spawn_local(|| osier::sleep(4 * SECOND)).join().unwrap();
                });
                osier::spawn_local(|| osier::sleep(5 * SECOND)).join().unwrap();
            });
            let expected = [
                (Activity::Lock, 1),
                (Activity::Client, 6),
                (Activity::Writing, 3),
                (Activity::Other, 5),
            ];
            assert_eq!(spent(&meter), expected);
        });
    });
}

#[test]
fn a_meter_counts_its_own_fiber_and_ends_with_its_guard() {
    run(|_| {
        let of_two = osier::scope(|scope| {
            let first = scope.spawn_local(|| metered(|| osier::sleep(SECOND)).spent(Activity::Sleep));
            let second = scope.spawn_local(|| metered(|| osier::sleep(2 * SECOND)).spent(Activity::Sleep));
            [first.join().unwrap(), second.join().unwrap()]
        });
        assert_eq!(of_two, [SECOND, 2 * SECOND]);
        let outer = Meter::since(Stamp::now());
        let attached = outer.attach();
        let inner = metered(|| osier::sleep(SECOND));
        osier::sleep(4 * SECOND);
        drop(attached);
        osier::sleep(8 * SECOND);
        assert_eq!(spent(&inner)[1], (Activity::Sleep, 1));
        assert_eq!(outer.spent(Activity::Sleep), 4 * SECOND);
        assert_eq!(outer.current().0, Activity::Running);
    });
}

#[test]
fn one_fiber_of_many_is_shown() {
    run(|_| {
        osier::scope(|scope| {
            let (sender, mut receiver) = osier::sync::mpsc::channel(1);
            let sleepers: Vec<_> = (0..20)
                .map(|number| {
                    let sender = sender.clone();
                    scope.spawn_local(move || {
                        if number == 7 {
                            sender.send(fiber::id().unwrap()).unwrap();
                        }
                        fiber::describe(&[Part::Text("sleeper "), Part::Number(number)], || osier::sleep(SECOND));
                    })
                })
                .collect();
            let id = receiver.recv().unwrap();
            let shown = osier::inspect::dump_fiber(id).unwrap();
            assert_eq!(shown.doing.as_deref(), Some("sleeper 7"));
            assert_eq!(shown.wait, Some(osier::inspect::Wait::Timer));
            let here = shown
                .frames
                .iter()
                .any(|frame| frame.file.as_deref().is_some_and(|file| file.ends_with("meter.rs")));
            assert!(here, "{:?}", shown.frames);
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
            assert!(osier::inspect::dump_fiber(id).is_none(), "it has ended");
        });
    });
}
