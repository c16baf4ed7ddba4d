//! A gateway inside of a cache.

use std::sync::Arc;

use osier_web::upstream::Upstream;
use osier_web::wrap::cache::{Cache, Inside};
use osier_web::{Answer, Request, Response};

use crate::handler::Handler;
use crate::policy::path;

/// A handler whose responses are stored. A fetch may call the handler after the client's request has ended.
pub struct Cached {
    cache: Cache,
    inside: Inside,
    handler: Arc<dyn Handler>,
}

impl Cached {
    pub fn new(cache: Cache, handler: Arc<dyn Handler>) -> Cached {
        let inner = Arc::clone(&handler);
        let inside = move |request: &mut Request<'_>| {
            // The site has read the path before, so this cannot fail.
            let text = path::text(request.path());
            inner.answer(request, text.as_deref().unwrap_or(b"/"))
        };
        Cached {
            cache,
            inside: Arc::new(inside),
            handler,
        }
    }
}

impl Handler for Cached {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        self.cache.answer(request, &self.inside)
    }

    fn answer_after_body(&self, request: &mut Request<'_>, path: &[u8]) -> Answer {
        let passing = |request: &mut Request<'_>| self.handler.answer_after_body(request, path);
        self.cache.answer_after_body(request, &self.inside, passing)
    }

    fn methods(&self) -> &'static str {
        self.handler.methods()
    }

    fn upstream(&self) -> Option<&Upstream> {
        self.handler.upstream()
    }
}
