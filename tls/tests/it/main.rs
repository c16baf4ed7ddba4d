//! TLS streams, from outside: against themselves, and against other people's programs.

mod certificates;
#[cfg(feature = "futures")]
mod futures;
mod hostile;
mod made;
mod peers;
mod resumption;
mod round_trip;
