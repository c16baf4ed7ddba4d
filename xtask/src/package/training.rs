//! The load of a profile: a server under each kind of request that a site gets.
//!
//! Code that no request runs is taken for cold, so a feature that is missing here gets slower. `wrk`, `h2load`, php-fpm and a few
//! WebSockets are the clients and backends, on loopback. The server proxies to a second one of the same binary.

use crate::peers::{self, free_port};
use crate::running::{Fpm, Running};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Seconds of each kind of request by `wrk`, which takes no number. A profile counts how often code runs, and a second is some 10,000
/// requests.
const SECONDS: u32 = 2;

/// How often a kind of request is tried that had no response in its time: other programs may keep the machine busy.
const TRIES: u32 = 10;

/// Runs `binary` under load in `folder`, where it leaves `*.profraw`.
pub fn train(binary: &Path, folder: &Path) -> Result<(), String> {
    let ports = [free_port()?, free_port()?, free_port()?];
    write_site(folder, ports)?;
    let fpm = peers::php_fpm().ok_or("php-fpm: not installed")?;
    let _scripts = Fpm::start(Command::new(fpm), folder, CONNECTIONS)?;
    let server = |file| {
        let mut server = Command::new(binary);
        server.arg(folder.join(file));
        Running::start(server.env("LLVM_PROFILE_FILE", folder.join("%p.profraw")))
    };
    let mut backend = server("backend.toml")?;
    let mut site = server("site.toml")?;
    backend.wait_for(ports[2])?;
    site.wait_for(ports[0])?;
    site.wait_for(ports[1])?;
    load(folder, ports)?;
    converse(ports[0], "/chat")?;
    converse(ports[0], "/proxy/chat")?;
    // The profile is written by an orderly exit.
    site.stop()?;
    backend.stop()
}

/// The pages, the scripts, and the configurations of the two servers.
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
    for (script, text) in [
        ("www/hello.php", Fpm::HELLO),
        ("www/kept.php", Fpm::HELLO),
        ("www/page.php", Fpm::PAGE),
    ] {
        write(script, text.as_bytes())?;
    }
    let shown = folder.display();
    let backend_site = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{backend}\"\n[[site]]\ndefault = true\n\
         [[site.route]]\npath = \"/chat\"\nchat = {{ origins = \"*\", burst = 1000 }}\n[[site.route]]\nrespond = {{ body = \"Hello, World!\" }}\n"
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
cache = { default_ttl = "1h" }
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

const CONNECTIONS: usize = 64;

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
    (&["-s", UPLOAD], "/proxy/x"),
    (&[], "/cached/x"),
    (&["-H", BROWSER], "/hello.php"),
    (&["-H", BROWSER], "/page.php"),
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

/// The paths over HTTP/2 with TLS, and how many requests `h2load` makes.
const STREAMED: &[(&str, u32)] = &[
    ("/hello", 20_000),
    ("/page.html", 20_000),
    ("/large.bin", 1000),
    ("/proxy/x", 20_000),
    ("/kept.php", 10_000),
];

/// A script for `wrk`: sixteen requests at once.
const PIPELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/pipeline.lua");

/// A script for `wrk`: a body of 1 MiB.
const UPLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/upload.lua");

/// One of the fields that browsers send.
const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0";

/// The line of `wrk` that has counted nothing.
const NO_REQUESTS: &str = "\n  0 requests in ";

fn load(folder: &Path, [plain, tls, _]: [u16; 3]) -> Result<(), String> {
    let run = |command: &mut Command| {
        let shown = crate::step::shown(command);
        let ended = command.current_dir(folder).output();
        let said = ended.map_err(|error| format!("{shown}: {error}"))?;
        let text = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
        let is_good = said.status.success() && !text.contains("Non-2xx") && !text.contains(", 0 succeeded");
        is_good
            .then_some(!text.contains(NO_REQUESTS))
            .ok_or_else(|| format!("{shown}: {}", text.trim().replace('\n', "; ")))
    };
    // Whether there was any response is the value of a run.
    let until_answered = |command: &mut Command| {
        for _ in 0..TRIES {
            if run(command)? {
                return Ok(());
            }
        }
        Err(format!("{}: no response in {TRIES} runs", crate::step::shown(command)))
    };
    let all = [("http", plain, PLAIN), ("https", tls, SECURE)];
    for (scheme, port, requests) in all {
        for (options, path) in requests {
            let mut wrk = Command::new("wrk");
            wrk.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{SECONDS}")]);
            until_answered(wrk.args(*options).arg(format!("{scheme}://127.0.0.1:{port}{path}")))?;
        }
    }
    for (path, requests) in STREAMED {
        let mut h2load = Command::new("h2load");
        h2load.args(["-t1", "-c16", "-m32", &format!("-n{requests}"), "-N60s"]);
        run(h2load.arg(format!("https://127.0.0.1:{tls}{path}")))?;
    }
    Ok(())
}

/// Guests of a chat, who talk and listen over WebSockets.
fn converse(port: u16, path: &str) -> Result<(), String> {
    let guest = |number: usize| -> std::io::Result<()> {
        let mut guest = TcpStream::connect(("127.0.0.1", port))?;
        guest.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            guest,
            "GET {path}?room=room-{} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            number % 4
        )?;
        let mut received = [0; 16 * 1024];
        let mut status = [0; 12];
        guest.read_exact(&mut status)?;
        if status != *b"HTTP/1.1 101" {
            let text = format!("answered {:?} instead of 101", String::from_utf8_lossy(&status));
            return Err(std::io::Error::other(text));
        }
        guest.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (mut said, mut heard) = (0, 0);
        for word in 0..50u8 {
            // A final text frame. A mask of zeros leaves the text as it is.
            let text = format!(r#"{{"text":"hello there {}"}}"#, char::from(b'a' + word % 26));
            let head = [0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
            guest.write_all(&[&head, text.as_bytes()].concat())?;
            said += text.len();
            let pause = Instant::now() + Duration::from_millis(60);
            while Instant::now() < pause
                && let Ok(count @ 1..) = guest.read(&mut received)
            {
                heard += count;
            }
        }
        // A guest hears its own lines, too.
        if heard < said {
            let text = format!("said {said} bytes and heard {heard}");
            return Err(std::io::Error::other(text));
        }
        Ok(())
    };
    let ended = std::thread::scope(|scope| {
        let guests: Vec<_> = (0..32).map(|number| scope.spawn(move || guest(number))).collect();
        let mut guests = guests.into_iter();
        guests.try_for_each(|guest| guest.join().expect("a guest does not panic"))
    });
    ended.map_err(|error| format!("{path}: {error}"))
}
