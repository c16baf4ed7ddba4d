//! The path of a room's new lines while its guests are in two processes, and the messages between the two.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::upgrade::Link;

/// Lines that a room keeps for guests that move, at most.
const KEPT: usize = 10_000;

/// The part of the other process in a room's new lines.
#[derive(Clone, Debug, Default)]
pub(super) enum Way {
    /// There is no other process.
    #[default]
    Alone,
    /// This process orders the lines, and sends each to the other one.
    Leads(Link),
    /// The other process orders the lines.
    Follows(Link, Pending),
}

/// Lines of guests here that the old process was asked to say and has not sent back yet, in order.
pub(super) type Pending = Arc<Mutex<Unanswered>>;

#[derive(Debug, Default)]
pub(super) struct Unanswered {
    pub(super) next: u64,
    /// The id, the room, and the line.
    pub(super) lines: VecDeque<(u64, String, Spoken)>,
}

/// A line of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spoken {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) at: u64,
}

/// A message to the other process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum News {
    /// The number of the old process at the broker of a shared chat.
    Begin(Option<u64>),
    /// Earlier lines of a room, up to the place `said`.
    Room {
        room: String,
        said: u64,
        lines: Vec<String>,
    },
    /// A new line. It has an id if a guest of the new process has said it.
    Line {
        room: String,
        line: String,
        id: Option<u64>,
    },
    /// A guest of the new process says something.
    Say {
        room: String,
        id: u64,
        spoken: Spoken,
    },
    End,
}

/// Sends a message to the other process.
pub(super) fn send(link: &Link, news: &News) {
    link.send(serde_json::to_vec(news).unwrap_or_default());
}

impl Way {
    /// Copies a line to the other process, if this one orders the lines. The caller holds the lock of the line's history.
    pub(super) fn copy(&self, room: &str, line: &str, id: Option<u64>) {
        if let Way::Leads(link) = self {
            let news = News::Line {
                room: room.to_owned(),
                line: line.to_owned(),
                id,
            };
            send(link, &news);
        }
    }

    /// The number of lines to keep in a room that normally remembers `remembered`.
    pub(super) fn kept(&self, remembered: usize) -> usize {
        match self {
            Way::Follows(..) => KEPT.max(remembered),
            Way::Alone | Way::Leads(_) => remembered,
        }
    }
}
