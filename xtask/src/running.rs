//! Programs that run beside a step, stopped by their process id: at the latest by their drop.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that runs.
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts a program that reads and prints nothing.
    pub fn start(command: &mut Command) -> Result<Running, String> {
        let name = command.get_program().display().to_string();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Running { child, name })
    }

    /// Waits until `listens`.
    pub fn wait_until(&mut self, place: &str, listens: impl Fn() -> bool) -> Result<(), String> {
        let patience = Instant::now() + PATIENCE;
        while !listens() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "{}: ended with {status} before it listened on {place}",
                    self.name
                ));
            }
            if Instant::now() > patience {
                return Err(format!("{}: does not listen on {place} after {PATIENCE:?}", self.name));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits until it listens on that port of 127.0.0.1.
    pub fn wait_for(&mut self, port: u16) -> Result<(), String> {
        self.wait_until(&format!("port {port}"), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
    }

    /// Asks it politely to end, because it ends its own children only then, and waits until it has.
    pub fn stop(&mut self) -> Result<(), String> {
        let kill = format!("kill {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: ended with {status}", self.name)),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("{}: does not end within {PATIENCE:?}", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.stop().is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A php-fpm with one pool.
pub struct Fpm {
    pub socket: PathBuf,
    _running: Running,
}

impl Fpm {
    /// A script that answers as the other servers of hello do.
    pub const HELLO: &str =
        "<?php header('Content-Type: text/plain'); header('Content-Length: 13'); echo 'Hello, World!';";

    /// A script that writes a page of 56 KB in eight parts.
    pub const PAGE: &str = "<?php for ($i = 0; $i < 8; $i++) { echo str_repeat(\"<p>some words of a page, a line of it.</p>\\n\", 170); flush(); }";

    /// The page.
    pub fn page() -> String {
        "<p>some words of a page, a line of it.</p>\n".repeat(8 * 170)
    }

    /// Starts `command`, which is php-fpm with what pins it to a core, with so many processes. Its files are in `folder`.
    pub fn start(mut command: Command, folder: &Path, processes: usize) -> Result<Fpm, String> {
        let (socket, config) = (folder.join("fpm.sock"), folder.join("fpm.conf"));
        // Opened for all: nginx changes its user when root starts it.
        let text = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[www]\nlisten = {}\nlisten.mode = 0666\npm = static\npm.max_children = {processes}\n",
            folder.join("fpm.log").display(),
            socket.display()
        );
        std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
        // -R: as root it runs scripts only when asked to; it changes nothing for other users.
        command.args(["-F", "-R", "-y"]).arg(&config);
        let mut running = Running::start(&mut command)?;
        running.wait_until(&socket.display().to_string(), || UnixStream::connect(&socket).is_ok())?;
        Ok(Fpm {
            socket,
            _running: running,
        })
    }
}
