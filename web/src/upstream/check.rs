//! Active checks. A check is one request or connection that shows whether a backend is healthy.

use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

use osier_http::{BodyLength, Limits, Method, Reply, ReplyScanner, RequestWriter, Slots};

use super::backend::Backend;
use crate::Address;
use crate::conn::transport::Transport;

/// Maximum bytes of a check's response head.
const HEAD_BYTES: usize = 16 << 10;

/// The most heads of one response, the final one included.
const HEADS_MAX: usize = 16;

/// An active check of backends: the method, the interval and the thresholds.
///
/// ```
/// use osier_web::upstream::Check;
/// use std::time::Duration;
///
/// let check = Check::http("/health").every(Duration::from_secs(2)).rise(2).fall(3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// `None` for a check that only connects.
    http: Option<Http>,
    pub(super) every: Duration,
    limit: Duration,
    pub(super) rise: u32,
    pub(super) fall: u32,
}

/// An HTTP check: the request, and the statuses that mean success.
#[derive(Clone, Debug, PartialEq)]
struct Http {
    path: String,
    host: Option<String>,
    status: RangeInclusive<u16>,
}

impl Check {
    /// Makes a check that succeeds when the backend accepts a connection.
    pub fn connect() -> Check {
        Check {
            http: None,
            every: Duration::from_secs(5),
            limit: Duration::from_secs(2),
            rise: 1,
            fall: 2,
        }
    }

    /// Makes a check that succeeds when the backend responds to `GET path` with a status from 200
    /// to 399. Each check uses a connection of its own.
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

    /// Sets the Host of the request; the backend's address by default. It has no effect on
    /// [`connect`](Check::connect).
    pub fn host(mut self, host: impl Into<String>) -> Self {
        if let Some(http) = &mut self.http {
            http.host = Some(host.into());
        }
        self
    }

    /// Sets the statuses that mean success. It has no effect on [`connect`](Check::connect).
    pub fn status(mut self, status: RangeInclusive<u16>) -> Self {
        if let Some(http) = &mut self.http {
            http.status = status;
        }
        self
    }

    /// Sets the interval between checks; 5 s by default.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = time;
        self
    }

    /// Sets the timeout of one check; 2 s by default.
    pub fn limit(mut self, time: Duration) -> Self {
        self.limit = time;
        self
    }

    /// Sets the number of consecutive successes after which an unhealthy backend gets requests
    /// again; 1 by default.
    pub fn rise(mut self, answers: u32) -> Self {
        self.rise = answers.max(1);
        self
    }

    /// Sets the number of consecutive failures after which a backend gets no requests; 2 by
    /// default.
    pub fn fall(mut self, answers: u32) -> Self {
        self.fall = answers.max(1);
        self
    }

    /// Checks the backend once.
    ///
    /// # Suspends
    ///
    /// Until the backend has answered, for about the timeout at most.
    ///
    /// # Errors
    ///
    /// The reason why the check has failed.
    pub(super) fn run(&self, backend: &Backend) -> io::Result<()> {
        let deadline = osier::time::now().checked_add(self.limit);
        let (stream, is_http2) = backend.dial_checked(self.limit, deadline)?;
        let Some(http) = &self.http else { return Ok(()) };
        let status = osier::timeout(self.limit, || http.run(&stream, is_http2, &backend.address))
            .unwrap_or_else(|elapsed| Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)))?;
        match http.status.contains(&status) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} returned status {status}", http.path))),
        }
    }
}

impl Http {
    /// Sends the request. Returns the status of the response.
    fn run(&self, mut stream: &Transport, is_http2: bool, address: &Address) -> io::Result<u16> {
        let host = match (&self.host, address) {
            (Some(host), _) => host,
            (None, Address::Tcp(host)) => host,
            (None, _) => "localhost",
        };
        #[cfg(all(feature = "h2", feature = "proxy"))]
        if is_http2 {
            return super::h2::get(stream, &self.path, host);
        }
        let _ = is_http2;
        let mut head = Vec::new();
        RequestWriter::begin(&mut head, "GET", &self.path, host)
            .map_err(io::Error::other)?
            .finish(BodyLength::None);
        stream.write_all(&head)?;
        stream.flush()?;

        let limits = Limits {
            head_bytes: HEAD_BYTES,
            ..Limits::DEFAULT
        };
        let (mut scanner, mut response) = (ReplyScanner::new(), Vec::new());
        let mut heads = 0;
        while heads < HEADS_MAX {
            if let Some(end) = scanner.scan(&response, &limits).map_err(io::Error::other)? {
                let mut slots: Slots = Slots::new();
                let reply =
                    Reply::parse(&response[..end], &mut slots, &limits, Method::Get).map_err(io::Error::other)?;
                if !reply.is_interim() {
                    return Ok(reply.status());
                }
                // The final head follows.
                response.drain(..end);
                scanner = ReplyScanner::new();
                heads += 1;
                continue;
            }
            let mut piece = [0; 1024];
            match stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => response.extend_from_slice(&piece[..count]),
            }
        }
        Err(io::Error::other("too many interim responses"))
    }
}
