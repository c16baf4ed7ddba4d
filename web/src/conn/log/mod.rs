//! Lines for the operator, and the ids of requests.

pub(crate) mod id;
pub(crate) mod record;
