//! Stack overflows end in a report; other faults go where they went before. Each in a child process.

use crate::child;
use osier_coro::stack::{Config, GUARD_BYTES, Guard, MIN_STACK_BYTES, Pool};
use osier_coro::{Coroutine, Stack, overflow};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::Location;
use std::process::Output;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Runs `test` as a child in `role` and returns its end and what it said on stderr.
fn end_of(test: &str, role: &str) -> (Option<i32>, String, Output) {
    let out = child::run(test, role);
    (
        out.status.signal(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
        out,
    )
}

/// Runs `f` on a labelled stack.
fn on_fiber<F: FnOnce() + 'static>(pool: &Pool, name: Option<&str>, place: &'static Location<'static>, f: F) {
    let stack = pool.take(None).unwrap();
    stack.label(place, name);
    Coroutine::<(), (), ()>::new(stack, |_, ()| f()).resume(());
}

fn recurse(depth: usize) -> usize {
    let frame = std::hint::black_box([depth; 64]);
    if depth == usize::MAX {
        0
    } else {
        recurse(depth + 1) + frame[depth % 64]
    }
}

fn assert_report(test: &str, role: &str, parts: &[&str]) {
    let (signal, err, out) = end_of(test, role);
    assert_eq!(signal, Some(libc::SIGABRT), "{out:?}");
    for part in parts {
        assert!(err.contains(part), "no {part:?} in {err}");
    }
    assert!(!err.contains("returned"), "{err}");
}

#[test]
fn rust_recursion_is_reported() {
    if child::is_child("recursion") {
        let pool = Pool::new(Config::default()).unwrap();
        on_fiber(&pool, Some("deep reader"), Location::caller(), || {
            eprintln!("returned {}", recurse(0))
        });
    }
    let place = format!("spawned at {}:", file!());
    let parts = [
        "fiber 'deep reader'",
        &place,
        "262144 bytes, 65536 of them guard",
        "raise stack_bytes",
    ];
    assert_report("rust_recursion_is_reported", "recursion", &parts);
}

#[test]
fn an_unnamed_fiber_on_a_bare_thread_with_mprotect_guards_is_reported() {
    if child::is_child("mprotect") {
        // A thread that std did not start has no signal stack of its own.
        extern "C" fn main(_: *mut libc::c_void) -> *mut libc::c_void {
            let config = Config {
                stack_bytes: MIN_STACK_BYTES,
                guard: Guard::Mprotect,
                ..Config::default()
            };
            let pool = Pool::new(config).unwrap();
            on_fiber(&pool, None, Location::caller(), || eprintln!("returned {}", recurse(0)));
            std::ptr::null_mut()
        }
        // SAFETY: plain calls; the function matches the signature and the thread is joined at once.
        unsafe {
            let mut thread = std::mem::zeroed();
            assert_eq!(
                libc::pthread_create(&mut thread, std::ptr::null(), main, std::ptr::null_mut()),
                0
            );
            libc::pthread_join(thread, std::ptr::null_mut());
        }
    }
    let parts = ["unnamed fiber", "131072 bytes, 65536 of them guard"];
    assert_report(
        "an_unnamed_fiber_on_a_bare_thread_with_mprotect_guards_is_reported",
        "mprotect",
        &parts,
    );
}

/// A program with a thread for signals blocks them all in every other thread. The description here does not end by itself.
#[test]
fn an_overflow_is_reported_and_ends_in_threads_that_block_all_signals() {
    const TEST: &str = "an_overflow_is_reported_and_ends_in_threads_that_block_all_signals";
    if child::is_child("blocked") {
        std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(60));
            // SAFETY: a plain call.
            unsafe { libc::_exit(3) }
        });
        overflow::describe_by(|_| {
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        let pool = Pool::new(Config::default()).unwrap();
        on_fiber(&pool, Some("deep reader"), Location::caller(), || {
            eprintln!("returned {}", recurse(0))
        });
    }
    let mut command = child::command(TEST, "blocked");
    // SAFETY: the closure makes plain calls, and the set is initialised before it is read. The mask survives exec.
    unsafe {
        command.pre_exec(|| {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
            Ok(())
        })
    };
    let out = command.output().unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGALRM), "{out:?}");
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("fiber 'deep reader'"),
        "{out:?}"
    );
}

/// A generator outside of a runtime has no builder, whose setting could be raised.
#[test]
fn a_coroutine_without_a_label_is_not_called_a_fiber() {
    if child::is_child("generator") {
        let stack = Stack::new(MIN_STACK_BYTES).unwrap();
        let mut generator = Coroutine::<(), usize, ()>::new(stack, |y, ()| y.suspend(recurse(0)));
        eprintln!("returned {:?}", generator.next());
    }
    let (signal, err, out) = end_of("a_coroutine_without_a_label_is_not_called_a_fiber", "generator");
    assert_eq!(signal, Some(libc::SIGABRT), "{out:?}");
    let report =
        "a coroutine has overflowed its stack of 131072 bytes, 65536 of them guard\ngive its Stack::new more bytes\n";
    assert!(err.contains(report) && !err.contains("fiber"), "{err}");
}

/// A recursive function with a large array, as a C compiler makes it: it moves the stack pointer at once and touches the
/// low end first, without a probe in between. It is assembly, so the test needs no C compiler.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn c_recursion<const FRAME_BYTES: usize>() {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, {bytes}",
        "mov byte ptr [rsp], 1",
        "call {again}",
        "leave",
        "ret",
        bytes = const FRAME_BYTES,
        again = sym c_recursion::<FRAME_BYTES>,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn c_recursion<const FRAME_BYTES: usize>() {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov x9, {bytes}",
        "sub sp, sp, x9",
        "strb wzr, [sp]",
        "bl {again}",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret",
        bytes = const FRAME_BYTES,
        again = sym c_recursion::<FRAME_BYTES>,
    )
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn c_frames_are_reported_and_write_on_no_neighbour() {
    const TEST: &str = "c_frames_are_reported_and_write_on_no_neighbour";
    let roles: [(&str, extern "C" fn()); 2] = [("32 KiB", c_recursion::<0x8000>), ("60 KiB", c_recursion::<0xf000>)];
    for (role, recursion) in roles {
        if child::is_child(role) {
            overflow_between_neighbours(recursion);
        }
        let (signal, err, out) = end_of(TEST, role);
        assert_eq!(signal, Some(libc::SIGABRT), "{out:?}");
        assert!(err.contains("fiber 'calls C'") && err.contains("262144 bytes"), "{err}");
        assert!(err.contains("neighbours untouched"), "{err}");
    }
}

/// The addresses around the stack that overflows, for the handler below.
static NEIGHBOURS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
static OURS: OnceLock<libc::sigaction> = OnceLock::new();

/// Overflows the middle one of three adjacent stacks. A handler put on top of the crate's own looks at the other two first.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn overflow_between_neighbours(recursion: extern "C" fn()) -> ! {
    extern "C" fn look(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let neighbours = NEIGHBOURS.each_ref().map(|n| n.load(Relaxed));
        let untouched = neighbours.chunks(2).all(|n| {
            (n[0]..n[1]).all(|address| {
                // SAFETY: the usable part of a stack on which nothing runs.
                unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() == 0x5a }
            })
        });
        eprintln!("neighbours {}", if untouched { "untouched" } else { "overwritten" });
        let ours = OURS.get().expect("set before this handler is");
        // SAFETY: the crate's handler is an SA_SIGINFO one and gets what this one got.
        unsafe {
            type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, Full>(ours.sa_sigaction)(signal, info, context);
        }
    }
    let pool = Pool::new(Config::default()).unwrap();
    let mut stacks = [0; 3].map(|_| pool.take(None).unwrap());
    stacks.sort_by_key(limit);
    assert!(
        stacks
            .windows(2)
            .all(|s| limit(&s[0]) + s[0].stack_bytes() + rustix::param::page_size() == limit(&s[1])),
        "not adjacent: {stacks:?}"
    );
    let [below, middle, above] = stacks;
    for (bounds, stack) in NEIGHBOURS.chunks(2).zip([&below, &above]) {
        let (low, high) = (limit(stack) + GUARD_BYTES, corosensei::stack::Stack::base(stack).get());
        // SAFETY: the usable part of a stack this function owns and on which nothing runs.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(low).write_bytes(0x5a, high - low) };
        bounds[0].store(low, Relaxed);
        bounds[1].store(high, Relaxed);
    }
    let _ = OURS.set(install(look as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK));
    middle.label(Location::caller(), Some("calls C"));
    Coroutine::<(), (), ()>::new(middle, move |_, ()| recursion()).resume(());
    unreachable!("the recursion does not end");
}

fn limit(stack: &Stack) -> usize {
    corosensei::stack::Stack::limit(stack).get()
}

/// Installs a SIGSEGV handler and returns what there was.
fn install(handler: usize, flags: libc::c_int) -> libc::sigaction {
    // SAFETY: plain calls with valid structs; every caller's handler fits its flags.
    unsafe {
        let (mut action, mut old) = (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed());
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, &mut old), 0);
        old
    }
}

const ELSEWHERE: usize = 0x1230;

fn fault_elsewhere() {
    // SAFETY: none: this is the fault under test, on the never mapped first page.
    unsafe { std::ptr::without_provenance::<u8>(std::hint::black_box(ELSEWHERE)).read_volatile() };
}

#[test]
fn a_fault_elsewhere_reaches_the_previous_handler() {
    const TEST: &str = "a_fault_elsewhere_reaches_the_previous_handler";
    extern "C" fn full(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo.
        let address = unsafe { (*info).si_addr() }.addr();
        // SAFETY: a plain call that ends the process.
        unsafe {
            libc::_exit(
                if address == ELSEWHERE && signal == libc::SIGSEGV && !context.is_null() {
                    41
                } else {
                    1
                },
            )
        }
    }
    extern "C" fn plain(signal: libc::c_int) {
        // SAFETY: a plain call that ends the process.
        unsafe { libc::_exit(if signal == libc::SIGSEGV { 42 } else { 1 }) }
    }
    let roles = [
        ("full", full as *const () as usize, libc::SA_SIGINFO),
        ("plain", plain as *const () as usize, 0),
    ];
    for ((role, handler, flags), code) in roles.into_iter().zip([41, 42]) {
        for inside in [false, true] {
            let role = format!("{role} {inside}");
            if child::is_child(&role) {
                install(handler, flags);
                let pool = Pool::new(Config::default()).unwrap();
                if inside {
                    on_fiber(&pool, None, Location::caller(), fault_elsewhere);
                } else {
                    fault_elsewhere();
                }
            }
            let (_, err, out) = end_of(TEST, &role);
            assert_eq!(out.status.code(), Some(code), "{role}: {out:?}");
            assert!(!err.contains("fiber"), "{err}");
        }
    }
}

#[test]
fn without_a_previous_handler_a_fault_kills_and_an_ignored_signal_is_ignored() {
    const TEST: &str = "without_a_previous_handler_a_fault_kills_and_an_ignored_signal_is_ignored";
    let (ignore, default) = (libc::SIG_IGN, libc::SIG_DFL);
    let rows = [
        ("default fault", default, true, Some(libc::SIGSEGV)),
        ("default sent", default, false, Some(libc::SIGSEGV)),
        ("ignored fault", ignore, true, Some(libc::SIGSEGV)),
        ("ignored sent", ignore, false, None),
    ];
    for (role, handler, fault, end) in rows {
        if child::is_child(role) {
            install(handler, 0);
            overflow::install_for_thread().unwrap();
            if fault {
                fault_elsewhere();
            } else {
                // SAFETY: a plain call.
                unsafe { libc::raise(libc::SIGSEGV) };
            }
            return;
        }
        let (signal, err, out) = end_of(TEST, role);
        assert_eq!(signal, end, "{role}: {out:?}");
        assert!(!err.contains("fiber"), "{err}");
        assert!(end.is_some() || out.status.success(), "{role}: {out:?}");
    }
}

#[test]
fn a_plain_threads_overflow_is_still_reported_by_std() {
    if child::is_child("thread") {
        let _pool = Pool::new(Config::default()).unwrap();
        let thread = std::thread::Builder::new().name("plain thread".into()).spawn(|| {
            overflow::install_for_thread().unwrap();
            recurse(0)
        });
        eprintln!("returned {:?}", thread.unwrap().join());
    }
    assert_report(
        "a_plain_threads_overflow_is_still_reported_by_std",
        "thread",
        &["plain thread", "overflow"],
    );
}

#[test]
fn signal_stacks_are_freed_with_their_threads() {
    if !child::is_child("signal stacks") {
        let out = child::run("signal_stacks_are_freed_with_their_threads", "signal stacks");
        return assert!(out.status.success(), "{out:?}");
    }
    extern "C" fn main(enabled: *mut libc::c_void) -> *mut libc::c_void {
        overflow::install_for_thread().unwrap();
        overflow::install_for_thread().unwrap();
        // SAFETY: plain calls with valid structs; the argument is the counter below, which outlives the thread.
        unsafe {
            let mut now = std::mem::zeroed::<libc::stack_t>();
            assert_eq!(libc::sigaltstack(std::ptr::null(), &mut now), 0);
            (*enabled.cast::<AtomicUsize>()).fetch_add(usize::from(now.ss_flags & libc::SS_DISABLE == 0), Relaxed);
        }
        std::ptr::null_mut()
    }
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let enabled = AtomicUsize::new(0);
    let mut before = 0;
    for n in 0..110 {
        if n == 10 {
            before = mappings();
        }
        // SAFETY: plain calls; the function matches the signature and the thread is joined at once.
        unsafe {
            let mut thread = std::mem::zeroed();
            let argument = (&raw const enabled).cast_mut().cast();
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), main, argument), 0);
            libc::pthread_join(thread, std::ptr::null_mut());
        }
    }
    assert_eq!(enabled.load(Relaxed), 110);
    assert!(mappings() < before + 20, "{before} mappings became {}", mappings());
}
