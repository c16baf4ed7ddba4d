//! Reads `deny.toml`, as far as the own checks need it: lists with one entry a line.

use crate::root;

/// The lists of `deny.toml`.
pub struct Rules {
    /// Licences that a crate may have.
    pub licences: Vec<String>,
    /// Crates that must not be there.
    pub banned: Vec<String>,
    /// Versions that are there beside newer ones of the same crate: `name@version`.
    pub older: Vec<String>,
}

impl Rules {
    pub fn read() -> Rules {
        Rules::parse(&std::fs::read_to_string(root().join("deny.toml")).unwrap_or_default())
    }

    fn parse(text: &str) -> Rules {
        Rules {
            licences: list(text, "licenses", "allow"),
            banned: list(text, "bans", "deny"),
            older: list(text, "bans", "skip"),
        }
    }
}

/// The entries of a list: the first text in quotes of each line.
fn list(text: &str, table: &str, key: &str) -> Vec<String> {
    let below = text.split_once(&format!("[{table}]\n")).map_or("", |(_, rest)| rest);
    let table = below.split("\n[").next().unwrap_or_default();
    let lines = table.lines().skip_while(|line| *line != format!("{key} = ["));
    let entries = lines.skip(1).take_while(|line| *line != "]");
    let entries = entries.filter(|line| !line.trim_start().starts_with('#'));
    entries
        .filter_map(|line| line.split('"').nth(1))
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_from_their_table() {
        let text = "[licenses]\n# \"no\"\nallow = [\n    \"MIT\",\n    # \"GPL-3.0\",\n    \"ISC\", # why\n]\n\n[bans]\nmultiple-versions = \"deny\"\n\
                    deny = [\n    { crate = \"a\", reason = \"b\" },\n]\nskip = [\n    { crate = \"syn@2.0.1\", reason = \"c\" },\n]\n";
        let rules = Rules::parse(text);
        assert_eq!(rules.licences, ["MIT", "ISC"]);
        assert_eq!(rules.banned, ["a"]);
        assert_eq!(rules.older, ["syn@2.0.1"]);
    }

    #[test]
    fn the_file_has_every_list() {
        let rules = Rules::read();
        assert!(rules.licences.contains(&"MIT".to_string()) && !rules.banned.is_empty());
    }
}
