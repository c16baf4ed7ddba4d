//! Finds, parses and checks the head of a request, and decides the framing of its body.

pub(crate) mod framing;
mod head;
mod outline;
mod scan;
mod target;

pub use framing::BodyLength;
pub use head::Head;
pub use outline::Outline;
pub use scan::{HeadScanner, LEADING_EMPTY_LINES};
pub use target::Form;
