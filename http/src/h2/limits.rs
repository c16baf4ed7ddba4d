//! The bounds of a connection: what a peer may make it hold, and how often a peer may make it work for nothing.

use std::time::Duration;

use super::frame::{DEFAULT_MAX_FRAME_SIZE, MAX_31, Settings};

/// The bounds of an HTTP/2 connection. They bound memory and work whatever the peer sends.
///
/// The memory of one connection is at most the sum of `heads_bytes`, `connection_window`, `growth`, `output_bytes`, the two tables, one
/// head that is arriving (`head_bytes`), 32 KiB of answers, and a few hundred bytes a stream. A response that a server sends adds its head.
///
/// ```
/// use osier_http::h2::Limits;
///
/// let limits = Limits { max_streams: 50, ..Limits::default() };
/// assert_eq!(limits.stream_window, 65_535);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most concurrent streams of the peer. A stream that is reset counts until its handler has ended. A stream beyond the limit
    /// is refused. Default: 100.
    pub max_streams: u32,
    /// The most tunnels, such as WebSockets (RFC 8441), that take no place of `max_streams`. A client hears of one more place with
    /// each tunnel that begins, and of one less with its end. A client that does not acknowledge the end of tunnels may use their places
    /// for requests. Further tunnels count in `max_streams`. Default: 100.
    pub max_tunnels: u32,
    /// The most bytes of the received heads and trailers of all streams, in memory. They count until
    /// [`finish`](super::Connection::finish), or until a tunnel begins. A request beyond it is refused, and the stream of a response or
    /// a trailer is reset. An interim response does not count: its owner is soon done with it. Default: 512 KiB.
    pub heads_bytes: usize,
    /// The most bytes of one body that wait for their handler. While the handler keeps up with a fast peer, the window grows. At
    /// most 2^31 - 1. Default: 65,535.
    pub stream_window: u32,
    /// The size to which the window of one body grows as a part of `connection_window`, but at most half of that. Beyond this size it
    /// is `growth`. Default: no other bound.
    pub grown_window: u32,
    /// The most bytes of all bodies that wait for their handlers, without `growth`. At least 65,535, and at most 2^31 - 1. Default:
    /// 2 MiB.
    pub connection_window: u32,
    /// The most bytes by which the window of the connection grows beyond `connection_window`, together with those of bodies whose
    /// handlers keep up. One body has at most half of what the others leave. An upload is no faster than the window of its body in
    /// each round trip. At most 2^31 - 1, less `connection_window`. Default: 16 MiB.
    pub growth: u32,
    /// The most bytes of a frame's payload. At least 16,384, and at most 2^24 - 1. Default: 16,384.
    pub max_frame: u32,
    /// The most bytes of a head or a trailer, where a field costs its name, its value and 32 more. A request beyond it gets 431.
    /// Default: 32 KiB.
    pub head_bytes: u32,
    /// The most fields of a head or a trailer. Each crumb of a cookie counts. A request beyond it gets 431. Default: 100.
    pub header_count: u16,
    /// The most bytes of HPACK's table for received fields. Default: 4,096.
    pub decoder_table: u32,
    /// The most bytes of HPACK's table for sent fields, if the peer allows as much. The fields that one response repeats fit into
    /// the default; a larger table fills with dates. Default: 1,024.
    pub encoder_table: u32,
    /// Whether the peer may open WebSockets and other protocols inside a stream (RFC 8441). Default: true.
    pub extended_connect: bool,
    /// The most bytes of bodies that wait in the output. Default: 64 KiB.
    pub output_bytes: usize,
    /// The time for the peer's first SETTINGS frame, and for a whole head from its first frame. Then the connection ends.
    /// Default: 10 s.
    pub head_timeout: Duration,
    /// The time for which a body may wait for the peer's windows: then its stream is reset. The time for the peer to acknowledge our
    /// settings: then the connection ends. Default: 30 s.
    pub stall_timeout: Duration,
    /// The bytes of a body that the peer's windows must let through within [`stall_timeout`](Limits::stall_timeout) while they hold
    /// the body up. Default: 1 KiB.
    pub stall_bytes: u32,
    /// The resets and refused streams that a peer may cause at once. A peer that cancels a response which has begun causes none.
    /// Default: 400.
    pub reset_burst: u32,
    /// The resets that a peer may cause in a second, after the burst. A request that ends as it should allows one more.
    /// Default: 200.
    pub reset_rate: u32,
    /// The work without progress that a peer may cause at once, in units: a PING, SETTINGS or unknown frame, or an empty DATA frame
    /// costs 10, a PRIORITY or PRIORITY_UPDATE frame 5, a frame of a closed stream 5 unless it is DATA within the window that the
    /// stream had, a small DATA frame that the peer's windows have cut 5, a tiny DATA frame 1, and a WINDOW_UPDATE frame that nothing
    /// sent explains 1. Default: 10,000.
    pub frame_burst: u32,
    /// The units of such work in a second, after the burst. Default: 10,000.
    pub frame_rate: u32,
}

impl Limits {
    /// The defaults, usable in constants.
    pub const DEFAULT: Limits = Limits {
        max_streams: 100,
        max_tunnels: 100,
        heads_bytes: 512 << 10,
        stream_window: 65_535,
        grown_window: u32::MAX,
        connection_window: 2 << 20,
        growth: 16 << 20,
        max_frame: 16_384,
        head_bytes: 32 << 10,
        header_count: 100,
        decoder_table: 4_096,
        encoder_table: 1_024,
        extended_connect: true,
        output_bytes: 64 << 10,
        head_timeout: Duration::from_secs(10),
        stall_timeout: Duration::from_secs(30),
        stall_bytes: 1 << 10,
        reset_burst: 400,
        reset_rate: 200,
        frame_burst: 10_000,
        frame_rate: 10_000,
    };

    /// The limits with every value inside the bounds of the RFC, and with times that can be added to a moment.
    pub(super) fn clamped(&self) -> Limits {
        let connection_window = self.connection_window.clamp(INITIAL_WINDOW, MAX_WINDOW);
        Limits {
            stream_window: self.stream_window.min(MAX_WINDOW),
            connection_window,
            growth: self.growth.min(MAX_WINDOW - connection_window),
            max_frame: self.max_frame.clamp(DEFAULT_MAX_FRAME_SIZE, (1 << 24) - 1),
            output_bytes: self.output_bytes.max(1 << 10),
            head_timeout: self.head_timeout.min(LONGEST),
            stall_timeout: self.stall_timeout.min(LONGEST),
            stall_bytes: self.stall_bytes.max(1),
            ..*self
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// The window of RFC 9113 6.9.2 before any setting.
pub(super) const INITIAL_WINDOW: u32 = Settings::INITIAL.initial_window_size;

/// A time that is as good as no limit.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The largest window (RFC 9113 6.9.1).
pub(super) const MAX_WINDOW: u32 = MAX_31;
