//! The arms of one `select!`, as a list of types: the order of their polls, and the output of the winner.
//!
//! ```text
//!   a, b, c   ─▶  Arm<A, Arm<B, Arm<C, End>>>               on the caller's stack, pinned as a whole; nothing is boxed
//!   b is first ─▶ Taken::Rest(Taken::First(output of b))    the macro's nested `match` finds the body
//! ```
//!
//! One poll of the list polls the arms once each, from a starting arm to the last and then from the first to the
//! starting one. It ends at the first arm that is ready. The macros and [`race`](crate::race) call it through [`next`].

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::time::Sleep;
use crate::wait::budget;
use crate::worker::context::now;
use crate::{block_on, wait};

/// The choice of the arm that is polled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A random arm, another each time.
    Fair,
    /// The first arm as written.
    Biased,
}

/// The end of the list.
#[derive(Debug)]
pub struct End;

pin_project! {
    /// An arm, and the arms written after it.
    #[derive(Debug)]
    pub struct Arm<F, R> {
        // `None`: its condition was false.
        #[pin]
        leaf: Option<F>,
        #[pin]
        rest: R,
    }
}

impl<F: Future, R: Arms> Arm<F, R> {
    /// Puts `leaf` before the arms of `rest`.
    #[inline]
    pub fn new(leaf: Option<F>, rest: R) -> Arm<F, R> {
        Arm { leaf, rest }
    }
}

/// The winner's output: that of the first arm, or of one of the others.
#[derive(Debug)]
pub enum Taken<A, R> {
    /// The first arm was ready.
    First(A),
    /// One of the arms after it was ready.
    Rest(R),
}

/// A list of arms.
pub trait Arms {
    /// The number of arms.
    const COUNT: usize;
    /// The arm that is ready, with its output.
    type Taken;

    /// Polls the arms from number `from` up to, not including, number `to`, until one is ready.
    fn poll_range(self: Pin<&mut Self>, from: usize, to: usize, cx: &mut Context<'_>) -> Poll<Self::Taken>;

    /// Whether there is any that can become ready.
    fn is_any_enabled(&self) -> bool;
}

impl Arms for End {
    const COUNT: usize = 0;
    type Taken = Infallible;

    #[inline]
    fn poll_range(self: Pin<&mut Self>, _: usize, _: usize, _: &mut Context<'_>) -> Poll<Infallible> {
        Poll::Pending
    }

    #[inline]
    fn is_any_enabled(&self) -> bool {
        false
    }
}

impl<F: Future, R: Arms> Arms for Arm<F, R> {
    const COUNT: usize = 1 + R::COUNT;
    type Taken = Taken<F::Output, R::Taken>;

    #[inline]
    fn poll_range(self: Pin<&mut Self>, from: usize, to: usize, cx: &mut Context<'_>) -> Poll<Self::Taken> {
        if to == 0 {
            return Poll::Pending;
        }
        let this = self.project();
        if from == 0
            && let Some(leaf) = this.leaf.as_pin_mut()
            && let Poll::Ready(output) = leaf.poll(cx)
        {
            return Poll::Ready(Taken::First(output));
        }
        this.rest
            .poll_range(from.saturating_sub(1), to - 1, cx)
            .map(Taken::Rest)
    }

    #[inline]
    fn is_any_enabled(&self) -> bool {
        self.leaf.is_some() || self.rest.is_any_enabled()
    }
}

/// Polls each arm once, until one is ready.
#[inline]
pub(super) fn poll<A: Arms>(mut arms: Pin<&mut A>, order: Order, cx: &mut Context<'_>) -> Poll<A::Taken> {
    let start = match order {
        Order::Fair => any_of(A::COUNT),
        Order::Biased => 0,
    };
    for (from, to) in [(start, A::COUNT), (0, start)] {
        if let Poll::Ready(taken) = arms.as_mut().poll_range(from, to, cx) {
            return Poll::Ready(taken);
        }
    }
    Poll::Pending
}

thread_local! {
    /// The state of the generator of [`any_of`].
    static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Lets this thread draw the numbers of `seed` from now on, as each run of a simulation does.
#[cfg(feature = "sim")]
pub(crate) fn draw_from(seed: u64) {
    STATE.set(seed);
}

/// A number below `count`. Each comes as often as the others.
///
/// A mere counter would not do: two places that take turns on one thread would see every other number only. This is
/// Knuth's linear congruential generator (MMIX), whose high bits serve.
#[inline]
pub(super) fn any_of(count: usize) -> usize {
    let state = STATE
        .get()
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    STATE.set(state);
    (((state >> 32) * count as u64) >> 32) as usize
}

/// The first of the arms that is ready, as a future.
///
/// # Panics
///
/// When no arm is enabled, because it would wait for ever.
#[inline]
#[track_caller]
pub fn next<A: Arms>(mut arms: Pin<&mut A>, order: Order) -> impl Future<Output = A::Taken> {
    assert_can_end(&*arms, None);
    poll_fn(move |cx| poll(arms.as_mut(), order, cx))
}

/// Waits as [`next`] does. `None` says that `deadline` has passed.
///
/// # Panics
///
/// When no arm is enabled and there is no deadline.
#[inline]
#[track_caller]
pub fn next_until<A: Arms>(
    mut arms: Pin<&mut A>,
    order: Order,
    deadline: Option<Instant>,
) -> impl Future<Output = Option<A::Taken>> {
    assert_can_end(&*arms, deadline);
    until(deadline, move |cx| poll(arms.as_mut(), order, cx))
}

/// Panics if neither an arm nor the deadline could end the wait.
#[inline]
#[track_caller]
fn assert_can_end<A: Arms>(arms: &A, deadline: Option<Instant>) {
    assert!(
        deadline.is_some() || arms.is_any_enabled(),
        "select!: no arm's condition is true, so it would wait for ever; add a `timeout`, `until` or `default` arm"
    );
}

/// Polls as [`next`] does. `None` says that no arm is ready now.
#[inline]
pub fn next_now<A: Arms>(mut arms: Pin<&mut A>, order: Order) -> impl Future<Output = Option<A::Taken>> {
    poll_fn(move |cx| match budget::without(|| poll(arms.as_mut(), order, cx)) {
        Poll::Ready(taken) => Poll::Ready(Some(taken)),
        Poll::Pending => Poll::Ready(None),
    })
}

/// The output of `poll`, or `None` once `deadline` has passed.
#[inline]
pub(super) fn until<T>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> impl Future<Output = Option<T>> {
    let mut sleep = deadline.map_or_else(Sleep::forever, Sleep::until);
    let mut is_last = false;
    poll_fn(move |cx| {
        if is_last {
            budget::last_poll();
        }
        if let Poll::Ready(value) = poll(cx) {
            return Poll::Ready(Some(value));
        }
        // What was refused may be ready, and has one more turn. So the limit also ends a future that uses up each budget.
        if !is_last && budget::has_refused(cx) && sleep.is_elapsed() {
            is_last = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        sleep.poll_uncounted(cx).map(|()| None)
    })
}

/// [`next`], waited for.
#[inline]
#[track_caller]
pub fn wait<A: Arms>(arms: Pin<&mut A>, order: Order) -> A::Taken {
    block_on(next(arms, order))
}

/// [`next_until`], waited for. The wait has a deadline of its own, which is cheaper than a second leaf.
#[inline]
#[track_caller]
pub fn wait_until<A: Arms>(mut arms: Pin<&mut A>, order: Order, deadline: Option<Instant>) -> Option<A::Taken> {
    assert_can_end(&*arms, deadline);
    wait::wait_for_future(deadline, |cx| poll(arms.as_mut(), order, cx))
}

/// [`next_now`], not waited for.
#[inline]
pub fn wait_now<A: Arms>(arms: Pin<&mut A>, order: Order) -> Option<A::Taken> {
    block_on(next_now(arms, order))
}

/// The deadline of a `timeout` arm. Beyond the range of the clock it is for ever.
#[inline]
pub fn after(limit: impl Into<Option<Duration>>) -> Option<Instant> {
    now().checked_add(limit.into()?)
}

/// The deadline of an `until` arm.
#[inline]
pub fn by(deadline: impl Into<Option<Instant>>) -> Option<Instant> {
    deadline.into()
}
