//! A runtime inside a foreign event loop.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::given::forever;
use osier::embed::Local;
use osier::fiber::Builder;
use osier::net::{TcpListener, TcpStream};
use osier::sync::Event;
use osier::{Runtime, sleep, spawn, spawn_local, yield_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::ThreadWatch;

const NOW: Option<Duration> = Some(Duration::ZERO);
const LONG: Duration = Duration::from_secs(30);

/// Whether the descriptor becomes readable within a time.
fn readable_within(local: &Local, time: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(local, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// Turns until the descriptor is no longer readable.
fn quiet(local: &Local) {
    while readable_within(local, Duration::ZERO) {
        local.turn(NOW).unwrap();
    }
}

#[test]
fn an_event_makes_its_waiter_ready_and_the_host_resumes_it() {
    let local = Local::new().unwrap();
    let (event, flag) = (Rc::new(Event::new()), Rc::new(Cell::new(false)));
    let (theirs, raised) = (Rc::clone(&event), Rc::clone(&flag));
    let waiter = local.enter(|| {
        Builder::new().name("waiter").spawn_local(move || {
            theirs.wait();
            raised.set(true);
        })
    });
    // It begins to wait.
    let begun = local.ready().unwrap().map(|fiber| fiber.resume()).count();
    assert_eq!(begun, 1);
    assert_eq!(local.ready().unwrap().count(), 0, "nothing is ready before it is set");

    event.set();
    assert!(!flag.get(), "ready is not resumed");
    let mut count = 0;
    for fiber in local.ready().unwrap() {
        assert_eq!(fiber.name().as_deref(), Some("waiter"));
        assert!(fiber.id().is_some() && fiber.place().unwrap().file() == file!());
        fiber.resume();
        count += 1;
    }
    assert_eq!((count, flag.get()), (1, true));
    assert!(waiter.unwrap().is_finished());
    assert_eq!(local.ready().unwrap().count(), 0, "each is given once");
}

#[test]
fn a_signaled_event_does_not_suspend() {
    let local = Local::new().unwrap();
    let event = Rc::new(Event::new());
    event.set();
    event.set();
    let theirs = Rc::clone(&event);
    let waiter = local.spawn(move || theirs.wait());
    assert_eq!(local.ready().unwrap().map(|fiber| fiber.resume()).count(), 1);
    assert!(waiter.is_finished());
    // The two signals were one, and it is used up.
    let theirs = Rc::clone(&event);
    let second = local.spawn(move || theirs.wait());
    local.turn(NOW).unwrap();
    assert!(!second.is_finished());
}

#[test]
fn the_fibers_are_given_in_the_order_in_which_they_became_ready() {
    let local = Local::new().unwrap();
    let order = Rc::new(RefCell::new(Vec::new()));
    let events: Vec<_> = (0..5).map(|_| Rc::new(Event::new())).collect();
    for (number, event) in events.iter().enumerate() {
        let (event, order) = (Rc::clone(event), Rc::clone(&order));
        drop(local.spawn(move || {
            event.wait();
            order.borrow_mut().push(number);
        }));
    }
    local.turn(NOW).unwrap();
    for number in [3, 1, 4, 0] {
        events[number].set();
    }
    let mut ready: Vec<_> = local.ready().unwrap().collect();
    assert_eq!(ready.len(), 4);
    // The host chooses.
    ready.pop().unwrap().resume();
    assert_eq!(*order.borrow(), [0]);
    // Those that were not resumed are ready the next time.
    drop(ready);
    assert!(readable_within(&local, Duration::ZERO));
    local.ready().unwrap().for_each(|fiber| fiber.resume());
    assert_eq!(*order.borrow(), [0, 3, 1, 4]);
}

#[test]
fn a_fiber_that_somebody_else_has_resumed_is_resumed_for_nothing() {
    let local = Local::new().unwrap();
    let turns = Rc::new(Cell::new(0));
    let count = Rc::clone(&turns);
    drop(local.spawn(move || {
        count.set(1);
        yield_now();
        count.set(2);
    }));
    let first = local.ready().unwrap().next().unwrap();
    let second = local.ready().unwrap().next();
    assert!(second.is_none(), "it is in the host's hands");
    first.resume();
    let held = local.ready().unwrap().next().unwrap();
    local.run_until(|| turns.get() == 1).unwrap();
    held.resume();
    assert_eq!(turns.get(), 2);
    // A handle to a fiber that has ended meanwhile does nothing.
    let event = Rc::new(Event::new());
    let theirs = Rc::clone(&event);
    let ends = local.spawn(move || theirs.wait());
    local.turn(NOW).unwrap();
    event.set();
    let held = local.ready().unwrap().next().unwrap();
    ends.cancel();
    local.run_until(|| ends.is_finished()).unwrap();
    assert_eq!(held.id(), None);
    held.resume();
}

#[test]
fn the_descriptor_tells_of_timers_and_of_nothing_before() {
    let local = Local::new().unwrap();
    // Real time: the descriptor of the poller tells of it.
    let fiber = local.spawn(|| sleep(Duration::from_millis(150)));
    assert!(readable_within(&local, Duration::ZERO), "there is a fiber to start");
    quiet(&local);
    let deadline = local.next_deadline().unwrap();
    assert!(!fiber.is_finished());
    let mut turns = 0;
    while !fiber.is_finished() {
        assert!(readable_within(&local, LONG));
        local.turn(NOW).unwrap();
        turns += 1;
    }
    assert!(Instant::now() >= deadline);
    assert!(turns < 20, "{turns} turns for one timer");
}

#[test]
fn the_descriptor_tells_of_wake_ups_from_other_threads() {
    let local = Local::new().unwrap();
    let event = Arc::new(Event::new());
    let theirs = Arc::clone(&event);
    let fiber = local.spawn(move || theirs.wait());
    quiet(&local);
    let waits = ThreadWatch::current();
    let setter = thread::spawn(move || {
        waits.until_it_waits();
        event.set();
    });
    assert!(readable_within(&local, LONG));
    setter.join().unwrap();
    quiet(&local);
    assert!(fiber.is_finished());
}

#[test]
fn the_descriptor_tells_of_sockets() {
    let local = Local::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(local.spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            drop(spawn_local(move || {
                let mut buf = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut buf) {
                    stream.write_all(&buf[..n]).unwrap();
                }
            }));
        }
    }));
    quiet(&local);
    let client = thread::spawn(move || {
        for round in 0..50u8 {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(&[round; 8]).unwrap();
            let mut back = [0; 8];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [round; 8]);
        }
    });
    while !client.is_finished() {
        if readable_within(&local, Duration::from_millis(100)) {
            local.turn(NOW).unwrap();
        }
    }
    client.join().unwrap();
}

#[test]
fn work_that_is_left_over_keeps_the_descriptor_readable() {
    let local = Local::new().unwrap();
    let rounds = Rc::new(Cell::new(0));
    let count = Rc::clone(&rounds);
    let fiber = local.spawn(move || {
        for _ in 0..5000 {
            count.set(count.get() + 1);
            yield_now();
        }
    });
    let mut turns = 0;
    while !fiber.is_finished() {
        assert!(
            readable_within(&local, Duration::ZERO),
            "after {turns} turns, {} rounds",
            rounds.get()
        );
        assert!(local.turn(NOW).unwrap() > 0);
        turns += 1;
    }
    assert!(turns > 1, "a turn has an end, whatever is ready");
}

#[test]
fn two_on_one_thread_do_not_mix() {
    let (one, two) = (Local::new().unwrap(), Local::new().unwrap());
    let event = Rc::new(Event::new());
    let theirs = Rc::clone(&event);
    let waits = one.spawn(move || {
        theirs.wait();
        // A timer of the first, which only its own turns may run.
        sleep(Duration::from_millis(5));
        1
    });
    one.turn(NOW).unwrap();
    // Set by a fiber of the other.
    let sets = two.spawn(move || event.set());
    two.run_until(|| sets.is_finished()).unwrap();
    assert!(!waits.is_finished());
    assert!(readable_within(&one, Duration::ZERO));
    one.run_until(|| waits.is_finished()).unwrap();
    assert_eq!(waits.join().unwrap(), 1);
}

#[test]
fn between_turns_the_thread_is_a_plain_one() {
    let local = Local::new().unwrap();
    let fiber = local.spawn(|| (osier::fiber::worker(), osier::fiber::current().is_some()));
    local.run_until(|| fiber.is_finished()).unwrap();
    assert_eq!(fiber.join().unwrap(), (Some(0), true));
    assert_eq!(osier::fiber::worker(), None);
    assert!(osier::fiber::current().is_none());
    // A blocking call blocks the thread.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || std::net::TcpStream::connect(address).unwrap().write_all(b"x").unwrap());
    listener.accept().unwrap().0.read_exact(&mut [0]).unwrap();
    client.join().unwrap();
    // `enter` makes it a worker between fibers.
    let refused = local.enter(|| listener.accept().unwrap_err().kind()).unwrap();
    assert_eq!(refused, ErrorKind::WouldBlock);
}

#[test]
fn on_a_worker_it_is_refused() {
    let local = Rc::new(Local::new().unwrap());
    let theirs = Rc::clone(&local);
    let inside = local.spawn(move || {
        let again = theirs.turn(NOW).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::WouldBlock);
        assert!(again.to_string().contains("do it in the loop of its host"), "{again}");
        assert_eq!(theirs.ready().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(theirs.spawn(|| ()));
        Local::new().unwrap_err().kind()
    });
    local.run_until(|| inside.is_finished()).unwrap();
    assert_eq!(inside.join().unwrap(), ErrorKind::WouldBlock);
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let refused = runtime.run(|| Local::new().unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert!(
        refused.to_string().contains("make it on a thread that is none"),
        "{refused}"
    );
}

#[test]
fn a_fiber_that_could_not_be_resumed_is_ready_again() {
    let local = Local::new().unwrap();
    let fiber = local.spawn(|| 7);
    let ready = local.ready().unwrap().next().unwrap();
    let host = Local::new().unwrap();
    let refused = host.enter(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ready.resume())));
    assert!(refused.unwrap().is_err());
    assert_eq!(local.ready().unwrap().map(|fiber| fiber.resume()).count(), 1);
    assert_eq!(fiber.join().unwrap(), 7);
}

#[test]
fn a_fiber_that_no_turn_has_begun_is_dropped_with_its_captures() {
    let builder = Runtime::builder().shutdown_timeout(Duration::ZERO);
    let local = builder.build_local().unwrap();
    // More than run in the last turn of a shutdown.
    const FIBERS: usize = 4000;
    let captured = Rc::new(());
    let fibers: Vec<_> = (0..FIBERS)
        .map(|_| {
            let theirs = Rc::clone(&captured);
            local.spawn(move || drop(theirs))
        })
        .collect();
    assert_eq!(local.ready().unwrap().count(), FIBERS);
    drop(local);
    assert_eq!(Rc::strong_count(&captured), 1);
    let ends = fibers.into_iter().map(|fiber| fiber.join());
    let cancelled = ends.filter_map(Result::err).filter(|end| end.is::<osier::Cancelled>());
    assert!(cancelled.count() > 0, "all have begun");
}

#[test]
fn the_drop_ends_its_fibers() {
    let local = Local::new().unwrap();
    let ended = Rc::new(Cell::new(0));
    struct Ends(Rc<Cell<u32>>);
    impl Drop for Ends {
        fn drop(&mut self) {
            // Its destructor may still wait.
            // The host of an embedded runtime has the time of the machine.
            sleep(Duration::from_millis(5));
            self.0.set(self.0.get() + 1);
        }
    }
    let waits = |ended: &Rc<Cell<u32>>| {
        let ends = Ends(Rc::clone(ended));
        local.spawn(move || {
            let _ends = ends;
            forever();
        })
    };
    let handles = [waits(&ended), waits(&ended)];
    local.turn(NOW).unwrap();
    drop(local);
    assert_eq!(ended.get(), 2);
    for handle in handles {
        assert!(handle.join().unwrap_err().is::<osier::Cancelled>());
    }
}

#[test]
fn it_can_be_dropped_while_its_host_unwinds_and_on_a_fiber() {
    let sleeper = |local: &Local| {
        let fiber = local.spawn(|| {
            let outcome = std::panic::catch_unwind(forever);
            assert!(!thread::panicking(), "the host's panic is not the fiber's");
            drop(outcome);
        });
        local.turn(NOW).unwrap();
        fiber
    };
    let mut handle = None;
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let local = Local::new().unwrap();
        handle = Some(sleeper(&local));
        std::panic::resume_unwind(Box::new("the host's"));
    }));
    assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"the host's"));
    assert!(handle.unwrap().join().is_ok());

    let (host, guest) = (Local::new().unwrap(), Local::new().unwrap());
    let handle = sleeper(&guest);
    let drops = host.spawn(move || {
        drop(guest);
        // It is its own fiber again.
        osier::yield_now();
        osier::fiber::current().is_some()
    });
    host.run_until(|| drops.is_finished()).unwrap();
    assert!(drops.join().unwrap());
    assert!(handle.join().is_ok());
}

#[test]
fn a_panic_goes_to_the_handle_and_the_host_goes_on() {
    let local = Local::new().unwrap();
    let panics = local.spawn(|| std::panic::resume_unwind(Box::new(7)));
    local.ready().unwrap().for_each(|fiber| fiber.resume());
    assert_eq!(panics.join().map(|(): ()| ()).unwrap_err().downcast_ref(), Some(&7));
    let after = local.spawn(|| 1);
    local.run_until(|| after.is_finished()).unwrap();
}

#[test]
fn futures_and_spawned_fibers_run_in_turns() {
    let local = Local::new().unwrap();
    let runs = local.spawn(|| {
        let child = spawn(|| 20);
        let task = osier::spawn_future(async {
            osier::time::Sleep::new(Duration::from_millis(5)).await;
            22
        });
        child.join().unwrap() + task.join().unwrap()
    });
    local.run_until(|| runs.is_finished()).unwrap();
    assert_eq!(runs.join().unwrap(), 42);
}

#[test]
fn it_is_dumped_and_counted_between_turns() {
    let local = Local::new().unwrap();
    let sleeper = local.enter(|| {
        Builder::new()
            .name("sleeper")
            // A timer to count.
            .spawn_local(|| sleep(Duration::from_secs(3600)))
    });
    local.turn(NOW).unwrap();
    let dump = local.dump();
    assert_eq!(dump.workers.len(), 1);
    assert_eq!(dump.workers[0].fibers[0].fiber.name(), Some("sleeper"), "{dump}");
    let metrics = &local.metrics().workers[0];
    assert_eq!(
        (metrics.fibers, metrics.fibers_started, metrics.timers),
        (1, 1, 1),
        "{metrics:?}"
    );
    sleeper.unwrap().cancel();
    local.run_until(|| local.metrics().workers[0].fibers == 0).unwrap();
}

#[test]
fn a_connection_out_of_a_turn_goes_on_in_one() {
    // Made on the plain thread, used by a fiber.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let local = Local::new().unwrap();
    let reads = local.spawn(move || {
        let mut buf = [0; 5];
        stream.read_exact(&mut buf).map(|()| (buf, stream))
    });
    quiet(&local);
    assert!(!reads.is_finished());
    peer.write_all(b"hello").unwrap();
    assert!(readable_within(&local, LONG));
    local.run_until(|| reads.is_finished()).unwrap();
    let (buf, stream) = reads.join().unwrap().unwrap();
    assert_eq!(&buf, b"hello");
    let _ = stream.as_fd();
}

#[test]
fn a_fiber_that_gives_way_is_ready_in_a_later_turn_and_keeps_the_host_awake() {
    let local = Local::new().unwrap();
    let pieces = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let pieces = Rc::clone(&pieces);
        drop(local.spawn(move || {
            for _ in 0..3 {
                pieces.set(pieces.get() + 1);
                osier::fiber::give_way();
            }
        }));
    }
    local.turn(NOW).unwrap();
    assert_eq!(pieces.get(), 2, "both have begun, and gave way");
    for turn in 0..4 {
        assert!(readable_within(&local, Duration::ZERO), "work is left: {turn}");
        local.turn(Some(LONG)).unwrap();
        assert_eq!(pieces.get(), 3 + turn, "one of them in each turn");
    }
    quiet(&local);
    assert_eq!(pieces.get(), 6);
}
