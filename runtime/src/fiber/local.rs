//! Fiber-locals: one value per fiber for each key, made at the first use, dropped when the fiber ends.

use std::any::Any;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::worker::context;
use crate::worker::core::{Locals, end_locals};

/// A key of a fiber-local; made by [`fiber_local!`](crate::fiber_local).
pub struct LocalKey<T: 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

thread_local! {
    /// The values of code that is not on a fiber: one set per thread. It has no destructor, so the values' destructors find it.
    static OF_THREAD: ManuallyDrop<RefCell<Locals>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static END_OF_THREAD: EndOfThread = const { EndOfThread };
}

/// Drops the values of the thread. Values that other thread-locals make later stay.
struct EndOfThread;

impl Drop for EndOfThread {
    fn drop(&mut self) {
        OF_THREAD.with(|locals| end_locals(locals));
    }
}

impl<T: 'static> LocalKey<T> {
    /// Runs `with` on this fiber's value. A plain thread has a value of its own.
    ///
    /// The value stays while `with` runs, even if that suspends.
    ///
    /// A destructor of another value may call this too. It makes a value anew that was dropped before, which is dropped
    /// in a further round. Values that are left after four rounds are leaked: two that use each other would come for ever.
    pub fn with<R>(&'static self, with: impl FnOnce(&T) -> R) -> R {
        let address = std::ptr::from_ref(self).addr();
        let find = |locals: &mut Locals| {
            let found = locals.iter().find(|(key, _)| *key == address);
            found.map(|(_, value)| value.clone())
        };
        let value = with_locals(find).unwrap_or_else(|| {
            // Outside of the borrow: the initial value may be made of other locals.
            let value: Rc<dyn Any> = Rc::new((self.init)());
            with_locals(|locals| locals.push((address, value.clone())));
            value
        });
        match value.downcast_ref() {
            Some(value) => with(value),
            None => unreachable!("an address is the key of one type"),
        }
    }
}

/// Runs `with` on the values of the fiber that runs, or of the thread.
fn with_locals<R>(with: impl Fn(&mut Locals) -> R) -> R {
    context::running(|core| with(&mut core.extra().locals.borrow_mut())).unwrap_or_else(|| {
        // Has it dropped at the end of the thread. An error means that it is, or was.
        let _ = END_OF_THREAD.try_with(|_| ());
        OF_THREAD.with(|locals| with(&mut locals.borrow_mut()))
    })
}

/// Declares fiber-locals, as [`std::thread_local!`] does thread-locals.
///
/// ```
/// use std::cell::Cell;
/// osier::fiber_local! {
///     static DEPTH: Cell<u32> = Cell::new(0);
/// }
/// osier::run(|| {
///     DEPTH.with(|depth| depth.set(5));
///     let other = osier::spawn_local(|| DEPTH.with(Cell::get)).join().unwrap();
///     assert_eq!((DEPTH.with(Cell::get), other), (5, 0));
/// });
/// ```
#[doc(alias = "thread_local")]
#[macro_export]
macro_rules! fiber_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $type:ty = $init:expr);+ $(;)?) => {
        $($(#[$attr])* $vis static $name: $crate::fiber::LocalKey<$type> = $crate::fiber::LocalKey { init: || $init };)+
    };
}
