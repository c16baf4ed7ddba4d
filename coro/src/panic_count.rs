//! to come
/// Takes.
pub fn take() -> usize {
    0
}
/// Puts.
pub fn put(_n: usize) {}
