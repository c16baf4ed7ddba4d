//! A coroutine runtime: network code is written the plain blocking way and runs at event-loop speed.
//!
//! A connection is a *fiber* with a stack of its own, as a goroutine is in Go. Calls have std's names and need no `.await`. A worker thread
//! per core runs the fibers over one poller.
//!
//! It is for servers and clients that wait a lot. Programs that compute and never wait need threads instead. Programs whose libraries are
//! all futures of tokio are better off with tokio, though [`adapters`] runs them. It runs on Linux. It does not build for Windows: use WSL 2
//! or a container there.
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
//! A fiber is cancelled by [`JoinHandle::cancel`], [`Scope::cancel`], the drop of its [`JoinSet`](fiber::JoinSet), and the end of its
//! runtime. A part of it is cancelled by a [`timeout`], a [`sync::Interrupt`] or [`io::while_connected`] around that part. The next call that
//! can wait, even if it need not, fails with [`Cancelled`] if it returns an [`std::io::Error`]. Otherwise, and at every later call, the fiber
//! unwinds, so destructors run. [`shield`] defers that. Nothing interrupts a computation, or a call that never waits.
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
//! | `sim` | hosts, a network, disks, time and faults from one seed, for tests (feature `sim`) |
//! | [`coro`], [`poll`] | the crates `osier-coro` and `osier-poll`: coroutines and the poller, without this runtime |
//!
//! # Names that you know
//!
//! A search on this page finds these names, too. Each method that waits has a twin with `_async` in its name, for futures.
//!
//! | in tokio, std, crossbeam or Go | here |
//! |---|---|
//! | `tokio::spawn`, `go` | [`spawn`] for a function, [`spawn_future`] for a future. Dropping the handle detaches in both |
//! | `LocalSet`, `spawn_local` | [`spawn_local`], [`spawn_future_local`]: every worker can, without a set |
//! | `spawn_blocking`, `block_in_place` | [`unblock`], [`unblock_async`]. They wait: `spawn(\|\| unblock(work))` gives a handle |
//! | `AbortHandle`, `JoinHandle::abort` | [`JoinHandle::cancel`], [`Task::cancel`] |
//! | `JoinSet`, `TaskTracker`, `WaitGroup` | [`fiber::JoinSet`], or [`scope`] for fibers that borrow |
//! | `errgroup`, `try_join!` | [`try_scope`] |
//! | `CancellationToken`, `context.Context` | [`sync::Interrupt`], which cancels code inside of it; [`sync::Event::manual`] to wait for |
//! | `timeout`, `timeout_at` | [`timeout`]; the arms `timeout` and `until` of [`select!`] |
//! | `select!`, `select` | [`select!`]. Patterns must match whatever comes; no `else` arm: `default` runs when none is ready |
//! | `join!`, `join_all`, `FuturesUnordered` | [`join!`], [`wait_all`], [`wait_any`] |
//! | `sleep_until`, `interval`, `time.Ticker` | [`time::sleep_until`], [`time::interval`]. Missed ticks are skipped, as with `MissedTickBehavior::Skip` |
//! | `time::pause`, `advance` | [`time::VirtualClock`], `#[osier::test(virtual_clock)]` |
//! | `mpsc`, `unbounded_channel`, `sync_channel` | [`sync::mpsc`]: `channel(bound)`, `unbounded()`. Errors say `Disconnected`, as std's, not `Closed` |
//! | `crossbeam_channel`, `flume`, `chan` | [`sync::mpmc`] |
//! | `broadcast`, `watch`, `oneshot` | [`sync::broadcast`], [`sync::watch`], [`sync::oneshot`]; [`pubsub`] has a queue and a policy for each subscriber |
//! | `Notify::notified`, `notify_waiters` | [`sync::Notify`]: `wait_async`, `notify_all` |
//! | `Semaphore`, `Barrier`, `OnceCell`, `LazyLock` | [`sync::Semaphore`], [`sync::Barrier`], [`sync::OnceCell`], [`sync::Lazy`] |
//! | `thread_local!`, `task_local!` | [`fiber_local!`], [`task_local!`]: with an initial value, as std's; there is no `scope` |
//! | `split`, `into_split` | `&TcpStream` reads and writes; [`try_clone`](net::TcpStream::try_clone) for two owners |
//! | `copy`, `copy_bidirectional` | [`std::io::copy`]; [`io::relay`], which has an idle limit |
//! | `BufReader`, `BufWriter`, `codec::Framed` | those of std, around a stream: [`io`](io#buffers-and-codecs) |
//! | `lookup_host`, `net.LookupHost` | [`net::ToSocketAddrs`], whose lookups suspend |
//! | `from_std`, `into_std` | `From` and `Into`, in both directions |
//! | `io::stdin` | std's, in [`unblock`] |
//! | `TcpSocket`, `net.Dialer` | [`TcpStream::connect_with`](net::TcpStream::connect_with), [`connect_within`](net::TcpStream::connect_within); listeners [by `From`](net#sockets-with-options-of-their-own) |
//! | `AsyncFd` | [`io::Async`], [`io::ready`] |
//! | `runtime::Builder`, `Handle`, `block_on` | [`Runtime::builder`], [`Handle`], [`Runtime::run`], [`block_on`] |
//! | `shutdown_timeout` | [`Builder::shutdown_timeout`]: the drop of the runtime waits so long |
//! | `tokio-console`, `pprof/goroutine` | [`dump()`], [`dump_on_sigquit`] |
//!
//! # Graceful shutdown
//!
//! A server that stops at SIGTERM accepts no more connections, ends those that are idle, and gives the others five seconds:
//!
//! ```
//! use osier::fiber::JoinSet;
//! use osier::net::{TcpListener, TcpStream};
//! use osier::signal::{Signal, Signals};
//! use osier::sync::Interrupt;
//! use std::io::{self, BufRead, BufReader, Write};
//! use std::time::Duration;
//!
//! fn answer(stream: TcpStream, stop: &Interrupt) -> io::Result<()> {
//!     stream.set_read_timeout(Some(Duration::from_secs(60)))?; // between two lines
//!     let mut reader = BufReader::new(&stream);
//!     let mut line = String::new();
//!     // The interrupt ends the wait for a line, and not the answer to one.
//!     while let Ok(count) = stop.guard(|| reader.read_line(&mut line)) {
//!         if count? == 0 {
//!             break;
//!         }
//!         (&stream).write_all(line.to_uppercase().as_bytes())?;
//!         line.clear();
//!     }
//!     Ok(())
//! }
//!
//! fn serve(listener: TcpListener) -> io::Result<()> {
//!     let signals = Signals::new([Signal::TERM, Signal::INT])?;
//!     let stop = Interrupt::new();
//!     let mut connections = JoinSet::new();
//!     loop {
//!         osier::select! {
//!             accepted = listener.accept_async() => match accepted {
//!                 Ok((stream, _)) => {
//!                     let stop = stop.clone();
//!                     connections.spawn(move || answer(stream, &stop));
//!                 }
//!                 // Too many open files, for example.
//!                 Err(_) => osier::sleep(Duration::from_millis(100)),
//!             },
//!             _ended = connections.join_next_async(), if !connections.is_empty() => {}
//!             signal = signals.recv_async() => {
//!                 println!("stopping at {:?}", signal?);
//!                 break;
//!             }
//!         }
//!     }
//!     drop(listener);
//!     stop.set();
//!     let all_end = || while connections.join_next().is_some() {};
//!     let _ = osier::timeout(Duration::from_secs(5), all_end);
//!     Ok(()) // The drop of the set cancels the connections that are left.
//! }
//! # osier::run(|| -> io::Result<()> {
//! #     let listener = TcpListener::bind("127.0.0.1:0")?;
//! #     let address = listener.local_addr()?;
//! #     let server = osier::spawn(move || serve(listener));
//! #     let mut client = BufReader::new(TcpStream::connect(address)?);
//! #     client.get_mut().write_all(b"hello\n")?;
//! #     let mut line = String::new();
//! #     client.read_line(&mut line)?;
//! #     assert_eq!(line, "HELLO\n");
//! #     osier::process::Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status()?;
//! #     assert_eq!(client.read_line(&mut line)?, 0);
//! #     server.join().unwrap()
//! # }).unwrap();
//! ```
//!
//! # Features
//!
//! A library turns the default off and names what it needs. All are on by default but those of the last five rows. Sockets, fibers, tasks, time, [`sync::Event`] and [`sync::Mailbox`] need none.
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
//! # Crates beside it
//!
//! | crate | gives |
//! |---|---|
//! | [osier-web](https://docs.rs/osier-web) | a web framework of plain blocking handlers |
//! | [osier-tls](https://docs.rs/osier-tls) | TLS around the streams of [`net`], on rustls |
//! | [osier-ureq](https://docs.rs/osier-ureq) | the HTTP client ureq, whose calls suspend the fiber |
//! | [osier-postgres](https://docs.rs/osier-postgres) | PostgreSQL, with a pool of connections |
//! | [osier-tracing](https://docs.rs/osier-tracing) | spans of tracing that stay with their fiber |
//! | [osier-http](https://docs.rs/osier-http), [osier-coro](https://docs.rs/osier-coro), [osier-poll](https://docs.rs/osier-poll), [osier-queue](https://docs.rs/osier-queue) | the parts: codecs without I/O, coroutines, the poller, queues |
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
//!
//! # Requirements and promises
//!
//! - **Rust** 1.95. Only a minor release raises it.
//! - **Systems**: every test runs on Linux on x86-64, and those of this crate on AArch64, too, in an emulator. It does not build for
//!   Windows, for 32-bit systems, or with `panic = "abort"`.
//! - **Versions**: before 1.0 a minor release may break the API, a patch release does not. The changelog names each change.
//! - **`unsafe`** is denied, except in a few files for wakers, stacks, scopes and system calls. Each states its invariant. Models (loom), miri and
//!   valgrind check them as far as they can. `osier-web`, `osier-http` and `osier-tls` forbid it.
//! - **Dependencies**: about 30 crates with the default features, 20 without. None needs a C compiler.
//! - **Panics** of a fiber end that fiber alone, and `join` returns the payload.
//! - **Fairness**: a fiber keeps its worker until it waits. Long computations call [`fiber::give_way`], or go to [`unblock`].
//! - **Licence**: MIT or Apache-2.0.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
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
#[doc(alias("task", "thread"))]
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
#[doc(inline)]
pub use fiber::{spawn, spawn_local, workers, yield_now};
#[doc(inline)]
pub use future::{Task, spawn_future, spawn_future_local};
#[cfg(feature = "inspect")]
#[doc(inline)]
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
#[doc(inline)]
pub use select::{race, race_async, wait_all, wait_all_async, wait_any, wait_any_async, wait_any_until};
#[doc(inline)]
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
