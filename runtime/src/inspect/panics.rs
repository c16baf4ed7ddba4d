//! The panic hook: after the usual message, a line names the fiber that panicked and what it was doing or where it was
//! spawned, or the task.
//!
//! A destructor that panics while its fiber unwinds aborts the process. The line comes before that, and says why the fiber
//! was cancelled. An `unwrap` of the error of a cancelled call panics as well, and its line says so, too.

use std::panic;
use std::sync::Once;
use std::thread;

use osier_coro::stack::{self, Label};

use crate::worker::context;
use crate::worker::core::{Core, ShortId};
use crate::worker::running::{RUNNING, VALUES};
use crate::worker::stderr::say;
use crate::worker::threads::lock_panic_hook;

static INSTALLED: Once = Once::new();

/// Adds the line to the panic hook of the process, once. A hook that the program sets later replaces it.
pub(crate) fn name_the_fiber() {
    // A panicking thread must not set a hook. The next runtime does.
    if thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let _alone = lock_panic_hook();
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            before(info);
            if context::running(say_fiber).is_none() {
                say_task();
            }
        }));
    });
}

fn say_task() {
    let id = RUNNING.with(|running| running.id.get());
    if id == 0 {
        return;
    }
    let name = VALUES.with(|values| values.name.borrow().clone());
    let name = name.map(|name| format!(" '{name}'")).unwrap_or_default();
    say(format_args!("osier: in task {id}{name}"));
}

fn say_fiber(core: &Core<'_>) {
    let fiber = core.fiber();
    let name = fiber.name().map(|name| format!(" '{name}'")).unwrap_or_default();
    let doing = match (core.doing(), Label::at(stack::pointer()).and_then(Label::place)) {
        (Some(doing), _) => format!(" ({doing})"),
        (None, Some(place)) => format!(", spawned at {place}"),
        (None, None) => String::new(),
    };
    let id = ShortId(fiber.id());
    match core.extra_if_any().and_then(|extra| extra.frames.panics_because()) {
        Some(reason) => say(format_args!(
            "osier: in fiber {id}{name}{doing}, while it was cancelled: {reason}"
        )),
        None => say(format_args!("osier: in fiber {id}{name}{doing}")),
    }
}
