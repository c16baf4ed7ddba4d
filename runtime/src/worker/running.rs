//! The thread-local that says which task this thread polls: the task's id, name and locals.
//!
//! It holds them as long as the poll takes. Between polls the name and the locals lie beside the task's future. Most
//! tasks have neither; for them entering a poll is one store, in a thread-local without a destructor: access to one with a
//! destructor first looks whether that has run.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::worker::isolate::isolate;

/// Values by the address of their key.
pub(crate) type Locals = Vec<(usize, Box<dyn Any + Send>)>;

/// The task that this thread polls.
pub(crate) struct Running {
    /// 0 for none.
    pub(crate) id: Cell<u64>,
    /// Whether [`VALUES`] may hold anything.
    pub(crate) has_values: Cell<bool>,
}

/// The name and the locals of the task that this thread polls.
pub(crate) struct Values {
    pub(crate) name: RefCell<Option<Arc<str>>>,
    pub(crate) locals: RefCell<Locals>,
}

thread_local! {
    pub(crate) static RUNNING: Running = const { Running { id: Cell::new(0), has_values: Cell::new(false) } };
    pub(crate) static VALUES: Values = const { Values { name: RefCell::new(None), locals: RefCell::new(Vec::new()) } };
}

/// The guard of one poll: says which task runs. Polls nest where one task's poll blocks on another executor's loop.
pub(crate) struct Entered<'a> {
    locals: &'a mut Locals,
    outer: u64,
    /// The values of the outer task, kept only while one of the two tasks has any.
    others: Option<Box<Outer>>,
}

struct Outer {
    name: Option<Arc<str>>,
    locals: Locals,
    has_values: bool,
}

impl<'a> Entered<'a> {
    #[inline]
    pub(crate) fn new(id: u64, name: &Option<Arc<str>>, locals: &'a mut Locals) -> Entered<'a> {
        let outer = RUNNING.with(|running| running.id.replace(id));
        let plain = outer == 0 && name.is_none() && locals.is_empty();
        let others = (!plain).then(|| enter_values(name, locals));
        Entered { locals, outer, others }
    }

    #[inline]
    pub(crate) fn end_locals(&self) {
        if RUNNING.with(|running| running.has_values.get()) {
            end_locals();
        }
    }
}

#[cold]
fn enter_values(name: &Option<Arc<str>>, locals: &mut Locals) -> Box<Outer> {
    VALUES.with(|values| {
        Box::new(Outer {
            name: values.name.replace(name.clone()),
            locals: values.locals.replace(std::mem::take(locals)),
            has_values: RUNNING.with(|running| running.has_values.replace(true)),
        })
    })
}

#[cold]
fn end_locals() {
    loop {
        let last = VALUES.with(|values| values.locals.borrow_mut().pop());
        let Some(last) = last else { return };
        // A panic of one destructor does not keep the others from being dropped.
        isolate(move || drop(last));
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        let has_values = RUNNING.with(|running| {
            running.id.set(self.outer);
            running.has_values.get()
        });
        if has_values {
            self.leave_values();
        }
    }
}

impl Entered<'_> {
    #[cold]
    fn leave_values(&mut self) {
        let outer = self.others.take().map(|outer| *outer);
        // Without an outer one, the values were made in this poll.
        let outer = outer.unwrap_or(Outer {
            name: None,
            locals: Vec::new(),
            has_values: false,
        });
        RUNNING.with(|running| running.has_values.set(outer.has_values));
        VALUES.with(|values| {
            values.name.replace(outer.name);
            *self.locals = values.locals.replace(outer.locals);
        });
    }
}
