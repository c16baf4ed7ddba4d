//! A request: a leaf, whoever wakes, cancels, changes and ends it, and a run queue. One callback, and always.

use super::*;
use loom::cell::UnsafeCell;
use osier_queue::request::{Asked, Decision, Ended, Generation, Request, Status};

/// A request whose leaf is ready once `event` is, or, with another parameter than 0, at once.
struct Modelled {
    request: Request,
    event: AtomicBool,
    parameter: loom::sync::Mutex<usize>,
    /// The run queue: how often the request is in it.
    queued: loom::sync::Mutex<usize>,
    pushed: Notify,
    /// Only the holder touches this: the number of calls of the callback, and the parameter of the poll.
    held: UnsafeCell<(usize, usize)>,
}

// SAFETY: the models' claim is that the word admits one holder at a time; loom checks it.
unsafe impl Sync for Modelled {}
// SAFETY: as above.
unsafe impl Send for Modelled {}

impl Modelled {
    fn new() -> Arc<Modelled> {
        Arc::new(Modelled {
            request: Request::new(),
            event: AtomicBool::new(false),
            parameter: loom::sync::Mutex::new(0),
            queued: loom::sync::Mutex::new(0),
            pushed: Notify::new(),
            held: UnsafeCell::new((0, 0)),
        })
    }

    /// Armed, polled for the first time and left alone.
    fn armed() -> (Arc<Modelled>, Generation) {
        let this = Modelled::new();
        let generation = this.request.arm().unwrap();
        this.first_poll();
        (this, generation)
    }

    fn first_poll(&self) {
        let ready = self.poll();
        if self.request.rest(ready) {
            self.push();
        }
    }

    fn poll(&self) -> bool {
        let parameter = *self.parameter.lock().unwrap();
        self.held.with_mut(|held| {
            // SAFETY: the caller holds the request, the claim that is checked.
            unsafe { (*held).1 = parameter };
        });
        parameter != 0 || self.event.load(Relaxed)
    }

    fn push(&self) {
        let mut queued = self.queued.lock().unwrap();
        *queued += 1;
        assert_eq!(*queued, 1, "twice in the run queue");
        drop(queued);
        self.pushed.notify();
    }

    fn happen(&self) {
        self.event.store(true, Relaxed);
        if self.request.wake() {
            self.push();
        }
    }

    fn asked(&self, asked: Asked) -> bool {
        if asked == Asked::Enqueue {
            self.push();
        }
        asked != Asked::Late
    }

    /// The callback.
    fn call(&self) -> usize {
        self.held.with_mut(|held| {
            // SAFETY: the caller has ended the request it held.
            unsafe {
                (*held).0 += 1;
                (*held).1
            }
        })
    }

    /// Takes the request out of the run queue, if it is there, and polls it: its status and parameter if that ended it.
    fn dispatch(&self) -> Option<(Status, usize)> {
        let mut queued = self.queued.lock().unwrap();
        *queued = queued.checked_sub(1)?;
        drop(queued);
        if !self.request.claim() {
            return None;
        }
        loop {
            let ready = self.poll();
            match self.request.decide(ready) {
                Decision::Again => {}
                Decision::End(status) => return Some((status, self.call())),
                Decision::Rest => {
                    if self.request.rest(false) {
                        self.push();
                    }
                    return None;
                }
            }
        }
    }

    /// Dispatches until the request has ended. A wake-up that is lost is a deadlock here.
    fn run(&self) -> (Status, usize) {
        loop {
            if let Some(ended) = self.dispatch() {
                return ended;
            }
            if *self.queued.lock().unwrap() == 0 {
                self.pushed.wait();
            }
        }
    }

    fn calls(&self) -> usize {
        // SAFETY: every thread of the model has been joined.
        self.held.with(|held| unsafe { (*held).0 })
    }
}

#[test]
fn an_event_between_the_first_poll_and_the_rest_is_not_lost() {
    model("request: event races arm", None, &[0], || {
        let this = Modelled::new();
        this.request.arm().unwrap();
        let event = {
            let this = this.clone();
            thread::spawn(move || this.happen())
        };
        this.first_poll();
        assert_eq!(this.run(), (Status::Done, 0));
        event.join().unwrap();
        assert_eq!(this.calls(), 1);
        0
    });
}

#[test]
fn an_event_and_a_cancellation_make_one_callback() {
    // Outcomes: 1, the event was reported; 2, the cancellation; 10 more, the cancellation was seen.
    model("request: event races cancel", Some(3), &[1, 11, 12], || {
        let (this, generation) = Modelled::armed();
        let event = {
            let this = this.clone();
            thread::spawn(move || this.happen())
        };
        let cancel = {
            let this = this.clone();
            thread::spawn(move || this.asked(this.request.cancel(generation)) as usize)
        };
        let (status, _) = this.run();
        event.join().unwrap();
        let heard = cancel.join().unwrap();
        assert_eq!(this.dispatch(), None, "nothing is left");
        assert_eq!(this.calls(), 1);
        10 * heard + if status == Status::Done { 1 } else { 2 }
    });
}

#[test]
fn of_two_who_cancel_one_is_heard() {
    model("request: cancel races cancel", Some(3), &[1], || {
        let (this, generation) = Modelled::armed();
        let cancel = {
            let this = this.clone();
            thread::spawn(move || this.asked(this.request.cancel(generation)) as usize)
        };
        let heard = this.asked(this.request.cancel(generation)) as usize;
        assert_eq!(this.run(), (Status::Cancelled, 0));
        let heard = heard + cancel.join().unwrap();
        assert_eq!((this.calls(), this.dispatch()), (1, None));
        heard
    });
}

#[test]
fn a_change_that_was_heard_is_obeyed() {
    // Outcomes: 1, changed in time; 0, too late.
    model("request: event races change", Some(3), &[0, 1], || {
        let (this, generation) = Modelled::armed();
        let change = {
            let this = this.clone();
            thread::spawn(move || {
                let mut parameter = this.parameter.lock().unwrap();
                let asked = this.request.change(generation);
                if asked != Asked::Late {
                    *parameter = 7;
                }
                drop(parameter);
                this.asked(asked) as usize
            })
        };
        let event = {
            let this = this.clone();
            thread::spawn(move || this.happen())
        };
        let (status, parameter) = this.run();
        let heard = change.join().unwrap();
        event.join().unwrap();
        assert_eq!((status, parameter), (Status::Done, 7 * heard));
        assert_eq!((this.calls(), this.dispatch()), (1, None));
        heard
    });
}

#[test]
fn a_late_cancellation_does_not_reach_the_next_request() {
    // Outcomes: 1, it came in time for the first; 0, it did not.
    model("request: cancel races reuse", Some(3), &[0, 1], || {
        let (this, first) = Modelled::armed();
        let cancel = {
            let this = this.clone();
            thread::spawn(move || this.asked(this.request.cancel(first)) as usize)
        };
        this.happen();
        assert_eq!(this.run().0, Status::Done, "it had happened before the last poll");
        this.event.store(false, Relaxed);
        let second = this.request.arm().unwrap();
        this.first_poll();
        let heard = cancel.join().unwrap();
        assert!(this.request.is_armed(second));
        assert_eq!(
            (this.calls(), this.dispatch()),
            (1, None),
            "the second has heard nothing"
        );
        heard
    });
}

#[test]
fn two_dispatchers_hold_in_turn_and_call_once() {
    // Outcomes: who called.
    model("request: two dispatchers", Some(3), &[1, 2], || {
        let (this, generation) = Modelled::armed();
        let other = {
            let this = this.clone();
            thread::spawn(move || {
                this.asked(this.request.cancel(generation));
                this.dispatch().is_some() as usize
            })
        };
        this.happen();
        let here = this.dispatch().is_some() as usize;
        let there = other.join().unwrap();
        // A callback that one thread has queued while the other held the queue.
        let later = this.dispatch().is_some() as usize;
        assert_eq!((here + there + later, this.calls()), (1, 1));
        1 + there
    });
}

#[test]
fn a_drop_ends_what_an_event_or_a_change_is_about_to_queue() {
    // Outcomes: 1, the event ended it; 0, the drop.
    model("request: event races end", Some(3), &[0, 1], || {
        let (this, generation) = Modelled::armed();
        let dispatcher = {
            let this = this.clone();
            thread::spawn(move || {
                this.happen();
                this.dispatch().is_some() as usize
            })
        };
        let canceller = {
            let this = this.clone();
            thread::spawn(move || {
                let _the_queue_is_gone = this.request.cancel(generation);
            })
        };
        let here = loop {
            match this.request.end() {
                Ended::Held => thread::yield_now(),
                Ended::Here => {
                    this.call();
                    break 1;
                }
                Ended::Idle => break 0,
            }
        };
        let there = dispatcher.join().unwrap();
        canceller.join().unwrap();
        assert_eq!((here + there, this.calls()), (1, 1));
        there
    });
}
