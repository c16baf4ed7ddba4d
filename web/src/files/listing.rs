//! The listing of a folder without an index, as an HTML document or as JSON.
//!
//! Making a listing blocks the thread: every name costs a system call. Names that the server
//! refuses to send are left out: dotfiles unless they are served, special files, and links that
//! lead out of the root.

use std::fmt::Write;
use std::fs::File;
use std::io;

use percent_encoding::percent_encode;
use rustix::fs::{Dir, FileType};

use super::root::Root;
use super::target::{SEGMENT, Target};
use crate::files::calendar::Utc;

/// Most names shown of one folder. The page says so when there are more.
pub const MAX_ENTRIES: usize = 10_000;

/// One line of the listing.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    folder: bool,
    size: u64,
    modified: i64,
}

/// The format of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An HTML document for people.
    Html,
    /// JSON for programs: `{"path", "entries": [{"name", "href", "type", "size", "modified"}],
    /// "complete"}`.
    Json,
}

/// Writes the listing of `folder`, which `target` names.
///
/// # Blocks the thread
///
/// As long as the disk takes.
///
/// # Errors
///
/// Errors of reading the folder. A name that vanishes meanwhile is left out.
pub fn write(root: &Root, target: &Target, hidden: bool, format: Format, folder: File) -> io::Result<String> {
    let (mut entries, complete) = read(root, target, hidden, folder)?;
    entries.sort_by_cached_key(|entry| (!entry.folder, entry.name.to_ascii_lowercase(), entry.name.clone()));
    Ok(match format {
        Format::Html => html(target, &entries, complete),
        Format::Json => json(target, &entries, complete),
    })
}

/// Reads the names in a folder. Returns false with them if there are more.
fn read(root: &Root, target: &Target, hidden: bool, folder: File) -> io::Result<(Vec<Entry>, bool)> {
    let mut entries = Vec::new();
    let mut below = target.name.clone();
    if !below.is_empty() {
        below.push(b'/');
    }
    let prefix = below.len();
    for item in Dir::new(std::os::fd::OwnedFd::from(folder))? {
        let item = item?;
        let name = item.file_name().to_bytes();
        // `target.rs` refuses names with a backslash, so a link to one would not work.
        if matches!(name, b"." | b"..")
            || (!hidden && name.starts_with(b"."))
            || name.contains(&b'\\')
            || matches!(item.file_type(), FileType::Fifo | FileType::Socket)
        {
            continue;
        }
        if entries.len() == MAX_ENTRIES {
            return Ok((entries, false));
        }
        below.truncate(prefix);
        below.extend_from_slice(name);
        let Ok(metadata) = root.metadata(&below) else { continue };
        if metadata.is_dir() || metadata.is_file() {
            let modified = std::os::unix::fs::MetadataExt::mtime(&metadata);
            entries.push(Entry {
                name: name.to_vec(),
                folder: metadata.is_dir(),
                size: metadata.len(),
                modified,
            });
        }
    }
    Ok((entries, true))
}

/// Writes the listing in HTML.
fn html(target: &Target, entries: &[Entry], complete: bool) -> String {
    let title = format!(
        "/{}{}",
        String::from_utf8_lossy(&target.name),
        if target.name.is_empty() { "" } else { "/" }
    );
    let title = Escaped(&title);
    let mut page = String::with_capacity(STYLE.len() + 512 + entries.len() * 160);
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n<table>\n"
    );
    if !target.name.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    for entry in entries {
        let slash = if entry.folder { "/" } else { "" };
        let shown = String::from_utf8_lossy(&entry.name);
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{}{slash}\">{}{slash}</a><td>{}<td>{}",
            percent_encode(&entry.name, SEGMENT),
            Escaped(&shown),
            Size(entry),
            Minute(entry.modified),
        );
    }
    page.push_str("</table>\n");
    if entries.is_empty() {
        page.push_str("<p>This folder is empty.\n");
    }
    if !complete {
        let _ = writeln!(
            page,
            "<p>Only the first {MAX_ENTRIES} names that the file system gave are shown."
        );
    }
    page
}

/// Writes the listing in JSON. Names that are not UTF-8 have U+FFFD in `name`; `href` is exact.
fn json(target: &Target, entries: &[Entry], complete: bool) -> String {
    let entries = entries.iter().map(|entry| {
        let slash = if entry.folder { "/" } else { "" };
        let modified = Utc::from_unix(entry.modified);
        let mut object = serde_json::json!({
            "name": String::from_utf8_lossy(&entry.name),
            "href": format!("{}{slash}", percent_encode(&entry.name, SEGMENT)),
            "type": if entry.folder { "folder" } else { "file" },
            "modified": format!(
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
                modified.year, modified.month, modified.day, modified.hour, modified.minute, modified.second
            ),
        });
        if !entry.folder {
            object["size"] = entry.size.into();
        }
        object
    });
    let entries: Vec<_> = entries.collect();
    let listing = serde_json::json!({ "path": target.folder_url(), "entries": entries, "complete": complete });
    format!("{listing}\n")
}

/// Text escaped for an element or a quoted attribute.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // A file name may contain a line break or a terminal escape sequence. The page
                // shows a replacement.
                char if char.is_control() => f.write_char('\u{fffd}')?,
                char => f.write_char(char)?,
            }
        }
        Ok(())
    }
}

/// A size for people to read. Empty for a folder.
struct Size<'a>(&'a Entry);

impl std::fmt::Display for Size<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.size;
        if self.0.folder {
            return Ok(());
        }
        if bytes < 1024 {
            return write!(f, "{bytes} B");
        }
        // u64::MAX is 16 EiB, so the units suffice.
        let (mut tenths, mut units) = (
            u128::from(bytes) * 10 / 1024,
            ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter(),
        );
        let mut unit = units.next().unwrap_or_default();
        while tenths >= 10_240 {
            (tenths, unit) = (tenths / 1024, units.next().unwrap_or_default());
        }
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// Time as `2026-11-20 16:30`, in UTC.
struct Minute(i64);

impl std::fmt::Display for Minute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Utc {
            year,
            month,
            day,
            hour,
            minute,
            ..
        } = Utc::from_unix(self.0);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
    }
}

const STYLE: &str = ":root{color-scheme:light dark}\
body{font:1rem/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.2rem;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}\
td{padding:.15rem .5rem .15rem 0;overflow-wrap:anywhere}\
td+td{text-align:right;white-space:nowrap;opacity:.7;font-variant-numeric:tabular-nums}\
tr:hover{background:#8882}\
a{text-decoration:none}a:hover{text-decoration:underline}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::root::Found;
    use std::os::unix::ffi::OsStrExt;
    use testkit::Folder;

    fn listed(folder: &Folder, path: &str) -> String {
        let root = Root::open(folder.path()).unwrap();
        let target = Target::parse(path, false).unwrap();
        let Found::Folder(folder) = root.find(&target.name).unwrap() else {
            panic!("{path} is no folder")
        };
        write(&root, &target, false, Format::Html, folder).unwrap()
    }

    /// Returns the `href` values in order.
    fn links(page: &str) -> Vec<&str> {
        page.split("href=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect()
    }

    #[test]
    fn sorted_escaped_and_without_what_is_not_served() {
        let folder = Folder::new();
        for name in [
            "b.txt",
            "A.txt",
            "<i>&\"'.txt",
            "javascript:alert(1)",
            "a b?#%.txt",
            ".secret",
            "back\\slash",
            "sub/x",
            "Zoo/x",
        ] {
            folder.write(name, "12");
        }
        std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"raw\xff\n")), "").unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            folder.path().join("fifo"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        std::os::unix::fs::symlink("b.txt", folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("escape")).unwrap();
        let page = listed(&folder, "/");
        assert_eq!(
            links(&page),
            [
                "sub/",
                "Zoo/",
                "%3Ci%3E%26%22%27.txt",
                "a%20b%3F%23%25.txt",
                "A.txt",
                "b.txt",
                "javascript%3Aalert%281%29",
                "link",
                "raw%FF%0A",
            ]
        );
        assert!(
            page.contains("&lt;i&gt;&amp;&quot;&#39;.txt</a><td>2 B<td>20"),
            "{page}"
        );
        assert!(page.contains("raw\u{fffd}\u{fffd}"), "{page}");
        assert!(
            !page.contains("<i>") && !page.contains("secret") && !page.contains("fifo") && !page.contains("escape"),
            "{page}"
        );
    }

    #[test]
    fn folders_below_have_a_way_up() {
        let folder = Folder::new();
        folder.write("s&b/x/y", "");
        let page = listed(&folder, "/s&b/");
        assert_eq!(links(&page), ["../", "x/"]);
        assert!(page.contains("<title>/s&amp;b/</title>"), "{page}");
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        assert!(listed(&folder, "/empty/").contains("This folder is empty"));
    }

    #[test]
    fn sizes_and_dates() {
        let size = |size| {
            Size(&Entry {
                name: vec![],
                folder: false,
                size,
                modified: 0,
            })
            .to_string()
        };
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1023.9 KiB"),
            (1024 * 1024, "1.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
        assert_eq!(Minute(784_111_777).to_string(), "1994-11-06 08:49");
    }
}
