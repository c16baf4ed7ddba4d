//! Charges a body that a handler reads as a whole, and refuses it while memory is short.

use std::io::{self, Read};

use osier::memory::{self, Account, Charge, Pressure};

use crate::Rejection;

/// The part of a body that is received even while memory is short.
const ALWAYS_BYTES: usize = 16 << 10;

/// Reads from `R` for a buffer that grows.
pub(crate) struct Charged<R> {
    from: R,
    charge: Charge,
}

impl<R: Read> Charged<R> {
    pub(crate) fn new(from: R) -> Charged<R> {
        Charged {
            from,
            charge: Account::BODIES.charge(0),
        }
    }
}

impl<R: Read> Read for Charged<R> {
    /// Fails with a [`Rejection`] by 503 beyond [`ALWAYS_BYTES`] while memory is short.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.charge.bytes() >= ALWAYS_BYTES && memory::pressure() == Pressure::Critical {
            return Err(Rejection::no_memory().into());
        }
        let count = self.from.read(into)?;
        self.charge.resize(self.charge.bytes() + count);
        Ok(count)
    }
}
