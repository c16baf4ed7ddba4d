//! Hooks that run before a fiber suspends. A server flushes its collected output in one, before anybody has to wait for
//! it.
//!
//! ```text
//!  Hooks ──▶ Node (innermost before_suspend) ──▶ Node ──▶ … ──▶ null      nodes live in the frames that made them
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` to forget and recover the lifetime of a node. [`before_suspend`] links a node for as long
//! as its own frame is alive; a guard unlinks the node however the frame is left. Only the fiber of that stack walks
//! the list, from a deeper frame.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;

use crate::worker::context;

/// The hooks of one fiber.
pub(crate) struct Hooks {
    innermost: Cell<*const Node<'static>>,
    /// Set when a hook is about to suspend.
    suspended: Cell<bool>,
}

struct Node<'a> {
    hook: &'a dyn Fn(),
    outer: *const Node<'static>,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            innermost: Cell::new(ptr::null()),
            suspended: Cell::new(false),
        }
    }
}

impl Hooks {
    /// Runs the hooks, the innermost first. Returns false if there is none. A hook may suspend; while hooks run, the
    /// fiber has none.
    ///
    /// If a hook suspends, the hooks before it run once more: the output that they prepared may be used up meanwhile.
    #[inline]
    pub(crate) fn run(&self) -> bool {
        let innermost = self.innermost.get();
        if innermost.is_null() {
            // A hook that is about to suspend asks, or a fiber without hooks.
            self.suspended.set(true);
            return false;
        }
        self.innermost.set(ptr::null());
        let _restore = Restore(self, innermost);
        self.run_all(innermost);
        true
    }

    fn run_all(&self, innermost: *const Node<'static>) {
        let mut suspended_in = innermost;
        let mut node = innermost;
        while !node.is_null() {
            self.suspended.set(false);
            let outer = run_one(node);
            if self.suspended.get() {
                suspended_in = node;
            }
            node = outer;
        }
        let mut node = innermost;
        while node != suspended_in {
            node = run_one(node);
        }
    }
}

/// Runs the hook of a linked node; returns the next one.
fn run_one(node: *const Node<'static>) -> *const Node<'static> {
    // SAFETY: linked nodes are alive: they belong to frames of this stack that are shallower than this one.
    let Node { hook, outer } = unsafe { &*node };
    hook();
    *outer
}

/// Runs `body` without the hooks that were there before.
pub(crate) fn without_hooks<T>(body: impl FnOnce() -> T) -> T {
    let hooks = context::core(|core| &raw const core.extra().hooks);
    let Some(hooks) = hooks else { return body() };
    // SAFETY: as in `before_suspend`.
    let hooks = unsafe { &*hooks };
    let _restore = Restore(hooks, hooks.innermost.replace(ptr::null()));
    body()
}

struct Restore<'a>(&'a Hooks, *const Node<'static>);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.innermost.set(self.1);
    }
}

/// Runs `body`. Each time this fiber is about to suspend inside it, for whatever reason, `hook` runs first.
///
/// The hook may block. While it runs it is not called again, but it is called once more after a hook further out has
/// blocked. Nested hooks run from the innermost to the outermost. On a plain thread nothing suspends, so the body just
/// runs.
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
        let outer = core.extra().hooks.innermost.get();
        (&raw const core.extra().hooks, outer)
    });
    let Some((hooks, outer)) = entered else { return body() };
    let node = Node { hook, outer };
    // SAFETY: the core, in the first frame of this fiber's stack, outlives every frame of the fiber, this one included, and
    // never drops or replaces its box of extras before that.
    let hooks = unsafe { &*hooks };
    let _restore = Restore(hooks, outer);
    hooks.innermost.set((&raw const node).cast::<Node<'static>>());
    body()
}
