//! The fields of an access-log line that a configuration chooses: a template with `$name`, or a list for a JSON object.
//!
//! A value that a client chooses cannot end its field. A value that stands alone between quotes of the template is
//! escaped as in the combined format. In any other value, the separators of the template are escaped too: with
//! `$client|$path`, a `|` in the path is `\x7c`. Where several fields stand between one pair of quotes, only the
//! separators between these quotes count.

use osier_web::Phase;

use crate::reader::nearest;
use crate::reader::template::{self, Part};

/// A field of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    Time,
    TimeCombined,
    Timestamp,
    Site,
    Host,
    Client,
    User,
    Request,
    Method,
    Target,
    Path,
    Query,
    Protocol,
    Status,
    Bytes,
    Received,
    TunnelBackend,
    TunnelEnd,
    Duration,
    DurationMs,
    RequestId,
    TraceId,
    SpanId,
    ParentId,
    /// All phases that have taken time.
    Times,
    /// The time of a phase.
    Phase(Phase),
    /// A field of the request, by its name.
    Header(Box<str>),
}

/// The fields with fixed names.
const NAMED: [(&str, Field); 35] = [
    ("time", Field::Time),
    ("time_combined", Field::TimeCombined),
    ("timestamp", Field::Timestamp),
    ("site", Field::Site),
    ("host", Field::Host),
    ("client", Field::Client),
    ("user", Field::User),
    ("request", Field::Request),
    ("method", Field::Method),
    ("target", Field::Target),
    ("path", Field::Path),
    ("query", Field::Query),
    ("protocol", Field::Protocol),
    ("status", Field::Status),
    ("bytes", Field::Bytes),
    ("received", Field::Received),
    ("tunnel_backend", Field::TunnelBackend),
    ("tunnel_end", Field::TunnelEnd),
    ("duration", Field::Duration),
    ("duration_ms", Field::DurationMs),
    ("request_id", Field::RequestId),
    ("trace_id", Field::TraceId),
    ("span_id", Field::SpanId),
    ("parent_id", Field::ParentId),
    ("times", Field::Times),
    ("accept_ms", Field::Phase(Phase::Accept)),
    ("worker_ms", Field::Phase(Phase::Worker)),
    ("run_ms", Field::Phase(Phase::Run)),
    ("upstream_ms", Field::Phase(Phase::Upstream)),
    ("disk_ms", Field::Phase(Phase::Disk)),
    ("lock_ms", Field::Phase(Phase::Lock)),
    ("sleep_ms", Field::Phase(Phase::Sleep)),
    ("client_ms", Field::Phase(Phase::Client)),
    ("write_ms", Field::Phase(Phase::Write)),
    ("other_ms", Field::Phase(Phase::Other)),
];

/// Names of nginx, and ours.
const NGINX: [(&str, &str); 14] = [
    ("args", "query"),
    ("body_bytes_sent", "bytes"),
    ("bytes_sent", "bytes"),
    ("query_string", "query"),
    ("remote_addr", "client"),
    ("remote_user", "user"),
    ("request_length", "received"),
    ("request_method", "method"),
    ("request_time", "duration"),
    ("request_uri", "target"),
    ("server_protocol", "protocol"),
    ("time_iso8601", "time"),
    ("time_local", "time_combined"),
    ("upstream_response_time", "upstream_ms"),
];

/// The beginning of the name of a header field.
const HEADER: &str = "header_";

impl Field {
    /// The field of that name: one of a list, or `header_` and the name of a request's field with `_` for `-`.
    ///
    /// # Errors
    /// An unknown name, with a suggestion.
    pub fn named(name: &str) -> Result<Field, String> {
        if let Some((_, field)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(field.clone());
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match name.strip_prefix(HEADER) {
            Some(header) if !header.is_empty() && header.bytes().all(is_token) => {
                return Ok(Field::Header(header.replace('_', "-").into()));
            }
            _ => {}
        }
        let known = NAMED.iter().map(|(known, _)| *known);
        let of_nginx = NGINX.iter().find(|(theirs, _)| *theirs == name);
        let of_nginx = of_nginx.map(|(_, ours)| (*ours).to_owned());
        let of_header = || name.strip_prefix("http_").map(|header| format!("{HEADER}{header}"));
        let hint = match of_nginx.or_else(of_header) {
            Some(ours) => Some(ours),
            None => nearest(name, known.clone()).map(str::to_owned),
        };
        let hint = match hint {
            Some(guess) => format!("did you mean '{guess}'?"),
            None => {
                let known: Vec<&str> = known.collect();
                format!("known fields are {} and {HEADER}NAME", known.join(", "))
            }
        };
        Err(match name {
            "" => format!("a '$' without a name; {hint}"),
            name => format!("there is no field '{}'; {hint}", name.escape_debug()),
        })
    }

    /// The name, as a configuration writes it.
    pub fn name(&self) -> String {
        match self {
            Field::Header(name) => format!("{HEADER}{}", name.replace('-', "_")),
            field => {
                let named = NAMED.iter().find(|(_, known)| known == field);
                named.map_or("", |(name, _)| *name).to_owned()
            }
        }
    }
}

/// A line as a text with fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub pieces: Vec<Piece>,
}

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    Text(String),
    /// A field, and the separators that its value must not contain.
    Field(Field, Vec<u8>),
}

/// The fields of a template with the same separators: the fields outside of quotes, or those between one pair of
/// quotes.
#[derive(Default)]
struct Group {
    /// The indices of the fields among the pieces.
    fields: Vec<usize>,
    separators: Vec<u8>,
}

impl Group {
    /// Notes a byte of the text between the fields.
    fn add_text(&mut self, byte: u8) {
        if !byte.is_ascii_alphanumeric() && !self.separators.contains(&byte) {
            self.separators.push(byte);
        }
    }

    /// Gives the separators to the fields.
    fn finish(self, pieces: &mut [Piece]) {
        for place in self.fields {
            if let Piece::Field(_, separators) = &mut pieces[place] {
                separators.clone_from(&self.separators);
            }
        }
    }
}

impl Template {
    /// Reads a text with `$name`.
    ///
    /// # Errors
    /// A name that is no field, a line break, and a quote without a second one.
    pub fn parse(text: &str) -> Result<Template, String> {
        if text.contains(|char: char| char.is_control() && char != '\t') {
            return Err("it is one line, without control characters".into());
        }
        let mut pieces = Vec::new();
        let (mut outside, mut quotes) = (Group::default(), None::<Group>);
        for part in template::parse(text, Field::named)? {
            match part {
                Part::Name(field) => {
                    quotes.as_mut().unwrap_or(&mut outside).fields.push(pieces.len());
                    pieces.push(Piece::Field(field, Vec::new()));
                }
                Part::Text(text) => {
                    for byte in text.bytes() {
                        match (byte, quotes.take()) {
                            (b'"', None) => quotes = Some(Group::default()),
                            // The quotes alone protect a single field.
                            (b'"', Some(group)) if group.fields.len() > 1 => group.finish(&mut pieces),
                            (b'"', Some(_)) => {}
                            (byte, group) => {
                                quotes = group;
                                quotes.as_mut().unwrap_or(&mut outside).add_text(byte);
                            }
                        }
                    }
                    pieces.push(Piece::Text(text));
                }
            }
        }
        if quotes.is_some() {
            // Every later field would count as quoted, and separators in its value would stay.
            return Err("a '\"' without a second one; write the closing quote, or leave the quote out".into());
        }
        outside.finish(&mut pieces);
        Ok(Template { pieces })
    }

    /// The fields of a line.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Field(field, _) => Some(field),
            Piece::Text(_) => None,
        })
    }

    /// Whether a line has this field.
    pub fn has(&self, field: &Field) -> bool {
        self.fields().any(|known| known == field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nginx_lead_to_ours() {
        for (theirs, ours) in NGINX {
            assert!(
                Field::named(theirs).is_err() && Field::named(ours).is_ok(),
                "{theirs} {ours}"
            );
        }
    }

    #[test]
    fn every_field_has_its_name() {
        for (name, field) in NAMED {
            assert_eq!((Field::named(name), field.name().as_str()), (Ok(field.clone()), name));
        }
        let header = Field::named("header_user_agent").unwrap();
        assert_eq!(header, Field::Header("user-agent".into()));
        assert_eq!(header.name(), "header_user_agent");
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        for (text, expected) in [
            ("$cleint", "there is no field 'cleint'; did you mean 'client'?"),
            (
                "$requestid",
                "there is no field 'requestid'; did you mean 'request_id'?",
            ),
            (
                "$host $durationms",
                "there is no field 'durationms'; did you mean 'duration_ms'?",
            ),
            ("$", "a '$' without a name; known fields are time, "),
            ("$header_", "there is no field 'header_'; "),
            ("$zzz", "and header_NAME"),
            ("$remote_addr", "did you mean 'client'?"),
            ("$http_user_agent", "did you mean 'header_user_agent'?"),
            ("$host\n", "without control characters"),
            ("\"$host|$path", "a '\"' without a second one; write the closing quote"),
            ("\"$host\" 5\"|$path", "a '\"' without a second one"),
        ] {
            let error = Template::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn quotes_and_separators_are_seen() {
        let form = "$client [$time] \"$request\" ua=\"ua: $header_user_agent\" \"$path, $query;$host\"|$status";
        let template = Template::parse(form).unwrap();
        let separators: Vec<&[u8]> = template
            .pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Field(_, separators) => Some(&**separators),
                Piece::Text(_) => None,
            })
            .collect();
        let (outside, list, alone): (&[u8], &[u8], &[u8]) = (b" []=|", b", ;", b"");
        assert_eq!(separators, [outside, outside, alone, alone, list, list, list, outside]);
    }
}
