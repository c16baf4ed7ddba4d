//! Finds the entries of a long list whose path prefix a path is at or below, in the order of the list.
//!
//! A path has few prefixes of whole segments. Each is looked up in a table, so the cost does not grow with the number
//! of entries. Entries for every path are always found. In a short list every entry is: its user compares each one
//! anyway.

use std::collections::HashMap;
use std::ops::Range;

/// The most segments of a prefix that are looked up. Entries with longer prefixes are found by their first segments.
const DEPTH: usize = 8;

/// The most entries of a short list, which is not looked up.
const FEW: usize = 8;

/// Numbers of entries, by their path prefixes.
#[derive(Debug, Default)]
pub struct Prefixes {
    count: usize,
    /// The entries for every path, in order.
    everywhere: Vec<u32>,
    /// The entries with this prefix, or with one that begins with these segments, in order.
    below: HashMap<Box<[u8]>, Vec<u32>>,
    /// The most segments of a key of `below`.
    deepest: usize,
}

impl Prefixes {
    /// Adds the next entry. Its prefix has whole segments and does not end with a slash. None for every path.
    pub fn add(&mut self, prefix: Option<&str>) {
        let number = self.count as u32;
        self.count += 1;
        let Some(prefix) = prefix.map(str::as_bytes) else {
            self.everywhere.push(number);
            return;
        };
        let (segments, key) = prefixes(prefix).take(DEPTH).enumerate().last().unwrap_or((0, prefix));
        self.deepest = self.deepest.max(segments + 1);
        self.below.entry(key.into()).or_default().push(number);
    }

    /// The numbers of the entries that may fit `path`, in order: all that do, and perhaps some that do not. Allocates
    /// nothing.
    #[inline]
    pub fn of<'p>(&'p self, path: &[u8]) -> Fitting<'p> {
        match self.count {
            count @ ..=FEW => Fitting::All(0..count),
            _ => Fitting::Lists(self.lists(path)),
        }
    }

    fn lists(&self, path: &[u8]) -> [&[u32]; DEPTH + 1] {
        let mut lists: [&[u32]; DEPTH + 1] = [&[]; DEPTH + 1];
        lists[0] = &self.everywhere;
        for (prefix, list) in prefixes(path).take(self.deepest).zip(&mut lists[1..]) {
            if let Some(found) = self.below.get(prefix) {
                *list = found;
            }
        }
        lists
    }
}

/// The prefixes of whole segments of a path, the shortest first.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    let ends = ends.map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| &path[..end])
}

/// The numbers of entries, in order.
pub enum Fitting<'p> {
    /// All entries.
    All(Range<usize>),
    /// Several lists, each in order.
    Lists([&'p [u32]; DEPTH + 1]),
}

impl Iterator for Fitting<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let lists = match self {
            Fitting::All(numbers) => return numbers.next(),
            Fitting::Lists(lists) => lists.iter_mut().filter(|list| !list.is_empty()),
        };
        let next = lists.min_by_key(|list| list[0])?;
        let (first, rest) = next.split_first()?;
        *next = rest;
        Some(*first as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::path::is_below;

    #[test]
    fn entries_are_found_in_their_order() {
        let deep = "/1/2/3/4/5/6/7/8/9";
        let entries = [
            Some("/b"),
            None,
            Some("/a/b"),
            Some("/a"),
            Some(deep),
            Some("/1/2/3/4/5/6/7/8"),
            None,
            Some("/a/b"),
            Some("/1"),
            Some("/a/b/c"),
        ];
        let paths = [
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/a/b/c/d",
            "/ab",
            "/b/a",
            "/1/2/3/4/5/6/7/8/9/10",
            "/1/2/3/4/5/6/7/8/0",
            "/c",
            "*",
            "",
        ];
        for count in 0..=entries.len() {
            let mut prefixes = Prefixes::default();
            entries[..count].iter().for_each(|prefix| prefixes.add(*prefix));
            for path in paths {
                let fits = |number: &usize| entries[*number].is_none_or(|prefix| is_below(path.as_bytes(), prefix));
                let found: Vec<usize> = prefixes.of(path.as_bytes()).filter(fits).collect();
                let expected: Vec<usize> = (0..count).filter(fits).collect();
                assert_eq!(found, expected, "{path} of {count}");
            }
        }
    }

    #[test]
    fn of_many_entries_few_are_compared() {
        let mut prefixes = Prefixes::default();
        (0..1000).for_each(|number| prefixes.add(Some(&format!("/of/{number}"))));
        prefixes.add(None);
        assert_eq!(prefixes.of(b"/of/7/x").collect::<Vec<_>>(), [7, 1000]);
        assert_eq!(prefixes.of(b"/of/1000").collect::<Vec<_>>(), [1000]);
    }
}
