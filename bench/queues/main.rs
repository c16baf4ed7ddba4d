//! Other crates' queues with four senders and four receivers, through one queue of 1,024 places. The queues with futures run on tokio's
//! multi_thread runtime with two workers. crossbeam, which blocks, runs on eight threads. flume and kanal run on both.
#![forbid(unsafe_code)]

use std::thread;
use tokio::runtime::{Builder, Runtime};

const BOUND: usize = 1024;
const PAIRS: u32 = 4;

/// A row of one library on tasks: how to make the queue, and what sends and receives.
macro_rules! on_tasks {
    ($rt:expr, $name:literal, $channel:expr, $send:ident, $recv:ident) => {
        measure::print_abreast($name, |n| {
            let (sender, receiver) = $channel;
            let receivers: Vec<_> = (0..PAIRS)
                .map(|_| {
                    let (sender, receiver) = (sender.clone(), receiver.clone());
                    $rt.spawn(async move {
                        for i in 0..n / PAIRS {
                            sender.$send(i).await.expect("the receivers wait for all");
                        }
                    });
                    $rt.spawn(async move {
                        let mut count = 0;
                        while receiver.$recv().await.is_ok() {
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            drop((sender, receiver));
            let counts = receivers
                .into_iter()
                .map(|receiver| $rt.block_on(receiver).expect("it does not panic"));
            assert_eq!(counts.sum::<u32>(), n);
        });
    };
}

/// The same on threads.
macro_rules! on_threads {
    ($name:literal, $channel:expr) => {
        measure::print_abreast($name, |n| {
            let (sender, receiver) = $channel;
            let count = thread::scope(|scope| {
                let receivers: Vec<_> = (0..PAIRS)
                    .map(|_| {
                        let (sender, receiver) = (sender.clone(), receiver.clone());
                        scope.spawn(move || {
                            for i in 0..n / PAIRS {
                                sender.send(i).expect("the receivers wait for all");
                            }
                        });
                        scope.spawn(move || {
                            let mut count = 0;
                            while receiver.recv().is_ok() {
                                count += 1;
                            }
                            count
                        })
                    })
                    .collect();
                drop((sender, receiver));
                let counts = receivers
                    .into_iter()
                    .map(|receiver| receiver.join().expect("it does not panic"));
                counts.sum::<u32>()
            });
            assert_eq!(count, n);
        });
    };
}

fn main() {
    let rt: Runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("two workers need two threads");
    on_tasks!(rt, "flume", flume::bounded(BOUND), send_async, recv_async);
    on_tasks!(rt, "kanal", kanal::bounded_async(BOUND), send, recv);
    on_tasks!(rt, "async-channel", async_channel::bounded(BOUND), send, recv);
    on_threads!("crossbeam-threads", crossbeam_channel::bounded(BOUND));
    on_threads!("flume-threads", flume::bounded(BOUND));
    on_threads!("kanal-threads", kanal::bounded(BOUND));
}
