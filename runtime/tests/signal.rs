//! Signals that the process sends to itself. Each test uses another signal, because the tests run at the same time.

#[path = "it/colours.rs"]
mod colours;

use std::io::ErrorKind;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use colours::{in_every_colour, poll_by_hand, poll_once};
use futures_lite::StreamExt;
use osier::signal::{Signal, Signals, ctrl_c, ctrl_c_async};

fn raise(signal: Signal) {
    let pid = rustix::process::getpid();
    let signal = rustix::process::Signal::from_named_raw(signal.as_raw()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Raises the signal repeatedly until the waiter, who may not listen yet, has it.
fn raise_until<T: Send + 'static>(signal: Signal, waiter: impl FnOnce() -> T + Send + 'static) -> T {
    // Without a listener, the signal would end the process before the waiter listens.
    let _listening = Signals::new([signal]).unwrap();
    let waiter = thread::spawn(waiter);
    while !waiter.is_finished() {
        raise(signal);
        // Between two signals, until the waiter listens.
        thread::sleep(Duration::from_millis(5));
    }
    waiter.join().unwrap()
}

#[test]
fn a_signal_is_received_in_every_colour() {
    in_every_colour(|| async {
        let mut signals = Signals::new([Signal::USR1]).unwrap();
        assert!(poll_once(pin!(signals.recv_async())).is_pending());
        raise(Signal::USR1);
        assert_eq!(signals.recv_async().await.unwrap(), Signal::USR1);
        raise(Signal::USR1);
        assert_eq!(signals.next().await.unwrap().unwrap(), Signal::USR1);
        raise(Signal::USR1);
        assert_eq!(signals.recv().unwrap(), Signal::USR1, "it need not wait");
        assert_eq!(signals.try_recv(), None);
    });
}

#[test]
fn a_fiber_and_a_thread_wait_for_one() {
    let wait = || {
        let signals = Signals::new([Signal::CONT]).unwrap();
        let waits = testkit::ThreadWatch::current();
        let raising = thread::spawn(move || {
            waits.until_it_waits();
            raise(Signal::CONT);
        });
        assert_eq!(signals.recv().unwrap(), Signal::CONT);
        raising.join().unwrap();
    };
    wait();
    osier::run(wait);
}

#[test]
fn every_listener_gets_it() {
    let listeners: Vec<_> = (0..5).map(|_| Signals::new([Signal::USR2]).unwrap()).collect();
    raise(Signal::USR2);
    for listener in &listeners {
        assert_eq!(poll_by_hand(listener.recv_async()).unwrap(), Signal::USR2);
        assert_eq!(listener.try_recv(), None);
    }
    // A listener that was dropped gets nothing and does not affect the others.
    let mut listeners = listeners;
    drop(listeners.pop());
    raise(Signal::USR2);
    assert_eq!(listeners[0].recv().unwrap(), Signal::USR2);
}

#[test]
fn a_signal_that_nobody_received_coalesces() {
    let signals = Signals::new([Signal::ALARM]).unwrap();
    // The kernel may run the handler in another thread, some time after `raise`. A listener that came later gets the
    // signal after the one under test.
    let later = Signals::new([Signal::ALARM]).unwrap();
    for _ in 0..10 {
        raise(Signal::ALARM);
        assert_eq!(later.recv().unwrap(), Signal::ALARM);
    }
    assert_eq!(signals.recv().unwrap(), Signal::ALARM);
    assert_eq!(signals.try_recv(), None);
}

#[test]
fn two_that_share_a_listener_get_one_signal_each() {
    let signals = Signals::new([Signal::WINCH, Signal::HUP]).unwrap();
    thread::scope(|threads| {
        let one = threads.spawn(|| poll_by_hand(signals.recv_async()).unwrap());
        let two = threads.spawn(|| osier::run(|| signals.recv()).unwrap());
        // Until both wait, which nothing here can see.
        thread::sleep(Duration::from_millis(20));
        raise(Signal::WINCH);
        raise(Signal::HUP);
        let mut both = [one.join().unwrap(), two.join().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [Signal::HUP, Signal::WINCH]);
    });
}

#[test]
fn a_dropped_future_loses_no_signal() {
    let signals = Signals::new([Signal::QUIT]).unwrap();
    let mut receiving = Box::pin(signals.recv_async());
    assert!(poll_once(receiving.as_mut()).is_pending());
    raise(Signal::QUIT);
    drop(receiving);
    assert_eq!(poll_by_hand(signals.recv_async()).unwrap(), Signal::QUIT);
}

#[test]
fn after_the_last_listener_the_signal_still_does_nothing() {
    drop(Signals::new([Signal::TERM]).unwrap());
    // The process stays alive.
    raise(Signal::TERM);
    let earlier = Signals::new([Signal::TERM]).unwrap();
    raise(Signal::TERM);
    assert_eq!(earlier.recv().unwrap(), Signal::TERM);
}

#[test]
fn a_listener_gets_no_signal_from_before_it() {
    let urgent = Signal::from_raw(23);
    let earlier = Signals::new([urgent]).unwrap();
    raise(urgent);
    assert_eq!(earlier.recv().unwrap(), urgent, "the handler has run");
    let later = Signals::new([urgent]).unwrap();
    assert_eq!(later.try_recv(), None);
}

#[test]
fn ctrl_c_is_waited_for_in_both_colours() {
    raise_until(Signal::INT, || ctrl_c().unwrap());
    raise_until(Signal::INT, || osier::run(ctrl_c).unwrap());
    raise_until(Signal::INT, || poll_by_hand(ctrl_c_async()).unwrap());
}

#[test]
fn what_cannot_be_listened_for_is_named() {
    // SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, one of the C library's own, and what is no signal.
    for number in [9, 19, 11, 7, 32, 0, -1, 65, 1 << 20] {
        let error = Signals::new([Signal::from_raw(number)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&format!("signal {number} ")), "{error}");
    }
    assert_eq!(
        format!("{} {:?}", Signal::TERM, Signal::from_raw(40)),
        "SIGTERM signal 40"
    );
}
