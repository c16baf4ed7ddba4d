//! Debian's php-fpm as a peer: started on sockets of the test's own, and stopped by its process id.
#![allow(dead_code)] // each test file uses its part

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::common::PATIENCE;
use osier_web::Address;
use rustix::process::{Pid, Signal, kill_process};

/// The newest php-fpm of this machine: its name carries its version.
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
        println!("skipped: php-fpm is not installed (package php-fpm)");
    }
    found.pop()
}

pub enum Listen {
    Unix,
    Tcp,
}

/// A running php-fpm with one pool.
pub struct Fpm {
    program: PathBuf,
    config: PathBuf,
    pub address: Address,
    child: Option<Child>,
}

impl Fpm {
    /// `settings` are lines of the pool; `None` where there is no php-fpm, which has been said.
    pub fn start(folder: &Path, listen: Listen, settings: &str) -> Option<Fpm> {
        let program = program()?;
        let address = match listen {
            Listen::Unix => Address::Unix(folder.join("fpm.sock")),
            Listen::Tcp => {
                let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
                Address::Tcp(free.local_addr().expect("bound").to_string())
            }
        };
        let target = address.to_string();
        let target = target.strip_prefix("unix:").unwrap_or(&target);
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
        std::fs::write(&config, text).expect("a file of ours");
        let mut fpm = Fpm {
            program,
            config,
            address,
            child: None,
        };
        fpm.run();
        Some(fpm)
    }

    fn run(&mut self) {
        let mut command = Command::new(&self.program);
        command.arg("-F").arg("-y").arg(&self.config);
        if rustix::process::geteuid().is_root() {
            // It refuses to run scripts as root unless told so.
            command.arg("-R");
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("php-fpm starts"));
        let start = Instant::now();
        while !self.answers() {
            let log = || std::fs::read_to_string(self.config.with_file_name("fpm.log"));
            assert!(start.elapsed() < PATIENCE, "php-fpm does not listen: {:?}", log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        match &self.address {
            Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
            Address::Tcp(host) => std::net::TcpStream::connect(host).is_ok(),
        }
    }

    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = Pid::from_child(&child);
        // By TERM its children end too; by KILL they would stay.
        let _ = kill_process(pid, Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }
}

impl Drop for Fpm {
    fn drop(&mut self) {
        self.stop();
    }
}
