//! Clears a thread's panic count while an unwinding coroutine is suspended, and restores it.
//!
//! std counts panics per thread. A coroutine whose destructor suspends during unwinding leaves its thread's count raised. Then other
//! coroutines of the thread see [`std::thread::panicking`] and falsely poison locks. So the worker that runs the coroutines calls
//! [`take`] before it runs anything else, and [`put`] just before it resumes that coroutine.
//!
//! std has no call for either, but every unwinding does both: it raises the count of the thread that it starts on, and lowers the
//! count of the thread that catches it. A *donor* is a coroutine parked between the two:
//!
//! ```text
//!   start:  catch_unwind( resume_unwind → destructor suspends )    +1 here, now parked
//!   finish: the destructor returns → catch_unwind catches          −1 here
//! ```
//!
//! A count is lowered by finishing a donor that was started elsewhere. It is raised by starting a donor and leaving it parked. Donors
//! parked by `put` refill the stock that `take` uses, so the stock holds as many donors as coroutines were ever suspended during
//! unwinding at once. The first donors come from a thread that starts a batch and ends with its own count raised, which nobody sees
//! any more.
//!
//! # Safety
//!
//! This file is an unsafe island for one line: donors are sent between threads.
#![allow(unsafe_code)]

use crate::{Coroutine, CoroutineResult, Stack, Yielder};
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The number of donors made at a time when the stock is empty.
const BATCH: usize = 16;

static STOCK: Mutex<Stock> = Mutex::new(Stock {
    parked: Vec::new(),
    stacks: Vec::new(),
});

struct Stock {
    parked: Vec<Donor>,
    /// Stacks of finished donors. With them `put` after `take` never needs memory.
    stacks: Vec<Stack>,
}

/// Lowers this thread's panic count to zero and returns the difference, for [`put`]. If the thread is not panicking, that is zero and
/// nearly free.
///
/// If there is no memory or thread for donors, the count stays raised by the missing number.
///
/// It must not be called from a panic hook. The count must be [`put`] back on the thread that goes on unwinding, before it catches a panic.
/// Otherwise std's count falls below zero, and each later panic of the process aborts it.
///
/// # Blocks the thread
///
/// It starts and joins a thread whenever more coroutines are suspended during unwinding than ever before, in steps of a batch.
#[inline]
pub fn take() -> usize {
    if thread::panicking() { take_slow() } else { 0 }
}

#[cold]
fn take_slow() -> usize {
    let mut taken = 0;
    while thread::panicking() {
        let parked = stock().parked.pop();
        let Some(donor) = parked.or_else(restock) else { break };
        let stack = donor.finish();
        stock().stacks.push(stack);
        taken += 1;
    }
    taken
}

/// Raises this thread's panic count by `count`, which an earlier [`take`] returned, perhaps on another thread.
///
/// # Panics
///
/// If the sum of all `put` exceeds that of all [`take`], and there is no memory for it.
#[inline]
pub fn put(count: usize) {
    for _ in 0..count {
        let stack = stock().stacks.pop();
        let stack = stack
            .map_or_else(|| Stack::new(0), Ok)
            .expect("put was given more than take had returned");
        let donor = Donor::start(stack);
        stock().parked.push(donor);
    }
}

fn stock() -> MutexGuard<'static, Stock> {
    // A panic never poisons it: a thread that locks it is panicking already, or does not panic.
    STOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets a new thread start a batch of donors, and stores all but one.
fn restock() -> Option<Donor> {
    let start_batch = || {
        (0..BATCH)
            .map(|_| Stack::new(0).map(Donor::start))
            .collect::<io::Result<Vec<_>>>()
    };
    let thread = thread::Builder::new()
        .name("osier-panic-stock".into())
        .spawn(start_batch);
    let mut batch = thread.ok()?.join().ok()?.ok()?;
    let donor = batch.pop();
    stock().parked.append(&mut batch);
    donor
}

/// A coroutine parked during unwinding. Dropping it would unwind it a second time, which aborts. So a lost one is leaked.
struct Donor(ManuallyDrop<Coroutine<(), (), ()>>);

// SAFETY: coroutines are bound to their thread for what their closures may hold or cache. This one's frames are all known: the closure
// below, and std's and the unwinder's between its `resume_unwind` and `catch_unwind`. They hold a `Yielder`, which is only used from the
// stack it lies on, and the exception, which is on the heap and belongs to nobody else. The only thread-local in use is the panic
// count: raised before the switch, in the `resume_unwind` call, lowered after it, in std's cleanup function behind `catch_unwind`,
// which is never inlined and so looks it up on the thread it runs on. The unwinder keeps its state in the exception and on
// this stack. A donor changes hands through a lock or a join, so one thread's writes are seen by the next.
unsafe impl Send for Donor {}

impl Donor {
    /// Raises this thread's count by one.
    fn start(stack: Stack) -> Donor {
        let mut donor = Coroutine::new(stack, |y, ()| {
            // `resume_unwind` rather than `panic!`: no hook, no message.
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let _park = Park(y);
                resume_unwind(Box::new(()))
            }));
            drop(caught);
        });
        let parked = donor.resume(());
        debug_assert_eq!(parked, CoroutineResult::Yield(()));
        Donor(ManuallyDrop::new(donor))
    }

    /// Lowers this thread's count by one.
    fn finish(self) -> Stack {
        let mut donor = ManuallyDrop::into_inner(self.0);
        let ended = donor.resume(());
        debug_assert_eq!(ended, CoroutineResult::Return(()));
        donor.into_stack()
    }
}

/// Suspends the donor when it is dropped.
struct Park<'a>(&'a Yielder<(), ()>);

impl Drop for Park<'_> {
    fn drop(&mut self) {
        self.0.suspend(());
    }
}
