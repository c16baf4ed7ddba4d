//! `fastcgi`: scripts that an application such as PHP-FPM runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use osier_web::fastcgi::{self, FastCgi, Options};
use osier_web::files::Symlinks;
use osier_web::upstream::Upstream;
use osier_web::{Answer, Request, Response, files};
use toml::Spanned;
use toml::de::DeValue;

use crate::reader::value::token;
use crate::reader::{At, Reason, Section, values};

use super::files::{SYMLINKS, cache_control, cannot_serve};
use super::upstream::{Backends, timeouts};
use super::{Configured, Handler, Match, Opened, Published, Resources, Route, Spools, Touch};

/// The settings of FastCGI scripts.
#[derive(Debug, Clone, PartialEq)]
pub struct Fastcgi {
    backends: Backends,
    root: PathBuf,
    /// Whether files that are not scripts are served too.
    files: bool,
    /// The value of `Cache-Control` of these files.
    cache_control: Option<String>,
    options: Options,
}

/// An open `fastcgi` handler.
struct Gateway(Arc<FastCgi>);

impl Configured for Fastcgi {
    const IS_KEPT: bool = true;
    const IS_GATEWAY: bool = true;

    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Fastcgi> {
        let table = section.as_section("fastcgi", value, "a table")?;
        table.require(
            "to",
            "where the backend listens, \"unix:/run/php/php-fpm.sock\" for example",
        );
        table.require("root", "the folder of the scripts");
        let root = table.folder("root");
        let index = table.parsed_list("index", |text| match text {
            "" => Err("it is empty"),
            _ if text.contains('/') => Err("it is not the name of a file"),
            _ => Ok(text.to_string()),
        });
        let suffixes = table.parsed_list("suffix", |text| {
            if text.len() > 1 && text.starts_with('.') && !text.contains('/') {
                Ok(text.to_string())
            } else {
                Err("it begins with a dot, \".php\" for example")
            }
        });
        let front = table.parsed("front", |text| match text.strip_prefix('/') {
            Some("") | None => Err("it is the path of a script below the root, \"/index.php\" for example"),
            Some(_) => Ok(text.to_string()),
        });
        let params = table.section("params").map(|params| {
            let pair = |(name, value): (At<String>, At<String>)| (name.value, value.value);
            params.entries().into_iter().map(pair).collect()
        });
        let timeouts = timeouts(&table);
        let default = Options::default();
        let options = Options {
            suffixes: suffixes.map_or(default.suffixes, |list| values(Some(list))),
            index: index.map_or(default.index, |list| values(Some(list))),
            front: front.map(|front| front.value),
            application_root: table
                .string("application_root")
                .map(|path| path.value.into())
                .or_else(|| {
                    // The application has not changed its root folder, so it gets the path as seen from outside.
                    let root = root.as_deref().filter(|_| table.source().is_inside());
                    root.map(|root| table.source().shown(root).into())
                }),
            internal_root: table.folder("internal_root"),
            symlinks: table.choice("symlinks", &SYMLINKS).unwrap_or_default(),
            may_be_missing: true,
            params: params.unwrap_or_default(),
            server_name: table.string("server_name").map(|name| name.value),
            https: table.boolean("https").unwrap_or(default.https),
            hide: values(table.parsed_list("hide", token)),
            first_byte: timeouts.first_byte.unwrap_or(default.first_byte),
            between: timeouts.between.unwrap_or(default.between),
            buffer: table.boolean("buffer").unwrap_or(default.buffer),
            buffer_total: table.size("buffer_total").unwrap_or(default.buffer_total),
            shared_memory: table.memory_size("shared_memory").unwrap_or(default.shared_memory),
            read_ahead: table.memory_size("read_ahead").unwrap_or(default.read_ahead),
            read_ahead_file: table.size("read_ahead_file").unwrap_or(default.read_ahead_file),
            read_ahead_total: table.size("read_ahead_total").unwrap_or(default.read_ahead_total),
            ..default
        };
        let backends = Backends::read(&table, &timeouts, false);
        let files = table.boolean("files").unwrap_or(false);
        let cache_control = table.parsed("cache", |text| match files {
            true => cache_control(text),
            false => Err("it is the Cache-Control of files, and needs files = true".into()),
        });
        table.finish();
        Some(Fastcgi {
            backends,
            root: root?,
            files,
            cache_control: cache_control.map(|text| text.value),
            options,
        })
    }

    fn paths(&mut self) -> Vec<(Touch, &mut PathBuf)> {
        let mut paths = vec![(Touch::Read, &mut self.root)];
        paths.extend(self.options.internal_root.as_mut().map(|root| (Touch::Read, root)));
        paths.extend(self.backends.sockets());
        paths
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn published(&self) -> Option<Published<'_>> {
        self.files.then_some(Published {
            root: &self.root,
            strip: None,
            follows_links: self.options.symlinks != Symlinks::Inside,
        })
    }

    fn before_chroot(&mut self) {
        // The application stays outside of the new root folder.
        self.options.application_root.get_or_insert_with(|| self.root.clone());
    }

    fn spools(&self) -> Option<Spools> {
        // Without `buffer`, those of unknown length.
        Some(Spools {
            memory: self.options.spool_memory as u64,
            files: self.options.buffer_total,
        })
    }

    fn script_suffixes(&self) -> &[String] {
        &self.options.suffixes
    }

    fn open(&self, route: &Route<'_>, resources: &Resources) -> Result<Opened, Reason> {
        let cannot = |error| cannot_serve(&self.root, &error);
        let upstream = self.backends.build(resources, |name| fastcgi::upstream(name, []));
        let upstream = upstream.map_err(cannot)?;
        let options = Options {
            // Inside the server, a script of another route would pass none of its policies.
            local_redirects: route.is_whole_site,
            ..self.options.clone()
        };
        let handler = FastCgi::with(&self.root, upstream, options).map_err(cannot)?;
        if !self.files {
            return Ok(Opened::answers(Gateway(Arc::new(handler))));
        }
        // The handler finds no scripts in hidden folders such as `.well-known`, and passes such requests on to the
        // files. These must not have scripts as index files, whose source they would send.
        let is_script = |name: &String| self.options.suffixes.iter().any(|suffix| name.ends_with(suffix));
        let index = self.options.index.iter().filter(|name| !is_script(name));
        let options = files::Options {
            index: index.cloned().collect(),
            cache: resources.cache,
            cache_control: self.cache_control.clone(),
            symlinks: self.options.symlinks,
            types: route.types.clone(),
            ..files::Options::default()
        };
        let files = handler.files(options).map_err(cannot)?;
        let handler = handler.otherwise(move |request| files.answer(request));
        Ok(Opened::answers(Gateway(Arc::new(handler))))
    }
}

impl Handler for Gateway {
    fn answer(&self, request: &mut Request<'_>, _path: &[u8]) -> Response {
        self.0.answer(request)
    }

    fn upstream(&self) -> Option<&Upstream> {
        Some(self.0.upstream())
    }

    fn answer_after_body(&self, request: &mut Request<'_>, _path: &[u8]) -> Answer {
        self.0.answer_after_body(request)
    }
}
