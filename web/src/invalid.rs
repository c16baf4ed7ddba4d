//! The error of a setting that cannot be used.

use std::fmt;

/// The reason why a setting cannot be used, in one line: an address, keys, options that contradict each other.
///
/// ```
/// use osier_web::{Address, InvalidSetting};
///
/// let refused: InvalidSetting = "localhost".parse::<Address>().unwrap_err();
/// assert_eq!(refused.to_string(), r#""localhost" is not an address; write HOST:PORT, [IPV6]:PORT or unix:/path"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting(String);

impl InvalidSetting {
    pub(crate) fn new(why: impl Into<String>) -> InvalidSetting {
        InvalidSetting(why.into())
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSetting {}

/// The line, for a program that collects mistakes as texts.
impl From<InvalidSetting> for String {
    fn from(invalid: InvalidSetting) -> String {
        invalid.0
    }
}
