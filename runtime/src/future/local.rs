//! Which task runs on this thread, and its locals.
//!
//! While a task is polled its name and locals are in a thread-local; between polls they are beside its future. Most tasks have
//! neither, and then entering one is a store.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use crate::worker::isolate::isolate;

/// Values by the address of their key.
pub(crate) type Locals = Vec<(usize, Box<dyn Any + Send>)>;

/// The task that this thread polls.
struct Running {
    id: Cell<u64>,
    name: RefCell<Option<Arc<str>>>,
    locals: RefCell<Locals>,
}

thread_local! {
    static RUNNING: Running = const {
        Running { id: Cell::new(0), name: RefCell::new(None), locals: RefCell::new(Vec::new()) }
    };
}

/// Says for the length of one poll which task runs. Polls nest where one task's poll blocks on another executor's loop.
pub(crate) struct Entered<'a> {
    locals: &'a mut Locals,
    outer: u64,
    /// What most tasks have not: the name, and locals, of the outer one while this one has any.
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
            // If it panics the others shall still be dropped.
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
                // Made in this poll.
                None => *self.locals = running.locals.take(),
            }
        });
    }
}

/// What is known of the task that is being polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    id: u64,
    name: Option<Arc<str>>,
}

impl Current {
    /// As [`Task::id`](super::Task::id).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name given by [`Builder::name`](super::Builder::name).
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The task whose future is being polled here; `None` outside of one, as on a fiber.
pub fn current() -> Option<Current> {
    RUNNING.with(|running| match running.id.get() {
        0 => None,
        id => Some(Current {
            id,
            name: running.name.borrow().clone(),
        }),
    })
}

/// A key of a task-local; made by [`task_local!`](crate::task_local).
pub struct LocalKey<T: Send + 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

impl<T: Send + 'static> LocalKey<T> {
    /// Runs `with` on this task's value, which is made at the first need and dropped with the task.
    ///
    /// # Errors
    ///
    /// [`NoTask`] outside of a task.
    pub fn try_with<R>(&'static self, with: impl FnOnce(&T) -> R) -> Result<R, NoTask> {
        let address = std::ptr::from_ref(self).addr();
        if current().is_none() {
            return Err(NoTask(()));
        }
        let take = |running: &Running| {
            let mut locals = running.locals.borrow_mut();
            let at = locals.iter().position(|(key, _)| *key == address)?;
            Some(std::mem::replace(&mut locals[at].1, Box::new(())))
        };
        // Out of the list while it is used: the closure may use other locals. Not under the borrow: the initial value may
        // be made of others too.
        let value = RUNNING.with(take).unwrap_or_else(|| {
            let value: Box<dyn Any + Send> = Box::new((self.init)());
            RUNNING.with(|running| running.locals.borrow_mut().push((address, Box::new(()))));
            value
        });
        let back = PutBack {
            address,
            value: Some(value),
        };
        match back.value.as_ref().and_then(|value| value.downcast_ref()) {
            Some(value) => Ok(with(value)),
            None => panic!("a task-local was used inside its own `with`"),
        }
    }

    /// As [`try_with`](LocalKey::try_with).
    ///
    /// # Panics
    ///
    /// Outside of a task, and inside of its own `with`.
    pub fn with<R>(&'static self, with: impl FnOnce(&T) -> R) -> R {
        match self.try_with(with) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A task-local on its way back into the list.
struct PutBack {
    address: usize,
    value: Option<Box<dyn Any + Send>>,
}

impl Drop for PutBack {
    fn drop(&mut self) {
        RUNNING.with(|running| {
            let mut locals = running.locals.borrow_mut();
            if let Some((_, place)) = locals.iter_mut().find(|(key, _)| *key == self.address)
                && let Some(value) = self.value.take()
            {
                *place = value;
            }
        });
    }
}

/// A task-local was asked for outside of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTask(());

impl fmt::Display for NoTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task-local outside of a task: on a fiber use osier::fiber_local")
    }
}

impl std::error::Error for NoTask {}

/// Declares task-locals, as [`std::thread_local!`] does thread-locals: one value for each task that asks for it.
///
/// ```
/// use std::cell::Cell;
/// osier::task_local! {
///     static DEPTH: Cell<u32> = Cell::new(0);
/// }
/// osier::run(|| {
///     let deep = osier::spawn_future(async {
///         DEPTH.with(|depth| depth.set(5));
///         osier::future::yield_now().await;
///         DEPTH.with(Cell::get)
///     });
///     let other = osier::spawn_future(async { DEPTH.with(Cell::get) });
///     assert_eq!((deep.join().unwrap(), other.join().unwrap()), (5, 0));
/// });
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty = $init:expr);+ $(;)?) => {
        $($(#[$attr])* $vis static $name: $crate::future::LocalKey<$type> = $crate::future::LocalKey { init: || $init };)+
    };
}
