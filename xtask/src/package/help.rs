//! Reads what `osier --help` prints: the one description of the command line, from which the manual page and the completions
//! of shells are made.

/// The parts of a help text.
#[derive(Debug, PartialEq)]
pub struct Help {
    /// One sentence: what the program does.
    pub about: String,
    /// The forms of a command line, each beginning with the program's name.
    pub usage: Vec<String>,
    pub commands: Vec<Command>,
    pub options: Vec<Flag>,
    /// The text below the options.
    pub notes: String,
}

/// A word that may stand in place of a folder.
#[derive(Debug, PartialEq)]
pub struct Command {
    pub name: String,
    pub about: String,
}

/// An option of the command line.
#[derive(Debug, Default, PartialEq)]
pub struct Flag {
    /// `-l`, where it has a short form.
    pub short: Option<String>,
    /// `--listen`
    pub long: String,
    /// The name of its value, where it takes one: `ADDR`.
    pub value: Option<String>,
    pub about: String,
}

impl Help {
    /// Reads a help text.
    ///
    /// # Errors
    /// One line, when a part is missing.
    pub fn read(text: &str) -> Result<Help, String> {
        let (about, rest) = text.split_once("\nUsage: ").ok_or("the help has no usage")?;
        let (usage, rest) = rest.split_once("\nOptions:\n").ok_or("the help has no options")?;
        let (usage, commands) = usage.split_once("\nCommands:\n").ok_or("the help has no commands")?;
        let (options, notes) = rest.split_once("\n\n").unwrap_or((rest, ""));
        let help = Help {
            about: filled(about),
            usage: usage
                .lines()
                .map(|line| line.trim().to_string())
                .filter(|line| !line.is_empty())
                .collect(),
            commands: commands.lines().filter_map(Command::read).collect(),
            options: flags(options)?,
            notes: filled(notes),
        };
        match (help.options.len(), help.commands.len()) {
            (0, _) => Err("the help has no options".into()),
            (_, 0) => Err("the help has no commands".into()),
            _ => Ok(help),
        }
    }

    /// The names of the commands: `serve`, `check`.
    pub fn names(&self) -> Vec<&str> {
        self.commands.iter().map(|command| &*command.name).collect()
    }
}

impl Command {
    /// Reads `  check    Print every mistake`.
    fn read(line: &str) -> Option<Command> {
        let (name, about) = line.trim().split_once("  ")?;
        Some(Command {
            name: name.into(),
            about: about.trim().into(),
        })
    }
}

impl Flag {
    /// The values that its text lists: "Access log: combined, json or off".
    pub fn choices(&self) -> Vec<&str> {
        let (_, list) = self.about.split_once(": ").unwrap_or_default();
        let list = list.split(" [").next().unwrap_or_default();
        let words = list.split([',', ' ']).filter(|word| !["", "or"].contains(word));
        let words: Vec<&str> = words.collect();
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        if self.value.is_some() && words.len() > 1 && words.iter().all(is_word) {
            words
        } else {
            vec![]
        }
    }

    /// Whether it may be given more than once.
    pub fn is_repeatable(&self) -> bool {
        self.about.contains("repeatable")
    }

    /// Whether its value is the name of a file.
    pub fn takes_file(&self) -> bool {
        self.value.as_deref() == Some("FILE")
    }

    /// Its forms, the short one first.
    pub fn forms(&self) -> impl Iterator<Item = &str> {
        self.short.iter().chain([&self.long]).map(String::as_str)
    }
}

/// Reads the lines of the options. A line that begins with no dash continues the text of the option above it.
fn flags(text: &str) -> Result<Vec<Flag>, String> {
    let mut flags: Vec<Flag> = vec![];
    for line in text.lines() {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        if !trimmed.starts_with('-') || indent > 6 {
            let flag = flags.last_mut().ok_or("a text stands before the first option")?;
            flag.about = format!("{} {trimmed}", flag.about).trim().to_string();
            continue;
        }
        let (forms, about) = trimmed.split_once("  ").unwrap_or((trimmed, ""));
        let (names, value) = match forms.split_once(" <") {
            Some((names, value)) => (names, Some(value.trim_end_matches('>').to_string())),
            None => (forms, None),
        };
        let mut names: Vec<&str> = names.split(", ").collect();
        let long = names.pop().filter(|name| name.starts_with("--"));
        flags.push(Flag {
            short: names.pop().map(str::to_string),
            long: long.ok_or_else(|| format!("no long form: {trimmed}"))?.to_string(),
            value,
            about: about.trim().to_string(),
        });
    }
    Ok(flags)
}

/// A wrapped text as one line.
fn filled(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A help text with everything that one may have.
    pub const SAMPLE: &str = "Serves the folder DIR over HTTP, or\na file.\n\nUsage: osier [serve] [DIR] [OPTIONS]\n       \
        osier check FILE.toml\n\nCommands:\n  serve  Serve a folder\n  check  Print every mistake\n\nOptions:\n  -l, --listen <ADDR>         Address, repeatable: HOST:PORT or PORT\n            \
        \x20                 [default: 127.0.0.1:8080]\n      --spa                   Send the user's [own] page\n      --header <NAME: VALUE>  Field\n      \
        --log <FORMAT>          Access log: combined, json or off [default: off]\n      --log-file <FILE>       File to append to\n  \
        -h, --help              Print help\n\nNames that start with a dot\nare hidden.\n";

    #[test]
    fn every_part_is_read() {
        let help = Help::read(SAMPLE).unwrap();
        assert_eq!(help.about, "Serves the folder DIR over HTTP, or a file.");
        assert_eq!(help.usage, ["osier [serve] [DIR] [OPTIONS]", "osier check FILE.toml"]);
        assert_eq!(help.names(), ["serve", "check"]);
        assert_eq!(help.commands[1].about, "Print every mistake");
        assert_eq!(help.notes, "Names that start with a dot are hidden.");
        let longs: Vec<&str> = help.options.iter().map(|flag| &*flag.long).collect();
        assert_eq!(
            longs,
            ["--listen", "--spa", "--header", "--log", "--log-file", "--help"]
        );
        let listen = &help.options[0];
        assert_eq!(
            (listen.short.as_deref(), listen.value.as_deref()),
            (Some("-l"), Some("ADDR"))
        );
        assert_eq!(
            listen.about,
            "Address, repeatable: HOST:PORT or PORT [default: 127.0.0.1:8080]"
        );
        assert!(listen.is_repeatable() && listen.choices().is_empty());
        assert_eq!(help.options[2].value.as_deref(), Some("NAME: VALUE"));
        assert_eq!(help.options[3].choices(), ["combined", "json", "off"]);
        assert!(help.options[4].takes_file() && !help.options[1].takes_file());
    }

    #[test]
    fn a_text_without_options_or_commands_is_refused() {
        assert!(Help::read("osier: no such option").is_err());
        assert!(Help::read("About\n\nUsage: osier\n\nCommands:\n  a  b\n\nOptions:\n").is_err());
        assert!(Help::read("About\n\nUsage: osier\n\nOptions:\n  --spa  Send\n").is_err());
    }
}
