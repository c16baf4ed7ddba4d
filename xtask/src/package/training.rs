//! The load of a profile: a server under each kind of request that a site gets.
//!
//! Code that no request runs is taken for cold, so a feature that is missing here gets slower. `wrk`, `h2load`, php-fpm and a few
//! WebSockets are the clients and backends, on loopback. The server proxies to a second one of the same binary.

use crate::peers::{self, free_port};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds of each kind of request. A profile counts how often code runs, and a second is some 10,000 requests.
const SECONDS: u32 = 2;

/// Runs `binary` under load in `folder`, where it leaves `*.profraw`.
pub fn train(binary: &Path, folder: &Path) -> Result<(), String> {
    let ports = [free_port()?, free_port()?, free_port()?];
    write_site(folder, ports)?;
    let fpm = peers::php_fpm().ok_or("php-fpm: not installed")?;
    let mut scripts = Command::new(fpm);
    // -R: as root it runs scripts only when asked to.
    scripts.args(["-F", "-R", "-y", "fpm.conf"]);
    let _scripts = Running::start(folder, &mut scripts)?;
    let server = |file| {
        let mut server = Command::new(binary);
        server.arg(file).env("LLVM_PROFILE_FILE", folder.join("%p.profraw"));
        Running::start(folder, &mut server)
    };
    let mut backend = server("backend.toml")?;
    let mut site = server("site.toml")?;
    for port in ports {
        wait_for(port)?;
    }
    load(folder, ports)?;
    converse(ports[0])?;
    // The profile is written by an orderly exit.
    site.stop()?;
    backend.stop()
}

/// The pages, the script, and the configurations of the two servers and of php-fpm.
fn write_site(folder: &Path, [plain, tls, backend]: [u16; 3]) -> Result<(), String> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    let create = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    create("www")?;
    create("state")?;
    write("www/small.html", &[b'x'; 100])?;
    write("www/page.html", PROSE.repeat(16 * 1024 / PROSE.len()).as_bytes())?;
    write("www/app.js", PROSE.repeat(40 * 1024 / PROSE.len()).as_bytes())?;
    write("www/large.bin", &[b'x'; 1 << 20])?;
    for script in ["www/hello.php", "www/kept.php"] {
        write(script, SCRIPT.as_bytes())?;
    }
    let shown = folder.display();
    let pool = format!(
        "[global]\nerror_log = {shown}/fpm.log\n[www]\nlisten = {shown}/fpm.sock\npm = static\npm.max_children = {CONNECTIONS}\n"
    );
    // As root, php-fpm changes its user, which does not exist everywhere.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let user = if is_root { "user = root\ngroup = root\n" } else { "" };
    write("fpm.conf", format!("{pool}{user}").as_bytes())?;
    let backend_site = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{backend}\"\n[[site]]\ndefault = true\n[[site.route]]\nrespond = {{ body = \"Hello, World!\" }}\n"
    );
    write("backend.toml", backend_site.as_bytes())?;
    let site = SITE
        .replace("{folder}", &shown.to_string())
        .replace("{plain}", &plain.to_string())
        .replace("{tls}", &tls.to_string())
        .replace("{backend}", &backend.to_string());
    write("site.toml", site.as_bytes())
}

const PROSE: &str =
    "A coroutine suspends where it would wait, and resumes where it has stopped; its thread runs others meanwhile. ";

const SCRIPT: &str = "<?php header('Content-Type: text/plain'); header('Content-Length: 13'); echo 'Hello, World!';";

const SITE: &str = r#"workers = 1
state = "{folder}/state"
log = { file = "{folder}/access.log" }

[[listen]]
address = "127.0.0.1:{plain}"

[[listen]]
address = "127.0.0.1:{tls}"
tls = true

[[site]]
default = true
host = ["127.0.0.1", "localhost"]
tls = "internal"

[[site.route]]
path = "/hello"
respond = { body = "Hello, World!" }

[[site.route]]
path = "/proxy"
proxy = { to = "127.0.0.1:{backend}", strip = true }

[[site.route]]
path = "/kept.php"
fastcgi = { root = "{folder}/www", to = "unix:{folder}/fpm.sock", keep = 64 }

[[site.route]]
glob = "*.php"
fastcgi = { root = "{folder}/www", to = "unix:{folder}/fpm.sock" }

[[site.route]]
path = "/cached"
cache = true
proxy = { to = "127.0.0.1:{backend}", strip = true }

[[site.route]]
path = "/compressed"
compress = true
files = { root = "{folder}/www", strip = true }

[[site.route]]
path = "/chat"
chat = { origins = "*", burst = 1000 }

[[site.route]]
files = "{folder}/www"
log = false
"#;

const CONNECTIONS: u32 = 64;

/// The requests over HTTP/1.1: options of `wrk`, and the path.
const PLAIN: &[(&[&str], &str)] = &[
    (&[], "/hello"),
    (&["-s", PIPELINE], "/hello"),
    (&["-H", "Connection: close"], "/hello"),
    (&[], "/small.html"),
    (&["-H", BROWSER], "/page.html"),
    (&[], "/large.bin"),
    (&["-H", BROWSER], "/proxy/x"),
    (&[], "/proxy/x"),
    (&[], "/cached/x"),
    (&["-H", BROWSER], "/hello.php"),
    (&[], "/kept.php"),
    (&["-H", "Accept-Encoding: gzip"], "/compressed/app.js"),
    (&["-H", "Accept-Encoding: br"], "/compressed/app.js"),
    (&["-H", "Accept-Encoding: zstd"], "/compressed/app.js"),
];

/// The same over TLS.
const SECURE: &[(&[&str], &str)] = &[
    (&[], "/hello"),
    (&["-H", "Connection: close"], "/hello"),
    (&[], "/page.html"),
    (&[], "/large.bin"),
    (&[], "/proxy/x"),
    (&[], "/kept.php"),
];

/// The paths over HTTP/2 with TLS.
const STREAMED: &[&str] = &["/hello", "/page.html", "/large.bin", "/proxy/x", "/kept.php"];

/// A script for `wrk`: sixteen requests at once.
const PIPELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/pipeline.lua");

/// One of the fields that browsers send.
const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0";

fn load(folder: &Path, [plain, tls, _]: [u16; 3]) -> Result<(), String> {
    let run = |command: &mut Command| {
        let shown = crate::step::shown(command);
        let ended = command.current_dir(folder).output();
        let said = ended.map_err(|error| format!("{shown}: {error}"))?;
        let text = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
        let is_good = said.status.success() && !text.contains("Non-2xx") && !text.contains(", 0 succeeded");
        is_good
            .then_some(())
            .ok_or_else(|| format!("{shown}: {}", text.trim().replace('\n', "; ")))
    };
    let all = [("http", plain, PLAIN), ("https", tls, SECURE)];
    for (scheme, port, requests) in all {
        for (options, path) in requests {
            let mut wrk = Command::new("wrk");
            wrk.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{SECONDS}")]);
            run(wrk.args(*options).arg(format!("{scheme}://127.0.0.1:{port}{path}")))?;
        }
    }
    for path in STREAMED {
        let mut h2load = Command::new("h2load");
        h2load.args(["-t1", "-c16", "-m32", "-D", &SECONDS.to_string()]);
        run(h2load.arg(format!("https://127.0.0.1:{tls}{path}")))?;
    }
    Ok(())
}

/// Guests of the chat, who talk and listen over WebSockets.
fn converse(port: u16) -> Result<(), String> {
    let guest = |number: usize| -> std::io::Result<()> {
        let mut guest = TcpStream::connect(("127.0.0.1", port))?;
        guest.set_read_timeout(Some(Duration::from_millis(20)))?;
        write!(
            guest,
            "GET /chat?room=room-{} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            number % 4
        )?;
        let mut received = [0; 16 * 1024];
        for word in 0..50u8 {
            // A final text frame. A mask of zeros leaves the text as it is.
            let text = [b"hello there ".as_slice(), &[b'a' + word % 26]].concat();
            let head = [0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
            guest.write_all(&[&head, text.as_slice()].concat())?;
            let pause = Instant::now() + Duration::from_millis(60);
            while Instant::now() < pause && guest.read(&mut received).is_ok_and(|count| count > 0) {}
        }
        Ok(())
    };
    let ended = std::thread::scope(|scope| {
        let guests: Vec<_> = (0..32).map(|number| scope.spawn(move || guest(number))).collect();
        let mut guests = guests.into_iter();
        guests.try_for_each(|guest| guest.join().expect("a guest does not panic"))
    });
    ended.map_err(|error| format!("chat: {error}"))
}

fn wait_for(port: u16) -> Result<(), String> {
    let patience = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > patience {
            return Err(format!("nothing listens on port {port} after 30 s"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A program that is stopped at the latest by its drop.
struct Running {
    child: Child,
    name: String,
}

impl Running {
    fn start(folder: &Path, command: &mut Command) -> Result<Running, String> {
        let name = command.get_program().display().to_string();
        command.current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Running { child, name })
    }

    /// Asks it to end, and waits until it has.
    fn stop(&mut self) -> Result<(), String> {
        let kill = format!("kill {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let patience = Instant::now() + Duration::from_secs(30);
        while Instant::now() < patience {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: ended with {status}", self.name)),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err(format!("{}: does not stop within 30 s", self.name))
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
