//! Bodies: the bytes of a request as they come, and what a response sends.

pub(crate) mod incoming;
pub(crate) mod outgoing;
pub(crate) mod send;
