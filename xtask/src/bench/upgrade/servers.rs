//! The servers that are upgraded: how each of them starts, and how a new process takes over.
//!
//! All processes of a server have one process group, so that the old ones are found and ended, too.

use super::{output, write};
use crate::bench::programs::osier;
use crate::bench::rows::secure::certificate_files;
use crate::bench::server::{Server, nginx, suites};
use crate::bench::{Plan, pinned};
use crate::peers::free_port;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Osier,
    Nginx,
    Haproxy,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Osier, Kind::Nginx, Kind::Haproxy];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Osier => "osier",
            Kind::Nginx => "nginx",
            Kind::Haproxy => "haproxy",
        }
    }
}

/// The longest wait for a process.
const PATIENCE: Duration = Duration::from_secs(40);

/// The answer to every request.
const HELLO: &str = "Hello, World!";

/// A running server. Its drop ends all its processes.
pub struct Serving<'p> {
    plan: &'p Plan,
    kind: Kind,
    pub port: u16,
    pub tls_port: u16,
    config: PathBuf,
    /// Has the id of the process that serves.
    pid_file: PathBuf,
    group: u32,
    children: Vec<Child>,
    /// The chat behind it.
    _chat: Option<Server>,
}

impl<'p> Serving<'p> {
    pub fn start(plan: &'p Plan, kind: Kind, guests: usize) -> Result<Serving<'p>, String> {
        let chat = (kind != Kind::Osier).then(|| chat(plan, guests)).transpose()?;
        let mut serving = Serving {
            plan,
            kind,
            port: free_port()?,
            tls_port: free_port()?,
            config: plan.scratch.join(format!("{}.conf", kind.name())),
            pid_file: plan.scratch.join(format!("{}.pid", kind.name())),
            group: 0,
            children: Vec::new(),
            _chat: None,
        };
        let backend = chat.as_ref().map_or(0, |chat| chat.port);
        serving.configure(guests, backend)?;
        serving._chat = chat;
        match kind {
            Kind::Osier => serving.spawn(&osier(), &[])?,
            // It starts its new program by the path of the old one.
            Kind::Nginx => {
                let path = output(Command::new("sh").args(["-c", "PATH=$PATH:/usr/sbin command -v nginx"]))?;
                let mut command = serving.command(Path::new(path.trim()));
                output(command.arg("-c").arg(&serving.config))?;
            }
            Kind::Haproxy => serving.spawn(Path::new("haproxy"), &["-db".into(), "-f".into()])?,
        }
        wait_for("the server", || {
            TcpStream::connect(("127.0.0.1", serving.port)).is_ok().then_some(())
        })?;
        serving.group = match kind {
            // It has made itself a daemon.
            Kind::Nginx => serving.serving()?,
            _ => serving.children[0].id(),
        };
        Ok(serving)
    }

    fn configure(&self, guests: usize, backend: u16) -> Result<(), String> {
        let (port, tls_port, pid) = (self.port, self.tls_port, self.pid_file.display());
        let (cert, key) = certificate_files(self.plan)?;
        let text = match self.kind {
            Kind::Osier => format!(
                "workers = 1\npid_file = \"{pid}\"\n\
                 [[listen]]\naddress = \"127.0.0.1:{port}\"\ntimeouts.idle = \"10m\"\n\
                 [[listen]]\naddress = \"127.0.0.1:{tls_port}\"\ntimeouts.idle = \"10m\"\ntls = true\n\
                 [[site]]\ndefault = true\nlog = false\ntls = {{ cert = {cert:?}, key = {key:?} }}\n{}\
                 [[site.route]]\nrespond = \"{HELLO}\"\n",
                chat_route(guests)
            ),
            Kind::Nginx => return self.configure_nginx(backend, &cert, &key),
            Kind::Haproxy => {
                let both = self.plan.scratch.join("haproxy.pem");
                let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| error.to_string());
                write(&both, &(read(&cert)? + &read(&key)?))?;
                format!(
                    "global\n  nbthread 1\n  maxconn 19000\n  no strict-limits\n  stats socket {} expose-fd listeners level admin\n\
                     defaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n  \
                     timeout http-keep-alive 600s\n  timeout tunnel 600s\n\
                     frontend hello\n  bind 127.0.0.1:{port}\n  bind 127.0.0.1:{tls_port} ssl crt {} ciphersuites {}\n  use_backend chat if {{ path /chat }}\n  \
                     http-request return status 200 content-type text/plain string \"{HELLO}\" unless {{ path /chat }}\n\
                     backend chat\n  server ours 127.0.0.1:{backend}\n",
                    self.socket().display(),
                    both.display(),
                    suites::TLS13
                )
            }
        };
        write(&self.config, &text)
    }

    /// The old workers end at last after two seconds: while the old process runs, nginx ignores a further upgrade.
    fn configure_nginx(&self, backend: u16, cert: &Path, key: &Path) -> Result<(), String> {
        let (port, tls_port) = (self.port, self.tls_port);
        let server = format!(
            "server {{\n listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;\n\
             {}\n location / {{ return 200 \"{HELLO}\"; }}\n\
             location /chat {{\n proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_read_timeout 600s;\n\
             proxy_set_header Host $http_host; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;\n}}\n}}",
            nginx::certificate(cert, key, &suites::of_nginx())
        );
        let written = nginx::write(&self.plan.scratch, port, &server)?;
        let text = std::fs::read_to_string(&written).map_err(|error| error.to_string())?;
        let text = text
            .replace("daemon off;", "worker_shutdown_timeout 2s;")
            .replace(&format!("nginx-{port}.pid"), "nginx.pid");
        write(&self.config, &text)
    }

    /// Where HAProxy is asked for its sockets.
    fn socket(&self) -> PathBuf {
        self.plan.scratch.join("haproxy.sock")
    }

    /// The program on the core of servers.
    fn command(&self, program: &Path) -> Command {
        let mut command = pinned(self.plan.cores.0, program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a process in the group of the server, with its configuration behind the arguments.
    fn spawn(&mut self, program: &Path, arguments: &[OsString]) -> Result<(), String> {
        let mut command = self.command(program);
        command.args(arguments).arg(&self.config);
        let child = command.process_group(self.group as i32).spawn();
        let child = child.map_err(|error| format!("{}: {error}", program.display()))?;
        self.children.push(child);
        Ok(())
    }

    /// The id of the process that serves.
    fn serving(&self) -> Result<u32, String> {
        if self.kind == Kind::Haproxy {
            return self
                .asked_haproxy()
                .ok_or_else(|| "HAProxy does not tell its id".into());
        }
        wait_for("a PID file", || {
            std::fs::read_to_string(&self.pid_file).ok()?.trim().parse().ok()
        })
    }

    fn asked_haproxy(&self) -> Option<u32> {
        let mut socket = UnixStream::connect(self.socket()).ok()?;
        socket.write_all(b"show info\n").ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid: "))?;
        pid.trim().parse().ok()
    }

    /// Checks the answers.
    pub fn check(&self) -> Result<(), String> {
        for url in [
            format!("http://127.0.0.1:{}/", self.port),
            format!("https://127.0.0.1:{}/", self.tls_port),
        ] {
            let mut curl = Command::new("curl");
            let said = output(curl.args(["--silent", "--show-error", "--insecure", "--max-time", "10", &url]))?;
            if said != HELLO {
                return Err(format!("{url}: answered {said:?}"));
            }
        }
        Ok(())
    }

    /// A new process takes over.
    pub fn upgrade(&mut self) -> Result<(), String> {
        let old = self.serving()?;
        match self.kind {
            Kind::Osier => {
                let mut command = Command::new(osier());
                output(command.arg("upgrade").arg(&self.config))?;
                Ok(())
            }
            Kind::Nginx => {
                kill("USR2", old)?;
                wait_for("the new nginx", || self.serving().ok().filter(|new| *new != old))?;
                kill("QUIT", old)?;
                wait_for("the end of the old nginx", || {
                    (!members(self.group).contains(&old)).then_some(())
                })
            }
            Kind::Haproxy => {
                let socket = self.socket();
                let mut arguments: Vec<OsString> = ["-db", "-x"].map(OsString::from).into();
                arguments.extend([socket.into(), "-sf".into(), old.to_string().into(), "-f".into()]);
                self.spawn(Path::new("haproxy"), &arguments)?;
                wait_for("the new HAProxy", || {
                    self.asked_haproxy().filter(|new| *new != old).map(drop)
                })
            }
        }
    }

    pub fn group(&self) -> u32 {
        self.group
    }

    /// The number of processes that have not ended.
    pub fn processes(&self) -> usize {
        members(self.group).len()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        for pid in members(self.group) {
            let _ = kill("KILL", pid);
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The route of the chat. The rooms belong to one client.
fn chat_route(guests: usize) -> String {
    let rooms = guests.div_ceil(100).max(1);
    format!(
        "[[site.route]]\npath = \"/chat\"\nchat = {{ burst = 1000, history = 1000, rooms = {rooms}, rooms_per_client = {rooms} }}\n"
    )
}

/// A chat that is not upgraded, on the core of the clients.
fn chat(plan: &Plan, guests: usize) -> Result<Server, String> {
    Server::start_on(plan.cores.1, &osier(), |port| {
        let config = plan.scratch.join(format!("chat-{port}.toml"));
        let text = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n[[site]]\ndefault = true\nlog = false\n{}",
            chat_route(guests)
        );
        write(&config, &text)?;
        Ok(vec![config.into()])
    })
}

/// The processes of a group that have not ended.
fn members(group: u32) -> Vec<u32> {
    let is_member = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map_or(Vec::new(), |(_, rest)| rest.split_whitespace().take(3).collect());
        matches!(fields[..], [state, _, of] if state != "Z" && of.parse() == Ok(group))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_member).collect()
}

/// The bytes that the processes of a group have resident.
pub fn resident(group: u32) -> u64 {
    let pages = |pid: u32| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    members(group).into_iter().filter_map(pages).sum::<u64>() * 4096
}

fn kill(signal: &str, pid: u32) -> Result<(), String> {
    output(Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")])).map(drop)
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> Result<T, String> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(found) = found() {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("{what}: not there after {} s", PATIENCE.as_secs()))
}
