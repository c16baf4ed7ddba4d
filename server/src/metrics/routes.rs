//! The series of routes, by the number that a request carries in its label.
//!
//! Each configuration has a table. A route that the next configuration has under the same names keeps its number and
//! its series. Any other route gets a number that neither table uses, and a series that counts from 0. A route that is
//! gone leaves with its table. A request that still carries its number is counted as [`Routes::OTHER`], because a
//! number is used again only after 65,000 others.

use std::collections::HashMap;
use std::sync::Arc;

use super::series::Series;

/// The most routes of one configuration that have series of their own.
pub const ROUTES_MAX: usize = 4096;

/// The table of one configuration.
pub struct Routes {
    /// Series by number. None for a number that no route has.
    series: Vec<Option<Arc<Series>>>,
    /// The site, the route and the number of each series, in the order of the configuration.
    named: Vec<(Arc<str>, Arc<str>, u16)>,
    numbers: HashMap<(Arc<str>, Arc<str>), u16>,
    /// The number at which the next search for a free one begins.
    next: u16,
    workers: usize,
    /// See [`Routes::beyond`].
    beyond: usize,
}

impl Routes {
    /// Requests that were refused before they had a route.
    pub const NONE: u16 = 0;
    /// Requests whose route has no series, because it is gone or one beyond [`ROUTES_MAX`].
    pub const OTHER: u16 = 1;

    /// A table without routes. `old` is the table of the configuration before.
    pub fn new(workers: usize, old: Option<&Routes>) -> Routes {
        let mut routes = Routes {
            series: Vec::new(),
            named: Vec::new(),
            numbers: HashMap::new(),
            next: old.map_or(Routes::OTHER + 1, |old| old.next),
            workers,
            beyond: 0,
        };
        // No site has the name "", so no route has these names.
        for (number, route) in [(Routes::NONE, ""), (Routes::OTHER, "other")] {
            let series = old.and_then(|old| old.series[usize::from(number)].clone());
            routes.insert("".into(), route.into(), number, series);
        }
        routes
    }

    /// The number of a route. Equal names give the same number.
    pub fn add(&mut self, old: Option<&Routes>, site: &str, route: &str) -> u16 {
        let names: (Arc<str>, Arc<str>) = (site.into(), route.into());
        if let Some(number) = self.numbers.get(&names) {
            return *number;
        }
        // The two series without a route do not count.
        if self.named.len() >= ROUTES_MAX + 2 {
            self.beyond += 1;
            return Routes::OTHER;
        }
        let known = old.and_then(|old| old.numbers.get(&names).map(|number| (old, *number)));
        let (number, series) = match known {
            Some((old, number)) => (number, old.series[usize::from(number)].clone()),
            None => (self.free(old), None),
        };
        self.insert(names.0, names.1, number, series);
        number
    }

    /// Adds a series, or makes one.
    fn insert(&mut self, site: Arc<str>, route: Arc<str>, number: u16, series: Option<Arc<Series>>) {
        let at = usize::from(number);
        if self.series.len() <= at {
            self.series.resize_with(at + 1, || None);
        }
        self.series[at] = Some(series.unwrap_or_else(|| Arc::new(Series::new(self.workers))));
        self.named.push((Arc::clone(&site), Arc::clone(&route), number));
        self.numbers.insert((site, route), number);
    }

    /// A number that neither table uses. There is one, because both together have fewer routes than there are numbers.
    fn free(&mut self, old: Option<&Routes>) -> u16 {
        let is_taken =
            |routes: &Routes, number: u16| routes.series.get(usize::from(number)).is_some_and(Option::is_some);
        loop {
            let number = self.next;
            self.next = number.checked_add(1).unwrap_or(Routes::OTHER + 1);
            if !is_taken(self, number) && !old.is_some_and(|old| is_taken(old, number)) {
                return number;
            }
        }
    }

    /// The series of a number.
    #[inline]
    pub fn get(&self, number: u16) -> &Series {
        match self.series.get(usize::from(number)) {
            Some(Some(series)) => series,
            _ => self.series[usize::from(Routes::OTHER)]
                .as_ref()
                .expect("made with the table"),
        }
    }

    /// The site, the route and the series of each route. The first two have no route.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Series)> {
        self.named
            .iter()
            .map(|(site, route, number)| (&**site, &**route, self.get(*number)))
    }

    /// How many routes share the series of [`Routes::OTHER`], because there are more than [`ROUTES_MAX`].
    pub fn beyond(&self) -> usize {
        self.beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::series::Record;

    fn count(routes: &Routes, number: u16) -> u64 {
        routes.get(number).sum().requests()
    }

    fn serve(routes: &Routes, number: u16) {
        let record = Record {
            status: 200,
            received: 0,
            sent: 0,
            nanos: 0,
        };
        routes.get(number).record(&record);
    }

    #[test]
    fn a_route_that_stays_keeps_its_counts_and_one_that_goes_leaves() {
        let mut first = Routes::new(1, None);
        let (stays, goes) = (first.add(None, "a", "/"), first.add(None, "b", "/"));
        assert_eq!(first.add(None, "a", "/"), stays, "equal names");
        serve(&first, stays);
        serve(&first, goes);
        serve(&first, Routes::NONE);
        let mut second = Routes::new(1, Some(&first));
        let (new, same) = (second.add(Some(&first), "c", "/"), second.add(Some(&first), "a", "/"));
        assert_eq!(same, stays);
        assert!(new != goes && new != stays);
        assert_eq!(
            [stays, new, Routes::NONE].map(|number| count(&second, number)),
            [1, 0, 1]
        );
        assert_eq!(second.iter().count(), 4);
        // A request of before.
        serve(&second, goes);
        assert_eq!(count(&second, Routes::OTHER), 1);
        // A route that comes back counts from 0.
        let mut third = Routes::new(1, Some(&second));
        let back = third.add(Some(&second), "b", "/");
        assert!(back != goes && count(&third, back) == 0);
    }

    #[test]
    fn the_routes_are_bounded_whatever_the_number_of_reloads() {
        let mut old = Routes::new(1, None);
        for turn in 0..20 {
            let mut routes = Routes::new(1, Some(&old));
            let numbers: Vec<_> = (0..ROUTES_MAX + 7)
                .map(|route| routes.add(Some(&old), "a", &format!("/{turn}/{route}")))
                .collect();
            assert_eq!((routes.beyond(), routes.iter().count()), (7, ROUTES_MAX + 2));
            assert_eq!(numbers.iter().filter(|number| **number == Routes::OTHER).count(), 7);
            let mut different = numbers[..ROUTES_MAX].to_vec();
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), ROUTES_MAX);
            old = routes;
        }
        assert!(old.series.len() <= usize::from(u16::MAX) + 1);
    }
}
