//! The stack pool: reuse, sizes, guards, limits. A test that ends or limits a process runs in a child process: this binary again.

use crate::child;
use osier_coro::stack::{self, Config, Counters, GUARD_BYTES, Guard, MAX_STACK_BYTES, MIN_STACK_BYTES, Pool};
use osier_coro::{Coroutine, CoroutineResult, Stack};
use std::io::ErrorKind;

fn top(stack: &Stack) -> usize {
    corosensei::stack::Stack::base(stack).get()
}

fn pool(guard: Guard) -> Pool {
    Pool::new(Config {
        guard,
        ..Config::default()
    })
    .unwrap()
}

/// Touches at least the topmost 48 KiB of a stack, and says so.
fn touch_deep(stack: Stack) -> (Stack, usize) {
    const BYTES: usize = 48 * 1024;
    let mut coroutine = Coroutine::<(), (), u8>::new(stack, |_, ()| {
        let mut filled = [0u8; BYTES];
        std::hint::black_box(&mut filled).fill(1);
        filled[BYTES / 2]
    });
    assert_eq!(coroutine.resume(()), CoroutineResult::Return(1));
    (coroutine.into_stack(), BYTES)
}

/// Bytes of the stack below `top` that are in memory.
fn resident(top: usize, bytes: usize) -> usize {
    let page = rustix::param::page_size();
    let (start, end) = ((top - bytes).next_multiple_of(page), top.next_multiple_of(page));
    let mut pages = vec![0u8; (end - start) / page];
    // SAFETY: the range is part of a stack this test owns, and there is a byte for each of its pages.
    let result = unsafe { libc::mincore(std::ptr::without_provenance_mut(start), end - start, pages.as_mut_ptr()) };
    assert_eq!(result, 0, "mincore: {}", std::io::Error::last_os_error());
    pages.iter().filter(|p| **p & 1 == 1).count() * page
}

#[test]
fn the_stack_given_last_is_taken_first() {
    let pool = pool(Guard::Auto);
    let stacks = [0; 3].map(|_| pool.take(None).unwrap());
    let tops = stacks.each_ref().map(top);
    assert_eq!(
        pool.counters(),
        Counters {
            live: 3,
            pooled: 0,
            high_water: 3
        }
    );
    stacks.into_iter().for_each(|s| pool.give(s));
    assert_eq!(
        pool.counters(),
        Counters {
            live: 0,
            pooled: 3,
            high_water: 3
        }
    );
    let again = [0; 3].map(|_| top(&pool.take(None).unwrap()));
    assert_eq!(again, [tops[2], tops[1], tops[0]]);
}

#[test]
fn sizes_come_from_classes_of_their_own() {
    let pool = pool(Guard::Auto);
    for (asked, given) in [
        (1, MIN_STACK_BYTES),
        (200_000, 256 << 10),
        (256 << 10, 256 << 10),
        (1_000_000, 1 << 20),
    ] {
        let stack = pool.take(Some(asked)).unwrap();
        assert_eq!(stack.stack_bytes(), given);
        let address = top(&stack);
        pool.give(stack);
        assert_eq!(top(&pool.take(Some(asked)).unwrap()), address);
    }
    assert_eq!(
        pool.take(Some(MAX_STACK_BYTES + 1)).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    let largest = pool.take(Some(MAX_STACK_BYTES)).unwrap();
    assert_eq!(largest.stack_bytes(), MAX_STACK_BYTES);
}

#[test]
fn a_page_without_a_label_lies_between_two_stacks() {
    // No other test uses this class, so the two are neighbours.
    const BYTES: usize = 16 << 20;
    let pool = pool(Guard::Auto);
    let page = rustix::param::page_size();
    let stacks = [0; 2].map(|_| pool.take(Some(BYTES)).unwrap());
    let ends = stacks.each_ref().map(|stack| {
        assert!(stack::Label::at(stack.address()).is_some());
        stack::end(stack.address()).unwrap()
    });
    assert_eq!(ends[0].abs_diff(ends[1]), BYTES + page);
    let lower = ends[0].min(ends[1]);
    for address in [lower, lower + page - 1] {
        assert!(stack::Label::at(address).is_none());
    }
}

#[test]
fn a_large_stack_is_usable_down_to_its_guard() {
    for bytes in [MIN_STACK_BYTES, 1 << 20] {
        let stack = Stack::new(bytes).unwrap();
        let low = corosensei::stack::Stack::limit(&stack).get() + GUARD_BYTES;
        assert!(top(&stack) - low >= bytes - GUARD_BYTES - 1024);
        // SAFETY: nothing runs on the stack this test owns; the word is in its usable part.
        unsafe { std::ptr::without_provenance_mut::<u64>(low).write_volatile(1) };
    }
}

#[test]
fn a_stack_outlives_its_pool_and_serves_the_next_one() {
    let first = pool(Guard::Auto);
    let stack = first.take(Some(32 << 20)).unwrap();
    let address = top(&stack);
    let mut coroutine = Coroutine::<(), (), u32>::new(stack, |y, ()| {
        y.suspend(());
        5
    });
    coroutine.resume(());
    drop(first);
    assert_eq!(coroutine.resume(()), CoroutineResult::Return(5));
    drop(coroutine);
    // No other test uses this class.
    assert_eq!(top(&pool(Guard::Auto).take(Some(32 << 20)).unwrap()), address);
}

#[test]
fn a_dropped_stack_gives_its_memory_back() {
    let (stack, bytes) = touch_deep(Stack::new(64 << 20).unwrap());
    let address = top(&stack);
    assert!(resident(address, bytes) >= bytes / 2);
    drop(stack);
    // No other test uses this class, so nobody took it in between.
    assert_eq!(resident(address, bytes), 0);
}

#[test]
fn trimming_keeps_the_top_page_of_a_quiet_stack() {
    let pool = pool(Guard::Auto);
    let (stack, bytes) = touch_deep(pool.take(None).unwrap());
    let address = top(&stack);
    pool.give(stack);
    pool.trim();
    assert!(
        resident(address, bytes) >= bytes / 2,
        "it was used in the spell that ends here"
    );
    assert_eq!(pool.trim(), 1);
    assert_eq!(resident(address, bytes), rustix::param::page_size());
    let (stack, _) = touch_deep(pool.take(None).unwrap());
    assert_eq!(top(&stack), address);
}

#[test]
fn both_kinds_of_guard_fault_and_leave_the_neighbours_alone() {
    for guard in [Guard::Auto, Guard::Mprotect] {
        let pool = pool(guard);
        let stacks = [0; 3].map(|_| pool.take(None).unwrap());
        for stack in &stacks {
            let limit = corosensei::stack::Stack::limit(stack).get();
            for offset in [0, GUARD_BYTES / 2, GUARD_BYTES - 1] {
                assert!(
                    !child::readable(limit + offset),
                    "{guard:?}: {offset} bytes above the limit"
                );
            }
            assert!(child::readable(limit + GUARD_BYTES) && child::readable(top(stack) - 1));
        }
    }
}

#[test]
fn too_many_mprotect_guards_are_an_error_that_names_the_limit() {
    if !child::is_child("max_map_count") {
        let out = child::run(
            "too_many_mprotect_guards_are_an_error_that_names_the_limit",
            "max_map_count",
        );
        assert!(out.status.success(), "{out:?}");
        return print!("{}", String::from_utf8_lossy(&out.stdout));
    }
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|s| s.trim().parse::<usize>().ok());
    let Some(limit) = limit.filter(|limit| *limit <= 1_000_000) else {
        return println!("skipped: vm.max_map_count is {limit:?}, too many mappings to make in a test");
    };
    let pool = pool(Guard::Mprotect);
    let mut stacks = Vec::new();
    let error = loop {
        match pool.take(None) {
            Ok(stack) => stacks.push(stack),
            Err(e) => break e,
        }
        assert!(stacks.len() <= limit, "mprotect made no mappings");
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let line = error.to_string();
    assert!(
        line.contains(&format!("vm.max_map_count ({limit})")) && line.contains("sysctl"),
        "{line}"
    );
    assert!(stacks.len() > limit / 3, "only {} stacks", stacks.len());
    // Nothing is lost: what there is still works, and a stack given back can be had again.
    let mut coroutine = Coroutine::<(), (), u8>::new(stacks.pop().unwrap(), |_, ()| 9);
    assert_eq!(coroutine.resume(()), CoroutineResult::Return(9));
    pool.give(coroutine.into_stack());
    assert!(pool.take(None).is_ok());
    println!("{} stacks, then: {line}", stacks.len() + 1);
}

#[test]
fn exhausted_address_space_is_an_error_that_names_the_limit() {
    if !child::is_child("address_space") {
        let out = child::run(
            "exhausted_address_space_is_an_error_that_names_the_limit",
            "address_space",
        );
        assert!(out.status.success(), "{out:?}");
        return;
    }
    let now = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = now.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * rustix::param::page_size() as u64 + (64 << 20);
    let limit = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: a plain call with a valid struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let pool = pool(Guard::Auto);
    let mut stacks = Vec::new();
    let error = loop {
        match pool.take(None) {
            Ok(stack) => stacks.push(stack),
            Err(e) => break e,
        }
        assert!(stacks.len() < 1000, "the limit does nothing");
    };
    assert!(
        stacks.len() >= 16,
        "smaller regions were not tried: {} stacks, {error}",
        stacks.len()
    );
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let line = error.to_string();
    assert!(
        line.contains("RLIMIT_AS") && line.contains("stack_bytes") && line.contains("max_map_count"),
        "{line}"
    );
}

#[test]
fn stacks_in_locked_memory_are_guarded_too() {
    const TEST: &str = "stacks_in_locked_memory_are_guarded_too";
    if !child::is_child("mlockall") {
        let out = child::run(TEST, "mlockall");
        assert!(out.status.success(), "{out:?}");
        return print!("{}", String::from_utf8_lossy(&out.stdout));
    }
    let small = Config {
        region_bytes: 4 << 20,
        ..Config::default()
    };
    let pool = Pool::new(small).unwrap();
    let before = pool.take(None).unwrap();
    // SAFETY: a plain call.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        return println!("skipped: mlockall: {}", std::io::Error::last_os_error());
    }
    // The rest of the old region, then a new one that is locked from the start.
    let after: Vec<_> = (0..20).map(|_| pool.take(None).unwrap()).collect();
    for stack in after.iter().chain([&before]) {
        let limit = corosensei::stack::Stack::limit(stack).get();
        assert!(
            !child::readable(limit) && !child::readable(limit + GUARD_BYTES - 1),
            "{stack:?}"
        );
        assert!(
            child::readable(limit + GUARD_BYTES) && child::readable(top(stack) - 1),
            "{stack:?}"
        );
    }
}
