//! [`Buffer`]: bytes of a connection that wait, in memory that the thread lends.
//!
//! A connection at rest holds no buffer. While it reads or writes it borrows one of the thread's; afterwards it gives the buffer
//! back, and keeps a copy of the bytes that wait, such as an incomplete record, in memory of their own length. That memory is charged to
//! [`Account::TLS`].
//!
//! ```text
//!   bytes:  consumed │ filled │ room        all initialised; `bytes.len()` is the capacity
//!                  start     end
//! ```

use std::cell::RefCell;
use std::mem;

use osier::memory::Account;

/// The length of the buffers that a thread lends: two records and a little.
const LENT_BYTES: usize = (32 << 10) + 1024;

/// How many buffers a thread keeps.
const KEPT: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The length of a record's head: a kind, a version, and the length of the rest.
pub(crate) const RECORD_HEAD_BYTES: usize = 5;

/// The length of the record at the front, if all of it is there.
pub(crate) fn record_length(bytes: &[u8]) -> Option<usize> {
    let &[_, _, _, high, low, ref rest @ ..] = bytes else {
        return None;
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    (rest.len() >= length).then_some(RECORD_HEAD_BYTES + length)
}

/// Bytes that wait, at the front, and room behind them.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Whether the first bytes are a whole TLS record.
    pub(crate) fn starts_with_record(&self) -> bool {
        record_length(self.waiting()).is_some()
    }

    /// Room for at least `count` bytes. [`fill`](Buffer::fill) says how many were written there.
    pub(crate) fn room(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < count {
            self.make_room(count);
        }
        &mut self.bytes[self.end..]
    }

    pub(crate) fn fill(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end);
        self.end += count;
    }

    /// Removes bytes from the front.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.len());
        self.start += count;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.fill(bytes.len());
    }

    /// Moves bytes from the front to `buf`, as many as it takes.
    pub(crate) fn take(&mut self, buf: &mut [u8]) -> usize {
        let count = self.len().min(buf.len());
        buf[..count].copy_from_slice(&self.filled()[..count]);
        self.consume(count);
        count
    }

    /// Gives the memory back that the bytes do not need.
    pub(crate) fn rest(&mut self) {
        let unused = self.bytes.len() - self.len();
        if unused > 0 {
            let kept = charged(self.waiting().to_vec());
            give_back(mem::replace(&mut self.bytes, kept));
            (self.start, self.end) = (0, self.bytes.len());
        }
    }

    #[cold]
    fn make_room(&mut self, count: usize) {
        let needed = self.len() + count;
        let mut larger = match needed <= LENT_BYTES {
            // A buffer of this length is the thread's already: the bytes only move to its front.
            true if self.bytes.len() == LENT_BYTES => {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.len());
                return;
            }
            true => borrow(),
            false => charged(vec![0; needed.next_power_of_two()]),
        };
        larger[..self.len()].copy_from_slice(&self.bytes[self.start..self.end]);
        give_back(mem::replace(&mut self.bytes, larger));
        (self.start, self.end) = (0, self.len());
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_back(mem::take(&mut self.bytes));
    }
}

fn borrow() -> Vec<u8> {
    let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
    free.unwrap_or_else(|| vec![0; LENT_BYTES])
}

/// Charges a buffer that is not one of those that are lent.
fn charged(bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.is_empty() && bytes.len() != LENT_BYTES {
        Account::TLS.add(bytes.len());
    }
    bytes
}

/// Keeps the buffer for the next borrower if it is one of those that are lent, and there are not enough yet.
fn give_back(bytes: Vec<u8>) {
    if bytes.len() == LENT_BYTES {
        // A thread that ends may drop a connection after its variables are gone.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT {
                free.push(bytes);
            }
        });
    } else if !bytes.is_empty() {
        Account::TLS.subtract(bytes.len());
    }
}
