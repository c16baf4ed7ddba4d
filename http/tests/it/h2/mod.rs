//! HTTP/2.

mod frames;
