//! A connection without a socket: it passes bytes in pieces to the scanner, the head and the body decoder, as a server does, and
//! records the results. The fuzz targets use it too.

use osier_http::{BodyDecoder, BodyLength, Head, HeadScanner, Limits, Reject, Slots, Version};

/// One request, copied out of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub path: String,
    pub query: Option<String>,
    pub host: Option<String>,
    pub version: Version,
    pub headers: Vec<(String, Vec<u8>)>,
    pub length: BodyLength,
    pub keep_alive: bool,
    pub expect_continue: bool,
    pub upgrade: Option<Vec<u8>>,
    pub body: Vec<u8>,
}

/// How the bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The bytes ended between two requests, or with this many bytes of an incomplete one.
    Waiting {
        buffered: usize,
    },
    /// A request ended the connection, with this many bytes after it.
    Closed {
        ignored: usize,
    },
    Rejected(Reject),
}

/// The results of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    pub requests: Vec<Seen>,
    pub end: End,
}

/// Feeds `pieces` in order. The decoder takes at most `max` body bytes at once.
pub fn run<'p>(pieces: impl IntoIterator<Item = &'p [u8]>, limits: &Limits, max: usize) -> Transcript {
    let mut connection = Connection {
        buffer: Vec::new(),
        scanner: HeadScanner::new(),
        under_way: None,
        requests: Vec::new(),
    };
    let mut closed = false;
    for piece in pieces {
        connection.buffer.extend_from_slice(piece);
        while !closed {
            match connection.advance(limits, max) {
                Ok(Progress::More) => {}
                Ok(Progress::NeedsInput) => break,
                Ok(Progress::Close) => closed = true,
                Err(reject) => {
                    return Transcript {
                        requests: connection.requests,
                        end: End::Rejected(reject),
                    };
                }
            }
        }
    }
    let left = connection.buffer.len();
    let end = if closed {
        End::Closed { ignored: left }
    } else {
        End::Waiting { buffered: left }
    };
    Transcript {
        requests: connection.requests,
        end,
    }
}

struct Connection {
    buffer: Vec<u8>,
    scanner: HeadScanner,
    under_way: Option<(Seen, BodyDecoder)>,
    requests: Vec<Seen>,
}

enum Progress {
    More,
    NeedsInput,
    Close,
}

impl Connection {
    fn advance(&mut self, limits: &Limits, max: usize) -> Result<Progress, Reject> {
        let Some((seen, decoder)) = &mut self.under_way else {
            return self.head(limits);
        };
        let piece = decoder.decode(&self.buffer, max)?;
        assert!(piece.consumed <= self.buffer.len());
        assert!(piece.data.len() <= max && piece.data.len() <= piece.consumed);
        assert_eq!(piece.done, decoder.is_done());
        assert_eq!(
            piece.data,
            &self.buffer[piece.consumed - piece.data.len()..piece.consumed]
        );
        let (consumed, done, idle) = (piece.consumed, piece.done, piece.consumed == 0);
        seen.body.extend_from_slice(piece.data);
        self.buffer.drain(..consumed);
        if !done {
            return Ok(if idle { Progress::NeedsInput } else { Progress::More });
        }
        let (seen, _) = self.under_way.take().expect("the body of this request has just ended");
        let keep_alive = seen.keep_alive;
        self.requests.push(seen);
        Ok(if keep_alive { Progress::More } else { Progress::Close })
    }

    fn head(&mut self, limits: &Limits) -> Result<Progress, Reject> {
        let Some(end) = self.scanner.scan(&self.buffer, limits)? else {
            return Ok(Progress::NeedsInput);
        };
        let mut slots: Slots = Slots::new();
        let head = Head::parse(&self.buffer[..end], &mut slots, limits)?;
        let decoder = BodyDecoder::new(head.body(), limits)?;
        let seen = Seen::of(&head);
        self.buffer.drain(..end);
        self.scanner = HeadScanner::new();
        self.under_way = Some((seen, decoder));
        Ok(Progress::More)
    }
}

impl Seen {
    pub fn of(head: &Head<'_>) -> Seen {
        Seen {
            method: head.method().as_str().to_owned(),
            target: head.target().to_owned(),
            path: head.path().to_owned(),
            query: head.query().map(str::to_owned),
            host: head.host().map(str::to_owned),
            version: head.version(),
            headers: head
                .headers()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            length: head.body(),
            keep_alive: head.keep_alive(),
            expect_continue: head.expect_continue(),
            upgrade: head.upgrade().map(<[u8]>::to_owned),
            body: Vec::new(),
        }
    }
}
