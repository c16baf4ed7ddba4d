//! `trace`: makes each request part of a trace (W3C Trace Context). Backends and the access log get its ids.

use osier_web::Request;

/// The settings of `trace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    pub incoming: Incoming,
    /// Whether a trace that begins here is marked as sampled.
    pub is_sampled: bool,
}

/// The clients whose traces are continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    Any,
    /// Proxies that `real_ip` or the PROXY protocol trusts.
    Trusted,
    None,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace {
            incoming: Incoming::Any,
            is_sampled: true,
        }
    }
}

impl Trace {
    /// Makes the request a span of its client's trace, or of a new one.
    pub fn start(&self, request: &Request<'_>) {
        let continues = match self.incoming {
            Incoming::Any => true,
            Incoming::Trusted => request.is_proxied(),
            Incoming::None => false,
        };
        request.start_trace(continues, self.is_sampled);
    }
}
