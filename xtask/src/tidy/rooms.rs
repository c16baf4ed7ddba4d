//! The rule about rooms: a crate's `src` folder has few enough entries for a reader to keep in mind.

use super::{Verdict, root};
use std::path::Path;

/// A folder, how many entries it may have, and how many it shall have in the end. The first number only goes down.
const ROOMS: &[(&str, usize, usize)] = &[("runtime/src", 49, 20), ("web/src", 47, 20), ("server/src", 28, 12)];

pub fn check() -> Verdict {
    let mut verdict = Verdict::default();
    for (folder, limit, target) in ROOMS {
        let entries = entries(&root().join(folder));
        verdict.looked_at += entries;
        verdict
            .notes
            .push(format!("{folder}: {entries} of {limit}, target {target}"));
        if entries == 0 || entries > (*limit).max(*target) {
            verdict.wrong.push(format!(
                "{folder} has {entries} entries where at most {limit} are allowed"
            ));
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
