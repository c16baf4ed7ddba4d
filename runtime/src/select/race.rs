//! `race`: the first output of several futures of one output type. The others are dropped.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::any::poll_any;
use super::arms::{Arm, Arms, End, Order, Taken, poll};
use crate::block_on;

/// A set of futures for [`race`]: a tuple of two to eight futures with one output type, or an array of `Unpin` futures.
pub trait Race {
    /// The output of each of them.
    type Output;
    /// The future of [`race_async`].
    type Future: Future<Output = Self::Output>;

    /// The first output, as a future.
    fn first(self) -> Self::Future;
}

/// Waits for the first of several futures and drops the others.
///
/// The choice is fair when several are ready at once. [`select!`](crate::select!) takes futures whose outputs differ in
/// type or in their handling.
///
/// ```
/// use osier::time::Sleep;
/// use std::time::Duration;
/// osier::run(|| {
///     let slow = async { Sleep::new(Duration::from_secs(60)).await; "slow" };
///     let quick = async { Sleep::new(Duration::from_millis(1)).await; "quick" };
///     assert_eq!(osier::race((slow, quick)), "quick");
/// });
/// ```
///
/// # Suspends
///
/// Until one is ready. Blocks the thread when called on a plain one. In a future use [`race_async`].
///
/// # Cancellation
///
/// Unwinds, dropping the futures.
///
/// # Panics
///
/// If one of the futures does. If the array is empty. Where nothing may wait: in a future's poll or a callback, on a
/// worker.
#[doc(alias("select2", "select_ok"))]
pub fn race<R: Race>(futures: R) -> R::Output {
    block_on(futures.first())
}

/// Waits as [`race`] does, in a future. The future is `Send` if the futures are.
pub fn race_async<R: Race>(futures: R) -> R::Future {
    futures.first()
}

pin_project! {
    /// The first output of a tuple of futures.
    #[derive(Debug)]
    #[must_use = "a future does nothing until it is polled"]
    pub struct First<A> {
        #[pin]
        arms: A,
    }
}

impl<F: Future, R: Arms<Taken: One<F::Output>>> Future for First<Arm<F, R>> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        Poll::Ready(ready!(poll(self.project().arms, Order::Fair, cx)).one())
    }
}

/// The winner's output, whichever arm it was: all have one type.
pub trait One<T> {
    /// The output.
    fn one(self) -> T;
}

impl<T> One<T> for Infallible {
    fn one(self) -> T {
        match self {}
    }
}

impl<T, R: One<T>> One<T> for Taken<T, R> {
    #[inline]
    fn one(self) -> T {
        match self {
            Taken::First(output) => output,
            Taken::Rest(rest) => rest.one(),
        }
    }
}

macro_rules! arms {
    () => { End };
    ($leaf:expr, $($rest:tt)*) => { Arm::new(Some($leaf), arms!($($rest)*)) };
}

macro_rules! arms_type {
    () => { End };
    ($leaf:ty, $($rest:tt)*) => { Arm<$leaf, arms_type!($($rest)*)> };
}

macro_rules! tuples {
    ($last:ident) => {};
    ($first:ident $($rest:ident)+) => {
        impl<T, $first: Future<Output = T>, $($rest: Future<Output = T>),+> Race for ($first, $($rest),+) {
            type Output = T;
            type Future = First<arms_type!($first, $($rest,)+)>;

            #[expect(non_snake_case, reason = "the variables are named as the types")]
            fn first(self) -> Self::Future {
                let ($first, $($rest),+) = self;
                First { arms: arms!($first, $($rest,)+) }
            }
        }

        tuples!($($rest)+);
    };
}

tuples!(A B C D E F G H);

/// The first output of an array of futures.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct FirstOf<F, const N: usize>([F; N]);

impl<F: Future + Unpin, const N: usize> Future for FirstOf<F, N> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        poll_any(&mut self.0, cx).map(|(_, output)| output)
    }
}

impl<F: Future + Unpin, const N: usize> Race for [F; N] {
    type Output = F::Output;
    type Future = FirstOf<F, N>;

    fn first(self) -> FirstOf<F, N> {
        assert!(N > 0, "race: the array is empty, so it would wait for ever");
        FirstOf(self)
    }
}
