//! Coroutines of `osier_coro` on fibers: their frames may go on under another fiber, so nothing of a fiber is reached from them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;

use osier::embed::Local;
use osier::fiber;
use osier_coro::{Coroutine, CoroutineResult, Stack};

fn stack() -> Stack {
    Stack::new(0).unwrap()
}

/// The text of the panic that `body` ends with.
fn panic_of(body: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(body)).expect_err("it panics");
    payload.downcast_ref::<&str>().map_or_else(
        || payload.downcast_ref::<String>().cloned().unwrap_or_default(),
        |text| text.to_string(),
    )
}

/// The hook inside the coroutine would put the outer hook back, whose frame is gone.
#[test]
fn a_hook_in_a_coroutine_does_not_run() {
    osier::run(|| {
        let mut coroutine: Coroutine<(), (), ()> = Coroutine::new(stack(), |y, ()| {
            fiber::before_suspend(&|| panic!("not the hook of a fiber"), || y.suspend(()));
        });
        let calls = Cell::new(0);
        fiber::before_suspend(&|| calls.set(calls.get() + 1), || {
            assert_eq!(coroutine.resume(()), CoroutineResult::Yield(()));
            osier::yield_now();
        });
        assert_eq!(coroutine.resume(()), CoroutineResult::Return(()));
        osier::yield_now();
        assert_eq!(calls.get(), 1);
    });
}

/// It would wait as the fiber on which it began, which has ended.
#[test]
fn a_wait_in_a_coroutine_fails_on_every_fiber() {
    osier::run(|| {
        let coroutine: Coroutine<(), (), String> = Coroutine::new(stack(), |y, ()| {
            panic_of(|| {
                osier::block_on(poll_fn(|_| {
                    y.suspend(());
                    Poll::<()>::Pending
                }));
            })
        });
        let begun = osier::spawn_local(move || {
            let mut coroutine = coroutine;
            assert_eq!(coroutine.resume(()), CoroutineResult::Yield(()));
            coroutine
        });
        let mut coroutine = begun.join().unwrap();
        let ended = osier::spawn_local(move || coroutine.resume(())).join().unwrap();
        let CoroutineResult::Return(text) = ended else {
            panic!("it suspends once")
        };
        assert!(
            text.starts_with("blocking call inside a future, callback or coroutine"),
            "{text}"
        );
    });
}

/// The child would suspend the coroutine from another stack.
#[test]
fn a_coroutine_has_no_scope_of_fibers() {
    let scope = || {
        let mut coroutine: Coroutine<(), (), String> = Coroutine::new(stack(), |y, ()| {
            panic_of(|| {
                osier::scope(|s| {
                    s.spawn_local(|| y.suspend(()));
                });
            })
        });
        let CoroutineResult::Return(text) = coroutine.resume(()) else {
            panic!("it does not suspend")
        };
        text
    };
    for text in [osier::run(scope), scope()] {
        assert!(
            text.starts_with("blocking call inside a future, callback or coroutine"),
            "{text}"
        );
    }
}

#[test]
fn fiber_locals_and_the_name_of_the_fiber_are_there_in_a_coroutine() {
    osier::fiber_local! {
        static NUMBER: Cell<u32> = Cell::new(0);
    }
    osier::run(|| {
        NUMBER.with(|number| number.set(7));
        let id = fiber::id();
        let mut coroutine: Coroutine<(), (), ()> = Coroutine::new(stack(), move |_, ()| {
            assert_eq!((NUMBER.with(Cell::get), fiber::id()), (7, id));
        });
        assert_eq!(coroutine.resume(()), CoroutineResult::Return(()));
    });
}

/// The thread would end with the first worker set, which is gone.
#[test]
fn workers_left_out_of_order_abort_the_process() {
    const CHILD: &str = "OSIER_LEAVES_OUT_OF_ORDER";
    struct Resumes(Rc<RefCell<Coroutine<(), (), ()>>>);
    impl Drop for Resumes {
        fn drop(&mut self) {
            self.0.borrow_mut().resume(());
        }
    }
    if std::env::var_os(CHILD).is_none() {
        let name = "coroutines::workers_left_out_of_order_abort_the_process";
        let output = testkit::this_test()
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("a coroutine has left a worker"), "{output:?}");
        return;
    }
    let (local, other) = (Local::new().unwrap(), Local::new().unwrap());
    let coroutine = Coroutine::new(stack(), move |y, ()| {
        local.enter(|| y.suspend(())).unwrap();
    });
    let coroutine = Rc::new(RefCell::new(coroutine));
    let resumes = Resumes(Rc::clone(&coroutine));
    other.spawn(move || {
        osier::sleep(std::time::Duration::from_secs(3600));
        drop(resumes);
    });
    other.turn(Some(std::time::Duration::ZERO)).unwrap();
    assert_eq!(coroutine.borrow_mut().resume(()), CoroutineResult::Yield(()));
    drop(other);
    osier::spawn_local(|| ());
}
