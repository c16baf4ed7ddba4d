//! The gateway's side of the codec: it writes requests to a backend and reads the heads of its responses.

mod outline;
mod reply;
mod request;
mod template;

pub use outline::ReplyOutline;
pub use reply::{Reply, ReplyLength, ReplyScanner};
pub use request::RequestWriter;
pub use template::LineTemplate;
