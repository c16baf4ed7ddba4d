//! Commands: how they are started, read, limited in time, and shown.
//!
//! Several steps run at the same time, each on a thread. The output of such a step is held back and printed whole at its
//! end ([`held`]). Whatever a step prints goes through [`say`].

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

thread_local! {
    /// Output that waits for the end of its step.
    static HELD: RefCell<Option<String>> = const { RefCell::new(None) };
    /// CPU time of the commands that this thread ran.
    static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// How much commands give way to others, as `nice` counts it.
    static NICE: Cell<u8> = const { Cell::new(0) };
}

/// Holds back the thread's output from its creation to its end.
pub struct Held;

/// Holds back what this thread says until the value is dropped.
pub fn held() -> Held {
    HELD.set(Some(String::new()));
    Held
}

impl Drop for Held {
    fn drop(&mut self) {
        print!("{}", HELD.take().unwrap_or_default());
    }
}

/// Prints a line, or holds it back.
pub fn say(line: &str) {
    HELD.with_borrow_mut(|held| match held {
        Some(text) => text.extend([line, "\n"]),
        None => println!("{line}"),
    });
}

/// Makes the commands of this thread give way to those of threads that are less nice. Zero is not nice, and 19 is the most.
pub fn be_nice(niceness: u8) {
    NICE.set(niceness);
}

/// How much the commands of this thread give way to others.
pub fn niceness() -> u8 {
    NICE.get()
}

/// CPU time of the commands that this thread ran.
pub fn cpu_time() -> Duration {
    CPU.get()
}

/// Counts CPU time of commands that another thread ran for this one.
pub fn add_cpu_time(more: Duration) {
    CPU.set(CPU.get() + more);
}

/// Whether a person sits at the terminal. Continuous integration sets `CI`.
pub fn is_attended() -> bool {
    std::io::stdin().is_terminal() && std::env::var_os("CI").is_none()
}

/// `cargo`, without what `cargo run` passed to this process about the package xtask: a build script or a test that reads
/// these variables would otherwise see the wrong package.
pub fn cargo() -> Command {
    clean(Command::new(
        std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
    ))
}

/// `cargo` of the nightly toolchain; only where [`nightly`] said yes.
pub fn nightly_cargo() -> Command {
    let mut command = clean(Command::new("rustup"));
    command.args(["run", "nightly", "cargo"]);
    command
}

/// Whether the nightly toolchain is there, else why not.
pub fn nightly() -> Result<(), String> {
    match succeeds(nightly_cargo().arg("--version")) {
        true => Ok(()),
        false => Err("no nightly toolchain (rustup toolchain install nightly)".into()),
    }
}

/// Whether `cargo SUBCOMMAND` of the nightly toolchain is there, else why not.
pub fn has_nightly(subcommand: &str) -> Result<(), String> {
    nightly()?;
    match succeeds(nightly_cargo().args([subcommand, "--version"])) {
        true => Ok(()),
        false => Err(format!("the nightly toolchain has no cargo {subcommand}")),
    }
}

/// Runs quietly; true if it could be started and ended well.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let told_by_cargo = name.to_str().is_some_and(|name| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
                .iter()
                .any(|p| name.starts_with(p))
        });
        if told_by_cargo {
            command.env_remove(name);
        }
    }
    command
}

/// Prints the command and its output, and says whether it ended well. `line` returns whether a line is printed.
pub fn run(command: &mut Command, limit: Duration, mut line: impl FnMut(&str) -> bool) -> bool {
    say(&format!("\n$ {}", shown(command)));
    let ended = each_line(command, limit, |text| {
        if line(text) {
            say(text);
        }
    });
    add_cpu_time(ended.cpu);
    ended.ok
}

/// How a command ended.
#[derive(Default)]
pub struct Ended {
    pub ok: bool,
    pub cpu: Duration,
}

/// Runs `command` and gives every line of its two outputs, in order, to `line`.
///
/// The command is killed with all its children after `limit`, and when this process ends before it, but only where no
/// terminal is attached: a person has Ctrl-C.
pub fn each_line(command: &mut Command, limit: Duration, mut line: impl FnMut(&str)) -> Ended {
    let mut wrapped;
    let command = if NICE.get() > 0 {
        wrapped = niced(command);
        &mut wrapped
    } else {
        command
    };
    let unattended = !std::io::stdin().is_terminal();
    if unattended {
        command.process_group(0);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe needs two free file descriptors");
    let err = writer.try_clone().expect("a pipe needs two free file descriptors");
    let spawned = command.stdin(Stdio::null()).stdout(writer).stderr(err).spawn();
    // The command holds the writing ends until it is overwritten: without this the reader would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            line(&format!("{}: {error}", command.get_program().display()));
            return Ended::default();
        }
    };

    let (done, waiting) = mpsc::channel::<()>();
    let group = child.id();
    let guard = if unattended { Guard::of(group) } else { None };
    let watchdog = std::thread::spawn(move || {
        let timed_out = waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        let kills = timed_out && unattended;
        if kills {
            succeeds(Command::new("sh").args(["-c", &format!("kill -9 -{group}")]));
        }
        kills
    });
    for text in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        line(&String::from_utf8_lossy(&text));
    }
    let cpu = cpu_of(&child);
    let status = child.wait();
    if let Some(guard) = guard {
        guard.dismiss();
    }
    drop(done);
    if watchdog.join().unwrap_or(false) {
        line(&format!("killed: still running after {} s", limit.as_secs()));
    }
    Ended {
        ok: status.is_ok_and(|status| status.success()),
        cpu,
    }
}

/// A shell that kills a process group when this process ends before the group's command. However this process ends, the
/// shell then reads the end of its input.
struct Guard(Child);

impl Guard {
    /// Guards a group; `None` where no shell can be started.
    fn of(group: u32) -> Option<Guard> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read -r word || kill -9 -{group}")]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A signal for the group of this process must not reach the shell.
        shell.process_group(0).spawn().ok().map(Guard)
    }

    /// Ends the shell. The group stays.
    fn dismiss(mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"ended\n");
        }
        let _ = self.0.wait();
    }
}

/// The same command with a lower priority.
fn niced(command: &Command) -> Command {
    let mut wrapped = Command::new("nice");
    wrapped
        .args(["-n", &NICE.get().to_string()])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

/// CPU time of a process that has closed its outputs, its waited-for children included; zero where `/proc` does not have it.
///
/// An ended process keeps its times until it is waited for.
fn cpu_of(child: &Child) -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let start = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        // The name of the program, in parentheses, may have spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let has_ended = fields.first().is_none_or(|state| *state == "Z");
        if has_ended || start.elapsed() > Duration::from_millis(100) {
            let times = fields.iter().skip(11).take(4);
            let ticks: u64 = times.filter_map(|field| field.parse::<u64>().ok()).sum();
            return Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The standard output of a program; nothing if it could not be run.
pub fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::null()).output();
    String::from_utf8_lossy(&output.map(|output| output.stdout).unwrap_or_default()).into_owned()
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut words: Vec<String> = set.map(|(n, v)| format!("{}='{}'", n.display(), v.display())).collect();
    let program = std::path::Path::new(command.get_program());
    words.push(
        program
            .file_name()
            .unwrap_or(command.get_program())
            .display()
            .to_string(),
    );
    words.extend(command.get_args().map(|arg| arg.display().to_string()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_guard_kills_the_group_unless_it_is_dismissed() {
        let sleeper = || {
            let mut command = Command::new("sh");
            command
                .args(["-c", "sleep 60 & wait"])
                .process_group(0)
                .spawn()
                .unwrap()
        };
        let (mut left, mut kept) = (sleeper(), sleeper());
        // The pipe of a process that ends is closed.
        drop(Guard::of(left.id()).unwrap().0.stdin.take());
        assert_eq!(left.wait().unwrap().signal(), Some(9));
        Guard::of(kept.id()).unwrap().dismiss();
        assert_eq!(kept.try_wait().unwrap(), None);
        assert!(succeeds(
            Command::new("sh").args(["-c", &format!("kill -9 -{}", kept.id())])
        ));
        kept.wait().unwrap();
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        if std::io::stdin().is_terminal() {
            println!("skipped: limits apply only without a terminal on the standard input");
            return;
        }
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 600"]);
        let mut lines = vec![];
        let ended = each_line(&mut command, Duration::from_millis(200), |line| {
            lines.push(line.to_string())
        });
        assert!(!ended.ok && lines.last().is_some_and(|line| line.starts_with("killed")));
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn cpu_time_of_a_command_and_its_children_is_counted() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; sh -c 'echo x'",
        ]);
        let before = cpu_time();
        assert!(run(&mut command, Duration::from_secs(60), |_| false));
        assert!(cpu_time() > before);
    }

    #[test]
    fn output_of_a_thread_is_held_back_until_its_end() {
        std::thread::spawn(|| {
            let held = held();
            say("one");
            assert_eq!(HELD.with_borrow(|text| text.clone()), Some("one\n".to_string()));
            drop(held);
            assert_eq!(HELD.with_borrow(|text| text.clone()), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_nice_command_keeps_its_environment() {
        let mut command = Command::new("sh");
        command.args(["-c", "test \"$A\" = b"]).env("A", "b").current_dir("/");
        assert!(succeeds(&mut niced(&command)));
    }
}
