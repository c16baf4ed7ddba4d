//! The manual pages: osier(1) from the help text, osier-site.toml(5) and osier-rewrite(7) from the documents.

use super::help::{Flag, Help};
use super::roff::{self, Page, escaped, literal};

/// The version and the date that every page carries.
pub struct Edition {
    pub version: String,
    /// Year, month and day.
    pub date: String,
}

impl Edition {
    fn page<'a>(&'a self, name: &'a str, section: u8, summary: &'a str) -> Page<'a> {
        Page {
            name,
            section,
            date: &self.date,
            version: &self.version,
            summary,
        }
    }
}

const COMMAND: &str = "coroutine web server for folders, sites, proxies and FastCGI";

/// Makes osier(1). `signals` is a table in Markdown.
pub fn command(help: &Help, signals: &str, edition: &Edition) -> String {
    let mut page = edition.page("osier", 1, COMMAND).head();
    page += ".SH SYNOPSIS\n.nf\n";
    for form in &help.usage {
        page += &format!("{}\n", synopsis(form));
    }
    page += &format!(".fi\n.SH DESCRIPTION\n{}\n", roff::sentences(&escaped(&help.about)));
    page += &format!(".PP\n{}\n", roff::sentences(&escaped(&help.notes)));
    page += ".SH COMMANDS\n";
    for command in &help.commands {
        let about = roff::sentences(&escaped(&command.about));
        page += &format!(".TP\n\\fB{}\\fR\n{about}\n", literal(&command.name));
    }
    page += ".PP\nFor \\fBtrust\\fR, a configuration file may name the state folder.\n";
    page += ".SH OPTIONS\nThey go with a folder or with nothing: a configuration file has a key for each.\n";
    for flag in &help.options {
        page += &format!(".TP\n{}\n{}\n", spelled(flag), roff::sentences(&escaped(&flag.about)));
    }
    page += &format!(".SH SIGNALS\n{}", roff::body(signals));
    page + ".SH EXIT STATUS\n.TP\n0\nThe server has ended after a signal, or the file has no mistake.\n.TP\n2\nThe command line or the file has a \
         mistake, or the server could not start.\n.SH FILES\n.TP\n\\fI/etc/osier/site.toml\\fR\nThe configuration that the service \
         \\fBosier.service\\fR serves.\n.SH SEE ALSO\n\\fBosier\\-site.toml\\fR(5), \\fBosier\\-rewrite\\fR(7)\n"
}

/// Makes osier-site.toml(5) from `docs/configuration.md`.
pub fn configuration(document: &str, edition: &Edition) -> String {
    let head = edition
        .page("osier-site.toml", 5, "configuration file of the web server osier")
        .head();
    head + &roff::body(document) + ".SH SEE ALSO\n\\fBosier\\fR(1), \\fBosier\\-rewrite\\fR(7)\n"
}

/// Makes osier-rewrite(7) from `docs/rewrite.md`.
pub fn rewriting(document: &str, edition: &Edition) -> String {
    let head = edition
        .page("osier-rewrite", 7, "rewrite rules of the web server osier")
        .head();
    head + &roff::body(document) + ".SH SEE ALSO\n\\fBosier\\fR(1), \\fBosier\\-site.toml\\fR(5)\n"
}

/// The forms of an option, with the name of its value in italics.
fn spelled(flag: &Flag) -> String {
    let forms: Vec<String> = flag.forms().map(|form| format!("\\fB{}\\fR", literal(form))).collect();
    let value = flag
        .value
        .as_deref()
        .map(|value| format!(" \\fI{}\\fR", literal(value)));
    forms.join(", ") + &value.unwrap_or_default()
}

/// A form of the command line: words in capitals stand for others.
fn synopsis(form: &str) -> String {
    let word = |word: &str| {
        let is_placeholder = word.chars().any(|c| c.is_ascii_uppercase());
        let font = if is_placeholder { "\\fI" } else { "\\fB" };
        format!("{font}{}\\fR", literal(word))
    };
    form.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The table of a document whose head begins with `| head`.
pub fn table(document: &str, head: &str) -> Option<String> {
    let start = document.find(&format!("\n| {head} "))? + 1;
    let lines = document[start..].lines().take_while(|line| line.starts_with('|'));
    Some(lines.map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::super::help::tests::SAMPLE;
    use super::*;

    #[test]
    fn the_page_of_the_command_has_every_option_and_signal() {
        let edition = Edition {
            version: "1.2.3".into(),
            date: "2026-11-23".into(),
        };
        let signals = table(
            "a\n\n| signal | effect |\n|---|---|\n| SIGHUP | Reads. |\n\nb",
            "signal",
        )
        .unwrap();
        let page = command(&Help::read(SAMPLE).unwrap(), &signals, &edition);
        for part in [
            ".TH OSIER 1 2026-11-23 \"osier 1.2.3\" \"Osier\"",
            "\\fBosier\\fR \\fB[serve]\\fR \\fI[DIR]\\fR",
            ".SH COMMANDS\n.TP\n\\fBserve\\fR\nServe a folder\n.TP\n\\fBcheck\\fR\nPrint every mistake\n",
            ".TP\n\\fB\\-l\\fR, \\fB\\-\\-listen\\fR \\fIADDR\\fR\nAddress",
            ".TP\nSIGHUP\nReads.",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
