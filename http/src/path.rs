//! Reads a request's path once, into the forms that routes, policies and handlers use.
//!
//! A client can spell one path in many ways. Two readers that disagree about a spelling are a security hole: the policy guards one
//! path and the handler serves another. [`Path::parse`] refuses a spelling without a safe meaning and brings any other into a
//! canonical form.
//!
//! | spelling | meaning |
//! |---|---|
//! | `%61`, any escape of an ASCII character but `/` and `%` | the character |
//! | `%2F` | data inside a segment: never separates, never part of a file's name; stays `%2F` |
//! | `%25` | data; stays `%25`, so that nothing is decoded twice |
//! | `%C3%A9`, a byte beyond ASCII, escaped or not | the byte; becomes an escape in upper case |
//! | `//`, `///` | one slash; a slash at the end stays |
//! | a segment of one or two dots | refused, also if it is escaped, stands beside `%2F`, `\` or `%5C`, or carries parameters (`..;x`) |
//! | `%00`, `%0A`, `%7F`, any other control | refused |
//! | `%`, `%4`, `%zz` | refused |
//! | `\`, `%5C` | the character; never separates, never part of a file's name |
//! | `;x=y`, `+`, `:`, `~`, three dots | literal |
//!
//! ```text
//!   sent        //%61dmin/caf%c3%a9/x%2fy/      as the client wrote it: forwarded by a proxy
//!   canonical   /admin/caf%C3%A9/x%2Fy/         ASCII: prefixes, routes, policies
//!   text        /admin/café/x%2Fy/              bytes: globs and expressions
//!   segments    admin · café · (no name)        decoded: files, parameters
//! ```
//!
//! Canonicalising twice changes nothing. A usual path is its own canonical form, and parsing it takes one pass and no allocation.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A parsed path. The [module's table](self) has the meaning of each spelling.
///
/// ```
/// use osier_http::path::{BadPath, Path};
///
/// let path = Path::parse("//%61dmin/x%2fy")?;
/// assert_eq!(path.canonical(), "/admin/x%2Fy");
/// assert_eq!(path.strip_prefix("/admin"), Some("/x%2fy"));
/// assert!(!path.is_below("/admin/x"));
/// assert_eq!(path.file_name(), None);
/// assert_eq!(Path::parse("/a/%2e%2e/b").unwrap_err(), BadPath::DotSegment);
/// # Ok::<(), BadPath>(())
/// ```
#[derive(Clone, Debug)]
pub struct Path<'a> {
    sent: &'a str,
    /// Begins with a slash, holds no empty segment but the last, and no dot segment.
    canonical: Cow<'a, str>,
    has_encoded_slash: bool,
}

/// Why a path is refused. The status is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BadPath {
    /// The path does not begin with a slash.
    NoSlash,
    /// The path has a `%` without two hexadecimal digits.
    Escape,
    /// The path has a NUL or another control character, escaped or not.
    Control,
    /// The path has a segment that some reader takes for `.` or `..`.
    DotSegment,
}

impl BadPath {
    /// The reason in one line. It is safe to log and to send.
    pub const fn reason(self) -> &'static str {
        match self {
            BadPath::NoSlash => "the path does not begin with a slash",
            BadPath::Escape => "the path has a '%' that begins no escape; write %25",
            BadPath::Control => "the path has a control character",
            BadPath::DotSegment => "the path has a '.' or '..' segment",
        }
    }
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for BadPath {}

impl<'a> Path<'a> {
    /// Reads the path of a request target, without its query.
    ///
    /// # Errors
    /// [`BadPath`]. Answer 400.
    #[inline]
    pub fn parse(sent: &'a str) -> Result<Path<'a>, BadPath> {
        if is_usual(sent.as_bytes()) {
            return Ok(Path {
                sent,
                canonical: Cow::Borrowed(sent),
                has_encoded_slash: false,
            });
        }
        Path::parse_unusual(sent)
    }

    #[cold]
    fn parse_unusual(sent: &'a str) -> Result<Path<'a>, BadPath> {
        if !sent.starts_with('/') {
            return Err(BadPath::NoSlash);
        }
        let canonical = canonical_part(sent)?;
        if has_dot_segment(canonical.as_bytes()) {
            return Err(BadPath::DotSegment);
        }
        let has_encoded_slash = canonical.contains("%2F");
        Ok(Path {
            sent,
            canonical,
            has_encoded_slash,
        })
    }

    /// The path as the client wrote it.
    #[inline]
    pub fn sent(&self) -> &'a str {
        self.sent
    }

    /// The canonical form, in which paths are compared. It is ASCII and begins with a slash.
    #[inline]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Whether the path was sent in its canonical form.
    #[inline]
    pub fn is_as_sent(&self) -> bool {
        matches!(self.canonical, Cow::Borrowed(_))
    }

    /// The canonical form with its bytes beyond ASCII decoded, for globs and expressions. `%2F` and `%25` stay escapes.
    #[inline]
    pub fn text(&self) -> Cow<'_, [u8]> {
        decode(&self.canonical, |byte| !byte.is_ascii())
    }

    /// Whether the path ends with a slash and therefore means a folder.
    #[inline]
    pub fn is_folder(&self) -> bool {
        self.canonical.ends_with('/')
    }

    /// Whether a segment has a `%2F`. Such a path never names a file.
    #[inline]
    pub fn has_encoded_slash(&self) -> bool {
        self.has_encoded_slash
    }

    /// The canonical form for a reader that takes `%2F` for a slash. `None` if the path has no `%2F`.
    ///
    /// A backend may be such a reader. A server should refuse a request if its policies differ between the two forms.
    pub fn with_slashes_decoded(&self) -> Option<String> {
        if !self.has_encoded_slash {
            return None;
        }
        let mut form = String::with_capacity(self.canonical.len());
        for part in self.canonical.split("%2F").flat_map(|part| ["/", part]).skip(1) {
            let part = if form.ends_with('/') {
                part.trim_start_matches('/')
            } else {
                part
            };
            form.push_str(part);
        }
        Some(form)
    }

    /// Whether the path is `prefix` or lies below it. `prefix` is canonical and has no slash at its end. Every path lies below the
    /// empty prefix.
    #[inline]
    pub fn is_below(&self, prefix: &str) -> bool {
        is_below(&self.canonical, prefix)
    }

    /// The path after `prefix`, as the client wrote it: empty, or beginning with a slash. `None` unless
    /// [`is_below`](Path::is_below).
    #[inline]
    pub fn strip_prefix(&self, prefix: &str) -> Option<&'a str> {
        self.is_below(prefix).then(|| &self.sent[self.sent_len(prefix.len())..])
    }

    /// The number of bytes of [`sent`](Path::sent) that became the first `len` bytes of the canonical form. It reads the path from its
    /// beginning: use [`sent_places`](Path::sent_places) for all segments.
    ///
    /// # Panics
    /// Panics if `len` exceeds the length of the canonical form.
    #[inline]
    pub fn sent_len(&self, len: usize) -> usize {
        match self.canonical {
            Cow::Borrowed(_) => {
                assert!(len <= self.sent.len(), "a length beyond the path");
                len
            }
            Cow::Owned(_) => self.sent_len_of(len),
        }
    }

    #[cold]
    fn sent_len_of(&self, len: usize) -> usize {
        assert!(len <= self.canonical.len(), "a length beyond the path");
        let sent = self.sent.as_bytes();
        let (mut taken, mut made) = (0, 0);
        while made < len {
            let Some(Ok((symbol, written))) = symbol(&sent[taken..]) else {
                break;
            };
            taken += written;
            made += match symbol {
                Symbol::Plain(_) => 1,
                Symbol::Escaped(_) => 3,
            };
        }
        taken
    }

    /// A part of the path, as the client wrote it. `place` is its place in the canonical form.
    ///
    /// # Panics
    /// Panics if the place exceeds the canonical form.
    #[inline]
    pub fn sent_part(&self, place: std::ops::Range<usize>) -> &'a str {
        &self.sent[self.sent_len(place.start)..self.sent_len(place.end)]
    }

    /// The segments between the slashes, in order. A slash at the end adds no segment.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Segment<'_>> {
        let origin = self.canonical.as_ptr().addr();
        let segments = self.canonical.split('/').filter(|segment| !segment.is_empty());
        segments.map(move |text| Segment {
            text,
            start: text.as_ptr().addr() - origin,
        })
    }

    /// The places of the [`segments`](Path::segments) in [`sent`](Path::sent), in the same order. All of them take one pass.
    pub fn sent_places(&self) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> {
        // Only a slash that was sent as one separates segments in the canonical form.
        let origin = self.sent.as_ptr().addr();
        let segments = self.sent.split('/').filter(|segment| !segment.is_empty());
        segments.map(move |text| {
            let start = text.as_ptr().addr() - origin;
            start..start + text.len()
        })
    }

    /// The path as the name of a file below a root: decoded, without a slash at either end, empty for the root itself. `None` if a
    /// segment cannot name a file; see [`Segment::name`].
    pub fn file_name(&self) -> Option<Cow<'_, [u8]>> {
        if self.has_encoded_slash || self.canonical.contains('\\') {
            return None;
        }
        let name = self.canonical[1..].strip_suffix('/').unwrap_or(&self.canonical[1..]);
        Some(decode(name, |_| true))
    }
}

/// One segment of a [`Path`]: never empty, never `.` or `..`.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'p> {
    text: &'p str,
    start: usize,
}

impl<'p> Segment<'p> {
    /// The segment in the canonical form.
    pub fn canonical(&self) -> &'p str {
        self.text
    }

    /// The segment's place in the canonical form.
    pub fn place(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// The decoded segment as the name of a file. `None` if it has a slash or a backslash, which other systems treat as a slash.
    pub fn name(&self) -> Option<Cow<'p, [u8]>> {
        let is_split = self.text.contains('\\') || self.text.contains("%2F");
        (!is_split).then(|| decode(self.text, |_| true))
    }

    /// The decoded segment as data, in which `%2F` is a slash.
    pub fn data(&self) -> Cow<'p, [u8]> {
        decode(self.text, |_| true)
    }
}

/// Whether the canonical path is `prefix` or lies below it; see [`Path::is_below`].
#[inline]
pub fn is_below(canonical: &str, prefix: &str) -> bool {
    canonical
        .strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || prefix.is_empty() || rest.starts_with('/'))
}

/// Brings a part of a path into the canonical form, for the literal text of a route's pattern. Dot segments are not refused, as the
/// part may begin inside a segment.
///
/// # Errors
/// [`BadPath::Escape`] or [`BadPath::Control`].
pub fn canonical_part(text: &str) -> Result<Cow<'_, str>, BadPath> {
    let mut form = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(symbol) = symbol(rest) {
        let (symbol, written) = symbol?;
        match symbol {
            Symbol::Plain(byte) => form.push(char::from(byte)),
            Symbol::Escaped(byte) => write!(form, "%{byte:02X}").expect("a string takes it"),
        }
        rest = &rest[written..];
    }
    Ok(match form == text {
        true => Cow::Borrowed(text),
        false => Cow::Owned(form),
    })
}

/// Whether a path is obviously its own canonical form: it begins with a slash, and has no escape, no backslash, no control
/// character, no byte beyond ASCII, no empty segment and no segment that begins with a dot.
#[inline]
fn is_usual(path: &[u8]) -> bool {
    let [b'/', rest @ ..] = path else { return false };
    let mut after_slash = true;
    for &byte in rest {
        let is_rare = !(b' '..0x7f).contains(&byte) || byte == b'%' || byte == b'\\';
        if is_rare || (after_slash && matches!(byte, b'/' | b'.')) {
            return false;
        }
        after_slash = byte == b'/';
    }
    true
}

/// One character of the canonical form.
enum Symbol {
    Plain(u8),
    /// A byte that stays an escape of three characters.
    Escaped(u8),
}

/// The first symbol of a text and the number of bytes that spell it. `None` at the end. Several slashes are one symbol.
#[inline]
fn symbol(text: &[u8]) -> Option<Result<(Symbol, usize), BadPath>> {
    let (byte, written) = match *text {
        [] => return None,
        [b'/', ref rest @ ..] => {
            let more = rest.iter().take_while(|&&byte| byte == b'/').count();
            return Some(Ok((Symbol::Plain(b'/'), 1 + more)));
        }
        [b'%', high, low, ..] => match (hex(high), hex(low)) {
            (Some(high), Some(low)) => (high << 4 | low, 3),
            _ => return Some(Err(BadPath::Escape)),
        },
        [b'%', ..] => return Some(Err(BadPath::Escape)),
        [byte, ..] => (byte, 1),
    };
    Some(match byte {
        byte if byte.is_ascii_control() => Err(BadPath::Control),
        b'/' | b'%' | 0x80.. => Ok((Symbol::Escaped(byte), written)),
        _ => Ok((Symbol::Plain(byte), written)),
    })
}

fn hex(digit: u8) -> Option<u8> {
    // A digit is at most 15.
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Decodes the escapes of a canonical text whose bytes `takes` accepts.
#[inline]
fn decode(canonical: &str, takes: impl Fn(u8) -> bool) -> Cow<'_, [u8]> {
    if !canonical.contains('%') {
        return Cow::Borrowed(canonical.as_bytes());
    }
    let mut decoded = Vec::with_capacity(canonical.len());
    let mut rest = canonical.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = match *rest {
            [b'%', high, low, ref tail @ ..] => match (hex(high), hex(low)) {
                (Some(high), Some(low)) if takes(high << 4 | low) => {
                    decoded.push(high << 4 | low);
                    tail
                }
                _ => {
                    decoded.extend_from_slice(&rest[..3]);
                    tail
                }
            },
            _ => {
                decoded.push(*byte);
                tail
            }
        };
    }
    Cow::Owned(decoded)
}

/// Whether some reader finds a segment of one or two dots in a canonical path: between slashes, encoded slashes or backslashes, or
/// before a parameter (`..;x`), which servlet containers remove.
fn has_dot_segment(canonical: &[u8]) -> bool {
    let is_dots = |dots| matches!(dots, Some(1 | 2));
    // The number of dots in the segment so far, `None` once it has another character. Its parameters do not count.
    let (mut dots, mut in_parameters) = (Some(0), false);
    let mut rest = canonical;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match rest {
            [b'%', b'2', b'F', tail @ ..] => (b'/', tail),
            _ => (*first, tail),
        };
        rest = tail;
        match byte {
            b'/' | b'\\' if is_dots(dots) => return true,
            b'/' | b'\\' => (dots, in_parameters) = (Some(0), false),
            b';' => in_parameters = true,
            _ if in_parameters => {}
            b'.' => dots = dots.map(|dots| dots + 1),
            _ => dots = None,
        }
    }
    is_dots(dots)
}
