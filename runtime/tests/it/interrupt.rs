//! `sync::Interrupt`: a signal that cancels the code that runs under it, and nothing else.

use std::time::Duration;

use osier::sync::Interrupt;
use osier::{Cancelled, run};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_waiting_body_is_cancelled_and_the_code_around_it_is_not() {
    run(|| {
        let interrupt = Interrupt::new();
        let signal = interrupt.clone();
        let fiber = osier::spawn(move || {
            let ended = interrupt.guard(|| osier::sleep(LONG));
            osier::yield_now();
            (ended, interrupt.guard(|| 7))
        });
        osier::sleep(Duration::from_millis(1));
        std::thread::spawn(move || signal.set()).join().unwrap();
        assert_eq!(fiber.join().unwrap(), (Err(Cancelled), Ok(7)));
    });
}

#[test]
fn a_call_with_errors_meets_the_interrupt_as_an_error_first() {
    run(|| {
        let (ours, _theirs) = osier::net::UnixStream::pair().unwrap();
        let interrupt = Interrupt::new();
        interrupt.set();
        let mut met = None;
        let ended = interrupt.guard(|| {
            let error = std::io::Read::read(&mut &ours, &mut [0]).unwrap_err();
            met = Some(Cancelled::is(&error));
        });
        assert_eq!((ended, met), (Err(Cancelled), Some(true)));
    });
}

#[test]
fn a_shield_and_an_inner_timeout_work_under_an_interrupt() {
    run(|| {
        let interrupt = Interrupt::new();
        interrupt.set();
        let slept =
            interrupt.guard(|| osier::shield(|| osier::timeout(Duration::from_millis(1), || osier::sleep(LONG))));
        assert!(slept.unwrap().is_err());
    });
}

#[test]
fn on_a_plain_thread_the_body_just_runs() {
    let interrupt = Interrupt::new();
    interrupt.set();
    assert_eq!(interrupt.guard(|| 7), Ok(7));
}
