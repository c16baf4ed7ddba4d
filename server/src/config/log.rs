//! Reads the settings of the access log, which a site and a route may have, and of the error log.

use osier_web::Level;
use toml::de::DeValue;

use crate::log::fields::{Field, Template};
use crate::log::settings::{ErrorLog, Format, Log, To};
use crate::log::syslog::{self, DAEMON, FACILITIES, Rfc};
use crate::reader::{At, Section, is_missing, nearest, values};

use super::settings::Setting;

/// The names of the access log's formats.
const FORMATS: [&str; 3] = ["combined", "json", "off"];

const LEVELS: [(&str, Level); 4] = [
    ("error", Level::Error),
    ("warning", Level::Warning),
    ("info", Level::Info),
    ("debug", Level::Debug),
];

/// The most characters of a tag, which is the APP-NAME of RFC 5424 section 6.2.5.
const TAG: usize = 48;

/// Reads `log = { file = "access.log" }`, `log = "json"`, `log = "$client $path"` or `log = false`.
pub fn access(section: &Section<'_>) -> Setting<Log> {
    let Some(value) = section.any("log") else {
        return Setting::Inherited;
    };
    if let DeValue::String(_) = value.get_ref() {
        let text = section.string("log");
        let format = text.and_then(|text| format(section, "log", text));
        return match format {
            Some(Format::Off) | None => Setting::Off,
            Some(format) => Setting::On(Log { format, to: To::Stderr }),
        };
    }
    let wanted = "false, \"combined\", \"json\", a template or a table";
    Setting::read_as(section, "log", wanted, |section| {
        let to = destination(&section);
        let format_at = section.key("format");
        let text = section.string("format");
        let mut chosen = text.map_or(Some(Format::Combined), |text| format(&section, "format", text));
        let fields_at = section.key("fields");
        let fields = values(section.parsed_list("fields", Field::named));
        match (&mut chosen, fields_at) {
            (Some(Format::Json(chosen)), Some(_)) => *chosen = fields,
            (Some(_), Some(at)) => {
                let text = "'fields' is for format = \"json\"; a template names its fields itself";
                section.source().problem(&at, text);
            }
            _ => {}
        }
        if let (Some(Format::Off), Some(at)) = (&chosen, format_at) {
            section
                .source()
                .problem(&at, "a log with a table is on; write log = false for none");
        }
        section.finish();
        Some(Log { format: chosen?, to })
    })
}

/// Parses the name of a format, or a template.
fn format(section: &Section<'_>, key: &str, text: At<String>) -> Option<Format> {
    if text.value.contains('$') {
        let template = section.understand(key, text, Template::parse)?;
        return Some(Format::Template(template.value));
    }
    Some(match text.value.as_str() {
        "combined" => Format::Combined,
        "json" => Format::Json(Vec::new()),
        "off" => Format::Off,
        other => {
            let guess = match nearest(other, FORMATS.into_iter()) {
                Some(guess) => format!("; did you mean \"{guess}\"?"),
                None if other.contains('%') => {
                    "; fields are written by their names here, as in docs/configuration.md, \"Templates\"".into()
                }
                None => String::new(),
            };
            let wanted = match key {
                "log" => {
                    "\"combined\", \"json\", \"off\", a template like \"$client $path $status\", or { file = \"access.log\" }"
                }
                _ => "\"combined\", \"json\", or a template like \"$client $path $status\"",
            };
            let shown = other.escape_debug();
            let problem = format!("'{key}' must be {wanted}, not \"{shown}\"{guess}");
            section.source().problem(&text.span, problem);
            return None;
        }
    })
}

/// Reads `[error_log]`.
pub fn errors(top: &Section<'_>) -> ErrorLog {
    let default = ErrorLog::default();
    let Some(section) = top.section("error_log") else {
        return default;
    };
    let to = destination(&section);
    let journald_at = section.key("journald");
    let journald = section.boolean("journald");
    if let (Some(at), Some(true), To::File(_) | To::Syslog(_)) = (journald_at, journald, &to) {
        section.source().problem(
            &at,
            "'journald' is for lines on standard error, not beside 'file' or 'syslog'",
        );
    }
    let read = ErrorLog {
        level: section.choice("level", &LEVELS).unwrap_or(default.level),
        json: section
            .choice("format", &[("text", false), ("json", true)])
            .unwrap_or(default.json),
        to,
        journald,
    };
    section.finish();
    read
}

/// Reads `file` or `syslog`.
fn destination(section: &Section<'_>) -> To {
    let (file_at, syslog_at) = (section.key("file"), section.key("syslog"));
    let file = section.writable("file", "the server starts without this log");
    let syslog = syslog(section);
    if let (Some(_), Some(at)) = (file_at, syslog_at) {
        let text = "'syslog' beside 'file': a log has one destination";
        section.source().problem(&at, text);
    }
    match (file, syslog) {
        (Some(file), _) => To::File(file),
        (None, Some(syslog)) => To::Syslog(syslog),
        (None, None) => To::Stderr,
    }
}

/// Reads `syslog = "/dev/log"` or a table.
fn syslog(section: &Section<'_>) -> Option<syslog::Settings> {
    let value = section.any("syslog")?;
    let settings = |to| syslog::Settings {
        to,
        format: None,
        facility: DAEMON,
        tag: "osier".into(),
    };
    if let DeValue::String(_) = value.get_ref() {
        let to = section.parsed("syslog", |text| address(section, text))?;
        expect(section, &to);
        return Some(settings(to.value));
    }
    let table = section.as_section("syslog", value, "an address or a table")?;
    table.require("to", "\"/dev/log\", or \"192.0.2.1:514\"");
    let to = table.parsed("to", |text| address(&table, text));
    if let Some(to) = &to {
        expect(&table, to);
    }
    let format = table.choice("format", &[("rfc3164", Rfc::Rfc3164), ("rfc5424", Rfc::Rfc5424)]);
    let facility = table.choice("facility", &FACILITIES);
    let tag = table.parsed("tag", |text| {
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        match (1..=TAG).contains(&text.len()) && text.bytes().all(is_fine) {
            true => Ok(text.to_owned()),
            false => Err(format!(
                "write at most {TAG} letters, digits and characters of \"-_./\""
            )),
        }
    });
    table.finish();
    let default = settings(to?.value);
    Some(syslog::Settings {
        format,
        facility: facility.unwrap_or(default.facility),
        tag: tag.map_or(default.tag.clone(), |tag| tag.value),
        ..default
    })
}

/// Notes a warning for a Unix socket that does not exist yet.
fn expect(section: &Section<'_>, to: &At<syslog::To>) {
    if let syslog::To::Unix(path) = &to.value
        && is_missing(path)
    {
        let shown = section.source().shown(path);
        let text = format!("there is no socket '{shown}'; lines wait until a syslog daemon has made it");
        section.source().warning(&to.span, text);
    }
}

/// Parses the path of a Unix socket, or `host:port`.
fn address(section: &Section<'_>, text: &str) -> Result<syslog::To, String> {
    let path = match text.strip_prefix("unix:") {
        Some(path) => Some(path),
        None => text.starts_with('/').then_some(text),
    };
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        return section.source().path(path).map(syslog::To::Unix);
    }
    let is_address = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bare = !host.contains(':') || host.starts_with('[') && host.ends_with(']');
        !host.is_empty() && is_bare && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    match is_address {
        true => Ok(syslog::To::Udp(text.to_owned())),
        false => Err("write the path of a socket, \"/dev/log\", or a host and a UDP port, \"192.0.2.1:514\"".into()),
    }
}
