//! Osier: two fibers or two futures that signal each other in turn through events and mailboxes, on one worker and on two.
//!
//! One round trip is two signals. On two workers each fiber has one of its own; futures may meet on one.
#![forbid(unsafe_code)]

use osier::sync::{Event, Mailbox};
use std::sync::Arc;

/// Two events: one side waits for each, and the other side sets it. Clones are the same pair.
#[derive(Clone, Default)]
struct Events(Arc<[Event; 2]>);

#[derive(Clone, Default)]
struct Mailboxes(Arc<[Mailbox; 2]>);

const MAIL: u32 = 1;

fn main() {
    let workers = |workers| {
        osier::Runtime::builder()
            .workers(workers)
            .build()
            .expect("a worker needs a thread and an epoll")
    };
    let rt = workers(1);
    rt.run(|| {
        measure::print("event", |n| event_fibers(n, [0, 0]));
        measure::print("event-futures", event_futures);
        measure::print("mailbox", |n| mailbox_fibers(n, [0, 0]));
        measure::print("mailbox-futures", mailbox_futures);
    });
    drop(rt);
    let rt = workers(2);
    rt.run(|| {
        measure::print_apart("event-apart", |n| event_fibers(n, [0, 1]));
        measure::print_apart("event-futures-apart", event_futures);
        measure::print_apart("mailbox-apart", |n| mailbox_fibers(n, [0, 1]));
        measure::print_apart("mailbox-futures-apart", mailbox_futures);
    });
}

/// Runs two fibers, each on the worker with its number.
fn on_fibers(workers: [usize; 2], one: impl FnOnce() + Send + 'static, two: impl FnOnce() + Send + 'static) {
    let one = osier::fiber::Builder::new().worker(workers[0]).spawn(one);
    let two = osier::fiber::Builder::new().worker(workers[1]).spawn(two);
    one.join().expect("it does not panic");
    two.join().expect("it does not panic");
}

fn as_futures(one: impl Future<Output = ()> + Send + 'static, two: impl Future<Output = ()> + Send + 'static) {
    let (one, two) = (osier::spawn_future(one), osier::spawn_future(two));
    one.join().expect("it does not panic");
    two.join().expect("it does not panic");
}

fn event_fibers(n: u32, workers: [usize; 2]) {
    let events = Events::default();
    let other = events.clone();
    let ping = move || {
        for _ in 0..n {
            events.0[0].set();
            events.0[1].wait();
        }
    };
    on_fibers(workers, ping, move || {
        for _ in 0..n {
            other.0[0].wait();
            other.0[1].set();
        }
    });
}

fn event_futures(n: u32) {
    let events = Events::default();
    let other = events.clone();
    let ping = async move {
        for _ in 0..n {
            events.0[0].set();
            events.0[1].wait_async().await;
        }
    };
    as_futures(ping, async move {
        for _ in 0..n {
            other.0[0].wait_async().await;
            other.0[1].set();
        }
    });
}

fn mailbox_fibers(n: u32, workers: [usize; 2]) {
    let boxes = Mailboxes::default();
    let other = boxes.clone();
    let ping = move || {
        for _ in 0..n {
            boxes.0[0].raise(MAIL);
            boxes.0[1].wait_any(MAIL);
            boxes.0[1].take(MAIL);
        }
    };
    on_fibers(workers, ping, move || {
        for _ in 0..n {
            other.0[0].wait_any(MAIL);
            other.0[0].take(MAIL);
            other.0[1].raise(MAIL);
        }
    });
}

fn mailbox_futures(n: u32) {
    let boxes = Mailboxes::default();
    let other = boxes.clone();
    let ping = async move {
        for _ in 0..n {
            boxes.0[0].raise(MAIL);
            boxes.0[1].wait_any_async(MAIL).await;
            boxes.0[1].take(MAIL);
        }
    };
    as_futures(ping, async move {
        for _ in 0..n {
            other.0[0].wait_any_async(MAIL).await;
            other.0[0].take(MAIL);
            other.0[1].raise(MAIL);
        }
    });
}
