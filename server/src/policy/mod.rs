//! Policies: checks of requests and changes of responses. Each policy has its own settings type and does not depend on
//! the configuration.

pub mod access;
pub mod auth;
pub mod authority;
pub mod backend_tls;
pub mod cache;
pub mod client;
pub mod forward_auth;
pub mod headers;
pub mod jwt;
pub mod path;
pub mod prefixes;
pub mod real_ip;
pub mod request_id;
pub mod rewrite;
pub mod trace;
pub mod watched;

pub use osier_web::wrap::{cors, rate};
