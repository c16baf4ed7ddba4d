//! The rule about rooms: a crate's `src` folder has few enough entries for a reader to keep in mind.

use super::{Verdict, root};
use std::path::Path;

/// A folder, and how many entries it may have.
const ROOMS: &[(&str, usize)] = &[("runtime/src", 20), ("web/src", 20), ("server/src", 12)];

pub fn check() -> Verdict {
    let mut verdict = Verdict::default();
    for (folder, limit) in ROOMS {
        let entries = entries(&root().join(folder));
        verdict.looked_at += entries;
        verdict.notes.push(format!("{folder}: {entries} of {limit}"));
        if entries == 0 || entries > *limit {
            let finding = format!("{folder} has {entries} entries where at most {limit} are allowed");
            verdict.wrong.push(finding);
        }
    }
    verdict
}

/// How many entries `ls` shows.
fn entries(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_entries_do_not_count() {
        let folder = std::env::temp_dir().join(format!("osier-xtask-rooms-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("b.rs"), "").unwrap();
        std::fs::write(folder.join(".hidden"), "").unwrap();
        assert_eq!(entries(&folder), 2);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
