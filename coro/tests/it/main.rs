//! The tests of osier-coro. A test that ends or limits its process runs itself again in a child.

mod child;
mod coroutine;
mod overflow;
mod panic_count;
mod stack;
mod valgrind;
