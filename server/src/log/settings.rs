//! The settings of both logs, as plain data that can be compared.

use std::path::PathBuf;

use osier_web::Level;

use super::fields::{Field, Piece, Template};
use super::syslog;
use super::text::begins_with_priority;

/// The destination of a log.
#[derive(Debug, Clone, PartialEq)]
pub enum To {
    Stderr,
    File(PathBuf),
    Syslog(syslog::Settings),
}

impl To {
    /// The path of a file or a Unix socket.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            To::File(path) => Some(path),
            To::Syslog(syslog::Settings {
                to: syslog::To::Unix(path),
                ..
            }) => Some(path),
            To::Stderr | To::Syslog(_) => None,
        }
    }
}

/// The form of a line of the access log.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    Off,
    /// Apache's combined log format.
    Combined,
    /// One JSON object, with these fields. Empty for the default ones.
    Json(Vec<Field>),
    Template(Template),
}

impl Format {
    /// Whether the format itself gives each line a priority for the journal.
    pub fn has_priority(&self) -> bool {
        let Format::Template(template) = self else {
            return false;
        };
        matches!(template.pieces.first(), Some(Piece::Text(text)) if begins_with_priority(text.as_bytes()))
    }
}

/// An access log.
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    pub format: Format,
    pub to: To,
}

impl Log {
    pub const OFF: Log = Log {
        format: Format::Off,
        to: To::Stderr,
    };
}

/// The error log.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorLog {
    /// The least serious level that is logged.
    pub level: Level,
    /// Whether a line is a JSON object.
    pub json: bool,
    pub to: To,
    /// Whether lines on standard error begin with the priority that systemd's journal reads. None for whether standard
    /// error is a stream of the journal.
    pub journald: Option<bool>,
}

impl Default for ErrorLog {
    fn default() -> ErrorLog {
        ErrorLog {
            level: Level::Info,
            json: false,
            to: To::Stderr,
            journald: None,
        }
    }
}
