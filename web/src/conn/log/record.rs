//! A line of the operator's log, and the request that it is about.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use osier::fiber::say;
use osier_http::{Limits, Reject};

use crate::RequestId;
use crate::listen::ip_of_client;

/// How serious a line of the log is. A more serious level is the smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Somebody gets no service: a handler has failed, a backend does not answer.
    Error,
    /// The server goes on, but the operator should look at it.
    Warning,
    /// An event, or a mistake of a client.
    Info,
    /// A detail for whoever searches for a fault.
    Debug,
}

/// One line for the operator, as the hook of [`Server::on_log`](crate::Server::on_log) sees it. It is displayed as its text,
/// without the level, the client and the request id.
///
/// The text may hold bytes that a client has chosen, control characters among them.
pub struct Record<'a> {
    level: Level,
    text: fmt::Arguments<'a>,
    /// The client, and whether a trusted balancer has named it.
    client: Option<(SocketAddr, bool)>,
    host: Option<&'a str>,
    id: Option<RequestId>,
    refused: Option<Reject>,
}

impl<'a> Record<'a> {
    /// Makes a line that is about no client.
    pub(crate) fn new(level: Level, text: fmt::Arguments<'a>) -> Self {
        Record {
            level,
            text,
            client: None,
            host: None,
            id: None,
            refused: None,
        }
    }

    /// Adds the client that the line is about. `is_proxied`: a trusted balancer has named it.
    pub(crate) fn of_client(mut self, client: SocketAddr, is_proxied: bool) -> Self {
        self.client = Some((client, is_proxied));
        self
    }

    /// Adds the request that the line is about.
    pub(crate) fn of_request(mut self, host: Option<&'a str>, id: RequestId) -> Self {
        self.host = host;
        self.id = Some(id);
        self
    }

    /// Adds the reason for which HTTP or a limit forbids the request that the line is about.
    pub(crate) fn of_refused(mut self, reject: Option<Reject>) -> Self {
        self.refused = reject;
        self
    }

    /// How serious the line is.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The address of the client that the line is about, if it is about one. `0.0.0.0:0` on a Unix socket.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.client.map(|(client, _)| client)
    }

    /// The client's IP address. `None` on a Unix socket, unless a trusted balancer has named one, and for a line about no client.
    pub fn client_ip(&self) -> Option<IpAddr> {
        let (client, is_proxied) = self.client?;
        ip_of_client(client, is_proxied)
    }

    /// The host that the request names, if the line is about a request whose head could be read.
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// The request id, if the line is about a request.
    pub fn id(&self) -> Option<RequestId> {
        self.id
    }

    /// Why the request was refused, if HTTP or a [limit](crate::Limits) forbids it. The text ends with the reason, and with
    /// the value of the limit.
    pub fn refused(&self) -> Option<Reject> {
        self.refused
    }
}

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

osier_queue::impl_debug!(Record<'a>, self => { level: self.level, text: self.text, client: self.client, host: self.host, id: self.id, refused: self.refused });

/// A reason with the value of the limit, for the end of a line.
pub(crate) struct Reason(pub(crate) Reject, pub(crate) Option<u64>);

impl Reason {
    /// The reason for a message beyond `limits`.
    pub(crate) fn beyond(reject: Reject, limits: &Limits) -> Reason {
        Reason(reject, reject.limit(limits))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.reason())?;
        match (self.1, self.0) {
            (Some(most), Reject::TooManyHeaders) => write!(f, " of {most}"),
            (Some(most), _) => write!(f, " of {most} bytes"),
            (None, _) => Ok(()),
        }
    }
}

/// The end of a line about a panic: how it came, and its message.
pub(crate) fn how_it_panicked(payload: &(dyn Any + Send)) -> String {
    let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message.as_str(),
        _ => "(no message)",
    };
    // Code that unwraps the error of a cancelled call has done nothing wrong.
    let how = match osier::fiber::is_cancelled() {
        true => "was cancelled and then panicked",
        false => "panicked",
    };
    format!("{how}: {message}")
}

/// Logs to the standard error stream, without what clients do wrong. Each record is one line, whatever an error or a client has put into
/// it.
pub(crate) fn to_stderr(record: &Record<'_>) {
    if record.level > Level::Warning {
        return;
    }
    let text = visible(&record.to_string());
    match record.id {
        Some(id) => say(format_args!("osier-web: [{id}] {text}")),
        None => say(format_args!("osier-web: {text}")),
    }
}

/// A text with its control characters escaped.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_of_the_standard_error() {
        let text = "failed: (Ä)=(x\nosier-web: forged\r\u{1b}[2J\u{85})";
        assert_eq!(visible(text), "failed: (Ä)=(x\\nosier-web: forged\\r\\u{1b}[2J\\u{85})");
    }
}
