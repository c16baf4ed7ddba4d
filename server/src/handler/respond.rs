//! `respond`: a status and a body, in which a template may insert fields of the request.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use osier_web::http::StatusCode;
use osier_web::{Request, Response};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::{Reason, Section, is_withheld};

use super::template::{Escape, Template, is_script};
use super::{Configured, Form, Handler, Match, Opened, Resources, Route, Touch, form};

const TEXT: &str = "text/plain; charset=utf-8";

/// Bytes of the largest file that is kept in memory.
const MAX_FILE: u64 = 1 << 20;

/// The settings of a fixed response.
#[derive(Debug, Clone, PartialEq)]
pub struct Respond {
    status: u16,
    body: Body,
    content_type: Option<String>,
}

/// The body of a response, as it is configured.
#[derive(Debug, Clone, PartialEq)]
enum Body {
    /// The status in words.
    Status,
    Text(Template),
    File(PathBuf),
}

/// A response that is ready to be sent.
struct Ready {
    status: StatusCode,
    /// None for the status in words, which may become a page in HTML.
    content_type: Option<String>,
    body: Text,
}

/// The body of a response, ready to be sent.
enum Text {
    /// The status in words.
    Status,
    Fixed(Arc<Vec<u8>>),
    /// A template, and the escaping of the values in it.
    Filled(Template, Escape),
}

impl Respond {
    /// A response whose body is the status in words.
    pub fn status(status: u16) -> Respond {
        Respond {
            status,
            body: Body::Status,
            content_type: None,
        }
    }
}

impl Configured for Respond {
    const IS_KEPT: bool = false;

    /// Reads `respond = "text"`, `respond = 404` or a table.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Respond> {
        if let DeValue::Integer(_) = value.get_ref() {
            let status = section.integer("respond", 200..=599)? as u16;
            return Some(Respond::status(status));
        }
        let table = match form(section, "respond", value, "the text or the status")? {
            Form::Short(text) => {
                if text.value.len() == 3
                    && text
                        .value
                        .parse()
                        .is_ok_and(|status| (200..=599).contains::<u16>(&status))
                {
                    let warning = format!(
                        "this is a text with status 200; for the status write respond = {}",
                        text.value
                    );
                    section.source().warning(&text.span, warning);
                }
                return Some(Respond {
                    status: 200,
                    body: Body::Text(Template::literal(text.value)),
                    content_type: None,
                });
            }
            Form::Table(table) => table,
        };
        let status = table.integer("status", 200..=599).unwrap_or(200) as u16;
        let body = table.parsed("body", Template::parse);
        let file = table.file("file", "requests get 503 until a reload finds it");
        if let (Some(_), Some(at)) = (&body, table.key("file")) {
            table
                .source()
                .problem(&at, "'file' beside 'body': a response has one body");
        }
        if is_bodiless(status) {
            for at in ["body", "file"].into_iter().filter_map(|key| table.key(key)) {
                let text = format!("status {status} has no body: leave this out, or choose another status");
                table.source().problem(&at, text);
            }
        }
        if let Some(path) = &file
            && path.metadata().is_ok_and(|file| file.len() > MAX_FILE)
            && let Some(at) = table.key("file")
        {
            let text =
                format!("'file' is kept in memory and has at most {MAX_FILE} bytes; serve larger ones by 'files'");
            table.source().problem(&at, text);
        }
        let content_type = table.parsed("content_type", |text| {
            if text.contains('/') && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
                Ok(text.to_string())
            } else {
                Err("it is not a media type, \"text/html; charset=utf-8\" for example")
            }
        });
        if let (Some(kind), Some(text)) = (&content_type, &body)
            && is_script(&kind.value)
            && text.value.fixed().is_none()
            && let Some(at) = table.key("body")
        {
            let text = "a field of the request in a script is not escaped, and whoever links to the script chooses it: send JSON, or a fixed text";
            table.source().warning(&at, text);
        }
        table.finish();
        Some(Respond {
            status,
            body: match (body, file) {
                (Some(text), _) => Body::Text(text.value),
                (None, Some(path)) => Body::File(path),
                (None, None) => Body::Status,
            },
            content_type: content_type.map(|at| at.value),
        })
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        match &mut self.body {
            Body::File(file) => vec![(Touch::Read, file)],
            Body::Status | Body::Text(_) => Vec::new(),
        }
    }

    fn open(&self, _: &Route<'_>, _: &Resources) -> Result<Opened, Reason> {
        match &self.body {
            Body::File(path) if is_withheld(path) => Respond::status(503).ready(),
            _ => self.ready(),
        }
        .map(Opened::answers)
    }
}

impl Respond {
    /// Reads the file of the body, if there is one.
    fn ready(&self) -> Result<Ready, Reason> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        let (bytes, natural) = match &self.body {
            Body::Status => (Vec::new(), TEXT.into()),
            Body::Text(text) => (text.fixed().unwrap_or_default().into(), TEXT.into()),
            Body::File(path) => read_file(path)?,
        };
        let content_type = self.content_type.clone().unwrap_or(natural.into_owned());
        let body = match &self.body {
            Body::Status => Text::Status,
            Body::Text(text) if text.fixed().is_none() => Text::Filled(text.clone(), Escape::of(&content_type)),
            _ => Text::Fixed(Arc::new(bytes)),
        };
        let content_type = (self.content_type.is_some() || !matches!(body, Text::Status)).then_some(content_type);
        Ok(Ready {
            status,
            content_type,
            body,
        })
    }
}

impl Handler for Ready {
    fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response {
        let response = match &self.body {
            Text::Status if is_bodiless(self.status.as_u16()) => Response::new(self.status),
            Text::Status => Response::plain(self.status),
            Text::Fixed(body) => Response::new(self.status).body(osier_web::Body::shared(Arc::clone(body))),
            // The values are escaped for one content type, so the browser must not guess another.
            Text::Filled(template, escape) => Response::new(self.status)
                .header("x-content-type-options", "nosniff")
                .body(template.fill(request, path, *escape)),
        };
        match &self.content_type {
            None => response,
            Some(content_type) => response.header("content-type", content_type),
        }
    }
}

/// Whether a response with this status has no body (RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5).
fn is_bodiless(status: u16) -> bool {
    matches!(status, 204 | 205 | 304)
}

/// Reads a small file and finds its media type.
pub fn read_file(path: &Path) -> Result<(Vec<u8>, Cow<'static, str>), Reason> {
    let because = |error| Reason::of(&error, format!("cannot read '{}': {error}", path.display()));
    let body = std::fs::read(path).map_err(because)?;
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    let mime = match mime.type_() {
        mime_guess::mime::TEXT => format!("{mime}; charset=utf-8"),
        _ => mime.to_string(),
    };
    Ok((body, Cow::Owned(mime)))
}
