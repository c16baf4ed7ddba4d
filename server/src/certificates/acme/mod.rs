//! Certificates of public authorities: a client of the ACME protocol (RFC 8555) on fibers, in blocking style.
//!
//! ```text
//!   keeper      when: missing, due for renewal, after a failure
//!     issue     one certificate: lock, account, order, store
//!       order       proofs of the names, the signing request, the chain
//!       protocol    signed requests, nonces, repetitions  ── https
//!       jose        keys and signatures
//!       challenge   shows proofs: on the listeners, or by a program
//!     storage   the state folder, or Redis
//!     schedule  times, as pure functions
//! ```

pub mod challenge;
pub mod https;
pub mod issue;
pub mod jose;
pub mod keeper;
pub mod order;
pub mod protocol;
pub mod schedule;
pub mod settings;
pub mod storage;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
