//! Values of keys that name files and folders.
//!
//! A missing file may appear before it is needed, so most missing files are warnings.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use super::{At, Reason, Section, secrets};

/// The remedies for an empty path.
const FOLDER: &str = "write \".\" for the folder of this file";
const FILE: &str = "name the file";

impl Section<'_> {
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

    /// Reads the path of a readable file. A file that does not exist yet, or that this user may not read, is a warning, which
    /// says `meanwhile`.
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
        let (found, shown) = (path.metadata(), self.source.shown(&path));
        if found.as_ref().is_ok_and(|found| !found.is_file()) {
            self.source.problem(&text.span, format!("'{shown}' is not a file"));
            return None;
        }
        if is_withheld(&path) {
            let warning = format!("this user may not read the file '{shown}', so it counts as missing; {meanwhile}");
            self.source.warning(&text.span, warning);
            return Some(path);
        }
        if let Err(error) = found.and_then(|_| std::fs::File::open(&path)) {
            self.unusable(&text.span, &path, "file", &error);
            return None;
        }
        Some(path)
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
        self.source.has_read(self.source.named(&value));
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
        // A link that leads nowhere is there, too: no folder can be made in its place.
        if path.symlink_metadata().is_ok() {
            return self.existing_folder(key, &text);
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = parent.metadata() {
            self.unusable(&text.span, parent, "folder", &error);
            return None;
        }
        Some(path)
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
        let is_missing = is_missing(path);
        if is_missing {
            let is_home = path.components().any(|part| part.as_os_str() == "~");
            let path = self.source.shown(path);
            let remedy = if is_home {
                "; write the path of the home folder for '~'"
            } else {
                ""
            };
            self.source
                .warning(at, format!("there is no {what} '{path}'; {meanwhile}{remedy}"));
        }
        is_missing
    }

    /// Notes that a path cannot be used.
    fn unusable(&self, at: &Range<usize>, path: &Path, what: &str, error: &std::io::Error) {
        let path = self.source.shown(path);
        let text = match error.kind() {
            ErrorKind::NotFound if what == "folder" => {
                format!("there is no folder '{path}'; make it first")
            }
            ErrorKind::NotFound => format!("there is no {what} '{path}'"),
            ErrorKind::PermissionDenied => format!("this user may not read the {what} '{path}'"),
            _ => format!("the {what} '{path}' cannot be used: {error}"),
        };
        self.source.problem(at, Reason::of(error, text));
    }
}

/// Whether nothing is at `path`.
pub fn is_missing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether nothing is at `path`, or permissions keep this user from reading it. The server waits for such a file. Landlock does not
/// count: no change of the file helps there.
pub fn is_withheld(path: &Path) -> bool {
    matches!(
        rustix::fs::access(path, Access::READ_OK),
        Err(Errno::NOENT | Errno::ACCESS | Errno::PERM)
    )
}

/// Whether the system refuses to this user what `access` says.
pub fn is_refused(path: &Path, access: Access) -> bool {
    matches!(
        rustix::fs::access(path, access),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS)
    )
}
