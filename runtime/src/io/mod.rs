//! I/O beyond the sockets of `net`: waiting for any descriptor, sending the bytes of a file, moving bytes between
//! streams, and cancelling work when its client has gone.
//!
//! ```text
//!   readable, writable, ready    io/ready.rs: any descriptor, over crate::wait::descriptor, or poll(2) on a plain thread
//!   Async                        io/async_fd.rs: any descriptor to read and write, over the same
//!   sendfile                     io/sendfile.rs
//!   read_at                      io/read_at.rs
//!   splice                       io/splice.rs
//!   close_later                  io/close.rs
//!   while_connected              io/connected.rs
//! ```
//!
//! There is no `copy` here: [`std::io::copy`] between our streams does the same.

#[cfg(feature = "descriptors")]
mod async_fd;
mod close;
mod connected;
#[cfg(feature = "fs")]
mod read_at;
#[cfg(feature = "descriptors")]
mod ready;
#[cfg(feature = "fs")]
mod sendfile;
#[cfg(feature = "fs")]
mod splice;

pub use osier_poll::{Interest, Ready};

pub use crate::net::stream::FileSink;
pub use crate::wait::socket::Source;
#[cfg(feature = "descriptors")]
pub use async_fd::Async;
pub use close::{close_later, close_later_with};
pub use connected::{Disconnected, HalfClose, while_connected};
#[cfg(feature = "fs")]
pub use read_at::read_at;
#[cfg(feature = "descriptors")]
pub use ready::{WhenReady, readable, readable_async, ready, ready_async, writable, writable_async};
#[cfg(feature = "fs")]
pub use sendfile::{FileProgress, sendfile, sendfile_after, try_sendfile};
#[cfg(feature = "fs")]
pub use splice::{Spliced, splice};
