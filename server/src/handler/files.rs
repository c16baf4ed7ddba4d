//! `files`: a folder of static files.

use std::io;
use std::path::{Path, PathBuf};

use osier_web::files::{self, Options, Symlinks};
use osier_web::{Request, Response};
use toml::Spanned;
use toml::de::DeValue;

use crate::policy::headers::Field;
use crate::reader::value::duration;
use crate::reader::{Reason, Section, values};

use super::{Configured, Form, Handler, Match, Opened, Published, Resources, Route, Touch, form, strip};

/// The rules for symbolic links and their names in the file.
pub(super) const SYMLINKS: [(&str, Symlinks); 3] = [
    ("inside", Symlinks::Inside),
    ("owner", Symlinks::Owner),
    ("all", Symlinks::All),
];

/// The settings of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    pub root: PathBuf,
    /// The options of the handler. `open` adds the server's cache limits, and the route's compression and types.
    pub options: Options,
}

impl Files {
    /// A folder with the default options. It need not exist yet.
    pub fn new(root: PathBuf) -> Files {
        Files {
            root,
            options: Options {
                may_be_missing: true,
                ..Options::default()
            },
        }
    }
}

impl Configured for Files {
    const IS_KEPT: bool = true;
    const COMPRESSES: bool = true;

    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, matches: &Match) -> Option<Files> {
        let table = match form(section, "files", value, "the folder")? {
            Form::Short(text) => return section.as_folder("files", &text).map(Files::new),
            Form::Table(table) => table,
        };
        table.require("root", "the folder that is served");
        let root = table.folder("root");
        let index = table.parsed_list("index", |text| {
            if text.is_empty() || text.contains('/') || text.starts_with('.') {
                Err("it must be the name of a file, without a folder")
            } else {
                Ok(text.to_string())
            }
        });
        let default = Options::default();
        let options = Options {
            index: index.map_or(default.index, |list| values(Some(list))),
            listing: table.boolean("listing").unwrap_or(default.listing),
            spa: table.boolean("spa").unwrap_or(default.spa),
            hidden: table.boolean("hidden").unwrap_or(default.hidden),
            precompressed: table.boolean("precompressed").unwrap_or(default.precompressed),
            cache_control: table.parsed("cache", cache_control).map(|text| text.value),
            symlinks: table.choice("symlinks", &SYMLINKS).unwrap_or_default(),
            may_be_missing: true,
            strip: strip(&table, matches),
            ..default
        };
        table.finish();
        Some(Files { root: root?, options })
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        vec![(Touch::Read, &mut self.root)]
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn published(&self) -> Option<Published<'_>> {
        Some(Published {
            root: &self.root,
            strip: self.options.strip.as_deref(),
            follows_links: self.options.symlinks != Symlinks::Inside,
        })
    }

    fn open(&self, route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
        let options = Options {
            compress: route.compress.cloned(),
            types: route.types.clone(),
            cache: resources.cache,
            ..self.options.clone()
        };
        let files = files::Files::with(&self.root, options).map_err(|error| cannot_serve(&self.root, &error))?;
        let say = resources.say.clone();
        Ok(Opened::answers(files.on_log(move |line| say.warning(line))))
    }
}

/// Checks the value of `Cache-Control`. A duration alone, as nginx's `expires` has it, is none.
pub(super) fn cache_control(text: &str) -> Result<String, String> {
    if let Some(time) = duration(text) {
        return Err(format!(
            "it is a value of Cache-Control; write \"max-age={}\"",
            time.as_secs()
        ));
    }
    format!("Cache-Control: {text}").parse().map(|field: Field| field.value)
}

impl Handler for files::Files {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        files::Files::answer(self, request)
    }

    fn methods(&self) -> &'static str {
        "GET, HEAD, OPTIONS"
    }
}

/// The message for a folder that cannot be opened.
pub fn cannot_serve(root: &Path, error: &io::Error) -> Reason {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "there is no such folder".into(),
        io::ErrorKind::NotADirectory => "it is not a folder".into(),
        io::ErrorKind::PermissionDenied => "this user may not read it".into(),
        _ => error.to_string(),
    };
    Reason::of(error, format!("cannot serve '{}': {why}", root.display()))
}
