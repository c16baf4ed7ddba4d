//! `wait_any` and `wait_all`: many leaves of one type, in a slice or an array.
//!
//! Leaves of different types become one type behind `Pin<&mut dyn Future<Output = T>>`, which costs no allocation. A
//! wake-up polls every leaf that is not done, so the cost of a wait grows with the slice. Thousands of leaves are
//! better spawned.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use super::arms::{any_of, until};
use super::join::next_first;
use crate::{block_on, wait};

/// Polls each of `leaves` once, from a random one on, until one is ready.
#[inline]
pub(super) fn poll_any<L: Future + Unpin>(leaves: &mut [L], cx: &mut Context<'_>) -> Poll<(usize, L::Output)> {
    let start = any_of(leaves.len());
    for index in (start..leaves.len()).chain(0..start) {
        if let Poll::Ready(output) = Pin::new(&mut leaves[index]).poll(cx) {
            return Poll::Ready((index, output));
        }
    }
    Poll::Pending
}

/// Polls each of `leaves` that has no output yet, from number `first` on. Ready when all have one.
#[inline]
fn poll_all<L: Future + Unpin>(
    leaves: &mut [L],
    outputs: &mut [Option<L::Output>],
    first: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let mut done = true;
    for index in (*first..leaves.len()).chain(0..*first) {
        let output = &mut outputs[index];
        if output.is_none()
            && let Poll::Ready(value) = Pin::new(&mut leaves[index]).poll(cx)
        {
            *output = Some(value);
        }
        done &= output.is_some();
    }
    if done {
        return Poll::Ready(());
    }
    *first = next_first(*first, leaves.len(), cx);
    Poll::Pending
}

/// Waits until one of `leaves` is ready, and gives its index and output.
///
/// The choice is fair when several are ready at once. The other leaves stay as they are and can be waited for again.
/// Take the completed leaf out of the slice first, because a future must not be polled after that.
///
/// ```
/// use std::pin::{Pin, pin};
/// use std::future::Future;
/// osier::run(|| {
///     // Leaves of one type,
///     let mut handles: Vec<_> = (1..=3).map(|n| osier::spawn(move || n * n)).collect();
///     let mut sum = 0;
///     while !handles.is_empty() {
///         let (index, square) = osier::wait_any(&mut handles);
///         sum += square.unwrap();
///         handles.swap_remove(index);
///     }
///     assert_eq!(sum, 1 + 4 + 9);
///
///     // and of several.
///     let never = pin!(std::future::pending());
///     let ready = pin!(async { "ready" });
///     let mut leaves: [Pin<&mut dyn Future<Output = &str>>; 2] = [never, ready];
///     assert_eq!(osier::wait_any(&mut leaves), (1, "ready"));
/// });
/// ```
///
/// # Suspends
///
/// Until one is ready. Blocks the thread when called on a plain one. In a future use [`wait_any_async`].
///
/// # Cancellation
///
/// Unwinds. The leaves stay as they are.
///
/// # Panics
///
/// If a leaf's poll does; if the slice is empty, which would be a wait for ever; and where nothing may wait: in a future's poll
/// or a callback, on a worker.
#[track_caller]
#[doc(alias("select_all", "FuturesUnordered"))]
pub fn wait_any<L: Future + Unpin>(leaves: &mut [L]) -> (usize, L::Output) {
    block_on(wait_any_async(leaves))
}

/// Waits as [`wait_any`] does, in a future. The future is `Send` if the leaves are.
///
/// # Panics
///
/// If a leaf's poll does; if the slice is empty, which would be a wait for ever.
#[track_caller]
pub fn wait_any_async<L: Future + Unpin>(leaves: &mut [L]) -> impl Future<Output = (usize, L::Output)> {
    assert!(
        !leaves.is_empty(),
        "wait_any: the slice is empty, so it would wait for ever"
    );
    poll_fn(|cx| poll_any(leaves, cx))
}

/// Waits as [`wait_any`] does, at most until `deadline`. `None` says that it passed. An empty slice gives `None` too,
/// at the deadline.
///
/// # Suspends
///
/// Until one is ready or the deadline has passed. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds. The leaves stay as they are.
///
/// # Panics
///
/// If a leaf's poll does, and where nothing may wait: in a future's poll or a callback, on a worker.
pub fn wait_any_until<L: Future + Unpin>(leaves: &mut [L], deadline: Instant) -> Option<(usize, L::Output)> {
    wait::wait_for_future(Some(deadline), |cx| poll_any(leaves, cx))
}

/// Waits as [`wait_any_until`] does, in a future. The future is `Send` if the leaves are.
pub fn wait_any_until_async<L: Future + Unpin>(
    leaves: &mut [L],
    deadline: Instant,
) -> impl Future<Output = Option<(usize, L::Output)>> {
    until(Some(deadline), |cx| poll_any(leaves, cx))
}

/// Waits until all of `leaves` are ready, and gives their outputs in the same order.
///
/// ```
/// osier::run(|| {
///     let handles = [1, 2, 3].map(|n| osier::spawn(move || n * n));
///     assert_eq!(osier::wait_all(handles).map(Result::unwrap), [1, 4, 9]);
/// });
/// ```
///
/// [`wait_all_into`] takes a slice, and [`wait_all_until`] a deadline too. [`join!`](crate::join!) takes futures of
/// several output types.
///
/// # Suspends
///
/// Until the last one is ready; not at all if there are none. Blocks the thread when called on a plain one. In a future use
/// [`wait_all_async`].
///
/// # Cancellation
///
/// Unwinds, dropping the leaves and the outputs there are.
///
/// # Panics
///
/// If a leaf's poll does, and where nothing may wait: in a future's poll or a callback, on a worker.
#[doc(alias("join_all", "try_join_all"))]
pub fn wait_all<L: Future + Unpin, const N: usize>(leaves: [L; N]) -> [L::Output; N] {
    block_on(wait_all_async(leaves))
}

/// Waits as [`wait_all`] does, in a future. The future is `Send` if the leaves and their outputs are.
pub async fn wait_all_async<L: Future + Unpin, const N: usize>(mut leaves: [L; N]) -> [L::Output; N] {
    let mut outputs = [const { None }; N];
    wait_all_into_async(&mut leaves, &mut outputs).await;
    outputs.map(|output| output.expect("the wait ends when all are there"))
}

/// Waits until all of `leaves` are ready, and puts each one's output in its place in `outputs`.
///
/// A leaf whose place is filled counts as ready and is not polled, so a wait that ended early goes on where it was.
///
/// ```
/// osier::run(|| {
///     let mut handles: Vec<_> = (1..=3).map(|n| osier::spawn(move || n * n)).collect();
///     let mut squares = [const { None }; 3];
///     osier::select::wait_all_into(&mut handles, &mut squares);
///     assert_eq!(squares.map(|square| square.unwrap().unwrap()), [1, 4, 9]);
/// });
/// ```
///
/// # Suspends
///
/// Until the last one is ready; not at all if there are none. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds; the leaves stay as they are, and the outputs there are have been written.
///
/// # Panics
///
/// If a leaf's poll does; if the slices differ in length; and where nothing may wait: in a future's poll or a callback, on a
/// worker.
#[track_caller]
pub fn wait_all_into<L: Future + Unpin>(leaves: &mut [L], outputs: &mut [Option<L::Output>]) {
    block_on(wait_all_into_async(leaves, outputs));
}

/// Waits as [`wait_all_into`] does, in a future. The future is `Send` if the leaves and their outputs are.
///
/// # Panics
///
/// If a leaf's poll does; if the slices differ in length.
#[track_caller]
pub fn wait_all_into_async<L: Future + Unpin>(
    leaves: &mut [L],
    outputs: &mut [Option<L::Output>],
) -> impl Future<Output = ()> {
    assert_same_length(leaves, outputs);
    let mut first = 0;
    poll_fn(move |cx| poll_all(leaves, outputs, &mut first, cx))
}

/// Waits as [`wait_all_into`] does, at most until `deadline`. `false` says that it passed, and that a place in
/// `outputs` is empty.
///
/// # Suspends
///
/// Until the last one is ready or the deadline has passed. Blocks the thread when called on a plain one.
///
/// # Cancellation
///
/// Unwinds; the leaves stay as they are, and the outputs there are have been written.
///
/// # Panics
///
/// If a leaf's poll does; if the slices differ in length; and where nothing may wait: in a future's poll or a callback, on a
/// worker.
#[track_caller]
pub fn wait_all_until<L: Future + Unpin>(
    leaves: &mut [L],
    outputs: &mut [Option<L::Output>],
    deadline: Instant,
) -> bool {
    assert_same_length(leaves, outputs);
    let mut first = 0;
    wait::wait_for_future(Some(deadline), |cx| poll_all(leaves, outputs, &mut first, cx)).is_some()
}

/// Waits as [`wait_all_until`] does, in a future. The future is `Send` if the leaves and their outputs are.
///
/// # Panics
///
/// If a leaf's poll does; if the slices differ in length.
#[track_caller]
pub fn wait_all_until_async<L: Future + Unpin>(
    leaves: &mut [L],
    outputs: &mut [Option<L::Output>],
    deadline: Instant,
) -> impl Future<Output = bool> {
    assert_same_length(leaves, outputs);
    let mut first = 0;
    let done = until(Some(deadline), move |cx| poll_all(leaves, outputs, &mut first, cx));
    async move { done.await.is_some() }
}

#[track_caller]
fn assert_same_length<L, T>(leaves: &[L], outputs: &[T]) {
    assert_eq!(
        leaves.len(),
        outputs.len(),
        "wait_all: {} leaves have {} places for their outputs",
        leaves.len(),
        outputs.len()
    );
}
