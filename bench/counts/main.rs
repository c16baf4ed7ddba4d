//! The hot paths whose instructions `cargo xtask bench instructions` counts. Arguments: PATH N.
//!
//! The program walks the path N times and ends. Counted for two N, the difference is the path alone: what comes before and after is
//! the same. One worker runs everything, and the client of a server is a thread that waits for each answer, so that two runs do the same.
#![forbid(unsafe_code)]

mod backends;
#[path = "../../server/src/metrics/series.rs"]
#[allow(dead_code, reason = "nobody reads the metrics of these servers")]
mod series;
mod servers;

use osier::Runtime;
use osier::sync::{Event, mpsc};

/// A path by its name.
type Walk = fn(&Runtime, u32);

const PATHS: &[(&str, Walk)] = &[
    ("hello", servers::hello),
    ("counted", servers::counted),
    ("timed", servers::timed),
    ("pipelined", servers::pipelined),
    ("static", servers::file),
    ("proxied", servers::proxied),
    ("fastcgi", servers::fastcgi),
    ("websocket", servers::room),
    ("tls", servers::tls),
    ("spawn", spawn),
    ("future", future),
    ("yield", yields),
    ("select", select),
    ("channel", channel),
    ("signal", signal),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let walk = args
        .first()
        .and_then(|name| PATHS.iter().find(|(known, _)| known == name));
    let count = args.get(1).and_then(|count| count.parse().ok());
    let (Some((_, walk)), Some(count)) = (walk, count) else {
        let names: Vec<&str> = PATHS.iter().map(|(name, _)| *name).collect();
        panic!("arguments: PATH N, with a PATH of {}", names.join(" "));
    };
    let runtime = Runtime::builder().workers(1).build();
    walk(&runtime.expect("a worker needs a thread and an epoll"), count);
}

fn spawn(runtime: &Runtime, count: u32) {
    runtime.run(|| {
        for _ in 0..count {
            osier::spawn(|| ()).join().expect("it does not panic");
        }
    });
}

/// Spawns a future on the worker of the future that awaits it.
fn future(runtime: &Runtime, count: u32) {
    runtime.run(|| {
        let spawner = osier::spawn_future_local(async move {
            for _ in 0..count {
                osier::spawn_future_local(async {}).await.expect("it does not panic");
            }
        });
        spawner.join().expect("it does not panic");
    });
}

fn yields(runtime: &Runtime, count: u32) {
    runtime.run(|| (0..count).for_each(|_| osier::yield_now()));
}

/// A message from a fiber to a fiber.
fn channel(runtime: &Runtime, count: u32) {
    runtime.run(|| {
        let (sender, mut receiver) = mpsc::channel(1024);
        osier::spawn_local(move || (0..count).try_for_each(|number| sender.send(number)));
        assert_eq!(receiver.iter().count(), count as usize);
    });
}

/// A signal to a fiber, and one back.
fn signal(runtime: &Runtime, count: u32) {
    runtime.run(|| {
        let [there, back] = [const { Event::new() }; 2];
        osier::scope(|scope| {
            scope.spawn_local(|| {
                for _ in 0..count {
                    there.wait();
                    back.set();
                }
            });
            for _ in 0..count {
                there.set();
                back.wait();
            }
        });
    });
}

/// Waits for the first of four channels, one of which has a message.
fn select(runtime: &Runtime, count: u32) {
    runtime.run(|| {
        let mut channels: [_; 4] = std::array::from_fn(|_| mpsc::channel(8));
        for number in 0..count {
            channels[number as usize % 4].0.try_send(number).expect("there is room");
            let [a, b, c, d] = &mut channels;
            let received = osier::select! {
                number = a.1.recv_async() => number,
                number = b.1.recv_async() => number,
                number = c.1.recv_async() => number,
                number = d.1.recv_async() => number,
            };
            assert_eq!(received, Ok(number));
        }
    });
}
