//! Whether programs of this repository use what a change takes out of the public API, or adds to types and traits of theirs.
//!
//! The lists of `docs/internal/api` have one item a line, so an item that has gone or has changed is a line that is there no more. New
//! items count if a program may have to know them: variants, fields, and functions of traits. Names are compared, and nothing else: a program
//! that has a name of its own that is equal counts as a user, and one that uses an item without a name, such as an implementation of a trait for
//! a type that it does not name, does not.

use std::collections::HashSet;

/// The words of programs that use an API.
pub struct Words<'a> {
    all: HashSet<&'a str>,
    /// The words behind a point and before a parenthesis, or before the types of a generic method.
    called: HashSet<&'a str>,
}

impl<'a> Words<'a> {
    /// The words of a text.
    pub fn of(text: &'a str) -> Words<'a> {
        let mut words = Words {
            all: HashSet::new(),
            called: HashSet::new(),
        };
        for word in text.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty()) {
            words.all.insert(word);
        }
        for method in text.split('.').skip(1) {
            let end = method.find(|c| !is_of_word(c)).unwrap_or(method.len());
            if method[end..].starts_with(['(', ':']) {
                words.called.insert(&method[..end]);
            }
        }
        words
    }

    /// Whether the programs use an item that `before` has and `now` has not, or one that has got more parts.
    pub fn use_what_has_changed(&self, before: &str, now: &str) -> bool {
        let [before, now] = [before, now].map(|list| list.lines().collect::<HashSet<&str>>());
        let traits = now.iter().filter_map(|line| line.strip_prefix("pub trait "));
        let traits = traits.filter_map(|line| segments(line.split(": ").next()?.split('<').next()?).next_back());
        let traits: HashSet<&str> = traits.collect();
        before.difference(&now).any(|line| self.name(line))
            || now.difference(&before).any(|line| self.name_whole(line, &traits))
    }

    /// Whether the item of a line is a part of an enum, a struct or one of the traits, which the programs name.
    fn name_whole(&self, line: &str, traits: &HashSet<&str>) -> bool {
        let plain = plain(line);
        let head = plain.split('(').next().unwrap_or_default();
        let path = head.split(": ").next().unwrap_or_default();
        let Some(whole) = segments(path.rsplit(' ').next().unwrap_or_default()).rev().nth(1) else {
            return false;
        };
        // A variant and a field stand behind no other word.
        let is_part = path.split(' ').count() == 2 || head.contains("fn ") && traits.contains(whole);
        is_part && self.all.contains(whole)
    }

    /// Whether the programs name the item of a line.
    fn name(&self, line: &str) -> bool {
        let plain = plain(line);
        let (head, inputs) = plain.split_once('(').unwrap_or((&plain, ""));
        if let Some(implementation) = head.strip_prefix("impl") {
            let implementation = implementation.split(" where ").next().unwrap_or_default();
            let of = implementation.rsplit(" for ").next().unwrap_or_default();
            return segments(of).next_back().is_some_and(|of| self.all.contains(of));
        }
        // "pub const osier::A::B: u8": the type is no part of the path.
        let path = head.split(": ").next().unwrap_or_default();
        let path = path.split(" = ").next().unwrap_or_default();
        let mut path = segments(path.rsplit(' ').next().unwrap_or_default()).rev();
        let (Some(name), parent) = (path.next(), path.next().unwrap_or_default()) else {
            return true;
        };
        let first = inputs.split([',', ')']).next().unwrap_or_default();
        if segments(first).any(|word| word == "self") && self.called.contains(name) {
            return true;
        }
        // By its path, or where a program implements it.
        let is_of_type = line.contains('(') && parent.starts_with(|c: char| c.is_uppercase());
        self.all.contains(name) && (!is_of_type || self.all.contains(parent))
    }
}

/// A line of a list without the parameters of its types.
fn plain(line: &str) -> String {
    let mut depth = 0;
    let mut rest = line.replace("->", "");
    rest.retain(|c| {
        depth += i32::from(c == '<');
        let is_outside = depth == 0;
        depth -= i32::from(c == '>');
        is_outside
    });
    rest
}

fn segments(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split(|c| !is_of_word(c)).filter(|segment| !segment.is_empty())
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_gone_and_is_named_counts() {
        let words = Words::of(
            "use osier::net::TcpStream; let s = TcpStream::connect(a)?; s.read_all::<u8>(b); s.close(); fn run() {}",
        );
        let uses = |gone: &str| {
            words.use_what_has_changed(
                &format!("pub mod osier\n{gone}\n"),
                "pub mod osier\npub fn osier::new()\n",
            )
        };
        for used in [
            "pub fn osier::net::TcpStream::connect(impl A) -> B",
            "pub fn osier::net::UnixStream::close(&mut self)",
            "pub fn osier::net::TcpStream::run(&self)", // as a function, perhaps
            "pub fn osier::net::UnixStream<T>::read_all<T: A<B>>(&self, u8) -> core::result::Result<(), C>",
            "#[non_exhaustive] pub struct osier::net::TcpStream(_)",
            "impl<T: A> core::fmt::Debug for osier::net::TcpStream where T: B",
            "pub fn osier::run<T>(T)",
            "pub const osier::net::A::run: [u8; 3]",
        ] {
            assert!(uses(used), "{used}");
        }
        for unused in [
            "pub fn osier::net::UnixStream::connect(impl A) -> B",
            "pub fn osier::net::TcpStream::connect_within(impl A) -> osier::net::TcpStream",
            // No value has it called, and `run` is something else there.
            "pub fn osier::net::UnixStream::run(&self)",
            "impl core::fmt::Debug for osier::net::UnixStream",
            "pub osier::io::Relayed::end: osier::net::TcpStream",
            "pub type osier::net::UnixStream::Err = osier::net::TcpStream",
        ] {
            assert!(!uses(unused), "{unused}");
        }
        // An item that is there still has not gone.
        assert!(!words.use_what_has_changed("pub fn osier::run()\n", "pub fn osier::more()\npub fn osier::run()\n"));
    }

    #[test]
    fn a_new_part_counts_where_the_whole_is_named() {
        let words =
            Words::of("impl Store for Map { fn load(&self) {} } match end { End::Closed => {} } Limits { head: 1 }");
        let traits = "pub trait osier::Store: core::marker::Send\npub trait osier::Load<T>\n";
        let uses = |new: &str| words.use_what_has_changed(traits, &format!("{traits}{new}\n"));
        for used in [
            "pub fn osier::Store::save(&self) -> bool",
            "pub osier::End::Reset",
            "pub osier::End::Failed(std::io::Error)",
            "pub osier::Limits::body: usize",
        ] {
            assert!(uses(used), "{used}");
        }
        for unused in [
            "pub fn osier::Load<T>::save(&self) -> bool",
            "pub fn osier::Limits::save(&self) -> bool",
            "pub osier::Other::Reset",
            "pub struct osier::End::Closed",
            "impl osier::Store for osier::Other",
        ] {
            assert!(!uses(unused), "{unused}");
        }
    }
}
