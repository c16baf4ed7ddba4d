//! The rules about single files: a header, an owner for each open end, sorted dependencies, and a bounded length.

use super::{Verdict, files, read, sources, words};
use std::path::{Path, PathBuf};

/// Lines beyond which a file must say why it is long, in a header line that starts with `//! Long because`.
const LONG: usize = 900;

/// Every Rust file says what it is before it says anything else.
pub fn headers() -> Verdict {
    let sources = sources();
    let bare = sources.iter().filter(|path| {
        let text = read(path);
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
        !first.is_some_and(|line| line.starts_with("//! ") && line.len() > "//! ".len())
    });
    let findings = bare
        .map(|path| format!("{}: does not begin with a //! header", path.display()))
        .collect();
    Verdict::new(sources.len(), findings)
}

/// A sign that something is left to do names who does it: `TODO(name)`.
pub fn owners() -> Verdict {
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
    Verdict::new(texts.len(), findings)
}

fn is_text(path: &Path) -> bool {
    let ending = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default();
    ["rs", "toml", "md", "sh", "lua", "html", "css", "conf"].contains(&ending)
}

/// Dependencies stand in alphabetical order within each block of a table; an empty line or a comment begins a block.
pub fn sorted_dependencies() -> Verdict {
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
    Verdict::new(looked_at, findings)
}

/// A file that is long says why.
pub fn sizes() -> Verdict {
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
    Verdict::new(sources.len(), findings)
}
