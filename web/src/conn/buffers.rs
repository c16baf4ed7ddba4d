//! The buffers that a worker keeps for later requests: one pool per thread, by size, each size
//! bounded. A worker drops the buffers that nobody has needed for about a second. It keeps the vectors for heads, which
//! are 128 KiB at most.
//!
//! Connections to backends, bodies in transfer and WebSockets take a buffer while they run and give
//! it back. A buffer belongs to its taker alone. Nothing of the pool is borrowed across a
//! suspension. A fiber whose thread is ending drops its buffer. The pool does not hold the buffers
//! of bursts, which every request needs in pairs: [`Worker`](super::worker::Worker) keeps them.

use std::cell::RefCell;

use osier::fiber::Trimmed;

use super::shelf::Shelf;

/// Bytes of one size that a worker keeps. More buffers are used only while clients and backends are
/// slow. They go back to the allocator.
const KEPT_BYTES: usize = 2 << 20;

/// Number of heads that a worker keeps. The allocator has few of that size at hand: each further
/// one costs 0.3 us.
const KEPT_HEADS: usize = 64;

/// Capacity that fits the head of most requests to a backend. A browser's request has 1.6 KB as parameters of FastCGI.
const HEAD_BYTES: usize = 2 << 10;

const SIZES: [Size; 3] = [Size::K16, Size::K32, Size::K64];

/// Size of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    K16,
    K32,
    K64,
}

impl Size {
    pub(crate) const fn bytes(self) -> usize {
        (16 << 10) << self as usize
    }
}

struct Pool {
    by_size: [Shelf<Box<[u8]>>; 3],
    heads: Vec<Vec<u8>>,
    /// Whether the runtime of this thread trims the pool.
    is_trimmed: bool,
}

impl Pool {
    fn trim(&mut self) -> Trimmed {
        let mut trimmed = Trimmed::default();
        for (size, shelf) in SIZES.into_iter().zip(&mut self.by_size) {
            let (unused, left) = shelf.trim();
            trimmed.given += unused.len() * size.bytes();
            trimmed.left += left * size.bytes();
        }
        trimmed
    }
}

/// The trimmer of the pool, dropped with the runtime of the thread.
struct Trimmer;

impl Trimmer {
    #[cold]
    fn begin() -> bool {
        let trimmer = Trimmer;
        osier::fiber::on_trim(move || {
            let Trimmer = &trimmer;
            POOL.try_with(|pool| pool.borrow_mut().trim()).ok()
        })
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        let _ = POOL.try_with(|pool| pool.borrow_mut().is_trimmed = false);
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { by_size: [const { Shelf::new() }; 3], heads: Vec::new(), is_trimmed: false })
    };
}

/// Takes a buffer of that size. It holds the bytes of its last user.
pub(crate) fn take(size: Size) -> Box<[u8]> {
    let pooled = POOL.with_borrow_mut(|pool| pool.by_size[size as usize].take());
    pooled.unwrap_or_else(|| vec![0; size.bytes()].into_boxed_slice())
}

/// Gives a buffer back. A buffer of another size, one that has grown for example, is dropped.
pub(crate) fn give(buffer: Box<[u8]>) {
    let Some(size) = SIZES.into_iter().find(|size| size.bytes() == buffer.len()) else {
        return;
    };
    // The pool is already gone while a thread ends.
    let is_trimmed = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        pool.by_size[size as usize].give(buffer, KEPT_BYTES / size.bytes());
        pool.is_trimmed
    });
    if let Ok(false) = is_trimmed {
        let is_trimmed = Trimmer::begin();
        POOL.with_borrow_mut(|pool| pool.is_trimmed = is_trimmed);
    }
}

/// Takes an empty vector with room for the head of a request.
pub(crate) fn take_head() -> Vec<u8> {
    let pooled = POOL.with_borrow_mut(|pool| pool.heads.pop());
    pooled.unwrap_or_else(|| Vec::with_capacity(HEAD_BYTES))
}

/// Gives such a vector back. One that has grown is dropped.
pub(crate) fn give_head(mut head: Vec<u8>) {
    head.clear();
    let _ = POOL.try_with(|pool| {
        let heads = &mut pool.borrow_mut().heads;
        if heads.len() < KEPT_HEADS && head.capacity() == HEAD_BYTES {
            heads.push(head);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(size: Size) -> usize {
        POOL.with_borrow(|pool| pool.by_size[size as usize].len())
    }

    #[test]
    fn what_is_given_is_taken_again_within_the_bound() {
        for size in [Size::K16, Size::K32, Size::K64] {
            let buffer = take(size);
            assert_eq!(buffer.len(), size.bytes());
            let address = buffer.as_ptr();
            give(buffer);
            let again = take(size);
            assert_eq!(again.as_ptr(), address, "the same one");
            assert_eq!(kept(size), 0);
            let all: Vec<_> = (0..1000).map(|_| take(size)).collect();
            all.into_iter().for_each(give);
            assert_eq!(kept(size) * size.bytes(), KEPT_BYTES);
        }
        give(vec![0; 17].into_boxed_slice());
        give(Box::default());
        let mut head = take_head();
        head.extend_from_slice(b"GET / HTTP/1.1");
        give_head(head);
        assert!(take_head().is_empty());
        give_head(vec![0; HEAD_BYTES + 1]);
        assert_eq!(
            POOL.with_borrow(|pool| pool.heads.len()),
            0,
            "one that has grown is not kept"
        );
    }
}
