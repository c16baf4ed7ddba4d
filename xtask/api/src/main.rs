//! Lists the public API of crates: reads a JSON file of rustdoc, and writes the list beside it as `.txt`.
//!
//! `cargo xtask api` runs it. It is a program of its own because xtask uses std alone.
//!
//! The list has a line for each public item, in the order of the paths. It leaves out what says nothing new: blanket
//! implementations, the methods of derived implementations, and the auto traits other than `Send` and `Sync`.
#![forbid(unsafe_code)]

use public_api::Builder;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The version of rustdoc's JSON that the crate `public-api` reads.
const FORMAT: u32 = 57;

/// Traits whose implementations are not listed: auto traits and what the compiler adds to a derived trait.
const UNLISTED: &[&str] = &[
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    for file in &files {
        if let Err(why) = write_list(file) {
            println!("{}: {why}", file.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn write_list(file: &Path) -> Result<(), String> {
    let json = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    match format(&json) {
        Some(FORMAT) => {}
        // The runner takes this line for a skip.
        Some(other) => {
            println!("skipped: rustdoc writes its JSON in version {other}, and public-api reads version {FORMAT}");
            return Ok(());
        }
        None => return Err("no format_version".into()),
    }
    let list = list(file).map_err(|error| error.to_string())?;
    std::fs::write(file.with_extension("txt"), list).map_err(|error| error.to_string())
}

/// The version of the format, which stands at the end of the file.
fn format(json: &str) -> Option<u32> {
    let (_, rest) = json.rsplit_once(r#""format_version":"#)?;
    rest.trim_start()
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

fn list(file: &Path) -> Result<String, public_api::Error> {
    let builder = || Builder::from_rustdoc_json(file).omit_blanket_impls(true);
    let written = builder()
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    let written: HashSet<String> = written.items().map(|item| item.to_string()).collect();
    let all = builder().build()?;
    let is_listed = |item: &String| {
        let derived = item.starts_with("impl") && !UNLISTED.iter().any(|path| item.contains(path));
        derived || written.contains(item)
    };
    let items = all.items().map(|item| item.to_string()).filter(is_listed);
    Ok(items.map(|item| item + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_last_field() {
        assert_eq!(format(r#"{"a":{"format_version":1},"format_version":57}"#), Some(57));
        assert_eq!(format(r#"{"format_version": 9, "b": []}"#), Some(9));
        assert_eq!(format("{}"), None);
    }
}
