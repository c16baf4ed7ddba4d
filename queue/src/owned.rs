//! A waiter that keeps alive what it waits for: for a stream, which owns both and is moved about between polls.
//!
//! # Safety
//! The island: the waiter borrows its list from the allocation of an `Arc` that stands next to it, for `'static` as far as
//! the compiler knows. That holds because
//! - the `Arc` is private and dropped after the waiter, and while it is there nobody has an exclusive reference to what it holds;
//! - the list is reached from the owner by a function for every lifetime, so it is there as long as the owner is;
//! - the owner's type is alive whenever the waiter is: `OwnedWaiter` has a `Drop`, so the compiler insists on it;
//! - the waiter is lent to functions for every lifetime alone. Through a pinned reference another waiter could be put in its
//!   place, but such a function has none at hand that is not of a list of the owner's, or of one that is there for ever.
#![allow(unsafe_code)]

use std::mem;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;

use crate::waiters::{WaitList, Waiter};

/// A [`Waiter`] in a box of its own, with the owner of its list.
///
/// ```
/// use osier_queue::{OwnedWaiter, WaitList};
/// use std::sync::Arc;
/// use std::task::Waker;
///
/// let list = Arc::new(WaitList::new());
/// let mut owned = OwnedWaiter::new(list.clone(), |list| list);
/// assert!(owned.with(|_, waiter| waiter.register(Waker::noop())));
/// let mut moved = owned;
/// assert!(list.wake_one());
/// assert!(moved.with(|_, waiter| waiter.remove()));
/// ```
pub struct OwnedWaiter<C> {
    /// Borrows from `owner`, and so stands before it: fields are dropped in order.
    waiter: Pin<Box<Waiter<'static>>>,
    owner: Arc<C>,
}

impl<C> OwnedWaiter<C> {
    /// A waiter, not yet waiting, for a list of `owner`'s.
    pub fn new(owner: Arc<C>, list: impl for<'a> FnOnce(&'a C) -> &'a WaitList) -> Self {
        // SAFETY: the list lives as long as the owner, which lives as long as `self.owner`, which outlives the waiter.
        let list: &'static WaitList = unsafe { &*ptr::from_ref(list(&owner)) };
        OwnedWaiter {
            waiter: Box::pin(list.waiter()),
            owner,
        }
    }

    /// Whose list it is.
    pub fn owner(&self) -> &Arc<C> {
        &self.owner
    }

    /// Runs `f` on the owner and the waiter.
    #[inline]
    pub fn with<R>(&mut self, f: impl for<'a> FnOnce(&'a C, Pin<&mut Waiter<'a>>) -> R) -> R {
        lend(&*self.owner, self.waiter.as_mut(), f)
    }
}

#[inline]
fn lend<'a, C, R>(
    owner: &'a C,
    waiter: Pin<&mut Waiter<'static>>,
    f: impl FnOnce(&'a C, Pin<&mut Waiter<'a>>) -> R,
) -> R {
    // SAFETY: only the lifetime changes, to a shorter one; the caller's `f` is for every lifetime, so it cannot use that.
    let waiter = unsafe { mem::transmute::<Pin<&mut Waiter<'static>>, Pin<&mut Waiter<'a>>>(waiter) };
    f(owner, waiter)
}

impl<C> Drop for OwnedWaiter<C> {
    // The waiter does all there is to do. This one is for what the compiler concludes from it: see Safety.
    fn drop(&mut self) {}
}

impl<C> std::fmt::Debug for OwnedWaiter<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.waiter.fmt(f)
    }
}
