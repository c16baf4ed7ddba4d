//! Reads the tables of a TOML file by type. It keeps the place of every value and does not stop at a mistake.
//!
//! The code for a table asks a [`Section`] for each key by type. A wrong value is noted in the [`Source`], and the
//! result is None, as for a missing key. Finally [`Section::finish`] notes every key that was not asked for, and
//! suggests the most similar known key.

mod hints;
pub mod problem;
mod reason;
pub mod secrets;
pub mod template;
pub mod value;

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;
use rustix::io::Errno;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::process::root::inside;

use self::problem::{Files, Problem};
pub use self::reason::Reason;

/// The least similarity (Jaro-Winkler, 1 is equal) of a key that is suggested.
const ALIKE: f64 = 0.75;

/// The remedies for an empty path.
const FOLDER: &str = "write \".\" for the folder of this file";
const FILE: &str = "name the file";

/// A file being read.
pub struct Source<'s> {
    /// Text of the file.
    pub text: &'s str,
    table: &'s DeTable<'s>,
    /// The files that the text was put together from.
    pub files: &'s Files,
    /// Folder of the file. Relative paths start from it.
    base: PathBuf,
    /// New root folder of this process, if it has changed it. The file names paths as seen from outside.
    root: Option<&'s Path>,
    /// Root folder that the file asks for. Paths must lie below it from then on.
    pub chroot: OnceCell<PathBuf>,
    /// Looks up an environment variable.
    pub variable: &'s dyn Fn(&str) -> Option<String>,
    problems: RefCell<Vec<Problem>>,
    /// Parts of the text that no message shows.
    secrets: Vec<Range<usize>>,
    /// The starts of the values that were read.
    seen: RefCell<HashSet<usize>>,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Place of the value, in bytes of the file.
    pub span: Range<usize>,
}

/// A table of the file.
pub struct Section<'s> {
    source: &'s Source<'s>,
    /// Name of the table as the user writes it, `[[site.route]]` for example.
    title: String,
    table: &'s DeTable<'s>,
    span: Range<usize>,
    /// The keys that were asked for.
    asked: RefCell<Vec<&'static str>>,
}

impl<'s> Source<'s> {
    pub fn new(
        text: &'s str,
        table: &'s DeTable<'s>,
        files: &'s Files,
        base: PathBuf,
        root: Option<&'s Path>,
        variable: &'s dyn Fn(&str) -> Option<String>,
    ) -> Source<'s> {
        Source {
            text,
            table,
            files,
            base,
            root,
            chroot: OnceCell::new(),
            variable,
            problems: RefCell::default(),
            secrets: secrets::of(text, table),
            seen: RefCell::default(),
        }
    }

    /// The line of `at` for a message about `here`, with the file if that is another one.
    pub fn line(&self, at: usize, here: usize) -> String {
        problem::line(self.files, self.text, at, here)
    }

    /// Notes a mistake.
    pub fn problem(&self, at: &Range<usize>, why: impl Into<Reason>) {
        self.note(at, why.into(), false);
    }

    /// Notes something that the operator should look at, a file that does not exist yet for example. The configuration
    /// is used all the same.
    pub fn warning(&self, at: &Range<usize>, text: impl Into<String>) {
        self.note(at, text.into().into(), true);
    }

    fn note(&self, at: &Range<usize>, why: Reason, is_warning: bool) {
        let at = at.clone();
        self.problems.borrow_mut().push(Problem { is_warning, at, why });
    }

    /// The number of mistakes so far. If it is the same before and after a section, the section has none.
    pub fn mistake_count(&self) -> usize {
        let problems = self.problems.borrow();
        problems.iter().filter(|problem| !problem.is_warning).count()
    }

    /// Notes that a value was read.
    fn saw(&self, value: &Spanned<DeValue<'_>>) {
        self.seen.borrow_mut().insert(value.span().start);
    }

    /// Whether a part of the value at this place is a secret.
    fn is_secret(&self, at: &Range<usize>) -> bool {
        let mut secrets = self.secrets.iter();
        secrets.any(|secret| secret.start < at.end && at.start < secret.end)
    }

    /// Returns the mistakes and warnings, and the parts of the text that no message may show.
    pub fn finish(self) -> (Vec<Problem>, Vec<Range<usize>>) {
        let (mut hidden, seen) = (self.secrets, self.seen.into_inner());
        let doubtful = secrets::doubtful(self.table).into_iter();
        hidden.extend(doubtful.filter(|value| !seen.contains(&value.start)));
        (self.problems.into_inner(), hidden)
    }

    /// The path that the file names, joined to the folder of the file.
    pub fn named(&self, text: &str) -> PathBuf {
        self.base.join(text)
    }

    /// The same path as this process opens it.
    ///
    /// # Errors
    /// When the path lies outside of the root folder.
    pub fn path(&self, text: &str) -> Result<PathBuf, String> {
        let named = self.named(text);
        let chroot = self.chroot.get().filter(|chroot| !named.starts_with(chroot));
        if let (None, Some(chroot)) = (self.root, chroot) {
            let (named, chroot) = (named.display(), chroot.display());
            return Err(format!("'{named}' is outside of chroot '{chroot}'"));
        }
        inside(self.root, &named).ok_or_else(|| {
            let root = self.root.unwrap_or(Path::new("/")).display();
            format!(
                "'{}' lies outside of '{root}', the root folder of this process",
                named.display()
            )
        })
    }

    /// The name by which this process opens a file that has this name outside. None for a file outside of its root
    /// folder.
    pub fn inside(&self, named: &Path) -> Option<PathBuf> {
        inside(self.root, named)
    }

    /// Whether the process has changed its root folder.
    pub fn is_inside(&self) -> bool {
        self.root.is_some()
    }

    /// The outside name of a path inside of the root folder, for messages.
    pub fn shown(&self, path: &Path) -> String {
        let outside = self
            .root
            .zip(path.strip_prefix("/").ok())
            .map(|(root, path)| root.join(path));
        outside.as_deref().unwrap_or(path).display().to_string()
    }
}

impl<'s> Section<'s> {
    pub fn new(source: &'s Source<'s>, title: &str, table: &'s DeTable<'s>, span: Range<usize>) -> Section<'s> {
        Section {
            source,
            title: title.into(),
            table,
            span,
            asked: RefCell::default(),
        }
    }

    /// The file that the section belongs to.
    pub fn source(&self) -> &'s Source<'s> {
        self.source
    }

    /// The place of the table: its header, or its brace.
    pub fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// The name of the section in messages.
    pub fn title(&self) -> &str {
        if self.title.is_empty() { "the file" } else { &self.title }
    }

    /// Notes a mistake of the table as a whole.
    pub fn problem(&self, why: impl Into<Reason>) {
        self.source.problem(&self.span, why);
    }

    /// The place of a key, if it is there. The value may be wrong.
    pub fn key(&self, key: &'static str) -> Option<Range<usize>> {
        self.asked.borrow_mut().push(key);
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// The value of a key, of any type.
    pub fn any(&self, key: &'static str) -> Option<&'s Spanned<DeValue<'s>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key).inspect(|value| self.source.saw(value))
    }

    /// Notes a missing key. A key with a wrong value is not missing; that mistake is noted elsewhere.
    pub fn require(&self, key: &'static str, wanted: &str) {
        if !self.table.contains_key(key) {
            self.problem(format!("{} lacks '{key}': {wanted}", self.title));
        }
    }

    /// Reads a string and substitutes variables.
    pub fn string(&self, key: &'static str) -> Option<At<String>> {
        let value = self.any(key)?;
        self.as_string(key, value, "a string")
    }

    /// Reads a string or a list of strings.
    pub fn strings(&self, key: &'static str) -> Option<Vec<At<String>>> {
        let value = self.any(key)?;
        let wanted = "a string or a list of strings";
        let DeValue::Array(items) = value.get_ref() else {
            return self.as_string(key, value, wanted).map(|one| vec![one]);
        };
        if items.is_empty() {
            self.source.problem(
                &value.span(),
                format!("'{key}' is an empty list; leave it out, or name something"),
            );
        }
        Some(
            items
                .iter()
                .filter_map(|item| self.as_string(key, item, wanted))
                .collect(),
        )
    }

    /// Reads a whole number within `range`.
    pub fn integer(&self, key: &'static str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.number(key, &wanted, |number| range.contains(&number))
    }

    /// Reads a whole number that `fits`. If it does not, notes that `wanted` was expected.
    pub fn number(&self, key: &'static str, wanted: &str, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let value = self.any(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            DeValue::String(_) => self.as_variable(key, value, wanted)?.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| fits(*number));
        if number.is_none() {
            self.mistyped(key, value, wanted);
        }
        number
    }

    /// Reads `true` or `false`.
    pub fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.any(key)?;
        let wanted = "true or false";
        let truth = match value.get_ref() {
            DeValue::Boolean(truth) => Some(*truth),
            DeValue::String(_) => self.as_variable(key, value, wanted)?.parse().ok(),
            _ => None,
        };
        if truth.is_none() {
            self.mistyped(key, value, wanted);
        }
        truth
    }

    /// Reads a duration above zero.
    pub fn duration(&self, key: &'static str) -> Option<Duration> {
        let value = self.any(key)?;
        let text = self.as_string(key, value, value::DURATION)?;
        let time = value::duration(&text.value);
        match time {
            None => self.mistyped(key, value, value::DURATION),
            Some(Duration::ZERO) => self
                .source
                .problem(&text.span, format!("'{key}' must be longer than 0s")),
            Some(_) => return time,
        }
        None
    }

    /// Reads a number of bytes.
    pub fn size(&self, key: &'static str) -> Option<u64> {
        let value = self.any(key)?;
        let bytes = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => value::size(&self.as_string(key, value, value::SIZE)?.value),
        };
        if bytes.is_none() {
            self.mistyped(key, value, value::SIZE);
        }
        bytes
    }

    /// Reads a number of bytes that are kept in memory.
    pub fn memory_size(&self, key: &'static str) -> Option<usize> {
        let bytes = self.size(key)?;
        Some(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Reads a size of at least `least` bytes, which a message calls `shown`. `why` is the end of that message.
    pub fn size_at_least(&self, key: &'static str, least: u64, shown: &str, why: &str) -> Option<u64> {
        let bytes = self.size(key)?;
        if bytes >= least {
            return Some(bytes);
        }
        if let Some(value) = self.any(key) {
            let text = format!("'{key}' must be at least {shown}, not {}{why}", self.show(value));
            self.source.problem(&value.span(), text);
        }
        None
    }

    /// Reads one of a few words.
    pub fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let value = self.any(key)?;
        let list: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let wanted = format!("one of {}", list.join(", "));
        let text = self.as_string(key, value, &wanted)?;
        let found = words.iter().find(|(word, _)| *word == text.value);
        if found.is_none() {
            let guess = nearest(&text.value, words.iter().map(|(word, _)| *word));
            let is_version = text.value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let guess = guess
                .filter(|_| !is_version)
                .map(|guess| format!("; did you mean \"{guess}\"?"))
                .unwrap_or_default();
            let shown = self.show(value);
            self.source
                .problem(&text.span, format!("'{key}' must be {wanted}, not {shown}{guess}"));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Reads a string that `parse` accepts. Its error completes the sentence "'key' cannot be …: ".
    pub fn parsed<T, E: Display>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, E>) -> Option<At<T>> {
        let text = self.string(key)?;
        self.understand(key, text, &parse)
    }

    /// Reads a string, or a list of strings, that `parse` accepts.
    pub fn parsed_list<T, E: Display>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<At<T>>> {
        let texts = self.strings(key)?;
        Some(
            texts
                .into_iter()
                .filter_map(|text| self.understand(key, text, &parse))
                .collect(),
        )
    }

    /// Reads the path of a folder. A folder that does not exist yet is a warning.
    pub fn folder(&self, key: &'static str) -> Option<PathBuf> {
        let text = self.string(key)?;
        self.as_folder(key, &text)
    }

    /// Reads a path as [`folder`](Section::folder) does.
    pub fn as_folder(&self, key: &str, text: &At<String>) -> Option<PathBuf> {
        let path = self.path(text, FOLDER)?;
        if self.is_missing(&text.span, &path, "folder", "requests get 503 until it is there") {
            return Some(path);
        }
        if !path.is_file() && is_refused(&path, Access::READ_OK | Access::EXEC_OK) {
            let shown = self.source.shown(&path);
            let warning = format!(
                "this user may not read the folder '{shown}'; requests get 503 until the user of the server may"
            );
            self.source.warning(&text.span, warning);
            return Some(path);
        }
        self.existing_folder(key, text)
    }

    /// Reads the path of an existing folder.
    pub fn existing_folder(&self, key: &str, text: &At<String>) -> Option<PathBuf> {
        let path = self.path(text, FOLDER)?;
        let shown = self.source.shown(&path);
        match path.metadata() {
            Ok(found) if found.is_dir() => return Some(path),
            Ok(_) => self
                .source
                .problem(&text.span, format!("'{shown}' is not a folder; '{key}' must be one")),
            Err(error) => self.unusable(&text.span, &path, "folder", &error),
        }
        None
    }

    /// Reads the path of a readable file. A file that does not exist yet is a warning, which says `meanwhile`.
    pub fn file(&self, key: &'static str, meanwhile: &str) -> Option<PathBuf> {
        let text = self.string(key)?;
        self.as_file(&text, meanwhile)
    }

    /// Reads a path as [`file`](Section::file) does.
    pub fn as_file(&self, text: &At<String>, meanwhile: &str) -> Option<PathBuf> {
        let path = self.path(text, FILE)?;
        if self.is_missing(&text.span, &path, "file", meanwhile) {
            return Some(path);
        }
        match path.metadata() {
            Ok(found) if found.is_file() => match std::fs::File::open(&path) {
                Ok(_) => return Some(path),
                Err(error) => self.unusable(&text.span, &path, "file", &error),
            },
            Ok(_) => self
                .source
                .problem(&text.span, format!("'{}' is not a file", self.source.shown(&path))),
            Err(error) => self.unusable(&text.span, &path, "file", &error),
        }
        None
    }

    /// Reads the path of a file, and the file itself. A file that cannot be read is a mistake.
    ///
    /// # Blocks the thread
    /// While the file is read.
    pub fn content(&self, key: &'static str) -> Option<(At<PathBuf>, Vec<u8>)> {
        let At { value, span } = self.string(key).filter(|text| !self.is_content(text))?;
        let read = self.source.path(&value).and_then(|path| match std::fs::read(&path) {
            Ok(bytes) => Ok((path, bytes)),
            Err(error) => Err(format!("'{}' cannot be read: {error}", self.source.shown(&path))),
        });
        match read {
            Ok((value, bytes)) => Some((At { value, span }, bytes)),
            Err(why) => {
                self.source.problem(&span, format!("'{key}': {why}"));
                None
            }
        }
    }

    /// Reads the path of a file to append to. Its folder must exist.
    pub fn writable(&self, key: &'static str, meanwhile: &str) -> Option<PathBuf> {
        let text = self.string(key)?;
        let path = self.path(&text, FILE)?;
        if path.is_dir() {
            let shown = self.source.shown(&path);
            self.source
                .problem(&text.span, format!("'{shown}' is a folder; '{key}' must be a file"));
            return None;
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = parent.metadata() {
            self.unusable(&text.span, parent, "folder", &error);
            return None;
        }
        self.expect_writable(&text.span, &path, meanwhile);
        Some(path)
    }

    /// Notes a warning for a file that this user may not write, or not make.
    pub fn expect_writable(&self, at: &Range<usize>, path: &Path, meanwhile: &str) {
        let is_refused = match path.exists() {
            true => is_refused(path, Access::WRITE_OK),
            false => is_refused(path.parent().unwrap_or(path), Access::WRITE_OK | Access::EXEC_OK),
        };
        if is_refused {
            let shown = self.source.shown(path);
            self.source
                .warning(at, format!("this user may not write to '{shown}'; {meanwhile}"));
        }
    }

    /// Reads the path of a folder to write into. It may be missing, but the folder above it must exist.
    pub fn writable_folder(&self, key: &'static str) -> Option<PathBuf> {
        let text = self.string(key)?;
        let path = self.path(&text, FOLDER)?;
        if path.exists() {
            return self.existing_folder(key, &text);
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = parent.metadata() {
            self.unusable(&text.span, parent, "folder", &error);
            return None;
        }
        Some(path)
    }

    /// Reads a table inside this one: `[site.log]` or `log = { … }`.
    pub fn section(&self, key: &'static str) -> Option<Section<'s>> {
        let value = self.any(key)?;
        self.as_section(key, value, "a table")
    }

    /// Reads the table in `value`. If it is not a table, notes that `wanted` was expected.
    pub fn as_section(&self, key: &str, value: &'s Spanned<DeValue<'s>>, wanted: &str) -> Option<Section<'s>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.source, &self.below(key, false), table, value.span())),
            other => {
                let form = hints::form(&self.below(key, false), key, other);
                let form = form.map_or(String::new(), |form| format!("; {form}"));
                let text = format!("'{key}' must be {wanted}, not {}{form}", self.show(value));
                self.source.problem(&value.span(), text);
                None
            }
        }
    }

    /// Reads the tables of `[[key]]`, in the order of the file.
    pub fn sections(&self, key: &'static str) -> Vec<Section<'s>> {
        let title = self.below(key, true);
        let Some(value) = self.any(key) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            if let Some(below) = self.header_below(key) {
                let text = format!(
                    "{} comes before its {key}: write {title} above it",
                    &self.source.text[below.clone()]
                );
                self.source.problem(&below, text);
                return Vec::new();
            }
            // `[key]` instead of `[[key]]` is a common mistake.
            let text = match value.get_ref() {
                DeValue::Table(_) => format!(
                    "{} must be written {title}: there may be several",
                    self.below(key, false)
                ),
                _ => format!(
                    "'{key}' must be tables, each begun by {title}, not {}",
                    self.show(value)
                ),
            };
            self.source.problem(&value.span(), text);
            return Vec::new();
        };
        let sections = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.source, &title, table, item.span())),
            _ => {
                self.mistyped(key, item, "tables");
                None
            }
        });
        sections.collect()
    }

    /// The header of the table that is below `[[key]]` although no `[[key]]` is there.
    fn header_below(&self, key: &str) -> Option<Range<usize>> {
        let (key, value) = self.table.get_key_value(key)?;
        // The place of a table without a header of its own is its name in the header of the other one.
        let at = key.span();
        (value.span() == at).then(|| problem::header(self.source.text, at.start))?
    }

    /// All keys and values, in the order of the file, for tables whose keys the user chooses.
    pub fn items(&self) -> Vec<(At<String>, &'s Spanned<DeValue<'s>>)> {
        let item = |(key, value): (&Spanned<_>, &'s Spanned<DeValue<'s>>)| {
            let key: &Spanned<std::borrow::Cow<'_, str>> = key;
            self.source.saw(value);
            let name = At {
                value: key.get_ref().to_string(),
                span: key.span(),
            };
            (name, value)
        };
        let mut items: Vec<_> = self.table.iter().map(item).collect();
        items.sort_by_key(|(name, _)| name.span.start);
        items
    }

    /// All keys and values of a table whose values are strings.
    pub fn entries(&self) -> Vec<(At<String>, At<String>)> {
        let text = |(name, value): (At<String>, &Spanned<DeValue<'s>>)| {
            let text = self.as_string(&name.value, value, "a string")?;
            Some((name, text))
        };
        self.items().into_iter().filter_map(text).collect()
    }

    /// Notes the keys that were not asked for.
    pub fn finish(self) {
        let mut asked = self.asked.borrow().clone();
        asked.sort_unstable();
        asked.dedup();
        for (key, value) in self.table.iter() {
            let name = key.get_ref().as_ref();
            if asked.contains(&name) {
                continue;
            }
            // A header holds the key. A value stands behind it.
            let is_header = value.span().contains(&key.span().start);
            let hint = self.hint(name, value.get_ref(), is_header, &asked);
            self.source.problem(
                &key.span(),
                format!("unknown key '{}' in {}; {hint}", name.escape_debug(), self.title()),
            );
        }
    }

    /// The remedy for an unknown key.
    fn hint(&self, name: &str, value: &DeValue<'_>, is_header: bool, asked: &[&str]) -> String {
        if hints::is_home(&self.title)
            && let Some(hint) = hints::inside(self.table, name, value)
        {
            return hint;
        }
        let home = hints::home(&self.title, name);
        match (home, nearest(name, asked.iter().copied())) {
            (home, Some(guess)) if home.is_none() || !hints::is_home(&self.title) => format!("did you mean '{guess}'?"),
            (Some(home), _) if is_header => {
                let many = name == "route" || matches!(value, DeValue::Array(_));
                let home = home.split(" or ").next().unwrap_or_default();
                format!("did you mean {}?", below(home, name, many))
            }
            (Some(""), _) => "it belongs to the top of the file, before the first table".into(),
            (Some(home), _) => format!("it belongs to {home}"),
            (None, _) => format!("known keys are {}", asked.join(", ")),
        }
    }

    /// The title of a table of this section, or of several.
    fn below(&self, key: &str, many: bool) -> String {
        below(&self.title, key, many)
    }

    /// Reads the string in `value` and substitutes variables. If it is not a string, notes that `wanted` was expected.
    pub fn as_string(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) -> Option<At<String>> {
        let DeValue::String(text) = value.get_ref() else {
            self.mistyped(key, value, wanted);
            return None;
        };
        self.source.saw(value);
        match value::substitute(text, self.source.variable) {
            Ok((text, _)) => Some(At {
                value: text,
                span: value.span(),
            }),
            Err(error) => {
                self.source.problem(&value.span(), format!("'{key}': {error}"));
                None
            }
        }
    }

    /// Reads a string that stands for another type because it names a variable: `workers = "${WORKERS:-2}"`.
    fn as_variable(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) -> Option<String> {
        let text = value.get_ref().as_str().unwrap_or_default();
        match value::substitute(text, self.source.variable) {
            Ok((text, true)) => return Some(text),
            Ok((_, false)) => self.mistyped(key, value, wanted),
            Err(error) => self.source.problem(&value.span(), format!("'{key}': {error}")),
        }
        None
    }

    /// Parses `text` and notes the error of `parse`. The message does not show a secret.
    pub fn understand<T, E: Display>(
        &self,
        key: &str,
        text: At<String>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<At<T>> {
        match parse(&text.value) {
            Ok(value) => Some(At { value, span: text.span }),
            Err(error) => {
                // A variable may hold a URL with a password.
                let is_secret = self.source.is_secret(&text.span) || secrets::password(&text.value).is_some();
                let shown = match is_secret {
                    true => String::new(),
                    false => format!(" cannot be \"{}\"", text.value.escape_debug()),
                };
                self.source.problem(&text.span, format!("'{key}'{shown}: {error}"));
                None
            }
        }
    }

    /// Whether a path is the content of a key file by mistake, which is noted. Messages show paths.
    pub fn is_content(&self, path: &At<String>) -> bool {
        let is_content = secrets::is_content(&path.value);
        if is_content {
            let text = "the path of a file belongs here, and its content into that file";
            self.source.problem(&path.span, text);
        }
        is_content
    }

    /// The path that a text names. `remedy` is for an empty one.
    fn path(&self, text: &At<String>, remedy: &str) -> Option<PathBuf> {
        if self.is_content(text) {
            return None;
        }
        if text.value.is_empty() {
            self.source.problem(&text.span, format!("a path is empty; {remedy}"));
            return None;
        }
        let path = self.source.path(&text.value);
        path.map_err(|why| self.source.problem(&text.span, why)).ok()
    }

    /// Whether nothing is at `path`. Notes a warning then.
    fn is_missing(&self, at: &Range<usize>, path: &Path, what: &str, meanwhile: &str) -> bool {
        let found = path.metadata();
        let is_missing = found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_missing {
            let path = self.source.shown(path);
            self.source
                .warning(at, format!("there is no {what} '{path}'; {meanwhile}"));
        }
        is_missing
    }

    /// Notes that a path cannot be used.
    fn unusable(&self, at: &Range<usize>, path: &Path, what: &str, error: &std::io::Error) {
        let path = self.source.shown(path);
        let text = match error.kind() {
            std::io::ErrorKind::NotFound if what == "folder" => {
                format!("there is no folder '{path}'; make it first")
            }
            std::io::ErrorKind::NotFound => format!("there is no {what} '{path}'"),
            std::io::ErrorKind::PermissionDenied => format!("this user may not read the {what} '{path}'"),
            _ => format!("the {what} '{path}' cannot be used: {error}"),
        };
        self.source.problem(at, Reason::of(error, text));
    }

    /// Notes that `wanted` was expected in place of a value.
    pub fn mistyped(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) {
        let text = format!("'{key}' must be {wanted}, not {}", self.show(value));
        self.source.problem(&value.span(), text);
    }

    /// Describes a value for a message.
    pub fn show(&self, value: &Spanned<DeValue<'_>>) -> String {
        self.source.saw(value);
        show(value.get_ref(), self.source.is_secret(&value.span()))
    }
}

/// Whether the system refuses to this user what `access` says.
pub fn is_refused(path: &Path, access: Access) -> bool {
    matches!(
        rustix::fs::access(path, access),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS)
    )
}

/// The title of the table `key` in the table `title`, or of several.
fn below(title: &str, key: &str, many: bool) -> String {
    let inside = title.trim_matches(['[', ']']);
    let dot = if inside.is_empty() { "" } else { "." };
    if many {
        format!("[[{inside}{dot}{key}]]")
    } else {
        format!("[{inside}{dot}{key}]")
    }
}

/// Drops the places of a list's values.
pub fn values<T>(list: Option<Vec<At<T>>>) -> Vec<T> {
    list.unwrap_or_default().into_iter().map(|at| at.value).collect()
}

/// Describes a value for a message: a secret by its type only.
fn show(value: &DeValue<'_>, is_secret: bool) -> String {
    /// Characters of a string that are shown.
    const CHARS: usize = 40;
    match value {
        DeValue::String(_) if is_secret => "a string".into(),
        DeValue::Integer(_) | DeValue::Float(_) if is_secret => "a number".into(),
        DeValue::String(text) => {
            let cut: String = text.chars().take(CHARS).collect();
            let dots = if cut.len() < text.len() { "…" } else { "" };
            format!("\"{}{dots}\"", cut.escape_debug())
        }
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// The known word that is most similar to `word`, if one is similar enough.
pub fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    known
        .map(|known| (strsim::jaro_winkler(word, known), known))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
