//! Fuzzes the messages between the two processes of an upgrade. Reading never panics, and writing a parsed message gives the same bytes
//! again. The format is private to its crate, so this target includes its files as `web/src/conn/handover/mod.rs` does.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // only an upgrade uses the other functions

#[path = "../../web/src/conn/handover/fields.rs"]
mod fields;
#[path = "../../web/src/conn/handover/format.rs"]
mod format;
#[path = "../../web/src/conn/handover/law.rs"]
mod law;
#[path = "../../web/src/conn/handover/record.rs"]
mod record;

use osier_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| law::check(data));
