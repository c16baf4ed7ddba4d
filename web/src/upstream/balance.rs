//! The settings for the choice of a backend.

use std::time::Duration;

/// How an upstream chooses among the backends that are in service.
///
/// ```
/// use osier_web::upstream::{BackendOptions, Balance, HashKey, Upstream};
///
/// let large = BackendOptions { weight: 3, ..BackendOptions::default() };
/// let spare = BackendOptions { backup: true, ..BackendOptions::default() };
/// let upstream = Upstream::builder("app")
///     .backend("10.0.0.1:3000".parse()?)
///     .backend_with("10.0.0.2:3000".parse()?, large)
///     .backend_with("10.0.0.3:3000".parse()?, spare)
///     .balance(Balance::Hash(HashKey::Cookie("sid".into())))
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// The backend with the fewest leases, divided by its weight. Equal ones take turns, as with
    /// [`RoundRobin`](Balance::RoundRobin).
    #[default]
    LeastConnections,
    /// The backends take turns, interleaved, each as often as its weight says. Each worker counts its own turns.
    RoundRobin,
    /// Two backends are drawn, each with its weight as its chance. The one with fewer leases, divided
    /// by the weight, is chosen. Many servers in front of the same backends do not all choose the
    /// same one then.
    RandomTwo,
    /// The same key leads to the same backend. A backend that goes out of service moves its own keys
    /// only, which come back with it. Requests without the key are balanced by
    /// [`LeastConnections`](Balance::LeastConnections).
    Hash(HashKey),
}

/// The key of [`Balance::Hash`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashKey {
    /// The client's IPv4 address, or the first 64 bits of its IPv6 address. A client of a Unix socket
    /// has none.
    Client,
    /// The value of the cookie with this name.
    Cookie(String),
    /// The value of the header field with this name.
    Header(String),
}

/// Options of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendOptions {
    /// The share of the requests that the backend gets, beside the weights of the others: 1 to 1000.
    /// Default: 1.
    pub weight: u32,
    /// Gives the backend requests only while no other is in service. Default: false.
    pub backup: bool,
    /// The name of the backend in [`Sticky`] cookies and for [`Balance::Hash`]. Default: a hash of the
    /// address.
    pub id: Option<String>,
}

impl BackendOptions {
    /// The highest weight.
    pub const WEIGHT_MAX: u32 = 1000;
}

impl Default for BackendOptions {
    fn default() -> BackendOptions {
        BackendOptions {
            weight: 1,
            backup: false,
            id: None,
        }
    }
}

/// A cookie that leads a client back to its backend.
///
/// The response to a request without the cookie sets it: `HttpOnly`, `SameSite=Lax`, `Path=/`, and
/// `Secure` if the request came over https. Its value is the id of the backend. While that backend is
/// out of service or at its limit of leases, the request is balanced as usual, and the response sets
/// the cookie anew. The cookie of a backup counts while no other backend is in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name. Default: `backend`.
    pub cookie: String,
    /// Time from the response that set the cookie until the client forgets it. `None`, the default, for the client's
    /// session.
    pub max_age: Option<Duration>,
}

impl Default for Sticky {
    fn default() -> Sticky {
        Sticky {
            cookie: "backend".into(),
            max_age: None,
        }
    }
}
