//! Bounds how many requests run at once, and how long others wait for their turn.
//!
//! ```
//! use osier_web::wrap::queue::{Options, Queue};
//! use osier_web::{Router, test::Client};
//! use std::time::Duration;
//!
//! let options = Options {
//!     running: 10,
//!     wait: Duration::from_millis(500),
//!     ..Options::default()
//! };
//! let client = Client::new(Router::new().get("/", |_| "hello\n").wrap(Queue::new(&options).wrap()));
//! assert_eq!(client.get("/").send().text(), "hello\n");
//! ```
//!
//! A handler that does ten things at once, because it has ten connections to a database for example, does no more under
//! load. If any number of requests may wait, they wait longer and longer, until every response comes too late. So a
//! request that has waited for its budget gets 503 with `Retry-After`, and running requests are answered in time.
//!
//! # Which requests are shed
//!
//! ```text
//!   line empty within the last `wait`:   a burst. A request waits up to `wait`
//!   line never empty for longer:         overload. A request waits up to a tenth of `wait`
//! ```
//!
//! The line is served in order. In a burst, a request that can be served within the budget is never refused. Under
//! overload a long line is useless: every request in it would wait for the whole budget, and as many would be refused.
//! With a short line, requests are refused or served soon. A line that is never empty shows overload, as the least
//! delay of an interval shows a standing queue in CoDel (RFC 8289). So no rate has to be configured, and no handler
//! measured.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use osier::sync::Event;

use crate::lock;
use crate::{Answer, Next, Request, Response};

/// The divisor of the budget under overload.
const SHORT: u32 = 10;

/// The settings of a [`Queue`]. By default 100 requests run, and others wait for 200 ms. Set what the handler can bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests that run at once, at least 1.
    pub running: u32,
    /// The budget: the longest time that a request waits for its turn.
    pub wait: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            running: 100,
            wait: Duration::from_millis(200),
        }
    }
}

/// The requests that run, and the line of those that wait.
#[doc(alias("ConcurrencyLimit", "LoadShed"))]
pub struct Queue {
    options: Options,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: u32,
    /// The line, by number. A request that ends admits the first one. Any other can leave at the same cost, however
    /// long the line is.
    line: BTreeMap<u64, Arc<Waiting>>,
    /// The number of the next arrival.
    next: u64,
    /// The time since which the line has not been empty.
    standing: Option<Instant>,
    /// The number of requests that were refused.
    shed: u64,
}

/// A request in the line.
#[derive(Default)]
struct Waiting {
    /// Set under the lock, when the request is admitted and has left the line.
    turn: Event,
}

/// The turn of a request. Its drop ends the turn.
#[must_use = "dropping it ends the request's turn"]
pub struct Turn(Arc<Queue>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A request's place in the line. The drop leaves it, or passes the turn on.
struct Place<'q> {
    queue: &'q Queue,
    number: u64,
    /// `None` once the turn is taken.
    waiting: Option<Arc<Waiting>>,
}

impl Place<'_> {
    /// Waits for the turn. Returns whether it has come.
    fn wait(&self, budget: Duration) -> bool {
        let waiting = self.waiting.as_ref().expect("the turn is not taken");
        waiting.turn.wait_timeout(budget) || !self.queue.state().line.contains_key(&self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.waiting.is_none() {
            return;
        }
        let mut state = self.queue.state();
        match state.line.remove(&self.number) {
            Some(_) => state.note(),
            None => self.queue.leave_locked(state),
        }
    }
}

impl State {
    /// Notes whether the line is empty.
    fn note(&mut self) {
        if self.line.is_empty() {
            self.standing = None;
        }
    }
}

impl Queue {
    /// A queue in which nobody waits.
    pub fn new(options: &Options) -> Queue {
        Queue {
            options: Options {
                running: options.running.max(1),
                ..*options
            },
            state: Mutex::default(),
        }
    }

    /// Makes requests wait for their turn, or answers them with 503: for [`Router::wrap`](crate::Router::wrap). A turn
    /// ends when the handler has made its response. A body that is streamed afterwards does not count.
    ///
    /// A handler that receives the body of its request does so in its turn, so clients that send slowly can hold all turns. A gateway
    /// need not: see [`answer`](Queue::answer).
    pub fn wrap(self) -> impl Fn(&mut Request<'_>, Next<'_>) -> Response + Send + Sync + 'static {
        let queue = Arc::new(self);
        move |request, next| match queue.enter() {
            Ok(_turn) => next.run(request),
            Err(refusal) => refusal,
        }
    }

    /// Answers a request by `handler` when it is its turn. A handler that waits for the body of the request does so without a turn, and
    /// goes on in another one: `Proxy` and `FastCgi` do, by `answer_after_body`. So nobody waits for a client that sends slowly.
    ///
    /// # Suspends
    ///
    /// Until it is this request's turn, for the budget at most, and where the handler does. Not until the client has sent the body.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and leaves the line or ends the turn.
    pub fn answer(
        self: &Arc<Self>,
        request: &mut Request<'_>,
        handler: impl FnOnce(&mut Request<'_>) -> Answer,
    ) -> Answer {
        let turn = match self.enter() {
            Ok(turn) => turn,
            Err(refusal) => return refusal.into(),
        };
        let answer = handler(request);
        if !answer.waits_for_client(request) {
            return answer.wait(request).into();
        }
        drop(turn);
        let queue = Arc::clone(self);
        answer.around(move |request, go_on| match queue.enter() {
            Ok(_turn) => go_on(request).wait(request).into(),
            Err(refusal) => refusal.into(),
        })
    }

    /// Waits for a turn.
    ///
    /// # Suspends
    ///
    /// Until it is this request's turn, for the budget at most.
    ///
    /// # Cancellation
    ///
    /// Unwinds, and leaves the line.
    ///
    /// # Errors
    ///
    /// A 503 response with `Retry-After`.
    pub fn enter(self: &Arc<Self>) -> Result<Turn, Response> {
        let mut state = self.state();
        if state.running < self.options.running && state.line.is_empty() {
            state.running += 1;
            return Ok(Turn(Arc::clone(self)));
        }
        let now = osier::time::coarse_now();
        let since = *state.standing.get_or_insert(now);
        let is_overloaded = now.saturating_duration_since(since) > self.options.wait;
        let waiting = Arc::new(Waiting::default());
        let number = state.next;
        state.next += 1;
        state.line.insert(number, Arc::clone(&waiting));
        drop(state);
        let budget = match is_overloaded {
            true => self.options.wait / SHORT,
            false => self.options.wait,
        };
        let mut place = Place {
            queue: self,
            number,
            waiting: Some(waiting),
        };
        if place.wait(budget) {
            place.waiting = None;
            return Ok(Turn(Arc::clone(self)));
        }
        drop(place);
        self.state().shed += 1;
        Err(Response::overloaded())
    }

    /// The numbers of running, waiting and so far refused requests.
    pub fn counts(&self) -> (usize, usize, u64) {
        let state = self.state();
        (state.running as usize, state.line.len(), state.shed)
    }

    /// Ends a turn, and passes it to the first request in the line.
    fn leave(&self) {
        self.leave_locked(self.state());
    }

    /// Does the same, under the lock.
    fn leave_locked(&self, mut state: MutexGuard<'_, State>) {
        match state.line.pop_first() {
            Some((_, first)) => {
                state.note();
                first.turn.set();
            }
            None => state.running -= 1,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

osier_queue::impl_debug!(Queue, self => { options: self.options, .. });
osier_queue::impl_debug!(Turn, self => { .. });

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use osier::time::VirtualClock;

    use super::*;

    const WAIT: Duration = Duration::from_millis(200);
    const WORK: Duration = Duration::from_millis(50);

    fn on_virtual_time(run: impl FnOnce() + Send) {
        let runtime = osier::Runtime::builder().workers(1).clock(VirtualClock::new());
        runtime.build().unwrap().run(run);
    }

    fn queue(running: u32) -> Arc<Queue> {
        Arc::new(Queue::new(&Options { running, wait: WAIT }))
    }

    /// Sends a request in each `pace`. Returns how many were served, the longest time that one took, and the time of
    /// all.
    fn load(queue: &Arc<Queue>, requests: usize, pace: Duration) -> (usize, Duration, Duration) {
        let start = osier::time::now();
        let (served, longest) = (AtomicUsize::new(0), Mutex::new(Duration::ZERO));
        osier::scope(|scope| {
            for _ in 0..requests {
                scope.spawn_local(|| {
                    let start = osier::time::now();
                    let turn = queue.enter();
                    if turn.is_ok() {
                        osier::sleep(WORK); // the work, on the virtual clock
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    let mut longest = longest.lock().unwrap();
                    *longest = (*longest).max(osier::time::now() - start);
                });
                osier::sleep(pace); // between two requests, on the virtual clock
            }
        });
        let all = osier::time::now() - start;
        (served.into_inner(), longest.into_inner().unwrap(), all)
    }

    #[test]
    fn at_three_times_its_capacity_a_handler_does_what_it_can() {
        on_virtual_time(|| {
            // Ten at once, 50 ms each: 200 a second.
            let queue = queue(10);
            let (served, longest, all) = load(&queue, 6000, Duration::from_micros(1666));
            let most = 10 * (all.as_millis() / WORK.as_millis()) as usize;
            assert!(served <= most && served >= most / 100 * 95, "{served} of {most}");
            assert!(6000 > 2 * most, "an overload");
            assert!(longest <= WAIT + WORK + Duration::from_millis(2), "{longest:?}");
            let (running, waiting, shed) = queue.counts();
            assert_eq!((running, waiting, shed), (0, 0, 6000 - served as u64));
            let (served, ..) = load(&queue, 1500, Duration::from_millis(7));
            assert_eq!(served, 1500, "below its capacity nobody is refused");
        });
    }

    #[test]
    fn a_burst_within_the_budget_is_served_and_a_standing_line_is_short() {
        on_virtual_time(|| {
            let queue = queue(10);
            // Forty need 200 ms with ten at once: the last ones begin after 150 ms.
            osier::scope(|scope| {
                for _ in 0..40 {
                    scope.spawn_local(|| {
                        let _turn = queue.enter().expect("within the budget");
                        osier::sleep(WORK); // the work, on the virtual clock
                    });
                }
            });
            let held: Vec<_> = (0..10).map(|_| queue.enter().unwrap()).collect();
            let wait = || {
                let start = osier::time::now();
                assert!(queue.enter().is_err());
                osier::time::now() - start
            };
            let close = |time: Duration, to: Duration| time >= to && time < to + Duration::from_millis(2);
            osier::scope(|scope| {
                scope.spawn_local(|| assert!(close(wait(), WAIT), "the first of a line waits for the whole budget"));
                osier::sleep(WAIT / 2); // on the virtual clock
                scope.spawn_local(|| assert!(close(wait(), WAIT)));
                osier::sleep(3 * WAIT / 4); // on the virtual clock
                assert!(close(wait(), WAIT / SHORT), "the line stands");
            });
            assert!(close(wait(), WAIT), "it was empty");
            drop(held);
            assert_eq!(queue.counts().0, 0);
        });
    }

    #[test]
    fn one_that_is_cancelled_leaves_the_line() {
        on_virtual_time(|| {
            let queue = queue(1);
            let turn = queue.enter().unwrap();
            let other = queue.clone();
            let waiting = osier::spawn(move || drop(other.enter()));
            osier::sleep(WAIT / 4); // on the virtual clock
            assert_eq!(queue.counts().1, 1);
            waiting.cancel();
            assert!(waiting.join().is_err());
            assert_eq!(queue.counts().1, 0);
            drop(turn);
            assert_eq!(queue.counts().0, 0);
        });
    }
}
