//! Connections that many fibers use at once.
//!
//! ```text
//!   fibers ── statements, one behind the other ──▶ connection ──▶ backend
//!          ◀── answers, in the same order ────────
//! ```
//!
//! No fiber waits for the answers of another before its statement is sent (pipelining), and the statements that fibers of one worker
//! send between two looks at their sockets leave in one write. Each thread uses connections of its own, as long as there are as many
//! as workers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};

use osier::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};

use crate::copy;
use crate::error::Error;
use crate::server::{self, Reading};
use crate::statements::Statements;

/// A few connections that many fibers use at once, for single statements. Clones are the same connections.
///
/// A [`Pool`](crate::Pool) lends a connection to one fiber at a time, which transactions need. A pipeline needs fewer connections and
/// fewer system calls. The backend of a connection runs its statements one after the other, so a slow one delays those behind it.
///
/// ```no_run
/// # fn main() -> Result<(), osier_postgres::Error> {
/// use osier_postgres::Pipeline;
///
/// osier::run(|| {
///     let db = Pipeline::connect("postgres://app@localhost/shop", 2 * osier::workers())?;
///     osier::scope(|scope| {
///         let prices: Vec<_> = (1..=100)
///             .map(|id| {
///                 let db = db.clone();
///                 scope.spawn_local(move || db.query_one("select price from item where id = $1", &[&id]))
///             })
///             .collect();
///         println!("{} prices", prices.len());
///     });
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone)]
pub struct Pipeline(Arc<Lanes>);

struct Lanes {
    config: Config,
    all: Box<[Lane]>,
}

/// The place of one connection.
#[derive(Default)]
struct Lane {
    /// Never locked across a wait.
    open: StdMutex<Option<Arc<Open>>>,
    /// Held by the fiber that connects.
    connecting: Mutex<()>,
}

struct Open {
    client: Client,
    statements: Statements,
    /// `None` once the connection can have no further statement.
    reading: StdMutex<Option<Reading>>,
}

impl Pipeline {
    /// Makes a pipeline of `connections` connections by a URL or a list of parameters, as [`Pool::connect`](crate::Pool::connect) does.
    /// Makes the first connection at once, so a mistake is found here, and the others when they are needed. A connection that has
    /// ended is replaced.
    ///
    /// # Suspends
    ///
    /// Until the first connection is made.
    ///
    /// # Errors
    ///
    /// If the text is not understood, or no connection can be made.
    ///
    /// # Panics
    ///
    /// If `connections` is 0, and outside of a runtime.
    pub fn connect(url: &str, connections: usize) -> Result<Pipeline, Error> {
        Pipeline::with(url.parse()?, connections)
    }

    /// Makes a pipeline as [`connect`](Pipeline::connect) does, from tokio-postgres' own configuration. Its settings of target sessions
    /// have no effect.
    ///
    /// # Suspends
    ///
    /// Until the first connection is made.
    ///
    /// # Errors
    ///
    /// If no connection can be made.
    ///
    /// # Panics
    ///
    /// If `connections` is 0, and outside of a runtime.
    pub fn with(config: Config, connections: usize) -> Result<Pipeline, Error> {
        assert!(connections > 0, "a pipeline without connections");
        let all = (0..connections).map(|_| Lane::default()).collect();
        let pipeline = Pipeline(Arc::new(Lanes { config, all }));
        pipeline.open()?;
        Ok(pipeline)
    }

    /// Runs a statement with the values of its parameters `$1`, `$2`, and returns its rows.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The server runs the statement all the same: those of other fibers are behind it.
    ///
    /// # Errors
    ///
    /// The server's for the statement. `is_closed` if the connection has ended, or none can be made; the statement may have been run then.
    ///
    /// # Panics
    ///
    /// If the number of values is not that of the parameters, and outside of a runtime.
    pub fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let open = self.open()?;
        let client = &open.client;
        open.run(sql, |statement| async move { client.query(&statement, values).await })
    }

    /// Same as [`query`](Self::query), for exactly one row.
    ///
    /// # Errors
    ///
    /// The errors of `query`, and if there is not exactly one row.
    pub fn query_one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
        let open = self.open()?;
        let client = &open.client;
        open.run(
            sql,
            |statement| async move { client.query_one(&statement, values).await },
        )
    }

    /// Same as [`query`](Self::query), for at most one row.
    ///
    /// # Errors
    ///
    /// The errors of `query`, and if there is more than one row.
    pub fn query_opt(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Error> {
        let open = self.open()?;
        let client = &open.client;
        open.run(
            sql,
            |statement| async move { client.query_opt(&statement, values).await },
        )
    }

    /// Runs a statement and returns the number of rows that it has changed.
    ///
    /// # Errors
    ///
    /// The errors of [`query`](Self::query).
    pub fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        let open = self.open()?;
        let client = &open.client;
        open.run(sql, |statement| async move { client.execute(&statement, values).await })
    }

    /// The connection for the next statement of this thread.
    fn open(&self) -> Result<Arc<Open>, Error> {
        let Lanes { config, all } = &*self.0;
        let lane = &all[next_of_thread() % all.len()];
        if let Some(open) = lane.live() {
            return Ok(open);
        }
        let _connecting = lane.connecting.lock();
        // Another fiber may have connected meanwhile.
        if let Some(open) = lane.live() {
            return Ok(open);
        }
        let (client, reading) = server::connect(config, server::Reader::OfThisWorker)?;
        let open = Arc::new(Open {
            client,
            statements: Statements::default(),
            reading: StdMutex::new(Some(reading)),
        });
        *lane.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(open.clone());
        Ok(open)
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("connections", &self.0.all.len())
            .finish_non_exhaustive()
    }
}

impl Lane {
    fn live(&self) -> Option<Arc<Open>> {
        let open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        open.as_ref().filter(|open| open.is_usable()).cloned()
    }
}

impl Open {
    fn is_usable(&self) -> bool {
        !self.client.is_closed() && self.reading().is_some()
    }

    /// Never held across a wait.
    fn reading(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Prepares the SQL, if it is new, and makes a call with it. Two fibers may both prepare it; the statement that is kept last stays.
    fn run<T, F>(&self, sql: &str, with: impl FnOnce(Statement) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        copy::refuse(sql)?;
        let statement = match self.statements.get(sql) {
            Some(statement) => statement,
            None => {
                let statement = self.wait(self.client.prepare(sql))?;
                self.statements.put(sql, &statement);
                statement
            }
        };
        let done = self.wait(with(statement));
        done.inspect_err(|error| self.statements.forget_if_stale(sql, error))
    }

    /// Waits for a call, and closes the connection after an error with which the session ends.
    fn wait<T>(&self, future: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        let done = osier::block_on(future).map_err(Error::from);
        done.inspect_err(|error| {
            if error.ends_the_session()
                && let Some(reading) = self.reading().take()
            {
                // The other callers get an error now, and not only once somebody has sent a further statement.
                drop(reading.cancel());
            }
        })
    }
}

/// A number that spreads the statements of a thread over the connections of this thread: the threads count from different numbers, in
/// steps of the number of workers.
fn next_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NEXT: Cell<usize> = Cell::new(THREADS.fetch_add(1, Relaxed)));
    NEXT.replace(NEXT.get().wrapping_add(osier::workers()))
}
