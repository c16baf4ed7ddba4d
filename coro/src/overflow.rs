//! to come
use std::io;
/// Prepares this thread.
pub fn install_for_thread() -> io::Result<()> {
    Ok(())
}
