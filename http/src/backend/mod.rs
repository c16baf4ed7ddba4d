//! The gateway's side of the codec: requests to a backend, and the heads of its responses.

mod reply;
mod request;

pub use reply::{Reply, ReplyLength, ReplyScanner, connection_names};
pub use request::RequestWriter;
