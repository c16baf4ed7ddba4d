//! Child processes with std's names. Waiting for a child suspends the fiber.
//!
//! The crate installs no handler for `SIGCHLD`. Each child has a descriptor of its own (a pidfd, Linux 5.3 and later)
//! that becomes readable when the child ends. Other code in the process may therefore wait for its own children as it
//! likes. Where there is none, one thread looks at all such children now and then, and a wait ends up to 50 ms late.

//   process/mod.rs        Command and Child
//   process/pipe.rs       ChildStdin, ChildStdout, ChildStderr
//   process/exit.rs       waiting for the end: a pidfd, or the lookout where there is none
//   process/lookout.rs    the thread for all children without a pidfd
//   process/reaper.rs     children that were dropped before they ended

mod exit;
mod lookout;
mod pipe;
mod reaper;

use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

pub use std::process::{ExitStatus, Output, Stdio};

pub use pipe::{ChildStderr, ChildStdin, ChildStdout};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::wait::sleep::Sleep;
use crate::wait::{self, Stop};
use crate::worker::affinity::unpinned;
use crate::worker::context::now;
use exit::Exit;

/// A program to start, as [`std::process::Command`].
///
/// ```
/// use osier::process::Command;
/// let output = osier::run(|| Command::new("echo").arg("hello").output())?;
/// assert!(output.status.success());
/// assert_eq!(output.stdout, b"hello\n");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Command {
    std: std::process::Command,
    /// Whether stdin, stdout and stderr were set. The defaults of `spawn` and `output` differ.
    set: [bool; 3],
    kill_on_drop: bool,
    leads_group: bool,
    output_limit: usize,
}

/// Settings that are std's own.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self $(, $value: $type)*) -> &mut Command {
            self.std.$name($($value),*);
            self
        }
    )*};
}

impl Command {
    /// The program at this path, or with this name in `PATH`. It gets no arguments, and this process's environment,
    /// directory, stdin, stdout and stderr.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        Command {
            std: std::process::Command::new(program),
            set: [false; 3],
            kill_on_drop: false,
            leads_group: false,
            output_limit: usize::MAX,
        }
    }

    settings! {
        /// Adds an argument.
        arg(arg: impl AsRef<OsStr>);
        /// Adds arguments.
        args(args: impl IntoIterator<Item = impl AsRef<OsStr>>);
        /// Sets an environment variable.
        env(key: impl AsRef<OsStr>, value: impl AsRef<OsStr>);
        /// Sets environment variables.
        envs(vars: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>);
        /// Removes an environment variable.
        env_remove(key: impl AsRef<OsStr>);
        /// Removes all environment variables.
        env_clear();
        /// Sets the working directory.
        current_dir(dir: impl AsRef<Path>);
    }

    /// Sets stdin. Default: inherited; empty for [`output`](Command::output).
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.set[0] = true;
        self.std.stdin(stdin);
        self
    }

    /// Sets stdout. Default: inherited; a pipe for [`output`](Command::output).
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.set[1] = true;
        self.std.stdout(stdout);
        self
    }

    /// Sets stderr. Default: inherited; a pipe for [`output`](Command::output).
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.set[2] = true;
        self.std.stderr(stderr);
        self
    }

    /// Puts the child into a process group: 0 is a new one, which has the child's id and itself as its first member. The default is the
    /// group of this process, as in std.
    ///
    /// The child's own children are in the new group, too, unless they leave it. [`Child::kill_group`] ends them all. The terminal's Ctrl-C
    /// goes to the group in its foreground, and so not to them.
    ///
    /// ```
    /// use osier::process::{Command, Stdio};
    /// use std::io::Read;
    ///
    /// osier::run(|| {
    ///     let mut shell = Command::new("sh").args(["-c", "sleep 3600 & wait"]).process_group(0).stdout(Stdio::piped()).spawn()?;
    ///     shell.kill_group()?;
    ///     assert!(!shell.wait()?.success());
    ///     // The sleep has gone as well: nobody holds the other end of the pipe.
    ///     assert_eq!(shell.stdout.take().expect("piped").read(&mut [0])?, 0);
    ///     std::io::Result::Ok(())
    /// })?;
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias("setpgid", "setsid"))]
    pub fn process_group(&mut self, group: i32) -> &mut Command {
        self.leads_group = group == 0;
        self.std.process_group(group);
        self
    }

    /// Sets whether dropping the [`Child`] kills a child that still runs. `false` by default, as in std. The child's own children are not
    /// killed.
    ///
    /// With it a [`timeout`](crate::timeout) ends the child, too:
    ///
    /// ```
    /// use osier::process::Command;
    /// use std::time::Duration;
    ///
    /// let limit = Duration::from_millis(10);
    /// let outcome = osier::run(|| osier::timeout(limit, || Command::new("sleep").arg("60").kill_on_drop(true).output()));
    /// assert!(outcome.is_err());
    /// ```
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Command {
        self.kill_on_drop = kill;
        self
    }

    /// Limits the bytes that [`output`](Command::output), [`Child::wait_with_output`] and a [`Child::collect_output`] take from each of the two
    /// pipes. A child that writes more makes the call fail, with `QuotaExceeded`. There is no limit by default, as in std: the memory for
    /// the output of a program that writes for ever has no end.
    ///
    /// ```
    /// use osier::process::Command;
    /// use std::io::ErrorKind;
    ///
    /// let outcome = osier::run(|| Command::new("yes").limit_output(1 << 20).output());
    /// assert_eq!(outcome.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    /// ```
    ///
    /// A [`timeout`](crate::timeout) around the call limits its time; see [`kill_on_drop`](Command::kill_on_drop).
    #[doc(alias = "maxBuffer")]
    pub fn limit_output(&mut self, bytes: usize) -> &mut Command {
        self.output_limit = bytes;
        self
    }

    /// The std command, for settings that only std has: user, group, `pre_exec`. [`output`](Command::output)
    /// overrides a stdin, stdout or stderr that is set there.
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.std
    }

    /// Starts the program.
    ///
    /// # Blocks the thread
    ///
    /// Until the system has started it or has failed to. A local program takes less than a millisecond.
    ///
    /// # Errors
    ///
    /// `NotFound`, `PermissionDenied` and other errors of the system.
    pub fn spawn(&mut self) -> io::Result<Child> {
        let mut started = unpinned(|| self.std.spawn())?;
        let (stdin, stdout, stderr) = (started.stdin.take(), started.stdout.take(), started.stderr.take());
        // Made first: if a pipe fails below, the Drop of `Child` takes care of the process.
        let mut child = Child {
            stdin: None,
            stdout: None,
            stderr: None,
            exit: Exit::of(&started),
            child: Some(started),
            is_reaped: false,
            kill_on_drop: self.kill_on_drop,
            leads_group: self.leads_group,
            output_limit: self.output_limit,
        };
        child.stdin = stdin.map(ChildStdin::new).transpose()?;
        child.stdout = stdout.map(ChildStdout::new).transpose()?;
        child.stderr = stderr.map(ChildStderr::new).transpose()?;
        Ok(child)
    }

    /// Runs the program and waits for its end.
    ///
    /// # Suspends
    ///
    /// Until it ends. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call; the child goes on, unless [`kill_on_drop`](Command::kill_on_drop) was set.
    ///
    /// # Errors
    ///
    /// The errors of [`spawn`](Command::spawn).
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// [`status`](Command::status) as a future. It starts the program when it is first polled.
    ///
    /// # Errors
    ///
    /// The errors of [`spawn`](Command::spawn).
    pub async fn status_async(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait_async().await
    }

    /// Runs the program, collects its output and waits for its end. Its stdin is empty unless set otherwise.
    ///
    /// # Suspends
    ///
    /// Until it ends and every process that holds its stdout or stderr has closed them. Blocks the thread when called
    /// on a plain one.
    ///
    /// # Cancellation
    ///
    /// The same as for [`status`](Command::status).
    ///
    /// # Errors
    ///
    /// The errors of [`spawn`](Command::spawn) and of [`Child::wait_with_output`].
    pub fn output(&mut self) -> io::Result<Output> {
        self.spawn_for_output()?.wait_with_output()
    }

    /// [`output`](Command::output) as a future. It starts the program when it is first polled.
    ///
    /// # Errors
    ///
    /// The errors of [`spawn`](Command::spawn).
    pub async fn output_async(&mut self) -> io::Result<Output> {
        self.spawn_for_output()?.wait_with_output_async().await
    }

    fn spawn_for_output(&mut self) -> io::Result<Child> {
        self.set_others(Stdio::null, Stdio::piped);
        let child = self.spawn();
        self.set_others(Stdio::inherit, Stdio::inherit);
        child
    }

    /// Sets the streams that the caller has not set.
    fn set_others(&mut self, input: fn() -> Stdio, output: fn() -> Stdio) {
        let [stdin, stdout, stderr] = self.set;
        if !stdin {
            self.std.stdin(input());
        }
        if !stdout {
            self.std.stdout(output());
        }
        if !stderr {
            self.std.stderr(output());
        }
    }
}

/// A child process, as [`std::process::Child`].
///
/// ```
/// use osier::process::{Command, Stdio};
/// use std::io::{Read, Write};
/// osier::run(|| {
///     let mut child = Command::new("tr").args(["a-z", "A-Z"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///     child.stdin.take().expect("piped").write_all(b"hello")?;
///     let mut text = String::new();
///     child.stdout.take().expect("piped").read_to_string(&mut text)?;
///     assert_eq!(text, "HELLO");
///     assert!(child.wait()?.success());
///     std::io::Result::Ok(())
/// })?;
/// # std::io::Result::Ok(())
/// ```
///
/// Dropping it leaves the child running, unless [`Command::kill_on_drop`] says otherwise. A background thread reaps
/// such a child when it ends, so no zombie stays. The thread lives as long as there are such children.
pub struct Child {
    /// Its stdin, if that is a pipe. Dropping this closes the pipe, and the child reads the end of its input.
    pub stdin: Option<ChildStdin>,
    /// Its stdout, if that is a pipe.
    pub stdout: Option<ChildStdout>,
    /// Its stderr, if that is a pipe.
    pub stderr: Option<ChildStderr>,
    /// `Some` until the drop.
    child: Option<std::process::Child>,
    exit: Exit,
    /// Whether it has been waited for: another process may have its id.
    is_reaped: bool,
    kill_on_drop: bool,
    leads_group: bool,
    output_limit: usize,
}

const HERE: &str = "it is taken only by drop";

/// The first pause between two looks at a child that has ended, but not for us yet: a debugger that traces it hears of the end before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest: a child whose debugger has let go of it is noticed after this time.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

fn longer(pause: Duration) -> Duration {
    (2 * pause).min(LONGEST_PAUSE)
}

impl Child {
    /// The process id. After the child has been waited for, another process may have it.
    pub fn id(&self) -> u32 {
        self.child.as_ref().expect(HERE).id()
    }

    /// Kills the child with `SIGKILL`. A child that has ended is not an error. The child's own children live on: see
    /// [`kill_group`](Child::kill_group).
    ///
    /// # Errors
    ///
    /// `PermissionDenied`.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.as_mut().expect(HERE).kill()
    }

    /// Kills the child and all others in its process group with `SIGKILL`, if [`Command::process_group(0)`](Command::process_group) has
    /// given it one of its own. Processes that it has started may live longer than the child itself.
    ///
    /// Call it before the child is waited for. Afterwards its id, which is that of the group, may be another's.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a child without a group of its own, or one that was waited for; `PermissionDenied`. The system's error, if other
    /// code has waited for the child, or `SIGCHLD` is ignored and the child has ended: its group may be another's.
    #[doc(alias("killpg", "kill_process_group"))]
    pub fn kill_group(&mut self) -> io::Result<()> {
        self.send_to_group(Signal::KILL)
    }

    /// Sends a signal to the process group of the child, as [`kill_group`](Child::kill_group) does.
    ///
    /// # Errors
    ///
    /// The errors of [`kill_group`](Child::kill_group), and `InvalidInput` for a signal without a name.
    #[cfg(feature = "signal")]
    #[doc(alias("killpg", "kill_process_group"))]
    pub fn signal_group(&mut self, signal: crate::signal::Signal) -> io::Result<()> {
        self.send_to_group(named(signal)?)
    }

    fn send_to_group(&self, signal: Signal) -> io::Result<()> {
        let child = self.child.as_ref().expect(HERE);
        let why = match (self.leads_group, self.is_reaped) {
            (true, false) => {
                // Until the child is reaped, nobody else can have the number, and the group exists.
                let pid = Pid::from_child(child);
                lookout::has_ended(pid)?;
                return Ok(kill_process_group(pid, signal)?);
            }
            (true, true) => "the child has been waited for, so its group may be another's: signal the group before",
            (false, _) => "the child has no process group of its own: start it with process_group(0)",
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Sends a signal, such as `SIGTERM`, which asks a program to end. A child that has ended is not an error. The child's own children
    /// do not get it: [`signal_group`](Child::signal_group) is for them.
    ///
    /// ```
    /// use osier::process::Command;
    /// use osier::signal::Signal;
    /// use std::time::Duration;
    ///
    /// osier::run(|| {
    ///     let mut child = Command::new("sleep").arg("60").spawn()?;
    ///     child.signal(Signal::TERM)?;
    ///     if osier::timeout(Duration::from_secs(60), || child.wait()).is_err() {
    ///         child.kill()?; // it has had its time
    ///     }
    ///     assert!(!child.wait()?.success());
    ///     std::io::Result::Ok(())
    /// })?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a signal without a name (real-time signals have none), `PermissionDenied`, and the errors of
    /// [`try_wait`](Child::try_wait).
    #[cfg(feature = "signal")]
    #[doc(alias("terminate", "SIGTERM"))]
    pub fn signal(&mut self, signal: crate::signal::Signal) -> io::Result<()> {
        let named = named(signal)?;
        let pid = Pid::from_child(self.child.as_ref().expect(HERE));
        // A child that has ended is not reaped here: its group may still be signalled.
        match self.is_reaped || lookout::has_ended(pid)? {
            true => Ok(()),
            false => Ok(rustix::process::kill_process(pid, named)?),
        }
    }

    /// The exit status, if the child has ended.
    ///
    /// # Errors
    ///
    /// The system's error, for example when other code has waited for the child.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let ended = self.child.as_mut().expect(HERE).try_wait()?;
        self.is_reaped |= ended.is_some();
        Ok(ended)
    }

    /// Closes stdin and waits until the child has ended. A child that reads its input to the end would otherwise wait
    /// for us.
    ///
    /// # Suspends
    ///
    /// Until then. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. The caller may wait again.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.exit.wait()?;
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            match wait::wait(Some(now() + pause), None, |_| Poll::<()>::Pending) {
                Ok(()) | Err(Stop::Elapsed) => pause = longer(pause),
                Err(stop) => return Err(stop.into()),
            }
        }
    }

    /// [`wait`](Child::wait) as a future. Dropping it has no effect, except that stdin is closed.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait).
    pub async fn wait_async(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.exit.wait_async().await?;
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            let mut timer = Sleep::new(pause);
            poll_fn(|cx| timer.poll_elapsed(cx)).await?;
            pause = longer(pause);
        }
    }

    /// Closes stdin, collects what the child writes to both pipes at the same time, and waits until it has ended.
    ///
    /// # Suspends
    ///
    /// Until the child has ended and both pipes are closed. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. The child is dropped, and so is what it has written:
    /// [`collect_output`](Child::collect_output) keeps both.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait). `QuotaExceeded` if the child has written more than its [limit](Command::limit_output): it
    /// is killed then, with its process group if it has one of its own.
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let collected = self.collect_output(&mut stdout, &mut stderr);
        let status = collected.inspect_err(|error| self.kill_if_too_much(error))?;
        Ok(Output { status, stdout, stderr })
    }

    /// [`wait_with_output`](Child::wait_with_output) as a future.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait).
    pub async fn wait_with_output_async(mut self) -> io::Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let collected = self.collect_output_async(&mut stdout, &mut stderr).await;
        let status = collected.inspect_err(|error| self.kill_if_too_much(error))?;
        Ok(Output { status, stdout, stderr })
    }

    fn kill_if_too_much(&mut self, error: &io::Error) {
        if pipe::TooMuch::is(error) {
            // An error means that this process may no longer kill the child.
            let _ = match self.leads_group {
                true => self.kill_group(),
                false => self.kill(),
            };
        }
    }

    /// Collects what the child writes to both pipes, as [`wait_with_output`](Child::wait_with_output) does, and waits until it has ended.
    /// The bytes are appended to buffers of the caller, which has the child and all that has come if the call is cut short.
    ///
    /// ```
    /// use osier::process::{Command, Stdio};
    /// use std::time::Duration;
    ///
    /// osier::run(|| {
    ///     let mut command = Command::new("sh");
    ///     command.args(["-c", "echo begun; sleep 3600"]).process_group(0);
    ///     let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    ///     let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    ///     let limit = Duration::from_millis(300);
    ///     if osier::timeout(limit, || child.collect_output(&mut stdout, &mut stderr)).is_err() {
    ///         child.kill_group()?; // the sleep too, which holds the pipes
    ///         child.collect_output(&mut stdout, &mut stderr)?; // the rest
    ///     }
    ///     println!("it has written {:?}", String::from_utf8_lossy(&stdout));
    ///     std::io::Result::Ok(())
    /// })?;
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Suspends
    ///
    /// Until the child has ended and both pipes are closed. Blocks the thread when called on a plain one.
    ///
    /// # Cancellation
    ///
    /// The error of a cancelled call. The buffers have what has come, and another call goes on.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait). `QuotaExceeded` if the child has written more than its [limit](Command::limit_output)
    /// during this call: the buffers have what has come, one byte more than that at most, and another call goes on.
    #[doc(alias = "wait_with_output")]
    pub fn collect_output(&mut self, stdout: &mut Vec<u8>, stderr: &mut Vec<u8>) -> io::Result<ExitStatus> {
        let mut collected = pin!(self.collect_output_async(stdout, stderr));
        wait::try_wait_for_future(|cx| collected.as_mut().poll(cx))?
    }

    /// [`collect_output`](Child::collect_output) as a future. Dropped, it leaves what has come in the buffers.
    ///
    /// # Errors
    ///
    /// The errors of [`try_wait`](Child::try_wait).
    pub async fn collect_output_async(&mut self, stdout: &mut Vec<u8>, stderr: &mut Vec<u8>) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        let limit = self.output_limit;
        let out = pipe::read_to_end(self.stdout.as_mut(), "stdout", stdout, limit);
        let err = pipe::read_to_end(self.stderr.as_mut(), "stderr", stderr, limit);
        pipe::both(out, err).await?;
        self.wait_async().await
    }
}

/// The signal as rustix has it.
#[cfg(feature = "signal")]
fn named(signal: crate::signal::Signal) -> io::Result<Signal> {
    Signal::from_named_raw(signal.as_raw()).ok_or_else(|| {
        let why = format!("{signal} cannot be sent to a child: choose one with a name, such as SIGTERM");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut child = self.child.take().expect(HERE);
        if let Ok(None) = child.try_wait() {
            if self.kill_on_drop {
                // An error means that this process may no longer kill the child.
                let _ = child.kill();
            }
            reaper::adopt(child, &self.exit);
        }
    }
}

osier_queue::impl_debug!(Child, self => { id: self.id(), .. });
