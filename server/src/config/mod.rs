//! Turns the text of a configuration file into a checked [`Config`].
//!
//! ```text
//!   text ─▶ toml ─▶ reader: Section, typed access with places ────▶ top, site, route, handler, … ─▶ check ─▶ Config
//!                        └────────── every mistake of every step ─────────────▶ reader/problem.rs: Report
//! ```
//!
//! Checking a configuration changes nothing and keeps nothing open. Every part implements `==`, because a reload keeps
//! the parts that have not changed. Places in the file are not compared.

pub mod acme;
mod address;
mod auth;
mod cache;
pub mod check;
pub mod cli;
pub mod htaccess;
mod http2;
mod include;
mod log;
mod loops;
pub mod origin;
mod policy;
mod route;
mod settings;
mod shared;
pub mod tls;
mod top;
mod twice;

use std::path::Path;

use toml::de::DeTable;

use crate::process::root::inside;
use crate::reader::{self, Reason, problem, secrets};

pub use self::route::glob;
pub use self::settings::*;
pub use crate::reader::problem::Report;

/// Bytes of the largest file that is read: a configuration is written by hand.
const MAX_BYTES: u64 = 4 << 20;

/// A configuration that can be used.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// Mistakes that leave the configuration usable: a path that does not exist yet, or a weak password hash, for
    /// example.
    pub warnings: Option<Report>,
}

impl From<Config> for Loaded {
    fn from(config: Config) -> Loaded {
        Loaded { config, warnings: None }
    }
}

/// Reads and checks a file, with the variables of the environment. `root` is the new root folder of this process, if it
/// has changed it. Paths are still named as they were before, and are opened inside of `root`.
pub fn load(path: &Path, root: Option<&Path>) -> Result<Loaded, Report> {
    let name = path.display().to_string();
    let Some(seen) = inside(root, path) else {
        let root = root.unwrap_or(Path::new("/")).display();
        let text = format!(
            "lies outside of '{root}', the root folder of this process ('chroot'), and cannot be read again; restart the \
             server, and keep the file below '{root}' to have it reloaded"
        );
        return Err(Report::unreadable(&name, text));
    };
    let bytes = match read(&seen) {
        Ok(bytes) => bytes,
        Err(error) => return Err(Report::unreadable(&name, error)),
    };
    let text = String::from_utf8(bytes).map_err(|error| not_utf8(&name, &error))?;
    let base = path.parent().unwrap_or(Path::new(""));
    // An absolute path lets a reload find the file whatever the working directory is. Messages and scripts get whole
    // paths.
    let base = if base.is_absolute() {
        base.to_path_buf()
    } else {
        std::env::current_dir().unwrap_or_default().join(base)
    };
    parse(&name, &text, &base, root)
}

/// Checks a text. Relative paths in it start from `base`.
fn parse(name: &str, text: &str, base: &Path, root: Option<&Path>) -> Result<Loaded, Report> {
    let variable = |name: &str| std::env::var(name).ok();
    let files = problem::Files::one(name);
    let (table, errors) = DeTable::parse_recoverable(text);
    let is_readable = errors.iter().all(twice::is_duplicate);
    let broken = as_problems(&errors, &files, text, &table);
    if !is_readable {
        // The parser guesses after a broken line, so mistakes found there would be guesses too.
        return Err(Report::new(&files, text, broken, &secrets::unread(text)));
    }
    let source = reader::Source::new(text, table.get_ref(), &files, base.to_path_buf(), root, &variable);
    let patterns = reader::Section::new(&source, "", table.get_ref(), 0..0).strings("include");
    let texts = patterns.map(|patterns| include::read(&source, name, text, &patterns, root));
    match texts {
        None => parse_whole(text, &files, &table, broken, base, root),
        Some(texts) if texts.problems.iter().any(|problem| !problem.is_warning) => {
            Err(Report::new(&texts.files, &texts.text, texts.problems, &texts.secrets))
        }
        Some(texts) => {
            let (table, errors) = DeTable::parse_recoverable(&texts.text);
            let mut problems = texts.problems;
            problems.extend(as_problems(&errors, &texts.files, &texts.text, &table));
            let mut loaded = parse_whole(&texts.text, &texts.files, &table, problems, base, root)?;
            loaded.config.includes = texts.folders;
            Ok(loaded)
        }
    }
}

/// The errors of the parser, which has read `table`.
fn as_problems(
    errors: &[toml::de::Error],
    files: &problem::Files,
    text: &str,
    table: &toml::Spanned<DeTable<'_>>,
) -> Vec<problem::Problem> {
    let as_problem = |error: &toml::de::Error| problem::Problem {
        is_warning: false,
        at: error.span().unwrap_or(0..0),
        why: twice::message(error, files, text, table.get_ref()).into(),
    };
    errors.iter().map(as_problem).collect()
}

/// Checks a text together with the files that it includes. `broken` holds what is known to be wrong.
fn parse_whole(
    text: &str,
    files: &problem::Files,
    table: &toml::Spanned<DeTable<'_>>,
    mut broken: Vec<problem::Problem>,
    base: &Path,
    root: Option<&Path>,
) -> Result<Loaded, Report> {
    let variable = |name: &str| std::env::var(name).ok();
    let source = reader::Source::new(text, table.get_ref(), files, base.to_path_buf(), root, &variable);
    let config = top::read(&source, table);
    let (mut problems, mut secrets) = source.finish();
    if !broken.is_empty() {
        // The second value of a duplicate key was not read, so it may be a secret.
        let twice = broken.iter().filter(|problem| !problem.is_warning);
        secrets.extend(twice.map(|twice| twice::value(text, twice.at.end)));
        problems.append(&mut broken);
    }
    let is_usable = problems.iter().all(|problem| problem.is_warning);
    let report = (!problems.is_empty()).then(|| Report::new(files, text, problems, &secrets));
    match report {
        Some(report) if !is_usable => Err(report),
        warnings => Ok(Loaded { config, warnings }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Reason> {
    let because = |error: std::io::Error, denied: &str| {
        let text = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_string(),
            std::io::ErrorKind::PermissionDenied => denied.to_string(),
            _ => format!("cannot be read: {error}"),
        };
        Reason::of(&error, text)
    };
    let metadata = std::fs::metadata(path).map_err(|error| because(error, "this user may not enter its folder"))?;
    if !metadata.is_file() {
        return Err("is not a file".into());
    }
    if metadata.len() > MAX_BYTES {
        let bytes = metadata.len();
        return Err(format!("has {bytes} bytes; a configuration has at most {MAX_BYTES}").into());
    }
    std::fs::read(path).map_err(|error| because(error, "this user may not read it"))
}

fn not_utf8(name: &str, error: &std::string::FromUtf8Error) -> Report {
    let text = String::from_utf8_lossy(error.as_bytes());
    let at = error.utf8_error().valid_up_to();
    let problem = problem::Problem {
        is_warning: false,
        at: at..at + char::REPLACEMENT_CHARACTER.len_utf8(),
        why: "this is not UTF-8; save the file in that encoding".into(),
    };
    let secrets = secrets::unread(&text);
    Report::new(&problem::Files::one(name), &text, vec![problem], &secrets)
}
