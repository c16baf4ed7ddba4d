//! tokio: `select!` over four channels, when one is ready and when it has to wait, with and without a timeout arm, on
//! current_thread.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

type Channels = [(mpsc::Sender<u32>, mpsc::Receiver<u32>); 4];

const MINUTE: Duration = Duration::from_secs(60);

fn channels() -> Channels {
    std::array::from_fn(|_| mpsc::channel(8))
}

/// Waits for whichever channel has a message, and the arms that come after the four.
macro_rules! first {
    ($channels:expr $(, $($arm:tt)*)?) => {{
        let [a, b, c, d] = &mut $channels;
        tokio::select! {
            i = a.1.recv() => i,
            i = b.1.recv() => i,
            i = c.1.recv() => i,
            i = d.1.recv() => i,
            $($($arm)*)?
        }
    }};
}

/// Sends to each of the four in turn, and takes it at once.
macro_rules! when_ready {
    ($n:expr $(, $($arm:tt)*)?) => {{
        let mut channels = channels();
        for i in 0..$n {
            channels[i as usize % 4].0.try_send(i).expect("there is room");
            assert_eq!(first!(channels $(, $($arm)*)?), Some(i));
        }
    }};
}

/// Receives values from a sender that waits until each value was taken.
macro_rules! when_waiting {
    ($n:expr, $taken:expr, $channels:expr $(, $($arm:tt)*)?) => {{
        for i in 0..$n {
            assert_eq!(first!($channels $(, $($arm)*)?), Some(i));
            $taken.notify_one();
        }
    }};
}

fn main() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime with a clock needs nothing");
    // Inside a task: the future given to block_on is polled by other rules.
    let in_task = |task: tokio::task::JoinHandle<()>| rt.block_on(task).expect("it does not panic");
    measure::print("select-ready", |n| in_task(rt.spawn(async move { when_ready!(n) })));
    measure::print("select-ready-timeout", |n| {
        in_task(rt.spawn(async move { when_ready!(n, _ = sleep(MINUTE) => None) }));
    });
    measure::print("select", |n| {
        in_task(rt.spawn(async move {
            let (mut channels, taken) = with_sender(n);
            when_waiting!(n, taken, channels);
        }));
    });
    measure::print("select-timeout", |n| {
        in_task(rt.spawn(async move {
            let (mut channels, taken) = with_sender(n);
            when_waiting!(n, taken, channels, _ = sleep(MINUTE) => None);
        }));
    });
}

fn with_sender(n: u32) -> (Channels, Arc<Notify>) {
    let channels = channels();
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let taken = Arc::new(Notify::new());
    let done = taken.clone();
    tokio::spawn(async move {
        for i in 0..n {
            senders[i as usize % 4].try_send(i).expect("there is room");
            done.notified().await;
        }
    });
    (channels, taken)
}
