//! A WebSocket client's bytes: never panics, does not depend on the pieces, and what is encoded is decoded. The decoder is no public
//! part of its crate, so its files stand here as they do in `web/src/ws/mod.rs`.
#![no_main]
#![allow(dead_code)] // what a connection needs besides

#[path = "../../web/src/ws/decode.rs"]
mod decode;
#[path = "../../web/src/ws/frame.rs"]
mod frame;
#[path = "../../web/src/ws/law.rs"]
mod law;
#[path = "../../web/src/ws/message.rs"]
mod message;

use frame::Frame;
use libfuzzer_sys::fuzz_target;
use message::{Close, Message};

fuzz_target!(|data: &[u8]| law::check(data));
