//! A runtime without threads, inside somebody else's loop.
