//! `cache`: stored responses of `proxy` and `fastcgi`.
//!
//! The settings of a route name a store and rules. Routes with the same store share its bounds: those that inherit the
//! setting of their site, or take it from a `[policy.NAME]`. Each site has a part of the store to itself, so two sites
//! on different listeners never answer with each other's responses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use osier_web::wrap::cache::{Cache, Options, Store, StoreOptions};

use crate::log::operator::Say;
use crate::reader::Reason;

use super::client::Client;

/// The settings of `cache`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    pub store: StoreOptions,
    /// The rules. [`cache`](Settings::cache) fills in [those of the route](OfRoute).
    pub options: Options,
    /// Clients that may send PURGE. None for PURGE as a method of the backend.
    pub purge: Option<Vec<Client>>,
}

/// The options that the route decides.
pub struct OfRoute {
    /// The route's part of the store.
    pub space: String,
    /// Whether only requests reach the cache whose client has been authenticated.
    pub is_authenticated: bool,
    /// Whether the handler tells scripts the target that the client has sent.
    pub is_fastcgi: bool,
}

impl Settings {
    /// The folder of the files.
    pub fn folder(&mut self) -> Option<&mut PathBuf> {
        self.store.disk.as_mut()
    }

    /// Opens the store.
    ///
    /// # Errors
    /// One line: what cannot be opened, and why.
    pub fn open(&self, say: &Say) -> Result<Arc<Store>, Reason> {
        let say = say.clone();
        let store = Store::open(self.store.clone()).map_err(|error| {
            let folder = self.store.disk.as_deref().unwrap_or(Path::new(""));
            Reason::of(
                &error,
                format!("cannot use '{}' for a cache: {error}", folder.display()),
            )
        })?;
        Ok(Arc::new(store.on_log(move |line| say.warning(line))))
    }

    /// Makes the cache of a route with its responses in `store`.
    pub fn cache(&self, store: Arc<Store>, of_route: OfRoute) -> Cache {
        let options = Options {
            space: of_route.space,
            is_authenticated: of_route.is_authenticated,
            by_sent_target: of_route.is_fastcgi,
            backend_only: true,
            ..self.options.clone()
        };
        let cache = Cache::with(store, options);
        match self.purge.clone() {
            Some(clients) => cache.on_purge(move |address| clients.iter().any(|client| client.is(address))),
            None => cache,
        }
    }
}
