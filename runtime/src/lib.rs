//! A coroutine runtime: network code is written the plain blocking way and runs at event-loop speed.
//!
//! ```
//! use osier::net::{TcpListener, TcpStream};
//! use std::io::{self, Read, Write};
//!
//! fn echo(mut stream: TcpStream) -> io::Result<()> {
//!     let mut buf = [0; 4096];
//!     loop {
//!         match stream.read(&mut buf)? {
//!             0 => return Ok(()),
//!             n => stream.write_all(&buf[..n])?,
//!         }
//!     }
//! }
//!
//! osier::run(|| -> io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     osier::spawn(move || echo(listener.accept()?.0));
//!
//!     let mut client = TcpStream::connect(address)?;
//!     client.write_all(b"hello")?;
//!     let mut reply = [0; 5];
//!     client.read_exact(&mut reply)?;
//!     assert_eq!(&reply, b"hello");
//!     Ok(())
//! }).unwrap();
//! ```
//!
//! # Fibers
//!
//! [`spawn`] starts a *fiber* on one of the runtime's workers: a function with a stack of its own. The stack takes 256
//! KiB of address space, of which 192 KiB are usable, and only touched pages cost memory. A call that has to wait suspends the fiber, and its worker
//! runs others. Once started, a fiber never leaves its thread, so `Rc`, `RefCell` and thread-locals are fine across a
//! suspension.
//!
//! Two uses of [`std::thread_local!`] are **undefined behaviour** on fibers, and neither the compiler nor this crate can refuse them:
//!
//! - An initialiser that suspends. Another fiber of the thread may initialise the value meanwhile and use it. Then the first one replaces it.
//! - A reference to the value, lent by `with`, in a fiber that ends after the thread has dropped the value. Only the fibers of an
//!   [`embed::Local`] that is itself in a thread-local can.
//!
//! # Where a call may be made
//!
//! | caller | a call that has to wait |
//! |---|---|
//! | fiber | suspends it |
//! | plain thread, panic hook | blocks the thread |
//! | worker, but not on a fiber (a callback, a waker) | fails with `WouldBlock`, or panics if it has no `io::Error` |
//! | [coroutine](coro::Coroutine) that a fiber resumes, or any other stack that is not the fiber's own | the same: the frames there may go on under another fiber |
//!
//! # Cancellation
//!
//! [`JoinHandle::cancel`], [`timeout`], [`shield`] and [`Cancelled`] say how. Cancellation needs `panic = "unwind"`.
//!
//! # Modules
//!
//! | modules | what they are for |
//! |---|---|
//! | [`net`], [`fs`], [`process`], [`signal`], [`io`], [`time`], [`sync`] | std's names and tokio's locks and channels, suspending |
//! | [`fiber`], [`future`], [`select`](mod@select) | starting fibers and tasks, waiting for several things |
//! | [`dormant`] | connections that hold no stack while they are idle |
//! | [`pubsub`] | topics with a queue for each subscriber |
//! | [`adapters`], [`callbacks`], [`embed`] | futures libraries, code in callbacks, somebody else's loop |
//! | [`inspect`] | dump, watchdog, metrics |
//! | [`memory`] | accounts of what peers make a program hold, and a limit for it |
//!
//! # Features
//!
//! All are on by default but those of the last five rows. Sockets, fibers, tasks, time, [`sync::Event`] and [`sync::Mailbox`] need none.
//!
//! | feature | gives |
//! |---|---|
//! | `adapters`, `callbacks`, `embed`, `inspect`, `process`, `pubsub`, `signal` | the module of that name |
//! | `fs` | [`fs`], [`io::sendfile`], [`io::splice`] |
//! | `sync` | locks and channels, [`fiber::JoinSet`] |
//! | `datagrams` | [`net::UdpSocket`], [`net::UnixDatagram`] |
//! | `descriptors` | [`io::ready`] and its like, [`io::Async`], [`sync::EventFd`] |
//! | `backtrace` | the functions that each fiber is in, in a dump |
//! | `pin` | [`Builder::pin`] |
//! | `portable` | the second poller on Linux |
//! | `sanitizer` | AddressSanitizer is told of every switch of stacks: for builds with `-Zsanitizer=address` |
//! | `macros` | the attributes `main` and `test` |
//! | `sim` | simulated hosts, for tests |
//! | `hyper`, `tokio-io` | the traits of these libraries on streams |
//! | `tokio-rt` | futures that need a tokio runtime |
//!
//! # Systems
//!
//! On Linux the workers use epoll(7), edge-triggered. With the feature `portable` and the environment variable
//! `OSIER_DRIVER=portable` they use the poller of the `polling` crate, one-shot and level-triggered, as on other
//! systems. The tests run on that poller too, on Linux, over epoll and over poll(2). FreeBSD and macOS, and so
//! kqueue, have their types checked; nothing has run there. The differences:
//!
//! - A wait costs a system call more, to arm the descriptor, and with poll(2) a duplicate of it.
//! - A peer that has ended its direction looks like one that sends, until somebody reads. So code that watches for its
//!   end ([`io::while_connected`]) meets the end only when nothing is unread.
//! - `peek` behind an urgent byte that nothing follows looks again and again, with other fibers in between, until
//!   something follows.
//! - Where a system has nothing but poll(2), [`Builder::build_local`] is refused: its poller has no descriptor of its own.
#![deny(unsafe_code)]
#![cfg_attr(
    not(all(
        feature = "adapters",
        feature = "callbacks",
        feature = "datagrams",
        feature = "descriptors",
        feature = "embed",
        feature = "fs",
        feature = "inspect",
        feature = "pin",
        feature = "process",
        feature = "pubsub",
        feature = "signal",
        feature = "sync"
    )),
    allow(
        rustdoc::broken_intra_doc_links,
        rustdoc::private_intra_doc_links,
        reason = "the items of a feature that is off are not there"
    )
)]

#[cfg(not(panic = "unwind"))]
compile_error!("osier cancels fibers by unwinding: build with panic = \"unwind\"");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("osier packs its wakers into 64-bit pointers");

#[cfg(feature = "adapters")]
pub mod adapters;
#[cfg(feature = "callbacks")]
pub mod callbacks;
pub mod dormant;
pub mod fiber;
#[cfg(feature = "fs")]
pub mod fs;
pub mod future;
#[cfg(feature = "inspect")]
pub mod inspect;
pub mod io;
pub mod net;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "pubsub")]
pub mod pubsub;
mod runtime;
pub mod select;
#[cfg(feature = "signal")]
pub mod signal;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sync;
pub mod time;
// Features that are off leave parts of the scheduler without a caller.
#[cfg_attr(not(feature = "default"), allow(dead_code))]
mod wait;
#[cfg_attr(not(feature = "default"), allow(dead_code))]
mod worker;

pub use crate::runtime::memory;
pub use osier_coro as coro;
pub use osier_poll as poll;

pub use fiber::scope::{Scope, ScopedJoinHandle, scope};
pub use fiber::try_scope::{TryScope, try_scope};
pub use fiber::{spawn, spawn_local, workers, yield_now};
pub use future::{Task, spawn_future, spawn_future_local};
#[cfg(feature = "inspect")]
pub use inspect::{dump, dump_on_sigquit};
/// Runs `main` on a fiber of a new runtime, with one worker per core or `#[osier::main(workers = 4)]`.
///
/// ```
/// #[osier::main]
/// fn main() -> std::io::Result<()> {
///     osier::sleep(std::time::Duration::from_millis(1));
///     Ok(())
/// }
/// ```
#[cfg(feature = "macros")]
pub use osier_macros::main;
/// Makes a test whose function runs on a fiber of a new runtime, with one worker or `#[osier::test(workers = 4)]`.
///
/// ```
/// #[osier::test(virtual_clock)]
/// fn an_hour_passes() {
///     let began = osier::time::now();
///     osier::sleep(std::time::Duration::from_secs(3600));
///     assert!(osier::time::now() - began >= std::time::Duration::from_secs(3600));
/// }
/// # fn main() {}
/// ```
#[cfg(feature = "macros")]
pub use osier_macros::test;
#[cfg(feature = "embed")]
pub use runtime::embed;
pub use runtime::handle::{Ended, Handle};
pub use runtime::{Builder, Runtime, run};
pub use select::{race, race_async, wait_all, wait_all_async, wait_any, wait_any_async, wait_any_until};
pub use time::sleep;
pub use wait::block_on::{block_on, unblock, unblock_async};
pub use wait::cancel::{Cancelled, Elapsed, shield, timeout};
pub use worker::affinity::available_parallelism;
pub use worker::packet::JoinHandle;
pub use worker::random::random;

/// The program of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
