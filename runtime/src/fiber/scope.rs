//! Scopes: fibers that may borrow from the fiber that starts them, because they end before it goes on.
//!
//! [`scope`] runs the body and catches its panic. If the body unwound, it cancels the children. Then it waits until
//! every child has ended and everything of it is dropped; a shield keeps anything from cutting this wait short. Then
//! the unwinding goes on. The wait is never in a destructor, which `mem::forget` could skip.
//!
//! A child leaves its scope as the last act of its job. Its closure is dropped by then, and its value too unless a
//! handle has taken it ([`Ticket`](crate::worker::children::Ticket)).
//!
//! # Safety
//!
//! This file may use `unsafe` to forget the lifetime of a child's closure and value. The wait in [`scope`] and [`run`]
//! keeps that lifetime: it ends only when the job, and so everything borrowed, is gone. A fiber that is given up at a
//! shutdown never leaves its scope. Then neither does the parent, whose stack is given up as well, never unmapped.
#![allow(unsafe_code)]

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread;

use crate::fiber::Builder;
use crate::shield;
use crate::wait::{self, NOT_HERE, Stop, budget};
use crate::worker::children::Children;
use crate::worker::context::{self, Caller};
use crate::worker::core::{Header, no_runtime};
use crate::worker::hook::without_hooks;
use crate::worker::isolate::isolate;
use crate::worker::packet::{self, Handle, Job};

/// A scope, which starts fibers that may borrow; see [`scope`].
pub struct Scope<'scope, 'env: 'scope> {
    shared: Arc<Children>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The handle of a scoped fiber. It is also a future, as a [`JoinHandle`](crate::JoinHandle) is.
pub struct ScopedJoinHandle<'scope, T>(Handle<'scope, T>);

/// Runs `body`, which may start fibers that borrow from the calling frame, and waits for all of them.
///
/// It works as [`std::thread::scope`] does. If the body unwinds (it panics, or its fiber is cancelled), the children
/// are cancelled first. If the fiber is cancelled while it waits for the children, they are cancelled too.
///
/// ```
/// osier::run(|| {
///     let words = vec!["one", "two", "three"];
///     let lengths = osier::scope(|s| {
///         let handles: Vec<_> = words.iter().map(|word| s.spawn(move || word.len())).collect();
///         handles.into_iter().map(|handle| handle.join().unwrap()).collect::<Vec<_>>()
///     });
///     assert_eq!(lengths, [3, 3, 5]);
/// });
/// ```
///
/// # Suspends
///
/// Until every child has ended.
///
/// # Cancellation
///
/// Cancels the children, waits for them, unwinds.
///
/// # Panics
///
/// If the body does; if a child whose handle was not joined did; in a future or callback on a worker; on the stack of a
/// [coroutine](crate::coro::Coroutine).
#[track_caller]
#[doc(alias = "nursery")]
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let may_wait = context::caller(|caller| match caller {
        Caller::Fiber(..) => true,
        // On the stack of a coroutine a child could borrow the coroutine's yielder, and suspend it while it does not run.
        Caller::Thread => context::worker(|_| ()).is_some() || osier_coro::stack::extent().is_none(),
        Caller::Worker => false,
    });
    assert!(may_wait, "{NOT_HERE}");
    let scope = Scope {
        shared: Arc::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let shared = &scope.shared;
    // The wait ends early when the fiber is cancelled, or by the panic of a hook that runs before the suspension.
    let waited = match &outcome {
        Ok(_) => catch_unwind(AssertUnwindSafe(|| wait_for(shared))),
        Err(_) => Ok(Err(Stop::Cancelled)),
    };
    if !matches!(waited, Ok(Ok(()))) {
        shared.cancel();
        // Nothing may leave this frame before the children have. A wait that ends early is begun again, without the
        // hooks if one of them ended it.
        let mut hooks = waited.is_ok();
        while shared.group.children() != 0 {
            let wait = || shield(|| wait_for(shared));
            hooks &= isolate(|| if hooks { wait() } else { without_hooks(wait) }).is_some();
        }
    }
    match (outcome, waited) {
        (Err(payload), _) | (_, Err(payload)) => resume_unwind(payload),
        (Ok(_), Ok(Err(_))) => wait::unwind(),
        (Ok(_), _) if shared.panics.load(Ordering::Relaxed) > 0 => panic!("a scoped fiber panicked"),
        (Ok(value), _) => value,
    }
}

/// Waits until every child has left.
fn wait_for(children: &Children) -> Result<(), Stop> {
    let mut waiter = pin!(children.group.waiter());
    wait::wait_without_grace(None, None, |cx| children.group.poll_empty(waiter.as_mut(), cx))
}

impl<'scope> Scope<'scope, '_> {
    /// Spawns as [`spawn`](crate::spawn) does, for a closure that borrows.
    #[track_caller]
    pub fn spawn<F, T>(&'scope self, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        match self.spawn_on(None, Header::new(Location::caller()), body) {
            Some(handle) => handle,
            None => no_runtime("Scope::spawn"),
        }
    }

    /// Spawns as [`spawn`](Scope::spawn) does, a fiber with settings: a name, a larger stack, a worker. It corresponds to
    /// [`std::thread::Builder::spawn_scoped`].
    ///
    /// ```
    /// let words = ["one", "two"];
    /// osier::run(|| {
    ///     osier::scope(|s| {
    ///         for word in &words {
    ///             s.spawn_with(osier::fiber::Builder::new().name(*word), move || println!("{word}"));
    ///         }
    ///     });
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such worker. Outside of a runtime.
    #[track_caller]
    pub fn spawn_with<F, T>(&'scope self, builder: Builder, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        builder.check_worker();
        match self.spawn_on(builder.worker, builder.header(Location::caller()), body) {
            Some(handle) => handle,
            None => no_runtime("Scope::spawn_with"),
        }
    }

    /// Spawns as [`spawn_local`](crate::spawn_local) does, for a closure that borrows.
    #[track_caller]
    pub fn spawn_local<F, T>(&'scope self, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + 'scope,
        T: 'scope,
    {
        match self.spawn_here(Header::new(Location::caller()), body) {
            Some(handle) => handle,
            None => no_runtime("Scope::spawn_local"),
        }
    }

    /// Spawns as [`spawn_local`](Scope::spawn_local) does, a fiber with settings: a name or a larger stack.
    ///
    /// ```
    /// osier::run(|| {
    ///     let deep = osier::fiber::Builder::new().stack_bytes(1 << 20);
    ///     let length = osier::scope(|s| s.spawn_local_with(deep, || [7_u8; 500 << 10].len()).join().unwrap());
    ///     assert_eq!(length, 512_000);
    /// });
    /// ```
    ///
    /// # Panics
    ///
    /// If the settings name a worker: the fiber starts on this one.
    #[track_caller]
    pub fn spawn_local_with<F, T>(&'scope self, builder: Builder, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + 'scope,
        T: 'scope,
    {
        assert!(
            builder.worker.is_none(),
            "spawn_local_with starts on the worker that calls it"
        );
        match self.spawn_here(builder.header(Location::caller()), body) {
            Some(handle) => handle,
            None => no_runtime("Scope::spawn_local_with"),
        }
    }

    /// Asks every child of the scope to end, those to come included.
    pub fn cancel(&'scope self) {
        self.shared.cancel();
    }

    /// The state that the scope shares with its children.
    pub(super) fn children(&self) -> Arc<Children> {
        Arc::clone(&self.shared)
    }

    /// Spawns on this worker of the runtime, or on one that has time. `None` outside of a runtime.
    #[inline]
    fn spawn_on<F, T>(
        &'scope self,
        worker: Option<usize>,
        header: Header,
        body: F,
    ) -> Option<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        context::worker(|here| {
            let (job, handle) = self.packet(header, body);
            match worker {
                None => here.spawn(job),
                Some(index) => here.spawn_on(index, job),
            }
            handle
        })
    }

    /// Spawns on this worker. `None` outside of a runtime.
    #[inline]
    fn spawn_here<F, T>(&'scope self, header: Header, body: F) -> Option<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + 'scope,
        T: 'scope,
    {
        context::worker(|worker| {
            let (job, handle) = self.packet(header, body);
            worker.spawn_local(job);
            handle
        })
    }

    fn packet<F, T>(&'scope self, header: Header, body: F) -> (Job, ScopedJoinHandle<'scope, T>)
    where
        F: FnOnce() -> T + 'scope,
        T: 'scope,
    {
        let header = header.in_scope(Arc::clone(&self.shared));
        let (job, handle) = packet::packet_unbounded(header, body);
        // SAFETY: only the lifetime of what the job borrows changes. The job holds a ticket, which it gives up after all
        // of that is dropped, and `scope` does not return before every ticket is given up; 'scope outlives that call.
        let job = unsafe { mem::transmute::<packet::ScopedJob<'_>, Job>(job) };
        (job, ScopedJoinHandle(handle))
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits as [`JoinHandle::join`](crate::JoinHandle::join) does.
    ///
    /// # Errors
    ///
    /// The payload of the fiber's panic; [`Cancelled`](crate::Cancelled).
    pub fn join(self) -> thread::Result<T> {
        self.0.join()
    }

    /// Asks the fiber to end, as [`JoinHandle::cancel`](crate::JoinHandle::cancel) does.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether the fiber has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for ScopedJoinHandle<'_, T> {
    type Output = thread::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<thread::Result<T>> {
        budget::poll(cx, |cx| self.0.poll_join(cx))
    }
}

osier_queue::impl_debug!(Scope<'a, 'b>, self => { children: self.shared.group.children() });

osier_queue::impl_debug!(ScopedJoinHandle<'a, T>, self => self.0);

/// Runs a borrowing `body` on a fiber that `inject` starts elsewhere, and blocks this thread until it has ended.
#[track_caller]
pub(crate) fn run<T: Send>(body: impl FnOnce() -> T + Send, inject: &dyn Fn(Job)) -> T {
    let (mut body, mut value) = (Some(body), None);
    // A suite of tests calls this with hundreds of types. The rest is compiled once for all of them.
    run_untyped(&mut || value = body.take().map(|body| body()), inject);
    value.expect("the body has returned")
}

/// Runs a `body` that stores its value itself.
#[track_caller]
fn run_untyped(body: &mut (dyn FnMut() + Send), inject: &dyn Fn(Job)) {
    let shared: Arc<Children> = Arc::default();
    let header = Header::new(Location::caller()).in_scope(Arc::clone(&shared));
    let (job, handle) = packet::packet_unbounded(header, body);
    // SAFETY: as in `Scope::packet`: the wait below ends only when the job has given up its ticket.
    inject(unsafe { mem::transmute::<packet::ScopedJob<'_>, Job>(job) });
    while shared.group.children() != 0 {
        let _: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| {
            wait_for(&shared).expect("a plain thread is neither cancelled nor misplaced")
        }));
    }
    if let Err(payload) = handle.join() {
        resume_unwind(payload)
    }
}
