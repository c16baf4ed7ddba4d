//! A table of the file.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{At, Reason, Source, hints, nearest, problem};

/// A table of the file.
pub struct Section<'s> {
    pub(super) source: &'s Source<'s>,
    /// Name of the table as the user writes it, `[[site.route]]` for example.
    title: String,
    table: &'s DeTable<'s>,
    span: Range<usize>,
    /// The keys that were asked for.
    asked: RefCell<Vec<&'static str>>,
}

impl<'s> Section<'s> {
    pub fn new(source: &'s Source<'s>, title: &str, table: &'s DeTable<'s>, span: Range<usize>) -> Section<'s> {
        Section {
            source,
            title: title.into(),
            table,
            span,
            asked: RefCell::default(),
        }
    }

    /// The file that the section belongs to.
    pub fn source(&self) -> &'s Source<'s> {
        self.source
    }

    /// The place of the table: its header, or its brace.
    pub fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// The name of the section in messages.
    pub fn title(&self) -> &str {
        if self.title.is_empty() { "the file" } else { &self.title }
    }

    /// Notes a mistake of the table as a whole.
    pub fn problem(&self, why: impl Into<Reason>) {
        self.source.problem(&self.span, why);
    }

    /// The place of a key, if it is there. The value may be wrong.
    pub fn key(&self, key: &'static str) -> Option<Range<usize>> {
        self.asked.borrow_mut().push(key);
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// The value of a key, of any type.
    pub fn any(&self, key: &'static str) -> Option<&'s Spanned<DeValue<'s>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key).inspect(|value| self.source.saw(value))
    }

    /// Notes a missing key. A key with a wrong value is not missing; that mistake is noted elsewhere.
    pub fn require(&self, key: &'static str, wanted: &str) {
        if !self.table.contains_key(key) {
            self.problem(format!("{} lacks '{key}': {wanted}", self.title));
        }
    }

    /// Reads a table inside this one: `[site.log]` or `log = { … }`.
    pub fn section(&self, key: &'static str) -> Option<Section<'s>> {
        let value = self.any(key)?;
        self.as_section(key, value, "a table")
    }

    /// Reads the table in `value`. If it is not a table, notes that `wanted` was expected.
    pub fn as_section(&self, key: &str, value: &'s Spanned<DeValue<'s>>, wanted: &str) -> Option<Section<'s>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.source, &self.below(key, false), table, value.span())),
            other => {
                let form = hints::spelled(other, wanted);
                let form = form.or_else(|| hints::form(&self.below(key, false), key, other));
                let form = form.map_or(String::new(), |form| format!("; {form}"));
                let text = format!("'{key}' must be {wanted}, not {}{form}", self.show(value));
                self.source.problem(&value.span(), text);
                None
            }
        }
    }

    /// Reads the tables of `[[key]]`, in the order of the file.
    pub fn sections(&self, key: &'static str) -> Vec<Section<'s>> {
        let title = self.below(key, true);
        let Some(value) = self.any(key) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            if let Some(below) = self.header_below(key) {
                let text = format!(
                    "{} comes before its {key}: write {title} above it",
                    &self.source.text[below.clone()]
                );
                self.source.problem(&below, text);
                return Vec::new();
            }
            // `[key]` instead of `[[key]]` is a common mistake.
            let text = match value.get_ref() {
                DeValue::Table(_) => format!(
                    "{} must be written {title}: there may be several",
                    self.below(key, false)
                ),
                DeValue::String(_) if key == "listen" => {
                    format!(
                        "'{key}' must be tables, not {0}; write {title}, and below it address = {0}",
                        self.show(value)
                    )
                }
                _ => format!(
                    "'{key}' must be tables, each begun by {title}, not {}",
                    self.show(value)
                ),
            };
            self.source.problem(&value.span(), text);
            return Vec::new();
        };
        let sections = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.source, &title, table, item.span())),
            _ => {
                self.mistyped(key, item, "tables");
                None
            }
        });
        sections.collect()
    }

    /// The header of the table that is below `[[key]]` although no `[[key]]` is there.
    fn header_below(&self, key: &str) -> Option<Range<usize>> {
        let (key, value) = self.table.get_key_value(key)?;
        // The place of a table without a header of its own is its name in the header of the other one.
        let at = key.span();
        (value.span() == at).then(|| problem::header(self.source.text, at.start))?
    }

    /// All keys and values, in the order of the file, for tables whose keys the user chooses.
    pub fn items(&self) -> Vec<(At<String>, &'s Spanned<DeValue<'s>>)> {
        let item = |(key, value): (&Spanned<_>, &'s Spanned<DeValue<'s>>)| {
            let key: &Spanned<std::borrow::Cow<'_, str>> = key;
            self.source.saw(value);
            let name = At {
                value: key.get_ref().to_string(),
                span: key.span(),
            };
            (name, value)
        };
        let mut items: Vec<_> = self.table.iter().map(item).collect();
        items.sort_by_key(|(name, _)| name.span.start);
        items
    }

    /// All keys and values of a table whose values are strings.
    pub fn entries(&self) -> Vec<(At<String>, At<String>)> {
        let text = |(name, value): (At<String>, &Spanned<DeValue<'s>>)| {
            let text = self.as_string(&name.value, value, "a string")?;
            Some((name, text))
        };
        self.items().into_iter().filter_map(text).collect()
    }

    /// Notes the keys that were not asked for.
    pub fn finish(self) {
        let mut asked = self.asked.borrow().clone();
        asked.sort_unstable();
        asked.dedup();
        for (key, value) in self.table.iter() {
            let name = key.get_ref().as_ref();
            if asked.contains(&name) {
                continue;
            }
            // A header holds the key. A value stands behind it.
            let is_header = value.span().contains(&key.span().start);
            let hint = self.hint(name, value.get_ref(), is_header, &asked);
            self.source.problem(
                &key.span(),
                format!("unknown key '{}' in {}; {hint}", name.escape_debug(), self.title()),
            );
        }
    }

    /// The remedy for an unknown key.
    fn hint(&self, name: &str, value: &DeValue<'_>, is_header: bool, asked: &[&str]) -> String {
        if let Some(hint) = hints::in_handler(&self.title, name) {
            return hint;
        }
        if hints::is_home(&self.title)
            && let Some(hint) = hints::inside(self.table, name, value).or_else(|| hints::foreign(name))
        {
            return hint;
        }
        let home = hints::home(&self.title, name);
        match (home, nearest(name, asked.iter().copied())) {
            (home, Some(guess)) if home.is_none() || !hints::is_home(&self.title) => format!("did you mean '{guess}'?"),
            (Some(home), _) if is_header => {
                let many = name == "route" || matches!(value, DeValue::Array(_));
                let home = home.split(" or ").next().unwrap_or_default();
                format!("did you mean {}?", below(home, name, many))
            }
            (Some(""), _) => "it belongs to the top of the file, before the first table".into(),
            (Some(home), _) => format!("it belongs to {home}"),
            (None, _) => format!("known keys are {}", asked.join(", ")),
        }
    }

    /// The title of a table of this section, or of several.
    fn below(&self, key: &str, many: bool) -> String {
        below(&self.title, key, many)
    }

    /// Notes that `wanted` was expected in place of a value.
    pub fn mistyped(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) {
        let spelled = match self.source.is_secret(&value.span()) {
            true => None,
            false => hints::spelled(value.get_ref(), wanted),
        };
        let spelled = spelled.map_or(String::new(), |spelled| format!("; {spelled}"));
        let text = format!("'{key}' must be {wanted}, not {}{spelled}", self.show(value));
        self.source.problem(&value.span(), text);
    }

    /// Describes a value for a message.
    pub fn show(&self, value: &Spanned<DeValue<'_>>) -> String {
        self.source.saw(value);
        show(value.get_ref(), self.source.is_secret(&value.span()))
    }
}

/// The title of the table `key` in the table `title`, or of several.
fn below(title: &str, key: &str, many: bool) -> String {
    let inside = title.trim_matches(['[', ']']);
    let dot = if inside.is_empty() { "" } else { "." };
    if many {
        format!("[[{inside}{dot}{key}]]")
    } else {
        format!("[{inside}{dot}{key}]")
    }
}

/// Describes a value for a message: a secret by its type only.
fn show(value: &DeValue<'_>, is_secret: bool) -> String {
    /// Characters of a string that are shown.
    const CHARS: usize = 40;
    match value {
        DeValue::String(_) if is_secret => "a string".into(),
        DeValue::Integer(_) | DeValue::Float(_) if is_secret => "a number".into(),
        DeValue::String(text) => {
            let cut: String = text.chars().take(CHARS).collect();
            let dots = if cut.len() < text.len() { "…" } else { "" };
            format!("\"{}{dots}\"", cut.escape_debug())
        }
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}
