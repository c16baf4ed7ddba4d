//! Affinity: the backend that a request belongs to, by a key or by a cookie.

use std::net::IpAddr;

use super::Upstream;
use super::balance::{Balance, HashKey};
use super::pick::hash;
use crate::{Request, Response};

/// The affinity of a request. A lease for no request has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Affinity {
    /// The hash of the request's key, with [`Balance::Hash`].
    pub(super) key: Option<u64>,
    /// The backend that the sticky cookie names. It may be out of service.
    pub(super) stuck: Option<usize>,
}

impl Affinity {
    /// Whether the request belongs to a backend.
    pub(super) fn is_any(&self) -> bool {
        self.key.is_some() || self.stuck.is_some()
    }
}

impl Upstream {
    /// Sets the [sticky](super::Builder::sticky) cookie in the response of `backend`
    /// ([`Lease::backend`](super::Lease::backend)), unless the request has it or there is no such cookie.
    pub fn stick(&self, request: &Request<'_>, backend: usize, response: Response) -> Response {
        self.stick_by(self.affinity(request), backend, || request.is_https(), response)
    }

    /// Reads the affinity of a request.
    pub(crate) fn affinity(&self, request: &Request<'_>) -> Affinity {
        let inner = &self.0;
        let stuck = inner.sticky.as_ref().and_then(|sticky| {
            let id = request.cookie(&sticky.cookie)?;
            inner.backends.iter().position(|backend| backend.id == id)
        });
        let key = match &inner.balance {
            Balance::Hash(key) if inner.backends.len() > 1 => hash_of(key, request),
            _ => None,
        };
        Affinity { key, stuck }
    }

    /// Does what [`stick`](Upstream::stick) does, with an affinity that has been read.
    pub(crate) fn stick_by(
        &self,
        affinity: Affinity,
        backend: usize,
        is_https: impl FnOnce() -> bool,
        response: Response,
    ) -> Response {
        let Some(sticky) = &self.0.sticky else { return response };
        if affinity.stuck == Some(backend) {
            return response;
        }
        let (name, id) = (&sticky.cookie, &self.0.backends[backend].id);
        let age = sticky.max_age.map(|age| format!("; Max-Age={}", age.as_secs()));
        let age = age.unwrap_or_default();
        let secure = if is_https() { "; Secure" } else { "" };
        // The builder has checked both.
        response.header(
            "set-cookie",
            format!("{name}={id}; HttpOnly; SameSite=Lax{secure}; Path=/{age}"),
        )
    }
}

/// The hash of the request's key. `None` if the request has none, or an empty one.
fn hash_of(key: &HashKey, request: &Request<'_>) -> Option<u64> {
    let text = match key {
        HashKey::Client => {
            return Some(match request.client_ip()? {
                IpAddr::V4(ip) => hash(&ip.octets()),
                // One client has a network of this size.
                IpAddr::V6(ip) => hash(&ip.octets()[..8]),
            });
        }
        HashKey::Cookie(name) => request.cookie(name)?.as_bytes(),
        HashKey::Header(name) => request.header(name)?,
    };
    (!text.is_empty()).then(|| hash(text))
}
