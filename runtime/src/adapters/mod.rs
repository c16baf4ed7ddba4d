//! Adapters: the traits of other libraries, for streams and futures of this crate.
//!
//! Blocking calls and futures are two ways to the same system calls. `listener.accept()` suspends the fiber.
//! `listener.accept_async()` is the same call as a future, which any executor may poll. The runtime's worker drives
//! it; outside of a worker, a background thread that starts when first needed does. An adapter gives a stream the
//! traits that libraries for futures expect:
//!
//! | what | gives | needs the feature |
//! |---|---|---|
//! | [`TcpStream::as_async`](crate::net::TcpStream::as_async), `into_async` | [`futures_io`]'s `AsyncRead` and `AsyncWrite` | |
//! | [`io::Async`](crate::io::Async) | the same for any descriptor that can be polled | |
//! | [`fs::File`](crate::fs::File), [`process::ChildStdin`](crate::process::ChildStdin) and the others | the same, on the type itself | |
//! | `incoming_async`, [`signal::Signals`](crate::signal::Signals), [`fs::read_dir_async`](crate::fs::read_dir_async) | [`futures_core`]'s `Stream` | |
//! | `TcpStream::compat`, `adapters::Compat::new` around any `AsyncRead` or `AsyncWrite` | hyper's `rt::Read` and `rt::Write` | `hyper` |
//! | the same | tokio's `AsyncRead` and `AsyncWrite` | `tokio-io` |
//! | `adapters::hyper::{Executor, Timer}` | what hyper spawns and sleeps with | `hyper` |
//! | `adapters::tokio::with_tokio` | a future that needs a tokio runtime, on any executor | `tokio-rt` |
//!
//! ```
//! use futures_lite::{AsyncReadExt, AsyncWriteExt};
//! use osier::net::UnixStream;
//! osier::run(|| {
//!     let (one, two) = UnixStream::pair()?;
//!     osier::block_on(async {
//!         one.as_async().write_all(b"hello").await?;
//!         drop(one);
//!         let mut text = String::new();
//!         two.into_async().read_to_string(&mut text).await?;
//!         assert_eq!(text, "hello");
//!         std::io::Result::Ok(())
//!     })
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! # Cancellation
//!
//! A future has its effect in the poll that returns `Ready`. A future that is dropped before has neither taken nor
//! written a byte, nor accepted a connection. Files are the exception: [`fs`](crate::fs) says why.
//!
//! # Not promised
//!
//! The timeouts of a stream apply to its blocking calls only. [`select!`](crate::select!) or the executor's own means
//! give a future a timeout.

//   stream.rs   AsyncStream: the crate's streams with futures_io's traits
//   compat.rs   Compat: the traits of hyper and tokio      hyper.rs   tokio.rs   executor, timer, runtime context

#[cfg(any(feature = "hyper", feature = "tokio-io"))]
mod compat;

#[cfg(feature = "hyper")]
pub mod hyper;

mod stream;
#[cfg(feature = "tokio-rt")]
pub mod tokio;

#[cfg(any(feature = "hyper", feature = "tokio-io"))]
pub use compat::Compat;
pub use stream::{AsStream, AsyncStream, Waits};
