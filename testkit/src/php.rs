//! Debian's php-fpm as a peer, on a socket of the test's own.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Program, free_port, skip};

/// The newest php-fpm of this machine, whose name carries its version. Prints "skipped" if there is none.
pub fn program() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = ["/usr/sbin", "/usr/local/sbin"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"))
        })
        .collect();
    found.sort();
    if found.is_empty() {
        skip("php-fpm is not installed (package php-fpm)");
    }
    found.pop()
}

/// Where php-fpm listens.
#[derive(Clone, Copy, Debug)]
pub enum Listen {
    /// A Unix socket in the folder.
    Unix,
    /// A port of the loopback interface.
    Tcp,
}

/// A running php-fpm with one pool. Dropping it ends it with its workers.
#[derive(Debug)]
pub struct Fpm {
    file: PathBuf,
    config: PathBuf,
    /// Where it listens, as an address is written in a configuration: `unix:/path` or `host:port`.
    pub address: String,
    program: Option<Program>,
}

impl Fpm {
    /// Starts it in `folder` with `settings`, lines of the pool. Prints "skipped" and returns `None` if there is no php-fpm.
    ///
    /// # Panics
    /// Panics if it is there and does not listen.
    pub fn start(folder: &Path, listen: Listen, settings: &str) -> Option<Fpm> {
        let file = program()?;
        let address = match listen {
            Listen::Unix => format!("unix:{}", folder.join("fpm.sock").display()),
            Listen::Tcp => format!("127.0.0.1:{}", free_port()),
        };
        let target = address.strip_prefix("unix:").unwrap_or(&address);
        let log = folder.join("fpm.log");
        let config = folder.join("fpm.conf");
        let text = format!(
            "[global]\nerror_log = {log}\ndaemonize = no\nprocess_control_timeout = 1\n\
             [test]\nlisten = {target}\nlisten.backlog = 128\npm = static\ncatch_workers_output = yes\nclear_env = yes\n\
             php_admin_flag[log_errors] = on\nphp_admin_value[error_log] =\nphp_flag[display_errors] = off\nphp_value[output_buffering] = 0\n\
             php_admin_value[upload_tmp_dir] = {folder}\nphp_admin_value[session.save_path] = {folder}\n\
             php_admin_value[upload_max_filesize] = 50M\nphp_admin_value[post_max_size] = 50M\nphp_admin_value[opcache.enable] = 0\n{settings}\n",
            log = log.display(),
            folder = folder.display(),
        );
        std::fs::write(&config, text).expect("a file in the folder of the test");
        let mut fpm = Fpm {
            file,
            config,
            address,
            program: None,
        };
        fpm.run();
        Some(fpm)
    }

    /// Ends it; the socket stays away.
    pub fn stop(&mut self) {
        if let Some(program) = self.program.take() {
            program.stop();
        }
    }

    /// Ends it and starts it again on the same address.
    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    fn run(&mut self) {
        let mut command = Command::new(&self.file);
        command.arg("-F").arg("-y").arg(&self.config);
        if rustix::process::geteuid().is_root() {
            // php-fpm refuses to run scripts as root otherwise.
            command.arg("-R");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = Program::try_start(&mut command).expect("php-fpm starts");
        let log = self.config.with_file_name("fpm.log");
        program.wait_until(
            || answers(&self.address),
            || std::fs::read_to_string(&log).unwrap_or_default(),
        );
        self.program = Some(program);
    }
}

fn answers(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}
