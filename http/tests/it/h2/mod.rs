//! HTTP/2.

mod attacks;
mod export;
mod flow;
mod frames;
mod growth;
mod heads;
mod hpack;
#[cfg(unix)]
mod oracle;
mod pair;
mod rules;
mod splits;
mod state;
mod streams;

// Shared by the modules above.
mod peer;

use osier_http::h2::Outgoing;

/// The pseudo-fields of a request that a client sends.
fn target(method: &str) -> Outgoing<'_> {
    Outgoing {
        method,
        scheme: "http",
        authority: "a:80",
        path: "/",
        protocol: None,
    }
}
