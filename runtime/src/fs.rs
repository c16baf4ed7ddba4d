//! Files, on the pool for blocking work.
