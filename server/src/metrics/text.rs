//! Writes the text format of Prometheus: families of samples, each after its help text and type.

use std::fmt::{Display, Write};

/// A page that is being written.
#[derive(Default)]
pub struct Text {
    page: String,
    family: &'static str,
}

impl Text {
    /// Begins a family. The samples that follow belong to it.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a string does not fail.
        let _ = write!(self.page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes a sample of the family. In a histogram its name has a suffix.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let page = &mut self.page;
        let _ = write!(page, "{}{suffix}", self.family);
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(page, "{before}{name}=\"");
            for character in value.chars() {
                match character {
                    '\\' => page.push_str("\\\\"),
                    '"' => page.push_str("\\\""),
                    '\n' => page.push_str("\\n"),
                    other => page.push(other),
                }
            }
            page.push('"');
        }
        if !labels.is_empty() {
            page.push('}');
        }
        let _ = writeln!(page, " {value}");
    }

    /// The page.
    pub fn finish(self) -> String {
        self.page
    }
}
