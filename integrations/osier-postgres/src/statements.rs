//! The statements that a connection has prepared, by their SQL.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;

use crate::Error;

/// The most statements that a connection keeps. Beyond it all are dropped: a program with so many makes its SQL from values.
const KEPT: usize = 256;

#[derive(Default)]
pub(crate) struct Statements(Mutex<HashMap<String, Statement>>);

impl Statements {
    pub(crate) fn get(&self, sql: &str) -> Option<Statement> {
        self.lock().get(sql).cloned()
    }

    pub(crate) fn put(&self, sql: &str, statement: &Statement) {
        let mut kept = self.lock();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(sql.to_owned(), statement.clone());
    }

    /// Forgets a statement that the server no longer runs as it was prepared: its table has changed, or it is gone.
    pub(crate) fn forget_if_stale(&self, sql: &str, error: &Error) {
        let stale = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::INVALID_SQL_STATEMENT_NAME];
        if error.code().is_some_and(|code| stale.contains(code)) {
            self.lock().remove(sql);
        }
    }

    /// Never held across a wait.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Statement>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
