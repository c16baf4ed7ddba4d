//! The runtime through its public API, one module per capability, in one process.
//!
//! Some tests stand in files of their own beside this folder: those that count what the whole process has (descriptors,
//! threads, allocations), change what it shares (signal handlers), or measure whether a worker turns.

mod async_adapter;
mod async_streams;
mod attributes;
mod callbacks;
mod callbacks_end;
mod callbacks_wait;
mod cancel;
mod channels;
mod clock;
mod colours;
mod coroutines;
mod dns;
mod dormant;
mod dump;
mod embed;
mod event;
mod fairness;
mod fiber;
mod fs;
mod gdb;
mod give_way;
mod given;
mod grace;
mod groups;
mod interrupt;
mod interval;
mod io;
mod iterate;
mod leaves;
mod leaves_end;
mod locks;
mod lost_events;
mod mailbox;
mod memory;
mod meter;
mod metrics;
mod mpmc;
mod once;
mod pubsub;
mod scope;
mod select;
mod select_sources;
mod sim;
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
