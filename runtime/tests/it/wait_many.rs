//! `wait_any`, `wait_all`, `join!` and `race`, blocking and as futures.

use std::cell::Cell;
use std::future::{Future, Pending, Ready, pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::given::{on, pass, settle, timeless};
use osier::select::{wait_all_into, wait_all_into_async, wait_all_until, wait_all_until_async, wait_any_until_async};
use osier::time::{Sleep, now};
use osier::{Cancelled, race, race_async, wait_all, wait_all_async, wait_any, wait_any_async, wait_any_until};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(5);

/// A future that is ready in its n-th poll and panics in the next. It wakes itself, and counts its drops.
struct Nth(usize, Arc<AtomicUsize>);

impl Future for Nth {
    type Output = usize;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<usize> {
        assert!(self.0 > 0, "polled after it was ready");
        self.0 -= 1;
        if self.0 == 0 {
            return Poll::Ready(7);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Nth {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn any_gives_the_index_and_output_of_the_first() {
    fn check() {
        let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..5).map(|_| oneshot::channel::<usize>()).unzip();
        let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
        let mut places: Vec<usize> = (0..5).collect();
        for place in [3, 0, 4, 1, 2] {
            senders[place]
                .take()
                .expect("each is sent to once")
                .send(place * 10)
                .unwrap();
            let (index, output) = wait_any(&mut receivers);
            assert_eq!((places[index], output), (place, Ok(place * 10)));
            receivers.swap_remove(index);
            places.swap_remove(index);
        }
        assert!(receivers.is_empty());
    }
    on(1).run(check);
    check();
}

#[test]
fn any_takes_leaves_of_several_types() {
    timeless(1).run(|| {
        let notify = Notify::new();
        let permits = Semaphore::new(0);
        let notified = pin!(async {
            notify.notified().await;
            "notified"
        });
        let permit = pin!(async { permits.acquire().await.map_or("closed", |_| "permit") });
        let fiber = pin!(async { osier::spawn_local(settle).await.map_or("panicked", |()| "ended") });
        let mut leaves: [Pin<&mut dyn Future<Output = &str>>; 3] = [notified, permit, fiber];
        assert_eq!(wait_any(&mut leaves), (2, "ended"));
        permits.close();
        assert_eq!(wait_any(&mut leaves[..2]), (1, "closed"));
        notify.notify_one();
        assert_eq!(wait_any(&mut leaves[..1]), (0, "notified"));
    });
}

#[test]
fn any_is_fair_among_those_that_are_ready() {
    on(1).run(|| {
        let mut wins = [0; 4];
        for _ in 0..1000 {
            let (index, ()) = wait_any(&mut [ready(()), ready(()), ready(()), ready(())]);
            wins[index] += 1;
        }
        assert!(wins.iter().all(|&wins| wins > 150), "{wins:?}");
    });
}

#[test]
fn any_until_a_deadline_gives_none_and_leaves_the_leaves() {
    fn check() {
        let (sender, receiver) = oneshot::channel::<u8>();
        let mut leaves = [receiver];
        let deadline = Instant::now() + SHORT;
        assert_eq!(wait_any_until(&mut leaves, deadline), None);
        assert!(Instant::now() >= deadline);
        sender.send(1).unwrap();
        // Ready wins over a deadline that has passed.
        assert_eq!(wait_any_until(&mut leaves, deadline), Some((0, Ok(1))));
        assert_eq!(
            wait_any_until::<oneshot::Receiver<u8>>(&mut [], Instant::now() + SHORT),
            None
        );
    }
    on(1).run(check);
    check();
}

#[test]
fn any_of_nothing_panics() {
    on(1).run(|| {
        assert!(catch_unwind(|| wait_any::<Pending<()>>(&mut [])).is_err());
        assert!(catch_unwind(|| race::<[Pending<()>; 0]>([])).is_err());
    });
}

#[test]
fn any_in_a_future() {
    timeless(1).run(|| {
        let handles: Vec<_> = [30, 5]
            .map(|ms| {
                osier::spawn_local(move || {
                    pass(Duration::from_millis(ms));
                    ms
                })
            })
            .into();
        let future = async move {
            let mut handles = handles;
            let (index, first) = wait_any_async(&mut handles).await;
            handles.swap_remove(index);
            let none = wait_any_until_async(&mut handles, osier::time::now() + Duration::from_millis(1))
                .await
                .is_none();
            let (_, second) = wait_any_until_async(&mut handles, osier::time::now() + LONG)
                .await
                .expect("it ends before");
            (first.unwrap(), none, second.unwrap())
        };
        assert_eq!(osier::block_on(future), (5, true, 30));
    });
}

#[test]
fn all_gives_every_output_in_order() {
    fn check() {
        let dropped: Arc<AtomicUsize> = Arc::default();
        // Each is ready at another time, and must not be polled again while the others are waited for.
        let leaves = [4, 1, 3, 2].map(|polls| Nth(polls, Arc::clone(&dropped)));
        assert_eq!(wait_all(leaves), [7; 4]);
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
        assert_eq!(wait_all::<Ready<i32>, 0>([]), []);
    }
    on(1).run(check);
    check();
    osier::block_on(async {
        let dropped: Arc<AtomicUsize> = Arc::default();
        assert_eq!(
            wait_all_async([2, 1].map(|polls| Nth(polls, Arc::clone(&dropped)))).await,
            [7; 2]
        );
    });
}

#[test]
fn all_until_a_deadline_keeps_what_there_is_and_can_go_on() {
    on(1).run(|| {
        let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel::<u8>()).unzip();
        let mut outputs = [const { None }; 3];
        let [a, b, c] = <[_; 3]>::try_from(senders).expect("three were made");
        b.send(2).unwrap();
        assert!(!wait_all_until(&mut receivers, &mut outputs, Instant::now() + SHORT));
        assert_eq!(outputs, [None, Some(Ok(2)), None]);
        // A hang-up is an output.
        drop(c);
        let early = wait_all_until_async(&mut receivers, &mut outputs, Instant::now() + SHORT);
        assert!(!osier::block_on(early));
        assert!(matches!(outputs, [None, Some(Ok(2)), Some(Err(_))]));
        a.send(1).unwrap();
        assert!(wait_all_until(&mut receivers, &mut outputs, Instant::now() + LONG));
        assert!(matches!(outputs, [Some(Ok(1)), Some(Ok(2)), Some(Err(_))]));
        // Nothing is left to wait for.
        wait_all_into(&mut receivers, &mut outputs);
        osier::block_on(wait_all_into_async(&mut receivers, &mut outputs));
    });
}

#[test]
fn all_with_too_few_places_panics() {
    let caught = catch_unwind(|| wait_all_into(&mut [ready(1), ready(2)], &mut [None]));
    let payload = caught.unwrap_err();
    let text = payload.downcast_ref::<String>().expect("a panic's message is a text");
    assert!(text.contains("2 leaves have 1 places"), "{text}");
}

#[test]
fn join_waits_at_once_and_gives_a_tuple() {
    timeless(2).run(|| {
        let start = now();
        let wait = Duration::from_millis(50);
        let fiber = osier::spawn(move || {
            pass(wait);
            "fiber"
        });
        let (a, b, (), d) = osier::join!(
            fiber,
            async {
                Sleep::new(wait).await;
                2
            },
            Sleep::new(wait),
            ready(String::from("ready")),
        );
        let waited = now() - start;
        assert!(waited >= wait && waited < 2 * wait, "{waited:?}");
        assert_eq!((a.unwrap(), b, d.as_str()), ("fiber", 2, "ready"));
        assert_eq!(osier::join!(ready(1)), (1,));
        let many = osier::join!(
            ready(0),
            ready(1),
            ready(2),
            ready(3),
            ready(4),
            ready(5),
            ready(6),
            ready(7),
            ready(8),
            ready(9)
        );
        assert_eq!(many, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    });
}

#[test]
fn join_polls_its_parts_in_turn() {
    on(1).run(|| {
        // Neither would end if the other were not polled meanwhile.
        let (to_a, mut at_a) = mpsc::channel(1);
        let (to_b, mut at_b) = mpsc::channel(1);
        let (a, b) = osier::join!(
            async {
                for n in 0..100 {
                    to_b.send(n).await.unwrap();
                    assert_eq!(at_a.recv().await, Some(n));
                }
                "a"
            },
            async {
                for n in 0..100 {
                    assert_eq!(at_b.recv().await, Some(n));
                    to_a.send(n).await.unwrap();
                }
                "b"
            }
        );
        assert_eq!((a, b), ("a", "b"));
    });
}

#[test]
fn join_in_a_future_and_on_a_plain_thread() {
    fn is_send<F: Send>(future: F) -> F {
        future
    }
    let both = is_send(osier::join_async!(async { 1 }, async { "one" }));
    assert_eq!(osier::block_on(both), (1, "one"));
    let (sender, receiver) = oneshot::channel();
    let waits = testkit::ThreadWatch::current();
    let other = thread::spawn(move || {
        waits.until_it_waits();
        sender.send(3)
    });
    assert_eq!(osier::join!(receiver, ready(())), (Ok(3), ()));
    other.join().unwrap().unwrap();
}

#[test]
fn a_part_that_is_done_is_dropped_while_the_others_go_on() {
    on(1).run(|| {
        let dropped: Arc<AtomicUsize> = Arc::default();
        let theirs = Arc::clone(&dropped);
        let (seven, seen) = osier::join!(Nth(1, Arc::clone(&dropped)), async {
            Sleep::new(SHORT).await;
            theirs.load(Ordering::SeqCst)
        });
        assert_eq!((seven, seen), (7, 1));
    });
}

#[test]
fn a_panic_in_one_part_drops_the_others() {
    on(1).run(|| {
        let dropped: Arc<AtomicUsize> = Arc::default();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            osier::join!(
                Nth(1, Arc::clone(&dropped)),
                async { panic!("on purpose") },
                Nth(1000, Arc::clone(&dropped))
            )
        }));
        assert!(caught.is_err());
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_cancelled_wait_on_many_drops_what_it_holds() {
    timeless(1).run(|| {
        let dropped: Arc<AtomicUsize> = Arc::default();
        let guard = || Nth(1, Arc::clone(&dropped));
        let held = |nth: Nth| {
            Box::pin(async move {
                let _nth = nth;
                pending::<()>().await;
            })
        };
        let (a, b, c) = (
            [held(guard()), held(guard())],
            [held(guard()), held(guard())],
            (held(guard()), held(guard())),
        );
        let handles = [
            osier::spawn_local(move || {
                wait_all(a);
            }),
            osier::spawn_local(move || race(b)),
            osier::spawn_local(move || {
                osier::join!(c.0, c.1);
            }),
        ];
        settle();
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        handles.iter().for_each(|handle| handle.cancel());
        for outcome in wait_all(handles) {
            assert!(Cancelled::is_payload(&*outcome.unwrap_err()));
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 6);
    });
}

#[test]
fn race_gives_the_first_output_and_drops_the_losers() {
    on(1).run(|| {
        let dropped: Arc<AtomicUsize> = Arc::default();
        let loser = Nth(usize::MAX, Arc::clone(&dropped));
        assert_eq!(race((loser, async { 9 })), 9);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        let first = Cell::new(0);
        race([20, 5].map(|ms| {
            let first = &first;
            Box::pin(async move {
                Sleep::new(Duration::from_millis(ms)).await;
                first.set(ms);
            })
        }));
        assert_eq!(first.get(), 5);
    });
}

#[test]
fn race_takes_two_to_eight_and_is_fair() {
    let mut wins = [0; 8];
    for _ in 0..1000 {
        wins[race((
            ready(0),
            ready(1),
            ready(2),
            ready(3),
            ready(4),
            ready(5),
            ready(6),
            ready(7),
        ))] += 1;
    }
    assert!(wins.iter().all(|&wins| wins > 60), "{wins:?}");
    osier::block_on(async {
        assert_eq!(race_async((pending(), ready(2))).await, 2);
        assert_eq!(race_async([pending().into_boxed(), ready(3).into_boxed()]).await, 3);
    });
}

/// Futures of several types as one.
trait IntoBoxed: Future + Sized + 'static {
    fn into_boxed(self) -> Pin<Box<dyn Future<Output = Self::Output>>> {
        Box::pin(self)
    }
}

impl<F: Future + 'static> IntoBoxed for F {}
