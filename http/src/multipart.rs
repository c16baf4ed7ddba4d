//! An incremental parser for the parts of a `multipart/form-data` body (RFC 7578, RFC 2046 5.1), without I/O.
//!
//! A server feeds the received bytes of a decoded body to [`Multipart::next`] and drops the bytes that it has consumed:
//!
//! ```text
//!   preamble ─▶ delimiter ─▶ head ─▶ Part ─▶ Data … ─▶ PartEnd ─┐
//!                  ▲                                            │ another delimiter
//!                  └────────────────────────────────────────────┤
//!                                                               └─ the closing delimiter ─▶ End (the rest is ignored)
//! ```
//!
//! Data is borrowed from the input. The lines of a head are copied as they arrive. At most one delimiter's length of the input is
//! searched again, so the cost is linear in the body however it is split. Every part of a form has a bound in [`Limits`].
//!
//! A form that two parsers could read in two ways is refused: a part without a name or with two names, a fold, a delimiter that
//! other text follows, a Content-Transfer-Encoding that would need decoding.

use std::{error, fmt};

use memchr::{memchr, memmem};

use crate::message::byte::{is_token, is_value};

/// The longest boundary, in bytes: RFC 2046 5.1.1.
const BOUNDARY_BYTES: usize = 70;

/// The most white space after a delimiter, in bytes. RFC 2046 says "added by gateways"; clients send none.
const PADDING_BYTES: usize = 64;

/// The most text before the first delimiter, in bytes. Browsers send none.
const PREAMBLE_BYTES: u64 = 4 << 10;

/// The bounds of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most parts. Default: 1,000.
    pub parts: usize,
    /// The most fields in the head of a part. Browsers send two. Default: 16.
    pub headers: usize,
    /// The most bytes of the head of a part. Default: 8 KiB.
    pub head_bytes: usize,
    /// The most bytes of a part's name, and of its file name. Default: 1 KiB.
    pub name_bytes: usize,
    /// The most bytes of data in one part. Default: no bound; the bound of the body applies.
    pub part_bytes: u64,
    /// The most bytes of data in all parts together. Default: no bound; the bound of the body applies.
    pub total_bytes: u64,
}

impl Limits {
    /// The defaults, usable in constants.
    pub const DEFAULT: Limits = Limits {
        parts: 1000,
        headers: 16,
        head_bytes: 8 << 10,
        name_bytes: 1 << 10,
        part_bytes: u64::MAX,
        total_bytes: u64::MAX,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

macro_rules! refusals {
    ($($name:ident = $status:literal, $reason:literal;)*) => {
        /// Why a form is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Malformed {
            $(#[doc = $reason] $name,)*
        }

        impl Malformed {
            /// The status of the response: 400 or 413.
            pub const fn status(self) -> u16 {
                match self { $(Malformed::$name => $status,)* }
            }

            /// The reason in one line. It is safe to log and to send.
            pub const fn reason(self) -> &'static str {
                match self { $(Malformed::$name => $reason,)* }
            }
        }
    };
}

refusals! {
    Boundary = 400, "the form's boundary is missing or malformed";
    Preamble = 400, "the form does not begin with its boundary";
    Delimiter = 400, "a boundary of the form is followed by other text";
    Field = 400, "a malformed header field in a part of the form";
    Disposition = 400, "a part of the form without one Content-Disposition: form-data with a name";
    Encoding = 400, "a part of the form with a Content-Transfer-Encoding";
    Ended = 400, "the form ends before its last boundary";
    TooManyParts = 413, "the form has too many parts";
    TooManyHeaders = 413, "a part of the form has too many header fields";
    HeadTooLarge = 413, "the head of a part of the form is too large";
    NameTooLong = 413, "a name in the form is too long";
    PartTooLarge = 413, "a part of the form is too large";
    TooLarge = 413, "the form is too large";
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl error::Error for Malformed {}

/// The head of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    name: Option<String>,
    file_name: Option<String>,
    content_type: Option<String>,
    fields: Vec<(String, Vec<u8>)>,
}

impl Part {
    /// The name of the form's field. Several parts may have the same name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The client's name for its file, as it was sent. It may be any text, `../../etc/passwd` for example: never use it as a path.
    pub fn file_name(&self) -> Option<&str> {
        self.file_name.as_deref()
    }

    /// The Content-Type of the part, as it was sent.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The value of the first field with that name. Names are compared without regard to case.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields();
        fields
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All fields, in the order received.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    fn add(&mut self, line: &[u8], limits: &Limits) -> Result<(), Malformed> {
        if self.fields.len() == limits.headers {
            return Err(Malformed::TooManyHeaders);
        }
        let (name, value) = line.split_at(memchr(b':', line).ok_or(Malformed::Field)?);
        let value = value[1..].trim_ascii();
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || !value.iter().all(|&byte| is_value(byte)) {
            return Err(Malformed::Field);
        }
        let name = str::from_utf8(name).map_err(|_| Malformed::Field)?;
        if name.eq_ignore_ascii_case("content-disposition") {
            if self.name.is_some() {
                return Err(Malformed::Disposition);
            }
            let (name, file_name) = disposition(value).ok_or(Malformed::Disposition)?;
            if name.len() > limits.name_bytes || file_name.as_ref().is_some_and(|name| name.len() > limits.name_bytes) {
                return Err(Malformed::NameTooLong);
            }
            (self.name, self.file_name) = (Some(name), file_name);
        } else if name.eq_ignore_ascii_case("content-type") {
            if self.content_type.is_some() {
                return Err(Malformed::Field);
            }
            self.content_type = Some(str::from_utf8(value).map_err(|_| Malformed::Field)?.to_owned());
        } else if name.eq_ignore_ascii_case("content-transfer-encoding") {
            // RFC 7578 4.7: deprecated. These three encodings change no byte.
            if !["7bit", "8bit", "binary"]
                .iter()
                .any(|plain| value.eq_ignore_ascii_case(plain.as_bytes()))
            {
                return Err(Malformed::Encoding);
            }
        }
        self.fields.push((name.to_owned(), value.to_owned()));
        Ok(())
    }
}

/// The next event of a form; see [`Multipart::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// More bytes are needed.
    NeedMore,
    /// A part begins.
    Part(Box<Part>),
    /// A piece of the part's data, never empty.
    Data(&'i [u8]),
    /// The part has ended.
    PartEnd,
    /// The form has ended; later bytes do not belong to it.
    End,
}

/// The incremental parser of one form.
///
/// ```
/// use osier_http::multipart::{Event, Limits, Multipart, boundary};
///
/// let boundary = boundary(b"multipart/form-data; boundary=cut")?;
/// let mut form = Multipart::new(&boundary, Limits::default())?;
/// let mut input: &[u8] = b"--cut\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nhello\r\n--cut--\r\n";
/// let mut seen = Vec::new();
/// loop {
///     let (consumed, event) = form.next(input)?;
///     match event {
///         Event::Part(part) => seen.push(part.name().to_owned()),
///         Event::Data(data) => seen.push(String::from_utf8_lossy(data).into_owned()),
///         Event::PartEnd => {}
///         Event::End => break,
///         Event::NeedMore => unreachable!("all of it is there"),
///     }
///     input = &input[consumed..];
/// }
/// assert_eq!(seen, ["a", "hello"]);
/// # Ok::<(), osier_http::multipart::Malformed>(())
/// ```
#[derive(Clone, Debug)]
pub struct Multipart {
    /// Finds CRLF, two hyphens and the boundary.
    delimiter: memmem::Finder<'static>,
    limits: Limits,
    state: State,
    part: Part,
    parts: usize,
    /// The bytes still allowed for the current head.
    head_left: usize,
    part_left: u64,
    total_left: u64,
    preamble_left: u64,
    /// The input holds no line feed before this place.
    searched: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The delimiter may stand here without its CRLF.
    Start,
    Preamble,
    AfterDelimiter,
    Head,
    /// RFC 2046: a part may lack its body, and the empty line is then the delimiter's CRLF.
    FirstData,
    Data,
    Done,
}

/// The result of a search for the delimiter.
enum Found {
    At(usize),
    /// Not found. That many bytes do not belong to a delimiter, whatever follows.
    No(usize),
}

impl Multipart {
    /// Makes a parser for a body with this boundary.
    ///
    /// # Errors
    /// [`Malformed::Boundary`] if RFC 2046 does not allow the boundary.
    pub fn new(boundary: &str, limits: Limits) -> Result<Multipart, Malformed> {
        if !is_boundary(boundary) {
            return Err(Malformed::Boundary);
        }
        Ok(Multipart {
            delimiter: memmem::Finder::new(format!("\r\n--{boundary}").as_bytes()).into_owned(),
            limits,
            state: State::Start,
            part: Part::default(),
            parts: 0,
            head_left: 0,
            part_left: 0,
            total_left: limits.total_bytes,
            preamble_left: PREAMBLE_BYTES,
            searched: 0,
        })
    }

    /// Returns the number of bytes consumed and the next event. `input` holds the bytes that have not been consumed.
    ///
    /// After [`Event::NeedMore`] append more bytes to the unconsumed ones and call it again. If the body has ended, refuse the form
    /// with [`Malformed::Ended`]. A buffer of [`Limits::head_bytes`] plus 256 bytes is large enough.
    ///
    /// # Errors
    /// The first [`Malformed`] part. Do not use the parser after an error.
    pub fn next<'i>(&mut self, input: &'i [u8]) -> Result<(usize, Event<'i>), Malformed> {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            let (count, event) = match self.state {
                State::Start => self.start(rest),
                State::Preamble => self.preamble(rest)?,
                State::AfterDelimiter => self.after_delimiter(rest)?,
                State::Head => self.head(rest)?,
                State::FirstData => self.first_data(rest),
                State::Data => self.data(rest)?,
                State::Done => (0, Some(Event::End)),
            };
            consumed += count;
            if let Some(event) = event {
                return Ok((consumed, event));
            }
        }
    }

    /// The number of data bytes that the limits of the part and of the form still allow.
    fn left(&self) -> u64 {
        self.part_left.min(self.total_left)
    }

    fn start<'i>(&mut self, input: &'i [u8]) -> (usize, Option<Event<'i>>) {
        match self.begins_with_delimiter(input) {
            None => (0, Some(Event::NeedMore)),
            Some(false) => {
                self.state = State::Preamble;
                (0, None)
            }
            Some(true) => {
                self.state = State::AfterDelimiter;
                (self.delimiter.needle().len() - 2, None)
            }
        }
    }

    fn first_data<'i>(&mut self, input: &'i [u8]) -> (usize, Option<Event<'i>>) {
        match self.begins_with_delimiter(input) {
            None => (0, Some(Event::NeedMore)),
            Some(false) => {
                self.state = State::Data;
                (0, None)
            }
            Some(true) => {
                self.state = State::AfterDelimiter;
                (self.delimiter.needle().len() - 2, Some(Event::PartEnd))
            }
        }
    }

    /// Whether `input` begins with the delimiter without its CRLF. `None` if `input` is too short to decide.
    fn begins_with_delimiter(&self, input: &[u8]) -> Option<bool> {
        let line = &self.delimiter.needle()[2..];
        let seen = input.len().min(line.len());
        match input[..seen] == line[..seen] {
            true if seen < line.len() => None,
            same => Some(same),
        }
    }

    fn preamble<'i>(&mut self, input: &'i [u8]) -> Result<(usize, Option<Event<'i>>), Malformed> {
        let (count, event) = match self.find(input) {
            Found::At(at) => {
                self.state = State::AfterDelimiter;
                (at + self.delimiter.needle().len(), None)
            }
            Found::No(plain) => (plain, Some(Event::NeedMore)),
        };
        let left = self.preamble_left.checked_sub(count as u64);
        self.preamble_left = left.ok_or(Malformed::Preamble)?;
        Ok((count, event))
    }

    /// Reads the two hyphens or the line end after a delimiter.
    fn after_delimiter<'i>(&mut self, input: &'i [u8]) -> Result<(usize, Option<Event<'i>>), Malformed> {
        let padding = input.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        if padding > PADDING_BYTES {
            return Err(Malformed::Delimiter);
        }
        match (padding, &input[padding..]) {
            (0, [b'-', b'-', ..]) => {
                self.state = State::Done;
                Ok((2, None))
            }
            (_, [b'\r', b'\n', ..]) => {
                if self.parts == self.limits.parts {
                    return Err(Malformed::TooManyParts);
                }
                self.parts += 1;
                self.part = Part::default();
                (self.head_left, self.searched) = (self.limits.head_bytes, 0);
                self.part_left = self.limits.part_bytes;
                self.state = State::Head;
                Ok((padding + 2, None))
            }
            (0, [b'-']) | (_, [b'\r'] | []) => Ok((0, Some(Event::NeedMore))),
            _ => Err(Malformed::Delimiter),
        }
    }

    /// Reads one line of a head.
    fn head<'i>(&mut self, input: &'i [u8]) -> Result<(usize, Option<Event<'i>>), Malformed> {
        let within = input.len().min(self.head_left);
        let Some(at) = memchr(b'\n', &input[self.searched.min(within)..within]) else {
            self.searched = within;
            return match input.len() >= self.head_left {
                true => Err(Malformed::HeadTooLarge),
                false => Ok((0, Some(Event::NeedMore))),
            };
        };
        let end = self.searched + at + 1;
        self.searched = 0;
        self.head_left -= end;
        let line = input[..end].strip_suffix(b"\r\n").ok_or(Malformed::Field)?;
        if !line.is_empty() {
            self.part.add(line, &self.limits)?;
            return Ok((end, None));
        }
        if self.part.name.is_none() {
            return Err(Malformed::Disposition);
        }
        self.state = State::FirstData;
        Ok((end, Some(Event::Part(Box::new(std::mem::take(&mut self.part))))))
    }

    fn data<'i>(&mut self, input: &'i [u8]) -> Result<(usize, Option<Event<'i>>), Malformed> {
        let plain = match self.find(input) {
            Found::At(0) => {
                self.state = State::AfterDelimiter;
                return Ok((self.delimiter.needle().len(), Some(Event::PartEnd)));
            }
            Found::At(plain) | Found::No(plain) => plain,
        };
        if plain == 0 {
            return Ok((0, Some(Event::NeedMore)));
        }
        let count = plain as u64;
        if count > self.left() {
            return Err(match count > self.part_left {
                true => Malformed::PartTooLarge,
                false => Malformed::TooLarge,
            });
        }
        self.part_left -= count;
        self.total_left -= count;
        Ok((plain, Some(Event::Data(&input[..plain]))))
    }

    fn find(&self, input: &[u8]) -> Found {
        if let Some(at) = self.delimiter.find(input) {
            return Found::At(at);
        }
        // A beginning of the delimiter at the end of the input is at least one byte shorter than the delimiter.
        let needle = self.delimiter.needle();
        let from = input.len().saturating_sub(needle.len() - 1);
        // A boundary has no CR, so a beginning of the delimiter has its only CR in front. The last CR decides.
        let plain = match memchr::memrchr(b'\r', &input[from..]) {
            Some(at) if needle.starts_with(&input[from + at..]) => from + at,
            _ => input.len(),
        };
        Found::No(plain)
    }
}

/// The boundary in a Content-Type of `multipart/form-data`.
///
/// # Errors
/// [`Malformed::Boundary`] for another type, and if there is not exactly one valid boundary.
pub fn boundary(content_type: &[u8]) -> Result<String, Malformed> {
    let (kind, params) = split_params(content_type);
    if !kind.eq_ignore_ascii_case(b"multipart/form-data") {
        return Err(Malformed::Boundary);
    }
    let mut found = None;
    for (name, value) in parameters(params).ok_or(Malformed::Boundary)? {
        if name.eq_ignore_ascii_case("boundary") && found.replace(value).is_some() {
            return Err(Malformed::Boundary);
        }
    }
    found.filter(|text| is_boundary(text)).ok_or(Malformed::Boundary)
}

/// Whether RFC 2046 5.1.1 allows the boundary: 1 to 70 `bchars`, and no space at the end.
fn is_boundary(text: &str) -> bool {
    let is_bchar = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    !text.is_empty() && text.len() <= BOUNDARY_BYTES && !text.ends_with(' ') && text.bytes().all(is_bchar)
}

/// The name and the file name in `form-data; name="…"; filename="…"`.
fn disposition(value: &[u8]) -> Option<(String, Option<String>)> {
    let (kind, params) = split_params(value);
    if !kind.eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut file_name) = (None, None);
    for (param, value) in parameters(params)? {
        // Other parameters are ignored, also `filename*`, which RFC 7578 4.2 forbids.
        let slot = match &param {
            param if param.eq_ignore_ascii_case("name") => &mut name,
            param if param.eq_ignore_ascii_case("filename") => &mut file_name,
            _ => continue,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    Some((name?, file_name))
}

fn split_params(value: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr(b';', value).unwrap_or(value.len());
    (value[..end].trim_ascii(), &value[end..])
}

/// Reads `; name=value` as often as it occurs. A value is a token or quoted.
fn parameters(mut rest: &[u8]) -> Option<Vec<(String, String)>> {
    let mut params = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(params);
        }
        rest = rest.strip_prefix(b";")?.trim_ascii_start();
        if rest.is_empty() {
            return Some(params);
        }
        let name = memchr(b'=', rest)?;
        let (name, value) = (rest[..name].trim_ascii(), rest[name + 1..].trim_ascii_start());
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) {
            return None;
        }
        let (value, after) = match value.strip_prefix(b"\"") {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = memchr(b';', value).unwrap_or(value.len());
                let token = value[..end].trim_ascii_end();
                // Clients send boundaries without quotes, even with characters that require them.
                if token.is_empty() || token.iter().any(|&byte| byte == b'"' || byte.is_ascii_whitespace()) {
                    return None;
                }
                (token.to_vec(), &value[end..])
            }
        };
        params.push((str::from_utf8(name).ok()?.to_owned(), String::from_utf8(value).ok()?));
        rest = after;
    }
}

/// Returns the quoted text and the rest after it. A backslash escapes a quote or a backslash. Before any other byte it is a
/// normal character, as some browsers send a whole Windows path. So it is before a quote that ends the field: browsers escape no
/// backslash, and a name may end with one.
fn unquote(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut at = 0;
    loop {
        match (quoted.get(at)?, quoted.get(at + 1)) {
            (b'"', _) => return Some((value, &quoted[at + 1..])),
            (b'\\', Some(b'"')) if at + 2 == quoted.len() => {
                value.push(b'\\');
                return Some((value, &[]));
            }
            (b'\\', Some(&escaped @ (b'"' | b'\\'))) => {
                value.push(escaped);
                at += 2;
            }
            (&byte, _) => {
                value.push(byte);
                at += 1;
            }
        }
    }
}
