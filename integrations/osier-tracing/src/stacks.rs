//! The entered spans of each fiber, by thread.
//!
//! A [`Stacks`] is a number: its state is a thread-local, because fibers do not change their thread. No state is borrowed while the
//! subscriber runs, which may use tracing itself.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing_core::span::Id;

/// The stacks of one subscriber.
#[derive(Debug)]
pub(crate) struct Stacks {
    number: usize,
}

/// The stacks of one subscriber on one thread.
#[derive(Default)]
struct State {
    /// The fiber whose spans are entered in the subscriber.
    current: u64,
    entered: Vec<Id>,
    /// The spans of the other fibers. A fiber without spans has no entry.
    others: HashMap<u64, Vec<Id>>,
}

thread_local! {
    /// The number of the subscriber that this thread used last, and its current fiber.
    static LAST: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    static STATES: RefCell<HashMap<usize, State>> = RefCell::default();
}

impl Stacks {
    pub(crate) fn new() -> Stacks {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Stacks {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The fiber whose spans are entered in the subscriber on this thread.
    #[inline]
    pub(crate) fn current(&self) -> u64 {
        match LAST.try_with(Cell::get) {
            Ok((number, current)) if number == self.number => current,
            _ => self.current_slowly(),
        }
    }

    #[cold]
    fn current_slowly(&self) -> u64 {
        self.with(|state| state.current)
    }

    /// Notes that the spans of `fiber` are entered from now on. Returns the spans that were entered before, and those of `fiber`; in
    /// both the innermost is the last.
    pub(crate) fn switch_to(&self, fiber: u64) -> (Vec<Id>, Vec<Id>) {
        self.with(|state| {
            let left = std::mem::replace(&mut state.current, fiber);
            let next = state.others.remove(&fiber).unwrap_or_default();
            let spans = std::mem::replace(&mut state.entered, next);
            if !spans.is_empty() {
                state.others.insert(left, spans.clone());
            }
            (spans, state.entered.clone())
        })
    }

    pub(crate) fn push(&self, span: &Id) {
        self.with(|state| state.entered.push(span.clone()));
    }

    /// Removes the span where it was entered last. Spans may be exited in any order.
    pub(crate) fn pop(&self, span: &Id) {
        self.with(|state| {
            if let Some(at) = state.entered.iter().rposition(|entered| entered == span) {
                state.entered.remove(at);
            }
        });
    }

    /// Runs `with` on the state of this thread; on an empty one while the thread ends.
    fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let mut with = Some(with);
        let mut run = |state: &mut State| {
            let with = with.take().expect("called once");
            let value = with(state);
            let _ = LAST.try_with(|last| last.set((self.number, state.current)));
            value
        };
        let ran = STATES.try_with(|states| run(states.borrow_mut().entry(self.number).or_default()));
        ran.unwrap_or_else(|_| run(&mut State::default()))
    }
}
