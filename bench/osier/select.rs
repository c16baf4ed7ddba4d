//! Osier: `select!` over four channels, when one is ready and when it has to wait, with and without a timeout arm, with
//! fibers and with futures, on one worker.
#![forbid(unsafe_code)]

use osier::sync::{Event, mpsc};
use std::sync::Arc;
use std::time::Duration;

type Channels = [(mpsc::Sender<u32>, mpsc::Receiver<u32>); 4];

const MINUTE: Duration = Duration::from_secs(60);

fn channels() -> Channels {
    std::array::from_fn(|_| mpsc::channel(8))
}

/// Waits for whichever channel has a message: `select!` or `select_async!`, and the arms that come after the four.
macro_rules! first {
    ($select:ident, $channels:expr $(, $($arm:tt)*)?) => {{
        let [a, b, c, d] = &mut $channels;
        osier::$select! {
            i = a.1.recv_async() => i,
            i = b.1.recv_async() => i,
            i = c.1.recv_async() => i,
            i = d.1.recv_async() => i,
            $($($arm)*)?
        }
    }};
}

/// Sends to each of the four in turn, and takes it at once.
macro_rules! when_ready {
    ($select:ident, $n:expr $(, $($arm:tt)*)?) => {{
        let mut channels = channels();
        for i in 0..$n {
            channels[i as usize % 4].0.try_send(i).expect("there is room");
            assert_eq!(first!($select, channels $(, $($arm)*)?), Ok(i));
        }
    }};
}

/// Receives values from a sender that waits until each value was taken.
macro_rules! when_waiting {
    ($select:ident, $n:expr, $taken:expr, $channels:expr $(, $($arm:tt)*)?) => {{
        for i in 0..$n {
            assert_eq!(first!($select, $channels $(, $($arm)*)?), Ok(i));
            $taken.set();
        }
    }};
}

fn main() {
    let rt = osier::Runtime::builder()
        .workers(1)
        .build()
        .expect("one worker needs a thread and an epoll");
    rt.run(|| {
        measure::print("select-ready", |n| when_ready!(select, n));
        measure::print("select-ready-timeout", |n| {
            when_ready!(select, n, timeout MINUTE => Err(mpsc::RecvError));
        });
        measure::print("select", |n| {
            with_sender_fiber(n, |mut channels, taken| when_waiting!(select, n, taken, channels));
        });
        measure::print("select-timeout", |n| {
            with_sender_fiber(n, |mut channels, taken| {
                when_waiting!(select, n, taken, channels, timeout MINUTE => Err(mpsc::RecvError));
            });
        });
        measure::print("select-ready-futures", |n| {
            in_task(async move { when_ready!(select_async, n) });
        });
        measure::print("select-ready-timeout-futures", |n| {
            in_task(async move { when_ready!(select_async, n, timeout MINUTE => Err(mpsc::RecvError)) });
        });
        measure::print("select-futures", |n| {
            let (mut channels, taken) = with_sender_task(n);
            in_task(async move { when_waiting!(select_async, n, taken, channels) });
        });
        measure::print("select-timeout-futures", |n| {
            let (mut channels, taken) = with_sender_task(n);
            in_task(async move {
                when_waiting!(select_async, n, taken, channels, timeout MINUTE => Err(mpsc::RecvError));
            });
        });
    });
}

fn in_task(future: impl Future<Output = ()> + Send + 'static) {
    osier::spawn_future(future).join().expect("it does not panic");
}

fn with_sender_fiber(n: u32, receive: impl FnOnce(Channels, &Event)) {
    let channels = channels();
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let taken = Arc::new(Event::new());
    let done = taken.clone();
    let sending = osier::spawn(move || {
        for i in 0..n {
            senders[i as usize % 4].try_send(i).expect("there is room");
            done.wait();
        }
    });
    receive(channels, &taken);
    sending.join().expect("it does not panic");
}

fn with_sender_task(n: u32) -> (Channels, Arc<Event>) {
    let channels = channels();
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let taken = Arc::new(Event::new());
    let done = taken.clone();
    osier::spawn_future(async move {
        for i in 0..n {
            senders[i as usize % 4].try_send(i).expect("there is room");
            done.wait_async().await;
        }
    });
    (channels, taken)
}
