//! The examples, started as a reader would start them.

mod callbacks;
mod common;
mod news;
mod simulation;
mod smoke;
mod web;
