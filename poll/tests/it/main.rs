//! The tests of osier-poll, each on every driver of the build.

mod common;
mod eventfd;
mod poller;
mod registration;
mod sources;
mod wait;
