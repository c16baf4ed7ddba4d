//! Lines for the operator, and the ids of requests.

use std::error::Error;
use std::fmt;

pub(crate) mod id;
pub(crate) mod record;
pub(crate) mod seldom;

/// An error and its sources, each after a colon. A source whose text is there already is left out: many errors name
/// theirs themselves.
pub(crate) struct Causes<'e>(pub(crate) &'e (dyn Error + 'e));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        f.write_str(&text)?;
        let mut error = self.0;
        while let Some(source) = error.source() {
            let why = source.to_string();
            if !text.contains(&why) {
                write!(f, ": {why}")?;
                text.push_str(&why);
            }
            error = source;
        }
        Ok(())
    }
}
