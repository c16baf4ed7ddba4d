//! std: two threads that signal each other in turn through a mutex and a condition variable each.
#![forbid(unsafe_code)]

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

#[derive(Default)]
struct Event {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_set = self
            .changed
            .wait_while(is_set, |is_set| !*is_set)
            .unwrap_or_else(PoisonError::into_inner);
        *is_set = false;
    }
}

fn main() {
    measure::print_apart("event-apart", |n| {
        let [there, back] = [Event::default(), Event::default()];
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..n {
                    there.wait();
                    back.set();
                }
            });
            for _ in 0..n {
                there.set();
                back.wait();
            }
        });
    });
}
