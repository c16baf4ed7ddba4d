//! The tests of osier-coro. A test that ends or limits its process runs itself again in a child.

mod child;
mod coroutine;
mod overflow;
mod panic_count;
mod stack;
mod valgrind;

use osier_coro::Stack;
use osier_coro::stack::{Config, Pool};

/// Room for the stacks of a test under valgrind, which notes the state of each byte that is mapped. The usual region of 1 GiB takes it three
/// seconds.
const SMALL_REGION: usize = 8 << 20;

/// A stack of at least so many bytes, from a small region.
fn small_stack(stack_bytes: usize) -> Stack {
    let config = Config {
        stack_bytes,
        region_bytes: SMALL_REGION,
        ..Config::default()
    };
    Pool::new(config).and_then(|pool| pool.take(None)).unwrap()
}
