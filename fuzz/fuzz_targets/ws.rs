//! Fuzzes the bytes of a WebSocket client. The decoder never panics, its result does not depend on the pieces, and an encoded frame
//! is decoded again. The decoder is private to its crate, so this target includes its files as `web/src/ws/mod.rs` does.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // only a connection uses the other functions
#![allow(unexpected_cfgs)] // features of osier-web

#[path = "../../web/src/ws/decode.rs"]
mod decode;
#[path = "../../web/src/ws/frame.rs"]
mod frame;
#[path = "../../web/src/ws/law.rs"]
mod law;
#[path = "../../web/src/ws/message.rs"]
mod message;

use frame::Frame;
use message::{Close, Message};
use osier_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| law::check(data));
