//! How much the windows of all HTTP/2 connections may grow together.
//!
//! The growth of a window is a promise: the peer may send so many bytes, and they are held if their reader stops. So windows grow
//! only while there is memory for all promises of the process, several times over: see [`SHARE`]. Under pressure they become smaller.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use osier::memory::{self, Pressure};
use osier_http::h2::{self, Room, StreamId};

/// The bytes by which all windows of the process have grown.
static GROWN: AtomicUsize = AtomicUsize::new(0);

/// One of so many parts of the free memory is promised at most.
const SHARE: usize = 4;

/// The growth of one connection, as far as the process counts it.
#[derive(Default)]
pub(crate) struct Growth(Cell<usize>);

impl Growth {
    /// Tells the machine of a connection that the reader of a body has taken `count` bytes.
    pub(crate) fn consumed(&self, machine: &RefCell<h2::Connection>, stream: StreamId, count: usize) {
        let mut machine = machine.borrow_mut();
        machine.consumed_within(stream, count, room(), osier::time::coarse_now());
        self.note(&machine);
    }

    /// Counts by how much the windows of a connection have grown: after each call that may have changed it.
    pub(crate) fn note(&self, machine: &h2::Connection) {
        self.count(machine.grown());
    }

    fn count(&self, grown: usize) {
        let before = self.0.replace(grown);
        if grown > before {
            GROWN.fetch_add(grown - before, Relaxed);
        } else if grown < before {
            GROWN.fetch_sub(before - grown, Relaxed);
        }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.count(0);
    }
}

/// How far windows may grow.
fn room() -> Room {
    match memory::pressure() {
        Pressure::Normal => {
            let most = memory::limit().map_or(usize::MAX, |limit| limit.saturating_sub(memory::held()) / SHARE);
            Room::Beyond(most.saturating_sub(GROWN.load(Relaxed)))
        }
        Pressure::High => Room::Shared,
        Pressure::Critical => Room::Least,
    }
}
