//! tokio: messages through `sync::mpsc`, from one sender to one receiver on current_thread, and from four to four on
//! multi_thread with two workers. A channel has one receiver, so four to four takes four channels.
#![forbid(unsafe_code)]

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

const BOUND: usize = 1024;
const PAIRS: u32 = 4;

fn main() {
    let one = Builder::new_current_thread()
        .build()
        .expect("a runtime without drivers needs nothing");
    measure::print("channel-1", |n| tasks(&one, 1, n));
    let two = Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("two workers need two threads");
    measure::print_abreast("channel-4", |n| tasks(&two, PAIRS, n));
}

/// `n` messages in all, through as many channels as there are pairs.
fn tasks(rt: &Runtime, pairs: u32, n: u32) {
    let each = n / pairs;
    let receivers: Vec<_> = (0..pairs)
        .map(|_| {
            let (sender, mut receiver) = mpsc::channel(BOUND);
            rt.spawn(async move {
                for i in 0..each {
                    sender.send(i).await.expect("the receiver waits for all");
                }
            });
            rt.spawn(async move {
                let mut count = 0;
                while receiver.recv().await.is_some() {
                    count += 1;
                }
                count
            })
        })
        .collect();
    for receiver in receivers {
        assert_eq!(rt.block_on(receiver).expect("it does not panic"), each);
    }
}
