//! Osier: messages through bounded channels, from one sender to one receiver on one worker, and from four to four on two
//! workers; with fibers and with futures. Four to four takes four channels of `mpsc`, or one of `mpmc`, which eight plain threads use, too.
#![forbid(unsafe_code)]

use osier::sync::{mpmc, mpsc};
use std::thread;

const BOUND: usize = 1024;
const PAIRS: u32 = 4;

fn main() {
    let workers = |workers| {
        osier::Runtime::builder()
            .workers(workers)
            .build()
            .expect("a worker needs a thread and an epoll")
    };
    let rt = workers(1);
    rt.run(|| {
        measure::print("channel-1", |n| fibers(1, n));
        measure::print("channel-1-futures", |n| futures(1, n));
    });
    drop(rt);
    let rt = workers(2);
    rt.run(|| {
        measure::print_abreast("channel-4", |n| fibers(PAIRS, n));
        measure::print_abreast("channel-4-futures", |n| futures(PAIRS, n));
        measure::print_abreast("channel-4-mpmc", fibers_on_one);
        measure::print_abreast("channel-4-mpmc-futures", futures_on_one);
    });
    drop(rt);
    measure::print_abreast("channel-4-mpmc-threads", threads_on_one);
}

/// `n` messages in all, through as many channels as there are pairs.
fn fibers(pairs: u32, n: u32) {
    let each = n / pairs;
    let receivers: Vec<_> = (0..pairs)
        .map(|_| {
            let (sender, mut receiver) = mpsc::channel(BOUND);
            osier::spawn(move || (0..each).try_for_each(|i| sender.send(i)));
            osier::spawn(move || receiver.iter().count())
        })
        .collect();
    for receiver in receivers {
        assert_eq!(receiver.join().expect("it does not panic"), each as usize);
    }
}

fn futures(pairs: u32, n: u32) {
    let each = n / pairs;
    let receivers: Vec<_> = (0..pairs)
        .map(|_| {
            let (sender, mut receiver) = mpsc::channel(BOUND);
            osier::spawn_future(async move {
                for i in 0..each {
                    sender.send_async(i).await.expect("the receiver waits for all");
                }
            });
            osier::spawn_future(async move {
                let mut count = 0;
                while receiver.recv_async().await.is_ok() {
                    count += 1;
                }
                count
            })
        })
        .collect();
    for receiver in receivers {
        assert_eq!(receiver.join().expect("it does not panic"), each);
    }
}

/// `n` messages in all, through one channel.
fn fibers_on_one(n: u32) {
    let (sender, receiver) = mpmc::channel(BOUND);
    let receivers: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            osier::spawn(move || (0..n / PAIRS).try_for_each(|i| sender.send(i)));
            osier::spawn(move || receiver.iter().count())
        })
        .collect();
    drop(sender);
    let counts = receivers
        .into_iter()
        .map(|receiver| receiver.join().expect("it does not panic"));
    assert_eq!(counts.sum::<usize>(), n as usize);
}

fn futures_on_one(n: u32) {
    let (sender, receiver) = mpmc::channel(BOUND);
    let receivers: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            osier::spawn_future(async move {
                for i in 0..n / PAIRS {
                    sender.send_async(i).await.expect("the receivers wait for all");
                }
            });
            osier::spawn_future(async move {
                let mut count = 0;
                while receiver.recv_async().await.is_ok() {
                    count += 1;
                }
                count
            })
        })
        .collect();
    drop(sender);
    let counts = receivers
        .into_iter()
        .map(|receiver| receiver.join().expect("it does not panic"));
    assert_eq!(counts.sum::<u32>(), n);
}

/// The same by threads that belong to no runtime.
fn threads_on_one(n: u32) {
    let (sender, receiver) = mpmc::channel(BOUND);
    let receivers: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            thread::spawn(move || (0..n / PAIRS).try_for_each(|i| sender.send(i)));
            thread::spawn(move || receiver.iter().count())
        })
        .collect();
    drop((sender, receiver));
    let counts = receivers
        .into_iter()
        .map(|receiver| receiver.join().expect("it does not panic"));
    assert_eq!(counts.sum::<usize>(), n as usize);
}
