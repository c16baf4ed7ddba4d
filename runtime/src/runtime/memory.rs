//! The memory that peers make a program hold: named accounts, their sum, and the pressure, which is the distance from a limit.
//!
//! ```
//! use osier::memory::{self, Account, Pressure};
//!
//! let uploads = Account::named("uploads");
//! let mut charge = uploads.charge(64 << 10);
//! charge.resize(128 << 10); // the buffer has grown
//! memory::settle();
//! assert_eq!(uploads.held(), 128 << 10);
//! drop(charge);
//!
//! if memory::pressure() >= Pressure::High {
//!     // Drop caches.
//! }
//! ```
//!
//! All runtimes and threads of a process share the accounts, as they share its memory. A server of `osier-web` charges what its clients
//! make it hold. The server cannot charge the memory of a handler, such as its vectors, maps and caches: an application adds accounts of
//! its own for them.
//!
//! A charge neither allocates nor refuses. Code that is about to begin new work reads the [`pressure`] first, and refuses the work
//! itself. [`set_limit`] sets the limit; without one the pressure is always [`Normal`](Pressure::Normal).
//!
//! # Precision
//!
//! Each thread adds its charges to the shared sums when an account has changed by [`BATCH_BYTES`], at [`settle`], and at its end.
//! A reader may thus miss up to that much for each account and thread. Workers settle about once a second after fibers have ended.
//!
//! Charges are the bytes that code claims to hold. An allocator takes more than that, and some memory is in no account. Code that
//! measures the process reports its whole memory with [`measured`].

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use osier_queue::Pressure;
use osier_queue::Waiter;
use osier_queue::ledger::budget;
pub use osier_queue::ledger::{Account, BATCH_BYTES, Charge, accounts, settle};
use pin_project_lite::pin_project;

use crate::sync::block;

/// The bytes of all accounts, and the [measured] bytes beyond them.
pub fn held() -> usize {
    budget().held()
}

/// Sets the limit of the process. `None`, the default, is none.
pub fn set_limit(bytes: Option<usize>) {
    budget().set_limit(bytes.unwrap_or(usize::MAX));
}

/// The limit of the process, if there is one.
pub fn limit() -> Option<usize> {
    Some(budget().limit()).filter(|limit| *limit != usize::MAX)
}

/// Reports the measured memory of the process: its resident memory or its address space, whichever the limit is for. The bytes beyond
/// the accounts count until the next call.
pub fn measured(bytes: usize) {
    budget().set_unaccounted(bytes.saturating_sub(budget().accounted()));
}

/// Gives free memory of the C library's allocator back to the system, on a thread for blocking work. This takes some milliseconds for
/// 100 MB. Workers do it by themselves after many fibers or connections have ended.
///
/// # Suspends
///
/// Until the memory is given back. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds. The work goes on by itself.
pub fn trim() {
    crate::unblock(crate::worker::heap::trim);
}

/// The pressure now. Takes no lock.
///
/// # Suspends
///
/// Never.
#[inline]
pub fn pressure() -> Pressure {
    budget().pressure()
}

/// Waits until the pressure is not `from`, and returns what it is then.
///
/// ```
/// use osier::memory::{self, Pressure};
///
/// // A job that can wait.
/// let mut now = memory::pressure();
/// while now > Pressure::Normal {
///     now = memory::wait_for_change(now);
/// }
/// ```
///
/// # Suspends
///
/// Until the pressure changes. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds.
pub fn wait_for_change(from: Pressure) -> Pressure {
    block(wait_for_change_async(from))
}

/// Waits as [`wait_for_change`] does, in a future.
pub fn wait_for_change_async(from: Pressure) -> Change {
    Change {
        from,
        waiter: budget().waiter(),
    }
}

pin_project! {
    /// The future of [`wait_for_change_async`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Change {
        from: Pressure,
        #[pin]
        waiter: Waiter<'static>,
    }
}

impl Future for Change {
    type Output = Pressure;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pressure> {
        let this = self.project();
        crate::wait::budget::poll(cx, |cx| budget().poll_change(*this.from, this.waiter, cx))
    }
}

osier_queue::impl_debug!(Change, self => { from: self.from, .. });
