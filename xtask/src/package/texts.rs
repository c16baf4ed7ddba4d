//! The texts of a package, made and checked: manual pages, completions, and the licences of what the binary contains.
//!
//! Their sources are the help text of a binary, `docs/configuration.md`, `docs/rewrite.md` and the table of signals in
//! `docs/guide/src/deployment.md`. So none of them is written twice.

use super::build::dist;
use super::help::Help;
use super::manual::{self, Edition};
use super::{completions, epoch};
use crate::step::{self, Outcome};
use crate::{peers, root};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A made text, and its place below `/usr/share`.
pub struct Text {
    pub place: &'static str,
    pub text: String,
}

/// The width at which clap wraps the help: its own limit, so that most texts need one line.
const COLUMNS: &str = "110";

/// Makes the manual pages and the completions. `binary` is one that runs here.
///
/// # Errors
/// One line, when a source is not what it should be.
pub fn make(binary: &Path) -> Result<Vec<Text>, String> {
    let help = Help::read(&step::output(
        Command::new(binary).arg("--help").env("COLUMNS", COLUMNS),
    ))?;
    let read = |path: &str| std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"));
    let deployment = read("docs/guide/src/deployment.md")?;
    let signals = manual::table(&deployment, "signal").ok_or("the chapter on deployment has no table of signals")?;
    let edition = Edition {
        version: env!("CARGO_PKG_VERSION").into(),
        date: epoch::date("+%Y-%m-%d"),
    };
    let text = |place, text| Text { place, text };
    Ok(vec![
        text("man/man1/osier.1", manual::command(&help, &signals, &edition)),
        text(
            "man/man5/osier-site.toml.5",
            manual::configuration(&read("docs/configuration.md")?, &edition),
        ),
        text(
            "man/man7/osier-rewrite.7",
            manual::rewriting(&read("docs/rewrite.md")?, &edition),
        ),
        text("bash-completion/completions/osier", completions::bash(&help)),
        text("zsh/vendor-completions/_osier", completions::zsh(&help)),
        text("fish/vendor_completions.d/osier.fish", completions::fish(&help)),
    ])
}

/// A program that reads a kind of text and complains about what is wrong in it.
struct Reader {
    /// Where the texts lie that it reads.
    kind: &'static str,
    program: &'static str,
    args: &'static [&'static str],
}

/// The programs that check the texts. Each gets the path of a text as its last argument; what it prints is a finding.
const READERS: &[Reader] = &[
    Reader {
        kind: "man/",
        program: "man",
        args: &["--warnings", "--encoding=UTF-8", "--local-file"],
    },
    Reader {
        kind: "man/",
        program: "mandoc",
        args: &["-T", "lint", "-W", "warning"],
    },
    Reader {
        kind: "bash-completion/",
        program: "bash",
        args: &["-n"],
    },
    Reader {
        kind: "zsh/",
        program: "zsh",
        args: &["-n"],
    },
    Reader {
        kind: "fish/",
        program: "fish",
        args: &["--no-execute"],
    },
];

/// Makes the texts from the help of `binary`, in `target/dist/share`, and lets the programs that will read them check them.
pub fn check(binary: &Path) -> Outcome {
    let start = Instant::now();
    let folder = dist().join("share");
    let texts = match make(binary) {
        Ok(texts) => texts,
        Err(why) => {
            let outcome = Outcome::one_check("manual", false, 0, "texts", start.elapsed());
            return Outcome {
                complaints: vec![format!("{}: {why}", binary.display())],
                ..outcome
            };
        }
    };
    let (mut findings, mut skipped, mut count) = (vec![], vec![], 0);
    for Text { place, text } in &texts {
        let path = folder.join(place);
        std::fs::create_dir_all(path.parent().expect("a text lies in a folder"))
            .expect("the folder of builds is writable");
        std::fs::write(&path, text).expect("the folder of builds is writable");
        for reader in READERS.iter().filter(|reader| place.starts_with(reader.kind)) {
            if !peers::is_there(reader.program) {
                skipped.push(format!("{place}: {} is not installed", reader.program));
                continue;
            }
            count += 1;
            findings.extend(
                reader
                    .findings(&path)
                    .into_iter()
                    .map(|line| format!("{place}: {line}")),
            );
        }
    }
    findings.iter().for_each(|finding| step::say(finding));
    let outcome = Outcome::one_check("manual", findings.is_empty(), count, "checks of texts", start.elapsed());
    Outcome {
        skipped,
        complaints: findings,
        ..outcome
    }
}

impl Reader {
    /// The first lines that the program complains with.
    fn findings(&self, path: &Path) -> Vec<String> {
        let mut command = Command::new(self.program);
        command
            .args(self.args)
            .arg(path)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80");
        let Ok(output) = command.output() else {
            return vec![format!("{} does not start", self.program)];
        };
        // mandoc writes its findings to its standard output, man writes the page there.
        let said = match self.program {
            "man" => output.stderr,
            _ => [output.stdout, output.stderr].concat(),
        };
        let said = String::from_utf8_lossy(&said).into_owned();
        let mut lines: Vec<String> = said.lines().take(10).map(str::to_string).collect();
        if lines.is_empty() && !output.status.success() {
            lines.push(format!("{} failed: {}", self.program, output.status));
        }
        lines
    }
}
