//! Parts of an application that move to the new process: their messages, and the sessions that they restore.

use std::fmt;
use std::sync::Arc;

use crate::conn::handover::dialog::Dialog;
use crate::conn::handover::format::Message;
use crate::conn::handover::record::Saved;
use crate::conn::upgrade::Session;

/// A part of an application whose state moves in an upgrade: a chat with its rooms, for example.
///
/// Both processes have a part of the same [name](crate::upgrade::Upgrade::part). Its messages and the connections whose sessions it has
/// [saved](crate::Session::save) arrive in the order in which they were sent.
///
/// One fiber makes all calls and serves the whole upgrade: a call must not wait for long.
pub trait Part: Send + Sync + 'static {
    /// Called in the old process when the new one is ready and does not serve yet. Send the state that it needs to begin. From then on,
    /// sessions may be asked to [save](crate::Session::save) themselves.
    fn leave(&self, link: &Link) {
        let _ = link;
    }

    /// Takes a message of the other process.
    fn receive(&self, message: &[u8], link: &Link) {
        let _ = (message, link);
    }

    /// Makes the session of a connection anew, in the new process, or in the old one if the upgrade has failed. `saved` has the
    /// [bytes](Saved::bytes) that the session saved. `None` closes the connection. The default is for a part that saves no sessions.
    fn restore(self: Arc<Self>, saved: &[u8]) -> Option<Box<dyn Session>> {
        let _ = saved;
        None
    }

    /// Called in the old process when no connection is left there.
    fn left(&self, link: &Link) {
        let _ = link;
    }

    /// Called when no more messages will come: the other process has left, or the upgrade has failed.
    fn alone(&self) {}
}

/// The link from a [`Part`] to its other end. Clones send in one order.
#[derive(Clone)]
pub struct Link {
    name: Arc<str>,
    dialog: Arc<Dialog>,
}

impl Link {
    pub(super) fn new(name: &str, dialog: &Arc<Dialog>) -> Link {
        Link {
            name: name.into(),
            dialog: Arc::clone(dialog),
        }
    }

    /// Sends a message, of at most 8 MiB. Never waits. It is lost if the other process ends before it has read it.
    pub fn send(&self, message: impl Into<Vec<u8>>) {
        self.dialog.post(Message::Part {
            name: self.name.to_string(),
            bytes: message.into(),
        });
    }

    /// Makes the saved state of a session of this part, for [`Session::save`].
    pub fn saved(&self, bytes: impl Into<Vec<u8>>) -> Saved {
        Saved {
            part: Arc::clone(&self.name),
            bytes: bytes.into(),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}
