//! Warns of rewrite rules that send a request through the routes again and again, until it gets a 500, and of a redirect that leads to
//! itself.
//!
//! The routes of a site are followed from paths that rules make, as long as no request is needed to tell where a path
//! goes. It is needed at a rule with conditions and at a route with globs or methods. The conditions of the rule that made
//! the first path are known, if they do not depend on the path: a request that was sent there meets them again. So every
//! warning has a path whose requests do loop, and a loop without a warning is possible.

use std::ops::Range;

use crate::handler::HandlerSettings;
use crate::policy::path;
use crate::policy::prefixes::Prefixes;
use crate::policy::rewrite::{RESTARTS, Rewrite, Verdict};
use crate::reader::Source;

use super::settings::Route;

/// Warns of each route of a site whose rules begin a loop. Every route has its place in the file.
pub fn check(source: &Source<'_>, routes: &[(&Route, &Range<usize>)]) {
    for (number, (_, at)) in routes.iter().enumerate() {
        if let Some(target) = leads_to_itself(routes, number) {
            let text = format!(
                "a redirect loop: a request for '{target}' gets a redirect to '{target}'; give this route a narrower 'path' or a 'glob', or put the \
                 route that answers '{target}' first"
            );
            source.warning(at, text);
        }
    }
    let has_rules = |(route, _): &(&Route, _)| matches!(route.handler, HandlerSettings::Rewrite(_));
    if !routes.iter().any(has_rules) {
        return;
    }
    let site = Routes::new(routes);
    for (number, ((_, at), rules)) in routes.iter().zip(&site.rules).enumerate() {
        let mut products = rules.iter().flat_map(Rewrite::products);
        if let Some((_, path)) = products.find(|(rule, path)| site.loops(path, (number, *rule))) {
            let text = format!(
                "a rewrite loop: requests for '{path}' are rewritten more than {RESTARTS} times and get 500; narrow the pattern, \
                 exclude what the rule makes by a condition, or put the route that answers '{path}' first"
            );
            source.warning(at, text);
        }
    }
}

/// The target of a redirect whose own route takes the request for it. No route before it may take that request.
fn leads_to_itself<'r>(routes: &[(&'r Route, &Range<usize>)], number: usize) -> Option<&'r str> {
    let (route, _) = routes[number];
    let HandlerSettings::Redirect(redirect) = &route.handler else {
        return None;
    };
    let target = redirect.fixed_path()?;
    let text = path::text(target).ok()?;
    let may_take = |route: &Route| {
        let prefix = route.matches.path.as_deref();
        prefix.is_none_or(|prefix| path::is_below(&text, prefix))
    };
    let is_certain = route.matches.globs.is_empty() && route.matches.methods.is_empty() && may_take(route);
    (is_certain && !routes[..number].iter().any(|(earlier, _)| may_take(earlier))).then_some(target)
}

/// The routes of a site.
struct Routes<'r> {
    routes: Vec<&'r Route>,
    by_path: Prefixes,
    /// The rules of each route. None for another handler.
    rules: Vec<Option<Rewrite>>,
}

impl<'r> Routes<'r> {
    fn new(routes: &[(&'r Route, &Range<usize>)]) -> Routes<'r> {
        let routes: Vec<&Route> = routes.iter().map(|(route, _)| *route).collect();
        let mut by_path = Prefixes::default();
        for route in &routes {
            by_path.add(route.matches.path.as_deref());
        }
        let rules = routes.iter().map(|route| match &route.handler {
            HandlerSettings::Rewrite(settings) => settings.compiled(),
            _ => None,
        });
        Routes {
            rules: rules.collect(),
            routes,
            by_path,
        }
    }

    /// Whether a request for a path is rewritten more often than it may be. `met` is the rule whose conditions hold: the
    /// numbers of its route and in it.
    fn loops(&self, path: &str, met: (usize, usize)) -> bool {
        let mut target = path.to_owned();
        (0..=RESTARTS).all(|_| match self.next(&target, met) {
            Some(next) => {
                target = next;
                true
            }
            None => false,
        })
    }

    /// The target that a request for `target` is rewritten to. None if it is not, or if that depends on the request.
    fn next(&self, target: &str, met: (usize, usize)) -> Option<String> {
        let text = path::text(target.split('?').next().unwrap_or_default()).ok()?;
        for number in self.by_path.of(&text) {
            let matches = &self.routes[number].matches;
            if matches
                .path
                .as_deref()
                .is_some_and(|prefix| !path::is_below(&text, prefix))
            {
                continue;
            }
            if !matches.globs.is_empty() || !matches.methods.is_empty() {
                return None;
            }
            let met = (met.0 == number).then_some(met.1);
            match self.rules[number].as_ref()?.foresee(&text, met)? {
                Verdict::Nothing => {}
                Verdict::Again(target) => return Some(target),
                Verdict::Redirect(..) => return None,
            }
        }
        None
    }
}
