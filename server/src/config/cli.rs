//! Reads the command line. A folder, or no argument, becomes a configuration with one site.
//!
//! Parsing opens no file that a user names; it only asks whether there is one. Every refusal is one line: the argument,
//! its value, and the remedy.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use osier_web::compress;

use crate::certificates::settings::CertificateFrom;
use crate::handler::{Files, HandlerSettings, Welcome};
use crate::log::access::LogFormat;
use crate::log::settings::To;
use crate::policy::headers::Field;
use crate::reader::{nearest, value};

use super::address::{Address, DEFAULT_ADDRESS};
use super::check::collide;
use super::origin::Origin;
use super::settings::*;
use super::tls::DEFAULT_TLS_ADDRESS;

/// The forms of a command line, and the commands. clap wraps none of these lines, so they fit 80 columns.
const USAGE: &str = "osier [serve] [DIR] [OPTIONS]
       osier [serve] FILE.toml
       osier check [--strict] FILE.toml
       osier trust [FILE.toml]
       osier upgrade {FILE.toml | PID}
       osier top [--once] ADDR

Commands:
  serve    Serve DIR, the sites of FILE.toml, or without either a welcome site
  check    Print every mistake of a file with its place, and serve nothing
  trust    Print where the internal root certificate is, and how to trust it
  upgrade  Hand a running server over to a new process, losing no connection
  top      Show what a running server does, from its [admin] listener";

#[derive(Parser, Debug)]
#[command(
    name = "osier",
    version,
    about = "Serves a folder, the sites of a configuration file, or a built-in welcome site over HTTP.",
    override_usage = USAGE,
    after_help = "A file's x.br, x.zst or x.gz is sent in its place to clients that ask for it. Names that start with a dot \
                  are hidden, except below /.well-known/. Ctrl-C and SIGTERM let transfers finish; a second one ends \
                  at once.",
    max_term_width = 110
)]
struct Line {
    /// `serve`, `check`, `trust`, `upgrade` or `top`; DIR, FILE.toml or ADDR
    #[arg(value_name = "DIR", num_args = 0.., hide = true)]
    words: Vec<OsString>,
    /// Address to listen on, repeatable: HOST:PORT, PORT (this machine only) or :PORT (every IPv4 address) [default: 127.0.0.1:8080]
    #[arg(short, long = "listen", value_name = "ADDR")]
    listen: Vec<Address>,
    /// Worker threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = worker_count)]
    workers: Option<usize>,
    /// Send /index.html for missing pages, as single-page applications need
    #[arg(long)]
    spa: bool,
    /// List folders that have no index.html (the default without --spa)
    #[arg(long, overrides_with = "no_listing")]
    listing: bool,
    /// Answer 404 for folders that have no index.html
    #[arg(long, overrides_with = "listing")]
    no_listing: bool,
    /// Field added to every response, repeatable
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<Field>,
    /// Access log: combined, json or off [default: off, or combined with --log-file]
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true)]
    log: Option<LogFormat>,
    /// File to append the access log to, instead of standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Time that in-flight requests get at shutdown, in seconds or as 1m30s or 500ms [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = drain_time)]
    drain: Option<Duration>,
    /// Address for /health, /metrics and /fibers [default: none]
    #[arg(long, value_name = "ADDR")]
    admin: Option<Address>,
    /// Show the welcome site's live data and fibers to other machines too (only without DIR)
    #[arg(long)]
    live_for_all: bool,
    /// Count warnings as mistakes (only with check)
    #[arg(long)]
    strict: bool,
    /// Print the view once, and do not write it again (only with top)
    #[arg(long)]
    once: bool,
}

/// The commands, each with the message for a word too many.
const COMMANDS: [(&str, &str); 5] = [
    ("serve", "only one folder or file can be served"),
    ("check", "'check' takes one file"),
    ("trust", "'trust' takes one file"),
    ("upgrade", "'upgrade' takes one file or process id"),
    ("top", "'top' takes one address"),
];

/// The longest time that `--drain` takes.
const LONGEST_DRAIN: Duration = Duration::from_secs(86_400);

/// The task that a command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Serve a folder, the welcome site, or the sites of a configuration file.
    Serve(Origin),
    /// Print the mistakes and warnings of a configuration file.
    Check {
        file: PathBuf,
        /// Whether warnings count as mistakes.
        strict: bool,
    },
    /// Print where the root certificate of the internal authority is, and how others learn to trust it. The file may
    /// name the state folder.
    Trust(Option<PathBuf>),
    /// Make a running server hand over to a new process. The server is that of a configuration file with `pid_file`, or
    /// the process with this id.
    Upgrade(PathBuf),
    /// Show what a running server does, from its admin listener.
    Top { address: String, once: bool },
}

/// The end of a run that serves nothing: the text to print and the exit status.
#[derive(Debug)]
pub struct Exit {
    /// Several lines for help, a single line for an error.
    pub text: String,
    /// 0 for help and version, 2 for mistakes.
    pub status: u8,
}

/// Parses a command line, program name first.
///
/// # Errors
/// The text and status to exit with: help and version as well as mistakes.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
    let line = Line::try_parse_from(line).map_err(|error| explain(&error))?;
    let mut words = line.words.clone();
    let named = COMMANDS
        .iter()
        .find(|(name, _)| words.first().is_some_and(|word| word == name));
    match named {
        Some(_) => drop(words.remove(0)),
        None => refuse_unknown(words.first())?,
    }
    let (command, takes) = named.unwrap_or(&COMMANDS[0]);
    if let Some(word) = words.get(1) {
        return Err(mistake(format!("unexpected argument '{}': {takes}", word.display())));
    }
    if line.strict && *command != "check" {
        return Err(mistake(
            "--strict is only for 'check': osier check --strict FILE.toml".into(),
        ));
    }
    if line.once && *command != "top" {
        return Err(mistake("--once is only for 'top': osier top --once ADDR".into()));
    }
    match (*command, words.pop().map(PathBuf::from)) {
        ("top", Some(address)) => {
            line.refuse_options("top")?;
            Ok(Command::Top {
                address: address.display().to_string(),
                once: line.once,
            })
        }
        ("top", None) => Err(mistake(
            "'top' needs the address of [admin]: osier top 127.0.0.1:9090".into(),
        )),
        ("trust", file) => {
            line.refuse_options("trust")?;
            Ok(Command::Trust(file))
        }
        ("upgrade", Some(of)) => {
            line.refuse_options("upgrade")?;
            Ok(Command::Upgrade(of))
        }
        ("upgrade", None) => Err(mistake(
            "'upgrade' needs the file of the running server, or its process id: osier upgrade FILE.toml".into(),
        )),
        ("check", Some(file)) => {
            line.refuse_options(&file.display().to_string())?;
            Ok(Command::Check {
                file,
                strict: line.strict,
            })
        }
        ("check", None) => Err(mistake("'check' needs a file: osier check FILE.toml".into())),
        (_, Some(file)) if is_configuration(&file) => {
            line.refuse_options(&file.display().to_string())?;
            Ok(Command::Serve(Origin::File(file)))
        }
        (_, folder) => {
            let config = configuration(line, folder)?;
            Ok(Command::Serve(Origin::Line(Box::new(config))))
        }
    }
}

/// Refuses a first word that looks like a misspelled command and names no file.
fn refuse_unknown(word: Option<&OsString>) -> Result<(), Exit> {
    let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_alphabetic()) && !Path::new(word).exists();
    let Some(word) = word.and_then(|word| word.to_str()).filter(is_word) else {
        return Ok(());
    };
    match nearest(word, COMMANDS.iter().map(|(name, _)| *name)) {
        Some(guess) => Err(mistake(format!("unknown command '{word}' (did you mean '{guess}'?)"))),
        None => Ok(()),
    }
}

/// Whether `path` names a configuration file: a file is there, or the name ends in `.toml`. A user writes a folder with
/// such a name with a trailing slash.
fn is_configuration(path: &Path) -> bool {
    path.is_file()
        || path.extension().is_some_and(|extension| extension == "toml") && !path.as_os_str().as_bytes().ends_with(b"/")
}

impl Line {
    /// Refuses options beside `word`, a configuration file or a command. Every setting of a server with a file stands
    /// in the file.
    fn refuse_options(&self, word: &str) -> Result<(), Exit> {
        let given = [
            ("--listen", !self.listen.is_empty()),
            ("--workers", self.workers.is_some()),
            ("--spa", self.spa),
            ("--listing", self.listing),
            ("--no-listing", self.no_listing),
            ("--header", !self.header.is_empty()),
            ("--log", self.log.is_some()),
            ("--log-file", self.log_file.is_some()),
            ("--drain", self.drain.is_some()),
            ("--admin", self.admin.is_some()),
            ("--live-for-all", self.live_for_all),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(mistake(format!(
                "{option} cannot be used with '{word}': set it in the file"
            ))),
            None => Ok(()),
        }
    }
}

/// Parses the value of `--workers`.
fn worker_count(text: &str) -> Result<usize, &'static str> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or("write a whole number from 1 to 1024")
}

/// Parses the value of `--drain`: seconds, or a duration as a configuration file has it.
fn drain_time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    seconds
        .or_else(|| value::duration(text))
        .filter(|time| *time <= LONGEST_DRAIN)
        .ok_or_else(|| "write seconds, or a duration like 10s, 1m30s or 500ms; at most 1d".into())
}

/// Refuses an address that two options name.
fn refuse_shared(listen: &[Address], admin: Option<Address>) -> Result<(), Exit> {
    let named = listen.iter().map(|address| ("-l", *address));
    let named: Vec<_> = named.chain(admin.map(|address| ("--admin", address))).collect();
    for (index, (option, Address(one))) in named.iter().enumerate() {
        let mut earlier = named[..index].iter();
        let same = earlier.find(|(_, Address(other))| collide(&Bind::Tcp(*one), &Bind::Tcp(*other)));
        if let Some((first, Address(other))) = same {
            return Err(mistake(format!(
                "{first} {other} and {option} {one} name the same address: give each an address of its own"
            )));
        }
    }
    Ok(())
}

/// Builds the configuration that a command line stands for: one site with one route.
fn configuration(line: Line, folder: Option<PathBuf>) -> Result<Config, Exit> {
    let log = log_format(&line)?;
    let (handler, policies) = handler(&line, folder)?;
    // The built-in site shows https too. Whoever serves a folder may expect no further listener.
    let has_https = line.listen.is_empty() && matches!(handler, HandlerSettings::Welcome(_));
    let listen = match line.listen.as_slice() {
        [] => &[DEFAULT_ADDRESS.parse().expect("a literal that a test parses")],
        listen => listen,
    };
    refuse_shared(listen, line.admin)?;
    let mut config = Config {
        workers: line.workers,
        drain: line.drain.unwrap_or(DRAIN),
        log: Log {
            format: log.into(),
            to: line.log_file.map_or(To::Stderr, To::File),
        },
        admin: line.admin.map(|Address(address)| Admin {
            bind: Bind::Tcp(address),
        }),
        ..Config::new(
            listen.iter().map(|Address(address)| Bind::Tcp(*address)),
            Site::new(handler, policies),
        )
    };
    if has_https {
        offer_https(&mut config);
    }
    Ok(config)
}

/// The format of the access log. A file for a log that is off is a mistake.
fn log_format(line: &Line) -> Result<LogFormat, Exit> {
    let has_file = line.log_file.is_some();
    match line.log {
        Some(LogFormat::Off) if has_file => Err(mistake(
            "--log-file with '--log off': choose --log combined or --log json, or leave the file out".into(),
        )),
        Some(format) => Ok(format),
        None if has_file => Ok(LogFormat::Combined),
        None => Ok(LogFormat::Off),
    }
}

/// The handler of the one route, and the policies around it.
fn handler(line: &Line, folder: Option<PathBuf>) -> Result<(HandlerSettings, Policies), Exit> {
    let mut policies = Policies::default();
    let fields = line.header.iter();
    policies.headers.set = fields.map(|field| (field.name.clone(), field.value.clone())).collect();
    let of_folders = [
        ("--spa", line.spa),
        ("--listing", line.listing),
        ("--no-listing", line.no_listing),
    ];
    let of_folders = of_folders.into_iter().find(|(_, given)| *given);
    if let (None, Some((option, _))) = (&folder, of_folders) {
        return Err(mistake(format!(
            "{option} needs a DIR: the welcome site has no folders"
        )));
    }
    let handler = match folder {
        None => HandlerSettings::Welcome(Welcome {
            live_for_all: line.live_for_all,
        }),
        Some(folder) if line.live_for_all => {
            return Err(mistake(format!(
                "--live-for-all cannot be used with '{}': only the welcome site, which has no folder, knows it",
                folder.display()
            )));
        }
        Some(root) => {
            policies.compress = Setting::On(compress::Options::default());
            let mut files = Files::new(root);
            files.options.listing = line.listing || !(line.no_listing || line.spa);
            files.options.spa = line.spa;
            HandlerSettings::Files(files)
        }
    };
    Ok((handler, policies))
}

/// Adds a listener for https, with certificates of the internal authority, unless another program has its address.
fn offer_https(config: &mut Config) {
    let Address(address) = DEFAULT_TLS_ADDRESS.parse().expect("a literal that a test parses");
    if config
        .admin
        .as_ref()
        .is_some_and(|admin| collide(&admin.bind, &Bind::Tcp(address)))
    {
        return;
    }
    let site = &mut config.sites[0];
    site.tls.certificate = Some(CertificateFrom::Internal);
    site.listeners.push(config.listeners.len());
    config.listeners.push(Listener {
        tls: Some(ListenTls::default()),
        is_optional: true,
        ..Listener::new(Bind::Tcp(address))
    });
}

/// The end of a run with a mistake in the command line.
fn mistake(what: String) -> Exit {
    Exit {
        text: format!("osier: {what}; see osier --help"),
        status: 2,
    }
}

/// Shortens clap's error, a paragraph with usage, to its first sentence and its suggestion.
fn explain(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        return Exit {
            text: error.render().to_string().trim_end().to_string(),
            status: 0,
        };
    }
    if let (ErrorKind::TooManyValues, Some(ContextValue::String(option))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    {
        return mistake(format!("{option} takes no value"));
    }
    let text = error.render().to_string();
    let sentence = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let mut sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(ContextValue::String(guess)) = error.get(ContextKind::SuggestedArg) {
        sentence.push_str(&format!(" (did you mean {guess}?)"));
    }
    mistake(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::settings::Format;
    use clap::CommandFactory;

    fn command(line: &str) -> Result<Command, Exit> {
        parse(
            std::iter::once("osier")
                .chain(line.split_whitespace())
                .map(OsString::from),
        )
    }

    fn parsed(line: &str) -> Result<Config, Exit> {
        command(line).map(|command| match command {
            Command::Serve(Origin::Line(config)) => *config,
            other => panic!("{line}: {other:?}"),
        })
    }

    /// The files of the only route. None for the welcome site.
    fn files(config: &Config) -> Option<&Files> {
        match &config.sites[0].routes[0].handler {
            HandlerSettings::Files(files) => Some(files),
            _ => None,
        }
    }

    #[test]
    fn a_file_is_told_from_a_folder_by_its_name() {
        for (line, expected) in [
            ("site.toml", "Serve(File(\"site.toml\"))"),
            ("serve etc/site.toml", "Serve(File(\"etc/site.toml\"))"),
            ("check site.toml", "Check { file: \"site.toml\", strict: false }"),
            ("check --strict any.conf", "Check { file: \"any.conf\", strict: true }"),
            ("trust", "Trust(None)"),
            ("upgrade site.toml", "Upgrade(\"site.toml\")"),
            ("upgrade 4711", "Upgrade(\"4711\")"),
            ("top --once :9000", "Top { address: \":9000\", once: true }"),
            ("trust site.toml", "Trust(Some(\"site.toml\"))"),
            ("serve check", "Serve(Line("),
            ("./trust", "Serve(Line("),
            ("./check", "Serve(Line("),
            ("www.toml/", "Serve(Line("),
        ] {
            let found = format!("{:?}", command(line).unwrap());
            assert!(found.starts_with(expected), "{line}: {found}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Line::command().debug_assert();
    }

    #[test]
    fn nothing_means_the_welcome_site() {
        let config = parsed("").unwrap();
        assert_eq!(files(&config), None);
        let address = Bind::Tcp("127.0.0.1:8080".parse().unwrap());
        let https = Bind::Tcp("127.0.0.1:8443".parse().unwrap());
        assert_eq!(
            config.listeners.iter().map(|one| &one.bind).collect::<Vec<_>>(),
            [&address, &https]
        );
        assert!(config.listeners[1].is_optional);
        for line in ["-l 8080", "www", "--admin 8443"] {
            assert_eq!(parsed(line).unwrap().listeners.len(), 1, "{line}");
        }
        assert_eq!((config.workers, &config.log, &config.admin), (None, &Log::OFF, &None));
    }

    #[test]
    fn forms_of_the_line() {
        for (line, folder) in [
            ("serve", None),
            ("www", Some("www")),
            ("serve www", Some("www")),
            ("serve serve", Some("serve")),
            ("./serve", Some("./serve")),
            ("-w 2 serve www --spa", Some("www")),
            ("www -w 2", Some("www")),
        ] {
            let config = parsed(line).unwrap();
            assert_eq!(
                files(&config).map(|files| &*files.root),
                folder.map(Path::new),
                "{line}"
            );
        }
        let line = "www -l 8081 -l [::1]:80 -l :82 -w 3 --no-listing --listing --log-file x --drain 0 --admin 9090";
        let config = parsed(line).unwrap();
        assert_eq!(config.listeners.len(), 3);
        assert_eq!(
            (config.workers, files(&config).unwrap().options.listing),
            (Some(3), true)
        );
        assert_eq!((config.log.format, config.drain), (Format::Combined, Duration::ZERO));
        let admin = Bind::Tcp("127.0.0.1:9090".parse().unwrap());
        assert_eq!(config.admin, Some(Admin { bind: admin }));
        for (line, millis) in [
            ("--drain 5", 5000),
            ("--drain 5s", 5000),
            ("www --drain 1m500ms", 60_500),
        ] {
            assert_eq!(parsed(line).unwrap().drain, Duration::from_millis(millis), "{line}");
        }
        assert!(
            parsed("www -l 0 -l 0 --admin 0").is_ok(),
            "port 0 is another port each time"
        );
        for (line, listing) in [
            ("www --listing --no-listing", false),
            ("www --no-listing --listing", true),
            ("www --spa", false),
            ("www --spa --listing", true),
        ] {
            assert_eq!(
                files(&parsed(line).unwrap()).unwrap().options.listing,
                listing,
                "{line}"
            );
        }
    }

    #[test]
    fn mistakes_are_one_line_and_status_2() {
        for (line, expected) in [
            ("--foo", "--foo"),
            ("--spaa", "--spa"),
            (
                "a b",
                "unexpected argument 'b': only one folder or file can be served; see",
            ),
            ("serve a b", "'b': only one folder"),
            ("a b c", "'b': only one folder"),
            ("check a b c", "unexpected argument 'b': 'check' takes one file; see"),
            ("trust a b", "'b': 'trust' takes one file; see"),
            ("upgrade a b", "'b': 'upgrade' takes one file or process id; see"),
            ("top :1 :2", "':2': 'top' takes one address; see"),
            ("www --live-for-all", "'www'"),
            (
                "-w 0",
                "'0' for '--workers <N>': write a whole number from 1 to 1024; see",
            ),
            (
                "-w two",
                "'two' for '--workers <N>': write a whole number from 1 to 1024; see",
            ),
            ("--spa=1", "osier: --spa takes no value; see"),
            (
                "chekc site.toml",
                "osier: unknown command 'chekc' (did you mean 'check'?); see",
            ),
            ("chekc site.toml x", "unknown command 'chekc'"),
            ("serv", "unknown command 'serv' (did you mean 'serve'?)"),
            ("-w", "--workers"),
            ("-l 127.0.0.1", "'127.0.0.1'"),
            ("-l 127.0.0.1:99999", "'127.0.0.1:99999'"),
            ("-l 99999", ": 99999 is not a port (1 to 65535); see"),
            ("--spa", "--spa needs a DIR"),
            ("--listing", "--listing needs a DIR"),
            ("serve --no-listing", "--no-listing needs a DIR"),
            ("www --drain 5x", ": write seconds, or a duration like 10s"),
            ("www --drain 2d", "at most 1d"),
            (
                "www -l 81 --admin 81",
                "-l 127.0.0.1:81 and --admin 127.0.0.1:81 name the same address",
            ),
            ("www --admin 8080", "-l 127.0.0.1:8080 and --admin 127.0.0.1:8080 name"),
            ("-l :81 -l 81", "-l 0.0.0.0:81 and -l 127.0.0.1:81 name"),
            ("--header X", "'X'"),
            ("--log xml", "'xml'"),
            ("--log off --log-file x", "--log-file"),
            ("check", "osier check FILE.toml"),
            ("upgrade", "osier upgrade FILE.toml"),
            ("top", "osier top 127.0.0.1:9090"),
            ("site.toml --once", "--once is only for 'top'"),
            ("upgrade -l 80 site.toml", "--listen cannot be used with 'upgrade'"),
            ("check a.toml b.toml", "'b.toml'"),
            ("trust -l 80", "--listen cannot be used with 'trust'"),
            ("site.toml --strict", "--strict is only for 'check'"),
            ("site.toml -l 80", "--listen"),
            ("site.toml --drain 10", "--drain"),
            ("check site.toml --spa", "osier: --spa cannot be used with 'site.toml'"),
        ] {
            let exit = parsed(line).unwrap_err();
            assert_eq!(exit.status, 2, "{line}");
            assert!(exit.text.contains(expected), "{line}: {}", exit.text);
            assert!(
                exit.text.starts_with("osier: ") && exit.text.ends_with("see osier --help"),
                "{line}: {}",
                exit.text
            );
            assert_eq!(exit.text.lines().count(), 1, "{line}: {}", exit.text);
        }
    }

    #[test]
    fn the_help_has_a_line_for_each_command() {
        let (forms, commands) = USAGE.split_once("\n\nCommands:\n").unwrap();
        let forms = forms.lines().map(|form| form.split_whitespace().nth(1).unwrap());
        let mut used: Vec<&str> = forms.map(|word| word.trim_matches(['[', ']'])).collect();
        used.dedup();
        let told = commands.lines().map(|line| line.split_whitespace().next().unwrap());
        assert_eq!(told.collect::<Vec<_>>(), used);
        assert!(USAGE.lines().all(|line| line.len() <= 80));
        assert!(parsed("--help").unwrap_err().text.contains(commands));
    }

    #[test]
    fn help_fits_a_screen() {
        let help = parsed("--help").unwrap_err().text;
        println!("{help}");
        let lines = help.lines().count();
        assert!((20..=40).contains(&lines), "{lines} lines:\n{help}");
        assert_eq!(parsed("--help").unwrap_err().status, 0);
        assert_eq!(parsed("--version").unwrap_err().status, 0);
    }
}
