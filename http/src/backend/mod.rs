//! The gateway's side of the codec: it writes requests to a backend and reads the heads of its responses.

mod reply;
mod request;

pub use reply::{Reply, ReplyLength, ReplyScanner, connection_names};
pub use request::RequestWriter;
