//! The report of a stack overflow.
//!
//! A coroutine that outgrows its stack touches the guard below it, and the kernel sends SIGSEGV. If the address lies in a guard of a
//! stack here, the handler reports the fiber and the setting to raise, and aborts. Every other fault goes to the previous handler. The
//! handler runs on the thread's alternative signal stack, because the coroutine's own is full.
//!
//! Every thread that runs coroutines must call [`install_for_thread`]; `Pool::new` and `Stack::new` do it.
//!
//! # Safety
//!
//! This file is an unsafe island: it installs signal handlers and signal stacks, and runs as a handler. The handler only reads
//! atomics (of `slots.rs`, `PREVIOUS` and `DESCRIBE`), formats into a buffer on its stack, and calls write(2), alarm, signal,
//! pthread_sigmask, raise and abort, or the previous handler. It neither locks nor allocates. Last, code of the program describes the coroutine. That code may do more than a handler may:
//! a fault in it ends the process, and so does an alarm after a second.
#![allow(unsafe_code)]

use crate::slots::{GUARD_BYTES, Label, overflowed_slot};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::io;
use std::mem;
use std::ptr;
use std::sync::OnceLock;

/// The signals of a fault: one or the other, by platform.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Bytes that the handler needs on a signal stack besides the kernel's own frame.
const HANDLER_BYTES: usize = 12 * 1024;

const RAISE: &str =
    "raise stack_bytes: of this fiber's builder, of the route of a request, or of the runtime for all fibers";

/// The previous action of each of `SIGNALS`. It is set before the handler is installed, so the handler finds it.
static PREVIOUS: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];

/// Writes what the coroutine of this thread is doing.
type Describe = fn(&mut dyn Write) -> fmt::Result;

static DESCRIBE: OnceLock<Describe> = OnceLock::new();

/// Adds the output of `describe` to each report: what the coroutine was doing. Only the first call has an effect. `describe` runs on the
/// signal stack of the thread whose coroutine has overflowed, after the rest of the report was written. It should neither lock nor
/// allocate, or its output may be missing.
pub fn describe_by(describe: fn(&mut dyn Write) -> fmt::Result) {
    let _ = DESCRIBE.set(describe);
}

thread_local! {
    static SIGNAL_STACK: OnceCell<SignalStack> = const { OnceCell::new() };
}

/// Prepares this thread to report stack overflows. It gives the thread an alternative signal stack, unless it has a large enough one,
/// and installs the process's handler once. The signal stack is freed when the thread ends. A repeated call costs a nanosecond.
///
/// It also unblocks SIGSEGV and SIGBUS in this thread: the kernel kills a thread that blocks them and faults, and calls no handler. A
/// SIGSEGV handler that the program installs later disables the report, unless it calls the previous handler for faults that are not its
/// own.
///
/// # Errors
///
/// The error of `sigaltstack`, `sigaction` or the mapping of the signal stack.
#[inline]
pub fn install_for_thread() -> io::Result<()> {
    match SIGNAL_STACK.try_with(|stack| stack.get().is_some()) {
        Ok(false) => install_slow(),
        // During the thread's destructors the signal stack may be gone. Then nothing can be installed any more.
        Ok(true) | Err(_) => Ok(()),
    }
}

#[cold]
fn install_slow() -> io::Result<()> {
    static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
    unblock(&SIGNALS);
    let installed = HANDLER.get_or_init(|| install_handler().map_err(|e| e.raw_os_error().unwrap_or(libc::EINVAL)));
    installed.map_err(io::Error::from_raw_os_error)?;
    let stack = SignalStack::new()?;
    // Set already only if a signal handler ran in between and called this too. Then the second stack is dropped and freed.
    let _ = SIGNAL_STACK.try_with(|cell| cell.set(stack));
    Ok(())
}

/// Takes signals out of this thread's mask. A program with a thread for signals blocks them all in the others.
fn unblock(signals: &[c_int]) {
    // SAFETY: all zero is a valid sigset_t, and the calls change this set and the mask of this thread. They are safe in a handler.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

fn install_handler() -> io::Result<()> {
    for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
        let mut action = current_action(signal)?;
        let _ = previous.set(action);
        // The mask and flags of the previous handler are kept, so that it runs as it expects when it is called from here.
        action.sa_flags &= libc::SA_NODEFER | libc::SA_RESTART;
        action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
        action.sa_sigaction = handler as usize;
        // SAFETY: the handler is async-signal-safe (module "Safety") and has the signature SA_SIGINFO asks for.
        check(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) })?;
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Positive codes come from the kernel. A SIGSEGV sent by kill(2) has no address.
    let from_fault = code > 0;
    match overflowed_slot(address) {
        Some((top, stack_bytes)) if from_fault => report(top, stack_bytes),
        _ => call_previous(signal, info, context, from_fault),
    }
}

fn report(top: usize, stack_bytes: usize) -> ! {
    // SAFETY: `overflowed_slot` answers only for carved slots.
    let label = unsafe { Label::of(top) };
    let mut name = [0; 48];
    let mut text = Text {
        bytes: [0; 1024],
        len: 0,
    };
    // Formatting integers and strings neither locks nor allocates. A text that is too long is cut.
    let name = str::from_utf8(label.name(&mut name)).unwrap_or_default();
    // A runtime labels the stacks of its fibers.
    let (_, remedy) = match (label.place(), name) {
        (None, _) => (write!(text, "\na coroutine"), "give its Stack::new more bytes"),
        (Some(place), "") => (write!(text, "\nunnamed fiber, spawned at {place},"), RAISE),
        (Some(place), name) => (write!(text, "\nfiber '{name}', spawned at {place},"), RAISE),
    };
    let _ = writeln!(
        text,
        " has overflowed its stack of {stack_bytes} bytes, {GUARD_BYTES} of them guard\n{remedy}"
    );
    text.print();
    if let Some(describe) = DESCRIBE.get() {
        // SAFETY: SIG_DFL is no function, and SIGNALS and SIGALRM are signals of the system, so the kernel runs no code of ours for them.
        // From here on a fault, or a lock that is held, ends the process.
        unsafe {
            // This discards one that is pending.
            libc::signal(libc::SIGALRM, libc::SIG_IGN);
            for signal in SIGNALS.into_iter().chain([libc::SIGALRM]) {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        unblock(&[libc::SIGALRM]);
        // SAFETY: a plain call.
        unsafe { libc::alarm(1) };
        text.len = 0;
        let _ = describe(&mut text);
        text.print();
    }
    // SAFETY: plain calls. An abort handler of the program must not run on top of a broken stack.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::abort()
    }
}

/// Handles a fault outside of the guards as it would be handled without this handler.
fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, from_fault: bool) {
    let index = usize::from(signal != SIGNALS[0]);
    let Some(previous) = PREVIOUS[index].get() else { return };
    match previous.sa_sigaction {
        libc::SIG_IGN if !from_fault => {}
        // The kernel does not let a fault be ignored: it kills the process, as by default.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: plain calls. A fault happens again when we return and then kills; a sent signal is sent once more, and is held
            // back until we return.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !from_fault {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            if previous.sa_flags & libc::SA_RESETHAND != 0 {
                // SAFETY: a plain call: the handler asked to be called once only.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            // SAFETY: `handler` is a function of the kind its SA_SIGINFO flag says, installed by the program for this signal, and gets
            // what the kernel gave us.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                    mem::transmute::<usize, Full>(handler)(signal, info, context);
                } else {
                    mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
                }
            }
        }
    }
}

fn current_action(signal: c_int) -> io::Result<libc::sigaction> {
    // SAFETY: all zero is a valid sigaction, and the call fills it.
    unsafe {
        let mut action = mem::zeroed();
        check(libc::sigaction(signal, ptr::null(), &mut action))?;
        Ok(action)
    }
}

/// A thread's alternative signal stack: the one that it had, or a new one with a guard page below it.
struct SignalStack {
    /// Start and length of the mapping. None for a stack that the thread had.
    own: Option<(*mut c_void, usize)>,
}

impl SignalStack {
    fn new() -> io::Result<SignalStack> {
        let needed = frame_bytes() + HANDLER_BYTES;
        let current = current_stack()?;
        // std gives its threads a signal stack. It is large enough unless the CPU has very large registers.
        if current.ss_flags & libc::SS_DISABLE == 0 && current.ss_size >= needed {
            return Ok(SignalStack { own: None });
        }
        let page = rustix::param::page_size();
        // Room for the previous handlers too.
        let bytes = (needed + 32 * 1024).next_multiple_of(page);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping; its first page is made inaccessible before anything points to it.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), page + bytes, access, flags)? };
        let stack = SignalStack {
            own: Some((start, page + bytes)),
        };
        let ours = libc::stack_t {
            ss_sp: start.wrapping_byte_add(page),
            ss_flags: 0,
            ss_size: bytes,
        };
        // SAFETY: `ours` describes memory that stays mapped until `drop` has taken it back from the kernel.
        unsafe {
            mm::mprotect(start, page, MprotectFlags::empty())?;
            check(libc::sigaltstack(&ours, ptr::null_mut()))?;
        }
        Ok(stack)
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        let Some((start, bytes)) = self.own else { return };
        let ours = |current: &libc::stack_t| current.ss_sp == start.wrapping_byte_add(rustix::param::page_size());
        let none = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: libc::SIGSTKSZ,
        };
        // SAFETY: the mapping is ours, and the kernel no longer uses it once another or no stack is installed. Were that to
        // fail, it would be leaked.
        unsafe {
            if current_stack().is_ok_and(|c| !ours(&c) || libc::sigaltstack(&none, ptr::null_mut()) == 0) {
                let _ = mm::munmap(start, bytes);
            }
        }
    }
}

fn current_stack() -> io::Result<libc::stack_t> {
    // SAFETY: all zero is a valid stack_t, and the call fills it.
    unsafe {
        let mut current = mem::zeroed();
        check(libc::sigaltstack(ptr::null(), &mut current))?;
        Ok(current)
    }
}

/// Bytes that the kernel writes on a signal stack. They depend on the CPU's registers.
fn frame_bytes() -> usize {
    #[cfg(target_os = "linux")]
    let bytes = rustix::param::linux_minsigstksz();
    #[cfg(not(target_os = "linux"))]
    let bytes = 0;
    bytes.max(libc::MINSIGSTKSZ)
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Text in a fixed buffer. The part that does not fit is dropped: `len` is at most the length of `bytes`.
struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl Text {
    fn print(&self) {
        // SAFETY: the first `len` bytes are inside the array, because only `write_str` adds to `len`, and never more than fits.
        unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let n = s.len().min(room.len());
        room[..n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}
