//! The tests of osier-queue on real threads. The models of all interleavings are in `tests/loom/`.
#![cfg(not(loom))]

mod channel;
mod completion;
mod event;
mod mailbox;
mod parker;
mod topic;
mod waiters;
mod wakers;
mod wheel;
