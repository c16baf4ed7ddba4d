//! `select!` and `select_async!`: which arm wins, what the losers keep, and the end of a wait on many.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::{on, settle, timeless};
use osier::{Cancelled, select, select_async};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

/// Never ready; counts its polls and its drops.
#[derive(Default)]
struct Counts {
    polls: AtomicUsize,
    drops: AtomicUsize,
}

struct Never<'a>(&'a Counts);

impl Future for Never<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.0.polls.fetch_add(1, Ordering::SeqCst);
        Poll::Pending
    }
}

impl Drop for Never<'_> {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counts {
    fn drops(&self) -> usize {
        self.drops.load(Ordering::SeqCst)
    }
    fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }
}

fn message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic's message is a text")).to_owned(),
    }
}

#[test]
fn the_first_that_is_ready_wins_and_its_body_is_the_value() {
    timeless(1).run(|| {
        let (sender, receiver) = oneshot::channel();
        osier::spawn_local(move || {
            settle();
            sender.send(20).unwrap();
        });
        let value = select! {
            number = receiver => number.unwrap() + 1,
            _ = pending::<String>() => 0,
        };
        assert_eq!(value, 21);
    });
}

#[test]
fn a_message_that_was_not_taken_stays_in_its_channel() {
    on(1).run(|| {
        let (to_a, mut a) = mpsc::channel(4);
        let (to_b, mut b) = mpsc::channel(4);
        let (mut from_a, mut from_b) = (0, 0);
        for round in 0..100 {
            to_a.try_send(round).unwrap();
            to_b.try_send(round).unwrap();
            // Both are ready both times. The loser of the first round is left.
            for _ in 0..2 {
                select! {
                    n = a.recv() => { assert_eq!(n, Some(round)); from_a += 1; }
                    n = b.recv() => { assert_eq!(n, Some(round)); from_b += 1; }
                    default => panic!("a message is lost in round {round}"),
                }
            }
        }
        assert_eq!((from_a, from_b), (100, 100));
        assert!(a.is_empty() && b.is_empty());
    });
}

#[test]
fn a_permit_on_its_way_to_a_loser_goes_to_the_next() {
    on(1).run(|| {
        let permits = Arc::new(Semaphore::new(0));
        let (stop, stopped) = oneshot::channel();
        let theirs = Arc::clone(&permits);
        let first = osier::spawn_local(move || {
            select! {
                biased;
                _ = stopped => "stopped",
                _ = theirs.acquire() => "permit",
            }
        });
        osier::yield_now();
        let theirs = Arc::clone(&permits);
        let second = osier::spawn_local(move || osier::block_on(theirs.acquire()).unwrap().forget());
        osier::yield_now();
        // Both become ready while the first fiber sleeps. It is first in line for the permit, and polls the other arm
        // first.
        permits.add_permits(1);
        stop.send(()).unwrap();
        assert_eq!(first.join().unwrap(), "stopped");
        second.join().unwrap();
        assert_eq!(permits.available_permits(), 0);
    });
}

#[test]
fn the_same_source_in_two_arms_gives_to_one_of_them() {
    on(1).run(|| {
        let permits = Arc::new(Semaphore::new(0));
        let theirs = Arc::clone(&permits);
        let giver = osier::spawn_local(move || {
            for _ in 0..100 {
                theirs.add_permits(1);
                osier::yield_now();
            }
        });
        let mut wins = [0, 0];
        for _ in 0..100 {
            let winner = select! {
                permit = permits.acquire() => { permit.unwrap().forget(); 0 }
                permit = permits.acquire() => { permit.unwrap().forget(); 1 }
            };
            wins[winner] += 1;
        }
        giver.join().unwrap();
        assert_eq!(wins[0] + wins[1], 100);
        assert_eq!(permits.available_permits(), 0);
    });
}

#[test]
fn hang_ups_and_errors_are_values() {
    on(2).run(|| {
        let (sender, mut receiver) = mpsc::channel::<u8>(1);
        drop(sender);
        let got = select! { message = receiver.recv() => message, _ = pending::<()>() => Some(1) };
        assert_eq!(got, None);

        let (sender, receiver) = oneshot::channel::<u8>();
        drop(sender);
        assert!(select! { outcome = receiver => outcome.is_err(), _ = pending::<()>() => false });

        let fails = osier::spawn(|| -> Result<u8, io::Error> { Err(io::ErrorKind::NotFound.into()) });
        let kind = select! {
            outcome = fails => outcome.unwrap().unwrap_err().kind(),
            _ = pending::<()>() => io::ErrorKind::Other,
        };
        assert_eq!(kind, io::ErrorKind::NotFound);

        let cancelled = osier::spawn(crate::given::forever);
        cancelled.cancel();
        let payload = select! { outcome = cancelled => outcome.unwrap_err(), _ = pending::<()>() => Box::new(()) };
        assert!(Cancelled::is_payload(&*payload));
    });
}

#[test]
fn default_runs_when_nothing_is_ready_and_only_then() {
    on(1).run(|| {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut once = || {
            select! {
                biased;
                number = receiver.recv() => number,
                default => None,
            }
        };
        assert_eq!(once(), None);
        sender.send(1).unwrap();
        assert_eq!(once(), Some(1));
        assert_eq!(once(), None);
    });
}

#[test]
fn default_polls_each_arm_once_and_drops_it() {
    let counts = Counts::default();
    let ran = select! {
        _ = Never(&counts) => false,
        _ = Never(&counts) => false,
        default => {
            assert_eq!(counts.drops(), 2);
            true
        }
    };
    assert!(ran);
    assert_eq!(counts.polls(), 2);
}

#[test]
fn a_timeout_runs_when_its_time_has_passed_and_not_before() {
    fn check() {
        for limit in [Duration::ZERO, SHORT, Duration::from_millis(30)] {
            let counts = Counts::default();
            let start = Instant::now();
            select! {
                () = Never(&counts) => unreachable!("never ready"),
                timeout limit => assert!(start.elapsed() >= limit),
            }
            assert_eq!(counts.drops(), 1);
            let deadline = Instant::now() + limit;
            select! {
                () = Never(&counts) => unreachable!("never ready"),
                until deadline => assert!(Instant::now() >= deadline),
            }
        }
        // Longer than the clock can represent.
        let quick = select! {
            n = async { osier::time::Sleep::new(SHORT).await; 1 } => n,
            timeout Duration::MAX => 0,
        };
        assert_eq!(quick, 1);
    }
    on(1).run(check);
    check();
}

#[test]
fn a_limit_that_is_none_never_comes() {
    timeless(1).run(|| {
        let mut asked = 0;
        for limit in [None, Some(Duration::ZERO), None] {
            let deadline = limit.map(|limit| osier::time::now() + limit);
            let by_time = select! {
                () = osier::time::Sleep::new(LONG) => false,
                until deadline => true,
            };
            let in_time = select! {
                () = osier::time::Sleep::new(LONG) => false,
                timeout limit => true,
            };
            let awaited = osier::block_on(async {
                select_async! {
                    () = osier::time::Sleep::new(LONG) => false,
                    until deadline => true,
                }
            });
            assert_eq!([by_time, in_time, awaited], [limit.is_some(); 3]);
            asked += 1;
        }
        assert_eq!(asked, 3);
    });
}

#[test]
fn what_is_ready_wins_over_a_timeout_that_has_passed() {
    on(1).run(|| {
        for _ in 0..100 {
            let winner = select! {
                _ = ready(()) => "ready",
                timeout Duration::ZERO => "timeout",
            };
            assert_eq!(winner, "ready");
        }
    });
}

#[test]
fn arms_that_are_always_ready_take_turns() {
    on(1).run(|| {
        let mut wins = [0; 4];
        let mut others = [0; 2];
        for _ in 0..1000 {
            let winner = select! {
                _ = ready(()) => 0,
                _ = ready(()) => 1,
                _ = ready(()) => 2,
                _ = ready(()) => 3,
            };
            wins[winner] += 1;
            // A second one on the same thread, which would be in step with a mere counter.
            let winner = select! { _ = ready(()) => 0, _ = ready(()) => 1 };
            others[winner] += 1;
        }
        assert!(wins.iter().all(|&wins| wins > 150), "{wins:?}");
        assert!(others.iter().all(|&wins| wins > 350), "{others:?}");
    });
}

#[test]
fn a_channel_that_is_never_empty_does_not_starve_another() {
    on(1).run(|| {
        let (flood, mut flooded) = mpsc::unbounded_channel();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        flood.send(()).unwrap();
        sender.send(()).unwrap();
        let mut rounds = 0;
        loop {
            select! {
                _ = flooded.recv() => { flood.send(()).unwrap(); }
                _ = receiver.recv() => break,
            }
            rounds += 1;
            assert!(rounds < 1000, "the second arm starves");
        }
    });
}

#[test]
fn biased_takes_the_first_as_written() {
    on(1).run(|| {
        for _ in 0..1000 {
            let winner = select! {
                biased;
                _ = pending::<()>() => 0,
                _ = ready(()) => 1,
                _ = ready(()) => 2,
            };
            assert_eq!(winner, 1);
        }
    });
}

#[test]
fn a_cancelled_select_unwinds_and_drops_every_arm() {
    timeless(1).run(|| {
        let counts: Arc<Counts> = Arc::default();
        let theirs = Arc::clone(&counts);
        let handle = osier::spawn_local(move || {
            select! {
                _ = Never(&theirs) => {}
                _ = Never(&theirs) => {}
                timeout LONG => {}
            }
            unreachable!("cancelled while it waits");
        });
        settle();
        assert_eq!((counts.polls() >= 2, counts.drops()), (true, 0));
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
        assert_eq!(counts.drops(), 2);
    });
}

#[test]
fn a_cancellation_reaches_a_loop_that_only_asks() {
    on(1).run(|| {
        let handle = osier::spawn_local(|| {
            loop {
                select! { _ = pending::<()>() => {} default => osier::yield_now() }
            }
        });
        osier::yield_now();
        handle.cancel();
        assert!(Cancelled::is_payload(&*handle.join().unwrap_err()));
    });
}

#[test]
fn an_outer_timeout_ends_a_select() {
    on(1).run(|| {
        let counts = Counts::default();
        let outcome = osier::timeout(SHORT, || {
            select! {
                _ = Never(&counts) => {}
                timeout LONG => {}
            }
        });
        assert!(outcome.is_err());
        assert_eq!(counts.drops(), 1);
    });
}

#[test]
fn a_panic_in_one_arm_drops_the_others() {
    timeless(1).run(|| {
        let counts = Counts::default();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            select! {
                biased;
                _ = Never(&counts) => {}
                _ = poll_fn(|_| -> Poll<()> { panic!("this arm") }) => {}
                _ = Never(&counts) => {}
            }
        }));
        assert_eq!(message(caught.unwrap_err()), "this arm");
        assert_eq!((counts.polls(), counts.drops()), (1, 2));
        // And the fiber goes on.
        settle();
    });
}

#[test]
fn the_losers_are_gone_before_the_body_runs() {
    on(1).run(|| {
        let counts = Counts::default();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        select! {
            _ = receiver.recv() => unreachable!("nothing was sent"),
            _ = Never(&counts) => unreachable!("never ready"),
            _ = ready(()) => {
                assert_eq!(counts.drops(), 1);
                // What a loser borrowed is free again.
                sender.send(5).unwrap();
                assert_eq!(receiver.try_recv(), Ok(5));
            }
        }
    });
}

#[test]
fn bodies_return_break_continue_and_use_the_question_mark() {
    fn parse(texts: &[&str]) -> Result<i32, std::num::ParseIntError> {
        let mut sum = 0;
        let mut texts = texts.iter();
        let total = 'outer: loop {
            select! {
                text = ready(texts.next()) => match text {
                    Some(&"skip") => continue,
                    Some(&"end") => return Ok(-1),
                    Some(text) => sum += text.parse::<i32>()?,
                    None => break 'outer sum,
                },
                _ = pending::<()>() => {}
            }
        };
        Ok(total)
    }
    on(1).run(|| {
        assert_eq!(parse(&["1", "skip", "2"]), Ok(3));
        assert_eq!(parse(&["1", "end", "x"]), Ok(-1));
        assert!(parse(&["1", "x"]).is_err());
    });
}

#[test]
fn an_arm_whose_condition_is_false_is_not_there() {
    on(1).run(|| {
        for open in [false, true] {
            let made = Cell::new(false);
            let taken = select! {
                biased;
                _ = { made.set(true); ready(()) }, if open => "conditional",
                _ = ready(()) => "other",
            };
            assert_eq!((taken, made.get()), (if open { "conditional" } else { "other" }, open));
        }
        let none = select! { _ = ready(()), if false => 1, default => 2 };
        assert_eq!(none, 2);
        let none = select! { _ = ready(()), if false => 1, timeout SHORT => 2 };
        assert_eq!(none, 2);
    });
}

#[test]
fn a_time_limit_whose_condition_is_false_is_not_there() {
    timeless(1).run(|| {
        let limit = Some(SHORT);
        for limited in [false, true] {
            let late = if limited { "late" } else { "slept" };
            let slept = || osier::time::Sleep::new(LONG);
            assert_eq!(
                select! { () = slept() => "slept", timeout SHORT, if limited => "late" },
                late
            );
            assert_eq!(
                select! { timeout limit, if limited => { "late" } () = slept() => "slept" },
                late
            );
            let by = osier::time::now() + SHORT;
            assert_eq!(
                select! { () = slept() => "slept", until by, if limited => "late", },
                late
            );
            let awaited = async {
                select_async! { () = slept() => "slept", until by, if limited => "late" }
            };
            assert_eq!(osier::block_on(awaited), late);
        }
    });
}

#[test]
fn a_select_that_could_never_end_panics() {
    fn assert_panics(select: impl FnOnce()) {
        let caught = catch_unwind(AssertUnwindSafe(select));
        assert!(message(caught.unwrap_err()).contains("no arm's condition is true"));
    }
    on(1).run(|| {
        let (no, never) = (false, None::<Instant>);
        assert_panics(|| select! { _ = ready(()), if no => {} });
        assert_panics(|| select! { _ = ready(()), if no => {}, timeout SHORT, if no => {} });
        assert_panics(|| select! { _ = ready(()), if no => {}, until never => {} });
        assert_panics(|| {
            osier::block_on(async {
                select_async! { _ = ready(()), if no => {} }
            })
        });
        assert_panics(|| {
            osier::block_on(async {
                select_async! { _ = ready(()), if no => {}, timeout SHORT, if no => {} }
            })
        });
    });
}

#[test]
fn a_time_limit_beyond_the_range_of_the_clock_waits_for_the_arms() {
    on(1).run(|| {
        let slept = || osier::time::Sleep::new(SHORT);
        assert!(select! { () = slept() => true, timeout Duration::MAX => false });
        assert!(osier::block_on(async {
            select_async! { () = slept() => true, timeout Duration::MAX => false }
        }));
    });
}

#[test]
fn patterns_bind_what_they_match() {
    on(1).run(|| {
        select! { (a, mut b) = ready((1, 2)) => { b += a; assert_eq!(b, 3) } }
        select! { Ok(n) | Err(n) = ready(Ok::<i32, i32>(4)) => assert_eq!(n, 4) }
        // These are words only where an arm begins with them alone.
        select! { timeout = ready(1) => assert_eq!(timeout, 1), until = pending::<i32>() => assert_eq!(until, 1) }
        let until = Instant::now();
        select! { _ = pending::<()>() => {} until (until + SHORT) => assert!(until.elapsed() >= SHORT) }
        struct Limits {
            idle: Duration,
        }
        let limits = Limits { idle: SHORT };
        select! { _ = pending::<()>() => {}, timeout limits.idle * 2 => {}, }
    });
}

#[test]
fn a_future_may_borrow_a_temporary() {
    on(1).run(|| {
        let shared = RefCell::new(mpsc::unbounded_channel::<i32>());
        shared.borrow().0.send(3).unwrap();
        let n = select! {
            n = shared.borrow_mut().1.recv() => { shared.borrow().0.send(4).unwrap(); n }
            timeout LONG => None,
        };
        assert_eq!((n, shared.borrow_mut().1.try_recv().ok()), (Some(3), Some(4)));
    });
}

#[test]
fn a_borrowed_future_goes_on_where_it_was() {
    on(1).run(|| {
        let steps = Cell::new(0);
        let mut work = pin!(async {
            for _ in 0..5 {
                osier::time::Sleep::new(SHORT).await;
                steps.set(steps.get() + 1);
            }
            "done"
        });
        let mut ticks = 0;
        let outcome = loop {
            select! {
                outcome = work.as_mut() => break outcome,
                timeout Duration::from_millis(2) => ticks += 1,
            }
        };
        assert_eq!((outcome, steps.get()), ("done", 5));
        assert!(ticks > 0);
    });
}

#[test]
fn selects_nest() {
    timeless(1).run(|| {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let theirs = sender.clone();
        osier::spawn_local(move || {
            for n in 0..2 {
                settle();
                theirs.send(n).unwrap();
            }
        });
        let both = select! {
            first = receiver.recv() => select! {
                second = receiver.recv() => (first, second),
                timeout LONG => (first, None),
            },
            _ = async {
                select_async! { _ = pending::<()>() => {} timeout LONG => {} }
            } => (None, None),
        };
        assert_eq!(both, (Some(0), Some(1)));
    });
}

#[test]
fn twelve_arms() {
    on(1).run(|| {
        let notifies: [Notify; 12] = std::array::from_fn(|_| Notify::new());
        let [a, b, c, d, e, f, g, h, i, j, k, l] = &notifies;
        osier::scope(|scope| {
            scope.spawn_local(|| {
                for notify in &notifies {
                    osier::yield_now();
                    notify.notify_one();
                }
            });
            let mut seen = [false; 12];
            for _ in 0..12 {
                let number = select! {
                    () = a.notified() => 0,
                    () = b.notified() => 1,
                    () = c.notified() => 2,
                    () = d.notified() => 3,
                    () = e.notified() => 4,
                    () = f.notified() => 5,
                    () = g.notified() => 6,
                    () = h.notified() => 7,
                    () = i.notified() => 8,
                    () = j.notified() => 9,
                    () = k.notified() => 10,
                    () = l.notified() => 11,
                };
                assert!(!seen[number], "{number} was notified once");
                seen[number] = true;
            }
        });
    });
}

#[test]
fn a_plain_thread_blocks_in_it() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let waits = testkit::ThreadWatch::current();
    let other = thread::spawn(move || {
        waits.until_it_waits();
        sender.send(8).unwrap();
        sender
    });
    let got = select! {
        n = receiver.recv() => n,
        timeout LONG => None,
    };
    assert_eq!(got, Some(8));
    drop(other.join().unwrap());
    assert_eq!(
        select! { n = receiver.recv() => n, _ = pending::<()>() => Some(0) },
        None
    );
}

#[test]
fn fibers_and_threads_lose_no_message_between_many_selects() {
    const EACH: usize = 2000;
    let runtime = on(2);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel::<usize>(8)).unzip();
    let thread_sender = senders[0].clone();
    let outside = thread::spawn(move || {
        for n in 0..EACH {
            thread_sender.blocking_send(n).unwrap();
        }
    });
    let sum = runtime.run(move || {
        for sender in senders {
            osier::spawn(move || {
                for n in 0..EACH {
                    osier::block_on(sender.send(n)).unwrap();
                }
            });
        }
        let [mut a, mut b, mut c] = <[_; 3]>::try_from(receivers).expect("three were made");
        let (mut sum, mut open) = (0, [true; 3]);
        while open.contains(&true) {
            select! {
                n = a.recv(), if open[0] => match n { Some(n) => sum += n, None => open[0] = false },
                n = b.recv(), if open[1] => match n { Some(n) => sum += n, None => open[1] = false },
                n = c.recv(), if open[2] => match n { Some(n) => sum += n, None => open[2] = false },
                // Cuts waits short at any moment; must lose nothing.
                timeout Duration::from_micros(50) => {}
            }
        }
        sum
    });
    outside.join().unwrap();
    assert_eq!(sum, 4 * (EACH * (EACH - 1) / 2));
}

#[test]
fn in_a_future_it_awaits() {
    timeless(1).run(|| {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (stop, mut stopped) = oneshot::channel::<()>();
        let counter = async move {
            let mut sum = 0;
            loop {
                select_async! {
                    biased;
                    n = receiver.recv() => {
                        osier::time::Sleep::new(Duration::from_millis(1)).await;
                        sum += n.ok_or("the sender hung up")?;
                    }
                    _ = &mut stopped => break,
                    timeout LONG => return Err("nothing has happened"),
                }
            }
            Ok(sum)
        };
        fn is_send<F: Send>(future: F) -> F {
            future
        }
        let counter = is_send(counter);
        let feeder = osier::spawn_local(move || {
            (1..=4).for_each(|n| sender.send(n).unwrap());
            settle();
            stop.send(()).unwrap();
            // Returned, so that it hangs up after the stop.
            sender
        });
        assert_eq!(osier::block_on(counter), Ok(10));
        drop(feeder.join().unwrap());
    });
}

#[test]
fn in_a_future_it_has_timeouts_deadlines_defaults_and_conditions() {
    on(1).run(|| {
        osier::block_on(async {
            let counts = Counts::default();
            let start = Instant::now();
            select_async! { () = Never(&counts) => unreachable!("never ready"), timeout SHORT => {} }
            assert!(start.elapsed() >= SHORT);
            let deadline = Instant::now() + SHORT;
            select_async! { () = Never(&counts) => unreachable!("never ready"), until deadline => {} }
            assert!(Instant::now() >= deadline);
            select_async! { () = Never(&counts) => unreachable!("never ready"), default => {} }
            assert_eq!(counts.drops(), 3);
            let n = select_async! { n = ready(1), if false => n, n = ready(2), if true => n };
            assert_eq!(n, 2);
        });
    });
}

#[test]
fn dropping_its_future_drops_every_arm() {
    on(1).run(|| {
        let counts = Counts::default();
        let mut future = Box::pin(async {
            select_async! { _ = Never(&counts) => {} _ = Never(&counts) => {} timeout LONG => {} }
        });
        assert_eq!(select! { _ = future.as_mut() => 1, default => 0 }, 0);
        assert_eq!((counts.polls(), counts.drops()), (2, 0));
        drop(future);
        assert_eq!(counts.drops(), 2);
    });
}

#[test]
fn a_join_handle_is_ready_when_its_fiber_has_ended() {
    timeless(2).run(|| {
        let mut slow = osier::spawn(|| {
            settle();
            "slow"
        });
        let mut quick = osier::spawn(|| "quick");
        let mut ended = Vec::new();
        while ended.len() < 2 {
            let name = select! {
                name = &mut slow, if !ended.contains(&"slow") => name,
                name = &mut quick, if !ended.contains(&"quick") => name,
            };
            ended.push(name.unwrap());
        }
        assert_eq!(ended, ["quick", "slow"]);
        assert!(slow.is_finished());
    });
}

#[test]
fn a_join_handle_that_lost_is_joined_later() {
    timeless(1).run(|| {
        let mut handle = osier::spawn_local(|| {
            settle();
            Rc::new(7)
        });
        for _ in 0..3 {
            select! { _ = &mut handle => unreachable!("it sleeps"), default => {} }
        }
        assert_eq!(*handle.join().unwrap(), 7);
    });
}

#[test]
fn a_join_handle_polled_after_it_was_ready_panics() {
    on(1).run(|| {
        let mut handle = osier::spawn_local(|| 7);
        assert_eq!(osier::block_on(&mut handle).unwrap(), 7);
        let caught = catch_unwind(AssertUnwindSafe(|| osier::block_on(&mut handle)));
        assert!(message(caught.unwrap_err()).contains("join handle was polled after"));
    });
}

#[test]
fn a_scoped_handle_is_a_leaf_and_a_panic_it_took_is_not_the_scope_s() {
    on(1).run(|| {
        let number = 5;
        let sum = osier::scope(|scope| {
            let good = scope.spawn_local(|| number + 1);
            let bad = scope.spawn_local(|| -> i32 { panic!("on purpose") });
            let mut sum = 0;
            let (mut good, mut bad) = (Some(good), Some(bad));
            while good.is_some() || bad.is_some() {
                select! {
                    n = async { good.as_mut().expect("its condition says so").await }, if good.is_some() => {
                        sum += n.unwrap();
                        good = None;
                    }
                    n = async { bad.as_mut().expect("its condition says so").await }, if bad.is_some() => {
                        assert_eq!(message(n.unwrap_err()), "on purpose");
                        bad = None;
                    }
                }
            }
            sum
        });
        assert_eq!(sum, 6);
    });
}
