//! A file being read: its text, the names of its paths, and the mistakes found so far.

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{self, Files, Problem};
use super::variables::Variables;
use super::{Reason, secrets, value};
use crate::process::root::inside;

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
    /// The variables that were filled in so far.
    variables: Variables<'s>,
    problems: RefCell<Vec<Problem>>,
    /// The files whose content was read, as the file names them.
    contents: RefCell<Vec<PathBuf>>,
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
            variables: Variables::new(text),
            problems: RefCell::default(),
            contents: RefCell::default(),
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
        let (at, why) = (at.clone(), self.without_values(at, why));
        self.problems.borrow_mut().push(Problem { is_warning, at, why });
    }

    /// A reason about a place, without the values of variables.
    pub fn without_values(&self, at: &Range<usize>, why: Reason) -> Reason {
        why.reworded(|text| self.variables.hide(text, at))
    }

    /// Fills in the variables of the text at this place. Messages show their names only. Returns whether there are any.
    ///
    /// # Errors
    /// One line: a variable that is not set, or a malformed `${`.
    pub(super) fn substitute(&self, text: &str, at: &Range<usize>) -> Result<(String, bool), String> {
        let lookup = |name: &str| {
            let value = (self.variable)(name)?;
            self.variables.note(name, &value, at);
            Some(value)
        };
        value::substitute(text, &lookup)
    }

    /// The number of mistakes so far. If it is the same before and after a section, the section has none.
    pub fn mistake_count(&self) -> usize {
        let problems = self.problems.borrow();
        problems.iter().filter(|problem| !problem.is_warning).count()
    }

    /// Notes that the content of a file was read.
    pub(super) fn has_read(&self, path: PathBuf) {
        self.contents.borrow_mut().push(path);
    }

    /// The files whose content was read so far.
    pub fn contents(&self) -> Vec<PathBuf> {
        self.contents.borrow().clone()
    }

    /// Notes that a value was read.
    pub(super) fn saw(&self, value: &Spanned<DeValue<'_>>) {
        self.seen.borrow_mut().insert(value.span().start);
    }

    /// Whether a part of the value at this place is a secret.
    pub(super) fn is_secret(&self, at: &Range<usize>) -> bool {
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

/// Drops the places of a list's values.
pub fn values<T>(list: Option<Vec<At<T>>>) -> Vec<T> {
    list.unwrap_or_default().into_iter().map(|at| at.value).collect()
}
