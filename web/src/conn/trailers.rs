//! Trailers: the fields after a body (RFC 9110 6.5).

use std::io;

use osier_http::FieldLines;

/// The fields after a body, for values that are known only at its end: a checksum, or the outcome of a gRPC call.
///
/// HTTP/2 allows a trailer after any body, HTTP/1.1 only after a chunked body: it is dropped after other bodies. A cache drops trailers.
/// A field that says how to read, route, authenticate or store a message may not stand in a trailer (RFC 9110 6.5.1), and is dropped
/// when received.
///
/// ```
/// use osier_web::Trailers;
///
/// let mut trailers = Trailers::new();
/// trailers.push("x-checksum", "9b74c989")?;
/// assert_eq!(trailers.get("X-Checksum"), Some(&b"9b74c989"[..]));
/// assert!(trailers.push("content-length", "5").is_err());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers(FieldLines);

impl Trailers {
    /// Makes an empty list, which allocates no memory.
    pub const fn new() -> Trailers {
        Trailers(FieldLines::new())
    }

    /// The fields of `fields` that may stand in a trailer.
    pub(crate) fn of<'f>(fields: impl IntoIterator<Item = (&'f str, &'f [u8])>) -> Trailers {
        let mut trailers = Trailers::new();
        for (name, value) in fields.into_iter().filter(|(name, _)| passes(name)) {
            // A field that frames a message is left out.
            let _ = trailers.0.push(name, value);
        }
        trailers
    }

    /// Adds a field.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name or value that HTTP does not allow, and for a field that may not stand in a trailer.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) -> io::Result<()> {
        let refuse = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
        if !passes(name) {
            return Err(refuse(format!("the field {name} may not stand in a trailer")));
        }
        let pushed = self.0.push(name, value.as_ref());
        pushed.map_err(|error| refuse(format!("the trailer {name:?}: {error}")))
    }

    /// The value of the first field with that name. Names are compared without regard to case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.first(name)
    }

    /// All fields, in the order added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines, each with its CRLF.
    pub(crate) fn lines(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Keeps the fields whose name `keeps`.
    #[cfg(feature = "proxy")]
    pub(crate) fn filtered(&self, keeps: impl Fn(&str) -> bool) -> Trailers {
        Trailers::of(self.iter().filter(|(name, _)| keeps(name)))
    }
}

/// Whether a field may stand in a trailer: none that says how to frame, route, authenticate, decode or cache a message, or that is a
/// condition of the request (RFC 9110 6.5.1).
fn passes(name: &str) -> bool {
    !FORBIDDEN.iter().any(|known| name.eq_ignore_ascii_case(known))
}

const FORBIDDEN: [&str; 40] = [
    "age",
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "retry-after",
    "set-cookie",
    "strict-transport-security",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-accel-redirect",
];
