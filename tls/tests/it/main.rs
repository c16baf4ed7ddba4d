//! TLS streams, from outside: against themselves, and against other people's programs.

mod certificates;
mod made;
mod resumption;
mod round_trip;
