//! The budget: a change of level wakes every waiter, and a sum of parallel changes has its level.

use super::*;
use osier_queue::{Budget, Pressure};

const LIMIT: usize = 1000;

/// Waits until the level is not `from`. Returns it, and whether it had to wait.
fn wait(budget: &Budget, from: Pressure) -> (Pressure, bool) {
    let mut waiter = pin!(budget.waiter());
    let mut waited = false;
    let level = block_on(poll_fn(|cx| {
        let polled = budget.poll_change(from, waiter.as_mut(), cx);
        waited |= polled.is_pending();
        polled
    }));
    (level, waited)
}

fn holding(bytes: isize) -> Arc<Budget> {
    let budget = Arc::new(Budget::new());
    budget.set_limit(LIMIT);
    budget.add(bytes);
    budget
}

fn add(budget: &Arc<Budget>, change: isize) -> thread::JoinHandle<()> {
    let budget = budget.clone();
    thread::spawn(move || budget.add(change))
}

#[test]
fn no_fall_is_lost() {
    model("budget: a fall races a wait", None, &[0, 1], || {
        let budget = holding(900);
        let other = add(&budget, -200);
        let (level, waited) = wait(&budget, Pressure::High);
        assert_eq!(level, Pressure::Normal);
        other.join().unwrap();
        waited as usize
    });
}

#[test]
fn two_changes_that_cross_only_together_wake_the_waiter() {
    model("budget: two rises race a wait", Some(3), &[0, 1], || {
        let budget = holding(600);
        let others = [150, 100].map(|change| add(&budget, change));
        let (level, waited) = wait(&budget, Pressure::Normal);
        assert_eq!(level, Pressure::High);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(budget.held(), 850);
        waited as usize
    });
}

#[test]
fn a_new_limit_wakes_the_waiter() {
    model("budget: a new limit races a wait", Some(3), &[0, 1], || {
        let budget = holding(900);
        let other = {
            let budget = budget.clone();
            thread::spawn(move || budget.set_limit(10 * LIMIT))
        };
        let (level, waited) = wait(&budget, Pressure::High);
        assert_eq!(level, Pressure::Normal);
        other.join().unwrap();
        waited as usize
    });
}
