//! `include`: the sites and policies of further files, read as if they stood at the end of the first file.
//!
//! ```text
//!   site.toml ── include = "sites/*.toml" ──▶ patterns ─▶ names, sorted ─▶ each parsed alone ─▶ one text, with the place of each file
//! ```
//!
//! A file is parsed alone first, so what stands before its first `[[site]]` cannot slip into a table of the file before
//! it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::process::root::inside;
use crate::reader::problem::{Files, Problem};
use crate::reader::{At, Reason, Source, secrets};

use super::twice;

/// The top-level keys of an included file.
const KEYS: [&str; 2] = ["site", "policy"];

/// The text of a configuration and of the files that it includes.
pub struct Texts {
    pub text: String,
    pub files: Files,
    /// The folders of the patterns.
    pub folders: Vec<PathBuf>,
    /// The names of the policies so far. TOML would let one file add tables to the policy of another.
    policies: HashSet<String>,
    /// Mistakes that make an included file unreadable, and folders that are not there yet.
    pub problems: Vec<Problem>,
    /// Values that may be secrets, for a text with a mistake, which is not read.
    pub secrets: Vec<Range<usize>>,
}

/// Reads the files that `patterns` of the file `name` match. `source` is the first file.
pub fn read(source: &Source<'_>, name: &str, text: &str, patterns: &[At<String>], root: Option<&Path>) -> Texts {
    let mut texts = Texts {
        text: text.to_owned(),
        files: Files::one(name),
        folders: Vec::new(),
        policies: policies(&DeTable::parse_recoverable(text).0)
            .map(|(name, _)| name)
            .collect(),
        problems: Vec::new(),
        secrets: Vec::new(),
    };
    let first = Path::new(name)
        .file_name()
        .map(|name| source.named(&name.to_string_lossy()));
    for pattern in patterns {
        match expand(&source.named(&pattern.value), root) {
            Ok((folder, paths)) => {
                texts.folders.extend(folder);
                let others = paths.iter().filter(|path| Some(*path) != first.as_ref());
                others.for_each(|path| texts.add(pattern, path, root));
            }
            Err((is_warning, why)) => texts.problems.push(Problem {
                is_warning,
                at: pattern.span.clone(),
                why,
            }),
        }
    }
    for problem in &mut texts.problems {
        problem.why = source.without_values(&problem.at, problem.why.clone());
    }
    texts
}

/// The folder of a pattern and the paths that it matches, in the order of their names. The error is a message, and
/// whether it is only a warning.
type Expanded = Result<(Option<PathBuf>, Vec<PathBuf>), (bool, Reason)>;

fn expand(pattern: &Path, root: Option<&Path>) -> Expanded {
    let mistake = |text: String| (false, Reason::from(text));
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) else {
        return Err(mistake("name files, \"sites/*.toml\" for example".into()));
    };
    if folder.as_os_str().as_encoded_bytes().contains(&b'*') {
        return Err(mistake(
            "a '*' stands in the name of the file only, not in that of its folder".into(),
        ));
    }
    let folder = folder.to_path_buf();
    if !name.contains(['*', '?', '[', '{']) {
        return Ok((Some(folder), vec![pattern.to_owned()]));
    }
    let glob = GlobBuilder::new(name).literal_separator(true).build();
    let glob = glob
        .map_err(|error| mistake(error.kind().to_string()))?
        .compile_matcher();
    let seen =
        inside(root, &folder).ok_or_else(|| mistake(format!("'{}' lies outside of 'chroot'", folder.display())))?;
    let entries = match std::fs::read_dir(&seen) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!("there is no folder '{}'; no site is included", folder.display());
            return Err((true, why.into()));
        }
        entries => entries.map_err(|error| {
            let why = format!("cannot read '{}': {error}", folder.display());
            (false, Reason::of(&error, why))
        })?,
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let is_hidden = |name: &std::ffi::OsString| name.as_encoded_bytes().starts_with(b".");
    let mut names: Vec<_> = names.filter(|name| !is_hidden(name) && glob.is_match(name)).collect();
    names.sort();
    let paths = names.iter().map(|name| folder.join(name)).collect();
    Ok((Some(folder), paths))
}

impl Texts {
    /// Adds a file, or the reason why it cannot be read.
    fn add(&mut self, pattern: &At<String>, path: &Path, root: Option<&Path>) {
        let name = path.display().to_string();
        if self.files.has(&name) {
            return;
        }
        let text = match read_text(path, root) {
            Ok(text) => text,
            Err(why) => {
                self.problems.push(Problem {
                    is_warning: false,
                    at: pattern.span.clone(),
                    why: why.reworded(|why| format!("'{name}': {why}")),
                });
                return;
            }
        };
        // TOML allows a byte order mark at its beginning only.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        self.text.push('\n');
        let start = self.text.len();
        self.files.add(name, start);
        let values = secrets::unread(text).into_iter();
        self.secrets.extend(values.map(|at| at.start + start..at.end + start));
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut note = |at: Range<usize>, text: String| {
            self.problems.push(Problem {
                is_warning: false,
                at: at.start + start..at.end + start,
                why: text.into(),
            });
        };
        let is_read = errors.is_empty();
        for error in errors {
            let message = twice::message(&error, &Files::one(""), text, table.get_ref());
            note(error.span().unwrap_or(0..0), message);
        }
        if is_read {
            note_strange_keys(&table, &mut note);
            note_keys_without_header(text, &table, &mut note);
        }
        if let Some((key, value)) = table.get_ref().get_key_value("site")
            && !matches!(value.get_ref(), DeValue::Array(_))
        {
            note(
                key.span(),
                "a table of a site before the first [[site]] of the file".into(),
            );
        }
        for (name, at) in policies(&table) {
            if !self.policies.insert(name.clone()) {
                note(at, format!("another file has a [policy.{}]", name.escape_debug()));
            }
        }
        self.text.push_str(text);
    }
}

/// Reads a file below the root folder, if the process has one.
fn read_text(path: &Path, root: Option<&Path>) -> Result<String, Reason> {
    let seen = inside(root, path).ok_or("lies outside of 'chroot'")?;
    String::from_utf8(super::read(&seen)?).map_err(|_| "is not UTF-8".into())
}

/// Notes the sites and policies that stand before the first header of a file. In the whole text they would be keys of the last
/// table before the file.
fn note_keys_without_header(text: &str, table: &Spanned<DeTable<'_>>, note: &mut impl FnMut(Range<usize>, String)) {
    let keys = table
        .get_ref()
        .keys()
        .filter(|key| KEYS.contains(&key.get_ref().as_ref()));
    for key in keys.filter(|key| !text[..key.span().start].trim_end().ends_with('[')) {
        let form = match key.get_ref().as_ref() {
            "site" => "[[site]]",
            _ => "[policy.NAME]",
        };
        note(
            key.span(),
            format!(
                "'{}' before the first header of an included file: write it below {form}",
                key.get_ref()
            ),
        );
    }
}

/// Notes the keys that an included file may not have.
fn note_strange_keys(table: &Spanned<DeTable<'_>>, note: &mut impl FnMut(Range<usize>, String)) {
    let is_strange = |key: &&Spanned<DeString<'_>>| !KEYS.contains(&key.get_ref().as_ref());
    for key in table.get_ref().keys().filter(is_strange) {
        let text = format!(
            "'{}' in an included file: it holds [[site]] and [policy.NAME] only",
            key.get_ref().escape_debug()
        );
        note(key.span(), text);
    }
}

/// The names of the policies of a file, and their places.
fn policies<'t>(table: &'t Spanned<DeTable<'_>>) -> impl Iterator<Item = (String, std::ops::Range<usize>)> + 't {
    let policies = table
        .get_ref()
        .get("policy")
        .and_then(|policies| policies.get_ref().as_table());
    let names = policies.into_iter().flat_map(|policies| policies.keys());
    names.map(|key| (key.get_ref().to_string(), key.span()))
}
