//! Futures whose calls are always ready let the others of their worker run: in tasks, and on fibers that block on them. A call that is told
//! to come again for that has done nothing, and no call that must not wait notices it.
//!
//! Long because each kind of call, and each place where futures are polled, can be forgotten by itself.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, StreamExt};
use osier::callbacks::IoQueue;
use osier::fiber::JoinSet;
use osier::net::UdpSocket;
use osier::pubsub::{Policy, Topic};
use osier::sync::{Barrier, Event, Mailbox, Notify, RwLock, Semaphore, broadcast, mpmc, mpsc, oneshot, watch};
use osier::time::{Sleep, interval};
use osier::{block_on, spawn_future, spawn_future_local};

use crate::given::{on, pair, settle, timeless};

const LIMIT: Duration = Duration::from_secs(30);
/// More calls than one poll may complete.
const MANY: usize = 1000;

/// Says to a loop whether to go on: until others of its worker have run.
#[derive(Clone)]
struct Turns {
    others_ran: Arc<AtomicBool>,
    start: Instant,
}

impl Turns {
    fn begin() -> Turns {
        Turns {
            others_ran: Arc::default(),
            start: Instant::now(),
        }
    }

    fn go_on(&self) -> bool {
        !self.others_ran.load(Ordering::SeqCst) && self.in_time()
    }

    fn in_time(&self) -> bool {
        self.start.elapsed() < LIMIT
    }
}

/// Runs the loop that `busy` makes in each place where a future can keep a worker, beside a fiber that sleeps for a moment.
#[track_caller]
fn lets_others_run<F: Future<Output = ()> + 'static>(busy: fn(Turns) -> F) {
    for place in ["task", "fiber"] {
        let in_time = on(1).run(move || {
            let turns = Turns::begin();
            let done = Arc::new(Event::manual());
            let (theirs, set) = (turns.clone(), Arc::clone(&done));
            let run = move || {
                let busy = busy(theirs);
                async move {
                    busy.await;
                    set.set();
                }
            };
            match place {
                "task" => drop(spawn_future_local(run())),
                _ => drop(osier::spawn_local(move || block_on(run()))),
            }
            osier::sleep(Duration::from_millis(5)); // the others: a timer, and the fiber that it wakes
            turns.others_ran.store(true, Ordering::SeqCst);
            done.wait();
            turns.in_time()
        });
        assert!(in_time, "on a {place}, nobody else ran for {LIMIT:?}");
    }
}

#[test]
fn sockets_that_are_always_ready_leave_turns_for_others() {
    lets_others_run(|turns| {
        let (stream, other) = pair();
        drop(other);
        async move {
            while turns.go_on() {
                assert_eq!(stream.read_async(&mut [0]).await.unwrap(), 0, "the end, each time");
            }
        }
    });
    lets_others_run(|turns| {
        let (stream, other) = pair();
        drop(other);
        async move {
            let mut bytes = stream.as_async();
            while turns.go_on() {
                assert_eq!(bytes.read(&mut [0]).await.unwrap(), 0);
            }
        }
    });
    fn udp() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        socket
    }
    lets_others_run(|turns| {
        let socket = udp();
        async move {
            while turns.go_on() {
                socket.send_async(b"x").await.unwrap();
            }
        }
    });
    lets_others_run(|turns| {
        let socket = udp();
        socket.send(b"x").unwrap();
        async move {
            while turns.go_on() {
                socket.peek_async(&mut [0]).await.unwrap();
            }
        }
    });
    lets_others_run(|turns| {
        let socket = udp();
        async move {
            while turns.go_on() {
                socket.writable_async().await.unwrap();
            }
        }
    });
}

#[test]
fn descriptors_and_files_that_are_always_ready_leave_turns_for_others() {
    lets_others_run(|turns| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        let reader = osier::io::Async::new(reader).unwrap();
        async move {
            while turns.go_on() {
                reader
                    .read_with_async(|mut pipe| std::io::Read::read(&mut pipe, &mut [0]))
                    .await
                    .unwrap();
            }
        }
    });
    lets_others_run(|turns| {
        let event = Event::with_fd().unwrap();
        async move {
            while turns.go_on() {
                event.set();
                event.wait_async().await.unwrap();
            }
        }
    });
    lets_others_run(|turns| {
        let mut file = osier::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        async move {
            let mut byte = [0];
            while turns.go_on() {
                if file.read(&mut byte).await.unwrap() == 0 {
                    futures_lite::AsyncSeekExt::seek(&mut file, std::io::SeekFrom::Start(0))
                        .await
                        .unwrap();
                }
            }
        }
    });
}

#[test]
fn channels_that_are_always_ready_leave_turns_for_others() {
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = mpsc::channel(8);
        while turns.go_on() {
            sender.try_send(()).unwrap();
            receiver.recv_async().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = mpsc::channel(8);
        while turns.go_on() {
            sender.send_async(()).await.unwrap();
            receiver.try_recv().unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = mpsc::channel(8);
        while turns.go_on() {
            sender.reserve_async().await.unwrap().send(()).unwrap();
            receiver.try_recv().unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = mpsc::unbounded();
        while turns.go_on() {
            sender.reserve_async().await.unwrap().send(()).unwrap();
            receiver.try_recv().unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = mpsc::unbounded();
        while turns.go_on() {
            sender.try_send(()).unwrap();
            receiver.next().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, receiver) = mpmc::channel(8);
        while turns.go_on() {
            sender.try_send(()).unwrap();
            receiver.recv_async().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, receiver) = mpmc::channel(8);
        let mut messages = receiver.into_stream();
        while turns.go_on() {
            sender.try_send(()).unwrap();
            messages.next().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        while turns.go_on() {
            let (sender, receiver) = oneshot::channel();
            sender.send(()).unwrap();
            receiver.await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = watch::channel(0);
        while turns.go_on() {
            sender.send(1);
            receiver.changed_async().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (_sender, mut receiver) = watch::channel(0);
        while turns.go_on() {
            receiver.wait_for_async(|value| *value == 0).await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let (sender, mut receiver) = broadcast::channel(8);
        while turns.go_on() {
            sender.send(()).unwrap();
            receiver.recv_async().await.unwrap();
        }
    });
    lets_others_run(|turns| async move {
        let topic = Topic::new();
        let mut subscriber = topic.subscribe(8, Policy::DropOldest);
        while turns.go_on() {
            topic.publish(());
            subscriber.recv_async().await.unwrap();
            topic.publish(());
            subscriber.next().await.unwrap();
        }
    });
}

#[test]
fn locks_and_signals_that_are_always_free_leave_turns_for_others() {
    lets_others_run(|turns| async move {
        let event = Event::new();
        while turns.go_on() {
            event.set();
            event.wait_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let event = Event::manual();
        event.set();
        while turns.go_on() {
            event.wait_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let mailbox = Mailbox::new();
        while turns.go_on() {
            mailbox.raise(1);
            mailbox.wait_any_async(1).await;
        }
    });
    lets_others_run(|turns| async move {
        let notify = Notify::new();
        while turns.go_on() {
            notify.notify_one();
            notify.wait_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let lock = osier::sync::Mutex::new(0);
        while turns.go_on() {
            *lock.lock_async().await += 1;
        }
    });
    lets_others_run(|turns| async move {
        let lock = RwLock::new(0);
        while turns.go_on() {
            let _ = *lock.read_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let lock = RwLock::new(0);
        while turns.go_on() {
            *lock.write_async().await += 1;
        }
    });
    lets_others_run(|turns| async move {
        let permits = Arc::new(Semaphore::new(2));
        while turns.go_on() {
            let _permit = permits.acquire_async().await;
            let _other = Arc::clone(&permits).acquire_owned_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let alone = Barrier::new(1);
        while turns.go_on() {
            alone.wait_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let (event, turns) = (Event::manual(), &turns);
        event.set();
        osier::time::wait_until_async(&event, || !turns.go_on()).await;
    });
}

#[test]
fn times_and_handles_that_are_always_ready_leave_turns_for_others() {
    lets_others_run(|turns| async move {
        let past = Instant::now();
        while turns.go_on() {
            Sleep::until(past).await;
        }
    });
    lets_others_run(|turns| async move {
        let mut ticks = interval(Duration::from_nanos(1));
        while turns.go_on() {
            ticks.tick_async().await;
        }
    });
    lets_others_run(|turns| async move {
        let mut none = JoinSet::<()>::new();
        while turns.go_on() {
            assert!(none.join_next_async().await.is_none());
        }
    });
}

#[test]
fn combined_calls_that_are_always_ready_leave_turns_for_others() {
    lets_others_run(|turns| async move {
        let (one, other) = (Semaphore::new(1), Semaphore::new(1));
        while turns.go_on() {
            osier::select_async! {
                _ = one.acquire_async() => {}
                _ = other.acquire_async() => {}
                timeout LIMIT => unreachable!(),
            }
        }
    });
    lets_others_run(|turns| async move {
        let (one, other) = (Semaphore::new(1), Semaphore::new(1));
        while turns.go_on() {
            drop(osier::join_async!(one.acquire_async(), other.acquire_async()).await);
        }
    });
    lets_others_run(|turns| async move {
        let permits = Semaphore::new(4);
        while turns.go_on() {
            let leaves = [(); 4].map(|()| Box::pin(permits.acquire_async()));
            drop(osier::select::wait_all_async(leaves).await);
        }
    });
    lets_others_run(|turns| async move {
        // A loop that never is over, beside others that never are ready.
        let permits = Semaphore::new(1);
        let busy = async {
            while turns.go_on() {
                drop(permits.acquire_async().await);
            }
        };
        let mut all = Unordered::default();
        all.push(busy);
        all.await;
    });
}

/// Futures that each have a waker of their own, polled when that was called, until all are ready: as in `FuturesUnordered`.
#[derive(Default)]
struct Unordered<'a> {
    futures: Vec<Option<Pin<Box<dyn Future<Output = ()> + 'a>>>>,
    shared: Arc<Woken>,
}

#[derive(Default)]
struct Woken {
    queue: Mutex<Vec<usize>>,
    parent: Mutex<Option<Waker>>,
}

struct Child(usize, Arc<Woken>);

impl Wake for Child {
    fn wake(self: Arc<Self>) {
        let mut queue = self.1.queue.lock().unwrap();
        if !queue.contains(&self.0) {
            queue.push(self.0);
        }
        drop(queue);
        if let Some(parent) = &*self.1.parent.lock().unwrap() {
            parent.wake_by_ref();
        }
    }
}

impl<'a> Unordered<'a> {
    fn push(&mut self, future: impl Future<Output = ()> + 'a) {
        self.shared.queue.lock().unwrap().push(self.futures.len());
        self.futures.push(Some(Box::pin(future)));
    }
}

impl Future for Unordered<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.shared.parent.lock().unwrap() = Some(cx.waker().clone());
        let woken = std::mem::take(&mut *self.shared.queue.lock().unwrap());
        for index in woken {
            let waker = Waker::from(Arc::new(Child(index, Arc::clone(&self.shared))));
            if let Some(future) = &mut self.futures[index]
                && future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                self.futures[index] = None;
            }
        }
        match self.futures.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

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
        // A join in a join.
        let (one, two) = (end(), end());
        let parts = [(one.clone(), one), (two.clone(), two)].map(|(end, theirs)| async move {
            osier::join_async!(busy(end), beats(theirs)).await;
        });
        let [one, two] = parts;
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
