//! Tasks: spawned futures.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::given::{on, settle, timeless};
use osier::future::yield_now;
use osier::time::Sleep;
use osier::{Cancelled, block_on, spawn, spawn_future, spawn_future_local};

struct Count(Arc<AtomicUsize>);

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn eventually(condition: impl Fn() -> bool) {
    testkit::eventually("the condition", condition);
}

#[test]
fn a_task_gives_its_value_to_whoever_waits() {
    let runtime = on(2);
    assert_eq!(runtime.spawn_future(async { 1 }).join().unwrap(), 1, "a plain thread");
    runtime.run(|| {
        assert_eq!(spawn_future(async { 2 }).join().unwrap(), 2, "a fiber");
        assert_eq!(
            spawn_future_local(async { Rc::new(3) })
                .join()
                .map(|three| *three)
                .unwrap(),
            3
        );
        let nested = spawn_future(async { spawn_future(async { 4 }).await.unwrap() + 1 });
        assert_eq!(block_on(nested).unwrap(), 5, "a future");
    });
}

#[test]
fn a_panic_goes_to_the_handle_and_nowhere_else() {
    on(1).run(|| {
        let task = spawn_future(async { panic!("of the task") });
        let payload = task.join().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"of the task"));
        assert_eq!(
            spawn_future(async { "the worker lives" }).join().unwrap(),
            "the worker lives"
        );
    });
}

#[test]
fn a_cancelled_task_is_dropped_and_says_so() {
    let dropped = Arc::new(AtomicUsize::new(0));
    timeless(2).run(|| {
        let captured = Count(Arc::clone(&dropped));
        let task = spawn_future(async move {
            let _captured = captured;
            pending::<()>().await;
        });
        settle();
        assert!(!task.is_finished());
        assert!(block_on(task.cancel()).is_none());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);

        let done = spawn_future(async { 7 });
        eventually(|| done.is_finished()); // polled by the other worker: this one stands still
        assert_eq!(block_on(done.cancel()).unwrap().unwrap(), 7, "it had ended before");
    });
}

#[test]
fn cancelling_works_without_waiting_for_it() {
    let dropped = Arc::new(AtomicUsize::new(0));
    timeless(1).run(|| {
        let captured = Count(Arc::clone(&dropped));
        let task = spawn_future(async move {
            let _captured = captured;
            pending::<()>().await;
        });
        drop(task.cancel());
        osier::yield_now();
        settle();
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_dropped_handle_detaches() {
    let (done, finished) = mpsc::channel();
    let runtime = on(1);
    drop(runtime.spawn_future(async move {
        Sleep::new(Duration::from_millis(5)).await;
        done.send(()).unwrap();
    }));
    finished.recv_timeout(Duration::from_secs(20)).unwrap();
}

#[test]
fn the_end_of_a_runtime_drops_every_task_on_a_worker() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let runtime = on(2);
    let mut handles = Vec::new();
    for round in 0..300 {
        let captured = Count(Arc::clone(&dropped));
        handles.push(runtime.spawn_future(async move {
            let _captured = captured;
            match round % 3 {
                0 => pending::<()>().await,
                1 => Sleep::new(Duration::from_secs(3600)).await,
                _ => loop {
                    yield_now().await;
                },
            }
        }));
    }
    let on_their_worker = Arc::new(AtomicUsize::new(0));
    runtime.run(|| {
        for _ in 0..100 {
            let home = thread::current().id();
            let (captured, right) = (Count(Arc::clone(&dropped)), Arc::clone(&on_their_worker));
            struct Check(thread::ThreadId, Arc<AtomicUsize>, std::marker::PhantomData<Rc<()>>);
            impl Drop for Check {
                fn drop(&mut self) {
                    assert_eq!(thread::current().id(), self.0);
                    self.1.fetch_add(1, Ordering::SeqCst);
                }
            }
            let check = Check(home, right, std::marker::PhantomData);
            drop(spawn_future_local(async move {
                let (_captured, _check) = (captured, check);
                pending::<()>().await;
            }));
        }
    });
    drop(runtime);
    assert_eq!(dropped.load(Ordering::SeqCst), 400);
    assert_eq!(on_their_worker.load(Ordering::SeqCst), 100);
    for handle in handles {
        assert!(handle.join().unwrap_err().is::<Cancelled>());
    }
}

#[test]
fn a_blocking_call_inside_a_future_fails_instead_of_stopping_the_worker() {
    on(1).run(|| {
        // The call that fails.
        let task = spawn_future(async { osier::sleep(Duration::from_secs(60)) });
        let payload = task.join().unwrap_err();
        let text = payload.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("blocking call inside a future, callback or coroutine"),
            "{text}"
        );
        let task = spawn_future(async {
            let (reader, _writer) = std::io::pipe().unwrap();
            osier::io::readable(&reader, None).unwrap_err().kind()
        });
        assert_eq!(task.join().unwrap(), std::io::ErrorKind::WouldBlock);
    });
}

#[test]
fn tasks_move_and_local_ones_stay() {
    let runtime = on(2);
    let seen = runtime.run(|| {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let seen = Arc::clone(&seen);
                spawn_future(async move {
                    for _ in 0..20 {
                        seen.lock().unwrap().insert(thread::current().id());
                        // Work, so that the other worker has time to steal.
                        thread::sleep(Duration::from_micros(200));
                        yield_now().await;
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        let seen = seen.lock().unwrap().len();
        let home = thread::current().id();
        let local: Vec<_> = (0..64)
            .map(|_| {
                spawn_future_local(async move {
                    for _ in 0..20 {
                        assert_eq!(thread::current().id(), home);
                        yield_now().await;
                    }
                })
            })
            .collect();
        local.into_iter().for_each(|task| task.join().unwrap());
        seen
    });
    assert_eq!(seen, 2, "the second worker took none of them");
}

#[test]
fn a_local_task_is_woken_from_other_threads() {
    on(1).run(|| {
        let (give, waker) = mpsc::channel::<Waker>();
        let set = Arc::new(AtomicBool::new(false));
        let waits = testkit::ThreadWatch::current();
        let other = thread::spawn({
            let set = Arc::clone(&set);
            move || {
                let waker = waker.recv().unwrap();
                waits.until_it_waits();
                set.store(true, Ordering::SeqCst);
                waker.wake();
            }
        });
        let count = Rc::new(Cell::new(0));
        let polls = Rc::clone(&count);
        let task = spawn_future_local(poll_fn(move |cx| {
            polls.set(polls.get() + 1);
            if set.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            let _ = give.send(cx.waker().clone());
            Poll::Pending
        }));
        task.join().unwrap();
        assert_eq!(count.get(), 2);
        other.join().unwrap();
    });
}

#[test]
fn what_was_woken_last_runs_next_but_keeps_nobody_waiting() {
    on(1).run(|| {
        let order = Rc::new(RefCell::new(Vec::new()));
        // Two tasks that wake each other for ever would keep the slot; the third must get its turn.
        let stop = Rc::new(Cell::new(false));
        let ping = |name: &'static str| {
            let (order, stop) = (Rc::clone(&order), Rc::clone(&stop));
            async move {
                while !stop.get() {
                    order.borrow_mut().push(name);
                    yield_now().await;
                }
            }
        };
        let (a, b) = (spawn_future_local(ping("a")), spawn_future_local(ping("b")));
        let third = spawn_future_local({
            let stop = Rc::clone(&stop);
            async move { stop.set(true) }
        });
        third.join().unwrap();
        a.join().unwrap();
        b.join().unwrap();
        assert!(order.borrow().len() < 100, "{}", order.borrow().len());
    });
    // The same for Send tasks, which go through the slot.
    on(1).run(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicUsize::new(0));
        let busy = spawn_future({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            async move {
                while !stop.load(Ordering::SeqCst) {
                    rounds.fetch_add(1, Ordering::SeqCst);
                    yield_now().await;
                }
            }
        });
        let other = spawn_future(async move { stop.store(true, Ordering::SeqCst) });
        other.join().unwrap();
        busy.join().unwrap();
        assert!(rounds.load(Ordering::SeqCst) <= 64, "{rounds:?}");
    });
}

#[test]
fn fibers_go_on_beside_tasks_that_never_rest() {
    on(1).run(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let stop = Arc::clone(&stop);
                spawn_future(async move {
                    while !stop.load(Ordering::SeqCst) {
                        yield_now().await;
                    }
                })
            })
            .collect();
        let fiber = spawn(|| {
            for _ in 0..100 {
                osier::yield_now();
            }
            // A timer of the machine comes in spite of the tasks.
            osier::sleep(Duration::from_millis(10));
            "done"
        });
        assert_eq!(fiber.join().unwrap(), "done");
        stop.store(true, Ordering::SeqCst);
        busy.into_iter().for_each(|task| task.join().unwrap());
    });
}

osier::task_local! {
    static DEPTH: Cell<u32> = Cell::new(1);
    static GUARD: RefCell<Option<Count>> = RefCell::new(None);
}

#[test]
fn task_locals_belong_to_one_task_and_end_with_it() {
    assert!(DEPTH.try_with(|_| ()).is_err());
    let dropped = Arc::new(AtomicUsize::new(0));
    on(2).run(|| {
        assert!(DEPTH.try_with(|_| ()).is_err(), "a fiber is no task");
        let tasks: Vec<_> = (0..50u32)
            .map(|n| {
                let dropped = Arc::clone(&dropped);
                spawn_future(async move {
                    DEPTH.with(|depth| depth.set(depth.get() + n));
                    GUARD.with(|guard| *guard.borrow_mut() = Some(Count(dropped)));
                    for _ in 0..5 {
                        yield_now().await;
                        // Inside of one another's `with`, too.
                        GUARD.with(|guard| {
                            assert!(guard.borrow().is_some());
                            DEPTH.with(|depth| assert_eq!(depth.get(), 1 + n));
                        });
                    }
                    DEPTH.with(Cell::get)
                })
            })
            .collect();
        let sum: u32 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
        assert_eq!(sum, 50 + 49 * 50 / 2);
        assert_eq!(dropped.load(Ordering::SeqCst), 50, "before the handle sees the end");
    });
}

#[test]
fn a_task_knows_its_name_and_its_number() {
    assert!(osier::future::current().is_none());
    on(1).run(|| {
        assert!(osier::future::current().is_none());
        let task = osier::future::Builder::new().name("clerk").spawn(async {
            let first = osier::future::current().unwrap();
            yield_now().await;
            assert_eq!(osier::future::current().as_ref(), Some(&first));
            (first.id(), first.name().map(String::from))
        });
        let id = task.id();
        assert_eq!(task.join().unwrap(), (id, Some("clerk".into())));
        let other = spawn_future(async { osier::future::current().unwrap() });
        assert_ne!(other.id(), id);
        assert!(other.join().unwrap().name().is_none());
    });
}

#[test]
fn ten_thousand_tasks_from_ten_threads() {
    let runtime = Arc::new(on(2));
    let done = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..10)
        .map(|_| {
            let (runtime, done) = (Arc::clone(&runtime), Arc::clone(&done));
            thread::spawn(move || {
                let tasks: Vec<_> = (0..1000)
                    .map(|n| {
                        let done = Arc::clone(&done);
                        runtime.spawn_future(async move {
                            if n % 3 == 0 {
                                yield_now().await;
                            }
                            if n % 100 == 0 {
                                Sleep::new(Duration::from_millis(1)).await;
                            }
                            done.fetch_add(1, Ordering::SeqCst);
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|task| task.join().unwrap());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(done.load(Ordering::SeqCst), 10_000);
}

#[test]
fn a_future_that_panics_when_dropped_hurts_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let runtime = on(1);
    let task = runtime.spawn_future(async {
        let _bomb = Bomb;
        pending::<()>().await;
    });
    eventually(|| block_on(runtime.spawn_future(async { true })).unwrap());
    block_on(task.cancel());
    assert_eq!(runtime.spawn_future(async { 1 }).join().unwrap(), 1);
}

#[test]
fn a_task_and_a_fiber_wait_for_each_other() {
    timeless(2).run(|| {
        let task = spawn_future(async {
            let fiber = spawn(|| {
                settle();
                20
            });
            fiber.await.unwrap() + spawn_future(async { 1 }).await.unwrap()
        });
        assert_eq!(spawn(|| task.join().unwrap()).join().unwrap(), 21);
    });
}
