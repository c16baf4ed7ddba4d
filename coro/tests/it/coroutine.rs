//! Values, endings, panics, generators: what a coroutine does, seen from outside.

use crate::{child, small_stack};
use osier_coro::{Coroutine, CoroutineResult, Stack};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use CoroutineResult::{Return, Yield};

const SLOT_BYTES: usize = 256 * 1024;

fn stack() -> Stack {
    small_stack(SLOT_BYTES)
}

/// Appends its word when dropped.
struct Note(Rc<RefCell<Vec<&'static str>>>, &'static str);

impl Drop for Note {
    fn drop(&mut self) {
        self.0.borrow_mut().push(self.1);
    }
}

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

// Nothing runs before the first resume.
#[test]
fn starts_at_the_first_resume() {
    let ran = Rc::new(Cell::new(false));
    let seen = ran.clone();
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |_, ()| seen.set(true));
    assert!(!ran.get() && !coroutine.is_started() && !coroutine.is_finished());
    assert_eq!(coroutine.resume(()), Return(()));
    assert!(ran.get() && coroutine.is_started() && coroutine.is_finished());
}

#[test]
fn values_pass_both_ways_and_the_end_returns_one() {
    let mut echo = Coroutine::new(stack(), |y, mut n: u64| {
        for _ in 0..3 {
            n = y.suspend(n + 1);
        }
        format!("last {n}")
    });
    assert_eq!(echo.resume(10), Yield(11));
    assert_eq!(echo.resume(20), Yield(21));
    assert_eq!(echo.resume(30), Yield(31));
    assert_eq!(echo.resume(40), Return("last 40".to_string()));
}

#[test]
fn large_values_pass_both_ways() {
    let mut coroutine = Coroutine::new(stack(), |y, a: [u64; 100]| {
        let b: [u64; 100] = y.suspend(a.map(|x| x * 2));
        b.map(|x| x + 1)
    });
    assert_eq!(coroutine.resume([1; 100]), Yield([2; 100]));
    assert_eq!(coroutine.resume([5; 100]), Return([6; 100]));
}

#[test]
fn a_closure_of_any_size_and_alignment_works() {
    #[repr(align(128))]
    struct Aligned(u8);
    let big = [7u8; 100_000];
    let aligned = Aligned(3);
    let mut coroutine = Coroutine::<(), (), _>::new(stack(), move |_, ()| {
        (
            big.iter().map(|&b| u32::from(b)).sum::<u32>(),
            (&raw const aligned).addr() % 128,
            aligned.0,
        )
    });
    assert_eq!(coroutine.resume(()), Return((700_000, 0, 3)));
}

#[test]
fn coroutines_nest() {
    let mut outer = Coroutine::<(), u32, ()>::new(stack(), |y, ()| {
        let inner = Coroutine::<(), u32, ()>::new(stack(), |y, ()| (0..3).for_each(|n| y.suspend(n)));
        inner.for_each(|n| y.suspend(n * 10));
    });
    assert_eq!(outer.by_ref().collect::<Vec<_>>(), [0, 10, 20]);
}

// Resuming an ended coroutine is defined here.
#[test]
fn resuming_an_ended_coroutine_panics() {
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), |_, ()| ());
    coroutine.resume(());
    assert!(catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))).is_err());
}

#[test]
fn a_panic_reaches_the_resumer_and_ends_the_coroutine() {
    let log = Rc::default();
    let note = Note(Rc::clone(&log), "unwound");
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |y, ()| {
        let _note = note;
        y.suspend(());
        std::panic::panic_any(42u8);
    });
    assert_eq!(coroutine.resume(()), Yield(()));
    let payload = catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&42u8));
    assert_eq!(*log.borrow(), ["unwound"]);
    assert!(coroutine.is_finished() && !std::thread::panicking());
    // Its stack is as good as new.
    let mut next = Coroutine::<(), (), u8>::new(coroutine.into_stack(), |_, ()| 1);
    assert_eq!(next.resume(()), Return(1));
}

#[test]
fn a_panic_inside_can_be_caught_inside() {
    let mut coroutine = Coroutine::<(), (), bool>::new(stack(), |y, ()| {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            y.suspend(());
            std::panic::resume_unwind(Box::new("no message"));
        }));
        caught.is_err()
    });
    assert_eq!(coroutine.resume(()), Yield(()));
    assert_eq!(coroutine.resume(()), Return(true));
}

// A suspended coroutine may be dropped; here its stack is unwound.
#[test]
fn dropping_a_suspended_coroutine_drops_what_is_on_its_stack() {
    let log = Rc::default();
    let (outer, inner) = (Note(Rc::clone(&log), "outer"), Note(Rc::clone(&log), "inner"));
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |y, ()| {
        let _outer = outer;
        let _inner = inner;
        y.suspend(());
        unreachable!("it is never resumed");
    });
    coroutine.resume(());
    drop(coroutine);
    assert_eq!(*log.borrow(), ["inner", "outer"]);
}

#[test]
fn dropping_a_coroutine_that_never_ran_drops_its_closure() {
    let log = Rc::default();
    let note = Note(Rc::clone(&log), "closure");
    drop(Coroutine::<(), (), ()>::new(stack(), move |_, ()| drop(note)));
    assert_eq!(*log.borrow(), ["closure"]);
}

#[test]
fn a_leaked_coroutine_drops_nothing_and_keeps_its_stack() {
    let (log, place) = (Rc::default(), Rc::new(Cell::new(0)));
    let (note, seen) = (Note(Rc::clone(&log), "leaked"), place.clone());
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |y, ()| {
        let _note = note;
        let local = 0u8;
        seen.set((&raw const local).addr());
        y.suspend(());
    });
    coroutine.resume(());
    coroutine.leak();
    assert!(log.borrow().is_empty());
    let leaked = place.get();
    for _ in 0..64 {
        let seen = place.clone();
        let mut other = Coroutine::<(), (), ()>::new(stack(), move |_, ()| {
            let local = 0u8;
            seen.set((&raw const local).addr());
        });
        other.resume(());
        assert!(
            place.get().abs_diff(leaked) > SLOT_BYTES / 2,
            "the stack was used again"
        );
    }
}

#[test]
fn reset_ends_the_old_function_and_starts_a_new_one_on_the_same_stack() {
    let log = Rc::default();
    let note = Note(Rc::clone(&log), "dropped");
    let mut coroutine = Coroutine::new(stack(), move |y, n: usize| {
        let _note = note;
        y.suspend((&raw const n).addr());
        0
    });
    let Yield(old) = coroutine.resume(0) else {
        panic!("it suspends")
    };
    coroutine.reset(|y, n| {
        y.suspend((&raw const n).addr());
        n * 2
    });
    assert_eq!(*log.borrow(), ["dropped"]);
    assert!(!coroutine.is_started());
    let Yield(new) = coroutine.resume(21) else {
        panic!("it suspends")
    };
    assert!(old.abs_diff(new) < SLOT_BYTES / 2, "not the same stack");
    assert_eq!(coroutine.resume(1), Return(42));
    coroutine.reset(|_, n| n);
    assert_eq!(coroutine.resume(7), Return(7));
}

/// corosensei drops it again when it drops the coroutine.
#[test]
fn reset_drops_a_closure_that_never_ran_once_also_if_its_destructor_panics() {
    let log = Rc::default();
    let captured = (Bomb, Note(Rc::clone(&log), "dropped"));
    let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |_, ()| drop(captured));
    assert!(catch_unwind(AssertUnwindSafe(|| coroutine.reset(|_, ()| ()))).is_err());
    assert_eq!(*log.borrow(), ["dropped"]);
    assert!(coroutine.is_finished());
    coroutine.reset(|_, ()| ());
    assert_eq!(coroutine.resume(()), Return(()));
    assert_eq!(*log.borrow(), ["dropped"]);
}

/// The coroutine catches the unwinding and suspends once more, so its stack still holds values.
#[test]
fn reset_forgets_no_values_of_a_coroutine_that_suspends_while_it_is_unwound() {
    let log = Rc::default();
    let note = Note(Rc::clone(&log), "unwound");
    let mut coroutine = Coroutine::new(stack(), move |y, ()| {
        let _note = note;
        drop(catch_unwind(AssertUnwindSafe(|| y.suspend(None))));
        y.suspend(Some(Bomb));
    });
    assert!(matches!(coroutine.resume(()), Yield(None)));
    assert!(catch_unwind(AssertUnwindSafe(|| coroutine.reset(|_, ()| ()))).is_err());
    assert!(!coroutine.is_finished() && log.borrow().is_empty());
    coroutine.reset(|_, ()| ());
    assert_eq!(*log.borrow(), ["unwound"]);
    assert!(matches!(coroutine.resume(()), Return(())));
}

/// corosensei would move down from the stack's end to such an address, into the guard or the stack below.
#[test]
fn a_closure_with_a_large_alignment_is_not_stored_on_the_stack() {
    #[repr(align(0x4_0000))]
    struct Aligned;
    // A slot begins a page further than the last one: among so many one has each distance from an aligned address.
    let make_all = || {
        let aligned = || {
            let captured = Aligned;
            move |_: &osier_coro::Yielder<(), ()>, ()| (&raw const captured).is_aligned()
        };
        let coroutines: Vec<_> = (0..64).map(|_| Coroutine::new(stack(), aligned())).collect();
        coroutines.len()
    };
    // Frames with such a value need room.
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(make_all);
    assert_eq!(thread.unwrap().join().unwrap(), 64);
}

#[test]
fn generators_are_iterators() {
    let fibonacci = Coroutine::new(stack(), |y, ()| {
        let (mut a, mut b) = (0u64, 1);
        loop {
            y.suspend(a);
            (a, b) = (b, a + b);
        }
    });
    assert_eq!(
        fibonacci.take(10).collect::<Vec<_>>(),
        [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    );
    let mut short = Coroutine::<(), u8, ()>::new(stack(), |y, ()| y.suspend(1));
    assert_eq!((short.next(), short.next(), short.next()), (Some(1), None, None));
}

/// Runs its closure when dropped, if nobody has taken it before.
struct Guard<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Guard<F> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            callback();
        }
    }
}

/// Everything that callbacks deferred to the end of a coroutine are for is done by values with destructors: the latest runs
/// first, those since a mark run at the mark, one is taken back or runs early, and memory lives as long as the coroutine.
#[test]
fn guards_of_a_coroutine_run_the_latest_first_however_it_ends() {
    for end in ["return", "panic", "drop"] {
        let log = Rc::<RefCell<Vec<&str>>>::default();
        let notes = log.clone();
        let mut coroutine = Coroutine::<(), (), ()>::new(stack(), move |y, ()| {
            let defer = |word| {
                let log = notes.clone();
                Guard(Some(move || log.borrow_mut().push(word)))
            };
            let _connection = defer("connection");
            let early = defer("early");
            let mut since_mark = vec![defer("second"), defer("rollback")];
            // A callee hands out what is to outlast it.
            let callee = || defer("of a callee");
            let _callee = callee();
            since_mark[1].0 = None;
            y.suspend(());
            drop(early);
            drop(since_mark);
            if end == "panic" {
                std::panic::resume_unwind(Box::new(()));
            }
        });
        coroutine.resume(());
        assert!(log.borrow().is_empty());
        if end == "drop" {
            drop(coroutine);
            assert_eq!(*log.borrow(), ["of a callee", "second", "early", "connection"]);
        } else {
            let ended = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
            assert_eq!(ended.is_err(), end == "panic");
            assert_eq!(*log.borrow(), ["early", "second", "of a callee", "connection"], "{end}");
        }
    }
}

#[inline(never)]
fn a_frame_of_the_callers_closure() -> String {
    std::hint::black_box(Backtrace::force_capture().to_string())
}

#[inline(never)]
fn a_frame_of_the_resumer(coroutine: &mut Coroutine<(), (), String>) -> String {
    match coroutine.resume(()) {
        Return(trace) => std::hint::black_box(trace),
        Yield(()) => a_frame_of_the_resumer(coroutine),
    }
}

#[test]
fn a_backtrace_names_the_frames_inside_and_goes_on_to_the_resumer() {
    let mut coroutine = Coroutine::new(stack(), |y, ()| {
        y.suspend(());
        let trace = a_frame_of_the_callers_closure();
        format!("{}\n{trace}", line!() - 1)
    });
    let result = a_frame_of_the_resumer(&mut coroutine);
    let (line, trace) = result.split_once('\n').unwrap();
    let find = |name: &str| trace.find(name).unwrap_or_else(|| panic!("no {name} in\n{trace}"));
    let inside = find("a_frame_of_the_callers_closure");
    // The closure is anonymous, and inlined when optimised: its line names it.
    let closure = find(&format!("coroutine.rs:{line}"));
    let resumer = find("a_frame_of_the_resumer");
    assert!(inside < closure && closure < resumer, "{trace}");
}

// Each thread switches by itself.
#[test]
fn threads_run_their_own_coroutines() {
    let thread = |seed: u64| {
        move || {
            let pool = osier_coro::stack::Pool::new(Default::default()).unwrap();
            let mut all: Vec<_> = (0..100)
                .map(|n| {
                    Coroutine::new(pool.take(None).unwrap(), move |y, ()| {
                        (0..50).for_each(|i| y.suspend(seed + n + i))
                    })
                })
                .collect();
            (0..50)
                .map(|_| all.iter_mut().map(|c| c.next().unwrap()).sum::<u64>())
                .sum::<u64>()
        }
    };
    let threads = [0, 1].map(|seed| std::thread::spawn(thread(seed)));
    let sums = threads.map(|t| t.join().unwrap());
    assert_eq!(
        sums,
        [
            (0..100).map(|n| (0..50).map(|i| n + i).sum::<u64>()).sum::<u64>(),
            sums[0] + 5000
        ]
    );
}

#[test]
fn floating_point_and_callee_saved_registers_survive_a_switch() {
    let mut sums = Coroutine::new(stack(), |y, mut x: f64| {
        let (a, b, c, d, e) = (x + 1.0, x + 2.0, x * 3.0, x * 4.0, x / 5.0);
        for _ in 0..3 {
            x = y.suspend(a + b + c + d + e + x);
        }
        0.0
    });
    let (p, q, r) = (
        std::hint::black_box(1u64),
        std::hint::black_box(2u64),
        std::hint::black_box(3u64),
    );
    assert_eq!(sums.resume(10.0), Yield(11.0 + 12.0 + 30.0 + 40.0 + 2.0 + 10.0));
    assert_eq!(sums.resume(0.5), Yield(95.5));
    assert_eq!((p, q, r), (1, 2, 3));
}

#[test]
fn a_destructor_that_suspends_while_its_coroutine_is_dropped_aborts() {
    struct Suspend<'a>(&'a osier_coro::Yielder<(), ()>);
    impl Drop for Suspend<'_> {
        fn drop(&mut self) {
            self.0.suspend(());
        }
    }
    if child::is_child("suspend in drop") {
        let mut coroutine = Coroutine::<(), (), ()>::new(stack(), |y, ()| {
            let _suspend = Suspend(y);
            y.suspend(());
        });
        coroutine.resume(());
        drop(coroutine);
        std::process::exit(0);
    }
    let out = child::run(
        "a_destructor_that_suspends_while_its_coroutine_is_dropped_aborts",
        "suspend in drop",
    );
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{out:?}");
}

#[test]
fn dropping_a_coroutine_that_catches_its_unwinding_for_ever_does_not_return() {
    if child::is_child("catch for ever") {
        let mut coroutine = Coroutine::<(), (), ()>::new(stack(), |y, ()| {
            let mut caught = 0;
            loop {
                caught += usize::from(catch_unwind(AssertUnwindSafe(|| y.suspend(()))).is_err());
                if caught == 1000 {
                    std::process::exit(43);
                }
            }
        });
        coroutine.resume(());
        drop(coroutine);
        std::process::exit(0);
    }
    let out = child::run(
        "dropping_a_coroutine_that_catches_its_unwinding_for_ever_does_not_return",
        "catch for ever",
    );
    assert_eq!(out.status.code(), Some(43), "{out:?}");
}
