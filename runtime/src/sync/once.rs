//! Values that are made once, by the first who needs them: [`OnceCell`] and [`Lazy`].
//!
//! A cell is std's `OnceLock` for the value and a [`Mutex`] for the turn to make it. Readers look at the value alone.
//! A caller that finds none takes the mutex, looks again, makes the value and sets it. So those who wait for the value
//! suspend, and the one that makes it may wait too.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use super::Mutex;

/// A place for a value that is set once.
///
/// It works as [`std::sync::OnceLock`], with two differences. Fibers that wait for the value suspend, and the function
/// that makes it may wait: with std's cell each of the two would stop the worker. A function that panics or is cancelled
/// leaves the cell empty, and the next in line makes the value.
///
/// ```
/// use osier::sync::OnceCell;
/// use std::time::Duration;
///
/// static CONFIG: OnceCell<String> = OnceCell::new();
/// let config = || {
///     CONFIG.get_or_init(|| {
///         osier::sleep(Duration::from_millis(1)); // reads it from a peer
///         "green".to_owned()
///     })
/// };
/// osier::run(|| {
///     let other = osier::spawn(config);
///     assert_eq!(config(), "green");
///     assert!(std::ptr::eq(config(), other.join().unwrap()));
/// });
/// ```
///
/// A function that asks its own cell for the value waits for ever.
#[doc(alias("OnceLock", "Once"))]
pub struct OnceCell<T> {
    value: OnceLock<T>,
    /// Held by whoever makes the value.
    turn: Mutex<()>,
}

impl<T> OnceCell<T> {
    /// Makes an empty cell.
    pub const fn new() -> OnceCell<T> {
        OnceCell {
            value: OnceLock::new(),
            turn: Mutex::new(()),
        }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the value, and makes it by `init` if there is none.
    ///
    /// # Suspends
    ///
    /// While another makes the value, and where `init` does. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// Unwinds. A cell whose `init` unwinds stays empty.
    ///
    /// # Panics
    ///
    /// In a future or callback on a worker, if it would have to wait: use
    /// [`get_or_init_async`](OnceCell::get_or_init_async) there.
    #[inline]
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.init_slowly(init),
        }
    }

    #[cold]
    fn init_slowly(&self, init: impl FnOnce() -> T) -> &T {
        let made: Result<&T, std::convert::Infallible> = self.get_or_try_init(|| Ok(init()));
        let Ok(value) = made;
        value
    }

    /// Same as [`get_or_init`](OnceCell::get_or_init), for a function that may fail. The cell then stays empty.
    ///
    /// # Errors
    ///
    /// The errors of `init`.
    ///
    /// # Suspends
    ///
    /// Same as [`get_or_init`](OnceCell::get_or_init).
    pub fn get_or_try_init<E>(&self, init: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let _turn = self.turn.lock();
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let value = init()?;
        Ok(self.value.get_or_init(|| value))
    }

    /// Same as [`get_or_init`](OnceCell::get_or_init), in a future. A future that is dropped leaves the cell empty.
    pub async fn get_or_init_async(&self, init: impl Future<Output = T>) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _turn = self.turn.lock_async().await;
        if let Some(value) = self.get() {
            return value;
        }
        let value = init.await;
        self.value.get_or_init(|| value)
    }

    /// Same as [`get_or_init_async`](OnceCell::get_or_init_async), for a future that may fail. The cell then stays empty.
    ///
    /// # Errors
    ///
    /// The errors of `init`.
    pub async fn get_or_try_init_async<E>(&self, init: impl Future<Output = Result<T, E>>) -> Result<&T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let _turn = self.turn.lock_async().await;
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let value = init.await?;
        Ok(self.value.get_or_init(|| value))
    }

    /// Sets the value.
    ///
    /// # Suspends
    ///
    /// While another makes the value. Blocks the thread when called on a plain one.
    ///
    /// # Errors
    ///
    /// `value`, if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _turn = self.turn.lock();
        self.value.set(value)
    }

    /// Borrows the value. It needs no lock, because the borrow is exclusive.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Takes the value out and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        self.value.take()
    }

    /// Returns the value, if there is one.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}

impl<T> Default for OnceCell<T> {
    fn default() -> OnceCell<T> {
        OnceCell::new()
    }
}

impl<T> From<T> for OnceCell<T> {
    fn from(value: T) -> OnceCell<T> {
        OnceCell {
            value: OnceLock::from(value),
            turn: Mutex::new(()),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceCell").field(&self.get()).finish()
    }
}

/// A value that is made at its first use.
///
/// It works as [`std::sync::LazyLock`], with two differences. The function that makes the value may wait, and others
/// that need the value meanwhile suspend. A function that panics or is cancelled is called again at the next use; that is
/// why it is `Fn`.
///
/// ```
/// use osier::sync::Lazy;
/// use std::time::Duration;
///
/// static GREETING: Lazy<String> = Lazy::new(|| {
///     osier::sleep(Duration::from_millis(1));
///     "hello".to_owned()
/// });
/// osier::run(|| assert_eq!(GREETING.len(), 5));
/// ```
///
/// # Suspends
///
/// `Deref` does, as [`OnceCell::get_or_init`].
#[doc(alias("LazyLock", "LazyCell"))]
pub struct Lazy<T, F = fn() -> T> {
    cell: OnceCell<T>,
    init: F,
}

impl<T, F: Fn() -> T> Lazy<T, F> {
    /// Makes a value that `init` makes at its first use.
    pub const fn new(init: F) -> Lazy<T, F> {
        Lazy {
            cell: OnceCell::new(),
            init,
        }
    }

    /// Returns the value, and makes it at the first call. `Deref` does the same.
    ///
    /// # Suspends
    ///
    /// Same as [`OnceCell::get_or_init`].
    #[inline]
    pub fn force(lazy: &Lazy<T, F>) -> &T {
        lazy.cell.get_or_init(&lazy.init)
    }

    /// The value, if it was made.
    pub fn get(lazy: &Lazy<T, F>) -> Option<&T> {
        lazy.cell.get()
    }
}

impl<T, F: Fn() -> T> Deref for Lazy<T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        Lazy::force(self)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for Lazy<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lazy").field(&self.cell.get()).finish()
    }
}
