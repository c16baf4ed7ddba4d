//! A waiter together with an `Arc` of the value whose list it waits in. A receiver of a channel holds one: it can be moved
//! between two polls, and it borrows nothing from outside.
//!
//! # Safety
//! This file is an unsafe island. The field `waiter` borrows its list from the field `owner` beside it. A struct cannot name such a
//! borrow, so the type of `waiter` says `'static`. Four facts make that sound:
//! - **The list lives as long as the owner's type is valid.** [`OwnedWaiter::new`] takes a function that works for every lifetime `'a`
//!   of the owner. It may assume that the lifetimes in `C` outlive `'a`. So it can only return a list inside of the owner, a list that
//!   outlives a lifetime in `C`, or a list that lives for ever.
//! - **The owner lives longer than the waiter.** `owner` is private and declared after `waiter`, so it is dropped after it. While this
//!   `Arc` exists, nobody gets an exclusive reference to its content, so nobody moves or replaces the list.
//! - **The owner's type is valid as long as the waiter is.** A type `C` may borrow from elsewhere. `OwnedWaiter` implements `Drop`, so
//!   the compiler insists that the lifetimes in `C` outlive it. It is invariant in `C`, so no lifetime in `C` changes into a longer one,
//!   as in a `C` like `fn(&'a ())`.
//! - **The lifetime `'static` stays inside.** [`OwnedWaiter::with`] lends the waiter to a function that works for every lifetime. The
//!   function can put another waiter into its place, but only one of a list as above.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;

use crate::waiters::{WaitList, Waiter};

/// A boxed [`Waiter`] together with the owner of its list.
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
///
/// It does not outlive a list that its owner only names:
///
/// ```compile_fail,E0597
/// use osier_queue::{OwnedWaiter, WaitList};
/// use std::marker::PhantomData;
/// use std::sync::Arc;
///
/// fn bind<'a>(list: &'a WaitList) -> OwnedWaiter<PhantomData<fn(&'a ())>> {
///     OwnedWaiter::new(Arc::new(PhantomData), |_| list)
/// }
/// let owned: OwnedWaiter<PhantomData<fn(&'static ())>> = {
///     let list = WaitList::new();
///     bind(&list)
/// };
/// ```
pub struct OwnedWaiter<C> {
    /// Borrows from `owner`, so it stands first: fields are dropped in order.
    waiter: Pin<Box<Waiter<'static>>>,
    owner: Arc<C>,
    /// Makes `C` invariant.
    invariant: PhantomData<fn(C) -> C>,
}

impl<C> OwnedWaiter<C> {
    /// A waiter, not yet waiting, for a list that belongs to `owner`.
    pub fn new(owner: Arc<C>, list: impl for<'a> FnOnce(&'a C) -> &'a WaitList) -> Self {
        // SAFETY: the list lives as long as the owner, which lives as long as `self.owner`, which outlives the waiter.
        let list: &'static WaitList = unsafe { &*ptr::from_ref(list(&owner)) };
        OwnedWaiter {
            waiter: Box::pin(list.waiter()),
            owner,
            invariant: PhantomData,
        }
    }

    /// The owner of the list.
    pub fn owner(&self) -> &Arc<C> {
        &self.owner
    }

    /// Runs `f` with the owner and the waiter.
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
    // The waiter's own drop does the work. This empty one makes the compiler's drop check stricter: see the third fact in the header.
    fn drop(&mut self) {}
}

crate::impl_debug!(OwnedWaiter<C>, self => self.waiter);
