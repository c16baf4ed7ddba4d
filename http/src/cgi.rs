//! Finds, parses and checks the head of a CGI response (RFC 3875 6), without I/O.
//!
//! A gateway feeds the standard output of the program to a [`Scanner`] until it finds the end of the head, and passes exactly those
//! bytes to [`Head::parse`]. The bytes after them are the body. A line ends with LF or CRLF, as programs differ. The parser copies
//! and allocates nothing.
//!
//! The program's framing and hop-by-hop fields never reach the client: Transfer-Encoding, Connection and the fields that
//! Connection names are left out. Content-Length becomes [`Head::content_length`], so that the gateway can check the body.
//!
//! A head that two parsers could read in two ways is refused: a fold, white space before a colon, a control byte, a second Status
//! or Location.

use std::ops::Range;
use std::{error, fmt};

use memchr::memchr;

use crate::message::byte::{are_tokens, is_field_name};
use crate::message::check_value;

/// The default bound of a head, in bytes: twice the size of all cookies that browsers accept from one site.
pub const HEAD_BYTES: usize = 64 << 10;

/// The most names that Connection may list. Every name is compared with every field.
const LISTED_NAMES: usize = 16;

/// The most fields of a head. Every bound of the length in bytes leaves room for far more of them than any program writes.
const FIELDS: usize = 4096;

/// How many fields keep their places, so that passing them on needs no second search. Most heads have no more.
const PLACES: usize = 8;

/// Why a response cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The head has not ended within this many bytes.
    TooLong(usize),
    /// The line with this number, counted from 1, has no colon or a name that is not a token, or continues the line before.
    Field(usize),
    /// The value in the line with this number has a control byte.
    Value(usize),
    /// Status is not a number from 200 to 999, or stands twice.
    Status,
    /// Location stands twice.
    Location,
    /// Content-Length is not a number, or stands twice with different values.
    ContentLength,
    /// Content-Type stands twice.
    ContentType,
    /// Connection lists more than 16 names.
    Connection,
    /// The head has more than 4,096 fields.
    TooManyFields,
    /// The head has no field.
    Empty,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::TooLong(limit) => write!(f, "the head of the response is longer than {limit} bytes"),
            Malformed::Field(line) => write!(f, "line {line} of the response's head is not `name: value`"),
            Malformed::Value(line) => write!(f, "line {line} of the response's head holds a control byte"),
            Malformed::Status => f.write_str("the response's Status is not one number from 200 to 999"),
            Malformed::Location => f.write_str("the response has two Locations"),
            Malformed::ContentLength => f.write_str("the response's Content-Length is not one number"),
            Malformed::ContentType => f.write_str("the response has two Content-Types"),
            Malformed::Connection => write!(f, "the response's Connection lists more than {LISTED_NAMES} names"),
            Malformed::TooManyFields => write!(f, "the response's head has more than {FIELDS} fields"),
            Malformed::Empty => f.write_str("the response has no header field"),
        }
    }
}

impl error::Error for Malformed {}

/// The incremental search for the end of one head.
#[derive(Clone, Debug)]
pub struct Scanner {
    limit: usize,
    /// The start of the line whose end has not arrived.
    line: usize,
    /// All line feeds before this place have been checked.
    searched: usize,
}

impl Scanner {
    /// Makes a scanner for one head of at most `limit` bytes.
    pub fn new(limit: usize) -> Scanner {
        Scanner {
            limit,
            line: 0,
            searched: 0,
        }
    }

    /// Returns the length of the head with its empty line, or `None` if its end has not arrived. `bytes` holds all bytes from the
    /// beginning; only new bytes are searched.
    ///
    /// # Errors
    ///
    /// [`Malformed::TooLong`] beyond the limit.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let within = bytes.len().min(self.limit);
        while let Some(at) = memchr(b'\n', &bytes[self.searched..within]) {
            let end = self.searched + at + 1;
            let is_empty = matches!(&bytes[self.line..end], b"\n" | b"\r\n");
            (self.line, self.searched) = (end, end);
            if is_empty {
                return Ok(Some(end));
            }
        }
        self.searched = within;
        if bytes.len() > self.limit {
            return Err(Malformed::TooLong(self.limit));
        }
        Ok(None)
    }
}

/// The name and the length in bytes of the longest line of a head, which may be incomplete or malformed. A log line about a head
/// that is too long can name it.
pub fn longest_field(bytes: &[u8]) -> Option<(&str, usize)> {
    let lines = bytes.split(|&byte| byte == b'\n');
    let longest = lines.max_by_key(|line| line.len())?;
    let name = &longest[..memchr(b':', longest)?];
    Some((str::from_utf8(name).ok()?, longest.len()))
}

/// A parsed and checked head, borrowed from the bytes of the response.
///
/// ```
/// use osier_http::cgi::{HEAD_BYTES, Head, Scanner};
///
/// let answer = b"Status: 404 Not Found\nContent-Type: text/html\nConnection: close\n\n<p>not here";
/// let end = Scanner::new(HEAD_BYTES).scan(answer)?.expect("it is whole");
/// let head = Head::parse(&answer[..end])?;
/// assert_eq!(head.status(), 404);
/// assert_eq!(head.fields().collect::<Vec<_>>(), [("Content-Type", &b"text/html"[..])]);
/// # Ok::<(), osier_http::cgi::Malformed>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    lines: &'a [u8],
    status: Option<u16>,
    location: Option<&'a [u8]>,
    content_length: Option<u64>,
    /// The names that Connection lists, other than `close`. Their fields are left out.
    listed: [&'a [u8]; LISTED_NAMES],
    /// The number of names in `listed`.
    listed_count: usize,
    /// The lengths of the names: bit n for a name of n bytes, the last bit for all longer ones. A missing bit rules a name out.
    lengths: u64,
    places: [Place; PLACES],
    /// The number of `places` in use.
    placed: usize,
    /// The start of the first line after those of `places`.
    rest: usize,
}

/// The place of a field in the head: where its line begins, its colon, and where its line ends.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    line: u32,
    colon: u32,
    end: u32,
    kind: FieldName,
}

impl<'a> Head<'a> {
    /// Parses one whole head. `bytes` must end where [`Scanner::scan`] found the end.
    ///
    /// # Errors
    ///
    /// The first [`Malformed`] part.
    pub fn parse(bytes: &'a [u8]) -> Result<Head<'a>, Malformed> {
        let mut head = Head {
            lines: bytes,
            status: None,
            location: None,
            content_length: None,
            listed: [&[]; LISTED_NAMES],
            listed_count: 0,
            lengths: 0,
            places: [Place::default(); PLACES],
            placed: 0,
            rest: 0,
        };
        let (mut count, mut options, mut has_type, mut at) = (0, 0, false, 0);
        while let Some((line, next)) = line_at(bytes, at) {
            count += 1;
            if count > FIELDS {
                return Err(Malformed::TooManyFields);
            }
            let (name, value) = field(line).ok_or(Malformed::Field(count))?;
            if !is_token_as_a_whole(name) {
                return Err(Malformed::Field(count));
            }
            if check_value(value).is_err() {
                return Err(Malformed::Value(count));
            }
            head.lengths |= length_bit(name.len());
            let kind = FieldName::of(name);
            head.place(at..at + line.len(), name.len(), kind, next);
            at = next;
            match kind {
                FieldName::Status => {
                    let status = status_of(value).filter(|_| head.status.is_none());
                    head.status = Some(status.ok_or(Malformed::Status)?);
                }
                FieldName::Location => {
                    if head.location.replace(value).is_some() {
                        return Err(Malformed::Location);
                    }
                }
                FieldName::ContentLength => {
                    let length = number(value).ok_or(Malformed::ContentLength)?;
                    if head.content_length.replace(length).is_some_and(|other| other != length) {
                        return Err(Malformed::ContentLength);
                    }
                }
                FieldName::ContentType if has_type => return Err(Malformed::ContentType),
                FieldName::ContentType => has_type = true,
                FieldName::Connection => {
                    for option in members(value) {
                        options += 1;
                        if options > LISTED_NAMES {
                            return Err(Malformed::Connection);
                        }
                        head.list(option);
                    }
                }
                FieldName::HopByHop | FieldName::Other => {}
            }
        }
        if count == 0 {
            return Err(Malformed::Empty);
        }
        Ok(head)
    }

    /// Keeps a name that Connection lists. There is room for each.
    fn list(&mut self, option: &'a [u8]) {
        if !option.eq_ignore_ascii_case(b"close") {
            self.listed[self.listed_count] = option;
            self.listed_count += 1;
        }
    }

    /// Keeps the place of a line, unless there are enough already. `next` is where the line after it begins.
    fn place(&mut self, line: Range<usize>, name: usize, kind: FieldName, next: usize) {
        if let Some(place) = self.places.get_mut(self.placed)
            && let Ok(end) = u32::try_from(line.end)
        {
            // Both are below the end of the line.
            let (start, colon) = (line.start as u32, (line.start + name) as u32);
            *place = Place {
                line: start,
                colon,
                end,
                kind,
            };
            (self.placed, self.rest) = (self.placed + 1, next);
        }
    }

    /// The status: that of Status, else 302 with a [`location`](Head::location), else 200.
    pub fn status(&self) -> u16 {
        let natural = if self.location.is_some() { 302 } else { 200 };
        self.status.unwrap_or(natural)
    }

    /// The value of Location, which is also one of the [`fields`](Head::fields). It is whatever the program has written, which may
    /// have spaces and bytes beyond ASCII: browsers escape them.
    pub fn location(&self) -> Option<&'a [u8]> {
        self.location
    }

    /// The path and query of a local redirect (RFC 3875 6.2.2), which the gateway itself must follow. A Location that begins with
    /// `//` names another host, and one with a Status is for the client. So is one that is no request target.
    pub fn local_redirect(&self) -> Option<&'a str> {
        let path = self.location.filter(|_| self.status.is_none())?;
        let is_local = path.starts_with(b"/") && !path.starts_with(b"//") && path.iter().all(u8::is_ascii_graphic);
        is_local.then(|| str::from_utf8(path).ok())?
    }

    /// The Content-Length of the program. The gateway makes its own framing.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The value of the first field with that name, if the field is passed on. Names are compared without regard to case.
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        // Most heads do not have the field.
        if self.lengths & length_bit(name.len()) == 0 {
            return None;
        }
        let is_it = |known: &[u8], kind| known.eq_ignore_ascii_case(name.as_bytes()) && self.passes(known, kind);
        let found = self.all_fields().find(|(known, _, kind)| is_it(known, *kind));
        found.map(|(_, value, _)| value)
    }

    /// The fields that are passed on, in order: all except Status, Content-Length and the hop-by-hop fields.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let head = *self;
        self.all_fields()
            .filter(move |(name, _, kind)| head.passes(name, *kind))
            .filter_map(|(name, value, _)| Some((str::from_utf8(name).ok()?, value)))
    }

    fn all_fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8], FieldName)> + use<'a> {
        let (lines, places) = (self.lines, self.places);
        let placed = places.into_iter().take(self.placed).map(move |place| {
            let [line, colon, end] = [place.line, place.colon, place.end].map(|at| at as usize);
            (&lines[line..colon], trim(&lines[colon + 1..end]), place.kind)
        });
        let mut at = self.rest;
        let others = std::iter::from_fn(move || {
            let (line, next) = line_at(lines, at)?;
            at = next;
            field(line).map(|(name, value)| (name, value, FieldName::of(name)))
        });
        placed.chain(others)
    }

    fn passes(&self, name: &[u8], kind: FieldName) -> bool {
        match kind {
            FieldName::Status | FieldName::ContentLength | FieldName::Connection | FieldName::HopByHop => false,
            FieldName::Location | FieldName::ContentType | FieldName::Other => !self.is_listed(name),
        }
    }

    fn is_listed(&self, name: &[u8]) -> bool {
        let listed = &self.listed[..self.listed_count];
        listed.iter().any(|option| option.eq_ignore_ascii_case(name))
    }
}

/// The fields that the parser distinguishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldName {
    Status,
    Location,
    ContentType,
    ContentLength,
    Connection,
    /// A hop-by-hop field (RFC 9110 7.6.1).
    HopByHop,
    #[default]
    Other,
}

impl FieldName {
    /// Requires a token.
    fn of(name: &[u8]) -> FieldName {
        let is = |known: &'static str| is_field_name(name, known.as_bytes());
        match name.len() {
            2 if is("te") => FieldName::HopByHop,
            6 if is("status") => FieldName::Status,
            7 if is("trailer") || is("upgrade") => FieldName::HopByHop,
            8 if is("location") => FieldName::Location,
            10 if is("connection") => FieldName::Connection,
            10 if is("keep-alive") => FieldName::HopByHop,
            12 if is("content-type") => FieldName::ContentType,
            14 if is("content-length") => FieldName::ContentLength,
            16 if is("proxy-connection") => FieldName::HopByHop,
            17 if is("transfer-encoding") => FieldName::HopByHop,
            18 if is("proxy-authenticate") => FieldName::HopByHop,
            _ => FieldName::Other,
        }
    }
}

/// The line that begins at `at`, without its line end, and where the next one begins. `None` for the empty line.
fn line_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = &bytes[at..];
    let (line, next) = match memchr(b'\n', rest) {
        Some(end) => (&rest[..end], at + end + 1),
        None => (rest, bytes.len()),
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    (!line.is_empty()).then_some((line, next))
}

/// The name and the value of a line.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at(memchr(b':', line)?);
    Some((name, trim(&value[1..])))
}

/// Whether the whole name is a token. It is not in a line that begins with white space or has some before its colon.
fn is_token_as_a_whole(name: &[u8]) -> bool {
    !name.is_empty() && are_tokens(name)
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// Removes the white space around a value.
fn trim(value: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_space(byte)).unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(|byte| !is_space(byte))
        .map_or(start, |last| last + 1);
    &value[start..end]
}

/// The number in `404 Not Found` or `404`. A 1xx is refused: a CGI response has no room for the final one.
fn status_of(value: &[u8]) -> Option<u16> {
    let (digits, rest) = value.split_at_checked(3)?;
    if !(rest.is_empty() || rest[0] == b' ') {
        return None;
    }
    number(digits)
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| *status >= 200)
}

fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The non-empty members of a list.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|name| !name.is_empty())
}
