//! The rule about names in module headers: what stands in backquotes exists.
//!
//! A file must exist in the crate or in the repository. Every part of a name such as `Type::function` must be an
//! identifier of the workspace's code, or a word of a string literal or of a manifest. Constants of the kernel, which are
//! all capitals, affixes such as `_async` and spans with any other character are not read.

use super::openings::paragraphs;
use super::ratchet::{self, Limits};
use super::tokens::{is_word, tokens};
use super::{Verdict, crate_of, files, read, sources, words};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// How many names without a thing each crate may have.
const LIMITS: Limits = &[];

pub fn check() -> Verdict {
    let files = files();
    let known = known_words(&files);
    let mut looked_at = 0;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources() {
        let text = read(&path);
        for paragraph in paragraphs(&text).iter().filter(|paragraph| paragraph.is_header) {
            for span in spans(&paragraph.text) {
                let is_there = match kind(span) {
                    Kind::Path(name) => files.iter().any(|file| is_at(file, &path, name)),
                    Kind::Name(parts) => parts.iter().all(|part| known.contains(*part)),
                    Kind::Other => continue,
                };
                looked_at += 1;
                if !is_there {
                    let finding = format!("{}:{}: there is no `{span}`", path.display(), paragraph.line);
                    found.entry(crate_of(&path)).or_default().push(finding);
                }
            }
        }
    }
    ratchet::compared(looked_at, LIMITS, found)
}

/// The contents of the backquotes of a text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The kind of thing that a span names.
#[derive(Debug, PartialEq)]
enum Kind<'a> {
    Path(&'a str),
    Name(Vec<&'a str>),
    Other,
}

fn kind(span: &str) -> Kind<'_> {
    let is_part_of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_file = [".rs", ".md", ".toml"]
        .iter()
        .any(|ending| span.len() > ending.len() && span.ends_with(ending));
    let is_folder = span.len() > 1 && span.ends_with('/') && !span.starts_with('/');
    let is_built = span.starts_with("target/");
    if (is_file || is_folder) && !is_built && span.chars().all(is_part_of_path) {
        return Kind::Path(span.trim_start_matches("./").trim_end_matches('/'));
    }
    let name = span.strip_suffix("()").or(span.strip_suffix('!')).unwrap_or(span);
    let parts: Vec<&str> = name.split("::").flat_map(|part| part.split('.')).collect();
    let is_constant = !name.contains(|c: char| c.is_lowercase());
    let is_affix = name.starts_with('_') || name.ends_with('_');
    let foreign = is_constant || is_affix || ["std", "core", "alloc"].contains(&parts[0]);
    let is_identifier =
        |part: &&str| is_word(part) && words(part, |c| c == '_' || c.is_ascii_alphanumeric()).len() == 1;
    if !foreign && parts.iter().all(|part| is_identifier(part) && part.is_ascii()) && !name.contains(['-', ' ']) {
        return Kind::Name(parts);
    }
    Kind::Other
}

/// Whether `file`, or a folder that it lies in, is what the header of `source` calls `name`: any file whose path ends so.
fn is_at(file: &Path, source: &Path, name: &str) -> bool {
    if let Some(beside) = name.strip_prefix("../") {
        let folder = source.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        return file.starts_with(folder.join(beside));
    }
    file.ancestors().any(|path| path.ends_with(name))
}

/// Every identifier of the code, and every word of its literals and of the manifests.
fn known_words(files: &[PathBuf]) -> HashSet<String> {
    let mut known = HashSet::new();
    let is_part = |c: char| c == '_' || c.is_alphanumeric();
    for file in files {
        let text = match file.extension().and_then(|ending| ending.to_str()) {
            Some("rs") => read(file),
            Some("toml") => {
                let text = read(file).replace('-', "_");
                known.extend(words(&text, is_part).iter().map(|(_, word)| word.to_string()));
                continue;
            }
            _ => continue,
        };
        for token in tokens(&text) {
            known.extend(words(token, is_part).iter().map(|(_, word)| word.to_string()));
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_names_and_others_are_told_apart() {
        assert_eq!(kind("wait.rs"), Kind::Path("wait.rs"));
        assert_eq!(kind("worker/"), Kind::Path("worker"));
        assert_eq!(kind("Worker::run"), Kind::Name(vec!["Worker", "run"]));
        assert_eq!(kind("epoll_wait()"), Kind::Name(vec!["epoll_wait"]));
        for other in [
            "a + b",
            "std::thread::park",
            "Content-Length",
            "--all",
            "write(2)",
            "/etc/",
            "404",
        ] {
            assert_eq!(kind(other), Kind::Other, "{other}");
        }
    }

    #[test]
    fn a_file_is_found_by_the_end_of_its_path() {
        let (file, source) = (Path::new("web/src/proxy/relay.rs"), Path::new("web/src/proxy/mod.rs"));
        for name in ["relay.rs", "proxy/relay.rs", "web/src/proxy", "../proxy/relay.rs"] {
            assert!(is_at(file, source, name), "{name}");
        }
        for name in ["elay.rs", "conn/relay.rs", "../relay.rs"] {
            assert!(!is_at(file, source, name), "{name}");
        }
    }

    #[test]
    fn words_of_code_and_of_literals_are_known_and_those_of_comments_are_not() {
        let known = known_words(&[PathBuf::from("xtask/src/tidy/names.rs")]);
        assert!(known.contains("known_words") && known.contains("epoll_wait"));
        // This comment alone has the word antidisestablishment.
        assert!(!known.contains(concat!("antidis", "establishment")));
    }
}
