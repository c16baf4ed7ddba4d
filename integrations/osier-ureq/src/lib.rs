//! ureq on Osier: an agent whose calls suspend the fiber.
//!
//! Plain ureq waits in std's sockets. On a fiber that stops the worker and every other fiber on it; a handler that asks a server of the
//! same process then waits for ever. The agents of this crate have a transport and a resolver of Osier's. Everything else is ureq's:
//! requests, bodies, redirects, the pool of connections, proxies, timeouts, errors.
//!
//! ```no_run
//! # fn main() -> Result<(), ureq::Error> {
//! use osier_ureq::ureq;
//!
//! let agent = osier_ureq::agent(); // one for the program: clones share its connections
//! osier::run(|| {
//!     let text = agent.get("https://example.org/").call()?.body_mut().read_to_string()?;
//!     println!("{} bytes", text.len());
//!     Ok::<_, ureq::Error>(())
//! })
//! # }
//! ```
//!
//! # Settings
//!
//! [`with`] takes ureq's own configuration:
//!
//! ```
//! use osier_ureq::ureq::config::Config;
//! use std::time::Duration;
//!
//! let config = Config::builder().timeout_global(Some(Duration::from_secs(5))).max_idle_connections_per_host(8).build();
//! let agent = osier_ureq::with(config);
//! # drop(agent);
//! ```
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `rustls` (default) | `https` by rustls with ring and the roots of webpki-roots |
//! | `json` | `send_json` of requests and `read_json` of bodies |
//!
//! Other features of ureq, such as `gzip`, are turned on by a dependency of your own on ureq 3 without its default features.
//!
//! # Suspends
//!
//! Calls of the agent and reads of a body, where ureq's own block. They block a plain thread, where ureq's timeouts hold for each address, read
//! and write, and not while a name is looked up.
//!
//! # Cancellation
//!
//! A cancelled call returns `ureq::Error::Io` with [`osier::Cancelled`] inside, and its connection is closed. So does a call in
//! [`osier::timeout`].
//!
//! # Not promised
//!
//! SOCKS proxies: they need ureq's own sockets. ureq does not promise that the traits under this crate stay; it follows ureq's minor
//! versions.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod transport;

use ureq::Agent;
use ureq::config::Config;
#[cfg(feature = "rustls")]
use ureq::unversioned::transport::RustlsConnector;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector};

use transport::Fibers;

pub use ureq;

/// Makes an agent with ureq's default settings.
pub fn agent() -> Agent {
    with(Config::default())
}

/// Makes an agent with these settings.
pub fn with(config: Config) -> Agent {
    let connector = ().chain(ConnectProxyConnector::default()).chain(Fibers);
    #[cfg(feature = "rustls")]
    let connector = connector.chain(RustlsConnector::default());
    Agent::with_parts(config, connector, Fibers)
}
