//! The timer wheel against a sorted list, on any course of inserting, cancelling and turning.

use osier_queue::{Key, Wheel};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Instant;

/// The promises of the wheel, kept in a slow way: timers sorted by deadline, then by age.
#[derive(Default)]
struct Model {
    now: u64,
    timers: BTreeMap<(u64, u64), u64>,
    inserted: u64,
}

impl Model {
    fn insert(&mut self, deadline: u64) -> (u64, u64) {
        let place = (deadline.max(self.now), self.inserted);
        self.timers.insert(place, self.inserted);
        self.inserted += 1;
        place
    }

    fn pop_expired(&mut self, now: u64) -> Option<u64> {
        let now = now.max(self.now);
        let due = self
            .timers
            .first_key_value()
            .map(|(place, _)| *place)
            .filter(|(deadline, _)| *deadline <= now);
        self.now = due.map_or(now, |(deadline, _)| deadline);
        self.timers.remove(&due?)
    }

    fn earliest(&self) -> Option<u64> {
        self.timers.keys().next().map(|(deadline, _)| *deadline)
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Inserts a timer at `now` plus this.
    InsertAfter(u64),
    InsertAt(u64),
    /// Removes by the key of the n-th insertion, fired or not.
    Remove(usize),
    /// Turns by this many ticks and takes at most this many timers.
    Turn(u64, usize),
    /// Turns to exactly where the wheel asks to be turned next, and takes everything.
    TurnToWakeup,
}

/// Distances of every magnitude, with the borders of the levels among them.
fn distance() -> impl Strategy<Value = u64> {
    let any_magnitude = (0..64u32, any::<u64>()).prop_map(|(bits, value)| value >> bits);
    let border = (0..11u32, 0..3u64).prop_map(|(level, side)| (1u64 << (6 * level)) - 1 + side);
    prop_oneof![4 => 0..200u64, 2 => 0..100_000u64, 2 => any_magnitude, 2 => border]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => distance().prop_map(Op::InsertAfter),
        1 => any::<u64>().prop_map(Op::InsertAt),
        1 => Just(Op::InsertAt(u64::MAX)),
        2 => any::<prop::sample::Index>().prop_map(|index| Op::Remove(index.index(1000))),
        3 => (distance(), 0..5usize).prop_map(|(ticks, most)| Op::Turn(ticks, most)),
        3 => Just(Op::TurnToWakeup),
    ]
}

/// Runs both side by side; every difference is a panic.
fn check(start: u64, ops: Vec<Op>) {
    let mut wheel = Wheel::new(start);
    let mut model = Model {
        now: start,
        ..Model::default()
    };
    let mut keys: Vec<(Key, (u64, u64))> = Vec::new();
    for op in ops {
        match op {
            Op::InsertAfter(ticks) => insert(&mut wheel, &mut model, &mut keys, start.saturating_add(ticks)),
            Op::InsertAt(deadline) => insert(&mut wheel, &mut model, &mut keys, deadline),
            Op::Remove(index) if !keys.is_empty() => {
                let (key, place) = keys[index % keys.len()];
                assert_eq!(wheel.contains(key), model.timers.contains_key(&place));
                assert_eq!(wheel.remove(key), model.timers.remove(&place));
                assert!(!wheel.contains(key));
            }
            Op::Remove(_) => {}
            Op::Turn(ticks, most) => {
                let now = model.now.saturating_add(ticks);
                for _ in 0..most {
                    assert_eq!(wheel.pop_expired(now), model.pop_expired(now));
                }
            }
            Op::TurnToWakeup => {
                if let Some(now) = wheel.next_wakeup() {
                    turn(&mut wheel, &mut model, now);
                }
            }
        }
        check_wakeup(&wheel, &model);
    }
    // Driven only by next_wakeup, every timer fires exactly at its tick, and few turns are for nothing.
    let (timers, mut idle_turns) = (wheel.len(), 0);
    while let Some(now) = wheel.next_wakeup() {
        let earliest = model.earliest().expect("the wheel has a timer");
        if turn(&mut wheel, &mut model, now) == 0 {
            idle_turns += 1;
        } else {
            assert_eq!(earliest, now, "late");
        }
        check_wakeup(&wheel, &model);
    }
    assert!(idle_turns <= 10 * timers, "{idle_turns} idle turns for {timers} timers");
    assert!(wheel.is_empty() && model.timers.is_empty());
    assert!(keys.iter().all(|(key, _)| !wheel.contains(*key)));
}

fn insert(wheel: &mut Wheel<u64>, model: &mut Model, keys: &mut Vec<(Key, (u64, u64))>, deadline: u64) {
    let key = wheel.insert(deadline, model.inserted);
    assert!(wheel.contains(key));
    keys.push((key, model.insert(deadline)));
}

fn turn(wheel: &mut Wheel<u64>, model: &mut Model, now: u64) -> usize {
    let mut count = 0;
    loop {
        let fired = wheel.pop_expired(now);
        assert_eq!(fired, model.pop_expired(now));
        if fired.is_none() {
            return count;
        }
        count += 1;
    }
}

fn check_wakeup(wheel: &Wheel<u64>, model: &Model) {
    assert_eq!(wheel.len(), model.timers.len());
    assert_eq!(wheel.is_empty(), model.timers.is_empty());
    assert_eq!(wheel.next_wakeup().is_none(), model.timers.is_empty());
    let (Some(wakeup), Some(earliest)) = (wheel.next_wakeup(), model.earliest()) else {
        return;
    };
    assert!(wakeup <= earliest, "asks for {wakeup}, after {earliest}");
    assert!(wakeup >= model.now, "asks for the past");
    if earliest / 64 == model.now / 64 {
        assert_eq!(wakeup, earliest, "not exact in the lowest level");
    }
}

// The wheel has no unsafe code, so miri may see little of it: it took half of the step.
proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn behaves_like_a_sorted_list(
        start in prop_oneof![Just(0), 0..10_000u64, any::<u64>(), Just(u64::MAX - 100)],
        ops in prop::collection::vec(op(), if cfg!(miri) { 1..30 } else { 0..120 }),
    ) {
        check(start, ops);
    }
}

#[test]
fn equal_deadlines_fire_in_order_of_insertion_across_levels() {
    let mut wheel = Wheel::new(0);
    wheel.insert(5000, 'a'); // level 2
    assert_eq!(wheel.pop_expired(4090), None);
    wheel.insert(5000, 'b'); // level 2 as well, later
    assert_eq!(wheel.pop_expired(4990), None);
    wheel.insert(5000, 'c'); // level 0
    assert_eq!(
        [(); 4].map(|()| wheel.pop_expired(5000)),
        [Some('a'), Some('b'), Some('c'), None]
    );
}

#[test]
fn timers_may_come_and_go_between_two_pops() {
    let mut wheel = Wheel::new(0);
    wheel.insert(10, "first");
    let second = wheel.insert(10, "second");
    assert_eq!(wheel.pop_expired(100), Some("first"));
    assert_eq!(wheel.remove(second), Some("second"));
    wheel.insert(0, "past");
    wheel.insert(50, "due");
    let later = wheel.insert(101, "later");
    assert_eq!(
        [(); 3].map(|()| wheel.pop_expired(100)),
        [Some("past"), Some("due"), None]
    );
    assert_eq!((wheel.next_wakeup(), wheel.contains(later)), (Some(101), true));
}

#[test]
fn a_stale_key_does_not_touch_the_timer_in_its_place() {
    let mut wheel = Wheel::new(0);
    let stale = wheel.insert(1, 'x');
    assert_eq!(wheel.pop_expired(1), Some('x'));
    let fresh = wheel.insert(2, 'y');
    assert_ne!(stale, fresh);
    assert_eq!((wheel.remove(stale), wheel.contains(stale)), (None, false));
    assert_eq!(wheel.remove(fresh), Some('y'));
    assert_eq!(wheel.remove(fresh), None);
}

#[test]
fn a_clock_that_goes_back_makes_nothing_early() {
    let mut wheel = Wheel::new(1000);
    wheel.insert(1500, ());
    assert_eq!(wheel.pop_expired(1400), None);
    assert_eq!(wheel.pop_expired(3), None);
    wheel.insert(20, ());
    assert_eq!(wheel.next_wakeup(), Some(1400), "due at once");
    assert_eq!([(); 2].map(|()| wheel.pop_expired(3)), [Some(()), None]);
}

/// A million at once: half are cancelled, half fire, all in order. Prints what an operation costs.
#[test]
fn a_million_live_timers() {
    let count: u64 = if cfg!(miri) { 100 } else { 1_000_000 };
    let mut wheel = Wheel::new(0);
    // A fixed scramble over ten minutes (Knuth's multiplicative hash).
    let deadline = |index: u64| 1 + (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % 600_000;

    let start = Instant::now();
    let keys: Vec<Key> = (0..count).map(|index| wheel.insert(deadline(index), index)).collect();
    let inserted = start.elapsed();
    assert_eq!(wheel.len(), count as usize);

    let start = Instant::now();
    for key in keys.iter().step_by(2) {
        assert!(wheel.remove(*key).is_some());
    }
    let removed = start.elapsed();
    assert_eq!(wheel.len(), count as usize / 2);

    let start = Instant::now();
    let (mut fired, mut last) = (0, 0);
    while let Some(now) = wheel.next_wakeup() {
        while let Some(index) = wheel.pop_expired(now) {
            assert!(index % 2 == 1 && deadline(index) == now && now >= last);
            last = now;
            fired += 1;
        }
    }
    let popped = start.elapsed();
    assert_eq!(fired, count / 2);

    let each = |time: std::time::Duration, of: u64| time.as_nanos() as f64 / of as f64;
    println!(
        "{count} timers: insert {:.0} ns, remove {:.0} ns, fire {:.0} ns each",
        each(inserted, count),
        each(removed, count / 2),
        each(popped, count / 2)
    );
}

#[test]
fn an_emptied_wheel_goes_on_where_it_stood() {
    let mut wheel = Wheel::new(0);
    assert_eq!(wheel.pop_expired(100), None);
    let keys: Vec<_> = [101, 5_000, u64::MAX - 1].map(|tick| wheel.insert(tick, tick)).into();
    let mut emptied: Vec<u64> = std::iter::from_fn(|| wheel.pop_any()).collect();
    emptied.sort_unstable();
    assert_eq!(emptied, [101, 5_000, u64::MAX - 1]);
    assert!(wheel.is_empty() && keys.into_iter().all(|key| !wheel.contains(key)));
    let mut key = wheel.insert(103, 103);
    assert_eq!(wheel.get_mut(key).copied(), Some(103));
    assert_eq!((wheel.pop_expired(102), wheel.pop_expired(103)), (None, Some(103)));
    assert_eq!(wheel.get_mut(key), None);
    key = wheel.insert(104, 104);
    assert!(wheel.contains(key));
}
