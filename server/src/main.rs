//! The web server called osier.
#![forbid(unsafe_code)]
// Until `serve` stands on the web crate, nothing calls these.
#![allow(dead_code)]

mod access_log;
mod cache;
mod calendar;
mod cli;
mod conditional;
mod listing;
mod mime;
mod negotiate;
mod range;
mod resource;
mod root;
#[cfg(test)]
mod scratch;
mod target;

fn main() {}
