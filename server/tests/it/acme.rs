//! Certificates from an authority that speaks ACME: Pebble, the test server of Let's Encrypt.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::Redis;
use testkit::pebble::{Manners, Pebble};
use testkit::{DEADLINE, Folder, eventually, nobody, wait_for};

use crate::support::{Server, Signal, certs, osier};

/// A Pebble, and the ports at which it looks at proofs.
struct Authority {
    pebble: Pebble,
    plain: u16,
    https: u16,
    folder: Folder,
}

impl Authority {
    /// `None` if Pebble or openssl are not installed.
    fn start(wants_binding: bool) -> Option<Authority> {
        if testkit::find("openssl").is_none() {
            testkit::skip("openssl is not installed");
            return None;
        }
        let folder = Folder::new();
        let ca = certs::Authority::new("the authority of the authority");
        folder.write("ca.pem", &ca.pem);
        ca.write(&folder, "pebble", &["127.0.0.1"]);
        let (plain, https) = (nobody().port(), nobody().port());
        let manners = Manners {
            http_port: plain,
            tls_port: https,
            refused_nonces: 30,
            wants_binding,
        };
        let pebble = Pebble::start(
            folder.path(),
            &folder.join("pebble.pem"),
            &folder.join("pebble.key"),
            manners,
        )?;
        Some(Authority {
            pebble,
            plain,
            https,
            folder,
        })
    }

    /// A configuration with one site and the keys of `[acme]`, and the folder of the server.
    fn site(&self, hosts: &str, acme: &str) -> Folder {
        let folder = Folder::new();
        let (plain, https, ca) = (self.plain, self.https, self.folder.join("ca.pem"));
        let binding = if acme.contains("binding") { "" } else { "#" };
        folder.write(
            "site.toml",
            format!(
                "state = \"state\"\n\
                 [acme]\nemail = \"admin@example.org\"\n{acme}\n[[acme.issuer]]\ndirectory = \"{directory}\"\nca = \"{ca}\"\n{binding}binding = {{ id = \"customer\", secret = \"{secret}\" }}\n\
                 [[listen]]\naddress = \"127.0.0.1:{plain}\"\n[[listen]]\naddress = \"127.0.0.1:{https}\"\ntls = true\n\
                 [[site]]\nhost = {hosts}\ntls = \"auto\"\n[[site.route]]\nrespond = \"served\"\n",
                directory = self.pebble.directory(),
                ca = ca.display(),
                secret = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc",
                acme = acme.replace("binding", ""),
            ),
        );
        folder
    }

    /// A site of one of several machines that share a Redis, at these ports.
    fn shared_site(&self, redis: &Redis, ports: (u16, u16)) -> Folder {
        self.shared_site_by(&format!("redis = \"redis+unix://{}\"", redis.socket().display()), ports)
    }

    /// The same, which reaches the Redis by these keys of `[shared]`.
    fn shared_site_by(&self, keys: &str, (plain, https): (u16, u16)) -> Folder {
        let folder = self.site("\"a.example.org\"", "challenges = \"http-01\"");
        let text = fs::read_to_string(folder.join("site.toml")).unwrap();
        let ports = |text: String, from: u16, to: u16| {
            text.replace(&format!("127.0.0.1:{from}\""), &format!("127.0.0.1:{to}\""))
        };
        let text = ports(ports(text, self.plain, plain), self.https, https);
        let shared = format!("[shared]\n{keys}\nkey = \"shared.key\"\n");
        folder.write("shared.key", [7; 48]);
        fs::set_permissions(folder.join("shared.key"), fs::Permissions::from_mode(0o600)).unwrap();
        folder.write("site.toml", text.replace("state = \"state\"\n", &shared));
        folder
    }

    /// Number of certificates that Pebble has issued.
    fn issued(&self) -> usize {
        let log = fs::read_to_string(self.folder.join("pebble.log")).unwrap();
        log.matches("Issued certificate serial").count()
    }

    /// The issuer of the certificate that the server shows for a name.
    fn shown(&self, name: &str) -> String {
        let text = handshake(self.https, &["-servername", name]);
        let issuer = text.lines().find(|line| line.starts_with("issuer="));
        issuer.unwrap_or("issuer=none").to_owned()
    }

    #[track_caller]
    fn wait_for_certificate(&self, name: &str, folder: &Folder) {
        let certificate = fmt::from_fn(|f| write!(f, "a certificate for {name}: {}", errors(folder)));
        eventually(certificate, || self.shown(name).contains("Pebble Intermediate"));
    }
}

/// The report of openssl's client about a handshake.
fn handshake(port: u16, args: &[&str]) -> String {
    let at = format!("127.0.0.1:{port}");
    // A server that does not answer fails the test instead of holding it up.
    let mut child = Command::new("timeout")
        .args(["60", "openssl", "s_client", "-connect", &at])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Session tickets come before the response.
    let request = b"GET / HTTP/1.1\r\nHost: a.example.org\r\nConnection: close\r\n\r\n";
    let _ = child.stdin.as_mut().unwrap().write_all(request);
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(folder: &Folder) -> String {
    fs::read_to_string(folder.join("errors")).unwrap_or_default()
}

fn start(folder: &Folder) -> Server {
    start_with(folder, |_| {})
}

fn start_with(folder: &Folder, prepare: impl FnOnce(&mut Command)) -> Server {
    let mut command = osier();
    prepare(&mut command);
    let log = fs::File::options()
        .append(true)
        .create(true)
        .open(folder.join("errors"))
        .unwrap();
    command
        .arg("site.toml")
        .current_dir(folder.path())
        .stderr(Stdio::from(log));
    Server::spawn(command)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_site_gets_its_certificate_by_each_proof() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    for (proof, name) in [("http-01", "a.example.org"), ("tls-alpn-01", "b.example.org")] {
        let folder = authority.site(&format!("\"{name}\""), &format!("challenges = \"{proof}\""));
        let mut server = start(&folder);
        // It serves from the beginning, with a certificate of its own.
        assert!(server.ready_line.contains("https://"), "{}", server.ready_line);
        authority.wait_for_certificate(name, &folder);
        let stored = folder.join(format!("state/acme/certificates/{name}.pem"));
        assert_eq!((mode(&stored), mode(stored.parent().unwrap())), (0o600, 0o700));
        server.signal(Signal::TERM);
        server.wait();
        let said = errors(&folder);
        assert!(said.contains("SELF-SIGNED"), "{said}");
        assert!(said.contains(&format!("has issued a certificate for {name}")), "{said}");
    }
    assert_eq!(authority.issued(), 2);
}

#[test]
fn a_wildcard_is_proved_by_a_program() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let program = authority.pebble.dns_program(authority.folder.path());
    let acme = format!("challenges = \"dns-01\"\ndns = \"{}\"", program.display());
    let folder = authority.site("[\"*.example.org\", \"example.org\"]", &acme);
    let _server = start(&folder);
    authority.wait_for_certificate("any.example.org", &folder);
    authority.wait_for_certificate("example.org", &folder);
    // Each record goes when it has been looked at, by its own value.
    let asked = |what: &str| {
        let log = fs::read_to_string(authority.folder.join("dns-program.log")).unwrap_or_default();
        let mut records: Vec<String> = log
            .lines()
            .filter_map(|line| line.strip_prefix(what))
            .map(str::to_owned)
            .collect();
        records.sort();
        records
    };
    let added = asked("add ");
    assert!(
        added.len() >= 2
            && added
                .iter()
                .all(|record| record.starts_with("_acme-challenge.example.org ")),
        "{added:?}"
    );
    eventually("the removal of the records", || asked("remove ") == added);
}

#[test]
fn landlock_leaves_the_program_and_the_authorities_of_the_issuer_accessible() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let programs = Folder::new();
    let program = authority.pebble.dns_program(programs.path());
    let acme = format!("challenges = \"dns-01\"\ndns = \"{}\"", program.display());
    let folder = authority.site("\"*.example.org\"", &acme);
    let text = fs::read_to_string(folder.join("site.toml")).unwrap();
    folder.write("site.toml", format!("landlock = true\n{text}"));
    // Temporary files may be everywhere in their folder, and these tests are in that of the system.
    let spool = folder.join("spool");
    fs::create_dir(&spool).unwrap();
    let _server = start_with(&folder, |command| {
        command.env("TMPDIR", spool);
    });
    authority.wait_for_certificate("any.example.org", &folder);
}

#[test]
fn an_account_is_bound_to_a_customer() {
    let Some(authority) = Authority::start(true) else {
        return;
    };
    let folder = authority.site("\"a.example.org\"", "");
    {
        let _server = start(&folder);
        eventually("the refusal", || errors(&folder).contains("set 'binding'"));
    }
    let folder = authority.site("\"a.example.org\"", "binding");
    let _server = start(&folder);
    authority.wait_for_certificate("a.example.org", &folder);
    assert!(!errors(&folder).contains("BwcHBwc"));
}

#[test]
fn a_killed_server_takes_up_where_it_was_and_the_stored_certificate_is_served_at_once() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let folder = authority.site("\"a.example.org\"", "");
    let server = start(&folder);
    let order = folder.join("state/acme/certificates/a.example.org.order");
    let stored = folder.join("state/acme/certificates/a.example.org.pem");
    // Somewhere in the order, which is short; a fast issuer may be done before.
    let begun = Instant::now();
    while !order.exists() && !stored.exists() {
        assert!(begun.elapsed() < DEADLINE, "no order");
        std::thread::sleep(Duration::from_millis(2));
    }
    server.signal(Signal::KILL);
    drop(server);
    let server = start(&folder);
    authority.wait_for_certificate("a.example.org", &folder);
    assert_eq!(authority.issued(), 1, "{}", errors(&folder));
    drop(server);
    let _server = start(&folder);
    assert!(authority.shown("a.example.org").contains("Pebble Intermediate"));
    assert_eq!(authority.issued(), 1);
}

#[test]
fn machines_that_share_a_redis_have_one_certificate_and_answer_each_others_challenges() {
    // The first machine speaks TLS with Redis.
    let (files, tls_port) = (Folder::new(), nobody().port().to_string());
    let ca = certs::Authority::new("the authority of Redis");
    files.write("ca.pem", &ca.pem);
    ca.write(&files, "redis", &["127.0.0.1"]);
    let [ca, chain, key] = ["ca.pem", "redis.pem", "redis.key"].map(|name| files.join(name).display().to_string());
    let tls = [
        "--tls-port",
        &tls_port,
        "--tls-auth-clients",
        "no",
        "--tls-ca-cert-file",
        &ca,
    ];
    let tls = [&tls[..], &["--tls-cert-file", &chain, "--tls-key-file", &key]].concat();
    let (Some(mut redis), Some(authority)) = (Redis::start(&tls), Authority::start(false)) else {
        return;
    };
    const NAME: &str = "a.example.org";
    // The issuer asks the second machine, which sees that another one orders.
    redis.ask(&format!("SET osier:lock:{NAME} somebody PX 600000"));
    let second = authority.shared_site(&redis, (authority.plain, authority.https));
    let _second = start(&second);
    eventually("the look at the lock", || {
        redis.ask("INFO commandstats").contains("cmdstat_pttl:")
    });
    redis.ask(&format!("DEL osier:lock:{NAME}"));
    let (plain, https) = (nobody().port(), nobody().port());
    let by_tls = format!("redis = \"rediss://127.0.0.1:{tls_port}\"\nca = \"{ca}\"");
    let first = authority.shared_site_by(&by_tls, (plain, https));
    let _first = start(&first);
    eventually("the certificate at the first machine", || {
        handshake(https, &["-servername", NAME]).contains("Pebble Intermediate")
    });
    // Mostly the first one orders. The second one does if its subscription begins so late that it looks again once the lock is free.
    let ordered = |machine: &Folder| errors(machine).contains("has issued a certificate");
    eventually("the line about it", || ordered(&first) || ordered(&second));
    authority.wait_for_certificate(NAME, &second);
    assert_eq!(authority.issued(), 1);
    let stored = redis.ask(&format!("GET osier:certificate:{NAME}"));
    assert!(stored.len() > 1000 && !stored.contains("PRIVATE KEY") && !stored.contains("CERTIFICATE"));

    // A session of the first machine is resumed by the second one.
    let session = first.join("session").display().to_string();
    eventually("a session that both know", || {
        // openssl may leave before the ticket has come.
        handshake(https, &["-servername", NAME, "-sess_out", &session]);
        let resumed = handshake(authority.https, &["-servername", NAME, "-sess_in", &session]);
        resumed.contains("\nReused, ")
    });

    // Without Redis both serve on. Each says so once, and once that it is back.
    redis.kill();
    for folder in [&first, &second] {
        eventually("the outage", || errors(folder).contains("is away"));
    }
    assert!(authority.shown(NAME).contains("Pebble Intermediate"));
    redis.restart();
    for folder in [&first, &second] {
        eventually("the return", || errors(folder).contains("is back after"));
        assert_eq!(errors(folder).matches("is away").count(), 1, "{}", errors(folder));
    }
}

#[test]
fn a_machine_that_dies_in_an_order_gives_its_lock_back() {
    let (Some(redis), Some(authority)) = (Redis::start(&[]), Authority::start(false)) else {
        return;
    };
    let lock = "osier:lock:a.example.org";
    let folder = authority.shared_site(&redis, (nobody().port(), nobody().port()));
    let server = start(&folder);
    // It waits for the others before it tells the issuer to look.
    wait_for("the lock", || {
        redis.ask(&format!("EXISTS {lock}")).contains(":1").then_some(())
    });
    server.signal(Signal::KILL);
    drop(server);
    let left = redis.ask(&format!("PTTL {lock}"));
    let left: u64 = left.lines().next().unwrap().trim_start_matches(':').parse().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
    // The time until then is shortened.
    redis.ask(&format!("PEXPIRE {lock} 1500"));
    let folder = authority.shared_site(&redis, (authority.plain, authority.https));
    let _server = start(&folder);
    authority.wait_for_certificate("a.example.org", &folder);
    assert_eq!(authority.issued(), 1, "{}", errors(&folder));
}

#[test]
fn a_redis_that_is_away_does_not_hold_up_the_start() {
    let (Some(mut redis), Some(authority)) = (Redis::start(&[]), Authority::start(false)) else {
        return;
    };
    redis.kill();
    let folder = authority.shared_site(&redis, (authority.plain, authority.https));
    let server = start(&folder);
    assert!(server.ready_line.contains("https://"), "{}", server.ready_line);
    eventually("the outage", || errors(&folder).contains("is away"));
    redis.restart();
    authority.wait_for_certificate("a.example.org", &folder);
}

/// Answers whether a name may have a certificate: only names that begin with `yes`. Returns its URL, and what it was asked.
fn permissions() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/may?key=1", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut line).unwrap();
            while reader.read_line(&mut String::new()).is_ok_and(|length| length > 2) {}
            let target = line.split(' ').nth(1).unwrap().to_owned();
            let status = if target.contains("domain=yes") {
                "200 OK"
            } else {
                "403 Forbidden"
            };
            heard.lock().unwrap().push(target);
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    (url, asked)
}

#[test]
fn a_name_that_no_site_lists_gets_its_certificate_on_demand_if_it_may() {
    let Some(authority) = Authority::start(false) else {
        return;
    };
    let (url, asked) = permissions();
    let folder = authority.site("\"listed.example.org\"", &format!("ask = \"{url}\""));
    let text = fs::read_to_string(folder.join("site.toml")).unwrap();
    let site = "host = \"listed.example.org\"\ntls = \"auto\"";
    assert!(text.contains(site), "{text}");
    // An order takes long on a busy machine.
    let tls = "tls = true\n[listen.timeouts]\nhandshake = \"60s\"";
    let text = text.replace("tls = true", tls);
    folder.write("site.toml", text.replace(site, "default = true\ntls = \"on-demand\""));
    let server = start(&folder);
    // The first client waits for the order, and so do those that come meanwhile.
    let others = std::thread::scope(|scope| {
        let clients = [(); 3].map(|()| scope.spawn(|| authority.shown("yes.example.org")));
        clients.map(|client| client.join().unwrap())
    });
    for issuer in others {
        assert!(issuer.contains("Pebble Intermediate"), "{issuer}: {}", errors(&folder));
    }
    assert_eq!(authority.shown("no.example.org"), "issuer=none");
    for name in ["no.example.org", "no.example.org", "no_host", "127.0.0.1"] {
        assert_eq!(authority.shown(name), "issuer=none", "{name}");
    }
    let mut questions = asked.lock().unwrap().clone();
    questions.sort();
    assert_eq!(
        questions,
        ["/may?key=1&domain=no.example.org", "/may?key=1&domain=yes.example.org"]
    );
    assert_eq!(authority.issued(), 1);
    assert!(folder.join("state/acme/certificates/yes.example.org.pem").exists());
    drop(server);
    // The next process serves the first client already.
    let _server = start(&folder);
    assert!(authority.shown("yes.example.org").contains("Pebble Intermediate"));
    assert_eq!(authority.issued(), 1);
}
