//! `cargo xtask tidy`: what no compiler checks.
//!
//! Called by people and by `ci.rs`; the rule about paths runs as a test too, so that plain `cargo test` notices a
//! document that names a file which moved. A rule takes the files it is about and returns how many things it looked at
//! and what is wrong, one line each; a rule that looked at nothing has failed.

use crate::root;
use crate::step::{self, Outcome};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// How many things a rule looked at, and its findings.
type Verdict = (usize, Vec<String>);

struct Rule {
    name: &'static str,
    /// What it looks at, in the plural.
    about: &'static str,
    check: fn() -> Verdict,
}

const RULES: &[Rule] = &[
    Rule {
        name: "paths",
        about: "paths named in documents",
        check: paths_exist,
    },
    Rule {
        name: "headers",
        about: "source files",
        check: headers,
    },
    Rule {
        name: "owners",
        about: "texts searched for signs without an owner",
        check: owners,
    },
    Rule {
        name: "sorted",
        about: "dependencies",
        check: sorted_dependencies,
    },
    Rule {
        name: "size",
        about: "source files",
        check: sizes,
    },
    Rule {
        name: "unsafe",
        about: "source files against the islands",
        check: unsafe_islands,
    },
    Rule {
        name: "seeds",
        about: "rows of the described systems",
        check: crate::seeds::check,
    },
    Rule {
        name: "readme",
        about: "command of the README that .ci/run runs",
        check: readme_command,
    },
];

/// Lines beyond which a file must say why it is long, in a header line that starts with `//! Long because`.
const LONG: usize = 900;

pub fn main() -> ExitCode {
    step::report(&[run()])
}

/// All rules as one step.
pub fn run() -> Outcome {
    let start = Instant::now();
    println!("\ntidy");
    let (mut checks, mut failed, mut complaints) = (0, 0, vec![]);
    for Rule { name, about, check } in RULES {
        let (looked_at, findings) = check();
        println!("  {name}: {looked_at} {about}, {} wrong", findings.len());
        findings.iter().for_each(|finding| println!("    {finding}"));
        if looked_at == 0 {
            println!("    looked at nothing, which is a failure");
        }
        checks += looked_at;
        failed += usize::from(looked_at == 0 || !findings.is_empty());
        complaints.extend(findings);
    }
    Outcome {
        name: "tidy".into(),
        passed: RULES.len() - failed,
        failed,
        skipped: vec![],
        checked: format!("{checks} things by {} rules", RULES.len()),
        complaints,
        took: start.elapsed(),
    }
}

/// Every Rust file of the repository, relative to its root, in order.
pub fn sources() -> Vec<PathBuf> {
    files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect()
}

/// Every file of the repository that is neither built nor hidden.
fn files() -> Vec<PathBuf> {
    let mut found = vec![];
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let built = ["target", "corpus", "artifacts", "coverage"]
                .iter()
                .any(|built| name == *built);
            if built || name.to_string_lossy().starts_with('.') {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(dir.join(name)),
                Ok(kind) if kind.is_file() => found.push(dir.join(name)),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(root().join(path)).unwrap_or_default()).into_owned()
}

/// Documents name only paths that exist.
fn paths_exist() -> Verdict {
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
    (looked_at, findings)
}

/// What a text says is a path here: words that begin with a directory of the root (`tops`), words in backquotes that
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

/// The maximal runs of characters that satisfy `is_part`, with the byte where each starts.
fn words(text: &str, is_part: impl Fn(char) -> bool) -> Vec<(usize, &str)> {
    let pieces = text.split(|c| !is_part(c)).filter(|piece| !piece.is_empty());
    pieces
        .map(|piece| (piece.as_ptr() as usize - text.as_ptr() as usize, piece))
        .collect()
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expanded(word: &str) -> Vec<String> {
    let parts = word
        .split_once('{')
        .and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    match parts {
        None => vec![word.to_string()],
        Some((head, (choices, tail))) => choices
            .split(',')
            .flat_map(|choice| expanded(&format!("{head}{choice}{tail}")))
            .collect(),
    }
}

/// Every Rust file says what it is before it says anything else.
fn headers() -> Verdict {
    let sources = sources();
    let bare = sources.iter().filter(|path| {
        let text = read(path);
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
        !first.is_some_and(|line| line.starts_with("//! ") && line.len() > "//! ".len())
    });
    let findings = bare
        .map(|path| format!("{}: does not begin with a //! header", path.display()))
        .collect();
    (sources.len(), findings)
}

/// A sign that something is left to do names who does it: `TODO(name)`.
fn owners() -> Verdict {
    // Spelled in two halves, so that this file passes its own rule.
    let signs = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("HA", "CK"),
    ];
    let texts: Vec<PathBuf> = files().into_iter().filter(|path| is_text(path)).collect();
    let mut findings = vec![];
    for path in &texts {
        let text = read(path);
        for (start, word) in words(&text, |c| c.is_alphanumeric() || c == '_') {
            let owned = text[start + word.len()..].starts_with('(');
            if signs.contains(&word) && !owned {
                let line = text[..start].matches('\n').count() + 1;
                findings.push(format!(
                    "{}:{line}: {word} without an owner, as in {word}(name)",
                    path.display()
                ));
            }
        }
    }
    (texts.len(), findings)
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default();
    ["rs", "toml", "md", "sh", "lua", "html", "css", "conf"].contains(&ending)
}

/// Dependencies stand in alphabetical order within each block of a table; an empty line or a comment begins a block.
fn sorted_dependencies() -> Verdict {
    let (mut looked_at, mut findings) = (0, vec![]);
    for manifest in files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let (mut inside, mut last) = (false, String::new());
        for line in read(manifest).lines() {
            if line.starts_with('[') {
                inside = line.ends_with("dependencies]");
            }
            let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if !inside || key.is_empty() || line.starts_with(['[', '#']) {
                last.clear();
                continue;
            }
            // A line that continues an entry begins with a space, a quote or a bracket.
            if !key.starts_with(|c: char| c.is_ascii_alphanumeric()) {
                continue;
            }
            looked_at += 1;
            if key < last.as_str() {
                findings.push(format!("{}: {key} stands after {last}", manifest.display()));
            }
            last = key.to_string();
        }
    }
    (looked_at, findings)
}

/// A file that is long says why.
fn sizes() -> Verdict {
    let sources = sources();
    let long = sources.iter().filter_map(|path| {
        let text = read(path);
        let lines = text.lines().count();
        let excused = text.lines().any(|line| line.starts_with("//! Long because"));
        (lines > LONG && !excused).then(|| {
            format!(
                "{}: {lines} lines and no \"//! Long because\" in its header",
                path.display()
            )
        })
    });
    let findings = long.collect();
    (sources.len(), findings)
}

/// `unsafe` stands only in the files that ARCHITECTURE.md lists, and each of those has some.
///
/// The list begins with `Unsafe islands:` and ends with the paragraph. Outside of the rule: `bench/` and `fuzz/`, whose
/// programs nobody runs in earnest, and tests, which call the operating system as strangers would.
fn unsafe_islands() -> Verdict {
    let architecture = read(Path::new("ARCHITECTURE.md"));
    let list = architecture.split_once("Unsafe islands:").map_or("", |(_, rest)| rest);
    let paragraph = list.split("\n\n").next().unwrap_or_default();
    let words = words(paragraph, |c| c.is_alphanumeric() || "/._-{,}".contains(c));
    let islands: Vec<String> = words
        .iter()
        .flat_map(|(_, word)| expanded(word.trim_matches(|c| c == ',' || c == '.')))
        .filter(|word| word.ends_with(".rs"))
        .collect();

    let ruled: Vec<PathBuf> = sources().into_iter().filter(|path| is_ruled(path)).collect();
    let mut findings = vec![];
    for path in &ruled {
        let listed = islands.iter().any(|island| Path::new(island) == path);
        match (has_unsafe(&read(path)), listed) {
            (true, false) => findings.push(format!("{}: unsafe, but no island of ARCHITECTURE.md", path.display())),
            (false, true) => findings.push(format!("{}: listed as an island, but has no unsafe", path.display())),
            _ => {}
        }
    }
    (ruled.len(), findings)
}

fn is_ruled(path: &Path) -> bool {
    let outside = path.starts_with("bench") || path.starts_with("fuzz");
    !outside
        && !path
            .components()
            .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "benches")
}

/// Whether the code, its comments and string literals aside, has the keyword.
fn has_unsafe(text: &str) -> bool {
    text.lines().any(|line| {
        let code = line.split("//").next().unwrap_or_default();
        let code = code.replace("\\\"", "").replace("'\"'", "");
        // Between the first and the second quote is a literal, and so on.
        let outside = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        words(&outside, |c| c.is_alphanumeric() || c == '_')
            .iter()
            .any(|(_, word)| *word == "unsafe")
    })
}

/// The test command that the README gives is one that `.ci/run` runs.
fn readme_command() -> Verdict {
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
    (1, findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tops() -> Vec<String> {
        ["coro", "queue"].map(String::from).to_vec()
    }

    #[test]
    fn documents_name_paths_that_exist() {
        let (looked_at, findings) = paths_exist();
        println!("{looked_at} paths");
        assert!(looked_at > 0, "no document names any path: the rule has lost its eyes");
        assert!(findings.is_empty(), "{}", findings.join("\n"));
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
    fn sees_unsafe_in_code_only() {
        assert!(has_unsafe("    unsafe { f() }"));
        assert!(has_unsafe("pub unsafe fn f() {}"));
        assert!(!has_unsafe("#![forbid(unsafe_code)] // unsafe"));
        assert!(!has_unsafe("let s = \"unsafe\";"));
    }
}
