//! The thread-local that says which task this thread polls: the task's id, name and locals.
//!
//! It holds them as long as the poll takes. Between polls the name and the locals lie beside the task's future. Most
//! tasks have neither; for them entering a poll is one store.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::worker::isolate::isolate;

/// Values by the address of their key.
pub(crate) type Locals = Vec<(usize, Box<dyn Any + Send>)>;

/// The task that this thread polls.
pub(crate) struct Running {
    pub(crate) id: Cell<u64>,
    pub(crate) name: RefCell<Option<Arc<str>>>,
    pub(crate) locals: RefCell<Locals>,
}

thread_local! {
    pub(crate) static RUNNING: Running = const {
        Running { id: Cell::new(0), name: RefCell::new(None), locals: RefCell::new(Vec::new()) }
    };
}

/// The guard of one poll: says which task runs. Polls nest where one task's poll blocks on another executor's loop.
pub(crate) struct Entered<'a> {
    locals: &'a mut Locals,
    outer: u64,
    /// The name and locals of the outer task, kept only while one of the two tasks has any.
    others: Option<(Option<Arc<str>>, Locals)>,
}

impl<'a> Entered<'a> {
    #[inline]
    pub(crate) fn new(id: u64, name: &Option<Arc<str>>, locals: &'a mut Locals) -> Entered<'a> {
        RUNNING.with(|running| {
            let outer = running.id.replace(id);
            let plain = outer == 0 && name.is_none() && locals.is_empty();
            let others = (!plain).then(|| {
                let locals = running.locals.replace(std::mem::take(locals));
                (running.name.replace(name.clone()), locals)
            });
            Entered { locals, outer, others }
        })
    }

    pub(crate) fn end_locals(&self) {
        loop {
            let last = RUNNING.with(|running| running.locals.borrow_mut().pop());
            let Some(last) = last else { return };
            // A panic of one destructor does not keep the others from being dropped.
            isolate(move || drop(last));
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        RUNNING.with(|running| {
            running.id.set(self.outer);
            match self.others.take() {
                Some((name, locals)) => {
                    running.name.replace(name);
                    *self.locals = running.locals.replace(locals);
                }
                None if running.locals.borrow().is_empty() => {}
                // The locals were made in this poll.
                None => *self.locals = running.locals.take(),
            }
        });
    }
}
