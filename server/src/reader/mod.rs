//! Reads the tables of a TOML file by type. It keeps the place of every value and does not stop at a mistake.
//!
//! The code for a table asks a [`Section`] for each key by type. A wrong value is noted in the [`Source`], and the
//! result is None, as for a missing key. Finally [`Section::finish`] notes every key that was not asked for, and
//! suggests the most similar known key. `typed.rs` has the types, and `paths.rs` those that name files and folders.

mod hints;
mod paths;
pub mod problem;
mod reason;
pub mod secrets;
mod section;
mod source;
pub mod template;
mod typed;
pub mod value;
mod variables;

pub use self::paths::{is_missing, is_refused, is_withheld};
pub use self::reason::Reason;
pub use self::section::Section;
pub use self::source::{At, Source, values};

/// The least similarity (Jaro-Winkler, 1 is equal) of a key that is suggested.
const ALIKE: f64 = 0.75;

/// The known word that is most similar to `word`, if one is similar enough.
pub fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    known
        .map(|known| (strsim::jaro_winkler(word, known), known))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
