//! Scopes: fibers that borrow, and the end of a scope with its children.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::given::{Bomb, forever, on, settle, timeless};
use osier::{Cancelled, fiber};

#[test]
fn a_scope_joins_its_children_and_lends_them_its_variables() {
    timeless(2).run(|| {
        let counter = AtomicUsize::new(0);
        let local = Cell::new(0);
        let value = osier::scope(|s| {
            for _ in 0..50 {
                s.spawn(|| {
                    settle();
                    counter.fetch_add(1, Ordering::SeqCst);
                });
            }
            s.spawn_local(|| local.set(local.get() + 1));
            s.spawn_local(|| local.set(local.get() + 1));
            9
        });
        assert_eq!((value, counter.load(Ordering::SeqCst), local.get()), (9, 50, 2));
    });
}

#[test]
fn a_fiber_of_a_scope_may_have_settings() {
    on(2).run(|| {
        let names = [String::from("ada"), String::from("bob")];
        let found = osier::scope(|s| {
            let spawn = |(index, name): (usize, &'static str)| {
                let builder = fiber::Builder::new().name(name).worker(index).stack_bytes(1 << 20);
                s.spawn_with(builder, || {
                    let large = std::hint::black_box([1_u8; 300 << 10]);
                    let name = fiber::current().and_then(|fiber| fiber.name().map(String::from));
                    assert!(names.contains(name.as_ref().unwrap()) && large.len() == 300 << 10);
                    (fiber::worker(), name)
                })
            };
            let fibers: Vec<_> = ["ada", "bob"].into_iter().enumerate().map(spawn).collect();
            fibers
                .into_iter()
                .map(|fiber| fiber.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(
            found,
            [(Some(0), Some(names[0].clone())), (Some(1), Some(names[1].clone()))]
        );
    });
}

#[test]
fn a_scope_cancels_its_children_when_its_body_unwinds() {
    timeless(2).run(|| {
        let ended = AtomicUsize::new(0);
        struct Count<'a>(&'a AtomicUsize);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            osier::scope(|s| {
                for _ in 0..5 {
                    s.spawn(|| {
                        let _count = Count(&ended);
                        forever();
                    });
                }
                settle();
                panic!("body");
            })
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"body"));
        assert!(ended.load(Ordering::SeqCst) >= 1);
    });
}

#[test]
fn cancelling_a_fiber_in_a_scope_cancels_the_scopes_children() {
    timeless(2).run(|| {
        for body_sleeps in [true, false] {
            let parent = osier::spawn(move || {
                osier::scope(|s| {
                    s.spawn(forever);
                    s.spawn_local(forever);
                    if body_sleeps {
                        forever();
                    }
                })
            });
            settle();
            parent.cancel();
            assert!(Cancelled::is_payload(&*parent.join().unwrap_err()));
        }
    });
}

#[test]
fn a_panic_of_an_unjoined_scoped_fiber_panics_the_scope() {
    on(2).run(|| {
        let outcome = catch_unwind(|| {
            osier::scope(|s| {
                s.spawn(|| panic!("child"));
            })
        });
        assert_eq!(
            outcome.unwrap_err().downcast_ref::<&str>(),
            Some(&"a scoped fiber panicked")
        );
        let joined = osier::scope(|s| s.spawn(|| -> u32 { panic!("child") }).join().is_err());
        assert!(joined);
    });
}

#[test]
fn a_scope_holds_its_frame_although_a_hook_panics() {
    timeless(1).run(|| {
        let ended = AtomicBool::new(false);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let armed = AtomicBool::new(false);
            let hook = || {
                if armed.load(Ordering::SeqCst) {
                    panic_any(Bomb);
                }
            };
            fiber::before_suspend(&hook, || {
                osier::scope(|s| {
                    drop(s.spawn(|| {
                        osier::shield(settle);
                        ended.store(true, Ordering::SeqCst);
                    }));
                    osier::yield_now();
                    armed.store(true, Ordering::SeqCst);
                });
            });
        }));
        assert!(ended.load(Ordering::SeqCst), "the scope returned before its child did");
        let payload = outcome.expect_err("the hook's panic was swallowed");
        assert!(payload.is::<Bomb>(), "the hook's panic became something else");
        std::mem::forget(payload);
    });
}

#[test]
fn a_panic_of_a_scoped_value_that_never_ran_counts_once() {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("a captured value panics");
        }
    }
    on(1).run(|| {
        osier::scope(|s| {
            let loud = Loud;
            let child = s.spawn(move || drop(loud));
            child.cancel();
            let payload = child.join().unwrap_err();
            assert!(!Cancelled::is_payload(&*payload));
        });
    });
}
