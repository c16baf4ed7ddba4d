//! TLS streams, from outside: against themselves, and against other people's programs.

#[global_allocator]
static ALLOCATOR: testkit::allocations::Counting = testkit::allocations::Counting;

mod certificates;
mod export;
#[cfg(feature = "futures")]
mod futures;
mod hostile;
mod made;
mod memory;
mod peers;
mod resumption;
mod round_trip;
