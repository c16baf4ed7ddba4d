//! mpsc, mpmc, oneshot and broadcast: on fibers, on plain threads and in futures.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::given::{on, settle, timeless};
use futures_core::Stream;
use futures_lite::StreamExt;
use osier::sync::{broadcast, mpmc, mpsc, oneshot};

const LONG: Duration = Duration::from_secs(3600);

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

struct Count(Arc<AtomicUsize>);

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn halves_are_send_and_sync_and_their_futures_are_send() {
    fn send<T: Send>(_: &T) {}
    fn sync<T: Sync>(_: &T) {}
    let (sender, mut receiver) = mpsc::channel::<std::cell::Cell<u8>>(1);
    send(&sender);
    sync(&sender);
    send(&receiver);
    send(&sender.send_async(Default::default()));
    send(&sender.reserve_async());
    send(&receiver.recv_async());
    let (sender, receiver) = oneshot::channel::<std::cell::Cell<u8>>();
    send(&sender);
    send(&receiver);
    let (sender, mut receiver) = broadcast::channel::<u8>(1);
    send(&sender);
    sync(&sender);
    send(&receiver.recv_async());
    send(&receiver.into_stream());
}

/// Sends 0..300 from a fiber, from a thread, in a future on a fiber, in a future on a thread.
const PLACES: [fn(mpsc::Sender<u32>); 4] = [
    |sender| on(1).run(move || (0..300).for_each(|n| sender.send(n).unwrap())),
    |sender| (0..300).for_each(|n| sender.send(n).unwrap()),
    |sender| on(1).run(move || osier::block_on(send_all(sender))),
    |sender| futures_lite::future::block_on(send_all(sender)),
];

async fn send_all(sender: mpsc::Sender<u32>) {
    for n in 0..300 {
        sender.send_async(n).await.unwrap();
    }
}

async fn receive_all(mut receiver: mpsc::Receiver<u32>) {
    for n in 0..300 {
        assert_eq!(receiver.recv_async().await, Ok(n));
    }
    assert_eq!(receiver.recv_async().await, Err(mpsc::RecvError));
}

#[test]
fn what_one_sends_arrives_in_order_wherever_both_are() {
    for send in PLACES {
        for place in 0..4 {
            for bound in [1, 3, 0] {
                let (sender, mut receiver) = match bound {
                    0 => mpsc::unbounded(),
                    bound => mpsc::channel(bound),
                };
                let sending = thread::spawn(move || send(sender));
                match place {
                    0 => on(1).run(move || assert!(receiver.iter().eq(0..300))),
                    1 => assert!(receiver.iter().eq(0..300)),
                    2 => on(1).run(move || osier::block_on(receive_all(receiver))),
                    _ => futures_lite::future::block_on(receive_all(receiver)),
                }
                sending.join().unwrap();
            }
        }
    }
}

#[test]
fn a_full_channel_makes_its_senders_wait_in_order() {
    on(1).run(|| {
        let (sender, mut receiver) = mpsc::channel(2);
        let waiting: Vec<_> = (0..6)
            .map(|n| {
                let sender = sender.clone();
                let handle = osier::spawn_local(move || sender.send(n));
                osier::yield_now();
                handle
            })
            .collect();
        let finished = || waiting.iter().filter(|handle| handle.is_finished()).count();
        assert_eq!((finished(), receiver.len(), sender.capacity()), (2, 2, Some(0)));
        assert_eq!(sender.try_send(9), Err(mpsc::TrySendError::Full(9)));
        for n in 0..6 {
            assert_eq!(receiver.recv(), Ok(n));
            osier::yield_now();
            assert_eq!(finished(), (n + 3).min(6));
            assert!(receiver.len() <= 2);
        }
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
        waiting.into_iter().for_each(|handle| handle.join().unwrap().unwrap());
    });
}

#[test]
fn without_senders_the_rest_is_received_and_then_an_error() {
    for (sender, mut receiver) in [mpsc::channel(8), mpsc::unbounded()] {
        let other = sender.clone();
        sender.send(1).unwrap();
        drop(sender);
        assert!(!receiver.is_closed());
        other.send(2).unwrap();
        drop(other);
        assert!(receiver.is_closed() && !receiver.is_empty());
        assert_eq!(receiver.try_recv(), Ok(1));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2]);
        assert_eq!(receiver.recv(), Err(mpsc::RecvError));
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Disconnected));
        assert_eq!(receiver.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
        assert_eq!(receiver.into_iter().next(), None);
    }
}

#[test]
fn without_a_receiver_a_send_gives_its_value_back() {
    for (sender, receiver) in [mpsc::channel(1), mpsc::unbounded()] {
        assert!(!sender.is_closed());
        drop(receiver);
        assert!(sender.is_closed());
        sender.closed();
        assert_eq!(sender.send("a"), Err(mpsc::SendError("a")));
        assert_eq!(sender.try_send("b"), Err(mpsc::TrySendError::Disconnected("b")));
        assert!(sender.reserve().is_err());
    }
    timeless(2).run(|| {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(1).unwrap();
        let other = sender.clone();
        let full = osier::spawn(move || sender.send(2));
        let watching = osier::spawn(move || other.closed());
        settle();
        assert!(!watching.is_finished());
        drop(receiver);
        assert_eq!(full.join().unwrap(), Err(mpsc::SendError(2)));
        watching.join().unwrap();
    });
}

#[test]
fn a_disconnect_wakes_whoever_waits_for_a_value() {
    timeless(2).run(|| {
        let (sender, mut receiver) = mpsc::channel::<u8>(1);
        let waiting = osier::spawn(move || receiver.recv());
        let (single, value) = oneshot::channel::<u8>();
        let waiting_single = osier::spawn(move || value.recv());
        let (all, mut news) = broadcast::channel::<u8>(1);
        let waiting_news = osier::spawn(move || news.recv());
        settle();
        drop((sender, single, all));
        assert_eq!(waiting.join().unwrap(), Err(mpsc::RecvError));
        assert_eq!(waiting_single.join().unwrap(), Err(oneshot::RecvError));
        assert_eq!(waiting_news.join().unwrap(), Err(broadcast::RecvError::Disconnected));
    });
}

#[test]
fn a_closed_channel_is_emptied_and_takes_nothing_more() {
    for (sender, mut receiver) in [mpsc::channel(4), mpsc::unbounded()] {
        sender.send(1).unwrap();
        let room = sender.reserve().unwrap();
        receiver.close();
        assert_eq!(sender.send(2), Err(mpsc::SendError(2)));
        match sender.capacity() {
            // Room that was held before stays.
            Some(_) => {
                room.send(3).unwrap();
                assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 3]);
            }
            None => {
                assert_eq!(room.send(3), Err(mpsc::SendError(3)));
                assert_eq!(receiver.iter().collect::<Vec<_>>(), [1]);
            }
        }
    }
}

#[test]
fn a_receive_that_is_given_up_loses_no_value() {
    let (sender, mut receiver) = mpsc::channel(4);
    {
        let mut waiting = pin!(receiver.recv_async());
        assert!(poll_once(waiting.as_mut()).is_pending());
        sender.try_send(1).unwrap();
    }
    assert_eq!(receiver.try_recv(), Ok(1));
    timeless(2).run(move || {
        let sending = osier::spawn(move || {
            for n in 0..300 {
                sender.send(n).unwrap();
                if n % 10 == 0 {
                    settle();
                }
            }
        });
        let mut got = Vec::new();
        loop {
            // Most of them end without a value, some with one while the time is up.
            match receiver.recv_timeout(Duration::from_micros(200)) {
                Ok(n) => got.push(n),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            let mut waiting = pin!(receiver.recv_async());
            if let Poll::Ready(Ok(n)) = poll_once(waiting.as_mut()) {
                got.push(n);
            }
        }
        assert_eq!(got, Vec::from_iter(0..300));
        sending.join().unwrap();
    });
}

#[test]
fn room_granted_to_a_sender_that_is_cancelled_goes_to_the_next() {
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(0).unwrap();
    let mut second = pin!(sender.reserve_async());
    {
        let mut first = pin!(sender.send_async(1));
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        assert_eq!(receiver.try_recv(), Ok(0));
    }
    let Poll::Ready(Ok(room)) = poll_once(second.as_mut()) else {
        panic!("the room was lost");
    };
    assert_eq!(sender.try_send(9), Err(mpsc::TrySendError::Full(9)));
    drop(room);
    sender.try_send(2).unwrap();
    assert_eq!(receiver.try_recv(), Ok(2));
}

#[test]
fn cancelling_senders_while_the_channel_empties_loses_no_room() {
    let (sender, mut receiver) = mpsc::channel(1);
    on(2).run(move || {
        for _ in 0..100 {
            sender.try_send(0).unwrap();
            let handles: Vec<_> = (0..4)
                .map(|n| {
                    let sender = sender.clone();
                    osier::spawn(move || sender.send(n))
                })
                .collect();
            handles.iter().step_by(2).for_each(|handle| handle.cancel());
            assert_eq!(receiver.recv(), Ok(0));
            let mut left = handles.len();
            let mut handles = handles.into_iter().map(Some).collect::<Vec<_>>();
            while left > 0 {
                while receiver.try_recv().is_ok() {}
                for handle in &mut handles {
                    if let Some(ended) = handle.take_if(|handle| handle.is_finished()) {
                        let _ = ended.join();
                        left -= 1;
                    }
                }
                osier::yield_now();
            }
            while receiver.try_recv().is_ok() {}
            assert_eq!(sender.capacity(), Some(1));
        }
    });
}

#[test]
fn four_senders_and_a_receiver_on_two_workers_lose_and_double_nothing() {
    on(2).run(|| {
        let (sender, mut receiver) = mpsc::channel(3);
        for from in 0..4 {
            let sender = sender.clone();
            osier::spawn(move || (0..1000).for_each(|n| sender.send((from, n)).unwrap()));
        }
        drop(sender);
        let mut next = [0; 4];
        for (from, n) in &mut receiver {
            assert_eq!(n, next[from], "sender {from} out of order");
            next[from] += 1;
        }
        assert_eq!(next, [1000; 4]);
    });
}

#[test]
fn every_value_is_dropped_once_received_or_not() {
    let drops = Arc::new(AtomicUsize::new(0));
    let count = || Count(Arc::clone(&drops));
    for (sender, mut receiver) in [mpsc::channel(10), mpsc::unbounded()] {
        drops.store(0, Ordering::SeqCst);
        (0..5).for_each(|_| sender.send(count()).unwrap());
        drop(receiver.recv().unwrap());
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        drop(receiver);
        assert_eq!(drops.load(Ordering::SeqCst), 5);
        drop(sender.send(count()).unwrap_err());
        assert_eq!(drops.load(Ordering::SeqCst), 6);
    }
    drops.store(0, Ordering::SeqCst);
    let (sender, receiver) = oneshot::channel();
    sender.send(count()).unwrap();
    drop(receiver);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_receiver_is_a_stream() {
    let (sender, receiver) = mpsc::channel(2);
    on(2).run(move || {
        osier::spawn(move || (0..50).for_each(|n| sender.send(n).unwrap()));
        let sum = osier::block_on(receiver.fold(0, |sum, n| sum + n));
        assert_eq!(sum, (0..50).sum());
    });
}

#[test]
fn ten_thousand_calls_that_need_not_wait_do_not_stall() {
    let body = || {
        let (sender, mut receiver) = mpsc::channel(16);
        let (all, mut news) = broadcast::channel(16);
        for n in 0..10_000 {
            sender.send(n).unwrap();
            assert_eq!(receiver.recv(), Ok(n));
            all.send(n).unwrap();
            assert_eq!(news.recv(), Ok(n));
            let (single, value) = oneshot::channel();
            single.send(n).unwrap();
            assert_eq!(value.recv(), Ok(n));
        }
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
fn a_send_gives_up_after_its_time_and_keeps_the_value() {
    use mpsc::SendTimeoutError::{Disconnected, Timeout};
    let short = Duration::from_millis(1);
    let body = || {
        let (sender, mut receiver) = mpsc::channel(1);
        assert_eq!(sender.send_timeout(1, Duration::ZERO), Ok(()));
        assert_eq!(sender.send_timeout(2, short), Err(Timeout(2)));
        assert_eq!(receiver.recv(), Ok(1));
        // The room that it gave up waiting for is not lost.
        assert_eq!(sender.send_timeout(3, LONG), Ok(()));
        let waiting = thread::spawn(move || sender.send_timeout(4, LONG));
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(3), Ok(4)));
        assert_eq!(waiting.join().unwrap(), Ok(()));

        let (sender, receiver) = mpsc::unbounded();
        assert_eq!(sender.send_timeout(1, Duration::ZERO), Ok(()));
        drop(receiver);
        let error = sender.send_timeout(2, LONG).unwrap_err();
        assert_eq!((error, error.into_inner()), (Disconnected(2), 2));
    };
    body();
    on(1).run(body);
}

#[test]
fn a_oneshot_gives_its_value_once() {
    let (sender, mut receiver) = oneshot::channel();
    assert_eq!(receiver.try_recv(), Err(oneshot::TryRecvError::Empty));
    assert_eq!(
        receiver.recv_timeout(Duration::from_millis(1)),
        Err(oneshot::RecvTimeoutError::Timeout)
    );
    sender.send(5).unwrap();
    assert_eq!(receiver.try_recv(), Ok(5));
    assert_eq!(receiver.try_recv(), Err(oneshot::TryRecvError::Disconnected));
    assert_eq!(
        receiver.recv_timeout(LONG),
        Err(oneshot::RecvTimeoutError::Disconnected)
    );

    let (sender, receiver) = oneshot::channel::<u8>();
    drop(sender);
    assert_eq!(receiver.recv(), Err(oneshot::RecvError));

    let (mut sender, mut receiver) = oneshot::channel();
    receiver.close();
    assert!(sender.is_closed());
    sender.closed();
    assert_eq!(sender.send(6), Err(oneshot::SendError(6)));
}

#[test]
fn a_thousand_oneshots_between_fibers_threads_and_futures() {
    on(2).run(|| {
        osier::scope(|s| {
            for n in 0..1000 {
                let (sender, receiver) = oneshot::channel();
                s.spawn(move || sender.send(n).unwrap());
                match n % 2 {
                    0 => s.spawn(move || assert_eq!(receiver.recv(), Ok(n))),
                    _ => s.spawn(move || assert_eq!(osier::block_on(receiver), Ok(n))),
                };
            }
        });
    });
    let (sender, receiver) = oneshot::channel();
    let thread = thread::spawn(move || receiver.recv());
    on(1).run(|| sender.send(7).unwrap());
    assert_eq!(thread.join().unwrap(), Ok(7));
    let (sender, receiver) = oneshot::channel();
    thread::scope(|s| {
        s.spawn(|| sender.send(8));
        assert_eq!(futures_lite::future::block_on(receiver.recv_async()), Ok(8));
    });
}

#[test]
fn a_sender_hears_that_nobody_wants_the_value_any_more() {
    timeless(2).run(|| {
        let (mut sender, receiver) = oneshot::channel::<u8>();
        let waiting = osier::spawn(move || receiver.recv());
        let working = osier::spawn(move || sender.closed());
        settle();
        assert!(!working.is_finished());
        waiting.cancel();
        working.join().unwrap();
    });
}

#[test]
fn every_receiver_of_a_broadcast_gets_every_value() {
    on(2).run(|| {
        let (sender, first) = broadcast::channel(1024);
        assert_eq!(sender.receiver_count(), 1);
        let receivers: Vec<_> = (0..3).map(|_| sender.subscribe()).chain([first]).collect();
        let check = |mut receiver: broadcast::Receiver<u32>| {
            assert_eq!(receiver.recv(), Ok(0));
            for n in 1..500 {
                assert_eq!(osier::block_on(receiver.recv_async()), Ok(n));
            }
            assert_eq!(receiver.recv(), Err(broadcast::RecvError::Disconnected));
        };
        let mut threads = Vec::new();
        osier::scope(|s| {
            for (n, receiver) in receivers.into_iter().enumerate() {
                match n {
                    0 => threads.push(thread::spawn(move || check(receiver))),
                    _ => drop(s.spawn(move || check(receiver))),
                }
            }
            let other = sender.clone();
            s.spawn(move || (0..500).for_each(|n| assert!(other.send(n).is_ok())));
            drop(sender);
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let (sender, receiver) = broadcast::channel(1);
    drop(receiver);
    assert_eq!(sender.send(1), Err(broadcast::SendError(1)));
    let mut late = sender.subscribe();
    assert_eq!(late.try_recv(), Err(broadcast::TryRecvError::Empty));
    assert_eq!(sender.send(2), Ok(1));
    assert_eq!(late.recv(), Ok(2));
}

#[test]
fn a_receiver_that_lags_is_told_how_many_it_missed() {
    let (sender, mut receiver) = broadcast::channel(4);
    let mut later = receiver.resubscribe();
    (0..10).for_each(|n| assert!(sender.send(n).is_ok()));
    assert_eq!((receiver.len(), sender.len()), (10, 4));
    assert_eq!(receiver.recv(), Err(broadcast::RecvError::Lagged(6)));
    assert_eq!(receiver.recv(), Ok(6));
    assert_eq!(later.try_recv(), Err(broadcast::TryRecvError::Lagged(6)));
    assert_eq!(later.resubscribe().try_recv(), Err(broadcast::TryRecvError::Empty));
    drop(sender);
    let rest: Vec<_> = std::iter::from_fn(|| receiver.recv().ok()).collect();
    assert_eq!(rest, [7, 8, 9]);
    assert!(receiver.is_empty());
    let said = broadcast::RecvError::Lagged(6).to_string();
    assert!(said.contains("missed 6"), "{said}");
}

#[test]
fn a_broadcast_receiver_becomes_a_stream_that_tells_of_gaps() {
    timeless(2).run(|| {
        let (sender, receiver) = broadcast::channel(2);
        let mut stream = receiver.into_stream();
        (0..5).for_each(|n| assert!(sender.send(n).is_ok()));
        osier::block_on(async {
            assert_eq!(stream.next().await, Some(Err(broadcast::Lagged(3))));
            assert_eq!(stream.next().await, Some(Ok(3)));
            assert_eq!(stream.next().await, Some(Ok(4)));
        });
        assert!(poll_once(pin!(poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)))).is_pending());
        let sending = osier::spawn(move || {
            settle();
            sender.send(5).unwrap();
        });
        assert_eq!(osier::block_on(stream.next()), Some(Ok(5)));
        sending.join().unwrap();
        assert_eq!(osier::block_on(stream.next()), None);
        assert_eq!(osier::block_on(stream.next()), None);
    });
}

#[test]
fn a_hundred_thousand_values_arrive_in_order() {
    for workers in [1, 2] {
        on(workers).run(|| {
            let (sender, mut receiver) = mpsc::channel(64);
            let sending = osier::spawn(move || (0..100_000).for_each(|n| sender.send(n).unwrap()));
            assert!(receiver.iter().eq(0..100_000));
            sending.join().unwrap();
        });
    }
    let (sender, mut receiver) = mpsc::unbounded();
    let sending = thread::spawn(move || (0..100_000).for_each(|n| sender.send(n).unwrap()));
    assert!(receiver.iter().eq(0..100_000));
    sending.join().unwrap();
}

#[test]
fn four_senders_and_four_receivers_on_two_workers_lose_and_double_nothing() {
    for bound in [1, 3, 64] {
        let (sender, receiver) = mpmc::channel(bound);
        let got = on(2).run(move || {
            for from in 0..4 {
                let sender = sender.clone();
                match from % 2 {
                    0 => drop(osier::spawn(move || {
                        (0..1000).for_each(|n| sender.send((from, n)).unwrap())
                    })),
                    _ => drop(osier::spawn_future(async move {
                        for n in 0..1000 {
                            sender.send_async((from, n)).await.unwrap();
                        }
                    })),
                }
            }
            drop(sender);
            let fibers =
                [receiver.clone(), receiver.clone()].map(|receiver| osier::spawn(move || Vec::from_iter(receiver)));
            let tasks = [receiver.clone(), receiver]
                .map(|receiver| osier::spawn_future(receiver.into_stream().collect::<Vec<_>>()));
            let mut got = Vec::new();
            fibers.into_iter().for_each(|fiber| got.push(fiber.join().unwrap()));
            tasks.into_iter().for_each(|task| got.push(task.join().unwrap()));
            got
        });
        for values in &got {
            for from in 0..4 {
                let of_one: Vec<_> = values.iter().filter(|value| value.0 == from).collect();
                assert!(of_one.is_sorted(), "one receiver sees what one sender sent in order");
            }
        }
        let mut all = got.concat();
        all.sort();
        let sent: Vec<_> = (0..4).flat_map(|from| (0..1000).map(move |n| (from, n))).collect();
        assert!(all == sent, "bound {bound}: {} of {} values", all.len(), sent.len());
    }
}

#[test]
fn receivers_that_wait_are_served_in_order() {
    on(1).run(|| {
        let (sender, receiver) = mpmc::channel(4);
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let receiver = receiver.clone();
                let handle = osier::spawn_local(move || receiver.recv());
                osier::yield_now();
                handle
            })
            .collect();
        (0..2).for_each(|n| sender.send(n).unwrap());
        assert_eq!(receiver.try_recv(), Err(mpmc::TryRecvError::Empty), "they are promised");
        (2..4).for_each(|n| sender.send(n).unwrap());
        for (n, handle) in waiting.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), Ok(n));
        }
    });
}

#[test]
fn a_value_promised_to_a_receiver_that_gives_up_goes_to_the_next() {
    let (sender, receiver) = mpmc::unbounded();
    let mut second = pin!(receiver.recv_async());
    {
        let mut first = pin!(receiver.recv_async());
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());
        sender.send(1).unwrap();
    }
    assert_eq!(poll_once(second.as_mut()), Poll::Ready(Ok(1)));
    let mut stream = receiver.clone().into_stream();
    assert!(poll_once(pin!(stream.next())).is_pending());
    sender.send(2).unwrap();
    drop(stream);
    assert_eq!(receiver.try_recv(), Ok(2));
}

#[test]
fn cancelling_receivers_while_values_come_loses_none() {
    let (sender, receiver) = mpmc::channel(2);
    let got = Arc::new(AtomicUsize::new(0));
    let mut sent = 0;
    on(2).run(|| {
        for round in 0..100 {
            let handles: Vec<_> = (0..4)
                .map(|_| {
                    let (receiver, got) = (receiver.clone(), Arc::clone(&got));
                    osier::spawn(move || {
                        receiver.recv().unwrap();
                        got.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            if round % 2 == 0 {
                osier::yield_now();
            }
            sender.send(()).unwrap();
            handles.iter().step_by(2).for_each(|handle| handle.cancel());
            sender.send(()).unwrap();
            sent += 2;
            for (n, handle) in handles.into_iter().enumerate() {
                // Receivers that were cancelled too late have taken a value each. The others get one more each.
                while !handle.is_finished() {
                    sent += usize::from(n % 2 == 1 && receiver.is_empty() && sender.try_send(()).is_ok());
                    osier::yield_now();
                }
                assert!(handle.join().is_ok() || n % 2 == 0);
            }
            got.fetch_add(receiver.try_iter().count(), Ordering::SeqCst);
            assert_eq!((receiver.len(), sender.capacity()), (0, Some(2)));
            assert_eq!(got.load(Ordering::SeqCst), sent, "round {round}");
        }
    });
}

#[test]
fn every_receiver_hears_the_end_and_every_sender() {
    timeless(2).run(|| {
        let (sender, receiver) = mpmc::channel::<u8>(1);
        let waiting = [receiver.clone(), receiver].map(|receiver| osier::spawn(move || receiver.recv()));
        settle();
        drop(sender);
        for handle in waiting {
            assert_eq!(handle.join().unwrap(), Err(mpmc::RecvError));
        }
        let (sender, receiver) = mpmc::channel(1);
        sender.send(0).unwrap();
        let waiting = [1, 2].map(|n| {
            let sender = sender.clone();
            osier::spawn(move || sender.send(n))
        });
        let other = receiver.clone();
        settle();
        drop(receiver);
        assert!(!sender.is_closed(), "there is another");
        other.close();
        for (n, handle) in (1..).zip(waiting) {
            assert_eq!(handle.join().unwrap(), Err(mpmc::SendError(n)));
        }
        assert_eq!(other.recv(), Ok(0));
        assert_eq!(other.recv_timeout(LONG), Err(mpmc::RecvTimeoutError::Disconnected));
        assert_eq!(other.try_recv(), Err(mpmc::TryRecvError::Disconnected));
    });
}

#[test]
fn a_stream_that_is_left_alone_does_not_keep_its_receiver_from_receiving() {
    let (sender, mut receiver) = mpsc::channel(4);
    assert!(poll_once(pin!(receiver.next())).is_pending());
    sender.send(1).unwrap();
    assert_eq!(receiver.try_recv(), Ok(1));
    assert!(poll_once(pin!(receiver.next())).is_pending());
    sender.send(2).unwrap();
    assert_eq!(receiver.recv(), Ok(2));
    assert!(poll_once(pin!(receiver.next())).is_pending());
    drop(sender);
    assert_eq!(receiver.recv(), Err(mpsc::RecvError));
}

#[test]
fn values_without_a_size_and_large_ones_arrive() {
    let (sender, mut receiver) = mpsc::channel(3);
    (0..3).for_each(|_| sender.send(()).unwrap());
    assert_eq!(sender.try_send(()), Err(mpsc::TrySendError::Full(())));
    drop(sender);
    assert_eq!(receiver.iter().count(), 3);
    let (sender, receiver) = mpmc::unbounded();
    (0..100).for_each(|n| sender.send([n; 1000]).unwrap());
    assert!(receiver.try_iter().eq((0..100).map(|n| [n; 1000])));
}

#[test]
fn a_value_whose_drop_panics_takes_no_other_along() {
    struct Panics(Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            if self.0.fetch_add(1, Ordering::SeqCst) == 1 {
                panic!("the second does");
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpmc::unbounded();
    (0..5).for_each(|_| assert!(sender.send(Panics(Arc::clone(&drops))).is_ok()));
    let dropping = std::panic::AssertUnwindSafe(|| drop(receiver));
    assert!(std::panic::catch_unwind(dropping).is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 5);
    assert!(sender.is_closed());
    let back = sender.send(Panics(Arc::clone(&drops)));
    assert!(matches!(back, Err(mpmc::SendError(_))));
}

#[test]
fn a_value_that_holds_its_own_sender_is_dropped_with_the_receiver() {
    struct Message(#[allow(dead_code)] mpsc::Sender<Message>, #[allow(dead_code)] Count);
    let drops = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpsc::unbounded();
    for _ in 0..3 {
        let message = Message(sender.clone(), Count(Arc::clone(&drops)));
        assert!(sender.send(message).is_ok());
    }
    drop(sender);
    drop(receiver);
    assert_eq!(drops.load(Ordering::SeqCst), 3);
}

#[test]
fn a_permit_after_the_last_receiver_gives_its_value_back() {
    for (sender, receiver) in [mpmc::channel(1), mpmc::unbounded()] {
        let room = sender.reserve().unwrap();
        drop(receiver);
        assert_eq!(room.send("kept"), Err(mpmc::SendError("kept")));
    }
}
