//! The streams that a client may have at once: those of `max_streams`, and one more for each tunnel up to `max_tunnels`. So the WebSockets
//! of a page take no place of its requests.
//!
//! The client counts every stream, so it hears of each change by SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 6.5.2). One change is on its way
//! at a time: the next one waits until the client has acknowledged it. Until then the client may go by either number.

use super::Connection;
use super::ending::Ending;
use crate::h2::frame::{self, Role, Setting};

/// The number of streams that a client may have at once, as it has been announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    announced: u32,
    /// The number before, until the client acknowledges the one announced.
    before: Option<u32>,
}

impl Room {
    pub(super) fn new(max_streams: u32) -> Room {
        Room {
            announced: max_streams,
            before: None,
        }
    }

    /// Whether the client knows that it has exactly the room of `max_streams`.
    pub(super) fn is_settled(self, max_streams: u32) -> bool {
        self.before.is_none() && self.announced == max_streams
    }

    /// The client has acknowledged settings. Returns whether they were those of a change.
    pub(super) fn is_acknowledged(&mut self) -> bool {
        self.before.take().is_some()
    }
}

impl Connection {
    /// The number of streams that the peer may have at once: [`max_streams`](crate::h2::Limits::max_streams), and the tunnels among
    /// them.
    pub fn most_streams(&self) -> usize {
        let Room { announced, before } = self.room;
        before.map_or(announced, |before| before.max(announced)) as usize
    }

    /// Announces the room for streams if it has changed: a tunnel has begun or ended.
    pub(super) fn announce_room(&mut self) {
        let is_open = self.failed.is_none() && self.ending == Ending::Not;
        if self.role == Role::Client || !is_open || self.acknowledgement.is_some() || self.room.before.is_some() {
            return;
        }
        let tunnels = self.streams.iter().filter(|stream| stream.is_tunnel).count();
        let tunnels = u32::try_from(tunnels).unwrap_or(u32::MAX).min(self.limits.max_tunnels);
        let announced = self.limits.max_streams.saturating_add(tunnels);
        if announced != self.room.announced {
            self.room = Room {
                announced,
                before: Some(self.room.announced),
            };
            frame::settings(self.output.frames(), &[Setting::MaxConcurrentStreams(announced)]);
        }
    }
}
