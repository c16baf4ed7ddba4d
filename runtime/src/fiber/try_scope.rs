//! A scope that ends at the first error: the other fibers are then cancelled.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use super::scope::{Scope, ScopedJoinHandle, scope};
use crate::wait::cancel::Cancelled;

/// A scope whose fibers may fail; see [`try_scope`].
pub struct TryScope<'scope, 'env: 'scope, E> {
    scope: &'scope Scope<'scope, 'env>,
    first: Arc<First<E>>,
}

/// The first error.
struct First<E>(Mutex<Option<E>>);

impl<E> First<E> {
    fn get(&self) -> MutexGuard<'_, Option<E>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn keep(&self, error: E) {
        let _late = {
            let mut first = self.get();
            match *first {
                Some(_) => Some(error),
                None => first.replace(error),
            }
        };
    }
}

/// Runs `body`, which may start fibers that borrow and may fail. The first error cancels all fibers of the scope, and is
/// what the call returns once all have ended.
///
/// It is [`scope`] with errors. An error of `body` cancels the fibers too. A fiber that panics cancels the others. `body`
/// itself is not cancelled: its joins return then.
///
/// ```
/// use std::{io, time::Duration};
///
/// osier::run(|| {
///     let outcome: io::Result<()> = osier::try_scope(|s| {
///         s.spawn(|| -> io::Result<()> {
///             osier::sleep(Duration::from_secs(3600)); // is cancelled
///             Ok(())
///         });
///         s.spawn(|| Err::<(), _>(io::Error::other("the second failed")));
///         Ok(())
///     });
///     assert_eq!(outcome.unwrap_err().to_string(), "the second failed");
/// });
/// ```
///
/// # Suspends
///
/// Until every fiber has ended.
///
/// # Cancellation
///
/// Cancels the fibers, waits for them, unwinds.
///
/// # Errors
///
/// The first error of a fiber or of `body`.
///
/// # Panics
///
/// As [`scope`] does.
#[doc(alias("errgroup", "try_join"))]
pub fn try_scope<'env, T, E: Send + 'env>(
    body: impl for<'scope> FnOnce(&TryScope<'scope, 'env, E>) -> Result<T, E>,
) -> Result<T, E> {
    let first = Arc::new(First(Mutex::new(None)));
    let value = scope(|scope| {
        let tried = TryScope {
            scope,
            first: Arc::clone(&first),
        };
        match body(&tried) {
            Ok(value) => Some(value),
            Err(error) => {
                first.keep(error);
                scope.cancel();
                None
            }
        }
    });
    match (first.get().take(), value) {
        (Some(error), _) => Err(error),
        (None, Some(value)) => Ok(value),
        (None, None) => unreachable!("a body without a value has left its error"),
    }
}

impl<'scope, E: Send + 'scope> TryScope<'scope, '_, E> {
    /// Spawns as [`Scope::spawn`] does. The handle gives `None` for a fiber that failed: its error is the scope's.
    #[track_caller]
    pub fn spawn<F, T>(&self, body: F) -> ScopedJoinHandle<'scope, Option<T>>
    where
        F: FnOnce() -> Result<T, E> + Send + 'scope,
        T: Send + 'scope,
    {
        self.scope.spawn(self.child(body))
    }

    /// Spawns as [`Scope::spawn_local`] does. The handle is that of [`spawn`](TryScope::spawn).
    #[track_caller]
    pub fn spawn_local<F, T>(&self, body: F) -> ScopedJoinHandle<'scope, Option<T>>
    where
        F: FnOnce() -> Result<T, E> + 'scope,
        T: 'scope,
    {
        self.scope.spawn_local(self.child(body))
    }

    /// Asks every fiber of the scope to end, those to come included.
    pub fn cancel(&self) {
        self.scope.cancel();
    }

    fn child<F, T>(&self, body: F) -> impl FnOnce() -> Option<T> + use<'scope, F, T, E>
    where
        F: FnOnce() -> Result<T, E> + 'scope,
    {
        let (first, children) = (Arc::clone(&self.first), self.scope.children());
        move || match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                first.keep(error);
                children.cancel();
                None
            }
            Err(payload) => {
                if !Cancelled::is_payload(&*payload) {
                    children.cancel();
                }
                resume_unwind(payload)
            }
        }
    }
}

osier_queue::impl_debug!(TryScope<'a, 'b, E>, self => self.scope);
