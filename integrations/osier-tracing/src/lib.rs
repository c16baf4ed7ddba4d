//! Spans of `tracing` that stay with their fiber.
//!
//! tracing keeps the spans that are entered in a thread-local. The fibers of a worker share its thread, so a span that one fiber
//! holds entered while it waits is the current span of all others, and spans that end out of order mix for good. [`Fibers`] wraps any
//! subscriber and gives each fiber a stack of spans of its own. Nothing else changes: no macro, no guard, no spawn.
//!
//! ```
//! use std::time::Duration;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! osier_tracing::Fibers::new(tracing_subscriber::fmt().finish()).init();
//! osier::run(|| {
//!     osier::scope(|scope| {
//!         for order in 0..2 {
//!             scope.spawn(move || {
//!                 let _entered = tracing::info_span!("order", order).entered();
//!                 osier::sleep(Duration::from_millis(1)); // others run meanwhile, and are not in this span
//!                 tracing::info!("shipped");
//!             });
//!         }
//!     });
//! });
//! ```
//!
//! # How it works
//!
//! A fiber never changes its thread, so its stack of spans is a thread-local of this crate, by the fiber's id. Before each call of
//! the subscriber inside, the wrapper looks which fiber calls. If it is another one than at the last call on this thread, the spans
//! of that one are exited, the innermost first, and those of the caller are entered.
//!
//! ```text
//!   fiber 1: enter a ─ wait ┐                        ┌─ event
//!   fiber 2:                └─ enter b ─ event ─ wait ┘
//!   inside:  enter a   exit a, enter b, event in b     exit b, enter a, event in a
//! ```
//!
//! # Cost
//!
//! Without a subscriber there is no cost, and none in fibers that do not use tracing: Osier itself knows no spans. Each call of
//! the subscriber reads the fiber's number, a load or two. A switch exits and enters the spans of two fibers.
//!
//! # Records of the crate log
//!
//! Libraries that write by the macros of `log` are in the span of their fiber, too, through tracing's own bridge. With its feature
//! `tracing-log`, tracing-subscriber's `init` installs the bridge; without it, an application installs the bridge itself.
//!
//! # Features
//!
//! `otlp` sends spans to a collector: the module `otlp`. It needs no tokio runtime.
//!
//! # Limits
//!
//! - The switch comes with the next call of tracing on that thread, not with the suspension. A layer that measures how long a span was
//!   busy counts waits for as long as no other fiber of the thread uses tracing.
//! - Use it as the global default. `tracing::subscriber::with_default` sets a thread-local of tracing's own, which all
//!   fibers of the thread see.
//! - Tasks and the worker between fibers are one: a span that is entered there must not be held across an `.await`, as anywhere. Attach it by
//!   tracing's trait Instrument.
//! - A span of a fiber that forgets its guard (`mem::forget`) stays open, as on a thread.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

#[cfg(feature = "otlp")]
pub mod otlp;
mod stacks;

use std::any::TypeId;

use tracing_core::metadata::LevelFilter;
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::subscriber::{Interest, Subscriber};
use tracing_core::{Dispatch, Event, Metadata};

use stacks::Stacks;

/// A subscriber whose spans stay with their fiber; see the [crate].
#[derive(Debug)]
pub struct Fibers<S> {
    inner: S,
    stacks: Stacks,
}

impl<S: Subscriber> Fibers<S> {
    /// Wraps a subscriber with all of its layers.
    pub fn new(inner: S) -> Fibers<S> {
        Fibers {
            inner,
            stacks: Stacks::new(),
        }
    }

    /// The subscriber, with the caller's spans entered.
    #[inline]
    fn inner(&self) -> &S {
        let fiber = fiber();
        if self.stacks.current() != fiber {
            self.switch_to(fiber);
        }
        &self.inner
    }

    #[cold]
    fn switch_to(&self, fiber: u64) {
        // Noted first: a layer may use tracing itself.
        let (left, entered) = self.stacks.switch_to(fiber);
        left.iter().rev().for_each(|span| self.inner.exit(span));
        entered.iter().for_each(|span| self.inner.enter(span));
    }
}

/// The fiber that calls; 0 outside of a fiber.
#[inline]
fn fiber() -> u64 {
    osier::fiber::id().unwrap_or(0)
}

impl<S: Subscriber> Subscriber for Fibers<S> {
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        self.inner.on_register_dispatch(subscriber);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.inner.register_callsite(metadata)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.inner().enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.inner.max_level_hint()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.inner().new_span(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.inner().record(span, values);
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.inner().record_follows_from(span, follows);
    }

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        self.inner().event_enabled(event)
    }

    fn event(&self, event: &Event<'_>) {
        self.inner().event(event);
    }

    fn enter(&self, span: &Id) {
        self.inner().enter(span);
        self.stacks.push(span);
    }

    fn exit(&self, span: &Id) {
        self.inner().exit(span);
        self.stacks.pop(span);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.inner.clone_span(id)
    }

    #[expect(deprecated, reason = "the subscriber inside may have only this one")]
    fn drop_span(&self, id: Id) {
        self.inner.drop_span(id);
    }

    fn try_close(&self, id: Id) -> bool {
        self.inner.try_close(id)
    }

    fn current_span(&self) -> Current {
        self.inner().current_span()
    }

    // SAFETY: the pointer is the wrapper's own for its own type, or what the subscriber inside gives for the type that is asked
    // for. Both live as long as `self`.
    #[allow(unsafe_code)]
    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Self>() {
            return Some(std::ptr::from_ref(self).cast());
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.downcast_raw(id) }
    }
}
