//! The one reading of a request's path: every route, policy and handler compares, looks up and forwards by it.
//!
//! A request target can spell one place in many ways, and two readers that disagree about a spelling are a hole: the
//! policy guards one place and the handler serves another. [`Path::parse`] reads the path once. It refuses what has no
//! safe meaning and brings the rest into a canonical form.
//!
//! | spelling | meaning |
//! |---|---|
//! | `%61`, any escape of an ASCII character but `/` and `%` | the character |
//! | `%2F` | data inside a segment: never separates, never part of a file's name; stays `%2F` |
//! | `%25` | data; stays `%25`, so that nothing is decoded twice |
//! | `%C3%A9`, a byte beyond ASCII, escaped or not | the byte; stays an escape, in upper case |
//! | `//`, `///` | one slash; a slash at the end stays |
//! | a segment of one or two dots | refused, also if it is escaped, stands beside `%2F`, `\` or `%5C`, or carries parameters (`..;x`) |
//! | `%00`, `%0A`, `%7F`, any other control | refused |
//! | `%`, `%4`, `%zz` | refused |
//! | `\`, `%5C` | the character; never separates, never part of a file's name |
//! | `;x=y`, `+`, `:`, `~`, three dots | literal |
//!
//! ```text
//!   sent        //%61dmin/caf%c3%a9/x%2fy/      as the client wrote it: what a proxy forwards
//!   canonical   /admin/caf%C3%A9/x%2Fy/         ASCII: prefixes, routes, policies
//!   text        /admin/café/x%2Fy/              bytes: globs and expressions
//!   segments    admin · café · (no name)        decoded: files, parameters
//! ```
//!
//! Canonicalising twice changes nothing. A usual path is its own canonical form and costs one pass and no allocation.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A path that was read. See the [module's table](self) for the meaning of each spelling.
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
    /// It does not begin with a slash.
    NoSlash,
    /// A `%` that two hexadecimal digits do not follow.
    Escape,
    /// A NUL or another control, escaped or not.
    Control,
    /// A segment that some reader takes for `.` or `..`.
    DotSegment,
}

impl BadPath {
    /// What is wrong, in one line that is safe to log and to send.
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
    /// [`BadPath`], for a path that is answered by 400.
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

    /// The one form in which paths are compared: ASCII, begins with a slash.
    #[inline]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Whether the path was sent in its canonical form.
    #[inline]
    pub fn is_as_sent(&self) -> bool {
        matches!(self.canonical, Cow::Borrowed(_))
    }

    /// The canonical form by itself, for a prefix in a configuration.
    pub fn into_canonical(self) -> Cow<'a, str> {
        self.canonical
    }

    /// The canonical form with its bytes beyond ASCII decoded, for globs and expressions. `%2F` and `%25` stay escapes.
    #[inline]
    pub fn text(&self) -> Cow<'_, [u8]> {
        decode(&self.canonical, |byte| !byte.is_ascii())
    }

    /// Whether the path ends with a slash, so that it can only mean a folder.
    #[inline]
    pub fn is_folder(&self) -> bool {
        self.canonical.ends_with('/')
    }

    /// Whether some segment holds a `%2F`. Such a path never names a file.
    #[inline]
    pub fn has_encoded_slash(&self) -> bool {
        self.has_encoded_slash
    }

    /// The canonical form for a reader that takes `%2F` for a slash; `None` where that is the same.
    ///
    /// A backend may be such a reader. A server whose policies would differ between the two forms refuses the request.
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

    /// Whether the path is `prefix` or lies below it. `prefix` is canonical and has no slash at its end; the empty one
    /// has every path below it.
    #[inline]
    pub fn is_below(&self, prefix: &str) -> bool {
        is_below(&self.canonical, prefix)
    }

    /// The path after `prefix`, as the client wrote it: empty, or with a slash at its beginning. `None` unless
    /// [`is_below`](Path::is_below).
    #[inline]
    pub fn strip_prefix(&self, prefix: &str) -> Option<&'a str> {
        self.is_below(prefix).then(|| &self.sent[self.sent_len(prefix.len())..])
    }

    /// How many bytes of [`sent`](Path::sent) the first `len` bytes of the canonical form were written with.
    ///
    /// # Panics
    /// When `len` is beyond the canonical form.
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

    /// A part of the canonical form, given by its place there, as the client wrote it.
    ///
    /// # Panics
    /// When the place is beyond the canonical form.
    #[inline]
    pub fn sent_part(&self, place: std::ops::Range<usize>) -> &'a str {
        &self.sent[self.sent_len(place.start)..self.sent_len(place.end)]
    }

    /// The segments between the slashes, in order. The slash at the end makes none.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Segment<'_>> {
        let origin = self.canonical.as_ptr().addr();
        let segments = self.canonical.split('/').filter(|segment| !segment.is_empty());
        segments.map(move |text| Segment {
            text,
            start: text.as_ptr().addr() - origin,
        })
    }

    /// The path as a name below a root: decoded, without a slash at either end, empty for the root itself. `None` for a
    /// path with a segment that is no file's name; see [`Segment::name`].
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

    /// Its place in the canonical form.
    pub fn place(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// The decoded segment, if it can be the name of a file: `None` when it holds a slash or a backslash, by which other
    /// systems end a name.
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

/// Brings a part of a path into the canonical form: the literal text around the parameters of a route's pattern. Dot
/// segments are not looked for, as the part may begin inside of a segment.
///
/// # Errors
/// [`BadPath::Escape`] and [`BadPath::Control`].
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

/// Whether a path is its own canonical form at a glance: begins with a slash, and has no escape, no backslash, no control,
/// nothing beyond ASCII, no empty segment and none that begins with a dot.
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
    /// It stays an escape, of three characters.
    Escaped(u8),
}

/// The first symbol of a text and the bytes it was written with; `None` at the end. Slashes in a row are one.
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

/// Undoes the escapes of a canonical text whose bytes `takes` agrees to.
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

/// Whether some reader finds a segment of one or two dots in a canonical path: between slashes, slashes that are encoded,
/// the slashes of another system, or before a parameter (`..;x`), which servlet containers take off.
fn has_dot_segment(canonical: &[u8]) -> bool {
    let is_dots = |dots| matches!(dots, Some(1 | 2));
    // The dots of the segment so far, `None` once it holds anything else. Its parameters do not matter.
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
