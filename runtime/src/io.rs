//! Waiting for any descriptor. (The net helper adds sendfile and copy.)

use crate::source::Watched;

mod sealed {
    pub trait Sealed {}
}
pub(crate) use sealed::Sealed;

/// A socket of ours, as what [`Dormant`](crate::dormant::Dormant) waits for. Sealed.
pub trait Source: Sealed {
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn watched(&self) -> &Watched;
}
