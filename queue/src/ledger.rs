//! The ledger: named accounts of memory, their sums, and the one budget of the process.
//!
//! # Protocol
//! A thread adds its changes to cells of its own. A cell that reaches [`BATCH_BYTES`] is added to the shared sum of its account and
//! to the [budget](Budget), and begins again at zero. So a charge for a request writes no shared cache line, and the shared sums are
//! wrong by less than a batch for each cell. Cells have signs, because a charge may be dropped on another thread than it was made on.
//! The shared sums change by relaxed read-modify-writes: they order nothing else.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::budget::Budget;

/// The names of the accounts of this library, at their numbers.
const OWN: [&str; 12] = [
    "connections",
    "heads",
    "bodies",
    "read_ahead",
    "requests",
    "websockets",
    "tls",
    "http2",
    "caches",
    "stacks",
    "messages",
    "compression",
];

/// The names of further accounts.
static NAMED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// A named sum of bytes. It is a number: copy it freely.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Account(u8);

impl Account {
    /// Connections of clients, at rest or not.
    pub const CONNECTIONS: Account = Account(0);
    /// Parts of request heads that have arrived.
    pub const HEADS: Account = Account(1);
    /// Bodies of requests: for a backend, in the buffer of a form, or for a handler that reads them as a whole.
    pub const BODIES: Account = Account(2);
    /// Responses of backends that wait for their client.
    pub const READ_AHEAD: Account = Account(3);
    /// Buffers of requests whose handlers wait.
    pub const REQUESTS: Account = Account(4);
    /// Messages of WebSockets that are not whole.
    pub const WEBSOCKETS: Account = Account(5);
    /// Sessions of TLS.
    pub const TLS: Account = Account(6);
    /// Connections of HTTP/2, and received bytes of their streams.
    pub const HTTP2: Account = Account(7);
    /// Caches, which give way first.
    pub const CACHES: Account = Account(8);
    /// Stacks of fibers: two pages for each.
    pub const STACKS: Account = Account(9);
    /// Frames of WebSockets and server-sent events that wait for subscribers and for clients.
    pub const MESSAGES: Account = Account(10);
    /// Encoders of compressed bodies, and the tables that are kept for the next body.
    pub const COMPRESSION: Account = Account(11);

    /// Returns the account of this name. The first call makes it. Each call takes a lock, so keep the account.
    ///
    /// # Panics
    ///
    /// Panics if the process has 64 accounts already.
    pub fn named(name: &'static str) -> Account {
        if let Some(index) = OWN.iter().position(|known| *known == name) {
            return Account(index as u8);
        }
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        let index = named.iter().position(|known| *known == name).unwrap_or_else(|| {
            assert!(
                OWN.len() + named.len() < ACCOUNTS,
                "a process has at most {ACCOUNTS} accounts of memory"
            );
            named.push(name);
            named.len() - 1
        });
        Account((OWN.len() + index) as u8)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        let index = usize::from(self.0);
        OWN.get(index).copied().unwrap_or_else(|| {
            let named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
            named[index - OWN.len()]
        })
    }

    /// Charges bytes to the account, until the charge is dropped. It costs an addition to a number of this thread.
    ///
    /// # Suspends
    ///
    /// Never.
    #[inline]
    pub fn charge(self, bytes: usize) -> Charge {
        self.add(bytes);
        Charge { account: self, bytes }
    }

    /// Same as [`charge`](Account::charge), for code that has no place for a charge. Each call needs its
    /// [`subtract`](Account::subtract).
    #[inline]
    pub fn add(self, bytes: usize) {
        change(self.0, bytes as isize);
    }

    /// Takes back what [`add`](Account::add) has added.
    #[inline]
    pub fn subtract(self, bytes: usize) {
        change(self.0, (bytes as isize).wrapping_neg());
    }

    /// The charged bytes, without what threads have not shared yet: see [`BATCH_BYTES`].
    pub fn held(self) -> usize {
        LEDGER.of(self.0)
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.name())
    }
}

/// Bytes that are charged to an account. The drop takes them back, on any thread.
#[derive(Debug)]
#[must_use = "a charge ends when it is dropped"]
pub struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    /// The bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of bytes.
    ///
    /// # Suspends
    ///
    /// Never.
    #[inline]
    pub fn resize(&mut self, bytes: usize) {
        if bytes != self.bytes {
            change(self.account.0, bytes.wrapping_sub(self.bytes) as isize);
            self.bytes = bytes;
        }
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// Returns all accounts with the bytes that they hold.
pub fn accounts() -> Vec<(Account, usize)> {
    let named = NAMED.lock().unwrap_or_else(PoisonError::into_inner).len();
    let all = (0..OWN.len() + named).map(|index| Account(index as u8));
    all.map(|account| (account, account.held())).collect()
}

/// The sum of all accounts, and its limit.
#[inline]
pub fn budget() -> &'static Budget {
    &LEDGER.budget
}

/// The most accounts of a process.
const ACCOUNTS: usize = 64;

/// The bytes of each account that a thread collects before it adds them to the shared sum.
pub const BATCH_BYTES: usize = 32 << 10;

static LEDGER: Ledger = Ledger {
    accounts: [const { AtomicUsize::new(0) }; ACCOUNTS],
    budget: Budget::new(),
};

/// The sums that all threads share.
struct Ledger {
    /// Sums in two's complement.
    accounts: [AtomicUsize; ACCOUNTS],
    budget: Budget,
}

impl Ledger {
    fn of(&self, account: u8) -> usize {
        let sum = self.accounts[usize::from(account)].load(Ordering::Relaxed);
        usize::try_from(sum as isize).unwrap_or(0)
    }

    #[cold]
    fn add(&self, account: usize, change: isize) {
        self.accounts[account].fetch_add(change as usize, Ordering::Relaxed);
        self.budget.add(change);
    }
}

/// The changes that a thread has not added to the shared sums yet.
struct Unsettled([Cell<isize>; ACCOUNTS]);

impl Unsettled {
    fn settle(&self) {
        for (account, cell) in self.0.iter().enumerate() {
            match cell.take() {
                0 => {}
                change => LEDGER.add(account, change),
            }
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.settle();
    }
}

thread_local! {
    static UNSETTLED: Unsettled = const { Unsettled([const { Cell::new(0) }; ACCOUNTS]) };
}

#[inline]
fn change(account: u8, change: isize) {
    let account = usize::from(account);
    let kept = UNSETTLED.try_with(|unsettled| {
        let cell = &unsettled.0[account];
        let sum = cell.get().wrapping_add(change);
        if sum.unsigned_abs() < BATCH_BYTES {
            cell.set(sum);
        } else {
            cell.set(0);
            LEDGER.add(account, sum);
        }
    });
    // The thread ends, and its cells are gone.
    if kept.is_err() {
        LEDGER.add(account, change);
    }
}

/// Adds all charges of this thread to the shared sums.
pub fn settle() {
    // A thread settles when it ends.
    let _ = UNSETTLED.try_with(Unsettled::settle);
}
