//! The rule about `unsafe`: the keyword stands only in the files that ARCHITECTURE.md lists.

use super::{Verdict, expanded, read, sources, words};
use std::path::{Path, PathBuf};

/// `unsafe` stands only in the files that ARCHITECTURE.md lists, and each of those has some.
///
/// The list begins with `Unsafe islands:` and ends with the paragraph. Outside of the rule: `bench/` and `fuzz/`, whose
/// programs nobody runs in earnest, and tests, which call the operating system as strangers would.
pub fn check() -> Verdict {
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
    Verdict::new(ruled.len(), findings)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_unsafe_in_code_only() {
        assert!(has_unsafe("    unsafe { f() }"));
        assert!(has_unsafe("pub unsafe fn f() {}"));
        assert!(!has_unsafe("#![forbid(unsafe_code)] // unsafe"));
        assert!(!has_unsafe("let s = \"unsafe\";"));
    }
}
