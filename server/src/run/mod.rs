//! A server from its start to its end.

mod admin;
pub mod folder;
mod listeners;
pub mod sites;
mod startup;
