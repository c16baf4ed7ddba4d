//! The head of a response in the form of HTTP/1.1, cut into a status and fields.

/// A head. The serving code has written it, so it is well-formed.
pub(super) struct ResponseHead<'b> {
    pub(super) status: u16,
    /// The lines of the fields, each with its CRLF.
    lines: &'b [u8],
}

impl<'b> ResponseHead<'b> {
    /// Cuts the head from the beginning of `bytes`. Returns also the bytes behind it.
    ///
    /// # Panics
    ///
    /// Panics if the bytes do not begin with a whole head.
    pub(super) fn split(bytes: &'b [u8]) -> (ResponseHead<'b>, &'b [u8]) {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n").expect("a head is written as a whole");
        let (head, rest) = (&bytes[..end + 2], &bytes[end + 4..]);
        let first = memchr::memchr(b'\n', head).expect("it has a status line");
        let digits = head["HTTP/1.1 ".len()..].iter().take(3);
        let status = digits.fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
        let lines = &head[first + 1..];
        (ResponseHead { status, lines }, rest)
    }

    /// The fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> + use<'b> {
        let mut lines = self.lines;
        std::iter::from_fn(move || {
            let end = memchr::memchr(b'\n', lines)?;
            let (line, rest) = (&lines[..end - 1], &lines[end + 1..]);
            lines = rest;
            let colon = memchr::memchr(b':', line)?;
            // Names are tokens.
            let name = str::from_utf8(&line[..colon]).ok()?;
            Some((name, line[colon + 1..].trim_ascii()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_cut_into_its_status_and_fields() {
        let bytes =
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=x\r\n\r\nHTTP/1.1 200 OK\r\nA: \r\nb: c: d\r\n\r\nbody";
        let (head, rest) = ResponseHead::split(bytes);
        assert_eq!(head.status, 103);
        assert_eq!(head.fields().collect::<Vec<_>>(), [("link", &b"</a>; rel=x"[..])]);
        let (head, rest) = ResponseHead::split(rest);
        assert_eq!((head.status, rest), (200, &b"body"[..]));
        assert_eq!(head.fields().collect::<Vec<_>>(), [("A", &b""[..]), ("b", b"c: d")]);
        let (head, rest) = ResponseHead::split(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!((head.status, head.fields().count(), rest), (204, 0, &b""[..]));
    }
}
