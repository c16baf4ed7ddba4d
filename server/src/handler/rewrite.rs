//! `rewrite`: reads rules with their conditions. `crate::policy::rewrite` compiles them, which finds mistakes, and
//! applies them.

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;

use crate::policy::rewrite::{self, Condition, Query, Rule, SUBJECTS, Subject, Test, To};
use crate::reader::value::method;
use crate::reader::{Reason, Section};

use super::redirect::redirect_status;
use super::{Configured, Match, Opened, Resources, Route, without_port};

/// The settings of a rewrite.
#[derive(Debug, Clone, PartialEq)]
pub struct Rewrite {
    /// The rules, tried in order.
    rules: Vec<Rule>,
}

impl Rewrite {
    /// The compiled rules. None if one has a mistake.
    pub fn compiled(&self) -> Option<rewrite::Rewrite> {
        rewrite::Rewrite::compile(&self.rules).ok()
    }
}

impl Configured for Rewrite {
    const IS_KEPT: bool = false;

    /// Reads `rewrite = { pattern = …, to = … }`, or a list of such rules.
    fn read<'s>(section: &Section<'s>, value: &'s Spanned<DeValue<'s>>, _matches: &Match) -> Option<Rewrite> {
        let tables: Vec<Section<'s>> = match value.get_ref() {
            DeValue::Array(_) => section.sections("rewrite"),
            _ => vec![section.as_section("rewrite", value, "a table, or a list of tables")?],
        };
        if tables.is_empty() {
            section.source().problem(&value.span(), "'rewrite' has no rule");
        }
        Some(Rewrite {
            rules: tables.into_iter().filter_map(rule).collect(),
        })
    }

    fn open(&self, _route: &Route<'_>, _resources: &Resources) -> Result<Opened, Reason> {
        let first = |mistakes: Vec<(usize, String)>| mistakes.into_iter().next().map(|(_, what)| what);
        let rules = rewrite::Rewrite::compile(&self.rules).map_err(|all| first(all).unwrap_or_default())?;
        Ok(Opened::Rewrites(Arc::new(rules)))
    }
}

/// Reads a rule.
fn rule(table: Section<'_>) -> Option<Rule> {
    table.require(
        "pattern",
        "a regular expression for the path, \"^/old/(.*)$\" for example",
    );
    table.require("to", "the new path, \"/new/$1\" for example");
    let before = table.source().mistake_count();
    let pattern = table.parsed("pattern", regex);
    let to = table.string("to");
    let redirect = redirect_status(&table, "redirect");
    let query = table.choice("query", &[("keep", Query::Keep), ("drop", Query::Drop)]);
    let conditions = table.sections("if").into_iter().filter_map(condition).collect();
    let (source, at) = (table.source(), table.span().clone());
    table.finish();
    let (pattern, to) = (pattern?, to?);
    let rule = Rule {
        pattern: pattern.value,
        to: match redirect {
            Some(status) => To::Redirect(to.value, status),
            None => To::Path(to.value),
        },
        query: query.unwrap_or_default(),
        conditions,
    };
    // A wrong value was noted already, with its own place.
    if source.mistake_count() == before
        && let Err(troubles) = rewrite::Rewrite::compile(std::slice::from_ref(&rule))
    {
        for (_, what) in troubles {
            source.problem(&at, what);
        }
    }
    Some(rule)
}

/// Reads a condition of a rule.
fn condition(table: Section<'_>) -> Option<Condition> {
    table.require("of", "what to look at, \"header\" for example");
    let words = SUBJECTS.map(|(word, named)| (word, (word, named)));
    let of = table.choice("of", &words);
    let name = table.string("name").map(|name| name.value);
    if let Some((word, named)) = of
        && named != name.is_some()
    {
        table.problem(if named {
            format!("a condition of \"{word}\" needs a 'name'")
        } else {
            format!("a condition of \"{word}\" has no 'name'")
        });
    }
    let equals = table.parsed("is", |text| possible(of.map_or("", |(word, _)| word), text));
    let equals = equals.map(|text| Test::Equals(text.value));
    let matches = table.parsed("matches", regex).map(|text| Test::Matches(text.value));
    if equals.is_some() && matches.is_some() {
        table.problem("a condition has 'is' or 'matches', not both");
    }
    let not = table.boolean("not").unwrap_or(false);
    table.finish();
    Some(Condition {
        of: Subject::by_word(of?.0, name.as_deref())?,
        is: equals.or(matches).unwrap_or(Test::Present),
        not,
    })
}

/// Refuses a value that the subject of a condition never has. A value with captures may become any.
fn possible(of: &str, text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    match of {
        _ if text.contains('$') => {}
        "method" => return method(text),
        "host" if !["", text].contains(&without_port(text)) => {
            return Err(format!(
                "the host is compared without its port; did you mean \"{}\"?",
                plain_host(&lower)
            ));
        }
        "host" if plain_host(text) != text => {
            return Err(format!(
                "the host is compared without the dot at its end; did you mean \"{}\"?",
                plain_host(&lower)
            ));
        }
        "host" | "encoding" if lower != text => {
            return Err(format!("the {of} is compared in lower case; did you mean \"{lower}\"?"));
        }
        _ => {}
    }
    Ok(text.into())
}

/// A host without its port and without the dot of a full name, as it is compared.
fn plain_host(text: &str) -> &str {
    let name = without_port(text);
    name.strip_suffix('.').unwrap_or(name)
}

/// Checks a regular expression.
fn regex(text: &str) -> Result<String, String> {
    match regex::Regex::new(text) {
        Ok(_) => Ok(text.to_string()),
        // Only the last line names the mistake. The lines before it draw its place over several lines.
        Err(error) => {
            let text = error.to_string();
            let mistake = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            Err(format!("{mistake}{}", instead(mistake)))
        }
    }
}

/// How to write what the regular expressions of other servers have and these do not.
fn instead(mistake: &str) -> &'static str {
    if mistake.starts_with("look-around") {
        "; write (?!x) as a condition: if = [{ of = \"path\", matches = \"x\", not = true }]"
    } else if mistake.starts_with("backreferences") {
        "; compare captures in a condition: if = [{ of = \"capture\", name = \"2\", is = \"$1\" }]"
    } else {
        ""
    }
}
