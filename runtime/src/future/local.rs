//! Task-locals, and how code finds out which task runs it.

use std::any::Any;
use std::sync::Arc;

use crate::worker::running::{RUNNING, VALUES, Values};

/// The identity of the task that is being polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    id: u64,
    name: Option<Arc<str>>,
}

impl Current {
    /// The task's number, as [`Task::id`](super::Task::id) gives it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name given by [`Builder::name`](super::Builder::name).
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The task whose future is being polled here. Outside of a task, as on a fiber, it is `None`.
pub fn current() -> Option<Current> {
    RUNNING.with(|running| match running.id.get() {
        0 => None,
        id => Some(Current {
            id,
            name: VALUES.with(|values| values.name.borrow().clone()),
        }),
    })
}

/// A key of a task-local; made by [`task_local!`](crate::task_local).
pub struct LocalKey<T: Send + 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

impl<T: Send + 'static> LocalKey<T> {
    /// Runs `with` on this task's value, which is made at the first use and dropped with the task.
    ///
    /// # Errors
    ///
    /// [`NoTask`] outside of a task.
    pub fn try_with<R>(&'static self, with: impl FnOnce(&T) -> R) -> Result<R, NoTask> {
        let address = std::ptr::from_ref(self).addr();
        if current().is_none() {
            return Err(NoTask(()));
        }
        let take = |values: &Values| {
            let mut locals = values.locals.borrow_mut();
            let at = locals.iter().position(|(key, _)| *key == address)?;
            Some(std::mem::replace(&mut locals[at].1, Box::new(())))
        };
        // The value is out of the list while it is used, because the closure may use other locals. The borrow has
        // ended, because the initial value may be made of others.
        let value = VALUES.with(take).unwrap_or_else(|| {
            let value: Box<dyn Any + Send> = Box::new((self.init)());
            RUNNING.with(|running| running.has_values.set(true));
            VALUES.with(|values| values.locals.borrow_mut().push((address, Box::new(()))));
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

    /// Runs `with` on this task's value, as [`try_with`](LocalKey::try_with) does.
    ///
    /// # Panics
    ///
    /// Outside of a task, and inside its own `with`.
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
        VALUES.with(|values| {
            let mut locals = values.locals.borrow_mut();
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

osier_queue::impl_error!(NoTask, self => "a task-local outside of a task: on a fiber use osier::fiber_local");

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
