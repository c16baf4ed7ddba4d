//! `join!`: several leaves at once on one fiber, until each has its output.
//!
//! A list of types on the caller's stack holds the leaves, as in [`arms`](super::arms). A leaf that is done is dropped
//! at once. Its output stays beside it until the last one is done.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::arms::any_of;
use crate::block_on;
use crate::wait::budget;

/// The end of the list.
#[derive(Debug)]
pub struct End;

pin_project! {
    /// A leaf with the place for its output, and the leaves written after it.
    #[derive(Debug)]
    pub struct Part<F: Future, R> {
        // `None`: done.
        #[pin]
        leaf: Option<F>,
        output: Option<F::Output>,
        #[pin]
        rest: R,
    }
}

impl<F: Future, R: Parts> Part<F, R> {
    /// Puts `leaf` before the parts of `rest`.
    #[inline]
    pub fn new(leaf: F, rest: R) -> Part<F, R> {
        Part {
            leaf: Some(leaf),
            output: None,
            rest,
        }
    }
}

/// A list of parts.
pub trait Parts {
    /// Their outputs, as nested pairs.
    type Outputs;

    /// How many there are.
    const COUNT: usize;

    /// Polls each part that is not done, from number `from` up to, not including, number `to`. Returns true when all of these are.
    fn poll_range(self: Pin<&mut Self>, from: usize, to: usize, cx: &mut Context<'_>) -> bool;

    /// The outputs. Called once, when all parts are done.
    fn take(self: Pin<&mut Self>) -> Self::Outputs;
}

impl Parts for End {
    type Outputs = ();
    const COUNT: usize = 0;

    #[inline]
    fn poll_range(self: Pin<&mut Self>, _: usize, _: usize, _: &mut Context<'_>) -> bool {
        true
    }

    #[inline]
    fn take(self: Pin<&mut Self>) {}
}

impl<F: Future, R: Parts> Parts for Part<F, R> {
    type Outputs = (F::Output, R::Outputs);
    const COUNT: usize = 1 + R::COUNT;

    #[inline]
    fn poll_range(self: Pin<&mut Self>, from: usize, to: usize, cx: &mut Context<'_>) -> bool {
        if to == 0 {
            return true;
        }
        let mut this = self.project();
        if from == 0
            && let Some(leaf) = this.leaf.as_mut().as_pin_mut()
            && let Poll::Ready(output) = leaf.poll(cx)
        {
            *this.output = Some(output);
            this.leaf.set(None);
        }
        let rest_done = this.rest.poll_range(from.saturating_sub(1), to - 1, cx);
        rest_done && (from > 0 || this.output.is_some())
    }

    #[inline]
    fn take(self: Pin<&mut Self>) -> Self::Outputs {
        let this = self.project();
        let output = this.output.take().expect("every part is done, and taken once");
        (output, this.rest.take())
    }
}

/// The part that is polled first after a poll that began with `first`: any one if parts were refused because those before them had used up
/// the budget, so that each has its turn. Parts that took turns would do so together with those of a `join!` around them.
#[inline]
pub(super) fn next_first(first: usize, count: usize, cx: &Context<'_>) -> usize {
    match budget::has_refused(cx) {
        true => any_of(count),
        false => first,
    }
}

/// All the outputs, as a future.
#[inline]
pub fn all<P: Parts>(mut parts: Pin<&mut P>) -> impl Future<Output = P::Outputs> {
    let mut first = 0;
    poll_fn(move |cx| {
        let end_done = parts.as_mut().poll_range(first, P::COUNT, cx);
        if parts.as_mut().poll_range(0, first, cx) && end_done {
            return Poll::Ready(parts.as_mut().take());
        }
        first = next_first(first, P::COUNT, cx);
        Poll::Pending
    })
}

/// [`all`], waited for.
#[inline]
pub fn wait<P: Parts>(parts: Pin<&mut P>) -> P::Outputs {
    block_on(all(parts))
}

/// Waits for several futures at once and gives the outputs of all of them, as a tuple.
///
/// The futures are polled in turn on this fiber, so they wait at the same time but compute one after the other. Spawn
/// work that is for several workers. Errors are outputs: nothing ends early because of one.
///
/// A call inside a future that suspends, such as [`sleep`](crate::sleep) in an `async` block, suspends the fiber in the
/// middle of a poll: no other future is polled meanwhile. Use the call's `_async` twin.
///
/// ```
/// osier::run(|| {
///     let words = osier::spawn(|| "two words");
///     let (words, sum) = osier::join!(words, async { 1 + 2 });
///     assert_eq!((words.unwrap(), sum), ("two words", 3));
/// });
/// ```
///
/// # Suspends
///
/// Until the last one is ready. Blocks the thread when called on a plain one. In a future use
/// [`join_async!`](crate::join_async!).
///
/// # Cancellation
///
/// Unwinds, dropping the futures and the outputs there are.
///
/// # Panics
///
/// If one of the futures does; the others are dropped. Where nothing may wait: in a future's poll or a callback, on a
/// worker.
#[macro_export]
macro_rules! join {
    ($($leaf:expr),+ $(,)?) => {{
        let outputs = match $crate::__parts!($($leaf,)+) {
            parts => $crate::select::__private::wait_all(::core::pin::pin!(parts)),
        };
        $crate::__flat!(outputs [] $(($leaf))+)
    }};
}

/// Waits as [`join!`](crate::join!) does, in a future: `join_async!(a, b).await`.
///
/// ```
/// osier::run(|| {
///     let both = osier::join_async!(async { 1 }, async { "one" });
///     assert_eq!(osier::block_on(both), (1, "one"));
/// });
/// ```
#[macro_export]
macro_rules! join_async {
    ($($leaf:expr),+ $(,)?) => {{
        let parts = $crate::__parts!($($leaf,)+);
        async move {
            let outputs = $crate::select::__private::all(::core::pin::pin!(parts)).await;
            $crate::__flat!(outputs [] $(($leaf))+)
        }
    }};
}

/// The list of parts.
#[doc(hidden)]
#[macro_export]
macro_rules! __parts {
    () => { $crate::select::__private::NoPart };
    ($leaf:expr, $($rest:tt)*) => {
        $crate::select::__private::Part::new(::core::future::IntoFuture::into_future($leaf), $crate::__parts!($($rest)*))
    };
}

/// Makes one tuple of nested pairs. Each level makes an identifier of its own, which hygiene keeps apart from the
/// others.
#[doc(hidden)]
#[macro_export]
macro_rules! __flat {
    ($pairs:ident [$($output:ident)*]) => {{
        let () = $pairs;
        ($($output,)*)
    }};
    ($pairs:ident [$($output:ident)*] $leaf:tt $($rest:tt)*) => {{
        let (output, pairs) = $pairs;
        $crate::__flat!(pairs [$($output)* output] $($rest)*)
    }};
}
