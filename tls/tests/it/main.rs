//! TLS streams, from outside: against themselves, and against other people's programs.

mod made;
mod round_trip;
