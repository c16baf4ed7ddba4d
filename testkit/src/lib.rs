//! Tools for the tests of several crates: folders, waiting, programs to talk to, memory.
//!
//! A crate depends on it by path only and as a dev-dependency, so packaging leaves it out. It depends on no crate of the
//! workspace: each of them may use it.
//!
//! Every wait ends after [`DEADLINE`], far beyond what a loaded machine needs. A test measures nothing by it.

pub mod allocations;
mod black_hole;
mod cgroup;
mod disk;
pub mod exposition;
mod folder;
mod front;
pub mod h2_attacks;
mod nobody;
pub mod pebble;
pub mod php;
mod process;
mod program;
mod redis;
mod seeds;
mod signals;
mod thread_watch;
mod wait;
pub mod websocket;

pub use black_hole::BlackHole;
pub use cgroup::MemoryGroup;
pub use disk::SmallDisk;
pub use folder::Folder;
pub use front::take_front;
pub use nobody::nobody;
pub use process::{allow_descriptors, resident_bytes, resident_bytes_of, without_room_for_a_thread};
pub use program::{Program, find, free_port, in_a_child, in_a_child_with, is_emulated, this_test};
pub use redis::Redis;
pub use rustix::process::Signal;
pub use seeds::seeds;
pub use signals::assert_takes_no_signals;
pub use thread_watch::ThreadWatch;
pub use wait::{DEADLINE, eventually, wait_for, wait_within};

use std::fmt::Display;

/// Says why a test, or a part of it, cannot run here. `cargo xtask test` counts and lists these lines.
pub fn skip(why: impl Display) {
    println!("skipped: {why}");
}
