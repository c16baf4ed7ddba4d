//! The result cell on one thread and between two. All interleavings: tests/loom/.

use crate::wakers::{Counter, Unpark};
use osier_queue::Completion;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

/// Polls as the only consumer.
fn poll<T>(cell: &Completion<T>, waker: &Waker) -> Poll<T> {
    // SAFETY: in these tests one thread polls and takes.
    unsafe { cell.poll(&mut Context::from_waker(waker)) }
}

/// Takes as the only consumer.
fn take<T>(cell: &Completion<T>) -> Option<T> {
    // SAFETY: in these tests one thread polls and takes.
    unsafe { cell.take() }
}

/// Completes as the only producer.
fn complete<T>(cell: &Completion<T>, value: T) {
    // SAFETY: in these tests each cell is completed once.
    unsafe { cell.complete(value) };
}

#[test]
fn the_value_is_there_before_or_after_the_first_poll() {
    let cell = Completion::new();
    complete(&cell, Rc::new("of this thread only"));
    assert!(cell.is_complete());
    assert_eq!(poll(&cell, Waker::noop()), Poll::Ready(Rc::new("of this thread only")));

    let cell = Completion::new();
    let (counter, waker) = Counter::new();
    assert_eq!((poll(&cell, &waker), cell.is_complete()), (Poll::Pending, false));
    complete(&cell, 5);
    assert_eq!(counter.wakes(), 1);
    assert_eq!(poll(&cell, &waker), Poll::Ready(5));
    assert!(cell.is_complete(), "taken, and still complete");
}

#[test]
fn only_the_last_waker_is_woken_and_none_is_kept() {
    let cell = Completion::new();
    let (old, old_waker) = Counter::new();
    let (new, new_waker) = Counter::new();
    assert!(poll(&cell, &old_waker).is_pending());
    assert!(poll(&cell, &old_waker).is_pending());
    assert_eq!(Arc::strong_count(&old), 3, "the same waker is kept once");
    assert!(poll(&cell, &new_waker).is_pending());
    assert_eq!(Arc::strong_count(&old), 2, "the replaced one is dropped");
    complete(&cell, ());
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
    assert_eq!(Arc::strong_count(&new), 2);
}

#[test]
fn what_is_left_inside_is_dropped_with_it() {
    let (counter, waker) = Counter::new();
    let cell = Completion::<()>::new();
    assert!(poll(&cell, &waker).is_pending());
    drop(cell);
    assert_eq!(Arc::strong_count(&counter), 2);

    let value = Rc::new(());
    let cell = Completion::new();
    complete(&cell, value.clone());
    drop(cell);
    assert_eq!(Rc::strong_count(&value), 1);

    let cell = Completion::new();
    complete(&cell, value.clone());
    let taken = take(&cell);
    assert!(taken.is_some() && take(&cell).is_none());
    drop((taken, cell));
    assert_eq!(Rc::strong_count(&value), 1);
    assert!(take(&Completion::<()>::new()).is_none());
}

#[test]
fn polling_after_the_value_was_taken_panics() {
    let cell = Completion::new();
    complete(&cell, ());
    assert!(poll(&cell, Waker::noop()).is_ready());
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&cell, Waker::noop()))).is_err());
}

#[test]
fn values_cross_threads() {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    for round in 0..if cfg!(miri) { 20 } else { 2000 } {
        let cell = Arc::new(Completion::new());
        let producer = thread::spawn({
            let cell = cell.clone();
            move || complete(&cell, vec![round; 3])
        });
        let value = loop {
            match poll(&cell, &waker) {
                Poll::Ready(value) => break value,
                Poll::Pending => thread::park(),
            }
        };
        assert_eq!(value, [round; 3]);
        producer.join().unwrap();
    }
}

#[test]
fn the_side_that_leaves_last_is_told_so() {
    let cell = Completion::new();
    // SAFETY: one producer, one consumer, on this thread; each leaves once.
    unsafe {
        assert!(!cell.detach(), "the producer is still there");
        assert!(cell.is_detached());
        cell.set(1);
        assert!(cell.discard());
        assert!(cell.finish());
    }
    let cell = Completion::new();
    let (counter, waker) = Counter::new();
    assert!(poll(&cell, &waker).is_pending());
    // SAFETY: as above.
    unsafe {
        cell.set(2);
        assert!(!cell.discard() && !cell.finish());
        assert_eq!(counter.wakes(), 1);
        assert!(cell.detach());
    }
    drop(cell);
    let cell = Completion::<u8>::new();
    assert!(poll(&cell, &waker).is_pending());
    // SAFETY: as above.
    assert!(!unsafe { cell.detach() });
    assert_eq!(
        Arc::strong_count(&counter),
        2,
        "the waker that waited is gone: ours and the counter's remain"
    );
}
