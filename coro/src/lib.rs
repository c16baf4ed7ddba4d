//! Stackful coroutines on pooled, guarded stacks.
//!
//! A [`Coroutine`] runs a closure on a stack of its own and can stop in the middle of any call in it, handing a value
//! to whoever resumed it and taking one back:
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
//! - [`stack`]: [`Stack`], the per-thread [`stack::Pool`], the process-wide regions stacks are cut from.
//! - [`overflow`]: the report that a stack overflow ends in.
//! - [`panic_count`]: takes a thread's "is panicking" away while a coroutine that unwinds is suspended.
//!
//! # Threads
//!
//! A coroutine stays on the thread it was first resumed on: neither it nor its [`Yielder`] is `Send`. A [`Stack`] that
//! runs nothing may go anywhere. Every thread that runs coroutines needs [`overflow::install_for_thread`];
//! [`stack::Pool::new`] and [`Stack::new`] do it for the thread they are called on.
#![deny(unsafe_code)]

#[cfg(not(panic = "unwind"))]
compile_error!("osier-coro ends coroutines by unwinding: build with panic = \"unwind\"");

pub mod coroutine;
pub mod overflow;
pub mod panic_count;
pub mod stack;

pub use coroutine::{Coroutine, CoroutineResult, Yielder};
pub use stack::Stack;

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
