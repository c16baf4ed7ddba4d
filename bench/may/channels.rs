//! may: messages through `sync::mpsc`, from one sender to one receiver on one worker, and from four to four on two workers.
//! Its channels have no bound, so a sender never waits. A channel has one receiver, so four to four takes four channels.
//! Argument: the name of the only figure to measure.

use may::sync::mpsc;

const PAIRS: u32 = 4;

fn main() {
    // Its workers are set once for the process.
    match std::env::args().nth(1).as_deref() {
        Some("channel-4") => {
            may::config().set_workers(2);
            measure::print_abreast("channel-4", |n| coroutines(PAIRS, n));
        }
        _ => {
            may::config().set_workers(1);
            measure::print("channel-1", |n| coroutines(1, n));
        }
    }
}

/// `n` messages in all, through as many channels as there are pairs.
fn coroutines(pairs: u32, n: u32) {
    let each = n / pairs;
    let receivers: Vec<_> = (0..pairs)
        .map(|_| {
            let (sender, receiver) = mpsc::channel();
            // SAFETY: the coroutines use no thread-local and next to no stack, which is what spawn asks for.
            unsafe {
                may::coroutine::spawn(move || (0..each).try_for_each(|i| sender.send(i)));
                may::coroutine::spawn(move || receiver.iter().count())
            }
        })
        .collect();
    for receiver in receivers {
        assert_eq!(receiver.join().expect("it does not panic"), each as usize);
    }
}
