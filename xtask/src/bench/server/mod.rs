//! One running server: starts it on a core, checks it, measures it from outside, and ends it. `nginx.rs`, `haproxy.rs` and `suites.rs` have configurations.
//!
//! All figures come from `/proc`, summed over the process and its children (nginx has one).

pub mod haproxy;
pub mod nginx;
pub mod postgres;
pub mod suites;

use super::{Plan, pinned_to};
use crate::peers::free_port;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server ready for load; ended by its drop.
pub struct Server {
    child: Child,
    pub port: u16,
    /// The servers behind this one whose figures are added to its own.
    behind: Vec<Server>,
    /// Servers that it needs and that are not measured.
    beside: Vec<Server>,
}

impl Server {
    /// Starts `program` with the arguments that `args` makes of a free port, and waits until it accepts.
    pub fn start(
        plan: &Plan,
        program: &Path,
        args: impl Fn(u16) -> Result<Vec<OsString>, String>,
    ) -> Result<Server, String> {
        Server::spawn(&plan.server_cores(), free_port()?, program, args)
    }

    /// Starts a server that is not measured, on that core. Otherwise the same as [`start`](Server::start).
    pub fn start_on(
        core: usize,
        program: &Path,
        args: impl Fn(u16) -> Result<Vec<OsString>, String>,
    ) -> Result<Server, String> {
        Server::spawn(&[core], free_port()?, program, args)
    }

    /// Starts a server that listens on that port, whatever its arguments are. Otherwise the same as [`start`](Server::start).
    pub fn start_at(
        plan: &Plan,
        port: u16,
        program: &Path,
        args: impl Fn(u16) -> Result<Vec<OsString>, String>,
    ) -> Result<Server, String> {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Err(format!("port {port} is in use")),
            Err(_) => Server::spawn(&plan.server_cores(), port, program, args),
        }
    }

    fn spawn(
        cores: &[usize],
        port: u16,
        program: &Path,
        args: impl Fn(u16) -> Result<Vec<OsString>, String>,
    ) -> Result<Server, String> {
        let name = program.file_name().unwrap_or_default().display();
        let mut command = pinned_to(cores, program);
        command
            .args(args(port)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let mut server = Server {
            child,
            port,
            behind: vec![],
            beside: vec![],
        };
        let patience = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{name}: ended with {status} before it listened"));
            }
            if Instant::now() > patience {
                return Err(format!("{name}: does not listen on port {port} after 10 s"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Adds the figures of a server behind this one, which ends with it.
    pub fn in_front_of(mut self, other: Server) -> Server {
        self.behind.push(other);
        self
    }

    /// Keeps a server that is not measured as long as this one.
    pub fn beside(mut self, other: Server) -> Server {
        self.beside.push(other);
        self
    }

    /// Asks for `path` once and compares status and body: a fast wrong answer is no result.
    pub fn check(&self, path: &str, body: &[u8]) -> Result<(), String> {
        let (head, got) = self.ask(path)?;
        let status = head.lines().next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 200") {
            return Err(format!("GET {path}: answered {status:?} instead of 200"));
        }
        if got != body {
            return Err(format!(
                "GET {path}: a body of {} bytes that is not the {} expected",
                got.len(),
                body.len()
            ));
        }
        Ok(())
    }

    /// Asks for `path` once; returns the head and the body.
    pub fn ask(&self, path: &str) -> Result<(String, Vec<u8>), String> {
        ask(self.port, path).map_err(|error| format!("GET {path}: {error}"))
    }

    /// The length of a body in a content coding, which must be used.
    pub fn length_by(&self, path: &str, coding: &str) -> Result<usize, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--fail",
            "--include",
            "--max-time",
            "10",
            "--header",
        ]);
        curl.arg(format!("Accept-Encoding: {coding}")).arg(&url);
        let output = curl.output().map_err(|error| format!("curl: {error}"))?;
        let end = output.stdout.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.ok_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_string())?;
        let head = String::from_utf8_lossy(&output.stdout[..end]).to_ascii_lowercase();
        match head.contains(&format!("content-encoding: {coding}")) {
            true => Ok(output.stdout.len() - end - 4),
            false => Err(format!("GET {path}: not in {coding}")),
        }
    }

    /// As [`check`](Server::check), by curl: "https" with any certificate, or "http" by HTTP/2 in the clear.
    pub fn check_by(&self, scheme: &str, body: &[u8], path: &str) -> Result<(), String> {
        let by = if scheme == "http" {
            "--http2-prior-knowledge"
        } else {
            "--http2"
        };
        let got = self.body_by(scheme, by, path)?;
        match got == body {
            true => Ok(()),
            false => Err(format!(
                "GET {path}: another body than the {} bytes expected",
                body.len()
            )),
        }
    }

    /// The body for a path, by curl with an option that names the protocol.
    pub fn body_by(&self, scheme: &str, protocol: &str, path: &str) -> Result<Vec<u8>, String> {
        let url = format!("{scheme}://127.0.0.1:{}{path}", self.port);
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--fail",
            "--insecure",
            "--max-time",
            "10",
            protocol,
            &url,
        ]);
        let output = curl.output().map_err(|error| format!("curl: {error}"))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        }
    }

    /// CPU time used so far, in user space and in the kernel. The kernel counts in hundredths of a second.
    pub fn cpu(&self) -> Duration {
        let ticks = |pid: u32| -> Option<u64> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name, in parentheses, may hold anything; the state is the first field after it.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
            Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
        };
        Duration::from_millis(10) * self.family().into_iter().filter_map(ticks).sum::<u64>() as u32
    }

    /// Bytes that this server alone holds.
    pub fn private_memory(&self) -> u64 {
        let private = |pid| {
            field(
                &format!("/proc/{pid}/smaps_rollup"),
                &["Private_Clean:", "Private_Dirty:"],
            )
        };
        self.family().into_iter().map(private).sum()
    }

    /// The most it ever had resident, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.family()
            .into_iter()
            .map(|pid| field(&format!("/proc/{pid}/status"), &["VmHWM:"]))
            .sum()
    }

    /// Whether it has an io_uring.
    pub fn has_ring(&self) -> bool {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let targets = open
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets
            .into_iter()
            .any(|target| target.to_string_lossy().contains("io_uring"))
    }

    /// This process, its children, and those of the servers behind it.
    fn family(&self) -> Vec<u32> {
        let own = self.child.id();
        let parent = |pid: u32| -> Option<u32> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut family: Vec<u32> = pids.filter(|pid| *pid == own || parent(*pid) == Some(own)).collect();
        family.extend(self.behind.iter().flat_map(Server::family));
        family
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First politely: a master process ends its workers only then.
        let _ = Command::new("sh")
            .args(["-c", &format!("kill {}", self.child.id())])
            .status();
        let patience = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sum of some "Key: N kB" lines of a file of `/proc`, in bytes.
fn field(path: &str, keys: &[&str]) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let number = |line: &str| {
        let key = keys.iter().find(|key| line.starts_with(**key))?;
        line[key.len()..].split_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(number).sum::<u64>() * 1024
}

/// One request on its own connection: the head and the body that `Content-Length` announces.
fn ask(port: u16, path: &str) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")?;
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(std::io::Error::other("closed in the middle of the head"));
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let body = match length {
        Some(length) => bytes(&mut stream, length)?,
        None if lower.contains("transfer-encoding: chunked") => chunks(&mut stream)?,
        None => return Err(std::io::Error::other("an answer without Content-Length")),
    };
    Ok((head, body))
}

fn bytes(stream: &mut impl Read, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The body of a response without a known length.
fn chunks(stream: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(std::io::Error::other)?;
        body.extend(bytes(stream, length)?);
        bytes(stream, 2)?;
        if length == 0 {
            return Ok(body);
        }
    }
}
