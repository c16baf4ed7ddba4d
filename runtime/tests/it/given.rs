//! The set-up that most tests share: a runtime and two connected sockets.

use std::time::{Duration, Instant};

use osier::Runtime;
use osier::inspect::Dump;
use osier::net::{TcpListener, TcpStream};
use osier::time::VirtualClock;
use testkit::DEADLINE;

/// A runtime with this many workers and default settings.
pub fn on(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Both ends of a TCP connection: the one that connected and the one that was accepted.
pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A runtime whose time advances only when nothing on it can run. A sleep takes no real time, and ends when all others
/// wait.
pub fn timeless(workers: usize) -> Runtime {
    let builder = Runtime::builder().workers(workers).clock(VirtualClock::new());
    builder.build().unwrap()
}

/// Waits, on a [`timeless`] runtime, until all others wait and nothing is left to run before the time advances.
pub fn settle() {
    pass(Duration::from_millis(1));
}

/// Lets `time` pass for the fiber of a [`timeless`] runtime, which takes no real time.
pub fn pass(time: Duration) {
    osier::sleep(time); // on a virtual clock
}

/// Waits until the fiber is cancelled.
pub fn forever() {
    osier::sync::Event::new().wait();
}

/// Yields the fiber until `condition` holds. A virtual clock stands still meanwhile.
#[track_caller]
pub fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "it never came true");
        osier::yield_now();
    }
}

/// Yields the fiber until every other fiber of its runtime, one at least, waits for something.
#[track_caller]
pub fn others_wait() {
    let me = osier::fiber::current().expect("a fiber").id();
    until(|| all_wait(&osier::dump(), Some(me)));
}

/// Blocks a plain thread until every fiber of `runtime`, one at least, waits for something.
#[track_caller]
pub fn fibers_wait(runtime: &Runtime) {
    testkit::eventually("fibers that wait", || all_wait(&runtime.dump(), None));
}

fn all_wait(dump: &Dump, but: Option<u64>) -> bool {
    let unstarted = dump.workers.iter().map(|worker| worker.unstarted).sum::<usize>();
    let fibers = dump.workers.iter().flat_map(|worker| &worker.fibers);
    let mut others = fibers.filter(|fiber| Some(fiber.fiber.id()) != but).peekable();
    unstarted == 0 && others.peek().is_some() && others.all(|fiber| fiber.wait.is_some())
}

/// A value that panics when it is dropped, as a panic's payload or an output may.
pub struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a value panics when it is dropped");
        }
    }
}
