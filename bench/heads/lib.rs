//! Counts request heads in a stream of bytes: the least work with which a server can answer each request once.
//!
//! A null server that counts heads is a lower bound of every server's cost. It reads no method, no target and no field.
#![forbid(unsafe_code)]

/// The answer to every request, as long as a real one: the date never changes.
pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 13\r\n\
date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\nHello, World!";

/// The most requests that one read may hold: sixteen kilobytes of the shortest ones.
pub const MOST: usize = 1024;

/// As many answers as one read can ask for, so that a burst is one write.
pub fn responses() -> Vec<u8> {
    RESPONSE.repeat(MOST)
}

/// Where one connection's stream stands.
#[derive(Default)]
pub struct Heads {
    /// Bytes of the line that the last read left unfinished.
    unfinished: usize,
}

impl Heads {
    /// Takes the next bytes of the stream and says how many heads end in them.
    pub fn count(&mut self, bytes: &[u8]) -> usize {
        let (mut heads, mut start) = (0, 0);
        for end in memchr::memchr_iter(b'\n', bytes) {
            // A blank line holds nothing but its CR.
            heads += usize::from(self.unfinished + end - start <= 1);
            self.unfinished = 0;
            start = end + 1;
        }
        self.unfinished += bytes.len() - start;
        heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_same_however_the_stream_is_cut() {
        let stream = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
        for cut in 0..stream.len() {
            let mut heads = Heads::default();
            assert_eq!(
                heads.count(&stream[..cut]) + heads.count(&stream[cut..]),
                3,
                "cut at {cut}"
            );
        }
    }
}
