//! How a backend is asked whether it is well. The keeper asks, on a fiber for each backend.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

use osier_http::{BodyLength, Limits, Method, Reply, ReplyScanner, RequestWriter, Slots};

use super::backend::Backend;
use crate::{Address, Stream};

/// Of an answer to a question about health; more is not read.
const HEAD_BYTES: usize = 16 << 10;

/// How a backend is asked whether it is well, and how often.
///
/// ```
/// use osier_web::upstream::Check;
/// use std::time::Duration;
///
/// let check = Check::http("/health").every(Duration::from_secs(2)).rise(2).fall(3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    http: Option<Http>,
    pub(super) every: Duration,
    limit: Duration,
    pub(super) rise: u32,
    pub(super) fall: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Http {
    path: String,
    host: Option<String>,
    status: RangeInclusive<u16>,
}

impl Check {
    /// It is well when it takes a connection.
    pub fn connect() -> Check {
        Check {
            http: None,
            every: Duration::from_secs(5),
            limit: Duration::from_secs(2),
            rise: 1,
            fall: 2,
        }
    }

    /// It is well when it answers `GET path` with a status from 200 to 399, on a connection of its own.
    pub fn http(path: impl Into<String>) -> Check {
        let http = Http {
            path: path.into(),
            host: None,
            status: 200..=399,
        };
        Check {
            http: Some(http),
            ..Check::connect()
        }
    }

    /// The Host of the request; the backend's address unless set. Means nothing to a check that only connects.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        if let Some(http) = &mut self.http {
            http.host = Some(host.into());
        }
        self
    }

    /// Which statuses mean that it is well. Means nothing to a check that only connects.
    pub fn status(mut self, status: RangeInclusive<u16>) -> Self {
        if let Some(http) = &mut self.http {
            http.status = status;
        }
        self
    }

    /// Time between two questions. 5 s.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// How long an answer may take. 2 s.
    pub fn limit(mut self, time: Duration) -> Self {
        self.limit = time;
        self
    }

    /// After how many good answers in a row a backend that was unwell gets requests again. 1.
    pub fn rise(mut self, answers: u32) -> Self {
        self.rise = answers.max(1);
        self
    }

    /// After how many bad answers in a row a backend gets no more requests. 2.
    pub fn fall(mut self, answers: u32) -> Self {
        self.fall = answers.max(1);
        self
    }

    pub(super) fn ask(&self, backend: &Backend) -> io::Result<()> {
        let deadline = osier::time::now().checked_add(self.limit);
        let stream = backend.dial(self.limit, deadline)?;
        let Some(http) = &self.http else { return Ok(()) };
        let status = osier::timeout(self.limit, || http.ask(&stream, &backend.address))
            .unwrap_or_else(|elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)))?;
        match http.status.contains(&status) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} is answered by {status}", http.path))),
        }
    }
}

impl Http {
    fn ask(&self, mut stream: &Stream, address: &Address) -> io::Result<u16> {
        let host = match (&self.host, address) {
            (Some(host), _) => host,
            (None, Address::Tcp(host)) => host,
            (None, _) => "localhost",
        };
        let mut head = Vec::new();
        RequestWriter::begin(&mut head, "GET", &self.path, host)
            .map_err(io::Error::other)?
            .finish(BodyLength::None);
        stream.write_all(&head)?;

        let limits = Limits {
            head_bytes: HEAD_BYTES,
            ..Limits::DEFAULT
        };
        let (mut scanner, mut answer) = (ReplyScanner::new(), Vec::new());
        loop {
            if let Some(end) = scanner.scan(&answer, &limits).map_err(io::Error::other)? {
                let mut slots: Slots = Slots::new();
                let reply = Reply::parse(&answer[..end], &mut slots, &limits, Method::Get).map_err(io::Error::other)?;
                return Ok(reply.status());
            }
            let mut piece = [0; 1024];
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => answer.extend_from_slice(&piece[..count]),
            }
        }
    }
}
