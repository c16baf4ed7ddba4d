//! The crate under valgrind: stacks are registered, so memcheck neither warns of switched stacks nor finds errors.

use crate::{SMALL_REGION, child, small_stack};
use osier_coro::stack::{Config, Guard, Pool};
use osier_coro::{Coroutine, CoroutineResult, panic_count};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};

const TEST: &str = "memcheck_finds_nothing_to_say";

/// Everything that switches stacks, a few times over.
fn workload() -> u64 {
    let mut sum = 0;
    for guard in [Guard::Auto, Guard::Mprotect] {
        let pool = Pool::new(Config {
            guard,
            region_bytes: SMALL_REGION,
            ..Config::default()
        })
        .unwrap();
        for round in 0..20 {
            let mut all: Vec<_> = (0..8u64)
                .map(|n| {
                    let mut coroutine = Coroutine::<u64, u64, u64>::new(pool.take(None).unwrap(), move |y, mut x| {
                        let filled = std::hint::black_box([n; 4096]);
                        let text = std::hint::black_box(Box::new(format!("{n}")));
                        for _ in 0..n {
                            x += y.suspend(x + filled[x as usize % 4096]);
                        }
                        if n == 6 {
                            resume_unwind(Box::new(x));
                        }
                        x + text.len() as u64
                    });
                    coroutine.resume(n);
                    coroutine
                })
                .collect();
            for coroutine in &mut all {
                for _ in 0..round % 8 {
                    if coroutine.is_finished() {
                        break;
                    }
                    match catch_unwind(AssertUnwindSafe(|| coroutine.resume(1))) {
                        Ok(CoroutineResult::Yield(x) | CoroutineResult::Return(x)) => sum += x,
                        Err(_) => sum += 1,
                    }
                }
            }
            for mut coroutine in all {
                if coroutine.is_finished() {
                    coroutine.reset(|_, x| x);
                    coroutine.resume(0);
                    pool.give(coroutine.into_stack());
                }
            }
            pool.trim();
        }
    }
    unwind_and_suspend();
    sum
}

fn unwind_and_suspend() {
    struct Suspend<'a>(&'a osier_coro::Yielder<(), ()>);
    impl Drop for Suspend<'_> {
        fn drop(&mut self) {
            self.0.suspend(());
        }
    }
    let mut coroutine = Coroutine::<(), (), ()>::new(small_stack(0), |y, ()| {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let _suspend = Suspend(y);
            resume_unwind(Box::new(()));
        }));
    });
    coroutine.resume(());
    let held = panic_count::take();
    assert_eq!((held, std::thread::panicking()), (1, false));
    panic_count::put(held);
    assert_eq!(coroutine.resume(()), CoroutineResult::Return(()));
}

#[test]
fn memcheck_finds_nothing_to_say() {
    if child::is_child("valgrind") {
        return println!("sum {}", workload());
    }
    if testkit::is_emulated() {
        return testkit::skip("valgrind does not run what an emulator runs");
    }
    let version = Command::new("valgrind").arg("--version").stderr(Stdio::null()).output();
    let Some(version) = version.ok().filter(|out| out.status.success()) else {
        return println!("skipped: valgrind is not installed");
    };
    println!("{}", String::from_utf8_lossy(&version.stdout).trim());
    let test = child::command(TEST, "valgrind");
    let out = Command::new("valgrind")
        .args(["--error-exitcode=99", "--quiet"])
        .arg(test.get_program())
        .args(test.get_args())
        .envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::null())
        .output()
        .expect("valgrind ran a moment ago");
    let (said, err) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(out.status.success(), "{}\n{said}{err}", out.status);
    assert!(
        said.contains(&format!("sum {}", workload())),
        "the workload did not run:\n{said}{err}"
    );
    assert!(!err.contains("switching stacks"), "{err}");
    assert!(!err.contains("=="), "memcheck has something to say:\n{err}");
}
