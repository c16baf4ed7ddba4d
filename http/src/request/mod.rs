//! A request as the server receives it: delimited, cut into its parts, checked, and its body's framing decided.

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
