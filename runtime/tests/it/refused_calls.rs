//! A call of a future that is told to come again, because others have to run, has done nothing. No message is lost, no call that must not
//! wait notices it, no time limit is lost or comes first, and no other part of the future waits for ever.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use osier::callbacks::IoQueue;
use osier::fiber::JoinSet;
use osier::sync::{Event, Mailbox, Semaphore, mpsc};
use osier::time::interval;
use osier::{block_on, spawn_future, spawn_future_local};

use crate::given::{on, settle, timeless};
use crate::ready_futures::{LIMIT, MANY, Turns, Unordered};

/// Runs `with` in a poll of a task and of a `block_on` that has used up its calls.
fn after_many_calls(with: fn()) {
    let future = move || {
        let (sender, mut receiver) = mpsc::unbounded();
        let mut rounds = 0;
        poll_fn(move |cx| {
            sender.try_send(()).unwrap();
            let mut receive = receiver.recv_async();
            while pin!(&mut receive).poll(cx).is_ready() {
                sender.try_send(()).unwrap();
                rounds += 1;
                assert!(rounds < 100_000, "a poll has no bound");
            }
            with();
            Poll::Ready(())
        })
    };
    on(1).run(move || {
        spawn_future(future()).join().unwrap();
        block_on(future());
    });
}

#[test]
fn calls_that_must_not_wait_find_what_is_there() {
    // A fiber may wait in each of them, a task may not.
    after_many_calls(|| {
        let (sender, mut receiver) = mpsc::channel(8);
        sender.send(1).unwrap();
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(block_on(sender.send_async(2)), Ok(()));
        assert_eq!(block_on(receiver.recv_async()), Ok(2));
        drop(osier::sync::Mutex::new(()).lock());
        let event = Event::new();
        event.set();
        event.wait();
        sender.try_send(3).unwrap();
        let received = osier::select! {
            received = receiver.recv_async() => received.unwrap(),
            default => 0,
        };
        assert_eq!(received, 3);
    });
    after_many_calls(|| {
        let (sender, mut receiver) = mpsc::channel(8);
        sender.try_send(1).unwrap();
        let polled = pin!(receiver.recv_async()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(Ok(1)), "nobody would wait for it");
    });
    // A join of many, which another executor drives inside of the poll, ends.
    after_many_calls(|| {
        let (sender, mut receiver) = mpsc::unbounded();
        (0..MANY).for_each(|n| sender.try_send(n).unwrap());
        futures_lite::future::block_on(async {
            for n in 0..MANY {
                assert_eq!(receiver.recv_async().await, Ok(n));
            }
        });
    });
    after_many_calls(|| {
        let queue = IoQueue::new(0).unwrap();
        let (sender, mut receiver) = mpsc::unbounded();
        (0..MANY).for_each(|n| sender.try_send(n).unwrap());
        let sum = async {
            let mut sum = 0;
            for _ in 0..MANY {
                sum += receiver.recv_async().await.unwrap();
            }
            sum
        };
        assert_eq!(queue.run_until(sum).unwrap(), MANY * (MANY - 1) / 2);
    });
}

#[test]
fn a_set_of_fibers_tells_each_end_after_many_calls() {
    timeless(1).run(|| {
        let mut set = JoinSet::new();
        (0..MANY).for_each(|n| set.spawn(move || n));
        settle();
        let task = spawn_future(async move {
            let mut sum = 0;
            while let Some(ended) = set.try_join_next() {
                sum += ended.unwrap();
            }
            assert!(set.is_empty(), "{} were missed", set.len());
            sum
        });
        assert_eq!(task.join().unwrap(), MANY * (MANY - 1) / 2);
    });
}

#[test]
fn no_message_is_lost_to_a_call_that_has_to_come_again() {
    fn count(receiver: mpsc::Receiver<usize>) -> impl Future<Output = usize> {
        let mut receiver = receiver;
        async move {
            let mut next = 0;
            loop {
                // The losers of each round are dropped.
                osier::select_async! {
                    received = receiver.recv_async() => match received {
                        Ok(number) => {
                            assert_eq!(number, next);
                            next += 1;
                        }
                        Err(_) => return next,
                    },
                    () = osier::future::yield_now() => {}
                }
            }
        }
    }
    on(1).run(|| {
        for place in ["task", "fiber"] {
            let (sender, receiver) = mpsc::unbounded();
            (0..10 * MANY).for_each(|n| sender.try_send(n).unwrap());
            drop(sender);
            let counted = match place {
                "task" => spawn_future(count(receiver)).join().unwrap(),
                _ => block_on(count(receiver)),
            };
            assert_eq!(counted, 10 * MANY, "in a {place}");
        }
    });
}

#[test]
fn futures_with_wakers_of_their_own_all_end() {
    let sum = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&sum);
    let all = move || {
        let sum = Arc::clone(&theirs);
        async move {
            let (sum, permits) = (&*sum, &Semaphore::new(3));
            let mut all = Unordered::default();
            for _ in 0..10 {
                all.push(async move {
                    for _ in 0..MANY {
                        let _permit = permits.acquire_async().await;
                        sum.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            all.await;
        }
    };
    on(1).run(move || {
        spawn_future_local(all()).join().unwrap();
        block_on(all());
    });
    assert_eq!(sum.load(Ordering::SeqCst), 20 * MANY);
}

#[test]
fn a_time_limit_ends_a_loop_whose_calls_are_always_ready() {
    let busy = || async {
        let permits = Semaphore::new(1);
        loop {
            drop(permits.acquire_async().await);
        }
    };
    let limit = Duration::from_millis(20);
    on(1).run(move || {
        let start = Instant::now();
        let limited = spawn_future(async move {
            osier::select_async! {
                () = busy() => false,
                timeout limit => true,
            }
        });
        assert!(limited.join().unwrap() && start.elapsed() >= limit);
        let start = Instant::now();
        let limited = osier::select! {
            () = busy() => false,
            timeout limit => true,
        };
        assert!(limited && start.elapsed() >= limit);
        let mut leaves = [Box::pin(busy())];
        assert!(osier::wait_any_until(&mut leaves, Instant::now() + limit).is_none());
    });
}

#[test]
fn what_is_ready_wins_over_a_time_limit_however_much_it_is() {
    timeless(1).run(|| {
        let now = osier::time::now();
        let calls = || async {
            let (sender, mut receiver) = mpsc::unbounded();
            for n in 0..MANY {
                sender.try_send(n).unwrap();
                assert_eq!(receiver.recv_async().await, Ok(n));
            }
        };
        // The limit has passed before the first poll.
        let won = spawn_future(async move {
            osier::select_async! {
                () = calls() => true,
                until now => false,
            }
        });
        assert!(won.join().unwrap());
        assert!(osier::select! {
            () = calls() => true,
            until now => false,
        });
        for many in [MANY, 1200, 2600] {
            let handles = || -> Vec<_> { (0..many).map(|n| osier::spawn(move || n)).collect() };
            let mut outputs: Vec<_> = (0..many).map(|_| None).collect();
            let mut ended = handles();
            settle();
            assert!(
                osier::select::wait_all_until(&mut ended, &mut outputs, now),
                "{many} on a fiber"
            );
            let mut ended = handles();
            settle();
            let all = spawn_future(async move {
                let mut outputs: Vec<_> = (0..many).map(|_| None).collect();
                osier::select::wait_all_until_async(&mut ended, &mut outputs, now).await
            });
            assert!(all.join().unwrap(), "{many} in a task");
        }
    });
}

#[test]
fn a_time_limit_is_late_by_one_more_turn_at_most() {
    fn compute() {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {}
    }
    async fn busy(calls: &AtomicUsize) {
        let permits = Semaphore::new(1);
        loop {
            drop(permits.acquire_async().await);
            compute();
            calls.fetch_add(1, Ordering::SeqCst);
        }
    }
    on(1).run(|| {
        // It has passed before the first poll: all calls are late. A turn makes 16 of such calls.
        let past = Instant::now();
        osier::sleep(Duration::from_millis(10));
        let calls = AtomicUsize::new(0);
        osier::select! {
            () = busy(&calls) => {}
            until past => {}
        }
        assert!(calls.load(Ordering::SeqCst) <= 2 * 16, "{calls:?} on a fiber");
        let in_task = spawn_future(async move {
            let calls = AtomicUsize::new(0);
            osier::select_async! {
                () = busy(&calls) => {}
                until past => {}
            }
            calls.into_inner()
        });
        let calls = in_task.join().unwrap();
        assert!(calls <= 2 * 16, "{calls} in a task");
    });
}

#[test]
fn a_time_that_has_come_is_seen_by_polls_that_have_no_budget() {
    async fn late(past: Instant) -> bool {
        osier::select_async! {
            () = std::future::pending() => false,
            until past => true,
        }
    }
    after_many_calls(|| {
        let past = osier::time::now() - Duration::from_millis(100);
        let limited = osier::select! {
            limited = late(past) => limited,
            default => false,
        };
        assert!(limited, "in a select that does not wait");
        assert!(block_on(late(past)), "in a block_on");
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(
            pin!(late(past)).poll(&mut cx),
            Poll::Ready(true),
            "with a waker that wakes nobody"
        );
        let polls = AtomicUsize::new(0);
        let queue = IoQueue::new(0).unwrap();
        let limited = queue.run_until(async {
            let begins = poll_fn(|_| {
                polls.fetch_add(1, Ordering::SeqCst);
                Poll::<()>::Pending
            });
            osier::select_async! {
                () = begins => false,
                timeout Duration::from_millis(100) => true,
            }
        });
        // In a task, the queue may not wait.
        assert!(!matches!(limited, Ok(false)), "{limited:?}");
        assert!(polls.load(Ordering::SeqCst) < 10, "the queue spins: {polls:?}");
    });
}

#[test]
fn an_arm_that_suspends_leaves_its_freedom_to_nobody() {
    let in_time = on(1).run(|| {
        let turns = Turns::begin();
        let theirs = turns.clone();
        let busy = osier::spawn(move || {
            block_on(async {
                let permits = Semaphore::new(1);
                while theirs.go_on() {
                    drop(permits.acquire_async().await);
                }
            })
        });
        for _ in 0..3 {
            osier::select! {
                () = async { osier::sleep(Duration::from_millis(1)) } => {}
                default => {}
            }
        }
        turns.others_ran.store(true, Ordering::SeqCst);
        busy.join().unwrap();
        turns.in_time()
    });
    assert!(in_time, "the busy fiber has kept the worker for {LIMIT:?}");
}

#[test]
fn an_arm_goes_on_without_a_bound_after_a_block_on_in_it() {
    on(1).run(|| {
        let sum = osier::select! {
            sum = async {
                block_on(async {});
                let permits = Semaphore::new(1);
                for _ in 0..MANY {
                    drop(permits.acquire_async().await);
                }
                MANY
            } => sum,
            default => 0,
        };
        assert_eq!(sum, MANY);
    });
}

#[test]
fn flags_that_are_taken_at_once_end_a_wait_that_begins_after_many_calls() {
    timeless(1).run(|| {
        let flags = Arc::new(Mailbox::new());
        let theirs = Arc::clone(&flags);
        let heard = spawn_future(async move {
            let (permits, mut wait) = (Semaphore::new(1), pin!(theirs.wait_any_async(1)));
            let mut is_first = true;
            poll_fn(|cx| {
                if std::mem::take(&mut is_first) {
                    while pin!(permits.acquire_async()).poll(cx).is_ready() {}
                }
                wait.as_mut().poll(cx)
            })
            .await
        });
        // Between its first poll and its second.
        let pulse = spawn_future(async move {
            flags.raise(1);
            flags.take(1);
        });
        pulse.join().unwrap();
        settle();
        assert!(heard.is_finished(), "the wait has missed the flags");
    });
}

#[test]
fn each_part_of_a_join_has_its_turn_beside_one_that_uses_up_the_budget() {
    async fn busy(end: Arc<AtomicBool>) {
        let (permits, start) = (Semaphore::new(1), Instant::now());
        while !end.load(Ordering::SeqCst) && start.elapsed() < LIMIT {
            drop(permits.acquire_async().await);
        }
        assert!(start.elapsed() < LIMIT, "the other part has had no turn");
    }
    async fn beats(end: Arc<AtomicBool>) {
        let mut ticks = interval(Duration::from_millis(2));
        for _ in 0..5 {
            ticks.tick_async().await;
        }
        end.store(true, Ordering::SeqCst);
    }
    on(1).run(|| {
        let end = || Arc::new(AtomicBool::new(false));
        let one = end();
        osier::join!(busy(Arc::clone(&one)), beats(one));
        let one = end();
        let task = async move { osier::join_async!(busy(Arc::clone(&one)), beats(one)).await };
        spawn_future(task).join().unwrap();
        let one = end();
        let parts: [Pin<Box<dyn Future<Output = ()> + Send>>; 2] =
            [Box::pin(busy(Arc::clone(&one))), Box::pin(beats(one))];
        spawn_future(osier::select::wait_all_async(parts)).join().unwrap();
        // A join in a join. Both loops end with the first one that beats.
        let (first, second) = (end(), end());
        let ends = [(first.clone(), first.clone()), (first, second)];
        let [one, two] = ends.map(|(end, theirs)| async move {
            osier::join_async!(busy(end), beats(theirs)).await;
        });
        spawn_future(async move { osier::join_async!(one, two).await })
            .join()
            .unwrap();
    });
}

#[test]
fn a_part_that_suspends_the_fiber_does_not_keep_those_before_it_waiting() {
    on(1).run(|| {
        let (sender, mut receiver) = mpsc::unbounded();
        let many = async {
            let permits = Semaphore::new(1);
            for _ in 0..MANY {
                drop(permits.acquire_async().await);
            }
            sender.try_send(1).unwrap();
        };
        let suspends = async {
            osier::sleep(Duration::from_millis(1));
            receiver.recv_async().await.unwrap()
        };
        osier::join!(many, suspends);
        // Nor does it take a time limit away.
        let limited = async {
            let permits = Semaphore::new(1);
            osier::select_async! {
                () = async { loop { drop(permits.acquire_async().await); } } => {}
                timeout Duration::from_millis(10) => {}
            }
        };
        osier::join!(limited, async { osier::sleep(Duration::from_millis(1)) });
    });
}

#[test]
fn a_fiber_has_its_bound_after_a_select_in_which_calls_were_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = on(1).run(|| {
        let others_ran = Arc::new(AtomicBool::new(false));
        let (count, go_on) = (Arc::clone(&calls), Arc::clone(&others_ran));
        let busy = osier::spawn(move || {
            let permits = Semaphore::new(1);
            osier::select! { biased;
                () = async { loop { drop(permits.acquire_async().await); } } => {}
                () = async {} => {}
            }
            let lock = osier::sync::Mutex::new(0);
            while !go_on.load(Ordering::SeqCst) && count.load(Ordering::SeqCst) < 5000 {
                *lock.lock() += 1;
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(500) {}
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let count = Arc::clone(&calls);
        let other = osier::spawn(move || {
            others_ran.store(true, Ordering::SeqCst);
            count.load(Ordering::SeqCst)
        });
        busy.join().unwrap();
        other.join().unwrap()
    });
    assert!(seen <= 32, "others ran after {seen} calls");
}

#[test]
fn a_task_that_has_to_come_again_is_behind_the_tasks_that_are_ready() {
    on(1).run(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..3)
            .map(|index| {
                let order = Arc::clone(&order);
                spawn_future(async move {
                    for _ in 0..3 {
                        order.lock().unwrap().push(index);
                        let permits = Semaphore::new(1);
                        // Until the poll is over.
                        let mut polls = 0;
                        let mut acquire = pin!(async {
                            loop {
                                drop(permits.acquire_async().await);
                            }
                        });
                        poll_fn(|cx| {
                            let _: Poll<()> = acquire.as_mut().poll(cx);
                            polls += 1;
                            match polls {
                                1 => Poll::Pending,
                                _ => Poll::Ready(()),
                            }
                        })
                        .await;
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    });
}
