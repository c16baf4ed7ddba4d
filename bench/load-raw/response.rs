//! Where a response ends.

use std::io::{Error, Result};

/// The part of a response head that says where the response ends.
pub struct Head {
    /// The length of the head.
    length: usize,
    /// The length of the body; none if it has chunks.
    body: Option<usize>,
    /// Whether the server closes the connection after it.
    pub closes: bool,
}

impl Head {
    /// The head, once all of it has come.
    pub fn of(bytes: &[u8]) -> Result<Option<Head>> {
        let Some(length) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = std::str::from_utf8(&bytes[..length]).map_err(Error::other)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 2") {
            return Err(Error::other(format!("an answer with {status:?}")));
        }
        let (mut body, mut is_chunked, mut closes) = (None, false, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let (name, value) = (name.trim(), value.trim());
            if name.eq_ignore_ascii_case("content-length") {
                body = value.parse().ok();
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = value.eq_ignore_ascii_case("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                closes = value.eq_ignore_ascii_case("close");
            }
        }
        if status.starts_with("HTTP/1.1 204") {
            body = Some(0);
        }
        if body.is_none() && !is_chunked {
            return Err(Error::other("an answer that does not say where it ends"));
        }
        Ok(Some(Head {
            length: length + 4,
            body: body.filter(|_| !is_chunked),
            closes,
        }))
    }

    /// The length of the response that begins with this head, once all of it has come.
    pub fn whole(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let mut at = self.length;
        if let Some(body) = self.body {
            return Ok(Some(at + body).filter(|end| *end <= bytes.len()));
        }
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else {
                return Ok(None);
            };
            let size = std::str::from_utf8(&rest[..line]).map_err(Error::other)?;
            let size = usize::from_str_radix(size, 16).map_err(Error::other)?;
            at += line + 2 + size + 2;
            if size == 0 {
                return Ok(Some(at).filter(|end| *end <= bytes.len()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Option<usize> {
        Head::of(text.as_bytes()).unwrap()?.whole(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_response_is_whole_with_its_last_byte() {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ] {
            assert_eq!(whole(response), Some(response.len()));
            for end in 0..response.len() {
                assert_eq!(whole(&response[..end]), None, "{end} bytes of {response}");
            }
        }
    }

    #[test]
    fn the_last_response_of_a_connection_says_so() {
        let closes = |text: &str| Head::of(text.as_bytes()).unwrap().unwrap().closes;
        assert!(closes(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nconnection: Close\r\n\r\n"
        ));
        assert!(!closes("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    }

    #[test]
    fn other_responses_are_errors() {
        assert!(Head::of(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(Head::of(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
