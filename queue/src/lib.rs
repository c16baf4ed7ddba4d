//! The pure parts of a scheduler: what waits, what is queued, what sleeps. Knows no file descriptor and makes no
//! system call of its own; the runtime is its only caller.
//!
//! | module | what it answers | checked by |
//! |---|---|---|
//! | [`wheel`] | which deadline comes next | proptest against a sorted model |
//! | [`clock`] | what time a clock shows that tests move, and when it moves by itself | loom |
//! | [`waiters`] | who waits for this condition | loom, miri |
//! | [`owned`] | the same, for who cannot borrow what it waits for | miri |
//! | [`event`] | is that signal set, and whose is it | loom, miri |
//! | [`mailbox`] | which flags are raised, and who waits for them | loom, miri |
//! | [`channel`] | which value is next, and who waits for one, or for room | loom, miri |
//! | [`topic`] | who gets what is published, and what is in whose queue | loom, miri |
//! | [`inbox`] | which slots other threads have woken | loom, miri |
//! | [`parker`] | who sleeps, and who must be woken | loom |
//! | [`completion`] | has that task ended, and with what | loom, miri |
//! | [`cancel`] | was that fiber cancelled before it started | loom |
//! | [`group`] | have all children of that scope ended | loom |
//! | [`readiness`] | is that descriptor ready, and whose poller says so | loom, miri |
//! | [`request`] | who ends that callback's request, and with which status | loom, miri |
//!
//! Everything concurrent goes through `sync.rs`, which is std or, under `--cfg loom`, the model checker.
#![deny(unsafe_code)]

pub mod cancel;
pub mod channel;
pub mod clock;
pub mod completion;
pub mod event;
pub mod group;
pub mod inbox;
mod inline;
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

pub use cancel::Cancellation;
pub use channel::Channel;
pub use clock::{Virtual, tick_after, tick_at};
pub use completion::Completion;
pub use event::Event;
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
