//! Stackful coroutines on pooled, guarded stacks.
//!
//! A [`Coroutine`] runs a closure on its own stack. The closure can suspend itself in the middle of any call, hand a value to its
//! resumer and get one back:
//!
//! ```
//! use osier_coro::{Coroutine, Stack};
//!
//! let mut squares = Coroutine::new(Stack::new(128 * 1024)?, |y, ()| {
//!     for n in 1..=3u32 {
//!         y.suspend(n * n);
//!     }
//! });
//! assert_eq!(squares.by_ref().collect::<Vec<_>>(), [1, 4, 9]);
//! # std::io::Result::Ok(())
//! ```
//!
//! # Layout
//!
//! - [`coroutine`]: [`Coroutine`] and [`Yielder`], over the switch of the `corosensei` crate.
//! - [`stack`]: [`Stack`], the per-thread [`stack::Pool`], and the process-wide regions that stacks are carved from.
//! - [`overflow`]: the report of a stack overflow.
//! - [`panic_count`]: clears a thread's panic count while an unwinding coroutine is suspended.
//! - `strand.rs`: tells ThreadSanitizer of the switches, in builds for it.
//!
//! # Threads
//!
//! A coroutine stays on the thread that first resumed it: neither it nor its [`Yielder`] is `Send`. A [`Stack`] without a coroutine may
//! go to any thread. A coroutine may suspend in the middle of any call: so it must not suspend in the initialiser of a thread-local, nor
//! use a reference that `LocalKey::with` lends after its thread has dropped the value. std relies on both. Every thread that runs
//! coroutines needs [`overflow::install_for_thread`]; [`stack::Pool::new`] and [`Stack::new`] call it for their thread.
//!
//! # Requirements
//!
//! Rust 1.95, a 64-bit Unix and `panic = "unwind"`. `unsafe` is denied but for the files of stacks, switches and overflow reports. A program
//! that wants sockets, timers and a scheduler besides wants the fibers of `osier`.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(panic = "unwind"))]
compile_error!("osier-coro ends coroutines by unwinding: build with panic = \"unwind\"");
#[cfg(not(all(unix, target_pointer_width = "64")))]
compile_error!(
    "osier runs on 64-bit Unix systems only: on Windows, build in WSL 2 or in a Linux container; a program for more systems leaves \
     osier out for this target"
);

pub mod coroutine;
pub mod overflow;
pub mod panic_count;
mod slots;
pub mod stack;
#[cfg(osier_tsan)]
mod strand;

pub use coroutine::{Coroutine, CoroutineResult, Yielder};
pub use stack::Stack;

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
