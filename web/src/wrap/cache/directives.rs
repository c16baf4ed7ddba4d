//! Reads `Cache-Control`: the directives of a response and those of a request.
//!
//! The functions are pure. A list is given as its field lines, because a peer may repeat the field.
//! A list that cannot be read to its end counts as `no-store`: a directive that forbids may stand in
//! the part that was not understood.
//!
//! Source: RFC 9111 section 5.2, RFC 5861.

use std::time::Duration;

/// Longest time that a directive can name, in seconds (RFC 9111 section 1.2.2).
const MAX_SECONDS: u64 = 1 << 31;

/// Directives of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    pub no_store: bool,
    /// Field names in the directive are ignored: it holds for the whole response.
    pub no_cache: bool,
    /// Field names are ignored here, too.
    pub private: bool,
    pub public: bool,
    pub must_revalidate: bool,
    pub proxy_revalidate: bool,
    pub must_understand: bool,
    pub max_age: Option<Duration>,
    pub s_maxage: Option<Duration>,
    pub stale_while_revalidate: Option<Duration>,
    pub stale_if_error: Option<Duration>,
}

/// Directives of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    pub no_store: bool,
    pub no_cache: bool,
    pub only_if_cached: bool,
    pub max_age: Option<Duration>,
    pub min_fresh: Option<Duration>,
    /// `Duration::MAX` for a directive without a value.
    pub max_stale: Option<Duration>,
}

impl ResponseDirectives {
    /// Reads the lines of one response.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> ResponseDirectives {
        let mut read = ResponseDirectives::default();
        for line in lines {
            let is_whole = each(line, |name, value| {
                let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
                if is("no-store") {
                    read.no_store = true;
                } else if is("no-cache") {
                    read.no_cache = true;
                } else if is("private") {
                    read.private = true;
                } else if is("public") {
                    read.public = true;
                } else if is("must-revalidate") {
                    read.must_revalidate = true;
                } else if is("proxy-revalidate") {
                    read.proxy_revalidate = true;
                } else if is("must-understand") {
                    read.must_understand = true;
                } else if is("max-age") {
                    set(&mut read.max_age, value);
                } else if is("s-maxage") {
                    set(&mut read.s_maxage, value);
                } else if is("stale-while-revalidate") {
                    set(&mut read.stale_while_revalidate, value);
                } else if is("stale-if-error") {
                    set(&mut read.stale_if_error, value);
                }
            });
            read.no_store |= !is_whole;
        }
        read
    }

    /// Whether a response to a request with credentials may be shared (RFC 9111 section 3.5).
    pub fn allow_sharing(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage.is_some()
    }
}

impl RequestDirectives {
    /// Reads the lines of one request.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> RequestDirectives {
        let mut read = RequestDirectives::default();
        for line in lines {
            let is_whole = each(line, |name, value| {
                let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
                if is("no-store") {
                    read.no_store = true;
                } else if is("no-cache") {
                    read.no_cache = true;
                } else if is("only-if-cached") {
                    read.only_if_cached = true;
                } else if is("max-age") {
                    set(&mut read.max_age, value);
                } else if is("min-fresh") {
                    read.min_fresh = Some(value.and_then(seconds).unwrap_or(Duration::from_secs(MAX_SECONDS)));
                } else if is("max-stale") {
                    read.max_stale = match value {
                        None => Some(Duration::MAX),
                        Some(value) => seconds(value),
                    };
                }
            });
            read.no_store |= !is_whole;
        }
        read
    }
}

/// Sets a time. The smallest of several values counts. A value that cannot be read counts as zero, so that the response
/// is stale (RFC 9111 section 4.2.1).
fn set(time: &mut Option<Duration>, value: Option<&[u8]>) {
    let value = value.and_then(seconds).unwrap_or(Duration::ZERO);
    *time = Some(time.map_or(value, |known| known.min(value)));
}

/// Reads delta-seconds. A number that is too large counts as the largest.
pub fn seconds(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = value.iter().fold(0u64, |seconds, digit| {
        seconds.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    Some(Duration::from_secs(seconds.min(MAX_SECONDS)))
}

/// Calls `found` with each directive and its value, without the quotes. Returns whether the line was
/// understood to its end.
fn each<'a>(line: &'a [u8], mut found: impl FnMut(&'a [u8], Option<&'a [u8]>)) -> bool {
    let mut rest = line;
    loop {
        let start = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b','));
        let Some(start) = start else { return true };
        rest = &rest[start..];
        let end = rest
            .iter()
            .position(|byte| matches!(byte, b',' | b'=' | b' ' | b'\t' | b'"'));
        let (name, tail) = rest.split_at(end.unwrap_or(rest.len()));
        let (value, tail) = match tail.strip_prefix(b"=") {
            None => (None, tail),
            Some(quoted) if quoted.starts_with(b"\"") => {
                let Some(close) = end_of_quoted(quoted) else {
                    return false;
                };
                (Some(&quoted[1..close]), &quoted[close + 1..])
            }
            Some(plain) => {
                let end = plain.iter().position(|byte| matches!(byte, b',' | b' ' | b'\t'));
                let (value, tail) = plain.split_at(end.unwrap_or(plain.len()));
                if value.contains(&b'"') {
                    return false;
                }
                (Some(value), tail)
            }
        };
        let tail = tail.trim_ascii_start();
        if name.is_empty() || !(tail.is_empty() || tail.starts_with(b",")) {
            return false;
        }
        found(name, value);
        rest = tail;
    }
}

/// The place of the quote that ends the string at the beginning of `text`.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn response(line: &str) -> ResponseDirectives {
        ResponseDirectives::read([line.as_bytes()])
    }

    fn request(line: &str) -> RequestDirectives {
        RequestDirectives::read([line.as_bytes()])
    }

    const fn s(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn directives_of_a_response() {
        let none = ResponseDirectives::default();
        let no_store = ResponseDirectives { no_store: true, ..none };
        for (line, expected) in [
            ("", none),
            (" , ,", none),
            ("x, y=1, z=\"a, no-store\"", none),
            ("no-store", no_store),
            ("NO-STORE", no_store),
            ("a,no-store ,b", no_store),
            ("max-age=60", ResponseDirectives { max_age: s(60), ..none }),
            ("Max-Age=\"60\"", ResponseDirectives { max_age: s(60), ..none }),
            ("max-age=60, max-age=30", ResponseDirectives { max_age: s(30), ..none }),
            ("max-age", ResponseDirectives { max_age: s(0), ..none }),
            ("max-age=-1", ResponseDirectives { max_age: s(0), ..none }),
            ("max-age=1.5", ResponseDirectives { max_age: s(0), ..none }),
            (
                "max-age=99999999999999999999999",
                ResponseDirectives {
                    max_age: s(MAX_SECONDS),
                    ..none
                },
            ),
            (
                "s-maxage=9, max-age=1",
                ResponseDirectives {
                    max_age: s(1),
                    s_maxage: s(9),
                    ..none
                },
            ),
            (
                "private=\"set-cookie, x\", max-age=5",
                ResponseDirectives {
                    private: true,
                    max_age: s(5),
                    ..none
                },
            ),
            ("no-cache=\"a\\\"b\"", ResponseDirectives { no_cache: true, ..none }),
            (
                "public,must-revalidate",
                ResponseDirectives {
                    public: true,
                    must_revalidate: true,
                    ..none
                },
            ),
            (
                "proxy-revalidate",
                ResponseDirectives {
                    proxy_revalidate: true,
                    ..none
                },
            ),
            (
                "must-understand, no-store",
                ResponseDirectives {
                    must_understand: true,
                    no_store: true,
                    ..none
                },
            ),
            (
                "stale-while-revalidate=3, stale-if-error=4",
                ResponseDirectives {
                    stale_while_revalidate: s(3),
                    stale_if_error: s(4),
                    ..none
                },
            ),
            // An unreadable rest may hide a prohibition.
            ("x=\"a, no-cache", no_store),
            ("max-age=60 no-store", no_store),
            ("max-age=\"60", no_store),
            ("=1", no_store),
            ("x=\"a\"b", no_store),
        ] {
            assert_eq!(response(line), expected, "{line}");
        }
        let lines: [&[u8]; 2] = [b"max-age=1", b"private"];
        let both = ResponseDirectives {
            max_age: s(1),
            private: true,
            ..none
        };
        assert_eq!(ResponseDirectives::read(lines), both);
    }

    #[test]
    fn directives_of_a_request() {
        let none = RequestDirectives::default();
        for (line, expected) in [
            ("", none),
            ("no-cache", RequestDirectives { no_cache: true, ..none }),
            (
                "no-store, only-if-cached",
                RequestDirectives {
                    no_store: true,
                    only_if_cached: true,
                    ..none
                },
            ),
            ("max-age=0", RequestDirectives { max_age: s(0), ..none }),
            (
                "max-stale",
                RequestDirectives {
                    max_stale: Some(Duration::MAX),
                    ..none
                },
            ),
            (
                "max-stale=5",
                RequestDirectives {
                    max_stale: s(5),
                    ..none
                },
            ),
            ("max-stale=x", none),
            (
                "min-fresh=5",
                RequestDirectives {
                    min_fresh: s(5),
                    ..none
                },
            ),
            (
                "min-fresh=x",
                RequestDirectives {
                    min_fresh: s(MAX_SECONDS),
                    ..none
                },
            ),
        ] {
            assert_eq!(request(line), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ResponseDirectives::read([&line[..]]);
            let _ = RequestDirectives::read([&line[..]]);
        }

        /// Whatever stands beside it, a directive that forbids is found.
        #[test]
        fn nothing_hides_a_prohibition(
            before in "[ -~]{0,20}",
            after in "[ -~]{0,20}",
        ) {
            let quotes = before.matches('"').count();
            prop_assume!(quotes == 0);
            let read = response(&format!("{before},no-store,{after}"));
            prop_assert!(read.no_store, "{read:?}");
        }

        #[test]
        fn what_was_written_is_read(
            age in proptest::option::of(0..=MAX_SECONDS),
            shared in proptest::option::of(0..=MAX_SECONDS),
            private: bool,
            no_cache: bool,
            quoted: bool,
            space in "[ \t]{0,3}",
        ) {
            let quote = if quoted { "\"" } else { "" };
            let mut parts = vec!["x-other=\"a,b\"".to_owned()];
            parts.extend(age.map(|age| format!("max-age={quote}{age}{quote}")));
            parts.extend(shared.map(|age| format!("S-MaxAge={quote}{age}{quote}")));
            parts.extend(private.then(|| "private".to_owned()));
            parts.extend(no_cache.then(|| "no-cache".to_owned()));
            let expected = ResponseDirectives {
                max_age: age.map(Duration::from_secs),
                s_maxage: shared.map(Duration::from_secs),
                private,
                no_cache,
                ..ResponseDirectives::default()
            };
            prop_assert_eq!(response(&parts.join(&format!("{space},{space}"))), expected);
            parts.reverse();
            let lines: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
            prop_assert_eq!(ResponseDirectives::read(lines), expected);
        }
    }
}
