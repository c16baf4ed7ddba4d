//! The memory of connections: of idle ones, WebSockets and slow clients.
//!
//! An allocator counts the bytes of the heap, once the worker says that the connections rest. So the figures are the same however busy the
//! machine is. It counts all threads, so the tests share a process with no others, and one runs at a time. No stack is in the figures: the
//! worker says how many there are.

#[path = "../it/common/mod.rs"]
mod common;
mod idle;
mod slow;
mod websockets;
#[path = "../it/ws_client/mod.rs"]
mod ws_client;

use std::cell::RefCell;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use common::{Client, Site, eventually};
use osier_web::{Request, Router, Server, Timeouts};
use testkit::allocations::{Counting, live_bytes_of_all};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A worker has this many fibers at most while its connections rest.
const FIBERS: usize = 10;

/// The private memory of the process before its first test; none where the system does not say it.
static FIRST_RESIDENT: LazyLock<Option<usize>> = LazyLock::new(testkit::resident_bytes);

/// Keeps other tests from running until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _ = *FIRST_RESIDENT;
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether the process may have the descriptors of this many connections, at both ends.
fn allows(connections: usize) -> bool {
    let wanted = 2 * connections as u64 + 300;
    let may = testkit::allow_descriptors(wanted);
    if !may {
        testkit::skip(format_args!("{connections} connections need {wanted} descriptors"));
    }
    may
}

/// The bytes of the heap.
fn heap() -> isize {
    live_bytes_of_all()
}

/// The bytes of each of `count` connections, which have come since the heap was `before`.
fn each(before: isize, count: usize) -> isize {
    (heap() - before) / count as isize
}

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(3600);

/// A server that lets its clients rest: on a busy machine thousands of them take their time to come.
fn patient(router: Router) -> Server {
    Server::new(router).timeouts(Timeouts {
        body: LONG,
        idle: LONG,
        write: LONG,
        ..Timeouts::default()
    })
}

/// Answers with the numbers of connections at rest and of fibers.
fn worker(_: &mut Request<'_>) -> String {
    let metrics = osier::inspect::metrics().expect("inside of a runtime");
    let worker = &metrics.workers[0];
    format!("{} {}", worker.resting, worker.fibers)
}

/// A client that asks `/worker`, of which [`worker`] is the handler.
struct Asker(Client);

impl Asker {
    fn new(site: &Site) -> Asker {
        Asker(site.connect())
    }

    /// Waits until `count` connections and this one rest, and nearly no fiber is left.
    fn until_rest(&mut self, count: usize) {
        let said = RefCell::new(String::new());
        let wanted = fmt::from_fn(|f| write!(f, "{count} connections at rest and few fibers: {}", said.borrow()));
        eventually(wanted, || {
            *said.borrow_mut() = self.0.get("/worker").text().to_owned();
            let said = said.borrow();
            let (resting, fibers) = said.split_once(' ').expect("two numbers");
            // The asker's own connection rests between two requests.
            resting.parse::<usize>().unwrap() >= count && fibers.parse::<usize>().unwrap() <= FIBERS
        });
    }
}
