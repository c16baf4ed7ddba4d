//! Work in pieces: a fiber that gives way after each keeps the others waiting for one piece.

use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::given::on;
use osier::fiber;
use osier::net::UnixStream;
use osier::sync::Event;
use osier::time::VirtualClock;

/// The number of pieces done.
type Pieces = Arc<AtomicUsize>;

fn done(pieces: &Pieces) -> usize {
    pieces.load(Ordering::SeqCst)
}

/// Runs `test` on a fiber of `runtime` while eight fibers work in pieces.
fn beside_eight<T: Send + 'static>(
    runtime: &osier::Runtime,
    piece: impl Fn() + Clone + Send + 'static,
    test: impl FnOnce(&Pieces) -> T + Send + 'static,
) -> T {
    runtime.run(move || {
        let (pieces, stop) = (Pieces::default(), Arc::new(AtomicBool::new(false)));
        for _ in 0..8 {
            let (pieces, stop, piece) = (Arc::clone(&pieces), Arc::clone(&stop), piece.clone());
            drop(osier::spawn_local(move || {
                while !stop.load(Ordering::SeqCst) {
                    piece();
                    pieces.fetch_add(1, Ordering::SeqCst);
                    fiber::give_way();
                }
            }));
        }
        let result = test(&pieces);
        stop.store(true, Ordering::SeqCst);
        result
    })
}

/// Lets the eight work, so that whoever else has been started waits by now.
fn work_on(pieces: &Pieces) {
    let enough = done(pieces) + 100;
    while done(pieces) < enough {
        fiber::give_way();
    }
}

fn read_byte(mut stream: UnixStream) {
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn who_needs_a_socket_waits_for_one_piece_however_many_fibers_give_way() {
    /// Waits for a byte, and returns how many pieces were done when that had its effect.
    type Serve = fn(UnixStream, Pieces) -> usize;
    let ways: [(&str, Serve); 4] = [
        ("a fiber", |stream, pieces| {
            read_byte(stream);
            done(&pieces)
        }),
        ("a fiber that another wakes", |stream, pieces| {
            let event = Rc::new(Event::new());
            let signal = Rc::clone(&event);
            let second = osier::spawn_local(move || {
                signal.wait();
                done(&pieces)
            });
            read_byte(stream);
            event.set();
            second.join().unwrap()
        }),
        ("a fiber that another spawns", |stream, pieces| {
            read_byte(stream);
            osier::spawn_local(move || done(&pieces)).join().unwrap()
        }),
        ("a task", |stream, pieces| {
            let event = Rc::new(Event::new());
            let signal = Rc::clone(&event);
            let second = osier::spawn_future_local(async move {
                signal.wait_async().await;
                done(&pieces)
            });
            read_byte(stream);
            event.set();
            second.join().unwrap()
        }),
    ];
    for (who, serve) in ways {
        let pieces = beside_eight(
            &on(1),
            || (),
            move |pieces| {
                let (mut ours, theirs) = UnixStream::pair().unwrap();
                let seen = Arc::clone(pieces);
                let served = osier::spawn_local(move || serve(theirs, seen));
                work_on(pieces);
                let before = done(pieces);
                ours.write_all(b"x").unwrap();
                served.join().unwrap() - before
            },
        );

        // The piece in which the byte was sent is the one.
        assert_eq!(pieces, 0, "{who} waits for more");
    }
}

#[test]
fn a_socket_waits_for_one_piece_behind_a_crowd_too() {
    let pieces = beside_eight(
        &on(1),
        || (),
        |pieces| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let seen = Arc::clone(pieces);
            let reader = osier::spawn_local(move || {
                read_byte(theirs);
                done(&seen)
            });
            // More than a worker runs in several turns. The last to wake sends the byte.
            let gate = Arc::new(Event::manual());
            let crowd: Vec<_> = (0..2000)
                .map(|_| {
                    let gate = Arc::clone(&gate);
                    osier::spawn_local(move || gate.wait())
                })
                .collect();
            let (behind, seen, mut ours) = (Arc::clone(&gate), Arc::clone(pieces), ours);
            let last = osier::spawn_local(move || {
                behind.wait();
                let before = done(&seen);
                ours.write_all(b"x").unwrap();
                before
            });
            work_on(pieces);
            gate.set();
            crowd.into_iter().for_each(|fiber| fiber.join().unwrap());
            reader.join().unwrap() - last.join().unwrap()
        },
    );

    assert!(pieces <= 1, "{pieces} pieces before the socket is served");
}

/// The clock moves by a millisecond with each piece, and by nothing else.
#[test]
fn a_timer_waits_for_one_piece() {
    let clock = VirtualClock::new();
    clock.auto_advance(false);
    let runtime = osier::Runtime::builder()
        .workers(1)
        .clock(clock.clone())
        .build()
        .unwrap();
    let millisecond = Duration::from_millis(1);
    let moves = clock.clone();
    let late = beside_eight(
        &runtime,
        move || moves.advance(millisecond),
        move |pieces| {
            work_on(pieces);
            let due = osier::time::now() + 10 * millisecond;
            osier::time::sleep_until(due);
            clock.now() - due
        },
    );
    assert_eq!(late, Duration::ZERO);
}

#[test]
fn each_fiber_that_gives_way_gets_as_many_turns_as_the_others() {
    let counts = on(1).run(|| {
        let counts: Arc<[AtomicUsize; 4]> = Arc::default();
        let fibers: Vec<_> = (0..4)
            .map(|number| {
                let counts = Arc::clone(&counts);
                osier::spawn_local(move || {
                    while counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>() < 400 {
                        counts[number].fetch_add(1, Ordering::SeqCst);
                        fiber::give_way();
                    }
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        counts.each_ref().map(|count| count.load(Ordering::SeqCst))
    });
    assert!(counts.iter().all(|count| (99..=101).contains(count)), "{counts:?}");
}

#[test]
fn giving_way_is_a_point_of_cancellation() {
    let runtime = on(1);
    let fiber = runtime.spawn(|| {
        loop {
            fiber::give_way();
        }
    });
    fiber.cancel();
    assert!(fiber.join().unwrap_err().is::<osier::Cancelled>());
    // One that the end of the runtime finds at work ends, too.
    let ended = Arc::new(AtomicBool::new(false));
    struct Tells(Arc<AtomicBool>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let tells = Tells(Arc::clone(&ended));
    let (begun, begins) = std::sync::mpsc::channel();
    drop(runtime.spawn(move || {
        let _tells = tells;
        begun.send(()).unwrap();
        loop {
            fiber::give_way();
        }
    }));
    begins.recv().unwrap();
    drop(runtime);
    assert!(ended.load(Ordering::SeqCst));
}
