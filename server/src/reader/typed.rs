//! Values of keys, by type.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::{At, Section, nearest, secrets, value};

impl<'s> Section<'s> {
    /// Reads a string and substitutes variables.
    pub fn string(&self, key: &'static str) -> Option<At<String>> {
        let value = self.any(key)?;
        self.as_string(key, value, "a string")
    }

    /// Reads a string or a list of strings.
    pub fn strings(&self, key: &'static str) -> Option<Vec<At<String>>> {
        let value = self.any(key)?;
        let wanted = "a string or a list of strings";
        let DeValue::Array(items) = value.get_ref() else {
            return self.as_string(key, value, wanted).map(|one| vec![one]);
        };
        if items.is_empty() {
            self.source.problem(
                &value.span(),
                format!("'{key}' is an empty list; leave it out, or name something"),
            );
        }
        Some(
            items
                .iter()
                .filter_map(|item| self.as_string(key, item, wanted))
                .collect(),
        )
    }

    /// Reads a whole number within `range`.
    pub fn integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.number(key, &wanted, |number| range.contains(&number))
    }

    /// Reads a whole number that `fits`. If it does not, notes that `wanted` was expected.
    pub fn number(&self, key: &'static str, wanted: &str, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let value = self.any(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            DeValue::String(_) => self.as_variable(key, value, wanted)?.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| fits(*number));
        if number.is_none() {
            self.mistyped(key, value, wanted);
        }
        number
    }

    /// Reads `true` or `false`.
    pub fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.any(key)?;
        let wanted = "true or false";
        let truth = match value.get_ref() {
            DeValue::Boolean(truth) => Some(*truth),
            DeValue::String(_) => self.as_variable(key, value, wanted)?.parse().ok(),
            _ => None,
        };
        if truth.is_none() {
            self.mistyped(key, value, wanted);
        }
        truth
    }

    /// Reads a duration above zero.
    pub fn duration(&self, key: &'static str) -> Option<Duration> {
        let value = self.any(key)?;
        let text = self.as_string(key, value, value::DURATION)?;
        let time = value::duration(&text.value);
        match time {
            None => self.mistyped(key, value, value::DURATION),
            Some(Duration::ZERO) => self
                .source
                .problem(&text.span, format!("'{key}' must be longer than 0s")),
            Some(_) => return time,
        }
        None
    }

    /// Reads a number of bytes.
    pub fn size(&self, key: &'static str) -> Option<u64> {
        let value = self.any(key)?;
        let bytes = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => value::size(&self.as_string(key, value, value::SIZE)?.value),
        };
        if bytes.is_none() {
            self.mistyped(key, value, value::SIZE);
        }
        bytes
    }

    /// Reads a number of bytes that are kept in memory.
    pub fn memory_size(&self, key: &'static str) -> Option<usize> {
        let bytes = self.size(key)?;
        Some(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Reads a size of at least `least` bytes, which a message calls `shown`. `why` is the end of that message.
    pub fn size_at_least(&self, key: &'static str, least: u64, shown: &str, why: &str) -> Option<u64> {
        let bytes = self.size(key)?;
        if bytes >= least {
            return Some(bytes);
        }
        if let Some(value) = self.any(key) {
            let text = format!("'{key}' must be at least {shown}, not {}{why}", self.show(value));
            self.source.problem(&value.span(), text);
        }
        None
    }

    /// Reads one of a few words.
    pub fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let value = self.any(key)?;
        let list: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let wanted = format!("one of {}", list.join(", "));
        let text = self.as_string(key, value, &wanted)?;
        let found = words.iter().find(|(word, _)| *word == text.value);
        if found.is_none() {
            let guess = nearest(&text.value, words.iter().map(|(word, _)| *word));
            let is_version = text.value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let guess = guess
                .filter(|_| !is_version)
                .map(|guess| format!("; did you mean \"{guess}\"?"))
                .unwrap_or_default();
            let shown = self.show(value);
            self.source
                .problem(&text.span, format!("'{key}' must be {wanted}, not {shown}{guess}"));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Reads a string that `parse` accepts. Its error completes the sentence "'key' cannot be …: ".
    pub fn parsed<T, E: Display>(&self, key: &'static str, parse: impl Fn(&str) -> Result<T, E>) -> Option<At<T>> {
        let text = self.string(key)?;
        self.understand(key, text, &parse)
    }

    /// Reads a string, or a list of strings, that `parse` accepts.
    pub fn parsed_list<T, E: Display>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<At<T>>> {
        let texts = self.strings(key)?;
        Some(
            texts
                .into_iter()
                .filter_map(|text| self.understand(key, text, &parse))
                .collect(),
        )
    }

    /// Reads the string in `value` and substitutes variables. If it is not a string, notes that `wanted` was expected.
    pub fn as_string(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) -> Option<At<String>> {
        let DeValue::String(text) = value.get_ref() else {
            self.mistyped(key, value, wanted);
            return None;
        };
        self.source.saw(value);
        match self.source.substitute(text, &value.span()) {
            Ok((text, _)) => Some(At {
                value: text,
                span: value.span(),
            }),
            Err(error) => {
                self.source.problem(&value.span(), format!("'{key}': {error}"));
                None
            }
        }
    }

    /// Reads a string that stands for another type because it names a variable: `workers = "${WORKERS:-2}"`.
    fn as_variable(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) -> Option<String> {
        let text = value.get_ref().as_str().unwrap_or_default();
        match self.source.substitute(text, &value.span()) {
            Ok((text, true)) => return Some(text),
            Ok((_, false)) => self.mistyped(key, value, wanted),
            Err(error) => self.source.problem(&value.span(), format!("'{key}': {error}")),
        }
        None
    }

    /// Parses `text` and notes the error of `parse`. The message does not show a secret, nor what a variable has filled in.
    pub fn understand<T, E: Display>(
        &self,
        key: &str,
        text: At<String>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<At<T>> {
        match parse(&text.value) {
            Ok(value) => Some(At { value, span: text.span }),
            Err(error) => {
                // A variable may hold any secret.
                let written = &self.source.text[text.span.clone()];
                let is_filled = matches!(value::substitute(written, self.source.variable), Ok((_, true)));
                let is_url = secrets::password(&text.value).is_some();
                let is_secret = is_filled || is_url || self.source.is_secret(&text.span);
                let shown = match is_secret {
                    true => String::new(),
                    false => format!(" cannot be \"{}\"", text.value.escape_debug()),
                };
                self.source.problem(&text.span, format!("'{key}'{shown}: {error}"));
                None
            }
        }
    }
}
