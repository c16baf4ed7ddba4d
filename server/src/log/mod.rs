//! What the server writes down: requests in the access log, trouble for the operator.

pub mod access;
pub mod operator;
