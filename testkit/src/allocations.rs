//! Counts allocations by thread, so that no other thread of the process is in the figure, and the bytes of all threads.
//!
//! # Safety
//!
//! The allocator hands every call to [`System`] as it came. Its counter has no destructor and is made at compile time, so
//! counting does not allocate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// The system's allocator with a counter. A test that counts is a binary of its own and has a
/// `#[global_allocator] static ALLOCATOR: Counting = Counting;`.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

static LIVE_BYTES_OF_ALL: AtomicIsize = AtomicIsize::new(0);

/// How often this thread has allocated, or made an allocation larger.
pub fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// The bytes that this thread has allocated and not freed. Negative if it has freed what other threads have allocated.
pub fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

/// The bytes that the threads of the process have allocated and not freed. How busy the machine is does not change it.
pub fn live_bytes_of_all() -> isize {
    LIVE_BYTES_OF_ALL.load(Ordering::Relaxed)
}

fn count() {
    // A thread that ends may allocate after its variables are gone.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

fn change(bytes: isize) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
    LIVE_BYTES_OF_ALL.fetch_add(bytes, Ordering::Relaxed);
}

/// No layout is larger than `isize::MAX`.
fn signed(bytes: usize) -> isize {
    bytes as isize
}

// SAFETY: every call goes to `System` as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        change(signed(layout.size()));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        change(-signed(layout.size()));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        change(signed(size) - signed(layout.size()));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}
