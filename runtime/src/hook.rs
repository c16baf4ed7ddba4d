//! Hooks that run before a fiber suspends: how a server flushes what it has collected before anybody has to wait for it.
//!
//! ```text
//!  Core.hooks ──▶ Node (innermost before_suspend) ──▶ Node ──▶ … ──▶ null      nodes live in the frames that made them
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` to forget and recover the lifetime of a node. A node is linked by [`before_suspend`] for as
//! long as that call's frame is alive and unlinked by a guard when it is left in any way; only the fiber whose stack that is
//! walks the list, from a deeper frame.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;

use crate::context;

/// The hooks of one fiber.
pub(crate) struct Hooks(Cell<*const Node<'static>>);

struct Node<'a> {
    hook: &'a dyn Fn(),
    outer: *const Node<'static>,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks(Cell::new(ptr::null()))
    }
}

impl Hooks {
    /// Runs the hooks, the innermost first; false if there is none. While they run there is none: they may suspend.
    #[inline]
    pub(crate) fn run(&self) -> bool {
        let innermost = self.0.get();
        if innermost.is_null() {
            return false;
        }
        self.0.set(ptr::null());
        let _restore = Restore(self, innermost);
        let mut node = innermost;
        while !node.is_null() {
            // SAFETY: linked nodes are alive: they belong to frames of this stack that are shallower than this one.
            let Node { hook, outer } = unsafe { &*node };
            hook();
            node = *outer;
        }
        true
    }
}

struct Restore<'a>(&'a Hooks, *const Node<'static>);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.1);
    }
}

/// Runs `body`; each time this fiber is about to suspend inside it, for whatever reason, `hook` runs first.
///
/// The hook may block; while it runs it is not called again. Nested hooks run from the innermost to the outermost.
/// Outside of a fiber nothing suspends, so the body just runs.
///
/// ```
/// use std::cell::Cell;
/// osier::run(|| {
///     let flushed = Cell::new(0);
///     osier::fiber::before_suspend(&|| flushed.set(flushed.get() + 1), || {
///         osier::sleep(std::time::Duration::from_millis(1));
///     });
///     assert_eq!(flushed.get(), 1);
/// });
/// ```
///
/// # Suspends
///
/// Only where `body` or `hook` does.
pub fn before_suspend<T>(hook: &dyn Fn(), body: impl FnOnce() -> T) -> T {
    let entered = context::core(|core| {
        let outer = core.extra().hooks.0.get();
        (&raw const core.extra().hooks, outer)
    });
    let Some((hooks, outer)) = entered else { return body() };
    let node = Node { hook, outer };
    // SAFETY: the core, in the first frame of this fiber's stack, outlives every frame of the fiber, this one included, and
    // never drops or replaces its box of extras before that.
    let hooks = unsafe { &*hooks };
    let _restore = Restore(hooks, outer);
    hooks.0.set((&raw const node).cast::<Node<'static>>());
    body()
}
