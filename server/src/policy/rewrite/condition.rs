//! The conditions that a rewrite rule has besides its pattern. Each tests one part of a request, for example a field or
//! a cookie.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use osier_web::compress;
use percent_encoding::percent_decode;
use regex::bytes::{Captures, Regex};

use super::template::{self, Part};
use super::{Facts, regex};
use crate::policy::client;

/// One condition, as the configuration writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Part of the request to test.
    pub of: Subject,
    /// Test of that part.
    pub is: Test,
    /// Whether the condition holds when the test fails.
    pub not: bool,
}

/// The part of a request that a condition looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A header field.
    Header(String),
    /// A cookie.
    Cookie(String),
    /// A parameter of the query, decoded.
    Query(String),
    /// A field of a posted form, decoded.
    Post(String),
    /// A variable of the server's environment, as it was at the start.
    Environment(String),
    /// A capture of the pattern, by number or name.
    Capture(String),
    /// The method.
    Method,
    /// The host that the request names, in lower case, without its port.
    Host,
    /// The text of the path.
    Path,
    /// The client's address. It is compared with an address or a network.
    Client,
    /// The content codings that the client accepts. Each one is compared.
    Encoding,
    /// Whether there is a query, even an empty one.
    QueryString,
    /// Whether the protocol is HTTP/1.0.
    Http10,
    /// Whether the client has sent the request over https.
    Https,
    /// Whether a trusted proxy has named the client.
    Proxied,
    /// Whether a file exists at this absolute path. Captures are filled in.
    File(String),
    /// Whether a folder exists at this absolute path.
    Folder(String),
    /// Whether anything exists at this absolute path.
    Exists(String),
}

/// The words for subjects in a configuration, and whether each needs a name or path.
pub const SUBJECTS: [(&str, bool); 18] = [
    ("header", true),
    ("cookie", true),
    ("query", true),
    ("post", true),
    ("environment", true),
    ("capture", true),
    ("method", false),
    ("host", false),
    ("path", false),
    ("client", false),
    ("encoding", false),
    ("query_string", false),
    ("http_1.0", false),
    ("https", false),
    ("proxied", false),
    ("file", true),
    ("folder", true),
    ("exists", true),
];

impl Subject {
    /// The subject for a word in [`SUBJECTS`]. None for an unknown word, or a missing or needless name.
    pub fn by_word(word: &str, name: Option<&str>) -> Option<Subject> {
        use Subject::*;
        let named = |subject: fn(String) -> Subject| name.map(|name| subject(name.to_owned()));
        let alone = |subject: Subject| name.is_none().then_some(subject);
        match word {
            "header" => named(Header),
            "cookie" => named(Cookie),
            "query" => named(Query),
            "post" => named(Post),
            "environment" => named(Environment),
            "capture" => named(Capture),
            "method" => alone(Method),
            "host" => alone(Host),
            "path" => alone(Path),
            "client" => alone(Client),
            "encoding" => alone(Encoding),
            "query_string" => alone(QueryString),
            "http_1.0" => alone(Http10),
            "https" => alone(Https),
            "proxied" => alone(Proxied),
            "file" => named(File),
            "folder" => named(Folder),
            "exists" => named(Exists),
            _ => None,
        }
    }
}

/// The test of a subject.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// The subject exists, or is true.
    Present,
    /// The subject is equal to this text, in which captures are filled in. Methods and values are case-sensitive,
    /// codings are not. A client is equal to its address and to each network that contains it.
    Equals(String),
    /// The subject matches this regular expression.
    Matches(String),
}

/// A compiled condition.
#[derive(Debug)]
pub struct Check {
    look: Look,
    expected: Expected,
    not: bool,
}

/// Where the tested value comes from.
#[derive(Debug)]
enum Look {
    Of(Subject),
    Known(Option<Vec<u8>>),
    Capture(usize),
    Stat(Vec<Part>, Kind),
}

/// The kind of file that must be at a path.
#[derive(Clone, Copy, Debug)]
enum Kind {
    File,
    Folder,
    Any,
}

/// A compiled [`Test`].
#[derive(Debug)]
enum Expected {
    Present,
    Equal(Vec<Part>),
    Fits(Regex),
    Among(client::Client),
}

impl Check {
    /// Compiles a condition of a rule with this pattern.
    ///
    /// # Errors
    /// One line: the mistake in the condition.
    pub fn compile(condition: &Condition, pattern: &Regex) -> Result<Check, String> {
        use Subject::*;
        let stat = |path: &String, kind| {
            if !path.starts_with('/') {
                return Err(format!("the path {path:?} of a condition must be absolute"));
            }
            Ok(Look::Stat(template::parse(path, pattern)?, kind))
        };
        let look = match &condition.of {
            Environment(name) => Look::Known(std::env::var_os(name).map(OsString::into_vec)),
            Capture(name) => Look::Capture(template::capture(name, pattern)?),
            File(path) => stat(path, Kind::File)?,
            Folder(path) => stat(path, Kind::Folder)?,
            Exists(path) => stat(path, Kind::Any)?,
            Header(name) | Cookie(name) | Query(name) | Post(name) if name.is_empty() => {
                return Err("a condition needs the name of the header, cookie, parameter or field".into());
            }
            other => Look::Of(other.clone()),
        };
        let flag = matches!(
            condition.of,
            QueryString | Http10 | Https | Proxied | File(_) | Folder(_) | Exists(_)
        );
        let expected = match &condition.is {
            Test::Present => Expected::Present,
            _ if flag => {
                return Err(
                    "a subject that is true or false cannot be compared with a value; use 'not' to negate it".into(),
                );
            }
            Test::Equals(text) if condition.of == Client => {
                Expected::Among(client::client(text).map_err(|why| format!("{text:?}: {why}"))?)
            }
            Test::Equals(text) => Expected::Equal(template::parse(text, pattern)?),
            Test::Matches(text) => Expected::Fits(regex(text)?),
        };
        let not = condition.not;
        Ok(Check { look, expected, not })
    }

    /// Whether the condition tests a field of a posted form.
    pub fn reads_form(&self) -> bool {
        matches!(&self.look, Look::Of(Subject::Post(_)))
    }

    /// Whether the condition has the same outcome when a rule has given the request another path and query.
    pub fn lasts(&self) -> bool {
        let is_fixed = |parts: &[Part]| parts.iter().all(|part| matches!(part, Part::Text(_)));
        let is_fixed_subject = match &self.look {
            Look::Of(subject) => !matches!(subject, Subject::Path | Subject::Query(_) | Subject::QueryString),
            Look::Known(_) => true,
            Look::Capture(_) => false,
            Look::Stat(parts, _) => is_fixed(parts),
        };
        let is_fixed_value = match &self.expected {
            Expected::Equal(parts) => is_fixed(parts),
            Expected::Present | Expected::Fits(_) | Expected::Among(_) => true,
        };
        is_fixed_subject && is_fixed_value
    }

    /// Whether the condition holds for a request.
    ///
    /// # Suspends
    ///
    /// While it looks at the file system, for a condition on a file or folder.
    pub fn holds(&self, facts: &dyn Facts, path: &[u8], captures: &Captures<'_>) -> bool {
        self.finds(facts, path, captures) != self.not
    }

    /// Whether the test succeeds, before `not`.
    fn finds(&self, facts: &dyn Facts, path: &[u8], captures: &Captures<'_>) -> bool {
        match &self.look {
            Look::Known(value) => self.expects(value.as_deref(), captures),
            Look::Capture(index) => self.expects(captures.get(*index).map(|found| found.as_bytes()), captures),
            Look::Stat(parts, kind) => template::fill_name(parts, captures).is_some_and(|name| exists(name, *kind)),
            Look::Of(subject) => self.finds_in(subject, facts, path, captures),
        }
    }

    /// Whether the test of a subject that the request itself has succeeds.
    fn finds_in(&self, subject: &Subject, facts: &dyn Facts, path: &[u8], captures: &Captures<'_>) -> bool {
        match subject {
            Subject::Header(name) => self.expects(facts.header(name), captures),
            Subject::Cookie(name) => self.expects(cookie(facts, name), captures),
            Subject::Query(name) => {
                self.expects(parameter(facts.query().map(str::as_bytes), name).as_deref(), captures)
            }
            Subject::Post(name) => self.expects(parameter(facts.form(), name).as_deref(), captures),
            Subject::Method => self.expects(Some(facts.method().as_bytes()), captures),
            Subject::Host => self.expects(host(facts).as_deref().map(str::as_bytes), captures),
            Subject::Path => self.expects(Some(path), captures),
            Subject::Client => match &self.expected {
                Expected::Among(clients) => clients.is(facts.client()),
                _ => {
                    let address = facts.client().map(|client| client.to_canonical().to_string());
                    self.expects(Some(address.as_deref().unwrap_or("unix").as_bytes()), captures)
                }
            },
            Subject::Encoding => {
                let mut codings = compress::accepted(facts.lines("accept-encoding"));
                codings.any(|coding| self.expects(Some(&coding.to_ascii_lowercase()), captures))
            }
            Subject::QueryString => facts.query().is_some(),
            Subject::Http10 => facts.http_10(),
            Subject::Https => facts.https(),
            Subject::Proxied => facts.proxied(),
            // `compile` makes another `Look` of these subjects.
            Subject::Environment(_)
            | Subject::Capture(_)
            | Subject::File(_)
            | Subject::Folder(_)
            | Subject::Exists(_) => false,
        }
    }

    /// Whether a value is the expected one. An absent value never is.
    fn expects(&self, value: Option<&[u8]>, captures: &Captures<'_>) -> bool {
        let Some(value) = value else {
            return false;
        };
        match &self.expected {
            Expected::Present => true,
            Expected::Equal(parts) => template::fill_raw(parts, captures) == value,
            Expected::Fits(regex) => regex.is_match(value),
            Expected::Among(_) => false,
        }
    }
}

/// Looks for a file on the blocking pool, because a disk may be slow or on another machine.
fn exists(path: Vec<u8>, kind: Kind) -> bool {
    if path.contains(&0) {
        return false;
    }
    let path = PathBuf::from(OsString::from_vec(path));
    let metadata = osier::shield(|| osier::unblock(move || path.metadata()));
    metadata.is_ok_and(|metadata| match kind {
        Kind::File => metadata.is_file(),
        Kind::Folder => metadata.is_dir(),
        Kind::Any => true,
    })
}

/// The first cookie with this name. RFC 6265 gives a second one no meaning.
fn cookie<'f>(facts: &'f dyn Facts, name: &str) -> Option<&'f [u8]> {
    let pairs = facts.header("cookie")?.split(|&byte| byte == b';');
    pairs
        .map(<[u8]>::trim_ascii)
        .find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The first parameter with this name, decoded as forms are.
fn parameter<'q>(query: Option<&'q [u8]>, name: &str) -> Option<Cow<'q, [u8]>> {
    let decode = |text: &'q [u8]| -> Cow<'q, [u8]> {
        if text.contains(&b'+') {
            let spaced: Vec<u8> = text
                .iter()
                .map(|&byte| if byte == b'+' { b' ' } else { byte })
                .collect();
            return Cow::Owned(percent_decode(&spaced).collect());
        }
        percent_decode(text).into()
    };
    let pair = |pair: &'q [u8]| match pair.iter().position(|&byte| byte == b'=') {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, &pair[pair.len()..]),
    };
    let mut pairs = query?.split(|&byte| byte == b'&').map(pair);
    pairs
        .find(|(key, _)| *decode(key) == *name.as_bytes())
        .map(|(_, value)| decode(value))
}

/// The host in lower case without its port and without the dot of a full name, as sites are found by it. `[::1]:80` becomes `[::1]`.
fn host(facts: &dyn Facts) -> Option<String> {
    let host = facts.host()?;
    let end = host
        .rfind(':')
        .filter(|&colon| !host[colon..].contains(']'))
        .unwrap_or(host.len());
    let name = &host[..end];
    Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
}
