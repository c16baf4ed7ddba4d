//! A head in HTTP/1.1 form, as the serving code and gateways write it, cut into its first line and fields for HTTP/2.

/// A head that code of this crate has written, and so a well-formed one.
pub(crate) struct WrittenHead<'b> {
    /// The first line, without its CRLF.
    first: &'b [u8],
    /// The lines of the fields, each with its CRLF.
    lines: &'b [u8],
}

impl<'b> WrittenHead<'b> {
    /// Cuts the head from the beginning of `bytes`. Returns also the bytes behind it.
    ///
    /// # Panics
    ///
    /// Panics if the bytes do not begin with a whole head.
    pub(crate) fn split(bytes: &'b [u8]) -> (WrittenHead<'b>, &'b [u8]) {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n").expect("a head is written as a whole");
        let (head, rest) = (&bytes[..end + 2], &bytes[end + 4..]);
        let first = memchr::memchr(b'\n', head).expect("it has a first line");
        let (first, lines) = (&head[..first - 1], &head[first + 1..]);
        (WrittenHead { first, lines }, rest)
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        let digits = self.first["HTTP/1.1 ".len()..].iter().take(3);
        digits.fold(0, |status, digit| status * 10 + u16::from(digit - b'0'))
    }

    /// The method and the target of a request.
    #[cfg(feature = "proxy")]
    pub(crate) fn request(&self) -> (&'b str, &'b str) {
        let line = str::from_utf8(self.first).unwrap_or_default();
        let mut parts = line.split(' ');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }

    /// The fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> + use<'b> {
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
        let (head, rest) = WrittenHead::split(bytes);
        assert_eq!(head.status(), 103);
        assert_eq!(head.fields().collect::<Vec<_>>(), [("link", &b"</a>; rel=x"[..])]);
        let (head, rest) = WrittenHead::split(rest);
        assert_eq!((head.status(), rest), (200, &b"body"[..]));
        assert_eq!(head.fields().collect::<Vec<_>>(), [("A", &b""[..]), ("b", b"c: d")]);
        let (head, rest) = WrittenHead::split(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!((head.status(), head.fields().count(), rest), (204, 0, &b""[..]));
    }
}
