//! The life of a task: every order of poll, wake, cancel, detach and panic, with each poll and drop counted.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::given::on;
use osier::future::yield_now;
use osier::{Cancelled, Runtime, Task, block_on, spawn_future, spawn_future_local};

const GENEROUS: Duration = Duration::from_secs(20);

fn eventually(what: &str, condition: impl Fn() -> bool) {
    match osier::fiber::current() {
        Some(_) => crate::given::until(condition),
        None => testkit::eventually(what, condition),
    }
}

/// The history of one future and its output.
#[derive(Default)]
struct Seen {
    polls: AtomicUsize,
    drops: AtomicUsize,
    outputs: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

impl Seen {
    fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    fn drops(&self) -> usize {
        self.drops.load(Ordering::SeqCst)
    }

    fn outputs(&self) -> usize {
        self.outputs.load(Ordering::SeqCst)
    }

    fn wake_all(&self) {
        let wakers: Vec<Waker> = self.wakers.lock().unwrap().clone();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A value whose drop is counted.
struct Output(Arc<Seen>);

impl Drop for Output {
    fn drop(&mut self) {
        self.0.outputs.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that keeps its wakers. `step` decides what each poll does.
struct Counted<S> {
    seen: Arc<Seen>,
    step: S,
}

impl<S: FnMut(&mut Context<'_>) -> Poll<()> + Unpin> Future for Counted<S> {
    type Output = Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Output> {
        // The order matters: a thread that has seen the poll may wake it.
        self.seen.wakers.lock().unwrap().push(cx.waker().clone());
        self.seen.polls.fetch_add(1, Ordering::SeqCst);
        (self.step)(cx).map(|()| Output(Arc::clone(&self.seen)))
    }
}

impl<S> Drop for Counted<S> {
    fn drop(&mut self) {
        self.seen.drops.fetch_add(1, Ordering::SeqCst);
    }
}

fn counted<S>(step: S) -> (Arc<Seen>, Counted<S>)
where
    S: FnMut(&mut Context<'_>) -> Poll<()> + Unpin,
{
    let seen = Arc::<Seen>::default();
    (Arc::clone(&seen), Counted { seen, step })
}

/// Two barriers between a poll on a worker and the test: `enter` was reached, `leave` may be passed.
fn gate() -> (mpsc::Receiver<()>, mpsc::Sender<()>, impl FnMut() + Send + Unpin) {
    let (entered, enter) = mpsc::channel();
    let (leave, leaving) = mpsc::channel::<()>();
    let pass = move || {
        entered.send(()).unwrap();
        leaving.recv_timeout(GENEROUS).unwrap();
    };
    (enter, leave, pass)
}

#[test]
fn one_cancelled_before_its_first_poll_is_never_polled_and_dropped_once() {
    on(1).run(|| {
        // The worker runs this fiber, so that it polls nothing until this waits.
        let (seen, future) = counted(|_| Poll::Ready(()));
        let task = spawn_future(future);
        assert_eq!((seen.polls(), task.is_finished()), (0, false));
        assert!(block_on(task.cancel()).is_none());
        assert_eq!((seen.polls(), seen.drops(), seen.outputs()), (0, 1, 0));

        let (seen, future) = counted(|_| Poll::Ready(()));
        assert!(block_on(spawn_future_local(future).cancel()).is_none());
        assert_eq!((seen.polls(), seen.drops(), seen.outputs()), (0, 1, 0));
    });
}

#[test]
fn one_cancelled_while_it_waits_is_polled_no_more_though_it_is_woken() {
    on(2).run(|| {
        for _ in 0..50 {
            let (seen, future) = counted(|_| Poll::Pending);
            let task = spawn_future(future);
            eventually("the first poll", || seen.polls() == 1);
            let cancelling = task.cancel();
            seen.wake_all();
            assert!(block_on(cancelling).is_none());
            seen.wake_all();
            osier::yield_now();
            assert_eq!((seen.polls(), seen.drops()), (1, 1));
        }
    });
}

#[test]
fn one_cancelled_while_it_is_polled_ends_with_that_poll() {
    let runtime = on(1);
    for ready in [false, true] {
        let (enter, leave, mut pass) = gate();
        let (seen, future) = counted(move |_| {
            pass();
            if ready { Poll::Ready(()) } else { Poll::Pending }
        });
        let task = runtime.spawn_future(future);
        enter.recv_timeout(GENEROUS).unwrap();
        let cancelling = task.cancel();
        seen.wake_all();
        leave.send(()).unwrap();
        assert!(block_on(cancelling).is_none(), "what it ended with is dropped");
        eventually("the drop", || seen.drops() == 1);
        // The value goes after the future.
        eventually("the drop of its value", || seen.outputs() == usize::from(ready));
        assert_eq!(seen.polls(), 1);
    }
}

#[test]
fn a_panic_in_a_poll_that_is_cancelled_hurts_nobody() {
    let runtime = on(1);
    let (enter, leave, mut pass) = gate();
    let (seen, future) = counted(move |_| {
        pass();
        panic!("while it is cancelled")
    });
    let task = runtime.spawn_future(future);
    enter.recv_timeout(GENEROUS).unwrap();
    let cancelling = task.cancel();
    leave.send(()).unwrap();
    assert!(block_on(cancelling).is_none());
    eventually("the drop", || seen.drops() == 1);
    assert_eq!(runtime.spawn_future(async { 1 }).join().unwrap(), 1);
}

#[test]
fn one_that_has_ended_gives_its_value_to_who_cancels() {
    on(1).run(|| {
        let (seen, future) = counted(|_| Poll::Ready(()));
        let task = spawn_future(future);
        eventually("the end", || task.is_finished());
        assert_eq!(
            (seen.drops(), seen.outputs()),
            (1, 0),
            "the value waits, the future does not"
        );
        drop(block_on(task.cancel()).unwrap().unwrap());
        assert_eq!(seen.outputs(), 1);

        let task = spawn_future(async { panic!("ended by a panic") });
        eventually("the end", || task.is_finished());
        let payload = block_on(task.cancel()).unwrap().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"ended by a panic"));
    });
}

#[test]
fn a_panic_drops_the_future_once_before_its_payload_is_given() {
    on(2).run(|| {
        for polls in [1, 3] {
            let mut left = polls;
            let (seen, future) = counted(move |cx| {
                left -= 1;
                if left == 0 {
                    panic!("in poll {polls}");
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            });
            let payload = spawn_future(future).join().map(drop).unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&format!("in poll {polls}")));
            assert_eq!((seen.polls(), seen.drops(), seen.outputs()), (polls, 1, 0));
            seen.wake_all();
            osier::yield_now();
            assert_eq!(seen.polls(), polls);
        }
    });
}

#[test]
fn many_wakes_of_one_poll_are_one_more_poll() {
    on(1).run(|| {
        let mut first = true;
        let (seen, future) = counted(move |cx| {
            if std::mem::take(&mut first) {
                for _ in 0..5 {
                    cx.waker().wake_by_ref();
                    let by_value = cx.waker().clone();
                    by_value.wake();
                }
            }
            Poll::Pending
        });
        let task = spawn_future(future);
        eventually("the second poll", || seen.polls() == 2);
        for _ in 0..20 {
            osier::yield_now();
        }
        assert_eq!(seen.polls(), 2);
        // Nor between two polls.
        (0..5).for_each(|_| seen.wake_all());
        eventually("the third poll", || seen.polls() == 3);
        for _ in 0..20 {
            osier::yield_now();
        }
        assert_eq!(seen.polls(), 3);
        drop(task);
    });
}

#[test]
fn a_wake_from_another_thread_during_a_poll_is_one_more_poll() {
    let runtime = on(1);
    let (enter, leave, mut pass) = gate();
    let mut first = true;
    let (seen, future) = counted(move |_| {
        if std::mem::take(&mut first) {
            pass();
            return Poll::Pending;
        }
        Poll::Ready(())
    });
    let task = runtime.spawn_future(future);
    enter.recv_timeout(GENEROUS).unwrap();
    (0..3).for_each(|_| seen.wake_all());
    assert_eq!(seen.polls(), 1, "it is polled by nobody else meanwhile");
    leave.send(()).unwrap();
    drop(task.join().unwrap());
    assert_eq!((seen.polls(), seen.drops(), seen.outputs()), (2, 1, 1));
}

#[test]
fn a_wake_after_the_end_does_nothing_whether_the_runtime_lives() {
    let runtime = on(1);
    let (done, future) = counted(|_| Poll::Ready(()));
    drop(runtime.spawn_future(future).join().unwrap());
    let (cut, future) = counted(|_| Poll::Pending);
    let waiting = runtime.spawn_future(future);
    eventually("a poll", || cut.polls() == 1);
    done.wake_all();
    drop(runtime);
    assert_eq!(cut.drops(), 1);
    for seen in [&done, &cut] {
        seen.wake_all();
        assert_eq!((seen.polls(), seen.drops()), (1, 1));
        seen.wakers.lock().unwrap().clear();
    }
    assert!(waiting.join().map(drop).unwrap_err().is::<Cancelled>());
    assert_eq!(Arc::strong_count(&cut), 1);
}

#[test]
fn a_detached_task_that_nobody_can_wake_is_kept_until_the_runtime_ends() {
    let runtime = on(1);
    let (seen, future) = counted(|_| Poll::Pending);
    drop(runtime.spawn_future(future));
    eventually("a poll", || seen.polls() == 1);
    seen.wakers.lock().unwrap().clear();
    // A drop too early has its chance.
    thread::sleep(Duration::from_millis(5));
    assert_eq!(seen.drops(), 0);
    drop(runtime);
    assert_eq!((seen.polls(), seen.drops()), (1, 1));
}

#[test]
fn wherever_its_handle_is_dropped_everything_is_dropped_once() {
    // Before the first poll, during it, between two, and after the end.
    for moment in 0..4 {
        let runtime = on(1);
        let (enter, leave, mut pass) = gate();
        let mut polled = 0;
        let (seen, future) = counted(move |_| {
            polled += 1;
            match (moment, polled) {
                (1, 1) => pass(),
                (2, 1) => return Poll::Pending,
                _ => {}
            }
            Poll::Ready(())
        });
        if moment == 0 {
            runtime.run(|| drop(spawn_future(future)));
        } else {
            let task = runtime.spawn_future(future);
            match moment {
                1 => {
                    enter.recv_timeout(GENEROUS).unwrap();
                    drop(task);
                    leave.send(()).unwrap();
                }
                2 => {
                    eventually("the first poll", || seen.polls() == 1);
                    drop(task);
                    seen.wake_all();
                }
                _ => {
                    eventually("the end", || task.is_finished());
                    assert_eq!(seen.outputs(), 0);
                    drop(task);
                }
            }
        }
        eventually("the drop of the value", || seen.outputs() == 1);
        assert_eq!(
            (seen.drops(), seen.polls()),
            (1, 1 + usize::from(moment == 2)),
            "{moment}"
        );
    }
}

#[test]
fn a_value_is_given_once() {
    on(1).run(|| {
        let (seen, future) = counted(|_| Poll::Ready(()));
        let mut task = spawn_future(future);
        drop(block_on(&mut task).unwrap());
        assert!(task.is_finished());
        let again = catch_unwind(AssertUnwindSafe(|| block_on(&mut task)));
        assert!(!matches!(again, Ok(Ok(_))), "a second value");
        drop(task);
        assert_eq!(seen.outputs(), 1);
    });
}

#[test]
fn whoever_waits_for_it_is_woken_at_its_end_and_only_the_last_one() {
    struct Wakes(AtomicUsize);
    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = on(1);
    let (enter, leave, mut pass) = gate();
    let mut task = runtime.spawn_future(async move { pass() });
    enter.recv_timeout(GENEROUS).unwrap();
    let [first, last] = [(); 2].map(|()| Arc::new(Wakes(AtomicUsize::new(0))));
    for wakes in [&first, &last] {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(pin!(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    leave.send(()).unwrap();
    eventually("a wake-up", || last.0.load(Ordering::SeqCst) == 1);
    assert_eq!(first.0.load(Ordering::SeqCst), 0);
    task.join().unwrap();
}

#[test]
fn cancelling_races_with_waking_and_ending() {
    let runtime = on(2);
    for round in 0..300_u32 {
        let mut left = round % 4;
        let (seen, future) = counted(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let task = runtime.spawn_future(future);
        if round % 3 == 0 {
            thread::yield_now();
        }
        let waking = Arc::clone(&seen);
        thread::scope(|threads| {
            threads.spawn(move || waking.wake_all());
            let ended = block_on(task.cancel());
            assert!(ended.is_none_or(|outcome| outcome.is_ok()));
        });
        eventually("the drop", || seen.drops() == 1);
        assert!(seen.outputs() <= 1 && seen.polls() <= 8);
    }
}

#[test]
fn each_runtime_polls_its_own_tasks_wherever_they_are_woken() {
    let (one, two) = (on(2), on(2));
    let threads_of = |runtime: &Runtime| -> Vec<ThreadId> {
        let id = |index| {
            move || {
                osier::fiber::Builder::new()
                    .worker(index)
                    .spawn(|| thread::current().id())
            }
        };
        runtime.run(|| (0..2).map(|index| id(index)().join().unwrap()).collect())
    };
    let (ours, theirs) = (threads_of(&one), threads_of(&two));
    assert!(ours.iter().all(|id| !theirs.contains(id)));
    let polled_on = Arc::new(Mutex::new(Vec::new()));
    let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
    let tasks: Vec<Task<()>> = (0..20)
        .map(|_| {
            let (polled_on, wakers) = (Arc::clone(&polled_on), Arc::clone(&wakers));
            let mut left = 10;
            one.spawn_future(poll_fn(move |cx| {
                polled_on.lock().unwrap().push(thread::current().id());
                left -= 1;
                if left == 0 {
                    return Poll::Ready(());
                }
                wakers.lock().unwrap().push(cx.waker().clone());
                Poll::Pending
            }))
        })
        .collect();
    // Woken by a fiber of the other one.
    two.run(|| {
        eventually("the end of all", || {
            let woken = std::mem::take(&mut *wakers.lock().unwrap());
            woken.into_iter().for_each(Waker::wake);
            tasks.iter().all(Task::is_finished)
        });
    });
    let polled_on = polled_on.lock().unwrap();
    assert_eq!(polled_on.len(), 200);
    assert!(polled_on.iter().all(|id| ours.contains(id)));
}

#[test]
fn the_one_woken_last_is_polled_first_and_the_others_in_their_order() {
    let runtime = on(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiting: Vec<_> = (0..5)
        .map(|n| {
            let (order, mut first) = (Arc::clone(&order), true);
            let (seen, future) = counted(move |_| {
                if std::mem::take(&mut first) {
                    return Poll::Pending;
                }
                order.lock().unwrap().push(n);
                Poll::Ready(())
            });
            let task = runtime.spawn_future(future);
            eventually("its first poll", || seen.polls() == 1);
            (seen, task)
        })
        .collect();
    let (wakers, tasks): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    let waking = runtime.spawn_future(async move { wakers.iter().for_each(|seen| seen.wake_all()) });
    waking.join().unwrap();
    tasks.into_iter().for_each(|task| drop(task.join().unwrap()));
    assert_eq!(*order.lock().unwrap(), [4, 0, 1, 2, 3]);
}

#[test]
fn what_a_busy_worker_would_run_next_is_taken_by_another() {
    let runtime = on(2);
    let (ran, runs) = mpsc::channel();
    let (seen, woken) = counted({
        let ran = ran.clone();
        let mut first = true;
        move |_| {
            if std::mem::take(&mut first) {
                return Poll::Pending;
            }
            ran.send("woken").unwrap();
            Poll::Ready(())
        }
    });
    drop(runtime.spawn_future(woken));
    eventually("its first poll", || seen.polls() == 1);
    let busy = runtime.spawn_future(async move {
        // Into the place of the one that runs next here; the new one calls the other worker.
        seen.wake_all();
        drop(spawn_future(async move { ran.send("new").unwrap() }));
        // And this worker is busy until both have run.
        let mut both = [(); 2].map(|()| runs.recv_timeout(GENEROUS).unwrap());
        both.sort_unstable();
        both
    });
    assert_eq!(busy.join().unwrap(), ["new", "woken"]);
}

#[test]
fn tasks_may_wake_spawn_and_cancel_while_the_end_of_the_runtime_drops_them() {
    struct Last {
        others: Arc<Seen>,
        dropped: Arc<AtomicUsize>,
        task: Option<Task<Output>>,
    }
    impl Drop for Last {
        fn drop(&mut self) {
            self.others.wake_all();
            drop(catch_unwind(|| {
                drop(spawn_future(async { panic!("started at the end") }))
            }));
            drop(catch_unwind(|| {
                drop(spawn_future_local(async { panic!("started at the end") }))
            }));
            if let Some(task) = self.task.take() {
                drop(task.cancel());
            }
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
    for _ in 0..20 {
        let runtime = on(2);
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut all = Vec::new();
        for _ in 0..10 {
            let (seen, future) = counted(|_| Poll::Pending);
            let task = runtime.spawn_future(future);
            let last = Last {
                others: Arc::clone(&seen),
                dropped: Arc::clone(&dropped),
                task: Some(task),
            };
            drop(runtime.spawn_future(async move {
                let _last = last;
                std::future::pending::<()>().await;
            }));
            all.push(seen);
        }
        drop(runtime);
        assert_eq!(dropped.load(Ordering::SeqCst), 10);
        assert!(all.iter().all(|seen| seen.drops() == 1));
    }
}

#[test]
fn what_has_ended_before_its_runtime_is_given_after_it() {
    let runtime = on(1);
    let task = runtime.spawn_future(async { String::from("kept") });
    eventually("the end", || task.is_finished());
    drop(runtime);
    assert_eq!(task.join().unwrap(), "kept");
}

#[test]
fn a_large_future_works() {
    let runtime = on(2);
    // Spawned here: each move of it takes stack, of which a fiber has little.
    let tasks: Vec<_> = (0..20_u8)
        .map(|n| {
            let large = [n; 60_000];
            runtime.spawn_future(async move {
                yield_now().await;
                large.iter().map(|&n| usize::from(n)).sum::<usize>()
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.join().unwrap(), n * 60_000);
    }
}

osier::task_local! {
    static KEPT: Mutex<Option<Output>> = Mutex::new(None);
}

#[test]
fn a_task_local_ends_with_its_task_although_the_handle_lives() {
    on(1).run(|| {
        let seen = Arc::<Seen>::default();
        let theirs = Arc::clone(&seen);
        let task = spawn_future(async move {
            KEPT.with(|kept| *kept.lock().unwrap() = Some(Output(theirs)));
            yield_now().await;
        });
        eventually("the end", || task.is_finished());
        assert_eq!(seen.outputs(), 1);
        task.join().unwrap();
    });
}

#[test]
fn block_on_gives_the_value_or_panics_with_what_the_future_does() {
    let check = || {
        assert_eq!(block_on(async { 1 + 2 }), 3);
        let payload = catch_unwind(|| block_on(async { panic!("boom") })).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"boom"));
    };
    check();
    on(1).run(check);
}

#[test]
fn unblock_gives_the_value_or_panics_with_what_the_work_does() {
    let check = || {
        let here = thread::current().id();
        assert_ne!(osier::unblock(|| thread::current().id()), here);
        let payload = catch_unwind(|| osier::unblock(|| panic!("boom"))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"boom"));
    };
    check();
    on(1).run(|| {
        check();
        // The worker is free meanwhile.
        let (release, released) = mpsc::channel();
        drop(osier::spawn_local(move || release.send(()).unwrap()));
        osier::unblock(move || released.recv_timeout(GENEROUS)).unwrap();
    });
}

#[test]
fn block_on_nests_on_threads_and_fibers() {
    fn deep(levels: u32) -> u32 {
        block_on(async {
            yield_now().await;
            let below = if levels == 0 { 0 } else { deep(levels - 1) };
            osier::time::Sleep::new(Duration::from_millis(1)).await;
            below + 1
        })
    }
    for _ in 0..2 {
        assert_eq!(deep(3), 4);
        assert_eq!(on(1).run(|| deep(3)), 4);
    }
    // A task must not block. Calls that need not wait work there too.
    let runtime = on(1);
    let task = runtime.spawn_future(async { block_on(async { block_on(async { 5 }) }) });
    assert_eq!(task.join().unwrap(), 5);
}

#[test]
fn a_future_is_polled_no_more_once_it_was_ready() {
    let check = || {
        let done = AtomicBool::new(false);
        block_on(poll_fn(|cx| {
            assert!(!done.swap(true, Ordering::SeqCst), "polled after it was ready");
            // It was woken already: a careless loop would poll it again.
            cx.waker().wake_by_ref();
            Poll::Ready(())
        }));
        osier::yield_now();
    };
    check();
    on(1).run(check);
}
