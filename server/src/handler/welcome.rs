//! `welcome`: the built-in site.

use std::sync::Arc;

use osier_web::chat::Chat;
use osier_web::{Request, Response, Served};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::{Reason, Section};
use crate::welcome;

use super::{Configured, Handler, Match, Opened, Resources, Route};

/// The settings of the built-in site.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Welcome {
    /// Whether other machines see live data too.
    pub live_for_all: bool,
}

impl Configured for Welcome {
    const IS_KEPT: bool = true;

    /// Reads `welcome = true`, or a table.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Welcome> {
        if (&matches.path, &matches.globs[..]) != (&None, &[]) {
            section.source().problem(
                &value.span(),
                "'welcome' is a whole site with paths of its own: its route has no 'path' and no 'glob'",
            );
        }
        if let DeValue::Boolean(true) = value.get_ref() {
            return Some(Welcome::default());
        }
        let table = section.as_section("welcome", value, "true, or a table")?;
        let live_for_all = table.boolean("live_for_all").unwrap_or(false);
        table.finish();
        Some(Welcome { live_for_all })
    }

    fn open(&self, _route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
        let connections = Arc::clone(&resources.connections);
        let site = welcome::Welcome::new(self.live_for_all, resources.workers, connections);
        Ok(Opened::answers(site))
    }
}

impl Handler for welcome::Welcome {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        welcome::Welcome::answer(self, request)
    }

    fn stop(&self) {
        welcome::Welcome::stop(self);
    }

    fn chat(&self) -> Option<&Chat> {
        Some(welcome::Welcome::chat(self))
    }

    fn records(&self) -> bool {
        true
    }

    fn record(&self, served: &Served<'_>) {
        welcome::Welcome::record(self, served);
    }
}
