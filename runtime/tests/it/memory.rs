//! Accounts of memory: charges of many threads add up, the pressure follows, and its waiters wake.
//!
//! The accounts belong to the process, and other tests of this binary charge stacks. So the tests set limits far above those.

use std::sync::Mutex;
use std::thread;

use crate::given::{settle, timeless};
use osier::memory::{self, Account, BATCH_BYTES, Charge, Pressure};

/// More than all tests hold otherwise.
const GIB: usize = 1 << 30;

/// The tests that set the limit of the process come one after the other.
static LIMIT: Mutex<()> = Mutex::new(());

fn send<T: Send>() {}

#[test]
fn charges_of_many_threads_add_up_and_leave_nothing() {
    send::<Charge>();
    let account = Account::named("test: many threads");
    assert_eq!(account, Account::named("test: many threads"));
    assert_eq!(account.name(), "test: many threads");
    let (give, take) = std::sync::mpsc::channel();
    let charging = |size: usize| {
        let give = give.clone();
        thread::spawn(move || {
            for _ in 0..1000 {
                let mut charge = account.charge(size * 100);
                charge.resize(size * 200);
                give.send(charge).unwrap();
            }
        })
    };
    let threads: Vec<_> = (1..=8).map(charging).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let charges: Vec<Charge> = take.try_iter().collect();
    assert_eq!(account.held(), 36 * 200 * 1000, "threads that have ended have settled");
    let all = memory::accounts();
    assert!(
        all.iter()
            .any(|(known, held)| (*known, *held) == (account, account.held()))
    );
    drop(charges);
    memory::settle();
    assert_eq!(account.held(), 0);
}

#[test]
fn a_thread_keeps_less_than_a_batch_to_itself() {
    let account = Account::named("test: batch");
    let small = account.charge(BATCH_BYTES - 1);
    assert_eq!(account.held(), 0);
    let more = account.charge(1);
    assert_eq!(account.held(), BATCH_BYTES);
    drop((small, more));
    memory::settle();
    assert_eq!(account.held(), 0);
}

#[test]
fn the_pressure_follows_the_charges_and_wakes_who_waits() {
    let _limit = LIMIT.lock().unwrap();
    memory::set_limit(Some(100 * GIB));
    assert_eq!(
        (memory::limit(), memory::pressure()),
        (Some(100 * GIB), Pressure::Normal)
    );
    let account = Account::named("test: pressure");
    timeless(2).run(move || {
        let waiting = osier::spawn(|| {
            let mut seen = vec![memory::wait_for_change(Pressure::Normal)];
            while seen.last() != Some(&Pressure::Normal) {
                seen.push(memory::wait_for_change(seen[seen.len() - 1]));
            }
            seen
        });
        let mut charge = account.charge(0);
        for part in [85, 96, 10] {
            // The waiter waits by now.
            settle();
            charge.resize(part * GIB);
        }
        let levels = [Pressure::High, Pressure::Critical, Pressure::Normal];
        assert_eq!(waiting.join().unwrap(), levels);
    });
    memory::set_limit(None);
    assert_eq!(memory::limit(), None);
}

#[test]
fn what_is_measured_counts_besides_the_accounts() {
    let _limit = LIMIT.lock().unwrap();
    memory::set_limit(Some(100 * GIB));
    let account = Account::named("test: measured");
    let charge = account.charge(50 * GIB);
    memory::measured(90 * GIB);
    assert_eq!(memory::pressure(), Pressure::High);
    memory::measured(GIB);
    assert_eq!(memory::pressure(), Pressure::Normal, "the accounts count at least");
    assert!(memory::held() >= 50 * GIB);
    drop(charge);
    memory::measured(0);
    memory::set_limit(None);
}
