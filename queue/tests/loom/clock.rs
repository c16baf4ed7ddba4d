//! A clock that jumps when nobody has anything to do: never while somebody has, and always when nobody has.

use super::*;
use osier_queue::Virtual;
use osier_queue::clock::{Member, Sleeper};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// The parker and the poller that a worker sleeps with. Messages of a socket wake the poller, not the parker.
struct Peer {
    parker: Parker,
    poller: Notify,
    message: AtomicBool,
}

impl Peer {
    fn new() -> Peer {
        Peer {
            parker: Parker::new(),
            poller: Notify::new(),
            message: AtomicBool::new(false),
        }
    }

    fn receive(&self) -> bool {
        // No swap: loom would order its store of "none" after a message that it has not seen.
        let is_there = self.message.load(Relaxed);
        if is_there {
            self.message.store(false, Relaxed);
        }
        is_there
    }

    fn send(&self) {
        self.message.store(true, Relaxed);
        self.poller.notify();
    }
}

#[derive(Clone)]
struct Place(Arc<[Peer; 2]>, usize);

impl Sleeper for Place {
    fn is_asleep(&self) -> bool {
        self.0[self.1].parker.is_prepared()
    }

    fn wake(&self) {
        let peer = &self.0[self.1];
        if peer.parker.unpark() {
            peer.poller.notify();
        }
    }
}

/// A worker's loop until the hour has come; how many messages it got, all of them before.
fn live(member: Member, place: Place, end: Instant, mut stirred: bool, answers: bool) -> usize {
    let (peers, own) = (&place.0, place.1);
    let mut heard = 0;
    loop {
        let round = member.look(stirred);
        stirred = peers[own].receive();
        if stirred {
            assert_eq!(
                member.clock().elapsed(),
                Duration::ZERO,
                "the clock moved past a message"
            );
            heard += 1;
            if answers {
                peers[1 - own].send();
            }
            continue;
        }
        peers[own].parker.prepare();
        let nothing = !peers[own].message.load(Relaxed);
        if nothing && member.rest(round, Some(end)) {
            peers[own].poller.wait(); // a deadlock if nobody moved the clock
        }
        peers[own].parker.unprepare();
        if member.clock().elapsed() >= HOUR {
            return heard;
        }
    }
}

fn message_and_answer(name: &'static str, answers: bool) {
    model(name, Some(2), &[1 + usize::from(answers)], move || {
        let start = Instant::now();
        let clock = Virtual::starting_at(start);
        let peers = Arc::new([Peer::new(), Peer::new()]);
        let [mine, theirs] = [0, 1].map(|index| {
            let place = Place(peers.clone(), index);
            (clock.join(place.clone()), place)
        });
        let other = thread::spawn(move || live(theirs.0, theirs.1, start + HOUR, false, answers));
        peers[1].send();
        let answered = live(mine.0, mine.1, start + HOUR, true, false);
        answered + other.join().unwrap()
    });
}

#[test]
fn who_reads_a_time_sees_what_came_before_it() {
    model("clock: moved after an act", None, &[0, 1], || {
        let shared = Arc::new((Virtual::new(), AtomicBool::new(false)));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let moved = shared.0.elapsed() == HOUR;
                assert!(shared.1.load(Relaxed) || !moved);
                moved as usize
            })
        };
        shared.1.store(true, Relaxed);
        shared.0.advance(HOUR);
        reader.join().unwrap()
    });
}

#[test]
fn the_clock_does_not_pass_a_message() {
    message_and_answer("clock: a message races the jump", false);
}

#[test]
fn the_clock_does_not_pass_an_answer() {
    message_and_answer("clock: an answer races the jump", true);
}
