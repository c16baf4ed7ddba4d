//! The allocations of a wait, a publication and a task. The allocator counts on the thread of the one worker.

mod channels;
mod pubsub;
mod select;
mod tasks;

#[global_allocator]
static ALLOCATOR: testkit::allocations::Counting = testkit::allocations::Counting;
