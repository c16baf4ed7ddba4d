//! Whether programs of this repository use what a change takes out of the public API.
//!
//! The lists of `docs/internal/api` have one item a line, so an item that has gone or has changed is a line that is there no more. A new one
//! breaks no program that compiled before. Names are compared, and nothing else: a program that has a name of its own that is equal counts as a
//! user, and one that uses an item without a name, such as an implementation of a trait for a type that it does not name, does not.

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

    /// Whether the programs use an item that `before` has and `now` has not.
    pub fn use_what_has_gone(&self, before: &str, now: &str) -> bool {
        let now: HashSet<&str> = now.lines().collect();
        before
            .lines()
            .filter(|line| !now.contains(line))
            .any(|line| self.name(line))
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
        if segments(first).any(|word| word == "self") {
            return self.called.contains(name);
        }
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
            words.use_what_has_gone(
                &format!("pub mod osier\n{gone}\n"),
                "pub mod osier\npub fn osier::new()\n",
            )
        };
        for used in [
            "pub fn osier::net::TcpStream::connect(impl A) -> B",
            "pub fn osier::net::UnixStream::close(&mut self)",
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
        assert!(!words.use_what_has_gone("pub fn osier::run()\n", "pub fn osier::more()\npub fn osier::run()\n"));
    }
}
