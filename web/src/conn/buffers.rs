//! The buffers that a worker keeps for its next requests: one pool per thread, by size, each size within a bound.
//!
//! Connections to backends, bodies on their way and WebSockets take a buffer while they run and give it back. A buffer belongs
//! to its taker alone, and nothing of the pool is borrowed across a suspension. A fiber that ends on a thread that is ending
//! drops its buffer. The buffers of a burst are [`Worker`](super::worker::Worker)'s: each request takes those, in pairs.

use std::cell::RefCell;

/// What a worker keeps of one size, in bytes. More is in use only while clients and backends are slow, and the allocator has it
/// back then.
const KEPT_BYTES: usize = 2 << 20;

/// How many heads a worker keeps. (The allocator has few of that size at hand; each of the others costs 0.3 us.)
const KEPT_HEADS: usize = 64;

/// Room for the head of most requests to a backend.
const HEAD_BYTES: usize = 1 << 10;

/// How large a buffer is.
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
    by_size: [Vec<Box<[u8]>>; 3],
    heads: Vec<Vec<u8>>,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { by_size: [const { Vec::new() }; 3], heads: Vec::new() })
    };
}

/// A buffer of that size, with whatever its last user has left in it.
pub(crate) fn take(size: Size) -> Box<[u8]> {
    let pooled = POOL.with_borrow_mut(|pool| pool.by_size[size as usize].pop());
    pooled.unwrap_or_else(|| vec![0; size.bytes()].into_boxed_slice())
}

/// Keeps a buffer for the next one who takes its size. A buffer of no such size, one that has grown for example, is dropped.
pub(crate) fn give(buffer: Box<[u8]>) {
    let sizes = [Size::K16, Size::K32, Size::K64];
    let Some(size) = sizes.into_iter().find(|size| size.bytes() == buffer.len()) else {
        return;
    };
    // A thread that ends has no pool any more.
    let _ = POOL.try_with(|pool| {
        let shelf = &mut pool.borrow_mut().by_size[size as usize];
        if shelf.len() < KEPT_BYTES / size.bytes() {
            shelf.push(buffer);
        }
    });
}

/// An empty vector with room for the head of a request.
pub(crate) fn take_head() -> Vec<u8> {
    let pooled = POOL.with_borrow_mut(|pool| pool.heads.pop());
    pooled.unwrap_or_else(|| Vec::with_capacity(HEAD_BYTES))
}

/// Keeps such a vector for the next head, unless it has grown.
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
