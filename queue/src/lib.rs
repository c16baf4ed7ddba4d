//! The pure parts of a scheduler: queues, wait lists, sleep flags and timers. The crate knows no file descriptor and makes no
//! system call of its own.
//!
//! | module | question that it answers | checked by |
//! |---|---|---|
//! | [`wheel`] | which deadline comes next | proptest against a sorted model |
//! | [`clock`] | what time is it on a clock that tests move, and when does it move itself | loom |
//! | [`waiters`] | who waits for this condition | loom, miri |
//! | [`owned`] | the same, for a waiter that owns what it waits for | miri |
//! | [`event`] | is that signal set, and who gets it | loom, miri |
//! | [`mailbox`] | which flags are raised, and who waits for them | loom, miri |
//! | [`channel`] | which value is next, and who waits for a value or for room | loom, miri |
//! | [`topic`] | who gets a published message, and what is in each subscriber's queue | loom, miri |
//! | [`inbox`] | which slots other threads have woken | loom, miri |
//! | [`parker`] | which workers sleep, and which must be woken | loom |
//! | [`completion`] | has that task ended, and with what | loom, miri |
//! | [`budget`] | a sum of held bytes, its distance from a limit, and the tasks that wait for that to change | loom |
//! | [`ledger`] | the held bytes of each account | tests of the runtime |
//! | [`cancel`] | was that fiber cancelled before it started | loom |
//! | [`gate`] | has the consumer of a queue ended, and who takes out what is left | loom |
//! | [`group`] | have all children of that scope ended | loom |
//! | [`readiness`] | is that descriptor ready, and which worker's poller reports it | loom, miri |
//! | [`request`] | who ends that callback request, and with which status | loom, miri |
//!
//! These are building blocks: most programs want the channels, locks and timers of `osier` instead, which suspend a fiber.
//!
//! ```
//! use osier_queue::Wheel;
//!
//! let mut wheel = Wheel::new(0); // the present, in ticks
//! wheel.insert(30, "late");
//! let early = wheel.insert(10, "early");
//! wheel.insert(20, "on time");
//! assert_eq!(wheel.remove(early), Some("early"));
//! assert_eq!(wheel.pop_expired(25), Some("on time"));
//! assert_eq!(wheel.pop_expired(25), None);
//! ```
//!
//! Rust 1.95, any 64-bit system, no dependencies. `unsafe` is denied but for three files, which miri checks.

// All concurrent modules use `sync.rs`: it is std, or the model checker under `--cfg loom`.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod budget;
pub mod cancel;
pub mod channel;
pub mod clock;
pub mod completion;
mod debug;
mod error;
pub mod event;
pub mod gate;
pub mod group;
pub mod inbox;
mod inline;
#[cfg(not(loom))]
pub mod ledger;
pub mod mailbox;
pub mod owned;
pub mod parker;
pub mod readiness;
pub mod request;
mod sync;
pub mod topic;
pub mod waiters;
mod wakers;
pub mod wheel;

pub use budget::{Budget, Pressure};
pub use cancel::Cancellation;
pub use channel::Channel;
pub use clock::{Virtual, tick_after, tick_at};
pub use completion::Completion;
pub use event::Event;
pub use gate::{Gate, Leftovers};
pub use group::Group;
pub use inbox::{Inbox, Link, Links};
pub use inline::InlineQueue;
pub use mailbox::{Flags, Mailbox};
pub use owned::OwnedWaiter;
pub use parker::{Idle, Parker};
pub use waiters::{WaitList, Waiter};
pub use wheel::{Key, Wheel};

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
