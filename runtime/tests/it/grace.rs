//! The grace period: how long the destructors of an unwinding fiber may wait, and for what.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::given::{forever, pass, settle, timeless};
use osier::net::UnixStream;
use osier::time::now;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_grace_period_ends_io_and_a_later_one_is_as_long() {
    struct Wait(UnixStream, Arc<AtomicUsize>);
    impl Drop for Wait {
        fn drop(&mut self) {
            let start = now();
            let error = (&self.0).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(now() - start > Duration::from_secs(4), "{:?}", now() - start);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    timeless(1).run(|| {
        let timed_out = Arc::new(AtomicUsize::new(0));
        for n in 1..=2 {
            let (one, _two) = UnixStream::pair().unwrap();
            let wait = Wait(one, Arc::clone(&timed_out));
            let outcome = osier::timeout(Duration::from_millis(1), move || {
                let _wait = wait;
                forever();
            });
            assert!(outcome.is_err());
            assert_eq!(timed_out.load(Ordering::SeqCst), n);
        }
    });
}

#[test]
fn a_destructor_may_join_for_longer_than_the_grace_period() {
    struct Join(Option<osier::JoinHandle<u32>>, Arc<AtomicUsize>);
    impl Drop for Join {
        fn drop(&mut self) {
            let value = self.0.take().unwrap().join().unwrap();
            osier::scope(|s| drop(s.spawn(settle)));
            self.1.store(value as usize, Ordering::SeqCst);
        }
    }
    timeless(1).run(|| {
        let value = Arc::new(AtomicUsize::new(0));
        let slow = osier::spawn(|| {
            pass(Duration::from_millis(5500));
            42
        });
        let join = Join(Some(slow), Arc::clone(&value));
        let outcome = osier::timeout(Duration::from_millis(1), move || {
            let _join = join;
            forever();
        });
        assert!(outcome.is_err());
        assert_eq!(value.load(Ordering::SeqCst), 42);
    });
}

#[test]
fn a_fiber_cancelled_while_its_destructor_waits_gets_the_grace_period_too() {
    struct Wait(UnixStream, Arc<AtomicBool>);
    impl Drop for Wait {
        fn drop(&mut self) {
            let error = (&self.0).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            self.1.store(true, Ordering::SeqCst);
        }
    }
    timeless(1).run(|| {
        let ended = Arc::new(AtomicBool::new(false));
        let (one, _two) = UnixStream::pair().unwrap();
        let wait = Wait(one, Arc::clone(&ended));
        let fiber = osier::spawn(move || {
            let _wait = wait;
            panic!("with a destructor that waits for ever");
        });
        settle();
        fiber.cancel();
        assert!(osier::timeout(LIMIT, || fiber.join().is_err()).unwrap());
        assert!(ended.load(Ordering::SeqCst));
    });
}
