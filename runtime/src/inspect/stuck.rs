//! A look at a thread that is stuck: where it is, what its fiber does, and which lock it waits for.
//!
//! The watchdog sends SIGURG to the thread (the signal that a program otherwise ignores). The handler runs on the
//! stuck thread, notes its return addresses and the words of [`describe`](crate::fiber::describe) in [`POST`], and says
//! that it is done. The watchdog finds the names, on its own thread.
//!
//! ```text
//!   watchdog: POST.target = thread ── SIGURG ──▶ handler: POST.frames, POST.text, POST.done = true ──▶ watchdog
//! ```
//!
//! A std lock has no owner that anybody could ask for. But a guard is a reference to its lock, and a fiber that holds
//! one across a suspension has it on its stack. So the watchdog asks the kernel which futex the thread waits for, and
//! looks for the address on the stacks of the worker's other fibers, through `/proc/self/mem`, which cannot fault. It reads
//! each stack from where its fiber has suspended. Below lie the remains of calls that have returned, and of their guards.
//!
//! # Safety
//!
//! This file may use `unsafe` to register the handler and to send the signal. The handler reads atomics and the stack that
//! it runs on, walks that stack without a lock (`trace_unsynchronized`: nobody else walks this thread's stack), and
//! neither allocates nor locks. `POST` has one writer at a time: the thread that `target` names. The watchdog reads it
//! after `done` (release, acquire) and sets the next target only then or when it has given up on this one; a handler
//! that comes too late finds another target and does nothing.
#![allow(unsafe_code)]

use std::fmt::{self, Write};
#[cfg(target_os = "linux")]
use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use osier_coro::stack;

use super::frames::{StackFrame, Symbols};
use crate::worker::context;
use crate::worker::core::Core;
use crate::worker::remote::Remote;

/// The stack space that the handler needs: the unwinder's own frames take some kilobytes.
const ROOM_BYTES: usize = 24 * 1024;
const FRAMES: usize = 64;
const TEXT_BYTES: usize = 256;
/// How long the thread has to answer: 100 looks, a millisecond apart.
const LOOKS: u32 = 100;
/// The most of a fiber's stack in which a guard is looked for, from where the fiber has suspended.
const SEARCHED_BYTES: usize = 256 * 1024;
/// The registers that a switch pushes below the suspended fiber's stack pointer.
const SWITCH_BYTES: usize = 64;
/// The most slots whose fibers are searched.
const SEARCHED_SLOTS: u32 = 4096;
/// A reference to a lock lies at most so far before the lock's futex.
const LOCK_BYTES: usize = 64;

struct Post {
    target: AtomicI32,
    frames: [AtomicUsize; FRAMES],
    framed: AtomicUsize,
    text: [AtomicU8; TEXT_BYTES],
    texted: AtomicUsize,
    done: AtomicBool,
}

static POST: Post = Post {
    target: AtomicI32::new(0),
    frames: [const { AtomicUsize::new(0) }; FRAMES],
    framed: AtomicUsize::new(0),
    text: [const { AtomicU8::new(0) }; TEXT_BYTES],
    texted: AtomicUsize::new(0),
    done: AtomicBool::new(false),
};

/// The answer of a stuck thread.
#[derive(Default)]
pub(super) struct Stuck {
    /// The words of its fiber.
    pub(super) doing: Option<String>,
    /// Its return addresses, the innermost first.
    addresses: Vec<usize>,
}

impl Stuck {
    /// Its backtrace, the innermost frame first. Finding the names may take a second in a program with much debug
    /// information.
    pub(super) fn frames(&self) -> Vec<StackFrame> {
        Symbols::new().interrupted(&self.addresses)
    }
}

/// Registers the handler, once.
pub(super) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the action is async-signal-safe; see the module.
        let registered = unsafe { signal_hook_registry::register(rustix::process::Signal::URG.as_raw(), note) };
        // Without the handler the reports have no backtrace.
        drop(registered);
    });
}

/// The kernel's number of the calling thread.
pub(super) fn thread_id() -> i32 {
    #[cfg(target_os = "linux")]
    return rustix::thread::gettid().as_raw_nonzero().get();
    #[cfg(not(target_os = "linux"))]
    0
}

/// Asks the thread where it is. Only the watchdog's thread calls this.
pub(super) fn look(thread: i32) -> Stuck {
    POST.done.store(false, Ordering::Relaxed);
    POST.target.store(thread, Ordering::Release);
    signal(thread);
    let answered = (0..LOOKS).any(|_| {
        thread::sleep(Duration::from_millis(1));
        POST.done.load(Ordering::Acquire)
    });
    POST.target.store(0, Ordering::Release);
    if !answered {
        return Stuck::default();
    }
    let text = &POST.text[..POST.texted.load(Ordering::Relaxed).min(TEXT_BYTES)];
    let text: Vec<u8> = text.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
    let frames = &POST.frames[..POST.framed.load(Ordering::Relaxed).min(FRAMES)];
    Stuck {
        doing: Some(String::from_utf8_lossy(&text).into_owned()).filter(|text| !text.is_empty()),
        addresses: frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect(),
    }
}

#[cfg(target_os = "linux")]
fn signal(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill(2) takes three numbers. A thread that has ended gets nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
}

#[cfg(not(target_os = "linux"))]
fn signal(_: i32) {}

/// The handler, on the stuck thread.
fn note() {
    let thread = thread_id();
    if thread == 0 || POST.target.load(Ordering::Acquire) != thread || POST.done.load(Ordering::Relaxed) {
        return;
    }
    let extent = stack::extent();
    let has_room = extent.as_ref().is_none_or(|extent| extent.left_bytes >= ROOM_BYTES);
    POST.framed.store(0, Ordering::Relaxed);
    POST.texted.store(0, Ordering::Relaxed);
    if has_room {
        trace(extent.map(|extent| extent.used_bytes));
        // The words are data, so none of the application's code runs here. An error means that they were cut.
        let _ = context::running(|core| write!(Text, "{}", Words(core)));
    }
    POST.done.store(true, Ordering::Release);
}

#[cfg(not(feature = "backtrace"))]
fn trace(_: Option<usize>) {}

#[cfg(feature = "backtrace")]
fn trace(used_bytes: Option<usize>) {
    let variable = 0u8;
    let here = std::hint::black_box(&raw const variable).addr();
    // SAFETY: this thread alone walks its stack, and the handler is not entered again while it runs.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let at = POST.framed.load(Ordering::Relaxed);
            let Some(place) = POST.frames.get(at) else { return false };
            place.store(frame.ip().addr(), Ordering::Relaxed);
            POST.framed.store(at + 1, Ordering::Relaxed);
            // Behind the fiber's first frame comes the stack of the worker.
            let sp = frame.sp().addr();
            used_bytes.is_none_or(|used| sp < here || sp - here < used)
        });
    }
}

/// Writes into the post.
struct Text;

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let at = POST.texted.load(Ordering::Relaxed);
            let place = POST.text.get(at).ok_or(fmt::Error)?;
            place.store(byte, Ordering::Relaxed);
            POST.texted.store(at + 1, Ordering::Relaxed);
        }
        Ok(())
    }
}

struct Words<'a, 'c>(&'a Core<'c>);

impl fmt::Display for Words<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hooks.description().map_or(Ok(()), |work| work.fmt(f))
    }
}

/// The fibers of `remote`, besides `running`, on whose stacks there is a reference to the lock that its thread waits for,
/// as ids. Empty if the thread waits for no lock, or on other systems than Linux.
pub(super) fn holders(remote: &Remote, thread: i32, running: u64) -> Vec<(u64, String)> {
    let Some(futex) = futex(thread) else {
        return Vec::new();
    };
    let Ok(memory) = File::open("/proc/self/mem") else {
        return Vec::new();
    };
    let word = |address: usize| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address as u64).ok()?;
        Some(usize::from_ne_bytes(bytes))
    };
    // `place` is the address of the fiber's stack pointer, unless the fiber has ended meanwhile or has not started.
    let refers = |place: usize| {
        let Some(end) = stack::end(place) else { return false };
        let Some(suspended) = word(place).filter(|at| stack::end(*at) == Some(end)) else {
            return false;
        };
        let start = (suspended - SWITCH_BYTES) / 8 * 8;
        let mut bytes = vec![0; (end - start).min(SEARCHED_BYTES)];
        memory.read_exact_at(&mut bytes, start as u64).is_ok()
            && bytes
                .chunks_exact(8)
                .map(|word| usize::from_ne_bytes(word.try_into().expect("eight bytes")))
                .any(|word| word <= futex && futex - word <= LOCK_BYTES)
    };
    let slots = (0..SEARCHED_SLOTS).map_while(|index| remote.slot(index));
    slots
        .filter(|slot| slot.is_occupied())
        .filter_map(|slot| slot.tenant().map(|(id, label)| (id, slot, label)))
        .filter(|(id, slot, _)| *id != running && refers(slot.stack.load(Ordering::Relaxed)))
        .map(|(id, _, label)| {
            let mut name = [0; 48];
            let name = String::from_utf8_lossy(label.name(&mut name)).into_owned();
            let name = if name.is_empty() { name } else { format!(" '{name}'") };
            let place = label
                .place()
                .map(|place| format!(" spawned at {place}"))
                .unwrap_or_default();
            (id, name + &place)
        })
        .collect()
}

/// The address of the futex that the thread waits for.
#[cfg(target_os = "linux")]
fn futex(thread: i32) -> Option<usize> {
    let line = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).ok()?;
    let mut words = line.split_ascii_whitespace();
    let call: libc::c_long = words.next()?.parse().ok()?;
    let address = words.next()?.strip_prefix("0x")?;
    usize::from_str_radix(address, 16)
        .ok()
        .filter(|_| call == libc::SYS_futex)
}

#[cfg(not(target_os = "linux"))]
fn futex(_: i32) -> Option<usize> {
    None
}
