//! A request of a file, and the numbers that change in it.

use std::io::{Error, Result};

pub struct Request {
    bytes: Vec<u8>,
    mark: Option<Mark>,
}

/// The digits that change, and their numbers.
struct Mark {
    at: usize,
    width: usize,
    numbers: Numbers,
}

enum Numbers {
    /// The first, how many there are, and the state of the generator.
    Between(u64, u64, u64),
    Next(u64),
}

impl Request {
    pub fn read(file: &str) -> Result<Request> {
        let failed = |why: String| Error::other(format!("{file}: {why}"));
        let bytes = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
        Request::of(bytes).map_err(failed)
    }

    fn of(mut bytes: Vec<u8>) -> std::result::Result<Request, String> {
        let find = |part: &[u8]| bytes.windows(part.len()).position(|window| window == part);
        let Some(at) = find(b"{RAND:").or_else(|| find(b"{SEQ:")) else {
            return Ok(Request { bytes, mark: None });
        };
        let length = bytes[at..]
            .iter()
            .position(|byte| *byte == b'}')
            .ok_or("a { without }")?;
        let text = String::from_utf8_lossy(&bytes[at + 1..at + length]).into_owned();
        let numbers: Vec<u64> = text
            .split(':')
            .skip(1)
            .filter_map(|number| number.parse().ok())
            .collect();
        let numbers = match (text.starts_with("SEQ"), &numbers[..]) {
            (true, [first]) => Numbers::Next(*first),
            (false, [first, last]) if first <= last => Numbers::Between(*first, last - first + 1, 1),
            _ => return Err(format!("{{{text}}} is neither {{RAND:FIRST:LAST}} nor {{SEQ:FIRST}}")),
        };
        let width = text.rsplit(':').next().unwrap_or_default().len();
        bytes.splice(at..=at + length, std::iter::repeat_n(b'0', width));
        let mark = Some(Mark { at, width, numbers });
        Ok(Request { bytes, mark })
    }

    /// The request, with zeros in place of its number.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the next number into a copy of the request.
    pub fn number(&mut self, copy: &mut [u8]) {
        if let Some(Mark { at, width, numbers }) = &mut self.mark {
            let digits = format!("{:0width$}", numbers.next(), width = *width);
            // A number that has become longer than its place would change the length of a body: its first digits are left out.
            copy[*at..*at + *width].copy_from_slice(&digits.as_bytes()[digits.len() - *width..]);
        }
    }
}

impl Numbers {
    fn next(&mut self) -> u64 {
        match self {
            Numbers::Next(number) => {
                *number += 1;
                *number - 1
            }
            // The generator of Knuth's MMIX; its high bits are the random ones.
            Numbers::Between(first, count, state) => {
                *state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                *first + (*state >> 33) % *count
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(request: &mut Request) -> String {
        let mut copy = request.bytes().to_vec();
        request.number(&mut copy);
        String::from_utf8(copy).unwrap()
    }

    #[test]
    fn numbers_have_their_place() {
        let mut next = Request::of(b"GET /{SEQ:99} HTTP/1.1\r\n\r\n".to_vec()).unwrap();
        assert_eq!(sent(&mut next), "GET /99 HTTP/1.1\r\n\r\n");
        assert_eq!(sent(&mut next), "GET /00 HTTP/1.1\r\n\r\n");
        let mut between = Request::of(b"GET /{RAND:7:10} HTTP/1.1\r\n\r\n".to_vec()).unwrap();
        let lines: std::collections::BTreeSet<String> = (0..100).map(|_| sent(&mut between)).collect();
        let all = ["07", "08", "09", "10"].map(|number| format!("GET /{number} HTTP/1.1\r\n\r\n"));
        assert_eq!(lines, all.into());
    }

    #[test]
    fn a_request_without_a_number_stays_as_it_is() {
        let mut request = Request::of(b"GET / HTTP/1.1\r\n\r\n".to_vec()).unwrap();
        assert_eq!(sent(&mut request), "GET / HTTP/1.1\r\n\r\n");
        assert!(Request::of(b"GET /{RAND:7} HTTP/1.1\r\n\r\n".to_vec()).is_err());
        assert!(Request::of(b"GET /{SEQ:7".to_vec()).is_err());
    }
}
