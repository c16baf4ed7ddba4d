//! Policies: checks of requests and changes of responses. Each policy has its own settings type, which the configuration
//! fills, and knows nothing of the configuration.

pub mod access;
pub mod auth;
pub mod client;
pub mod cors;
pub mod headers;
pub mod path;
pub mod rate;
pub mod rewrite;
pub mod template;
