//! smol: messages through async-channel, from one sender to one receiver on a LocalExecutor, and from four to four on an
//! Executor that two threads run. Its channel has many receivers, so four to four takes one channel.
#![forbid(unsafe_code)]

use smol::{Executor, LocalExecutor, channel, future};
use std::thread;

const BOUND: usize = 1024;
const PAIRS: u32 = 4;

fn main() {
    let ex = LocalExecutor::new();
    measure::print("channel-1", |n| {
        let (sender, receiver) = channel::bounded(BOUND);
        ex.spawn(send(sender, n)).detach();
        let count = ex.spawn(receive(receiver));
        assert_eq!(future::block_on(ex.run(count)), n);
    });
    let ex = Executor::new();
    let (stop, stopped) = channel::bounded::<()>(1);
    thread::scope(|scope| {
        let (ex, stopped) = (&ex, &stopped);
        for _ in 0..2 {
            scope.spawn(move || future::block_on(ex.run(stopped.recv())));
        }
        measure::print_abreast("channel-4", |n| {
            let (sender, receiver) = channel::bounded(BOUND);
            let receivers: Vec<_> = (0..PAIRS)
                .map(|_| {
                    ex.spawn(send(sender.clone(), n / PAIRS)).detach();
                    ex.spawn(receive(receiver.clone()))
                })
                .collect();
            drop(sender);
            let counts = receivers.into_iter().map(future::block_on);
            assert_eq!(counts.sum::<u32>(), n);
        });
        drop(stop);
    });
}

async fn send(sender: channel::Sender<u32>, n: u32) {
    for i in 0..n {
        sender.send(i).await.expect("the receivers wait for all");
    }
}

async fn receive(receiver: channel::Receiver<u32>) -> u32 {
    let mut count = 0;
    while receiver.recv().await.is_ok() {
        count += 1;
    }
    count
}
