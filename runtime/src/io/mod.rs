//! I/O beyond the sockets of `net`: waiting for any descriptor, sending the bytes of a file, moving bytes between
//! streams, and cancelling work when its client has gone.
//!
//! # Copying
//!
//! There is no `copy` here: [`std::io::copy`] between streams of this crate does the same. [`relay`] copies in both directions at once, as
//! tokio's `copy_bidirectional` does, and has a limit for the time in which neither direction moves.
//!
//! [`splice`] passes bytes on without copying them.
//!
//! # Buffers and codecs
//!
//! [`std::io::BufReader`] and [`BufWriter`](std::io::BufWriter) go around a stream or a reference to one. Without them each read and write
//! is a system call. Over TCP the second of two small writes waits up to 40 ms for the peer's acknowledgement of the first, unless
//! `set_nodelay(true)` was called. A codec is a pair of functions:
//!
//! ```
//! use osier::net::UnixStream;
//! use std::io::{self, BufReader, BufWriter, Read, Write};
//!
//! fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
//!     to.write_all(&u32::try_from(frame.len()).map_err(io::Error::other)?.to_be_bytes())?;
//!     to.write_all(frame)
//! }
//!
//! fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
//!     let mut length = [0; 4];
//!     from.read_exact(&mut length)?;
//!     let length = u32::from_be_bytes(length);
//!     let mut frame = Vec::new();
//!     // Memory is for what has come, and not for what the peer claims.
//!     match from.take(length.into()).read_to_end(&mut frame)? == length as usize {
//!         true => Ok(frame),
//!         false => Err(io::ErrorKind::UnexpectedEof.into()),
//!     }
//! }
//!
//! osier::run(|| {
//!     let (ours, theirs) = UnixStream::pair()?;
//!     let mut writer = BufWriter::new(&ours);
//!     write_frame(&mut writer, b"one")?;
//!     write_frame(&mut writer, b"two")?;
//!     writer.flush()?; // both frames in one call
//!     let mut reader = BufReader::new(&theirs);
//!     assert_eq!((read_frame(&mut reader)?, read_frame(&mut reader)?), (b"one".to_vec(), b"two".to_vec()));
//!     io::Result::Ok(())
//! }).unwrap();
//! ```
#![doc(alias("copy", "copy_bidirectional", "BufReader", "Framed", "codec"))]

//   readable, writable, ready    io/ready.rs: any descriptor, over crate::wait::descriptor, or poll(2) on a plain thread
//   Async                        io/async_fd.rs: any descriptor to read and write, over the same
//   sendfile                     io/sendfile.rs
//   read_at                      io/read_at.rs
//   splice                       io/splice.rs
//   relay                        io/relay.rs: both directions of two streams, by futures-io
//   close_later                  io/close.rs
//   while_connected              io/connected.rs

#[cfg(feature = "descriptors")]
mod async_fd;
mod close;
mod connected;
#[cfg(feature = "fs")]
mod read_at;
#[cfg(feature = "descriptors")]
mod ready;
#[cfg(feature = "adapters")]
mod relay;
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
#[cfg(feature = "adapters")]
pub use relay::{Relayed, relay, relay_async};
#[cfg(feature = "fs")]
pub use sendfile::{FileProgress, sendfile, sendfile_after, try_sendfile};
#[cfg(feature = "fs")]
pub use splice::{Spliced, splice};
