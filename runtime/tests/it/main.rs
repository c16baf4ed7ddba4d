//! The runtime from outside, one module per capability, in one process.
//!
//! A test that counts what the whole process has (descriptors, threads, allocations), changes what the whole process shares
//! (signal handlers) or measures whether a worker turns stands in a file of its own beside this folder.

mod async_adapter;
mod async_streams;
mod callbacks;
mod callbacks_end;
mod callbacks_wait;
mod cancel;
mod channels;
mod clock;
mod colours;
mod dns;
mod dormant;
mod dump;
mod embed;
mod event;
mod fairness;
mod fiber;
mod fs;
mod given;
mod grace;
mod interval;
mod io;
mod iterate;
mod leaves;
mod leaves_end;
mod locks;
mod lost_events;
mod mailbox;
mod metrics;
mod mpmc;
mod pubsub;
mod scope;
mod select;
mod select_sources;
mod slow_reader;
mod sockets;
mod splice;
mod task_lifecycle;
mod tasks;
mod tcp;
mod timeouts;
mod udp;
mod unix;
mod wait_many;
