//! The attributes `osier::main` and `osier::test` on functions of every shape that they take.

use std::time::Duration;

#[osier::test]
fn a_test_runs_on_a_fiber_of_one_worker() {
    assert!(osier::fiber::current().is_some());
    assert_eq!(osier::workers(), 1);
    assert_eq!(osier::spawn(|| 7).join().unwrap(), 7);
}

#[osier::test(workers = 3)]
fn a_test_may_ask_for_workers() -> std::io::Result<()> {
    assert_eq!(osier::workers(), 3);
    let (_ours, _theirs) = osier::net::UnixStream::pair()?;
    Ok(())
}

#[osier::test(virtual_clock)]
fn an_hour_of_virtual_time_takes_none() {
    let began = std::time::Instant::now();
    osier::sleep(Duration::from_secs(3600));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[osier::test]
#[should_panic(expected = "on purpose")]
fn a_panic_fails_the_test() {
    panic!("on purpose");
}

/// A function like `main`, with attributes and a visibility of its own.
#[osier::main(workers = 2)]
pub fn entry() -> Result<usize, String> {
    if osier::workers() == 0 {
        return Err("no worker".to_owned());
    }
    let workers: usize = "2".parse().map_err(|_| "no number".to_owned())?;
    assert!(osier::fiber::current().is_some());
    Ok(workers.min(osier::workers()))
}

#[test]
fn main_returns_what_its_body_returns() {
    assert_eq!(entry(), Ok(2));
}
