//! A fiber that starts while it is cancelled.

use super::*;
use osier_queue::Cancellation;

#[test]
fn the_fiber_sees_the_request_or_the_canceller_sees_the_fiber() {
    // Outcomes: 1, it starts and is woken; 0, it does not start.
    model("cancel: request races start", None, &[0, 1], || {
        let fiber = Arc::new((Cancellation::new(), Notify::new(), AtomicBool::new(false)));
        let canceller = {
            let fiber = fiber.clone();
            thread::spawn(move || {
                fiber.2.store(true, Relaxed);
                if let Some(word) = fiber.0.request() {
                    assert_eq!(word, 7, "the word of nobody");
                    fiber.1.notify();
                }
            })
        };
        let started = fiber.0.start(7);
        assert!(
            started || fiber.2.load(Relaxed),
            "cancelled by one whose acts it does not see"
        );
        if started {
            loop {
                fiber.1.wait(); // a deadlock if neither saw the other: a fiber at rest does not look by itself
                if fiber.0.is_requested() {
                    break;
                }
            }
        }
        canceller.join().unwrap();
        started as usize
    });
}

#[test]
fn of_two_requests_each_finds_the_fiber_or_is_found() {
    model("cancel: two requests race start", None, &[0, 1, 12], || {
        let fiber = Arc::new(Cancellation::new());
        let cancellers = [(); 2].map(|()| {
            let fiber = fiber.clone();
            thread::spawn(move || fiber.request().inspect(|&word| assert_eq!(word, 7)).is_some() as usize)
        });
        let started = fiber.start(7);
        let found: usize = cancellers.into_iter().map(|canceller| canceller.join().unwrap()).sum();
        assert!(fiber.is_requested());
        assert!(
            !started || found == 2,
            "a request that came after the start found nobody"
        );
        10 * started as usize + found
    });
}

#[test]
fn who_sees_that_the_fiber_has_started_sees_its_word() {
    model("cancel: start races a look", None, &[0, 1], || {
        let fiber = Arc::new(Cancellation::new());
        let starter = {
            let fiber = fiber.clone();
            thread::spawn(move || fiber.start(7))
        };
        let word = fiber.started();
        assert!(word.is_none_or(|word| word == 7), "the word of nobody");
        assert!(starter.join().unwrap());
        word.is_some() as usize
    });
}
