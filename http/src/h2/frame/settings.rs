//! The settings of a connection (RFC 9113 6.5.2, RFC 8441, RFC 9218): entries of the frame, and the values in force.

use super::{DEFAULT_MAX_FRAME_SIZE, MAX_31};
use crate::h2::{Error, ErrorCode};

/// One entry of a SETTINGS frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// The most bytes of the dynamic table with which the sender decodes field blocks.
    HeaderTableSize(u32),
    /// Whether the server may push.
    EnablePush(bool),
    /// The most streams that the peer may have open.
    MaxConcurrentStreams(u32),
    /// The window with which each stream begins: at most 2^31-1.
    InitialWindowSize(u32),
    /// The longest payload that the sender accepts: from 2^14 to 2^24-1.
    MaxFrameSize(u32),
    /// The most bytes of a field section, with 32 bytes more a field. It is advice.
    MaxHeaderListSize(u32),
    /// Whether the server accepts extended CONNECT (RFC 8441).
    EnableConnectProtocol(bool),
    /// Whether the sender ignores the priorities of RFC 7540 (RFC 9218 2.1).
    NoRfc7540Priorities(bool),
}

/// The largest value of SETTINGS_MAX_FRAME_SIZE.
const MAX_MAX_FRAME_SIZE: u32 = (1 << 24) - 1;

impl Setting {
    /// The identifier and the value, as a frame has them.
    pub(super) const fn entry(self) -> (u16, u32) {
        match self {
            Setting::HeaderTableSize(bytes) => (0x1, bytes),
            Setting::EnablePush(on) => (0x2, on as u32),
            Setting::MaxConcurrentStreams(streams) => (0x3, streams),
            Setting::InitialWindowSize(bytes) => (0x4, bytes),
            Setting::MaxFrameSize(bytes) => (0x5, bytes),
            Setting::MaxHeaderListSize(bytes) => (0x6, bytes),
            Setting::EnableConnectProtocol(on) => (0x8, on as u32),
            Setting::NoRfc7540Priorities(on) => (0x9, on as u32),
        }
    }

    /// Reads an entry and checks its value. `None` for an unknown identifier, which must be ignored.
    pub(super) fn read(id: u16, value: u32) -> Result<Option<Setting>, Error> {
        let flag = |reason| match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::protocol(reason)),
        };
        Ok(Some(match id {
            0x1 => Setting::HeaderTableSize(value),
            0x2 => Setting::EnablePush(flag("SETTINGS_ENABLE_PUSH is neither 0 nor 1")?),
            0x3 => Setting::MaxConcurrentStreams(value),
            0x4 if value > MAX_31 => {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1";
                return Err(Error::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            0x4 => Setting::InitialWindowSize(value),
            0x5 if !(DEFAULT_MAX_FRAME_SIZE..=MAX_MAX_FRAME_SIZE).contains(&value) => {
                return Err(Error::protocol("SETTINGS_MAX_FRAME_SIZE is out of range"));
            }
            0x5 => Setting::MaxFrameSize(value),
            0x6 => Setting::MaxHeaderListSize(value),
            0x8 => Setting::EnableConnectProtocol(flag("SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1")?),
            0x9 => Setting::NoRfc7540Priorities(flag("SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1")?),
            _ => return Ok(None),
        }))
    }
}

/// The values in force for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// See [`Setting::HeaderTableSize`].
    pub header_table_size: u32,
    /// See [`Setting::EnablePush`].
    pub enable_push: bool,
    /// See [`Setting::MaxConcurrentStreams`]. `u32::MAX`: no limit.
    pub max_concurrent_streams: u32,
    /// See [`Setting::InitialWindowSize`].
    pub initial_window_size: u32,
    /// See [`Setting::MaxFrameSize`].
    pub max_frame_size: u32,
    /// See [`Setting::MaxHeaderListSize`]. `u32::MAX`: no limit.
    pub max_header_list_size: u32,
    /// See [`Setting::EnableConnectProtocol`].
    pub enable_connect_protocol: bool,
    /// See [`Setting::NoRfc7540Priorities`].
    pub no_rfc7540_priorities: bool,
}

impl Settings {
    /// The values before any SETTINGS frame.
    pub const INITIAL: Settings = Settings {
        header_table_size: 4096,
        enable_push: true,
        max_concurrent_streams: u32::MAX,
        initial_window_size: 65_535,
        max_frame_size: DEFAULT_MAX_FRAME_SIZE,
        max_header_list_size: u32::MAX,
        enable_connect_protocol: false,
        no_rfc7540_priorities: false,
    };

    /// Puts one entry in force.
    pub fn apply(&mut self, setting: Setting) {
        match setting {
            Setting::HeaderTableSize(bytes) => self.header_table_size = bytes,
            Setting::EnablePush(on) => self.enable_push = on,
            Setting::MaxConcurrentStreams(streams) => self.max_concurrent_streams = streams,
            Setting::InitialWindowSize(bytes) => self.initial_window_size = bytes,
            Setting::MaxFrameSize(bytes) => self.max_frame_size = bytes,
            Setting::MaxHeaderListSize(bytes) => self.max_header_list_size = bytes,
            Setting::EnableConnectProtocol(on) => self.enable_connect_protocol = on,
            Setting::NoRfc7540Priorities(on) => self.no_rfc7540_priorities = on,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::INITIAL
    }
}
