//! The handlers of routes, ready to answer. Made by `build.rs`; kept from one configuration to the next where nothing has
//! changed, with all they hold: caches, connections to upstreams, rooms.

use std::borrow::Cow;
use std::sync::Arc;

use osier_web::chat::Chat;
use osier_web::files::Files;
use osier_web::http::StatusCode;
use osier_web::{Body, Request, Response};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use crate::config;
use crate::policy::rewrite::Rewrite;
use crate::welcome::Welcome;

use super::hosts::without_port;

/// What cannot stand in a path as it is.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Answers, whatever it is made of.
type Answer = Box<dyn Fn(&mut Request<'_>) -> Response + Send + Sync>;

pub enum Handler {
    Files(Mounted),
    Redirect(Redirect),
    Respond(Respond),
    /// Asked by `Site::dispatch`, for it may have no answer.
    Rewrite(Rewrite),
    Chat(Chat),
    Welcome(Welcome),
    /// What speaks with others: it makes its own errors.
    Gateway(Answer),
}

/// Files below a path.
pub struct Mounted {
    pub files: Files,
    pub strip: String,
    /// `Cache-Control`.
    pub cache: Option<String>,
}

pub struct Redirect {
    status: StatusCode,
    parts: Vec<Part>,
    /// The path of the route.
    prefix: String,
    /// The target names no host of its own.
    stays_here: bool,
}

enum Part {
    Text(String),
    Host,
    Path,
    Rest,
    Query,
}

pub struct Respond {
    status: StatusCode,
    content_type: String,
    body: Arc<Vec<u8>>,
}

impl Handler {
    /// `path` is the request's as routes see it.
    ///
    /// # Suspends
    /// as its kind does.
    #[inline]
    pub fn answer(&self, request: &mut Request<'_>, path: &[u8]) -> Response {
        match self {
            Handler::Files(mounted) => mounted.answer(request),
            Handler::Redirect(redirect) => redirect.answer(request, path),
            Handler::Respond(respond) => respond.answer(),
            Handler::Gateway(answer) => answer(request),
            Handler::Chat(chat) => chat.join(request),
            Handler::Welcome(welcome) => welcome.answer(request),
            Handler::Rewrite(_) => Response::new(StatusCode::NOT_FOUND),
        }
    }
}

impl Mounted {
    #[inline]
    fn answer(&self, request: &Request<'_>) -> Response {
        let response = match self.strip.is_empty() {
            true => self.files.answer(request),
            false => self.files.answer_below(&self.strip, request),
        };
        match (&self.cache, response.status().as_u16()) {
            (Some(cache), 200 | 206 | 304) => response.header("cache-control", cache),
            _ => response,
        }
    }
}

impl Redirect {
    pub fn new(settings: &config::Redirect, prefix: Option<&str>) -> Redirect {
        let mut parts = Vec::new();
        let mut rest = settings.to.as_str();
        // The checker has seen that every brace is one of these.
        while let Some((before, (name, after))) = rest
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            parts.push(Part::Text(before.into()));
            parts.push(match name {
                "host" => Part::Host,
                "path" => Part::Path,
                "rest" => Part::Rest,
                _ => Part::Query,
            });
            rest = after;
        }
        parts.push(Part::Text(rest.into()));
        Redirect {
            status: StatusCode::from_u16(settings.status).unwrap_or(StatusCode::PERMANENT_REDIRECT),
            parts,
            prefix: prefix.unwrap_or_default().into(),
            stays_here: settings.to.starts_with(['/', '{']),
        }
    }

    fn answer(&self, request: &Request<'_>, path: &[u8]) -> Response {
        let mut to = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => to.push_str(text),
                Part::Host => to.push_str(request.host().map_or("", without_port)),
                Part::Path => push_path(&mut to, path),
                Part::Rest => push_path(&mut to, path.strip_prefix(self.prefix.as_bytes()).unwrap_or(path)),
                Part::Query => {
                    if let Some(query) = request.query() {
                        to.push('?');
                        to.push_str(query);
                    }
                }
            }
        }
        if self.stays_here {
            keep_here(&mut to);
        }
        Response::redirect(self.status, &to)
    }
}

/// Leaves one slash in front: a browser reads "//host" and "/\host" as the address of another server.
fn keep_here(to: &mut String) {
    let slashes = to.len() - to.trim_start_matches(['/', '\\']).len();
    to.replace_range(..slashes, "/");
}

/// Encoded anew from what routes see: so it has one slash in front, never two, and cannot be read as another host.
fn push_path(to: &mut String, path: &[u8]) {
    to.extend(percent_encode(path, PATH));
}

impl Respond {
    /// # Errors
    /// When its file cannot be read.
    pub fn new(settings: &config::Respond) -> Result<Respond, String> {
        let status = StatusCode::from_u16(settings.status).unwrap_or(StatusCode::OK);
        let text = || Cow::Borrowed("text/plain; charset=utf-8");
        let (body, natural) = match &settings.body {
            config::Body::Status => (format!("{status}\n").into_bytes(), text()),
            config::Body::Text(body) => (body.clone().into_bytes(), text()),
            config::Body::File(path) => read(path)?,
        };
        Ok(Respond {
            status,
            content_type: settings.content_type.clone().unwrap_or(natural.into_owned()),
            body: Arc::new(body),
        })
    }

    fn answer(&self) -> Response {
        let response = Response::new(self.status).body(Body::shared(Arc::clone(&self.body)));
        response.header("content-type", &self.content_type)
    }
}

/// A small file with its media type.
pub fn read(path: &std::path::Path) -> Result<(Vec<u8>, Cow<'static, str>), String> {
    let body = std::fs::read(path).map_err(|error| format!("cannot read '{}': {error}", path.display()))?;
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    let mime = match mime.type_() {
        mime_guess::mime::TEXT => format!("{mime}; charset=utf-8"),
        _ => mime.to_string(),
    };
    Ok((body, Cow::Owned(mime)))
}
