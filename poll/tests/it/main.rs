//! The tests of osier-poll, each on every driver of the build.

mod common;
mod poller;
mod readiness;
mod registration;
mod sources;
mod wait;
