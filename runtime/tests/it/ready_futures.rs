//! Futures whose calls are always ready let the others of their worker run: in tasks, and on fibers that block on them.
//! `refused_calls.rs` tests that nobody else notices how.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, StreamExt};
use osier::fiber::JoinSet;
use osier::net::UdpSocket;
use osier::pubsub::{Policy, Topic};
use osier::sync::{Barrier, Event, Mailbox, Notify, RwLock, Semaphore, broadcast, mpmc, mpsc, oneshot, watch};
use osier::time::{Sleep, interval};
use osier::{block_on, spawn_future_local};

use crate::given::{on, pair};

pub const LIMIT: Duration = Duration::from_secs(30);
/// More calls than one poll may complete.
pub const MANY: usize = 1000;

/// Says to a loop whether to go on: until others of its worker have run.
#[derive(Clone)]
pub struct Turns {
    pub others_ran: Arc<AtomicBool>,
    start: Instant,
}

impl Turns {
    pub fn begin() -> Turns {
        Turns {
            others_ran: Arc::default(),
            start: Instant::now(),
        }
    }

    pub fn go_on(&self) -> bool {
        !self.others_ran.load(Ordering::SeqCst) && self.in_time()
    }

    pub fn in_time(&self) -> bool {
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
pub struct Unordered<'a> {
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
    pub fn push(&mut self, future: impl Future<Output = ()> + 'a) {
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
