//! Hooks of a fiber: what runs before it suspends, what runs after it was resumed, and what tells its work in words. A
//! server flushes its collected output in one, before anybody has to wait for it.
//!
//! ```text
//!  Hooks ──▶ Node (innermost) ──▶ Node ──▶ … ──▶ null      nodes live in the frames that made them
//! ```
//!
//! # Safety
//!
//! This file may use `unsafe` to forget and recover the lifetime of a node. [`with_hook`] and [`Hooks::without`] link a node for as long as
//! their own frames are alive; a guard unlinks the node however the frame is left. All frames that do so are on the fiber's own
//! stack ([`context::core`]), so the nodes are unlinked in order. The list is walked by the fiber, from a deeper frame, and by a signal
//! handler that has interrupted the fiber (`inspect/stuck.rs`, the report of an overflow). So a node is complete before it is linked and
//! until it is unlinked, in the compiler's order too.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::worker::context;
use crate::worker::packed::PackedAddr;

/// The hooks of one fiber.
pub(crate) struct Hooks {
    innermost: Cell<*const Node<'static>>,
}

#[derive(Clone, Copy)]
enum Hook<'a> {
    BeforeSuspend(&'a dyn Fn()),
    AfterResume(&'a dyn Fn()),
    /// Runs next to each switch of the fiber, the one before it and the other after it: also where a hook suspends.
    #[cfg_attr(
        not(feature = "tokio-rt"),
        expect(dead_code, reason = "only tokio's context is left so")
    )]
    Switch(&'a dyn Fn(), &'a dyn Fn()),
    /// The hooks further out run at this moment, so they do not run for suspensions.
    Running,
    Describe(&'a [Part<'a>]),
    DescribeRequest(&'a RequestWords<'a>),
}

struct Node<'a> {
    hook: Hook<'a>,
    outer: *const Node<'static>,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            innermost: Cell::new(ptr::null()),
        }
    }
}

impl Hooks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.innermost.get().is_null()
    }

    /// Runs the hooks, the innermost first. Returns whether one of them has suspended, which the fiber notes in
    /// `has_suspended`. While hooks run, the fiber has none but those of [`around_switch`].
    ///
    /// If a hook suspends, the hooks before it run once more: the output that they prepared may be used up meanwhile.
    #[inline]
    pub(crate) fn run(&self, has_suspended: &Cell<bool>) -> bool {
        let innermost = self.innermost.get();
        if innermost.is_null() {
            return false;
        }
        self.without(|| run_all(innermost, has_suspended))
    }

    /// Runs the hooks of [`around_switch`] for a fiber that suspends in the next moment, the innermost first. They do not wait, and may
    /// run more than once.
    #[inline]
    pub(crate) fn leave(&self) {
        let innermost = self.innermost.get();
        if cfg!(feature = "tokio-rt") && !innermost.is_null() {
            leave_all(innermost);
        }
    }

    /// Runs the hooks after a resumption, the outermost first. While they run, the fiber has none.
    #[inline]
    pub(crate) fn run_after(&self) {
        let innermost = self.innermost.get();
        if !innermost.is_null() {
            self.run_all_after(innermost);
        }
    }

    fn run_all_after(&self, innermost: *const Node<'static>) {
        self.without(|| run_outer_first(innermost, true));
    }

    /// Runs `body` without the present hooks, but for those of [`around_switch`].
    fn without<T>(&self, body: impl FnOnce() -> T) -> T {
        let outer = self.innermost.get();
        let node = Node {
            hook: Hook::Running,
            outer,
        };
        let _restore = self.link(&node);
        body()
    }

    /// Makes `node` the innermost until the guard is dropped. The caller drops it before the node.
    fn link(&self, node: &Node<'_>) -> Restore<'_> {
        let restore = Restore(self, node.outer);
        compiler_fence(Ordering::SeqCst); // the node is complete
        self.innermost.set(ptr::from_ref(node).cast::<Node<'static>>());
        restore
    }

    /// The innermost [`describe`], as a value to be shown. `None` if there is none.
    pub(crate) fn description(&self) -> Option<Description<'_>> {
        let mut node = self.innermost.get();
        while !node.is_null() {
            // SAFETY: as in `run_one`.
            let Node { hook, outer } = unsafe { &*node };
            match hook {
                Hook::Describe(parts) => return Some(Description::Parts(parts)),
                Hook::DescribeRequest(words) => return Some(Description::Request(words)),
                Hook::BeforeSuspend(_) | Hook::AfterResume(_) | Hook::Switch(..) | Hook::Running => node = *outer,
            }
        }
        None
    }
}

fn run_all(innermost: *const Node<'static>, has_suspended: &Cell<bool>) -> bool {
    let mut suspended_in = None;
    let mut node = innermost;
    while !node.is_null() {
        let before = has_suspended.replace(false);
        let outer = run_one(node);
        if has_suspended.get() {
            suspended_in = Some(node);
        }
        has_suspended.set(before || has_suspended.get());
        node = outer;
    }
    let mut node = innermost;
    while suspended_in.is_some_and(|last| node != last) {
        node = run_one(node);
    }
    suspended_in.is_some()
}

/// Runs the hooks after a resumption; those beyond [`Hook::Running`] only if they are for a switch.
fn run_outer_first(node: *const Node<'static>, all: bool) {
    if node.is_null() {
        return;
    }
    // SAFETY: as in `run_one`.
    let Node { hook, outer } = unsafe { &*node };
    run_outer_first(*outer, all && !matches!(hook, Hook::Running));
    match hook {
        Hook::AfterResume(hook) if all => hook(),
        Hook::Switch(_, enter) => enter(),
        _ => {}
    }
}

fn leave_all(mut node: *const Node<'static>) {
    while !node.is_null() {
        // SAFETY: as in `run_one`.
        let Node { hook, outer } = unsafe { &*node };
        if let Hook::Switch(leave, _) = hook {
            leave();
        }
        node = *outer;
    }
}

/// Runs the hook of a linked node, if it is one for a suspension; returns the next node. There is none beyond [`Hook::Running`].
fn run_one(node: *const Node<'static>) -> *const Node<'static> {
    // SAFETY: linked nodes are alive: they belong to frames of this stack that are shallower than this one.
    let Node { hook, outer } = unsafe { &*node };
    match hook {
        Hook::BeforeSuspend(hook) => hook(),
        Hook::Running => return ptr::null(),
        _ => {}
    }
    *outer
}

/// Runs `body` without the hooks that were there before, but for those of [`around_switch`].
pub(crate) fn without_hooks<T>(body: impl FnOnce() -> T) -> T {
    let hooks = context::core(|core| &raw const core.hooks);
    let Some(hooks) = hooks else { return body() };
    // SAFETY: as in `with_hook`.
    let hooks = unsafe { &*hooks };
    hooks.without(body)
}

struct Restore<'a>(&'a Hooks, *const Node<'static>);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.innermost.set(self.1);
        compiler_fence(Ordering::SeqCst); // the node may go from here on
    }
}

/// Runs `body`. Each time this fiber is about to suspend inside it, for whatever reason, `hook` runs first.
///
/// The hook may block. While it runs it is not called again, but it is called once more after a hook further out has
/// blocked. If one has blocked, whatever the fiber waits for is polled once more behind the hooks. Nested hooks run from the innermost to
/// the outermost. On a plain thread, and in a
/// [coroutine](crate::coro::Coroutine) that a fiber resumes, nothing suspends, so the body just runs.
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
    with_hook(Hook::BeforeSuspend(hook), body)
}

/// Runs `body`. Each time this fiber has been resumed inside it, `hook` runs first. It is the counterpart of
/// [`before_suspend`]: what that hook has put away, this one fetches. So it also runs when the fiber does not suspend after all, because what
/// it is about to wait for has come while the hooks ran.
///
/// Nested hooks run from the outermost to the innermost. The hook should not wait. On a plain thread, and in a
/// [coroutine](crate::coro::Coroutine) that a fiber resumes, nothing suspends, so the body just runs.
///
/// ```
/// use std::cell::Cell;
/// osier::run(|| {
///     let resumed = Cell::new(0);
///     osier::fiber::after_resume(&|| resumed.set(resumed.get() + 1), osier::yield_now);
///     assert_eq!(resumed.get(), 1);
/// });
/// ```
///
/// # Suspends
///
/// Only where `body` does.
pub fn after_resume<T>(hook: &dyn Fn(), body: impl FnOnce() -> T) -> T {
    with_hook(Hook::AfterResume(hook), body)
}

/// Runs `body`. Next to each switch of this fiber inside it, `leave` runs before it and `enter` after it. Unlike the hooks of
/// [`before_suspend`] and [`after_resume`] they see the suspensions of hooks, too, and whatever is polled between the hooks and the
/// switch is polled as `enter` has left it. Neither may wait, and each may run twice in a row.
#[cfg(feature = "tokio-rt")]
pub(crate) fn around_switch<T>(leave: &dyn Fn(), enter: &dyn Fn(), body: impl FnOnce() -> T) -> T {
    with_hook(Hook::Switch(leave, enter), body)
}

/// A part of the text of [`describe`].
///
/// It is data and no code, because the watchdog shows it in a signal handler that interrupts the fiber anywhere.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Part<'a> {
    /// Shown as it is.
    Text(&'a str),
    /// Shown in decimal digits.
    Number(u64),
    /// Shown as `192.0.2.1:443` or `[2001:db8::1]:443`.
    Address(&'a SocketAddr),
}

impl Part<'_> {
    /// It may be called in a signal handler: it allocates nothing and takes no lock.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Text(text) => f.write_str(text),
            Part::Number(number) => write!(f, "{number}"),
            Part::Address(address) => write!(f, "{address}"),
        }
    }
}

/// The words of a request: `GET /users/7 (route /users/{id}), 192.0.2.1:443`. It is for the crates of this repository alone. A list of
/// [`Part`]s for each request would cost a server 115 instructions; these are references to what it has already.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct RequestWords<'a> {
    pub method: &'a &'a str,
    pub target: &'a &'a str,
    /// Shown only if it has parameters.
    pub route: &'a &'a str,
    pub peer: &'a PackedAddr,
}

impl RequestWords<'_> {
    /// It may be called in a signal handler, as [`Part::show`].
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.target)?;
        if self.route.contains('{') {
            write!(f, " (route {})", self.route)?;
        }
        write!(f, ", {}", self.peer.get())
    }
}

/// The text of a [`describe`] or a [`describe_request`].
pub(crate) enum Description<'a> {
    Parts(&'a [Part<'a>]),
    Request(&'a RequestWords<'a>),
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Description::Parts(parts) => parts.iter().try_for_each(|part| part.show(f)),
            Description::Request(words) => words.show(f),
        }
    }
}

/// Runs `body`, and says meanwhile in words what this fiber does. A [dump](crate::dump), the watchdog and a panic name
/// the fiber by the text of the innermost call: its parts, one behind the other.
///
/// On a plain thread, and in a [coroutine](crate::coro::Coroutine) that a fiber resumes, the body just runs.
///
/// ```
/// use osier::fiber::Part;
///
/// osier::run(|| {
///     let worker = osier::fiber::Builder::new().spawn_local(|| {
///         osier::fiber::describe(&[Part::Text("imports row "), Part::Number(7)], || {
///             osier::sleep(std::time::Duration::from_secs(3600));
///         });
///     });
///     osier::yield_now();
///     assert!(osier::dump().to_string().contains("imports row 7"));
///     worker.cancel();
/// });
/// ```
///
/// # Suspends
///
/// Only where `body` does.
pub fn describe<T>(text: &[Part<'_>], body: impl FnOnce() -> T) -> T {
    with_hook(Hook::Describe(text), body)
}

/// Same as [`describe`], with the words of a request.
#[doc(hidden)]
#[inline]
pub fn describe_request<T>(words: &RequestWords<'_>, body: impl FnOnce() -> T) -> T {
    with_hook(Hook::DescribeRequest(words), body)
}

#[inline]
fn with_hook<T>(hook: Hook<'_>, body: impl FnOnce() -> T) -> T {
    let entered = context::core(|core| {
        let outer = core.hooks.innermost.get();
        (&raw const core.hooks, outer)
    });
    let Some((hooks, outer)) = entered else { return body() };
    let node = Node { hook, outer };
    // SAFETY: the core, in the first frame of this fiber's stack, outlives every frame of the fiber, this one included.
    let hooks = unsafe { &*hooks };
    let _restore = hooks.link(&node);
    body()
}
