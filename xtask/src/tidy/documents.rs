//! The rules about documents: the paths they name exist, their links lead somewhere, and the README's test command is the
//! one of `.ci/run`.
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
        let Some((first, rest)) = word.split_once('/') else {
            continue;
        };
        // `http/1.1` is a protocol's name.
        if first == "http" && rest.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
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

/// The links of documents lead to files that exist, and to headings that these have.
pub fn links_lead_somewhere() -> Verdict {
    let (mut looked_at, mut findings) = (0, vec![]);
    for document in files()
        .iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "md"))
    {
        let text = read(document);
        for link in links(&text) {
            looked_at += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.with_file_name(path),
            };
            let is_wrong = match heading {
                "" => !root().join(&target).exists(),
                heading => !anchors(&read(&target)).iter().any(|anchor| anchor == heading),
            };
            if is_wrong {
                findings.push(format!("{}: {link} leads nowhere", document.display()));
            }
        }
    }
    Verdict::new(looked_at, findings)
}

/// The targets of a text's links that are no addresses.
fn links(text: &str) -> Vec<&str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '\n']).next());
    targets
        .filter(|target| {
            !target.is_empty() && !target.contains(':') && !target.contains(' ') && !target.starts_with('/')
        })
        .collect()
}

/// The names that links use for the headings of a text.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        !is_code && line.starts_with('#')
    });
    let name = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
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

    #[test]
    fn links_are_found_and_addresses_are_not() {
        let text = "[a](b.md), [c](../d/e.md#f-g) [h](#i) [j](https://k/l) `x[0](y z)` [m](/n)";
        assert_eq!(links(text), ["b.md", "../d/e.md#f-g", "#i"]);
    }

    #[test]
    fn a_heading_is_named_by_its_words() {
        let text = "# One, `two`\n```sh\n# no heading\n```\n## Three_4: five\n";
        assert_eq!(anchors(text), ["one-two", "three_4-five"]);
    }
}
