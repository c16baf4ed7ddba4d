//! Fibers: spawn, join, yield, names, locals, panics, fairness.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::given::{forever, on, pass, settle, timeless};
use osier::fiber::Part;
use osier::time::now;
use osier::{JoinHandle, Runtime, fiber};

#[test]
fn run_gives_the_value_of_its_body_which_may_borrow() {
    let text = String::from("borrowed");
    assert_eq!(osier::run(|| text.len()), 8);
    let mut count = 0;
    on(1).run(|| count += 1);
    assert_eq!(count, 1);
}

#[test]
fn run_panics_with_what_its_body_panics_with() {
    let outcome = std::panic::catch_unwind(|| osier::run(|| panic!("boom {}", std::process::id())));
    let expected = format!("boom {}", std::process::id());
    assert_eq!(outcome.unwrap_err().downcast_ref::<String>(), Some(&expected));
}

#[test]
fn join_gives_value_or_panic() {
    on(2).run(|| {
        assert_eq!(osier::spawn(|| 5).join().unwrap(), 5);
        let failed = osier::spawn(|| panic!("only me")).join();
        assert_eq!(failed.unwrap_err().downcast_ref::<&str>(), Some(&"only me"));
        assert_eq!(osier::spawn_local(|| 6).join().unwrap(), 6);
    });
}

#[test]
fn a_handle_dropped_lets_its_fiber_run_on() {
    static DONE: AtomicBool = AtomicBool::new(false);
    on(1).run(|| {
        drop(osier::spawn(|| {
            osier::yield_now();
            DONE.store(true, Ordering::SeqCst);
        }));
        let start = Instant::now();
        while !DONE.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(30) {
            osier::yield_now();
        }
    });
    assert!(DONE.load(Ordering::SeqCst));
}

#[test]
fn handles_are_joined_from_plain_threads_and_other_runtimes() {
    let runtime = timeless(1);
    let handle = runtime.spawn(|| {
        settle();
        "slept"
    });
    assert_eq!(handle.join().unwrap(), "slept");
    let handle = runtime.spawn(|| {
        settle();
        3
    });
    assert_eq!(timeless(1).run(|| handle.join().unwrap()), 3);
}

#[test]
fn fibers_take_turns() {
    on(1).run(|| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let started = Rc::new(Cell::new(0));
        let handles: Vec<_> = (0..3)
            .map(|id| {
                let order = Rc::clone(&order);
                let started = Rc::clone(&started);
                osier::spawn_local(move || {
                    started.set(started.get() + 1);
                    while started.get() < 3 {
                        osier::yield_now();
                    }
                    for round in 0..3 {
                        order.borrow_mut().push((round, id));
                        osier::yield_now();
                    }
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        // All fibers take turns, so none is two rounds ahead of another.
        let order = order.borrow();
        for (at, (round, _)) in order.iter().enumerate() {
            assert!(order[..at].iter().all(|(before, _)| *before <= round + 1), "{order:?}");
        }
    });
}

#[test]
fn rc_and_refcell_live_across_suspensions() {
    timeless(2).run(|| {
        let shared = Rc::new(RefCell::new(0));
        let handles: Vec<_> = (0..100)
            .map(|_| {
                let shared = Rc::clone(&shared);
                osier::spawn_local(move || {
                    settle();
                    *shared.borrow_mut() += 1;
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*shared.borrow(), 100);
    });
}

#[test]
fn a_started_fiber_stays_on_its_thread() {
    timeless(2).run(|| {
        let handles: Vec<_> = (0..50)
            .map(|_| {
                osier::spawn(|| {
                    let home = std::thread::current().id();
                    for _ in 0..20 {
                        osier::yield_now();
                        assert_eq!(std::thread::current().id(), home);
                        pass(Duration::from_micros(100));
                        assert_eq!(std::thread::current().id(), home);
                    }
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn spawned_work_reaches_the_other_worker() {
    on(2).run(|| {
        let seen = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let start = Instant::now();
        while seen.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "only one worker ever started a fiber: {seen:?}"
            );
            let handles: Vec<_> = (0..8)
                .map(|_| {
                    let seen = Arc::clone(&seen);
                    osier::spawn(move || {
                        seen[fiber::worker().unwrap()].fetch_add(1, Ordering::SeqCst);
                        // Busy, so that there is something to steal.
                        let until = Instant::now() + Duration::from_millis(1);
                        while Instant::now() < until {}
                    })
                })
                .collect();
            handles.into_iter().for_each(|handle| handle.join().unwrap());
        }
    });
}

#[test]
fn a_builder_names_places_and_sizes_a_fiber() {
    on(2).run(|| {
        for index in 0..2 {
            let builder = fiber::Builder::new()
                .name(format!("on {index}"))
                .worker(index)
                .stack_bytes(1 << 20);
            let seen = builder
                .spawn(|| (fiber::worker().unwrap(), fiber::current().unwrap()))
                .join()
                .unwrap();
            assert_eq!((seen.0, seen.1.name()), (index, Some(format!("on {index}").as_str())));
        }
        fn deep(n: u32) -> u32 {
            let frame = std::hint::black_box([n; 1024]);
            if n == 0 {
                frame[7]
            } else {
                deep(n - 1) + std::hint::black_box(frame)[3]
            }
        }
        // About 1.6 MB of frames: more than the default stack.
        assert_eq!(
            fiber::Builder::new()
                .stack_bytes(8 << 20)
                .spawn(|| deep(200))
                .join()
                .unwrap(),
            200 * 201 / 2
        );
        assert_eq!(osier::workers(), 2);
    });
}

#[test]
fn ids_are_never_given_twice() {
    on(2).run(|| {
        let handles: Vec<_> = (0..200)
            .map(|_| osier::spawn(|| fiber::current().unwrap().id()))
            .collect();
        let mut ids: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
        ids.push(fiber::current().unwrap().id());
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 201);
    });
}

#[test]
fn fiber_locals_are_dropped_on_the_fiber_and_may_block() {
    struct Loud(Rc<Cell<u32>>);
    impl Drop for Loud {
        fn drop(&mut self) {
            settle();
            assert!(fiber::current().is_some());
            self.0.set(self.0.get() + 1);
        }
    }
    osier::fiber_local! {
        static LOUD: RefCell<Option<Loud>> = RefCell::new(None);
    }
    timeless(1).run(|| {
        let drops = Rc::new(Cell::new(0));
        let theirs = Rc::clone(&drops);
        osier::spawn_local(move || LOUD.with(|loud| *loud.borrow_mut() = Some(Loud(theirs))))
            .join()
            .unwrap();
        pass(Duration::from_millis(20));
        assert_eq!(drops.get(), 1);
        assert!(LOUD.with(|loud| loud.borrow().is_none()));
    });
}

#[test]
fn a_value_that_nobody_wants_is_dropped_on_its_fiber_and_may_block() {
    struct Unwanted(std::sync::mpsc::Sender<bool>);
    impl Drop for Unwanted {
        fn drop(&mut self) {
            let is_on_a_fiber = fiber::current().is_some();
            self.0.send(is_on_a_fiber).unwrap();
            settle();
        }
    }
    timeless(1).run(|| {
        let (sender, dropped) = std::sync::mpsc::channel();
        drop(osier::spawn_local(move || Unwanted(sender)));
        pass(Duration::from_millis(20));
        assert_eq!(dropped.try_recv(), Ok(true));
    });
}

#[test]
fn the_locals_of_a_thread_that_ends_may_use_each_other() {
    struct Last(Option<std::sync::mpsc::Sender<u32>>);
    impl Drop for Last {
        fn drop(&mut self) {
            // What an older local holds, and one that is made now.
            let sum = OLDER.with(|older| older.0) + LATE.with(|late| *late);
            self.0.take().unwrap().send(sum).unwrap();
        }
    }
    struct Older(u32);
    osier::fiber_local! {
        static OLDER: Older = Older(40);
        static LATE: u32 = 2;
        static LAST: RefCell<Last> = RefCell::new(Last(None));
    }
    let (sender, sums) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        OLDER.with(|_| ());
        LAST.with(|last| last.borrow_mut().0 = Some(sender));
    });
    thread.join().unwrap();
    assert_eq!(sums.recv(), Ok(42));
}

#[test]
fn two_locals_that_use_each_other_as_they_end_make_no_endless_loop() {
    /// Counts its drops, and uses the other one.
    struct Mutual(Arc<AtomicUsize>, fn(&Arc<AtomicUsize>));
    impl Drop for Mutual {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            (self.1)(&self.0);
        }
    }
    osier::fiber_local! {
        static OLDER: RefCell<Option<Mutual>> = RefCell::new(None);
        static YOUNGER: RefCell<Option<Mutual>> = RefCell::new(None);
    }
    fn use_older(drops: &Arc<AtomicUsize>) {
        OLDER.with(|older| {
            _ = older
                .borrow_mut()
                .get_or_insert_with(|| Mutual(drops.clone(), use_younger))
        });
    }
    fn use_younger(drops: &Arc<AtomicUsize>) {
        YOUNGER.with(|younger| {
            _ = younger
                .borrow_mut()
                .get_or_insert_with(|| Mutual(drops.clone(), use_older))
        });
    }
    let use_both = |drops: &Arc<AtomicUsize>| {
        use_older(drops);
        use_younger(drops);
    };
    let drops = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&drops);
    std::thread::spawn(move || use_both(&theirs)).join().unwrap();
    assert_eq!(
        drops.swap(0, Ordering::SeqCst),
        5,
        "two at first, and one in each further round"
    );
    let theirs = Arc::clone(&drops);
    on(1).run(|| osier::spawn(move || use_both(&theirs)).join().unwrap());
    assert_eq!(drops.load(Ordering::SeqCst), 5);
}

#[test]
fn a_yield_loop_lets_others_run() {
    on(1).run(|| {
        let stop = Rc::new(Cell::new(false));
        let theirs = Rc::clone(&stop);
        let spinner = osier::spawn_local(move || {
            let mut turns = 0u64;
            while !theirs.get() {
                turns += 1;
                osier::yield_now();
            }
            turns
        });
        // A timer of the machine comes in spite of the loop.
        osier::sleep(Duration::from_millis(20));
        assert_eq!(osier::spawn(|| 1).join().unwrap(), 1);
        stop.set(true);
        assert!(spinner.join().unwrap() > 0);
    });
}

#[test]
fn sleeps_are_never_early_and_end_in_order() {
    timeless(1).run(|| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let handles: Vec<_> = [30u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let order = Rc::clone(&order);
                osier::spawn_local(move || {
                    let start = now();
                    pass(Duration::from_millis(ms));
                    assert!(now() - start >= Duration::from_millis(ms));
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*order.borrow(), [10, 20, 30]);
    });
}

#[test]
fn free_functions_say_that_there_is_no_runtime() {
    for (what, call) in [
        ("osier::spawn outside", (|| drop(osier::spawn(|| ()))) as fn()),
        ("osier::spawn_local outside", || drop(osier::spawn_local(|| ()))),
        ("osier::workers outside", || {
            osier::workers();
        }),
        ("osier::timeout outside", || {
            let _ = osier::timeout(Duration::ZERO, || ());
        }),
    ] {
        let payload = std::panic::catch_unwind(call).unwrap_err();
        let text = payload.downcast_ref::<String>().cloned();
        let text = text
            .or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()))
            .unwrap();
        assert!(text.starts_with(what), "{text}");
    }
    // These do what std's do.
    osier::yield_now();
    // The thread sleeps.
    osier::sleep(Duration::from_millis(1));
    assert_eq!(osier::block_on(async { 4 }), 4);
    assert_eq!(osier::unblock(|| 5), 5);
    assert_eq!(osier::shield(|| 6), 6);
}

#[test]
fn a_runtime_run_on_a_worker_says_what_to_do_instead() {
    let outer = on(1);
    let inner = Arc::new(on(1));
    let theirs = Arc::clone(&inner);
    let outcome = outer.spawn(move || theirs.run(|| ())).join();
    assert!(
        outcome
            .unwrap_err()
            .downcast_ref::<&str>()
            .unwrap()
            .contains("Runtime::run on a worker")
    );
    assert_eq!(inner.run(|| 1), 1);
}

#[test]
fn work_that_blocks_is_a_future_in_every_colour() {
    crate::colours::in_every_colour(|| async { assert_eq!(osier::unblock_async(|| 6 * 7).await, 42) });
}

#[test]
fn work_that_panics_panics_the_task_that_waits_for_it() {
    let runtime = on(1);
    let task = runtime.spawn_future(osier::unblock_async(|| -> u32 { panic!("the work") }));
    assert_eq!(task.join().unwrap_err().downcast_ref(), Some(&"the work"));
}

#[test]
fn work_whose_future_is_never_polled_does_not_begin() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    drop(osier::unblock_async(move || sender.send(())));
    // The work is dropped with its sender, and has sent nothing.
    assert!(receiver.recv().is_err());
}

#[test]
fn block_on_waits_for_any_future() {
    use std::future::poll_fn;
    use std::sync::Mutex;
    use std::task::{Poll, Waker};
    for workers in [1, 2] {
        on(workers).run(|| {
            let slot: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
            let theirs = Arc::clone(&slot);
            let thread = std::thread::spawn(move || {
                testkit::eventually("a future that waits", || theirs.lock().unwrap().1.is_some());
                let mut slot = theirs.lock().unwrap();
                slot.0 = true;
                if let Some(waker) = slot.1.take() {
                    waker.wake();
                }
            });
            osier::block_on(poll_fn(|cx| {
                let mut slot = slot.lock().unwrap();
                if slot.0 {
                    return Poll::Ready(());
                }
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }));
            thread.join().unwrap();
        });
    }
}

#[test]
fn a_blocking_call_between_fibers_fails_instead_of_stopping_the_worker() {
    use std::sync::Mutex;
    static ERROR: Mutex<Option<String>> = Mutex::new(None);
    /// Sleeps when it is dropped.
    struct Sleeper;
    impl Drop for Sleeper {
        fn drop(&mut self) {
            // The call that fails.
            let outcome = std::panic::catch_unwind(|| osier::sleep(Duration::from_secs(60)));
            *ERROR.lock().unwrap() = outcome.unwrap_err().downcast_ref::<String>().cloned();
        }
    }
    /// Spawns when it is dropped. At the shutdown no fiber starts any more, so the worker itself drops the captured
    /// value.
    struct Spawner;
    impl Drop for Spawner {
        fn drop(&mut self) {
            let sleeper = Sleeper;
            drop(osier::spawn_local(move || drop(sleeper)));
        }
    }
    on(1).run(|| {
        drop(osier::spawn(|| {
            let _spawner = Spawner;
            forever();
        }));
        osier::yield_now();
    });
    let error = ERROR.lock().unwrap().take();
    assert!(
        error
            .as_deref()
            .unwrap()
            .starts_with("blocking call inside a future, callback or coroutine"),
        "{error:?}"
    );
}

#[test]
fn hooks_run_before_each_suspension_from_the_inside_out() {
    timeless(1).run(|| {
        let seen = RefCell::new(Vec::new());
        fiber::before_suspend(&|| seen.borrow_mut().push("outer"), || {
            fiber::before_suspend(
                &|| {
                    // A hook may suspend; hooks do not run for that.
                    osier::yield_now();
                    seen.borrow_mut().push("inner");
                },
                settle,
            );
            osier::yield_now();
        });
        osier::yield_now();
        assert_eq!(*seen.borrow(), ["inner", "outer", "outer"]);
    });
}

#[test]
fn a_wait_that_is_over_while_a_hook_suspends_ends() {
    timeless(1).run(|| {
        let event = Rc::new(osier::sync::Event::new());
        let theirs = Rc::clone(&event);
        let other = osier::spawn_local(move || theirs.set());
        let limit = Duration::from_secs(1);
        let waited = osier::timeout(limit, || fiber::before_suspend(&osier::yield_now, || event.wait()));
        waited.expect("it was set");
        other.join().unwrap();
    });
}

#[test]
fn thousands_of_fibers_sleep_and_wake() {
    timeless(2).run(|| {
        let handles: Vec<_> = (0..20_000u64)
            .map(|n| {
                osier::spawn(move || {
                    pass(Duration::from_millis(n % 50));
                    n
                })
            })
            .collect();
        let sum: u64 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
        assert_eq!(sum, 20_000 * 19_999 / 2);
    });
}

/// The processors that this thread may use: `0-3,8`, for example.
fn allowed() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn pinned_workers_have_a_processor_each() {
    let ours = allowed();
    let runtime = Runtime::builder().workers(2).pin(true).build().unwrap();
    let seen = runtime.run(|| [0, 1].map(|index| fiber::Builder::new().worker(index).spawn(allowed).join().unwrap()));
    assert!(
        seen.iter().all(|cpu| cpu.parse::<u32>().is_ok()),
        "not one processor each: {seen:?}"
    );
    if ours.parse::<u32>().is_err() {
        assert_ne!(seen[0], seen[1], "of {ours}");
    }
    let count = osier::available_parallelism().unwrap();
    assert_eq!(runtime.run(|| osier::available_parallelism().unwrap()), count);
    // Blocking work has threads for all processors. They block each other here, so the workers have to start some.
    let together = Arc::new(Barrier::new(12));
    let blocking = runtime.run(move || {
        let fibers: [_; 12] = std::array::from_fn(|_| {
            let together = Arc::clone(&together);
            osier::spawn(move || {
                osier::unblock(move || {
                    together.wait();
                    allowed()
                })
            })
        });
        fibers.map(|fiber| fiber.join().unwrap())
    });
    assert!(
        blocking.iter().all(|cpus| *cpus == ours),
        "{blocking:?} instead of {ours}"
    );
}

#[test]
fn what_a_pinned_worker_starts_is_not_pinned_with_it() {
    let (ours, count) = (allowed(), osier::available_parallelism().unwrap().get());
    if ours.parse::<u32>().is_ok() {
        return println!("skipped: this process may use one processor, so nothing shows who is pinned");
    }
    let runtime = Runtime::builder().workers(1).pin(true).build().unwrap();
    let of_all = ours.clone();
    runtime.run(move || {
        let workers = |runtime: &Runtime| runtime.metrics().workers.len();
        let plain = Runtime::builder().build().unwrap();
        assert_eq!(workers(&plain), count);
        assert_eq!(plain.spawn(allowed).join().unwrap(), of_all);
        let pinned = Runtime::builder().workers(2).pin(true).build().unwrap();
        let seen = [0, 1].map(|worker| {
            let theirs = move || fiber::Builder::new().worker(worker).spawn(allowed).join().unwrap();
            pinned.spawn(theirs).join().unwrap()
        });
        assert!(
            seen[0] != seen[1] && seen.iter().all(|cpu| cpu.parse::<u32>().is_ok()),
            "not one processor each: {seen:?}"
        );
        let queue = osier::callbacks::IoQueue::new(1).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        queue.submit(move |_| sender.send(allowed()).unwrap()).unwrap();
        let of_callback = osier::unblock(move || receiver.recv().unwrap());
        assert_eq!(of_callback, of_all);
        assert!(allowed().parse::<u32>().is_ok(), "the worker itself stays where it is");
    });
}

#[test]
fn ids_of_later_runtimes_are_new() {
    let mut ids: Vec<_> = (0..8).map(|_| on(1).run(|| fiber::current().unwrap().id())).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
}

#[test]
fn what_runs_after_a_resumption_runs_from_the_outside_in() {
    use std::cell::RefCell;
    osier::run(|| {
        let log = RefCell::new(Vec::new());
        let say = |text: &'static str| log.borrow_mut().push(text);
        let outer = (|| say("outer before"), || say("outer after"));
        let inner = (|| say("inner before"), || say("inner after"));
        fiber::before_suspend(&outer.0, || {
            fiber::after_resume(&outer.1, || {
                fiber::before_suspend(&inner.0, || fiber::after_resume(&inner.1, osier::yield_now));
                say("left");
                osier::yield_now();
            });
        });
        osier::yield_now();
        let expected = [
            "inner before",
            "outer before",
            "outer after",
            "inner after",
            "left",
            "outer before",
            "outer after",
        ];
        assert_eq!(*log.borrow(), expected);
    });
}

/// Runs `body` with a hook of each kind, the first of which calls `before`. Returns how often each has run.
fn hooks_of(before: impl Fn(), body: impl FnOnce()) -> [u32; 2] {
    let ran = [Cell::new(0), Cell::new(0)];
    let count = |kind: usize| ran[kind].set(ran[kind].get() + 1);
    let put_away = || {
        count(0);
        before();
    };
    fiber::before_suspend(&put_away, || fiber::after_resume(&|| count(1), body));
    ran.map(Cell::into_inner)
}

/// Runs `body` on a fiber that gets its own handle.
fn with_own_handle<T: 'static>(body: impl FnOnce(&JoinHandle<T>) -> T + 'static) -> std::thread::Result<T> {
    let handle = Rc::new(std::cell::OnceCell::new());
    let own = Rc::clone(&handle);
    let _ = handle.set(osier::spawn_local(move || body(own.get().expect("set before it runs"))));
    while !handle.get().is_some_and(JoinHandle::is_finished) {
        osier::yield_now();
    }
    let handle = Rc::into_inner(handle).expect("the fiber has ended");
    handle.into_inner().expect("set above").join()
}

/// The wake-up of a cancellation, which a shield keeps away, has queued the fiber when it gives way.
#[test]
fn a_fiber_that_gives_way_although_it_is_queued_runs_each_hook_once() {
    on(1).run(|| {
        let ran = with_own_handle(|own: &JoinHandle<[u32; 2]>| {
            osier::shield(|| {
                own.cancel();
                hooks_of(|| (), fiber::give_way)
            })
        });
        assert_eq!(ran.unwrap(), [1, 1]);
    });
}

#[test]
fn a_fiber_that_does_not_suspend_after_all_fetches_what_its_hooks_have_put_away() {
    on(1).run(|| {
        let event = osier::sync::Event::new();
        assert_eq!(
            hooks_of(|| event.set(), || event.wait()),
            [1, 1],
            "the event comes meanwhile"
        );
        let ran = Rc::new(Cell::new([0, 0]));
        let seen = Rc::clone(&ran);
        let cancelled = with_own_handle(move |own: &JoinHandle<()>| {
            seen.set(hooks_of(
                || own.cancel(),
                || {
                    let (mut stream, _peer) = osier::net::UnixStream::pair().unwrap();
                    std::io::Read::read(&mut stream, &mut [0]).unwrap_err();
                },
            ));
        });
        assert!(cancelled.is_ok(), "it returns the error");
        assert_eq!(ran.get(), [1, 1], "the cancellation comes meanwhile");
    });
}

#[test]
fn a_fiber_is_named_by_what_it_does() {
    osier::run(|| {
        let started = std::rc::Rc::new(osier::sync::Event::new());
        let signal = started.clone();
        let busy = fiber::Builder::new().spawn_local(move || {
            fiber::describe(&[Part::Text("imports a.csv")], || {
                fiber::describe(&[Part::Text("row "), Part::Number(7)], || signal.set());
                osier::sleep(std::time::Duration::from_secs(3600));
            });
        });
        started.wait();
        osier::yield_now();
        let dump = osier::dump();
        let fibers = dump.workers.iter().flat_map(|worker| &worker.fibers);
        let doing: Vec<_> = fibers.filter_map(|fiber| fiber.doing.as_deref()).collect();
        assert_eq!(doing, ["imports a.csv"], "the inner text ended with its body");
        assert!(dump.to_string().contains(" (imports a.csv) spawned at "), "{dump}");
        busy.cancel();
    });
}

#[test]
fn every_kind_of_part_is_shown() {
    osier::run(|| {
        let clients = ["192.0.2.1:443", "[2001:db8::1]:443"].map(|client| client.parse().unwrap());
        let busy = fiber::Builder::new().spawn_local(move || {
            let [old, new] = clients.each_ref().map(Part::Address);
            let text = [
                Part::Text("row "),
                Part::Number(7),
                Part::Text(" for "),
                old,
                Part::Text(", "),
                new,
            ];
            fiber::describe(&text, || osier::sleep(std::time::Duration::from_secs(3600)));
        });
        osier::yield_now();
        let dump = osier::dump().to_string();
        assert!(
            dump.contains(" (row 7 for 192.0.2.1:443, [2001:db8::1]:443) spawned at "),
            "{dump}"
        );
        busy.cancel();
    });
}

/// Takes two seconds of the machine's time, after which the worker looks at pools.
#[test]
fn pools_are_trimmed_after_fibers_have_ended_until_nothing_is_left() {
    assert!(!fiber::on_trim(|| None), "no worker");
    on(1).run(|| {
        let (calls, trimmed) = (Rc::new(Cell::new(0)), Rc::new(osier::sync::Event::new()));
        let (count, done) = (calls.clone(), trimmed.clone());
        let is_added = fiber::on_trim(move || {
            count.set(count.get() + 1);
            assert!(count.get() < 3, "nothing was left");
            let left = 2 - count.get();
            if left == 0 {
                done.set();
            }
            Some(fiber::Trimmed { given: 1, left })
        });
        assert!(is_added && fiber::on_trim(|| None) && fiber::on_trim(|| panic!("on purpose")));
        osier::spawn_local(|| {}).join().unwrap();
        trimmed.wait();
        assert_eq!(calls.get(), 2);
    });
}
