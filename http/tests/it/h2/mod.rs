//! HTTP/2.

mod frames;
mod hpack;
