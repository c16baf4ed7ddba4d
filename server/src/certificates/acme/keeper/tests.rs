//! The back-off, and the choice of a proof.

use super::order::SETTLED;
use super::*;
use crate::certificates::acme::issue::ASK;
use crate::certificates::acme::schedule;
use crate::certificates::acme::scripted::{Memory, Shown};
use crate::certificates::acme::settings::Settings;

#[test]
fn a_clock_that_jumps_back_makes_nobody_wait_for_it() {
    let mut state = State::default();
    let (now, year) = (1_800_000_000, 365 * 86_400);
    state.queue.push(Reverse((now + 3600, 7)));
    assert_eq!(state.next_due(now), Err(Duration::from_secs(3600)));
    assert_eq!(state.next_due(now - year), Ok((7, false)));
    assert_eq!(state.next_due(now), Err(LOOK));
}

#[test]
fn renewals_and_names_that_clients_wait_for_hold_each_other_up_never() {
    let (mut state, now) = (State::default(), 1_800_000_000);
    let take = |state: &mut State| -> Vec<usize> {
        let due = std::iter::from_fn(|| state.next_due(now).ok());
        due.map(|(index, _)| index).collect()
    };
    for index in 0..6 {
        state.queue.push(Reverse((now - 1000, index)));
    }
    assert_eq!(take(&mut state), [0, 1, 2, 3]);
    state.awaited.extend(10..30);
    assert_eq!(take(&mut state), [10, 11, 12, 13, 14, 15, 16, 17]);
    *state.busy(false) -= 1;
    assert_eq!(take(&mut state), [4]);
    *state.busy(true) -= 1;
    assert_eq!(take(&mut state), [18]);
}

/// Permits orders for names that begin with `kept`.
struct Picky;

impl Shelf for Picky {
    fn put(&self, _: &Subject, _: &Stored) -> Result<(), String> {
        Ok(())
    }

    fn may_order(&self, subject: &Subject) -> bool {
        subject.name().starts_with("kept")
    }
}

#[test]
fn subjects_that_are_given_up_leave_their_places_to_others() {
    let subject = |name: &str| Subject {
        names: vec![name.to_owned()],
        settings: Settings::default(),
    };
    let clock = osier::time::VirtualClock::new();
    let runtime = osier::Runtime::builder().workers(1).clock(clock).build().unwrap();
    runtime.run(move || {
        let resources = Resources::new(
            Arc::new(Memory::default()),
            Arc::new(Shown::default()),
            Box::new(|_| Err("no issuer is asked".into())),
        );
        let say = Say::new(|_| {});
        let keeper = Keeper::new(Vec::new(), resources, Arc::new(Picky), say, system_clock(), None);
        let running = osier::spawn({
            let keeper = keeper.clone();
            move || keeper.run()
        });
        for number in 0..20 {
            keeper.add(subject(&format!("kept{}.example", number / 10)), true);
            keeper.add(subject(&format!("n{number}.example")), false);
            osier::sleep(Duration::from_millis(1));
            // A name that was given up comes back.
            keeper.add(subject("n0.example"), true);
            osier::sleep(Duration::from_millis(1));
        }
        let mut names: Vec<_> = keeper
            .subjects()
            .iter()
            .map(|subject| subject.name().to_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["kept0.example", "kept1.example", "n0.example"]);
        let (state, subjects) = (keeper.state(), keeper.subjects());
        let queued = state.queue.iter().map(|queued| subjects[queued.0.1].name());
        let queued: HashSet<_> = queued.collect();
        assert_eq!(queued, HashSet::from(["kept0.example", "kept1.example"]));
        assert_eq!(state.failures.len(), 3);
        drop((state, subjects));
        keeper.end();
        running.join().unwrap();
    });
}

#[test]
fn every_pause_ends_before_a_jump_is_suspected() {
    let longest = schedule::pause(40, None, None, 1.0).max(ASK).max(SETTLED);
    assert!(longest.as_secs().cast_signed() < FARTHEST, "{longest:?}");
}
