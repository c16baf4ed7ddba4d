//! What fibers, threads, futures and callbacks share and wait for.
