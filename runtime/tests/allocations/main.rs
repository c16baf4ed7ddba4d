//! The allocations of a wait, a publication, a task and a fiber-local. The allocator counts on the thread of the one worker.

mod channels;
mod locals;
mod pubsub;
mod select;
mod tasks;

#[global_allocator]
static ALLOCATOR: testkit::allocations::Counting = testkit::allocations::Counting;
