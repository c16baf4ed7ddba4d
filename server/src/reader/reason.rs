//! The reason of a failure: one line for people, and its kind for code. No code searches a message for a kind.

use std::fmt;
use std::io;

use osier_web::InvalidSetting;

/// Why something is refused or cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    text: String,
    is_denied: bool,
}

impl Reason {
    /// The reason of a system's error, in the words of `text`.
    pub fn of(error: &io::Error, text: impl Into<String>) -> Reason {
        Reason {
            text: text.into(),
            is_denied: error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Whether the system has denied access to a file or a folder.
    pub fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// The same reason in other words, which are made of the present ones.
    #[must_use]
    pub fn reworded(self, words: impl FnOnce(String) -> String) -> Reason {
        Reason {
            text: words(self.text),
            ..self
        }
    }

    /// All of some reasons in one line.
    pub fn all(reasons: impl IntoIterator<Item = Reason>) -> Reason {
        let (mut texts, mut is_denied) = (Vec::new(), false);
        for reason in reasons {
            texts.push(reason.text);
            is_denied |= reason.is_denied;
        }
        Reason {
            text: texts.join("; "),
            is_denied,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        Reason { text, is_denied: false }
    }
}

impl From<InvalidSetting> for Reason {
    fn from(invalid: InvalidSetting) -> Reason {
        String::from(invalid).into()
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Reason {
        text.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_stays_in_other_words_and_among_others() {
        let denied = Reason::of(&io::ErrorKind::PermissionDenied.into(), "no").reworded(|text| format!("x: {text}"));
        assert_eq!((denied.as_str(), denied.is_denied()), ("x: no", true));
        // A text says nothing about the kind.
        let other = Reason::from("'Permission denied' is no user");
        assert!(!other.is_denied());
        let all = Reason::all([other.clone(), denied]);
        assert_eq!(all.to_string(), "'Permission denied' is no user; x: no");
        assert!(all.is_denied() && !Reason::all([other]).is_denied());
    }
}
