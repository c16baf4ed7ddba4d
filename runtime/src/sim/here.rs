//! The simulation that runs on this thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use async_task::Runnable;

use super::net::Net;
use crate::worker::context;

/// Queued work for the pool of blocking threads, with the host that has asked for it.
pub(crate) type Pool = Rc<RefCell<VecDeque<(usize, Runnable)>>>;

struct Running {
    net: Arc<Mutex<Net>>,
    pool: Pool,
}

thread_local! {
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
    static HOST: Cell<usize> = const { Cell::new(0) };
    /// Whether work for the pool runs.
    static POOLED: Cell<bool> = const { Cell::new(false) };
}

/// The simulation, as code on one of its hosts sees it.
pub(crate) struct Here<'a> {
    pub(crate) net: &'a Arc<Mutex<Net>>,
    pub(crate) pool: &'a Pool,
    pub(crate) host: usize,
}

/// Runs `with` on the simulation. Returns `None` outside of its hosts.
pub(crate) fn get<T>(with: impl FnOnce(Here<'_>) -> T) -> Option<T> {
    context::worker(|_| ())?;
    running(with)
}

/// As [`get`], and also in work for the pool, which is on no worker.
pub(crate) fn get_or_pooled<T>(with: impl FnOnce(Here<'_>) -> T) -> Option<T> {
    match POOLED.get() {
        true => running(with),
        false => get(with),
    }
}

fn running<T>(with: impl FnOnce(Here<'_>) -> T) -> Option<T> {
    RUNNING.with_borrow(|running| {
        let running = running.as_ref()?;
        Some(with(Here {
            net: &running.net,
            pool: &running.pool,
            host: HOST.get(),
        }))
    })
}

/// Binds the simulation to this thread while the value lives.
pub(super) struct Entered(());

impl Entered {
    pub(super) fn new(net: &Arc<Mutex<Net>>, pool: &Pool) -> Entered {
        let running = Running {
            net: Arc::clone(net),
            pool: Rc::clone(pool),
        };
        let before = RUNNING.replace(Some(running));
        assert!(before.is_none(), "osier::sim: a simulation inside of a simulation");
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.set(None);
    }
}

/// Sets the host whose worker runs next.
pub(super) fn set_host(host: usize) {
    HOST.set(host);
}

/// Runs work for the pool as a plain thread of a host does.
pub(super) fn run_pooled(host: usize, work: impl FnOnce()) {
    let before = HOST.replace(host);
    POOLED.set(true);
    work();
    POOLED.set(false);
    HOST.set(before);
}

/// The host whose worker runs.
pub(crate) fn host() -> usize {
    HOST.get()
}

pub(crate) fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
