//! Bodies: reading the body of a request, and making and sending the body of a response.

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod ahead;
pub(crate) mod incoming;
pub(crate) mod outgoing;
pub(crate) mod send;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod spool;
