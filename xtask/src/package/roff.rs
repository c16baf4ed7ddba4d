//! Makes manual pages of Markdown: a small translator to roff, for what the documents of this repository use.
//!
//! It knows headings, paragraphs, lists, code blocks, tables, and `code`, **bold** and links inside of a line. A row of a
//! table becomes a paragraph with a tag, because a terminal is too narrow for four columns. Text of the source never
//! becomes a request of roff: every line that begins with a control character is protected.

/// The data of a page's head.
pub struct Page<'a> {
    pub name: &'a str,
    pub section: u8,
    /// Year, month and day.
    pub date: &'a str,
    pub version: &'a str,
    /// The summary for the section NAME and for apropos(1).
    pub summary: &'a str,
}

impl Page<'_> {
    /// The beginning of the page, with its NAME.
    pub fn head(&self) -> String {
        let Page {
            name,
            section,
            date,
            version,
            summary,
        } = self;
        let (upper, name) = (escaped(&name.to_uppercase()), escaped(name));
        format!(
            ".TH {upper} {section} {date} \"osier {version}\" \"Osier\"\n.nh\n.ad l\n.SH NAME\n{name} \\- {}\n",
            escaped(summary)
        )
    }
}

/// Links of documents that are manual pages, too: the target and the page.
const PAGES: &[(&str, &str)] = &[
    ("configuration.md", "osier-site.toml(5)"),
    ("rewrite.md", "osier-rewrite(7)"),
];

/// Translates a document. Its title, the heading of the first level, is left out.
pub fn body(markdown: &str) -> String {
    let mut roff = Body::default();
    let lines: Vec<&str> = markdown.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let run = |test: &dyn Fn(&str) -> bool| lines[at..].iter().take_while(|line| test(line)).count();
        if line.trim().is_empty() {
            at += 1;
        } else if line.starts_with("```") {
            let rest = &lines[at + 1..];
            let end = rest
                .iter()
                .position(|line| line.starts_with("```"))
                .unwrap_or(rest.len());
            roff.code(&rest[..end]);
            at += end + 2;
        } else if let Some(heading) = line.strip_prefix("### ") {
            roff.heading(".SS", &inline(heading));
            at += 1;
        } else if let Some(heading) = line.strip_prefix("## ") {
            let is_plain = !heading.contains('`');
            let heading = if is_plain {
                heading.to_uppercase()
            } else {
                heading.into()
            };
            roff.heading(".SH", &inline(&heading));
            at += 1;
        } else if line.starts_with("# ") {
            roff.heading(".SH", "DESCRIPTION");
            at += 1;
        } else if line.starts_with('|') {
            let count = run(&|line| line.starts_with('|'));
            roff.table(&lines[at..at + count]);
            at += count;
        } else if item(line).is_some() {
            let count = 1 + lines[at + 1..]
                .iter()
                .take_while(|line| !line.trim().is_empty() && item(line).is_none())
                .count();
            roff.item(&lines[at..at + count]);
            at += count;
        } else {
            let starts_other = |line: &str| {
                line.trim().is_empty()
                    || line.starts_with(['|', '#'])
                    || line.starts_with("```")
                    || item(line).is_some()
            };
            let count = run(&|line| !starts_other(line)).max(1);
            roff.paragraph(&lines[at..at + count].join(" "));
            at += count;
        }
    }
    roff.level(0);
    roff.text
}

/// The depth of a list item, and its text.
fn item(line: &str) -> Option<(usize, &str)> {
    let text = line.trim_start();
    let depth = 1 + (line.len() - text.len()) / 2;
    text.strip_prefix("- ").map(|text| (depth, text))
}

#[derive(Default)]
struct Body {
    text: String,
    /// Whether a heading stands right above: it separates by itself.
    is_below_heading: bool,
    /// The depth of the list that is open.
    depth: usize,
}

impl Body {
    fn line(&mut self, line: &str) {
        self.text.extend([line, "\n"]);
        self.is_below_heading = false;
    }

    fn heading(&mut self, request: &str, text: &str) {
        self.level(0);
        self.line(&format!("{request} \"{}\"", text.replace('"', "\\(dq")));
        self.is_below_heading = true;
    }

    /// Opens or closes lists, down to `depth`.
    fn level(&mut self, depth: usize) {
        while self.depth > depth.max(1) {
            self.line(".RE");
            self.depth -= 1;
        }
        while depth > 1 && self.depth < depth {
            self.line(".RS 2");
            self.depth += 1;
        }
        self.depth = depth;
    }

    fn break_paragraph(&mut self) {
        if !self.is_below_heading {
            self.line(".PP");
        }
    }

    fn paragraph(&mut self, text: &str) {
        self.level(0);
        self.break_paragraph();
        self.sentences(&inline(text));
    }

    /// Writes translated text.
    fn sentences(&mut self, roff: &str) {
        self.line(&sentences(roff));
    }

    fn item(&mut self, lines: &[&str]) {
        let (depth, first) = item(lines[0]).expect("the caller has looked");
        self.level(depth.max(1));
        self.line(".IP \\(bu 2");
        let more = lines[1..].iter().map(|line| line.trim());
        let text: Vec<&str> = std::iter::once(first).chain(more).collect();
        self.sentences(&inline(&text.join(" ")));
    }

    fn code(&mut self, lines: &[&str]) {
        self.level(0);
        self.break_paragraph();
        self.line(".RS 4\n.EX");
        for line in lines {
            self.line(&protected(&literal(line)));
        }
        self.line(".EE\n.RE");
    }

    /// Writes a row as a paragraph with a tag. The rows of settings name their type and default in the tag; other tables
    /// begin with their heads.
    fn table(&mut self, lines: &[&str]) {
        self.level(0);
        let rows: Vec<Vec<String>> = lines.iter().map(|line| cells(line)).collect();
        let Some((head, rows)) = rows.split_first() else {
            return;
        };
        let is_settings =
            head.get(1).is_some_and(|cell| cell == "type") && head.get(2).is_some_and(|cell| cell == "default");
        if !is_settings {
            let labels: Vec<String> = head.iter().map(|cell| format!("\\fI{}\\fR", inline(cell))).collect();
            self.tagged(&labels[0], &labels[1..].join(", "));
        }
        for row in rows.iter().skip(1) {
            let cell = |at: usize| row.get(at).map(|cell| inline(cell)).unwrap_or_default();
            if is_settings {
                let default = match row[2].as_str() {
                    "required" => "required".to_string(),
                    _ => format!("default: {}", cell(2)),
                };
                let tag = format!("{} (\\fI{}\\fR; {default})", cell(0), row_type(&cell(1)));
                let refused = Some(cell(4)).filter(|text| !text.is_empty());
                let refused = refused.map_or(String::new(), |text| format!(" Refused with {text}."));
                self.tagged(&tag, &format!("{}{refused}", cell(3)));
            } else {
                let more: Vec<String> = (1..row.len()).map(cell).collect();
                self.tagged(&cell(0), &more.join("; "));
            }
        }
    }

    fn tagged(&mut self, tag: &str, text: &str) {
        self.line(".TP");
        self.line(&protected(tag));
        self.sentences(if text.is_empty() { "\\&" } else { text });
    }
}

/// Breaks translated text into one line for each sentence, as roff likes it.
pub fn sentences(roff: &str) -> String {
    let (mut lines, mut rest) = (vec![], roff.trim());
    while let Some(end) = sentence_end(rest) {
        let (sentence, more) = rest.split_at(end);
        lines.push(protected(sentence));
        rest = more.trim_start();
    }
    lines.push(protected(rest));
    lines.join("\n")
}

/// A type in italics: bold parts of it return to italics.
fn row_type(text: &str) -> String {
    text.replace("\\fR", "\\fI")
}

/// Where the first of several sentences ends.
fn sentence_end(text: &str) -> Option<usize> {
    text.match_indices(". ").map(|(at, _)| at + 1).find(|end| {
        let next = text[*end..]
            .trim_start()
            .trim_start_matches("\\fB")
            .trim_start_matches("\\fI");
        next.starts_with(|c: char| c.is_uppercase() || c == '"' || c == '\\')
    })
}

/// The cells of a row of a table.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|');
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let mut cells = vec![String::new()];
    let mut is_escaped = false;
    for c in inner.chars() {
        let last = cells.last_mut().expect("there is a first cell");
        match c {
            '|' if is_escaped => {
                last.pop();
                last.push('|');
            }
            '|' => cells.push(String::new()),
            c => last.push(c),
        }
        is_escaped = c == '\\';
    }
    cells.iter().map(|cell| cell.trim().to_string()).collect()
}

/// Translates `code`, `**bold**` and `[links](target)` of one line.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        out += &escaped(&rest[..at]);
        rest = &rest[at..];
        if let Some((code, more)) = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
            out += &format!("\\fB{}\\fR", literal(code));
            rest = more;
        } else if let Some((bold, more)) = rest.strip_prefix("**").and_then(|rest| rest.split_once("**")) {
            // Code inside of bold text is bold already.
            out += &format!("\\fB{}\\fR", inline(bold).replace("\\fR", "\\fB"));
            rest = more;
        } else if let Some((label, target, more)) = link(rest) {
            out += &linked(label, target);
            rest = more;
        } else {
            let (first, more) = rest.split_at(1);
            out += first;
            rest = more;
        }
    }
    out + &escaped(rest)
}

/// The label and the target of a link at the beginning of a text, and what follows.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (label, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, more) = rest.split_once(')')?;
    // A bracket that opens no link stands in front of one that does.
    (!label.contains("[") || label.starts_with('`')).then_some((label, target, more))
}

fn linked(label: &str, target: &str) -> String {
    let file = target.rsplit('/').next().unwrap_or_default();
    let file = file.split('#').next().unwrap_or_default();
    if let Some((_, page)) = PAGES.iter().find(|(name, _)| *name == file) {
        return format!("\\fB{}\\fR", escaped(page));
    }
    match target.starts_with("http") {
        true => format!("{} (\\fI{}\\fR)", inline(label), literal(target)),
        false => inline(label),
    }
}

/// Text as it is read: a minus is a hyphen.
pub fn escaped(text: &str) -> String {
    special(text, "-")
}

/// Text as it is typed: a minus stays one, and quotes stay straight.
pub fn literal(text: &str) -> String {
    special(text, "\\-")
}

fn special(text: &str, minus: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out += "\\e",
            '-' => out += minus,
            '\'' => out += "\\(aq",
            '`' => out += "\\(ga",
            '^' => out += "\\(ha",
            '~' => out += "\\(ti",
            c if c.is_ascii() => out.push(c),
            c => out += &format!("\\[u{:04X}]", c as u32),
        }
    }
    out
}

/// A line of text that roff takes for no request.
pub fn protected(line: &str) -> String {
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_line() {
        for (markdown, roff) in [
            ("a `x-y` **b**", "a \\fBx\\-y\\fR \\fBb\\fR"),
            ("**Without `to`**, c", "\\fBWithout \\fBto\\fB\\fR, c"),
            ("[TOML](https://toml.io) is", "TOML (\\fIhttps://toml.io\\fR) is"),
            ("see [`[admin]`](#admin)", "see \\fB[admin]\\fR"),
            ("[rewrite.md](rewrite.md)", "\\fBosier-rewrite(7)\\fR"),
            ("a\\b * [c] 'd' …", "a\\eb * [c] \\(aqd\\(aq \\[u2026]"),
        ] {
            assert_eq!(inline(markdown), roff, "{markdown}");
        }
    }

    #[test]
    fn blocks() {
        let markdown =
            "# Title\n\nOne. Two\nthree.\n\n- item\n  more\n  - inner\n\n```toml\n.x = '1'\n```\n\n## The `end`\n.y\n";
        let expected = ".SH \"DESCRIPTION\"\nOne.\nTwo three.\n.IP \\(bu 2\nitem more\n.RS 2\n.IP \\(bu 2\ninner\n.RE\n.PP\n.RS 4\n.EX\n\
                        \\&.x = \\(aq1\\(aq\n.EE\n.RE\n.SH \"The \\fBend\\fR\"\n\\&.y\n";
        assert_eq!(body(markdown), expected);
    }

    #[test]
    fn tables() {
        let settings = "| key | type | default | meaning |\n|---|---|---|---|\n| `to` | `a` or b | required | One. Two. |\n| `x` | size | 1 | |\n";
        let expected = ".TP\n\\fBto\\fR (\\fI\\fBa\\fI or b\\fR; required)\nOne.\nTwo.\n.TP\n\\fBx\\fR (\\fIsize\\fR; default: 1)\n\\&\n";
        assert_eq!(body(settings), expected);
        let other = "| request | response |\n|---|---|\n| a \\| b | 421 |\n";
        assert_eq!(body(other), ".TP\n\\fIrequest\\fR\n\\fIresponse\\fR\n.TP\na | b\n421\n");
    }
}
