//! The backtrace of a suspended fiber: raw return addresses first, functions and places later.
//!
//! [`trace`] runs on the fiber's stack and only collects addresses. [`Symbols`] finds the names, on a thread with room for it,
//! and leaves out the runtime's own frames at both ends. Without the feature `backtrace` there are no frames.
//!
//! A frame of the runtime is recognised by its source file. Its name is not enough: where debug information consists of line
//! tables only, an inlined function has a bare name (`suspend<..>`). Only a frame without a file is recognised by its name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_task::Task;
use osier_coro::stack;

use crate::wait::{pool, simulated};
use crate::worker::heap;

#[cfg(not(feature = "backtrace"))]
use super::no_backtrace as backtrace;

/// How many frames are kept of one fiber.
const FRAMES: usize = 128;
/// The debug information of the program stays in memory for this long after its last use: tens of megabytes, and most of the time that a
/// dump takes.
const KEPT: Duration = Duration::from_secs(5);

/// The last use of debug information that is in memory.
static USED: Mutex<Option<Instant>> = Mutex::new(None);

/// This file, below the folder of the runtime's sources.
const THIS_FILE: &str = "inspect/frames.rs";

/// The return addresses on this coroutine stack, the innermost first.
#[inline(never)]
pub(super) fn trace() -> Vec<usize> {
    let variable = 0u8;
    let here = std::hint::black_box(&raw const variable).addr();
    // Measured here, below the frames of the caller: a smaller value leaves out the outermost frames.
    let used_bytes = stack::extent().map_or(0, |extent| extent.used_bytes);
    let mut frames = Vec::with_capacity(32);
    backtrace::trace(|frame| {
        frames.push(frame.ip().addr());
        // Behind the fiber's first frame comes the stack of the worker.
        let ours = frame.sp().addr().wrapping_sub(here) < used_bytes || frame.sp().addr() < here;
        ours && frames.len() < FRAMES
    });
    frames
}

/// Has debug information forgotten some time after this use, by a thread of the pool. It is in memory since the first look-up.
fn used_names() {
    let mut used = used();
    let is_in_memory = used.replace(Instant::now()).is_some();
    if cfg!(feature = "backtrace") && !is_in_memory && !simulated::is_here() {
        // Without a thread it stays until the next use.
        let begun = pool::try_spawn(forget_names).map(Task::detach);
        begun.unwrap_or_else(|_| *used = None);
    }
}

fn used() -> MutexGuard<'static, Option<Instant>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forget_names() {
    loop {
        let mut used = used();
        let since = used.map_or(KEPT, |last| last.elapsed());
        if since >= KEPT {
            *used = None;
            break;
        }
        drop(used);
        std::thread::sleep(KEPT - since);
    }
    backtrace::clear_symbol_cache();
    // Much of it lay between what the allocator keeps.
    heap::trim();
}

/// A frame of a backtrace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StackFrame {
    /// The function's path, or its address if no name is known. With line tables as the only debug information, an
    /// inlined function has its bare name, and one of this crate has its module and its name.
    pub function: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
}

impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
            (Some(file), None) => write!(f, " at {file}"),
            _ => Ok(()),
        }
    }
}

/// The names of addresses, each looked up once.
pub(super) struct Symbols {
    /// The folder of the runtime's sources, as debug information writes it. Ends with a slash.
    root: Option<String>,
    found: HashMap<usize, Vec<StackFrame>>,
}

impl Drop for Symbols {
    fn drop(&mut self) {
        used_names();
    }
}

impl Symbols {
    pub(super) fn new() -> Symbols {
        let mut root = None;
        // A lookup takes a return address, which is behind its call.
        let inside = (trace as *const ()).wrapping_byte_add(1);
        backtrace::resolve(inside.cast_mut().cast(), |symbol| {
            let file = symbol.filename().and_then(|path| path.to_str());
            root = root.take().or_else(|| Some(file?.strip_suffix(THIS_FILE)?.to_owned()));
        });
        Symbols {
            root,
            found: HashMap::new(),
        }
    }

    /// The frames between the runtime's own at both ends: from the switch up, and from the start of the fiber down.
    pub(super) fn between_ends(&mut self, addresses: &[usize]) -> Vec<StackFrame> {
        let mut frames: Vec<StackFrame> = addresses.iter().flat_map(|address| self.of(*address)).collect();
        self.cut_tracer(&mut frames);
        self.cut_start(&mut frames);
        frames
    }

    /// The frames of a thread that a signal has interrupted: without those of the handler, and without the start of the
    /// fiber.
    pub(super) fn interrupted(&mut self, addresses: &[usize]) -> Vec<StackFrame> {
        let mut frames: Vec<StackFrame> = addresses.iter().flat_map(|address| self.of(*address)).collect();
        let of_handler = |frame: &StackFrame| frame.function.contains("signal_hook_registry");
        if let Some(at) = frames.iter().rposition(of_handler) {
            // One more: the system's way back from the handler, which need not have a name.
            frames.drain(..(at + 2).min(frames.len()));
        }
        self.cut_start(&mut frames);
        frames
    }

    /// Removes the frames of the tracer, and those from the switch up to the wait. The compiler may have merged the functions in between into
    /// each other, and files of other crates have bare names there. Without debug information, the switch may have no frame at all.
    fn cut_tracer(&self, frames: &mut Vec<StackFrame>) {
        let is_tracer = |frame: &StackFrame| self.is_in(frame, THIS_FILE) && bare(&frame.function) == "trace";
        let is_core = |frame: &StackFrame| self.is_in(frame, "worker/core.rs");
        let Some(tracer) = frames.iter().position(is_tracer) else {
            return;
        };
        let is_switch =
            |frame: &StackFrame| is_core(frame) && ["show", "switch", "suspend"].contains(&bare(&frame.function));
        let core = match frames[tracer..].iter().position(is_switch) {
            Some(before) => {
                let switch = frames[tracer + before..].iter();
                before + switch.take_while(|frame| is_core(frame)).count()
            }
            None => {
                let of_tracer = |frame: &&StackFrame| {
                    self.is_in(frame, "inspect/") || self.is_in(frame, "worker/isolate.rs") || is_of_library(frame)
                };
                frames[tracer..].iter().take_while(of_tracer).count()
            }
        };
        let waits = frames[tracer + core..].iter();
        let waits = waits.take_while(|frame| self.is_in(frame, "wait/mod.rs")).count();
        frames.drain(..tracer + core + waits);
    }

    /// Removes the frames from the start of the fiber down.
    fn cut_start(&self, frames: &mut Vec<StackFrame>) {
        let is_start = |frame: &StackFrame| {
            // The compiler may have merged `enter` into its caller, but never the other.
            let is_called = ["__rust_begin_short_backtrace", "enter"].contains(&bare(&frame.function));
            is_called && self.is_in(frame, "worker/core.rs")
        };
        if let Some(start) = frames.iter().position(is_start) {
            frames.truncate(start);
            while frames.last().is_some_and(|frame| self.starts_a_fiber(frame)) {
                frames.pop();
            }
        }
    }

    /// The function of the runtime that the fiber has called, if it waits in one.
    pub(super) fn called<'f>(&self, frames: &'f [StackFrame]) -> Option<&'f StackFrame> {
        frames.iter().take_while(|frame| self.is_in(frame, "")).last()
    }

    /// The functions at an address: several where some were inlined, the innermost first.
    fn of(&mut self, address: usize) -> Vec<StackFrame> {
        if let Some(known) = self.found.get(&address) {
            return known.clone();
        }
        let mut frames = Vec::new();
        backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
            let file = symbol.filename().map(|path| path.display().to_string());
            frames.push(StackFrame {
                function: match symbol.name() {
                    // The alternate form leaves out the hash at the end.
                    Some(name) => self.qualified(format!("{name:#}"), file.as_deref()),
                    None => format!("{address:#x}"),
                },
                file,
                line: symbol.lineno(),
            });
        });
        if frames.is_empty() {
            frames.push(StackFrame {
                function: format!("{address:#x}"),
                file: None,
                line: None,
            });
        }
        self.found.insert(address, frames.clone());
        frames
    }

    /// Puts the module before the bare name of one of the runtime's functions.
    fn qualified(&self, name: String, file: Option<&str>) -> String {
        let plain = name.split('<').next().unwrap_or_default();
        let below = file.and_then(|file| file.strip_prefix(self.root.as_deref()?));
        match below {
            Some(below) if !plain.is_empty() && !plain.contains("::") => format!("{}{plain}", module(below)),
            _ => name,
        }
    }

    /// Whether a frame is of this file of the runtime, or of a file below this folder. `""`: of any file.
    fn is_in(&self, frame: &StackFrame, place: &str) -> bool {
        match (&frame.file, &self.root) {
            (Some(file), Some(root)) => file.strip_prefix(&**root).is_some_and(|below| below.starts_with(place)),
            _ => {
                let name = frame.function.strip_prefix('<').unwrap_or(&frame.function);
                name.starts_with(&module(place))
            }
        }
    }

    /// Whether a frame stands between [`Core::enter`](crate::worker::core::Core::enter) and the function of a fiber.
    fn starts_a_fiber(&self, frame: &StackFrame) -> bool {
        is_of_library(frame) || self.is_in(frame, "worker/")
    }
}

/// Whether a frame is of std's code that calls a closure or catches its panic.
fn is_of_library(frame: &StackFrame) -> bool {
    let files = [
        "library/core/src/ops/function.rs",
        "library/core/src/panic/",
        "library/std/src/panic",
    ];
    let names = [
        "std::panicking::",
        "std::panic::",
        "core::panic::",
        "<core::panic::",
        "core::ops::function::",
        "__rust_try",
        "__rustc",
    ];
    match &frame.file {
        Some(file) => files.iter().any(|part| file.contains(part)),
        None => names.iter().any(|prefix| frame.function.starts_with(prefix)),
    }
}

/// The path of the module in a file below `runtime/src`, with `::` at the end.
fn module(file: &str) -> String {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let parts = path.split('/').filter(|part| !["", "mod", "lib"].contains(part));
    parts.fold("osier::".to_owned(), |path, part| path + part + "::")
}

/// The last part of a function's path, without type parameters.
fn bare(function: &str) -> &str {
    let mut depth = 0;
    let mut from = 0;
    let mut to = function.len();
    for (at, part) in function.char_indices() {
        match part {
            '<' => {
                if depth == 0 && at > from {
                    to = at;
                }
                depth += 1;
            }
            // Not the arrow of a function type.
            '>' if !function[..at].ends_with('-') => depth -= 1,
            ':' if depth == 0 => (from, to) = (at + 1, function.len()),
            _ => {}
        }
    }
    &function[from..to]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: Option<&str>) -> StackFrame {
        StackFrame {
            function: function.to_owned(),
            file: file.map(str::to_owned),
            line: None,
        }
    }

    #[test]
    fn the_folder_of_the_sources_is_found_where_there_are_line_tables() {
        let mut symbols = Symbols::new();
        let Some(root) = symbols.root.clone() else {
            println!("skipped: built without line tables");
            return;
        };
        let this = symbols.of((trace as *const ()).addr() + 1);
        assert_eq!(this[0].file, Some(format!("{root}{THIS_FILE}")));
        assert_eq!(this[0].function, "osier::inspect::frames::trace");
    }

    #[test]
    fn bare_names_of_the_runtime_get_their_module() {
        let symbols = Symbols {
            root: Some("/a/src/".to_owned()),
            found: HashMap::new(),
        };
        let qualified = |name: &str, file| symbols.qualified(name.to_owned(), Some(file));
        assert_eq!(
            qualified("lock<a::B>", "/a/src/sync/mutex.rs"),
            "osier::sync::mutex::lock"
        );
        assert_eq!(qualified("sleep", "/a/src/time/mod.rs"), "osier::time::sleep");
        assert_eq!(qualified("lock<a::B>", "/b/src/sync/mutex.rs"), "lock<a::B>");
        for full in ["a::B<C>::d", "<a::B as C>::d"] {
            assert_eq!(qualified(full, "/a/src/lib.rs"), full);
        }
    }

    /// The frames of a release build, where the compiler has merged the function that shows a fiber into others.
    #[test]
    fn the_frames_of_an_optimised_tracer_are_left_out() {
        let symbols = Symbols {
            root: Some("/a/src/".to_owned()),
            found: HashMap::new(),
        };
        let mut frames: Vec<StackFrame> = [
            ("trace", "/b/backtrace-0.3/src/backtrace/libunwind.rs"),
            (
                "trace_unsynchronized<osier::inspect::frames::trace::{closure_env#1}>",
                "/b/backtrace-0.3/src/backtrace/mod.rs",
            ),
            ("osier::inspect::frames::trace", "/a/src/inspect/frames.rs"),
            ("osier::inspect::dump::{closure#1}", "/a/src/inspect/dump.rs"),
            (
                "do_call<core::panic::unwind_safe::AssertUnwindSafe<osier::inspect::dump::show::{closure_env#1}>, ()>",
                "/c/library/std/src/panicking.rs",
            ),
            ("osier::worker::isolate::isolate", "/a/src/worker/isolate.rs"),
            ("osier::inspect::dump::show", "/a/src/inspect/dump.rs"),
            ("osier::worker::core::switch", "/a/src/worker/core.rs"),
            ("osier::worker::core::suspend", "/a/src/worker/core.rs"),
            ("osier::wait::on_fiber", "/a/src/wait/mod.rs"),
            ("osier::sync::block_until", "/a/src/sync/mod.rs"),
            ("relieve", "/d/server/accept.rs"),
        ]
        .map(|(function, file)| frame(function, Some(file)))
        .into();
        symbols.cut_tracer(&mut frames);
        let left: Vec<&str> = frames.iter().map(|frame| &*frame.function).collect();
        assert_eq!(left, ["osier::sync::block_until", "relieve"]);
    }

    /// The frames of a release build without line tables: the function that shows a fiber has called the tracer last, and so is gone, and
    /// those that switch or start a fiber are parts of others.
    #[test]
    fn the_frames_of_an_optimised_tracer_are_left_out_without_line_tables() {
        let symbols = Symbols {
            root: None,
            found: HashMap::new(),
        };
        let mut frames: Vec<StackFrame> = [
            "backtrace::backtrace::trace_unsynchronized",
            "osier::inspect::frames::trace",
            "osier::inspect::dump::show::{{closure}}",
            "std::panicking::catch_unwind::do_call",
            "__rust_try",
            "osier::worker::isolate::isolate",
            "osier::inspect::dump::show",
            "osier::wait::on_fiber",
            "osier::sync::block_until",
            "server::accept::relieve",
            "<core::panic::unwind_safe::AssertUnwindSafe<F> as core::ops::function::FnOnce<()>>::call_once",
            "osier::worker::packet::Packet<F,T>::run",
            "osier::worker::core::__rust_begin_short_backtrace",
            "corosensei::coroutine::Coroutine<Input,Yield,Return,Stack>::with_stack_unchecked::coroutine_func",
        ]
        .map(|function| frame(function, None))
        .into();
        symbols.cut_tracer(&mut frames);
        symbols.cut_start(&mut frames);
        let left: Vec<&str> = frames.iter().map(|frame| &*frame.function).collect();
        assert_eq!(left, ["osier::sync::block_until", "server::accept::relieve"]);
    }

    #[test]
    fn a_frame_without_a_file_is_known_by_its_name() {
        let symbols = Symbols {
            root: Some("/a/src/".to_owned()),
            found: HashMap::new(),
        };
        assert!(symbols.is_in(&frame("suspend<b>", Some("/a/src/worker/core.rs")), "worker/core.rs"));
        assert!(!symbols.is_in(&frame("osier::worker::core::f", Some("/b/src/c.rs")), "worker/core.rs"));
        assert!(symbols.is_in(&frame("osier::worker::core::Core::suspend", None), "worker/core.rs"));
        assert!(symbols.is_in(&frame("<osier::time::A as B>::c", None), ""));
        assert!(!symbols.is_in(&frame("it::dump::f", None), ""));
    }

    #[test]
    fn the_bare_name_is_the_last_part() {
        for (function, name) in [
            ("osier::worker::core::Core::enter", "enter"),
            ("osier::worker::core::Core::enter<a::B, c::D>", "enter"),
            ("enter<a::B<c>, d>", "enter"),
            ("<a::B<C> as d::E>::show", "show"),
            ("<fn() -> a::B as C>::call", "call"),
            ("a::b::{{closure}}", "{{closure}}"),
        ] {
            assert_eq!(bare(function), name);
        }
    }
}
