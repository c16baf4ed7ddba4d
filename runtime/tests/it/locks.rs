//! Mutex, RwLock, Condvar, Semaphore, Barrier, Notify and `wait_until`: on fibers, on plain threads and in futures.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::given::{forever, on, settle, timeless};
use osier::Cancelled;
use osier::sync::{Barrier, Condvar, Event, Mutex, Notify, RwLock, RwLockWriteGuard, Semaphore};
use osier::time::{wait_until, wait_until_async};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Gives way to the other futures of an executor that has others.
async fn give_way() {
    let mut polled = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        match std::mem::replace(&mut polled, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// Runs `blocking` on fibers of two workers and on plain threads, and `future` on fibers and in a foreign executor, all at
/// once: four of each.
fn everywhere<F: Future<Output = ()>>(blocking: impl Fn() + Sync, future: impl Fn() -> F + Sync) {
    let runtime = on(2);
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(&blocking);
            threads.spawn(|| futures_lite::future::block_on(future()));
        }
        runtime.run(|| {
            osier::scope(|fibers| {
                for _ in 0..4 {
                    fibers.spawn(&blocking);
                    fibers.spawn(|| osier::block_on(future()));
                }
            });
        });
    });
}

#[test]
fn guards_and_locks_are_send_and_sync_if_what_they_hold_is() {
    fn send<T: Send>(_: &T) {}
    fn sync<T: Sync>(_: &T) {}
    let mutex = Mutex::new(std::cell::Cell::new(1));
    send(&mutex);
    sync(&mutex);
    send(&mutex.lock());
    send(&mutex.lock_async());
    let lock = RwLock::new(1);
    send(&lock.read_async());
    send(&lock.write_async());
    sync(&lock.read());
    sync(&lock.write());
    send(&lock.write());
    let semaphore = Semaphore::new(1);
    send(&semaphore.acquire_async());
    send(&Barrier::new(2).wait_async());
    send(&Notify::new().wait_async());
    send(&wait_until_async(&Notify::new(), || true));
}

#[test]
fn a_mutex_can_be_opened_without_locking() {
    let mut mutex = Mutex::from(3);
    *mutex.get_mut() += 1;
    assert_eq!(format!("{:?}", mutex.lock()), "4");
    assert_eq!(mutex.into_inner(), 4);
    assert_eq!(*Mutex::<String>::default().lock(), "");
    let unsized_one: &Mutex<[u8]> = &Mutex::new([1, 2, 3]);
    assert_eq!(unsized_one.lock().len(), 3);
    static STATIC: Mutex<u8> = Mutex::new(7);
    assert_eq!(*STATIC.lock(), 7);
}

#[test]
fn a_mutex_lets_in_one_at_a_time_wherever_they_come_from() {
    let counter = Mutex::new(0);
    let inside = AtomicBool::new(false);
    everywhere(
        || {
            for _ in 0..50 {
                let mut counter = counter.lock();
                assert!(!inside.swap(true, Ordering::SeqCst));
                let before = *counter;
                osier::yield_now();
                *counter = before + 1;
                inside.store(false, Ordering::SeqCst);
            }
        },
        || async {
            for _ in 0..50 {
                let mut counter = counter.lock_async().await;
                assert!(!inside.swap(true, Ordering::SeqCst));
                let before = *counter;
                give_way().await;
                *counter = before + 1;
                inside.store(false, Ordering::SeqCst);
            }
        },
    );
    assert_eq!(counter.into_inner(), 16 * 50);
}

#[test]
fn a_thousand_fibers_get_through_one_mutex() {
    for workers in [1, 2] {
        let counter = Mutex::new(0);
        on(workers).run(|| {
            osier::scope(|s| {
                for _ in 0..1000 {
                    s.spawn(|| {
                        for _ in 0..5 {
                            let mut counter = counter.lock();
                            osier::yield_now();
                            *counter += 1;
                        }
                    });
                }
            });
        });
        assert_eq!(counter.into_inner(), 5000);
    }
}

#[test]
fn a_mutex_is_handed_on_in_order_of_arrival() {
    on(1).run(|| {
        let mutex = Rc::new(Mutex::new(Vec::new()));
        let guard = mutex.lock();
        let waiting: Vec<_> = (0..10)
            .map(|n| {
                let mutex = Rc::clone(&mutex);
                let handle = osier::spawn_local(move || mutex.lock().push(n));
                osier::yield_now();
                handle
            })
            .collect();
        drop(guard);
        // Given to the first of them, who has not run yet.
        assert!(mutex.try_lock().is_none());
        waiting.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*mutex.lock(), Vec::from_iter(0..10));
    });
}

#[test]
fn a_guard_is_held_across_a_sleep_and_dropped_by_somebody_else() {
    timeless(2).run(|| {
        let mutex = Arc::new(Mutex::new(0));
        osier::scope(|s| {
            let mut guard = mutex.lock();
            s.spawn(|| *mutex.lock() *= 2);
            settle();
            *guard += 21;
            s.spawn(move || {
                settle();
                drop(guard);
            });
        });
        assert_eq!(*mutex.lock(), 42);
    });
}

#[test]
fn a_lock_granted_to_a_future_that_is_dropped_goes_to_the_next() {
    let mutex = Mutex::new(());
    let guard = mutex.lock();
    let mut second = pin!(mutex.lock_async());
    {
        let mut first = pin!(mutex.lock_async());
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        drop(guard);
    }
    let guard = match poll_once(second.as_mut()) {
        Poll::Ready(guard) => guard,
        Poll::Pending => panic!("the grant was lost"),
    };
    assert!(mutex.try_lock().is_none());
    drop(guard);
    assert!(mutex.try_lock().is_some());
}

#[test]
fn a_cancelled_or_timed_out_waiter_leaves_the_queue() {
    timeless(2).run(|| {
        let mutex = Arc::new(Mutex::new(0));
        let guard = mutex.lock();
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let mutex = Arc::clone(&mutex);
                osier::spawn(move || *mutex.lock() += 1)
            })
            .collect();
        assert!(osier::timeout(SHORT, || drop(mutex.lock())).is_err());
        waiting.iter().step_by(2).for_each(|handle| handle.cancel());
        settle();
        drop(guard);
        let went: usize = waiting.into_iter().map(|handle| handle.join().is_ok() as usize).sum();
        assert_eq!((went, *mutex.lock()), (10, 10));
    });
}

#[test]
fn cancelling_waiters_while_the_lock_goes_round_loses_no_grant() {
    on(2).run(|| {
        for round in 0..200 {
            let mutex = Arc::new(Mutex::new(()));
            let guard = mutex.lock();
            let waiting: Vec<_> = (0..4)
                .map(|_| {
                    let mutex = Arc::clone(&mutex);
                    osier::spawn(move || drop(mutex.lock()))
                })
                .collect();
            (0..round % 5).for_each(|_| osier::yield_now());
            drop(guard);
            waiting.iter().step_by(2).for_each(|handle| handle.cancel());
            for handle in waiting {
                let _ = handle.join();
            }
            assert!(mutex.try_lock().is_some(), "round {round}: the lock is lost");
        }
    });
}

#[test]
fn a_holder_that_unwinds_unlocks_and_poisons_nothing() {
    on(2).run(|| {
        let mutex = Arc::new(Mutex::new(0));
        let theirs = Arc::clone(&mutex);
        let panicked = osier::spawn(move || {
            *theirs.lock() += 1;
            let _guard = theirs.lock();
            panic!("with a guard");
        });
        assert!(panicked.join().is_err());
        let theirs = Arc::clone(&mutex);
        let cancelled = osier::spawn(move || {
            let mut guard = theirs.lock();
            *guard += 1;
            forever();
        });
        while mutex.try_lock().is_some() {
            osier::yield_now();
        }
        cancelled.cancel();
        assert!(Cancelled::is_payload(&*cancelled.join().unwrap_err()));
        assert_eq!(*mutex.lock(), 2);
    });
}

#[test]
fn a_destructor_of_an_unwinding_fiber_may_lock() {
    struct Count(Arc<Mutex<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }
    timeless(1).run(|| {
        let mutex = Arc::new(Mutex::new(0));
        let count = Count(Arc::clone(&mutex));
        let handle = osier::spawn_local(move || {
            let _count = count;
            forever();
        });
        osier::yield_now();
        let guard = mutex.lock();
        handle.cancel();
        settle();
        drop(guard);
        assert!(handle.join().is_err());
        assert_eq!(*mutex.lock(), 1);
    });
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    on(2).run(|| {
        let lock = RwLock::new(1);
        let (first, second) = (lock.read(), lock.read());
        assert!(lock.try_write().is_none() && lock.try_read().is_some());
        drop((first, second));
        let mut writer = lock.write();
        assert!(lock.try_read().is_none() && lock.try_write().is_none());
        *writer = 2;
        let reader = RwLockWriteGuard::downgrade(writer);
        assert_eq!((*reader, *lock.read()), (2, 2));
        assert!(lock.try_write().is_none());
    });
}

#[test]
fn a_writer_that_waits_goes_before_later_readers_and_lets_them_in_when_it_gives_up() {
    let lock = RwLock::new(0);
    let reader = lock.read();
    {
        let mut writer = pin!(lock.write_async());
        assert!(poll_once(writer.as_mut()).is_pending());
        assert!(lock.try_read().is_none());
    }
    assert!(lock.try_read().is_some());
    let mut writer = pin!(lock.write_async());
    let mut late = pin!(lock.read_async());
    assert!(poll_once(writer.as_mut()).is_pending());
    assert!(poll_once(late.as_mut()).is_pending());
    drop(reader);
    let Poll::Ready(guard) = poll_once(writer.as_mut()) else {
        panic!("the writer is next");
    };
    assert!(poll_once(late.as_mut()).is_pending());
    drop(guard);
    assert!(poll_once(late.as_mut()).is_ready());
}

#[test]
fn readers_never_see_what_a_writer_has_half_done() {
    let lock = RwLock::new(0i32);
    everywhere(
        || {
            for n in 0..40 {
                match n % 4 {
                    0 => {
                        let mut value = lock.write();
                        let before = std::mem::replace(&mut *value, -1);
                        osier::yield_now();
                        *value = before + 1;
                    }
                    _ => assert!(*lock.read() >= 0),
                }
            }
        },
        || async {
            for n in 0..40 {
                match n % 4 {
                    0 => {
                        let mut value = lock.write_async().await;
                        let before = std::mem::replace(&mut *value, -1);
                        give_way().await;
                        *value = before + 1;
                    }
                    _ => assert!(*lock.read_async().await >= 0),
                }
            }
        },
    );
    assert_eq!(lock.into_inner(), 16 * 10);
}

#[test]
fn what_a_lock_holds_is_dropped_once() {
    struct Count<'a>(&'a AtomicUsize);
    impl Drop for Count<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = AtomicUsize::new(0);
    let value = RwLock::new(Count(&drops)).into_inner();
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(value);
    drop(Mutex::new(Count(&drops)));
    assert_eq!(drops.load(Ordering::SeqCst), 2);
}

#[test]
fn a_semaphore_lets_in_as_many_as_it_has_permits() {
    let semaphore = Semaphore::new(3);
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let enter = || most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
    everywhere(
        || {
            for _ in 0..20 {
                let _permit = semaphore.acquire();
                enter();
                osier::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        },
        || async {
            for _ in 0..20 {
                let _permit = semaphore.acquire_async().await;
                enter();
                give_way().await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        },
    );
    assert!(most.into_inner() <= 3);
    assert_eq!(semaphore.available_permits(), 3);
}

#[test]
fn several_permits_that_borrow_nothing_come_and_go_together() {
    let semaphore = Arc::new(Semaphore::new(5));
    let three = osier::block_on(Arc::clone(&semaphore).acquire_many_owned_async(3));
    assert_eq!((three.permits(), semaphore.available_permits()), (3, 2));
    assert!(Arc::clone(&semaphore).try_acquire_many_owned(3).is_none());
    {
        let mut waiting = pin!(Arc::clone(&semaphore).acquire_many_owned_async(4));
        assert!(poll_once(waiting.as_mut()).is_pending());
    }
    assert_eq!(
        semaphore.available_permits(),
        2,
        "it has given back what it had gathered"
    );
    let two = Arc::clone(&semaphore).acquire_many_owned(2);
    assert!(Arc::ptr_eq(two.semaphore(), &semaphore));
    drop(three);
    assert_eq!(semaphore.available_permits(), 3);
    two.forget();
    assert_eq!(semaphore.available_permits(), 3);
}

#[test]
fn a_large_request_is_not_overtaken_and_gives_back_what_it_had_gathered() {
    let semaphore = Semaphore::new(3);
    let one = semaphore.acquire();
    assert_eq!(one.permits(), 1);
    {
        let mut three = pin!(semaphore.acquire_many_async(3));
        let mut small = pin!(semaphore.acquire_async());
        assert!(poll_once(three.as_mut()).is_pending());
        assert!(poll_once(small.as_mut()).is_pending());
        assert!(semaphore.try_acquire().is_none());
    }
    assert_eq!(semaphore.available_permits(), 2);
    one.forget();
    assert_eq!(semaphore.available_permits(), 2);
    assert!(semaphore.try_acquire_many(3).is_none());
    semaphore.add_permits(1);
    assert_eq!(semaphore.acquire_many(3).permits(), 3);
}

#[test]
fn an_owned_permit_limits_how_many_fibers_run() {
    on(2).run(|| {
        let (limit, running) = (Arc::new(Semaphore::new(4)), Arc::new(AtomicUsize::new(0)));
        let fibers: Vec<_> = (0..50)
            .map(|_| {
                let permit = Arc::clone(&limit).acquire_owned();
                let running = Arc::clone(&running);
                osier::spawn(move || {
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 4);
                    osier::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                })
            })
            .collect();
        drop(limit.acquire_many(4));
        assert_eq!(limit.available_permits(), 4);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(Arc::clone(&limit).try_acquire_owned().is_some());
    });
}

#[test]
fn a_barrier_lets_all_pass_together_with_one_leader() {
    const ROUNDS: usize = 20;
    let (barrier, leaders, arrived) = (Barrier::new(16), AtomicUsize::new(0), AtomicUsize::new(0));
    let check = |round: usize, leader: bool| {
        assert!(
            arrived.load(Ordering::SeqCst) >= 16 * (round + 1),
            "somebody passed alone"
        );
        leaders.fetch_add(leader as usize, Ordering::SeqCst);
    };
    everywhere(
        || {
            for round in 0..ROUNDS {
                arrived.fetch_add(1, Ordering::SeqCst);
                check(round, barrier.wait().is_leader());
            }
        },
        || async {
            for round in 0..ROUNDS {
                arrived.fetch_add(1, Ordering::SeqCst);
                check(round, barrier.wait_async().await.is_leader());
            }
        },
    );
    assert_eq!(leaders.into_inner(), ROUNDS);
    for parties in [0, 1] {
        assert!(Barrier::new(parties).wait().is_leader());
    }
}

#[test]
fn a_party_that_gives_up_has_not_come_to_the_barrier() {
    on(1).run(|| {
        let barrier = Rc::new(Barrier::new(2));
        assert!(osier::timeout(SHORT, || barrier.wait()).is_err());
        let theirs = Rc::clone(&barrier);
        let cancelled = osier::spawn_local(move || theirs.wait());
        osier::yield_now();
        cancelled.cancel();
        assert!(cancelled.join().is_err());
        // Both have gone: the first of the next two has to wait.
        let theirs = Rc::clone(&barrier);
        let first = osier::spawn_local(move || theirs.wait().is_leader());
        osier::yield_now();
        assert!(!first.is_finished());
        assert!(barrier.wait().is_leader());
        assert!(!first.join().unwrap());
    });
}

#[test]
fn one_notification_is_remembered_and_one_to_all_is_not() {
    let notify = Notify::new();
    notify.notify_one();
    notify.notify_one();
    notify.wait();
    let mut second = pin!(notify.wait_async());
    assert!(poll_once(second.as_mut()).is_pending());
    notify.notify_all();
    assert!(poll_once(second.as_mut()).is_ready());
    let before = notify.wait_async();
    notify.notify_all();
    let mut after = pin!(notify.wait_async());
    assert!(poll_once(pin!(before)).is_ready());
    assert!(poll_once(after.as_mut()).is_pending());
    assert!(!after.as_mut().enable());
    notify.notify_one();
    assert!(after.as_mut().enable());
}

#[test]
fn a_notification_wakes_the_first_and_is_passed_on_by_one_that_is_gone() {
    let notify = Notify::new();
    let (mut second, mut third) = (pin!(notify.wait_async()), pin!(notify.wait_async()));
    {
        let mut first = pin!(notify.wait_async());
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        assert!(poll_once(third.as_mut()).is_pending());
        notify.notify_one();
    }
    assert!(poll_once(third.as_mut()).is_pending());
    assert!(poll_once(second.as_mut()).is_ready());
}

#[test]
fn notifications_reach_fibers_threads_and_futures_in_order() {
    on(1).run(|| {
        let (notify, seen) = (Rc::new(Notify::new()), Rc::new(RefCell::new(Vec::new())));
        for n in 0..6 {
            let (notify, seen) = (Rc::clone(&notify), Rc::clone(&seen));
            drop(osier::spawn_local(move || {
                match n % 2 {
                    0 => notify.wait(),
                    _ => osier::block_on(notify.wait_async()),
                }
                seen.borrow_mut().push(n);
            }));
            osier::yield_now();
        }
        for n in 0..6 {
            assert_eq!(seen.borrow().len(), n);
            notify.notify_one();
            osier::yield_now();
        }
        assert_eq!(*seen.borrow(), [0, 1, 2, 3, 4, 5]);
    });
    let (ping, pong) = (Notify::new(), Notify::new());
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..200 {
                ping.wait();
                pong.notify_one();
            }
        });
        on(1).run(|| {
            for _ in 0..200 {
                ping.notify_one();
                pong.wait();
            }
        });
    });
}

#[test]
fn a_condition_is_seen_however_it_races_with_the_look() {
    let (turn, turned) = (AtomicUsize::new(0), Notify::new());
    let play = |me: usize| {
        for n in 0..500 {
            wait_until(&turned, || turn.load(Ordering::SeqCst) == 2 * n + me);
            turn.fetch_add(1, Ordering::SeqCst);
            turned.notify_all();
        }
    };
    on(2).run(|| {
        osier::scope(|s| {
            s.spawn(|| play(0));
            s.spawn(|| play(1));
        });
    });
    assert_eq!(turn.swap(0, Ordering::SeqCst), 1000);
    thread::scope(|s| {
        s.spawn(|| play(0));
        on(1).run(|| play(1));
    });
    assert_eq!(turn.into_inner(), 1000);
}

#[test]
fn a_condition_can_be_told_of_by_an_event_and_waited_for_in_a_future() {
    on(2).run(|| {
        let (event, done) = (Arc::new(Event::new()), AtomicUsize::new(0));
        osier::scope(|s| {
            for _ in 0..10 {
                s.spawn(|| {
                    done.fetch_add(1, Ordering::SeqCst);
                    event.set();
                });
            }
            osier::block_on(wait_until_async(&event, || done.load(Ordering::SeqCst) == 10));
        });
        // It holds: no notification is used up.
        let notify = Notify::new();
        notify.notify_one();
        wait_until(&notify, || true);
        notify.wait();
        assert!(osier::timeout(SHORT, || wait_until(&notify, || false)).is_err());
        notify.notify_one();
        notify.wait();
    });
}

#[test]
fn ten_thousand_calls_that_need_not_wait_do_not_stall() {
    let body = || {
        let (mutex, semaphore, notify) = (Mutex::new(0), Semaphore::new(1), Notify::new());
        for _ in 0..10_000 {
            *mutex.lock() += 1;
            drop(semaphore.acquire());
            notify.notify_one();
            notify.wait();
        }
        assert_eq!(mutex.into_inner(), 10_000);
    };
    body();
    on(1).run(body);
    // On a thread with a foreign cooperative budget: that of tokio.
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio.block_on(async {
        body();
        on(1).run(body);
    });
}

#[test]
fn a_blocking_lock_inside_a_callback_of_a_worker_says_where_to_go() {
    struct Locks(Arc<Mutex<()>>, std::sync::Mutex<Option<String>>);
    impl std::task::Wake for Locks {
        fn wake(self: Arc<Self>) {
            let outcome = catch_unwind(AssertUnwindSafe(|| drop(self.0.lock())));
            let said = outcome.unwrap_err().downcast_ref::<String>().cloned();
            *self.1.lock().unwrap() = said.or_else(|| Some("not a message".to_owned()));
        }
    }
    on(1).run(|| {
        let mutex = Arc::new(Mutex::new(()));
        let locks = Arc::new(Locks(Arc::clone(&mutex), std::sync::Mutex::new(None)));
        let _guard = mutex.lock();
        let waker = Waker::from(Arc::clone(&locks));
        let mut sleep = pin!(osier::time::Sleep::new(SHORT));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        while locks.1.lock().unwrap().is_none() {
            osier::yield_now();
        }
        let said = locks.1.lock().unwrap().take().unwrap();
        assert!(said.contains("spawn a fiber for it"), "{said}");
    });
}

#[test]
fn tasks_fibers_and_threads_share_a_lock() {
    let runtime = on(2);
    let counter = Arc::new(Mutex::new(0));
    let by_thread = Arc::clone(&counter);
    let thread = thread::spawn(move || (0..100).for_each(|_| *by_thread.lock() += 1));
    runtime.run(|| {
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let counter = Arc::clone(&counter);
                osier::spawn_future(async move {
                    for _ in 0..10 {
                        let mut counter = counter.lock_async().await;
                        let before = *counter;
                        give_way().await;
                        *counter = before + 1;
                    }
                })
            })
            .collect();
        osier::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| {
                    let mut counter = counter.lock();
                    osier::yield_now();
                    *counter += 10;
                });
            }
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
    thread.join().unwrap();
    assert_eq!(*counter.lock(), 1100);
}

#[test]
fn a_blocking_lock_inside_a_task_panics_only_if_it_would_have_to_wait() {
    on(1).run(|| {
        let mutex = Arc::new(Mutex::new(1));
        let theirs = Arc::clone(&mutex);
        let free = osier::spawn_future(async move { *theirs.lock() });
        assert_eq!(free.join().unwrap(), 1);
        let theirs = Arc::clone(&mutex);
        let _guard = mutex.lock();
        let held = osier::spawn_future(async move { *theirs.lock() });
        assert!(held.join().is_err());
    });
}

#[test]
fn a_lock_that_is_borrowed_exclusively_needs_no_locking() {
    let mut lock = RwLock::new(1);
    *lock.get_mut() += 1;
    assert_eq!(*lock.read(), 2);
    assert!(lock.try_write().is_some(), "nothing was locked");
    assert_eq!(lock.into_inner(), 2);
}

#[test]
fn a_condition_passes_values_between_fibers_threads_and_futures() {
    // One slot: producers wait while it is taken, consumers while it is free.
    let (slot, changed) = (Mutex::new(None), Condvar::new());
    let put = |n: usize| {
        *changed.wait_while(slot.lock(), |slot| slot.is_some()) = Some(n);
        changed.notify_all();
    };
    let take = || {
        let n = changed.wait_while(slot.lock(), |slot| slot.is_none()).take().unwrap();
        changed.notify_all();
        n
    };
    let take_async = async || {
        let slot = slot.lock_async().await;
        let n = changed
            .wait_while_async(slot, |slot| slot.is_none())
            .await
            .take()
            .unwrap();
        changed.notify_all();
        n
    };
    let sum = AtomicUsize::new(0);
    let add = |n| {
        sum.fetch_add(n, Ordering::SeqCst);
    };
    thread::scope(|threads| {
        threads.spawn(|| (0..200).for_each(|_| add(take())));
        threads.spawn(|| (0..200).for_each(&put));
        on(2).run(|| {
            osier::scope(|s| {
                s.spawn(|| (200..600).for_each(&put));
                s.spawn(|| (0..200).for_each(|_| add(take())));
                s.spawn(|| {
                    osier::block_on(async {
                        for _ in 0..200 {
                            add(take_async().await);
                        }
                    })
                });
            });
        });
    });
    assert_eq!(sum.into_inner(), (0..600).sum());
}

#[test]
fn a_condition_lets_one_or_all_go_on_in_order() {
    on(1).run(|| {
        let state = Rc::new((Mutex::new(()), Condvar::new(), RefCell::new(Vec::new())));
        let waiting: Vec<_> = (0..4)
            .map(|n| {
                let state = Rc::clone(&state);
                let handle = osier::spawn_local(move || {
                    let guard = state.1.wait(state.0.lock());
                    state.2.borrow_mut().push(n);
                    drop(guard);
                });
                osier::yield_now();
                handle
            })
            .collect();
        state.1.notify_one();
        osier::yield_now();
        assert_eq!(*state.2.borrow(), [0]);
        state.1.notify_one();
        osier::yield_now();
        assert_eq!(*state.2.borrow(), [0, 1]);
        state.1.notify_all();
        waiting.into_iter().for_each(|handle| handle.join().unwrap());
        assert_eq!(*state.2.borrow(), [0, 1, 2, 3]);
        state.1.notify_one(); // remembered by nobody
        let (guard, outcome) = state.1.wait_timeout(state.0.lock(), SHORT);
        assert!(outcome.timed_out());
        assert!(state.0.try_lock().is_none(), "it is locked again");
        drop(guard);
    });
}

#[test]
fn a_notification_goes_on_from_a_waiter_that_gives_up() {
    let (mutex, changed) = (Mutex::new(()), Condvar::new());
    let wait = async || drop(changed.wait_async(mutex.lock_async().await).await);
    let mut second = pin!(wait());
    let holder = {
        let mut first = pin!(wait());
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        changed.notify_one();
        // Notified, but it does not get the lock.
        let holder = mutex.lock();
        assert!(poll_once(first.as_mut()).is_pending());
        holder
    };
    drop(holder);
    assert!(poll_once(second.as_mut()).is_ready());
    assert!(mutex.try_lock().is_some());
}

#[test]
fn a_cancelled_wait_for_a_condition_unwinds_without_the_lock() {
    on(1).run(|| {
        let state = Arc::new((Mutex::new(0), Condvar::new()));
        let theirs = Arc::clone(&state);
        let waiting = osier::spawn(move || drop(theirs.1.wait(theirs.0.lock())));
        osier::yield_now();
        waiting.cancel();
        assert!(waiting.join().unwrap_err().is::<Cancelled>());
        *state.0.try_lock().expect("nobody holds it") += 1;
    });
}

#[test]
fn a_wait_for_a_condition_ends_in_time() {
    let body = || {
        let (mutex, changed) = (Mutex::new(1), Condvar::new());
        let (guard, outcome) = changed.wait_timeout_while(mutex.lock(), SHORT, |n| *n == 1);
        assert!(outcome.timed_out());
        let (guard, outcome) = changed.wait_timeout_while(guard, LONG, |n| *n != 1);
        assert!(!outcome.timed_out());
        drop(guard);
        thread::scope(|s| {
            let guard = mutex.lock();
            s.spawn(|| {
                *futures_lite::future::block_on(mutex.lock_async()) = 2;
                changed.notify_one();
            });
            let (guard, outcome) = changed.wait_timeout(guard, LONG);
            assert_eq!((*guard, outcome.timed_out()), (2, false));
        });
    };
    body();
    on(1).run(body);
}
