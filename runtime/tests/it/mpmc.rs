//! Channels with several receivers: on fibers, on plain threads and in futures.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::colours::{Count, in_every_colour, poll_once};
use crate::given::{on, settle, timeless};
use futures_lite::StreamExt;
use osier::Cancelled;
use osier::sync::mpmc;

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn halves_are_send_and_sync_and_their_futures_are_send() {
    fn send<T: Send>(_: &T) {}
    fn sync<T: Sync>(_: &T) {}
    let (_sender, receiver) = mpmc::channel::<std::cell::Cell<u8>>(1);
    send(&receiver);
    sync(&receiver);
    send(&receiver.recv_async());
    send(&receiver.into_stream());
}

/// Takes all values until the end. Returns how often each value came.
fn tally(values: impl Iterator<Item = usize>, of: usize) -> Vec<u32> {
    values.fold(vec![0; of], |mut seen, value| {
        seen[value] += 1;
        seen
    })
}

#[test]
fn each_value_goes_to_one_of_the_receivers_wherever_they_are() {
    const SENDERS: usize = 4;
    const EACH: usize = 2500;
    for bound in [Some(1), Some(3), Some(64), None] {
        let (sender, receiver) = match bound {
            Some(bound) => mpmc::channel(bound),
            None => mpmc::unbounded(),
        };
        let mut receivers = Vec::new();
        for place in 0..4 {
            let receiver = receiver.clone();
            receivers.push(thread::spawn(move || match place {
                0 => tally(receiver.iter(), SENDERS * EACH),
                1 => on(1).run(move || tally(receiver.iter(), SENDERS * EACH)),
                2 => on(1).run(move || {
                    let all: Vec<usize> = osier::block_on(receiver.into_stream().collect());
                    tally(all.into_iter(), SENDERS * EACH)
                }),
                _ => futures_lite::future::block_on(async move {
                    let mut all = Vec::new();
                    while let Ok(value) = receiver.recv_async().await {
                        all.push(value);
                    }
                    tally(all.into_iter(), SENDERS * EACH)
                }),
            }));
        }
        drop(receiver);
        on(2).run(move || {
            for from in 0..SENDERS {
                let sender = sender.clone();
                drop(osier::spawn(move || {
                    (0..EACH).for_each(|n| sender.send(from * EACH + n).unwrap());
                }));
            }
            drop(sender);
            // The runtime, and with it the senders, is dropped only when all values have come.
            let seen = receivers
                .into_iter()
                .map(|thread| osier::unblock(|| thread.join().unwrap()));
            let sum = seen
                .reduce(|a, b| a.iter().zip(b).map(|(a, b)| a + b).collect())
                .unwrap();
            assert!(sum.iter().all(|&times| times == 1), "{bound:?}: lost, or given twice");
        });
    }
}

#[test]
fn a_receiver_sees_the_values_of_each_sender_in_order() {
    on(2).run(|| {
        let (sender, receiver) = mpmc::channel(3);
        osier::scope(|scope| {
            for from in 0..3 {
                let sender = sender.clone();
                scope.spawn(move || (0..1000).for_each(|n| sender.send((from, n)).unwrap()));
            }
            drop(sender);
            for _ in 0..2 {
                let receiver = receiver.clone();
                scope.spawn(move || {
                    let mut last = [-1; 3];
                    for (from, n) in &receiver {
                        assert!(n > last[from], "sender {from}: {n} after {}", last[from]);
                        last[from] = n;
                    }
                });
            }
        });
    });
}

#[test]
fn its_length_is_between_nothing_and_its_capacity() {
    let (sender, receiver) = mpmc::channel(2);
    assert_eq!(
        (receiver.len(), receiver.is_empty(), sender.capacity()),
        (0, true, Some(2))
    );
    sender.try_send(1).unwrap();
    assert_eq!(
        (receiver.len(), receiver.is_empty(), sender.capacity()),
        (1, false, Some(1))
    );
    sender.try_send(2).unwrap();
    assert_eq!(sender.try_send(3), Err(mpmc::TrySendError::Full(3)));
    assert_eq!((receiver.len(), sender.capacity()), (2, Some(0)));
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
    on(2).run(|| {
        osier::scope(|scope| {
            let other = receiver.clone();
            scope.spawn(move || (0..2000).for_each(|n| sender.send(n).unwrap()));
            scope.spawn(move || {
                for _ in &other {
                    assert!(other.len() <= 2);
                }
            });
            for _ in &receiver {
                assert!(receiver.len() <= 2);
            }
        });
    });
    assert_eq!(mpmc::unbounded::<()>().0.capacity(), None);
}

#[test]
fn receivers_that_are_cancelled_or_timed_out_lose_no_value() {
    timeless(2).run(|| {
        let (sender, receiver) = mpmc::channel(2);
        let taken = AtomicUsize::new(0);
        osier::scope(|scope| {
            for worker in 0..4_u64 {
                let (receiver, taken) = (receiver.clone(), &taken);
                scope.spawn(move || {
                    loop {
                        match receiver.recv_timeout(Duration::from_micros(50 + 100 * worker)) {
                            Ok(value) => taken.fetch_add(value, Ordering::SeqCst),
                            Err(mpmc::RecvTimeoutError::Timeout) => continue,
                            Err(mpmc::RecvTimeoutError::Disconnected) => return,
                        };
                    }
                });
            }
            scope.spawn(move || {
                for n in 0..500 {
                    sender.send(1).unwrap();
                    if n % 10 == 0 {
                        settle();
                    }
                }
            });
        });
        assert_eq!(taken.into_inner(), 500);

        let (sender, receiver) = mpmc::channel(2);
        let waits = || {
            let receiver = receiver.clone();
            osier::spawn_local(move || receiver.recv())
        };
        let (cancelled, served) = (waits(), waits());
        osier::yield_now();
        osier::yield_now();
        sender.send(7).unwrap();
        cancelled.cancel();
        match cancelled.join() {
            // It had the value before the cancellation.
            Ok(value) => {
                assert_eq!(value, Ok(7));
                sender.send(7).unwrap();
            }
            Err(payload) => assert!(Cancelled::is_payload(&*payload)),
        }
        assert_eq!(served.join().unwrap(), Ok(7));
    });
}

#[test]
fn the_end_is_told_to_all_when_the_last_value_has_been_taken() {
    let (sender, receiver) = mpmc::channel(2);
    let [(first_count, first_waker), (last_count, last_waker)] = [Count::new(), Count::new()];
    let mut promised = pin!(receiver.recv_async());
    let mut waits = pin!(receiver.recv_async());
    assert!(
        promised
            .as_mut()
            .poll(&mut Context::from_waker(&first_waker))
            .is_pending()
    );
    assert!(waits.as_mut().poll(&mut Context::from_waker(&last_waker)).is_pending());
    sender.try_send(1).unwrap();
    drop(sender);
    assert_eq!(
        (first_count.wakes(), last_count.wakes()),
        (1, 0),
        "it may still get the value"
    );
    assert!(receiver.is_closed());
    assert_eq!(poll_once(promised.as_mut()), Poll::Ready(Ok(1)));
    assert_eq!(last_count.wakes(), 1);
    assert_eq!(poll_once(waits.as_mut()), Poll::Ready(Err(mpmc::RecvError)));
    assert_eq!(receiver.recv(), Err(mpmc::RecvError));
    assert_eq!(receiver.recv_timeout(LONG), Err(mpmc::RecvTimeoutError::Disconnected));

    timeless(2).run(|| {
        let (sender, receiver) = mpmc::channel::<u8>(1);
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let receiver = receiver.clone();
                osier::spawn(move || receiver.recv())
            })
            .collect();
        settle();
        drop(sender);
        for handle in waiting {
            assert_eq!(handle.join().unwrap(), Err(mpmc::RecvError));
        }
    });
}

#[test]
fn only_the_last_receiver_ends_the_senders() {
    timeless(2).run(|| {
        let (sender, receiver) = mpmc::channel(1);
        let other = receiver.clone();
        sender.send(0).unwrap();
        let full = {
            let sender = sender.clone();
            osier::spawn(move || sender.send(1))
        };
        drop(receiver);
        assert!(!sender.is_closed());
        assert_eq!(other.recv(), Ok(0));
        full.join().unwrap().unwrap();
        let full = {
            let sender = sender.clone();
            osier::spawn(move || sender.send(2))
        };
        settle();
        drop(other);
        assert_eq!(full.join().unwrap(), Err(mpmc::SendError(2)));
        assert!(sender.is_closed());
        sender.closed();
    });
}

#[test]
fn a_closed_channel_is_emptied_by_all_and_takes_nothing_more() {
    let (sender, receiver) = mpmc::unbounded();
    let other = receiver.clone();
    (0..4).for_each(|n| sender.send(n).unwrap());
    receiver.close();
    assert_eq!(sender.send(9), Err(mpmc::SendError(9)));
    assert_eq!(
        [receiver.recv(), other.recv(), receiver.recv(), other.recv()],
        [Ok(0), Ok(1), Ok(2), Ok(3)]
    );
    assert_eq!([receiver.recv(), other.recv()], [Err(mpmc::RecvError); 2]);
}

#[test]
fn every_value_is_dropped_once_received_or_not() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpmc::channel(10);
    (0..5).for_each(|_| assert!(sender.send(Counted(Arc::clone(&drops))).is_ok()));
    let other = receiver.clone();
    drop(receiver.recv().ok());
    drop(receiver);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    drop(other);
    assert_eq!(drops.load(Ordering::SeqCst), 5, "with the last receiver");
    drop(sender);
    assert_eq!(drops.load(Ordering::SeqCst), 5);
}

#[test]
fn a_stream_that_is_dropped_passes_its_promise_on() {
    in_every_colour(|| async {
        let (sender, receiver) = mpmc::channel(2);
        let mut stream = receiver.clone().into_stream();
        assert!(poll_once(pin!(stream.next())).is_pending());
        sender.send_async(1).await.unwrap();
        assert_eq!(receiver.try_recv(), Err(mpmc::TryRecvError::Empty));
        drop(stream);
        assert_eq!(receiver.recv_async().await, Ok(1));
    });
}
