//! The rules about documents: the paths they name exist, and the README's test command is the one of `.ci/run`.
//!
//! The rule about paths also runs as a test, so that plain `cargo test` notices a document that names a moved file.

use super::{Verdict, expanded, files, read, words};
use crate::root;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Documents name only paths that exist.
pub fn paths_exist() -> Verdict {
    let tops: Vec<String> = std::fs::read_dir(root())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "target" && name != ".git")
        .collect();
    let (mut looked_at, mut findings) = (0, vec![]);
    for document in files()
        .iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "md"))
    {
        let dir = document.parent().unwrap_or(Path::new(""));
        for path in named_paths(&read(document), &tops) {
            looked_at += 1;
            // A link is relative to its document, a path in the text to the root.
            if !root().join(&path).exists() && !root().join(dir).join(&path).exists() {
                findings.push(format!("{}: {path} does not exist", document.display()));
            }
        }
    }
    Verdict::new(looked_at, findings)
}

/// Finds the paths that a text names: words that begin with a directory of the root (`tops`), words in backquotes that
/// have a slash and the ending of a source file, and the targets of links. `a/{b,c}.rs` names two.
fn named_paths(text: &str, tops: &[String]) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || "/._-{,}".contains(c);
    let mut found = vec![];
    for (start, word) in words(text, is_part) {
        let word = word.trim_matches(|c| c == ',' || c == '-').trim_end_matches('.');
        let before = text[..start].chars().next_back().unwrap_or(' ');
        let after = text[start + word.len()..].chars().next().unwrap_or(' ');
        let Some((first, _)) = word.split_once('/') else {
            continue;
        };
        let begins_here = before.is_whitespace() || "`(\"".contains(before);
        let below_top = begins_here && tops.iter().any(|top| top == first);
        let source = [".rs", ".md", ".toml"].iter().any(|ext| word.ends_with(ext));
        let quoted = before == '`' && after == '`' && source && !word.starts_with('/');
        let linked = before == '(' && after == ')' && text[..start].ends_with("](") && !word.starts_with('/');
        if below_top || quoted || linked {
            found.extend(expanded(word));
        }
    }
    found
}

/// The test command that the README gives is one that `.ci/run` runs.
pub fn readme_command() -> Verdict {
    let run = Path::new(".ci/run");
    let mut findings = vec![];
    if !read(Path::new("README.md")).contains("cargo xtask test") {
        findings.push("README.md: does not name cargo xtask test".into());
    }
    // `ci` contains `test`, by the code of ci.rs.
    if !read(run)
        .lines()
        .any(|line| line.ends_with("cargo xtask ci") || line.ends_with("cargo xtask test"))
    {
        findings.push(".ci/run: does not run cargo xtask test, nor ci, which contains it".into());
    }
    let mode = std::fs::metadata(root().join(run)).map_or(0, |file| file.permissions().mode());
    if mode & 0o111 == 0 {
        findings.push(".ci/run: is not executable".into());
    }
    Verdict::new(1, findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tops() -> Vec<String> {
        ["coro", "queue"].map(String::from).to_vec()
    }

    #[test]
    fn documents_name_paths_that_exist() {
        let Verdict { looked_at, wrong, .. } = paths_exist();
        println!("{looked_at} paths");
        assert!(looked_at > 0, "no document names any path: the rule has lost its eyes");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn finds_paths_in_prose_in_backquotes_and_in_links() {
        let text =
            "See coro/src/stack/mod.rs, `elsewhere/moved.rs` and [this](docs/x.md); `coro/`. Not and/or, not a.b/c.";
        assert_eq!(
            named_paths(text, &tops()),
            ["coro/src/stack/mod.rs", "elsewhere/moved.rs", "docs/x.md", "coro/"]
        );
    }

    #[test]
    fn braces_name_several_paths() {
        assert_eq!(named_paths("queue/{a,b}.rs", &tops()), ["queue/a.rs", "queue/b.rs"]);
    }

    #[test]
    fn an_address_is_no_path() {
        assert!(named_paths("https://example.org/coro/x.rs or [a](https://example.org/b)", &tops()).is_empty());
    }
}
