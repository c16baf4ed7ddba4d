//! Bodies: reading the body of a request, and making and sending the body of a response.

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod ahead;
pub(crate) mod incoming;
pub(crate) mod outgoing;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod relay;
pub(crate) mod send;
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
pub(crate) mod spool;

/// The sizes of the temporary files in which `proxy` and `fastcgi` keep bodies for slow clients, in bytes, for all servers of
/// the process.
#[cfg(any(feature = "fastcgi", feature = "proxy"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spooled {
    /// The files of request bodies. `buffer_total` of both gateways bounds them.
    pub requests: u64,
    /// The files of responses. `read_ahead_total` of both gateways bounds them.
    pub responses: u64,
}

#[cfg(any(feature = "fastcgi", feature = "proxy"))]
impl Spooled {
    /// The sizes at this moment.
    pub fn now() -> Spooled {
        Spooled {
            requests: spool::file_bytes(),
            responses: ahead::file_bytes(),
        }
    }
}
