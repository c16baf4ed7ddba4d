//! Lines for the operator: failures, reloads and other events. Requests go to the access log.
//!
//! Every part that logs gets a [`Say`] when it is made, so a test can collect the lines. In a server, the error log
//! ([`ErrorLog`](super::errors::ErrorLog)) writes them.

use std::fmt;
use std::sync::Arc;

use osier_web::{Level, Record, Reject, Request, RequestId};

use super::text::{Client, visible};

/// The beginning of the line about a login with a wrong name or password. The client follows.
pub const LOGIN_FAILED: &str = "authentication failed: ";

/// Logs lines for the operator. Clones log to the same place.
#[derive(Clone)]
pub struct Say(Arc<dyn Fn(&Line<'_>) + Send + Sync>);

/// A line for the operator.
pub struct Line<'a> {
    pub level: Level,
    pub about: About<'a>,
    pub text: fmt::Arguments<'a>,
    /// Further lines below the text, mostly none. They are the server's own.
    pub report: &'a str,
}

impl<'a> Line<'a> {
    /// A line about nothing in particular.
    pub fn new(level: Level, text: fmt::Arguments<'a>) -> Line<'a> {
        Line {
            level,
            about: About::default(),
            text,
            report: "",
        }
    }
}

/// The site, the client and the request that a line is about, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct About<'a> {
    pub site: Option<&'a str>,
    /// The host that the request names. It is shown where no site is known.
    pub host: Option<&'a str>,
    pub client: Option<Client>,
    pub id: Option<RequestId>,
}

impl About<'_> {
    /// The fields with their names.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let host = self.host.filter(|_| self.site.is_none());
        let fields = [
            ("site", self.site.map(visible)),
            ("host", host.map(visible)),
            ("client", self.client.map(|client| client.to_string())),
            ("id", self.id.map(|id| id.to_string())),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

impl Say {
    /// Passes each line to `log`.
    pub fn new(log: impl Fn(&Line<'_>) + Send + Sync + 'static) -> Say {
        Say(Arc::new(log))
    }

    /// Logs a line.
    pub fn line(&self, line: &Line<'_>) {
        (self.0)(line);
    }

    /// Logs to the same place. Adds `site` to lines about a request whose site is not known.
    pub fn of_site(&self, site: &str) -> Say {
        let (say, site) = (self.clone(), site.to_owned());
        Say::new(move |line| {
            let mut about = line.about;
            if about.id.is_some() {
                about.site = about.site.or(Some(&site));
            }
            say.line(&Line { about, ..*line });
        })
    }

    /// Logs a text.
    pub fn say(&self, level: Level, text: fmt::Arguments<'_>) {
        self.line(&Line::new(level, text));
    }

    /// Logs that somebody gets no service.
    pub fn error(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Error, text);
    }

    /// Logs that the server goes on, but that the operator should look at something.
    pub fn warning(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Warning, text);
    }

    /// Logs an event.
    pub fn info(&self, text: fmt::Arguments<'_>) {
        self.say(Level::Info, text);
    }

    /// Logs a line of `osier_web`. `site` is the name of the site that it is about.
    pub fn record(&self, record: &Record<'_>, site: Option<&str>) {
        let about = About {
            site,
            host: record.host(),
            client: record.peer().map(|_| Client(record.client_ip())),
            id: record.id(),
        };
        let line = |text: fmt::Arguments<'_>| {
            self.line(&Line {
                about,
                ..Line::new(record.level(), text)
            });
        };
        match record.refused().and_then(key_of) {
            Some(key) => line(format_args!("{record} ({key})")),
            None => line(format_args!("{record}")),
        }
    }

    /// Logs a line about a request. [`Say::of_site`] adds its site.
    pub fn about(&self, request: &Request<'_>, level: Level, text: fmt::Arguments<'_>) {
        self.line(&Line {
            level,
            about: About {
                site: None,
                host: request.host(),
                client: Some(Client(request.client_ip())),
                id: Some(request.id()),
            },
            text,
            report: "",
        });
    }

    /// Logs a line with further lines below it.
    pub fn report(&self, level: Level, text: fmt::Arguments<'_>, report: &impl fmt::Display) {
        self.line(&Line {
            report: &report.to_string(),
            ..Line::new(level, text)
        });
    }
}

/// The key of the limit that a refused request is beyond, or of the listener that would have understood it.
fn key_of(reject: Reject) -> Option<&'static str> {
    match reject {
        Reject::RequestLineTooLong => Some("'head.request_line' of [[listen]]"),
        Reject::HeadTooLarge => Some("'head.bytes' of [[listen]]"),
        Reject::TooManyHeaders => Some("'head.fields' of [[listen]]"),
        Reject::TlsHandshake => Some("'tls' of [[listen]]"),
        Reject::ProxyHeader => Some("'proxy_protocol' of [[listen]]"),
        Reject::BodyTooLarge => Some("'limits.body'"),
        _ => None,
    }
}
