//! A connection of the pool, and a transaction on it.
//!
//! A call that is given up in the middle (its fiber is cancelled, or a timeout unwinds it) leaves a query that runs. [`Calls`] counts those that
//! have begun and not ended well, also of several fibers at once. A connection that is dropped with one of them is closed, not kept.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use osier::sync::OwnedSemaphorePermit;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Row, Statement};

use crate::copy;
use crate::error::Error;
use crate::pool::Shared;
use crate::server::Reading;
use crate::statements::Statements;

/// The server has this long to cancel a query that was given up, before another connection takes the place of its own.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// A client and the statements that it has prepared.
pub(crate) struct Session {
    client: Client,
    reading: Reading,
    statements: Statements,
    calls: Calls,
}

/// The calls of a session.
#[derive(Default)]
struct Calls {
    /// Calls that run, that were given up, or after which the session ends.
    open: Cell<usize>,
    /// Whether one has failed since the last transaction began.
    has_failed: Cell<bool>,
}

impl Session {
    pub(crate) fn new((client, reading): (Client, Reading)) -> Session {
        Session {
            client,
            reading,
            statements: Statements::default(),
            calls: Calls::default(),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Closes the connection, also one on which a call waits for ever: without its client, the task waits for the end of that call.
    fn close(self) {
        drop(osier::block_on(self.reading.cancel()));
    }
}

impl Calls {
    /// Waits for a call, and counts it meanwhile. One that unwinds stays counted.
    fn wait<T>(&self, future: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        self.open.set(self.open.get() + 1);
        let done = osier::block_on(future).map_err(Error::from);
        if !done.as_ref().is_err_and(Error::ends_the_session) {
            self.open.set(self.open.get() - 1);
        }
        done.inspect_err(|_| self.has_failed.set(true))
    }

    fn have_ended(&self) -> bool {
        self.open.get() == 0
    }
}

/// The session of a call: its client, or a transaction of it.
struct Caller<'a, C> {
    client: &'a C,
    statements: &'a Statements,
    calls: &'a Calls,
}

impl<C: GenericClient> Caller<'_, C> {
    fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement);
        }
        let statement = self.calls.wait(self.client.prepare(sql))?;
        self.statements.put(sql, &statement);
        Ok(statement)
    }

    /// Prepares the SQL, if it is new, and makes a call with it.
    fn run<T, F>(&self, sql: &str, with: impl FnOnce(Statement) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        copy::refuse(sql)?;
        let statement = self.prepare(sql)?;
        let done = self.calls.wait(with(statement));
        done.inspect_err(|error| self.statements.forget_if_stale(sql, error))
    }
}

/// The calls that a connection and a transaction have in common.
macro_rules! calls {
    () => {
        /// Runs a statement with the values of its parameters `$1`, `$2`, and returns its rows.
        ///
        /// # Errors
        ///
        /// The server's for the statement. `is_closed` if the connection has ended.
        ///
        /// # Panics
        ///
        /// If the number of values is not that of the parameters.
        pub fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
            let caller = self.caller();
            let client = caller.client;
            caller.run(
                sql,
                |statement| async move { client.query(&statement, values).await },
            )
        }

        /// Same as [`query`](Self::query), for exactly one row.
        ///
        /// # Errors
        ///
        /// The errors of `query`, and if there is not exactly one row.
        pub fn query_one(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, Error> {
            let caller = self.caller();
            let client = caller.client;
            caller.run(sql, |statement| async move {
                client.query_one(&statement, values).await
            })
        }

        /// Same as [`query`](Self::query), for at most one row.
        ///
        /// # Errors
        ///
        /// The errors of `query`, and if there is more than one row.
        pub fn query_opt(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Error> {
            let caller = self.caller();
            let client = caller.client;
            caller.run(sql, |statement| async move {
                client.query_opt(&statement, values).await
            })
        }

        /// Runs a statement and returns the number of rows that it has changed.
        ///
        /// # Errors
        ///
        /// The errors of [`query`](Self::query).
        pub fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
            let caller = self.caller();
            let client = caller.client;
            caller.run(sql, |statement| async move {
                client.execute(&statement, values).await
            })
        }

        /// Runs several statements without parameters, separated by semicolons.
        ///
        /// # Errors
        ///
        /// That of the first statement that fails. Those behind it are not run.
        pub fn batch_execute(&self, sql: &str) -> Result<(), Error> {
            let caller = self.caller();
            caller.calls.wait(caller.client.batch_execute(sql))
        }

        /// Prepares a statement, to look at its parameters and columns. The other calls prepare what they are given by themselves, once
        /// for each connection.
        ///
        /// # Errors
        ///
        /// The server's for the statement.
        pub fn prepare(&self, sql: &str) -> Result<Statement, Error> {
            self.caller().prepare(sql)
        }
    };
}

/// A connection that was taken from a [`Pool`](crate::Pool). Dropping it gives it back.
pub struct Connection {
    /// `None` only while it is dropped.
    session: Option<Session>,
    pool: Arc<Shared>,
    /// The same.
    permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(crate) fn new(session: Session, pool: Arc<Shared>, permit: OwnedSemaphorePermit) -> Connection {
        Connection {
            session: Some(session),
            pool,
            permit: Some(permit),
        }
    }

    calls!();

    /// Begins a transaction. Dropping it rolls it back.
    ///
    /// # Errors
    ///
    /// `is_closed` if the connection has ended.
    pub fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        let Session {
            client,
            statements,
            calls,
            ..
        } = self.session.as_mut().expect("it is not being dropped");
        calls.has_failed.set(false);
        Ok(Transaction {
            inner: calls.wait(client.transaction())?,
            statements,
            calls,
        })
    }

    /// Waits for calls of the client of tokio-postgres, for what this crate does not have: `copy_in`, `query_raw`. The future ends
    /// what it begins: it reads a stream to its end, and returns none. The next user of the connection waits for the rest of a stream,
    /// and for ever behind a `copy_in` that is kept.
    ///
    /// ```no_run
    /// # fn copy(connection: &osier_postgres::Connection) -> Result<(), osier_postgres::Error> {
    /// connection.call(|client| async move {
    ///     let rows = client.copy_out("COPY shop TO STDOUT").await?;
    ///     // ... and read them
    /// #   drop(rows);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Suspends
    ///
    /// Until the future is done.
    ///
    /// # Cancellation
    ///
    /// Unwinds. The connection is closed then, not kept, and the server is asked to cancel what runs.
    ///
    /// # Errors
    ///
    /// That of the future.
    pub fn call<'c, T, F>(&'c self, with: impl FnOnce(&'c Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        let Session { client, calls, .. } = self.session();
        calls.wait(with(client))
    }

    /// The client of tokio-postgres. Await its futures by [`osier::block_on`]. The pool does not see its calls: one that is given up in the middle goes on, and the next user of the
    /// connection waits for it. [`call`](Self::call) is seen.
    pub fn client(&self) -> &Client {
        &self.session().client
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("it is not being dropped")
    }

    fn caller(&self) -> Caller<'_, Client> {
        let Session {
            client,
            statements,
            calls,
            ..
        } = self.session();
        Caller {
            client,
            statements,
            calls,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.calls.have_ended() {
            return self.pool.give(session);
        }
        // On a fiber of its own: this one unwinds. The query holds its connection, so it keeps the permit.
        let (pool, permit) = (Arc::clone(&self.pool), self.permit.take());
        let cancel = move || {
            // A server that takes longer is waited for no more.
            let _ = osier::timeout(CANCEL_WITHIN, || pool.cancel(&session.client));
            session.close();
            drop(permit);
        };
        match osier::Handle::current() {
            Some(_) => drop(osier::fiber::Builder::new().name("postgres cancel").spawn(cancel)),
            // A plain thread has no fibers. Nothing is left to cancel by if the runtime has ended.
            None => drop(self.pool.runtime().spawn(cancel)),
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// A transaction, or a savepoint in one. Dropping it rolls it back.
pub struct Transaction<'a> {
    inner: tokio_postgres::Transaction<'a>,
    statements: &'a Statements,
    calls: &'a Calls,
}

impl<'a> Transaction<'a> {
    calls!();

    /// Ends the transaction, and keeps what it has changed.
    ///
    /// # Errors
    ///
    /// The server's, for example of a deferred constraint, and SQLSTATE 25P02 if a statement of the transaction has failed, even if
    /// its error was ignored, or it was given up before. Nothing is kept then, unless the connection has ended: what became of the transaction is unknown in that
    /// case.
    pub fn commit(self) -> Result<(), Error> {
        // The server answers the commit of a failed transaction as any other, and rolls it back. Every other statement fails there. A call
        // that was given up may still run, and fail.
        if self.calls.has_failed.get() || !self.calls.have_ended() {
            self.calls.wait(self.inner.batch_execute("select 1"))?;
        }
        self.calls.wait(self.inner.commit())
    }

    /// Ends the transaction, and drops what it has changed. Waits for the server, which dropping the transaction does not.
    ///
    /// # Errors
    ///
    /// `is_closed` if the connection has ended. Nothing is kept then either.
    pub fn rollback(self) -> Result<(), Error> {
        self.calls.wait(self.inner.rollback())
    }

    /// Begins a part of the transaction that can be rolled back alone: a savepoint.
    ///
    /// # Errors
    ///
    /// The server's.
    pub fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        Ok(Transaction {
            inner: self.calls.wait(self.inner.transaction())?,
            statements: self.statements,
            calls: self.calls,
        })
    }

    fn caller(&self) -> Caller<'_, tokio_postgres::Transaction<'a>> {
        Caller {
            client: &self.inner,
            statements: self.statements,
            calls: self.calls,
        }
    }
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}
