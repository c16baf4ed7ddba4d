//! Reads `http2` of `[[listen]]`: whether clients may speak HTTP/2, and the limits of their connections.

use std::ops::RangeInclusive;

use osier_web::Http2Limits;
use toml::de::DeValue;

use crate::reader::Section;

/// The largest window (RFC 9113 section 6.9.1).
const MAX_WINDOW: u64 = (1 << 31) - 1;

/// The least and the largest limit of a frame's payload (RFC 9113 section 6.5.2).
const FRAMES: RangeInclusive<u64> = 1 << 14..=(1 << 24) - 1;

/// The largest table, list of heads and output. A connection that reaches them needs that memory.
const MEMORY_MAX: u64 = 1 << 30;

/// Bytes of heads that a connection gets for each of its streams, unless the file says how many it gets.
const HEADS_OF_A_STREAM: usize = 5 << 10;

/// So many times its size the window of a connection grows by, unless the file says how far: 16 MiB with the default.
const GROWTH_OF_A_WINDOW: u64 = 8;

/// The highest count and rate, in effect no limit.
const COUNT_MAX: u64 = 1_000_000_000;

/// Reads `true`, `false` or a table of limits. `None` for a listener that does not speak HTTP/2.
pub fn http2(section: &Section<'_>) -> Option<Http2Limits> {
    match section.any("http2").map(|value| (value, value.get_ref())) {
        None => Some(Http2Limits::DEFAULT),
        Some((value, DeValue::Table(_))) => section.as_section("http2", value, "a table").map(limits),
        Some(_) => section.boolean("http2").unwrap_or(true).then_some(Http2Limits::DEFAULT),
    }
}

fn limits(table: Section<'_>) -> Http2Limits {
    let default = Http2Limits::DEFAULT;
    let number = |key, range, default| table.integer(key, range).map_or(default, |number| number as u32);
    let bytes = |key, range, default| size(&table, key, range).map_or(default, |bytes| bytes as u32);
    let memory = |key, least, default| size(&table, key, least..=MEMORY_MAX).map_or(default, |bytes| bytes as usize);
    let max_streams = number("max_streams", 1..=1_000_000, default.max_streams);
    let heads = default.heads_bytes.max(max_streams as usize * HEADS_OF_A_STREAM);
    let connection_window = bytes("connection_window", 65_535..=MAX_WINDOW, default.connection_window);
    // A small window is meant to bound the memory of a connection.
    let growth = u64::from(connection_window) * GROWTH_OF_A_WINDOW;
    let limits = Http2Limits {
        max_streams,
        max_tunnels: number("max_tunnels", 0..=1_000_000, default.max_tunnels),
        heads_bytes: memory("heads_bytes", 1 << 10, heads.min(MEMORY_MAX as usize)),
        stream_window: bytes("stream_window", 1..=MAX_WINDOW, default.stream_window),
        connection_window,
        growth: bytes("growth", 0..=MAX_WINDOW, growth.min(MAX_WINDOW) as u32),
        max_frame: bytes("max_frame", FRAMES, default.max_frame),
        decoder_table: bytes("decoder_table", 0..=MEMORY_MAX, default.decoder_table),
        encoder_table: bytes("encoder_table", 0..=MEMORY_MAX, default.encoder_table),
        extended_connect: table.boolean("extended_connect").unwrap_or(default.extended_connect),
        output_bytes: memory("output_bytes", 1 << 10, default.output_bytes),
        reset_burst: number("reset_burst", 1..=COUNT_MAX, default.reset_burst),
        reset_rate: number("reset_rate", 1..=COUNT_MAX, default.reset_rate),
        frame_burst: number("frame_burst", 1..=COUNT_MAX, default.frame_burst),
        frame_rate: number("frame_rate", 1..=COUNT_MAX, default.frame_rate),
        ..default
    };
    table.finish();
    limits
}

/// Reads a number of bytes within `range`.
fn size(table: &Section<'_>, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
    let bytes = table.size(key)?;
    if range.contains(&bytes) {
        return Some(bytes);
    }
    let (least, most) = (range.start(), range.end());
    if let Some(at) = table.key(key) {
        let text = format!("'{key}' must be a size from {least} to {most} bytes, not {bytes}");
        table.source().problem(&at, text);
    }
    None
}
