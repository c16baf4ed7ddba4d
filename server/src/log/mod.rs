//! Log output: the access log of requests, and lines for the operator.

pub mod access;
mod entry;
pub mod operator;
