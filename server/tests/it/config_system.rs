//! The server and its surroundings: metrics and health on the admin listener, systemd's sockets and notifications, dropped privileges.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::certs::Authority;
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, Server, Signal, fastcgi, osier};

const SITE: &str = "[[site]]\nhost = \"a.example\"\n[[site.route]]\npath = \"/text\"\nmethods = [\"GET\"]\nrespond = \"hello\"\n\
     [[site.route]]\nfiles = \"www\"\n[[site]]\ndefault = true\n[[site.route]]\nglob = \"*.old\"\nrespond = 410\n";

fn admin_of(sites: &Sites) -> SocketAddr {
    let said = sites.said();
    let address = said
        .split("/health, /metrics and /fibers are on ")
        .nth(1)
        .expect("the line of the admin's listener");
    address.lines().next().unwrap().parse().unwrap()
}

fn ask(address: SocketAddr, target: &str) -> (u16, String) {
    let mut client = Client::new(address);
    send(&mut client, "GET", "x", target, &[]);
    let reply = client.receive("GET");
    (reply.status, reply.text().to_owned())
}

/// The value of one line of the page.
fn metric(address: SocketAddr, line: &str) -> Option<f64> {
    let (status, page) = ask(address, "/metrics");
    assert_eq!(status, 200);
    let value = page
        .lines()
        .find_map(|known| known.strip_prefix(line)?.strip_prefix(' ').map(str::to_owned));
    value.map(|value| value.parse().unwrap())
}

#[test]
fn every_route_is_counted_and_a_reload_goes_on_counting() {
    let file = format!("[admin]\naddress = \"127.0.0.1:0\"\n{SITE}");
    let sites = Sites::start(&file);
    let admin = admin_of(&sites);
    assert_eq!(ask(admin, "/health"), (200, "ok\n".into()));
    let count = |site: &str, route: &str, code: &str| {
        metric(
            admin,
            &format!("osier_http_requests_total{{site=\"{site}\",route=\"{route}\",code=\"{code}\"}}"),
        )
    };
    for (host, target) in [
        ("a.example", "/text"),
        ("a.example", "/text"),
        ("a.example", "/a.txt"),
        ("a.example", "/none"),
        ("b", "/x.old"),
        ("b", "/x"),
    ] {
        sites.get(host, target);
    }
    // Counted when the answer has gone out.
    wait_for("the last count", || count("default", "none", "404") == Some(1.0));
    assert_eq!(count("a.example", "GET /text", "200"), Some(2.0));
    assert_eq!(count("a.example", "/", "200"), Some(1.0));
    assert_eq!(count("a.example", "/", "404"), Some(1.0));
    assert_eq!(count("default", "/ *.old", "410"), Some(1.0));
    assert_eq!(
        metric(
            admin,
            "osier_http_response_body_bytes_total{site=\"a.example\",route=\"GET /text\"}"
        ),
        Some(10.0)
    );
    let name = "osier_http_request_duration_seconds_count{site=\"a.example\",route=\"GET /text\"}";
    assert_eq!(metric(admin, name), Some(2.0));
    assert!(metric(admin, "osier_worker_turns_total{worker=\"1\"}").is_some());

    let said = sites.reload(&format!(
        "{file}[[site]]\nhost = \"new.example\"\n[[site.route]]\nrespond = \"new\"\n"
    ));
    assert!(said.contains("osier: reloaded "), "{said}");
    sites.get("a.example", "/text");
    sites.get("new.example", "/");
    wait_for("the count of a new route", || {
        count("new.example", "/", "200") == Some(1.0)
    });
    assert_eq!(count("a.example", "GET /text", "200"), Some(3.0));

    let client = sites.connect();
    wait_for("an open connection", || {
        metric(admin, "osier_connections").unwrap() >= 1.0
    });
    drop(client);
    // The site has none of it.
    assert_eq!(sites.get("b", "/metrics").status, 404);
}

#[test]
fn the_admins_listener_comes_moves_and_goes() {
    let sites = Sites::start(SITE);
    // Of an address that no client gets its port from.
    let port = || TcpListener::bind("127.0.0.3:0").unwrap().local_addr().unwrap();
    let (first, second) = (port(), port());
    let at = |address: SocketAddr| format!("[admin]\naddress = \"{address}\"\n{SITE}");
    assert!(TcpStream::connect(first).is_err());
    let said = sites.reload(&at(first));
    assert!(
        said.contains("/health, /metrics and /fibers are on ") && said.contains("reloaded"),
        "{said}"
    );
    assert_eq!(ask(first, "/health"), (200, "ok\n".into()));
    sites.get("a.example", "/text");
    let name = "osier_http_requests_total{site=\"a.example\",route=\"GET /text\",code=\"200\"}";
    wait_for("the count", || metric(first, name) == Some(1.0));
    // Elsewhere, and it goes on counting.
    assert!(sites.reload(&at(second)).contains("reloaded"));
    assert_eq!(metric(second, name), Some(1.0));
    wait_for("the end of the first", || TcpStream::connect(first).is_err());
    // An address that is taken leaves everything as it was.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = sites.reload(&at(taken.local_addr().unwrap()));
    assert!(said.contains("the old configuration stays"), "{said}");
    assert_eq!(ask(second, "/health").0, 200);
    assert!(sites.reload(SITE).contains("reloaded"));
    wait_for("the end of the second", || TcpStream::connect(second).is_err());
}

/// Its sockets go over, so that nobody has to bind what the other still has; also both ways at once.
#[test]
fn an_address_moves_between_sites_and_admin_in_one_reload() {
    let folder = Sites::folder();
    let unix = folder.join("o.sock");
    let port = || TcpListener::bind("127.0.0.3:0").unwrap().local_addr().unwrap();
    let (first, second) = (port().to_string(), port().to_string());
    let file = |listen: &[&str], admin: &str| {
        let listen = listen
            .iter()
            .map(|address| format!("[[listen]]\naddress = \"{address}\"\n"));
        let admin = match admin {
            "" => String::new(),
            admin => format!("[admin]\naddress = \"{admin}\"\n"),
        };
        let listen = listen.collect::<String>();
        format!("[[listen]]\naddress = \"127.0.0.1:0\"\n{listen}{admin}{SITE}")
    };
    // What /health is there: of [admin], or of the site, which has none.
    let of = |address: &str| {
        let stream: Box<dyn ReadWrite> = match address.strip_prefix("unix:") {
            Some(_) => Box::new(UnixStream::connect(&unix).expect("it listens")),
            None => Box::new(TcpStream::connect(address).expect("it listens")),
        };
        health(stream)
    };
    let mut sites = Sites::start_in(folder, &file(&[&first], ""));
    assert_eq!(of(&first), 404);
    let (admin, site) = (200, 404);
    let socket = "unix:o.sock";
    // [[listen]], [admin], and who is where then.
    type Step<'s> = (&'s [&'s str], &'s str, &'s [(&'s str, u16)]);
    let steps: [Step<'_>; 8] = [
        (&[], &first, &[(&first, admin)]),
        (&[&first], &second, &[(&first, site), (&second, admin)]),
        (&[&second], &first, &[(&first, admin), (&second, site)]),
        (&[&first, &second], "", &[(&first, site), (&second, site)]),
        (&[&first, socket], "", &[(&first, site), (socket, site)]),
        (&[&first], socket, &[(&first, site), (socket, admin)]),
        (&[socket], &first, &[(&first, admin), (socket, site)]),
        (&[], socket, &[(socket, admin)]),
    ];
    for (turn, (listen, of_admin, answers)) in steps.into_iter().enumerate() {
        let said = sites.reload(&file(listen, of_admin));
        assert!(said.contains("reloaded"), "{turn}: {said}");
        for (address, status) in answers {
            assert_eq!(of(address), *status, "{turn}: {address}: {said}");
        }
        assert_eq!(sites.get("a.example", "/text").text(), "hello");
    }
    wait_for("the end of the first", || TcpStream::connect(&first).is_err());
    // The file of the socket goes with who has it last.
    sites.server.signal(Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(!sites.folder.join("o.sock").exists());
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn health(mut stream: Box<dyn ReadWrite>) -> u16 {
    let asked = "GET /health HTTP/1.1\r\nHost: nobody\r\nConnection: close\r\n\r\n";
    stream.write_all(asked.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply[9..12].parse().unwrap()
}

#[test]
fn a_server_that_drains_says_so() {
    let file = format!(
        "drain = \"20s\"\n[admin]\naddress = \"127.0.0.1:0\"\n{SITE}[[site]]\nhost = \"slow\"\n[[site.route]]\nproxy = \"127.0.0.1:PORT\"\n"
    );
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sites = Sites::start(&file.replace("PORT", &upstream.local_addr().unwrap().port().to_string()));
    let admin = admin_of(&sites);
    // A request that is being answered: its upstream takes its time.
    let mut busy = sites.connect();
    send(&mut busy, "GET", "slow", "/", &[]);
    let (mut held, _) = upstream.accept().unwrap();
    sites.server.signal(Signal::TERM);
    wait_for("503 of /health", || ask(admin, "/health") == (503, "draining\n".into()));
    assert_eq!(metric(admin, "osier_draining"), Some(1.0));
    let line = "stopping: 1 connection is open; in-flight requests get at most 20 s; a second signal ends at once\n";
    assert!(sites.said().contains(line), "{}", sites.said());
    std::io::Write::write_all(&mut held, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").unwrap();
    assert_eq!(busy.receive("GET").text(), "done");
    assert!(sites.server.wait().success());
}

/// The binary with sockets at 3 and on, as systemd starts it: a shell puts them there.
pub fn with_sockets(sites: &crate::support::Folder, sockets: &[&TcpListener], names: &str) -> Command {
    let copies = sockets.iter().map(|socket| {
        let copy = rustix::io::fcntl_dupfd_cloexec(socket, 200).unwrap();
        rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).unwrap();
        copy
    });
    let copies: Vec<_> = copies.collect();
    let places: String = copies
        .iter()
        .enumerate()
        .map(|(at, fd)| format!("{}<&{} ", at + 3, fd.as_raw_fd()))
        .collect();
    // Kept open until the child has them: a test's process may leak a few numbers.
    copies.into_iter().for_each(std::mem::forget);
    let mut command = Command::new("bash");
    command
        .arg("-c")
        .arg(format!("export LISTEN_PID=$$; exec {places}; exec \"$0\" site.toml"));
    command.arg(osier().get_program()).current_dir(sites.path());
    command
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names);
    command
}

#[test]
fn systemd_hands_over_sockets_by_name_and_hears_how_it_goes() {
    let folder = Sites::folder();
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
    let spare = TcpListener::bind("127.0.0.1:0").unwrap();
    let notices = UnixDatagram::bind(folder.join("notify")).unwrap();
    notices.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let heard = || {
        let mut buffer = [0; 500];
        let count = notices.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    let file =
        format!("workers = 2\n[admin]\naddress = \"systemd:metrics\"\n[[listen]]\naddress = \"systemd:web\"\n{SITE}");
    fs::write(folder.join("site.toml"), file).unwrap();
    let mut command = with_sockets(&folder, &[&web, &metrics, &spare], "web:metrics:spare");
    command.env("NOTIFY_SOCKET", folder.join("notify"));
    command.stderr(fs::File::create(folder.join("stderr")).unwrap());
    // Waits in the backlog until somebody accepts.
    let mut early = Client::new(web.local_addr().unwrap());
    send(&mut early, "GET", "a.example", "/text", &[]);
    let mut server = Server::spawn(command);
    assert_eq!(server.address, web.local_addr().unwrap());
    assert_eq!(early.receive("GET").text(), "hello");
    assert_eq!(heard(), "READY=1\nSTATUS=2 sites, 3 routes, 1 listener");
    assert_eq!(ask(metrics.local_addr().unwrap(), "/health").0, 200);
    let said = fs::read_to_string(folder.join("stderr")).unwrap();
    assert!(said.contains("the socket 'spare' of systemd is not used"), "{said}");

    server.signal(Signal::HUP);
    assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(heard().starts_with("READY=1\n"));
    drop(early);
    server.signal(Signal::TERM);
    // 10 seconds of 'drain', and 15 for what follows.
    assert!(heard().starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=25000000\n"));
    assert!(server.wait().success());
}

#[test]
fn a_socket_that_systemd_has_not_opened_ends_the_start() {
    let folder = Sites::folder();
    fs::write(
        folder.join("site.toml"),
        format!("[[listen]]\naddress = \"systemd:web\"\n{SITE}"),
    )
    .unwrap();
    let output = osier().arg("site.toml").current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("systemd:web is not a socket of this process; systemd has passed none to this process"),
        "{said}"
    );
}

/// Starts as root, to become the user 65534.
fn as_nobody(more: &str) -> Option<Sites> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give privileges up");
        return None;
    }
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.join("logs")).unwrap();
    fs::set_permissions(folder.join("logs"), fs::Permissions::from_mode(0o777)).unwrap();
    let here = folder.path().display().to_string();
    let file = format!(
        "user = \"65534\"\ngroup = \"65534\"\n{more}[log]\nfile = \"{here}/logs/access\"\n[[site]]\ndefault = true\n[[site.route]]\nfiles = \"{here}/www\"\n"
    );
    let spool = folder.join("logs");
    Some(Sites::start_with(folder, &file.replace("HERE", &here), |command| {
        command.env("TMPDIR", spool);
    }))
}

fn uids(sites: &Sites) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", sites.server.id())).unwrap();
    let status = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).unwrap());
    let line = |status: String| {
        status
            .lines()
            .filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:") || line.starts_with("CapEff:"))
            .collect::<String>()
    };
    status.map(line).collect()
}

/// Root has opened the file, and a reload opens no other.
#[test]
fn a_reload_as_somebody_else_does_not_miss_the_pid_file() {
    let Some(sites) = as_nobody("pid_file = \"HERE/pid\"\n") else {
        return;
    };
    let said = sites.hang_up();
    assert!(said.contains("reloaded") && !said.contains("pid"), "{said}");
}

#[test]
fn every_thread_is_somebody_else_once_it_listens() {
    let Some(sites) = as_nobody("") else { return };
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
    let uids = uids(&sites);
    assert!(uids.len() > 2);
    let expected = "Uid:\t65534\t65534\t65534\t65534Gid:\t65534\t65534\t65534\t65534CapEff:\t0000000000000000";
    assert!(uids.iter().all(|line| line == expected), "{uids:?}");
    let said = sites.said();
    assert!(
        said.contains("osier: running as ") && said.contains("user 65534, group 65534"),
        "{said}"
    );
    assert!(said.contains("osier: landlock: "), "{said}");
    // The log is somebody else's too, and goes on after it was moved away.
    let log = sites.folder.join("logs/access");
    wait_for("a line", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("GET /a.txt"))
    });
    assert_eq!(fs::metadata(&log).unwrap().uid(), 65534);
    fs::rename(&log, sites.folder.join("logs/old")).unwrap();
    let said = sites.hang_up();
    assert!(said.contains("osier: reloaded "), "{said}");
    sites.get("x", "/sub/");
    wait_for("a line in the new log", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("GET /sub/"))
    });
}

#[test]
fn a_unix_socket_belongs_to_the_user_whom_the_server_becomes() {
    let listen = |mode: &str| {
        format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:HERE/logs/o.sock\"\nmode = \"{mode}\"\n"
        )
    };
    let Some(sites) = as_nobody(&listen("0600")) else {
        return;
    };
    let socket = sites.folder.join("logs/o.sock");
    let found = || fs::metadata(&socket).map(|found| (found.uid(), found.gid(), found.mode() & 0o777));
    assert_eq!(found().unwrap(), (65534, 65534, 0o600));
    // So a reload may change its permissions.
    let file = fs::read_to_string(sites.folder.join("site.toml")).unwrap();
    let said = sites.reload(&file.replace("0600", "0660"));
    assert!(said.contains("osier: reloaded "), "{said}");
    assert_eq!(found().unwrap(), (65534, 65534, 0o660));
}

#[test]
fn the_files_of_unix_sockets_go_at_the_end() {
    let listen = "[admin]\naddress = \"unix:HERE/logs/admin.sock\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
         [[listen]]\naddress = \"unix:HERE/logs/o.sock\"\n";
    let Some(mut sites) = as_nobody(listen) else { return };
    let files = ["logs/admin.sock", "logs/o.sock"].map(|name| sites.folder.join(name));
    for file in &files {
        let found = fs::metadata(file).unwrap();
        assert_eq!((found.uid(), found.gid()), (65534, 65534), "{}", file.display());
    }
    sites.server.signal(Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(files.iter().all(|file| !file.exists()), "{}", sites.said());
    // The same as the user who has started it.
    let here = sites.folder.path().display().to_string();
    let mut sites = Sites::start(&format!("{}{SITE}", listen.replace("HERE", &here)));
    assert!(files.iter().all(|file| file.exists()));
    sites.server.signal(Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(files.iter().all(|file| !file.exists()), "{}", sites.said());
}

/// The user of the server may write into the folder of a log. A link that it has left there must not make root give the target
/// away at the next start.
#[test]
fn root_gives_away_nothing_that_the_links_of_others_lead_to() {
    let folder = Sites::folder();
    let Some(victims) = victims(&folder) else { return };
    let logs = folder.join("logs");
    let here = folder.path().display().to_string();
    let text = format!(
        "user = \"65534\"\ngroup = \"65534\"\n[error_log]\nfile = \"{here}/logs/error\"\n[log]\nfile = \"{here}/logs/deep/access\"\n\
         [[site]]\ndefault = true\n[site.cache]\ndisk = \"{here}/logs/cache\"\n[[site.route]]\nfiles = \"www\"\n\
         [[site]]\nhost = \"b.example\"\n[site.cache]\ndisk = \"{here}/logs/deep/cache\"\n[[site.route]]\nfiles = \"www\"\n"
    );
    planted(&victims.join("file"), &logs.join("error"));
    planted(&victims, &logs.join("deep"));
    planted(&victims, &logs.join("cache"));
    let sites = Sites::start_with(folder, &text, |_| {});
    let said = sites.said();
    let owner = |name: &str| fs::metadata(victims.join(name)).map(|found| found.uid());
    assert_eq!(owner("").unwrap(), 0, "the folder has been given away: {said}");
    assert_eq!(owner("file").unwrap(), 0, "the file has been given away: {said}");
    assert!(owner("access").is_err(), "root has made a file: {said}");
    assert!(owner("cache").is_err(), "root has made a folder: {said}");
    for name in ["error", "deep/access", "cache", "deep/cache"] {
        let line = format!("'{here}/logs/{name}' is not given to the user of the server: ");
        assert!(said.contains(&line), "{line} is missing: {said}");
    }
}

#[test]
fn root_writes_its_id_through_no_link_of_others() {
    let folder = Sites::folder();
    let Some(victims) = victims(&folder) else { return };
    planted(&victims.join("file"), &folder.join("logs/pid"));
    let text = "user = \"65534\"\ngroup = \"65534\"\npid_file = \"logs/pid\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
         [[site]]\n[[site.route]]\nfiles = \"www\"\n";
    fs::write(folder.join("site.toml"), text).unwrap();
    let output = osier().arg("site.toml").current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = "logs/pid' is a symbolic link that somebody other than root may have made; remove it";
    assert!(said.contains(expected), "{said}");
    assert_eq!(fs::read_to_string(victims.join("file")).unwrap(), "precious\n");
    // A link of root in a folder of root is followed.
    fs::remove_file(folder.join("logs/pid")).unwrap();
    symlink("logs/pid", folder.join("pid")).unwrap();
    let sites = Sites::start_with(folder, &text.replace("logs/pid", "pid"), |_| {});
    let id = format!("{}\n", sites.server.id());
    wait_for("the id", || {
        fs::read_to_string(sites.folder.join("logs/pid")).is_ok_and(|found| found == id)
    });
}

#[test]
fn root_makes_no_socket_behind_a_link_of_others() {
    let folder = Sites::folder();
    let Some(victims) = victims(&folder) else { return };
    planted(&victims, &folder.join("logs/deep"));
    // The file of a socket on which nobody listens, which a server replaces.
    drop(std::os::unix::net::UnixListener::bind(victims.join("o.sock")).unwrap());
    for name in ["o.sock", "new.sock"] {
        let text = format!(
            "user = \"65534\"\ngroup = \"65534\"\n[[listen]]\naddress = \"unix:logs/deep/{name}\"\n\
             [[site]]\n[[site.route]]\nfiles = \"www\"\n"
        );
        fs::write(folder.join("site.toml"), text).unwrap();
        let before = fs::metadata(victims.join(name)).ok().map(|found| found.ino());
        let output = osier().arg("site.toml").current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("logs/deep' is a symbolic link that somebody other than root"),
            "{said}"
        );
        assert_eq!(
            fs::metadata(victims.join(name)).ok().map(|found| found.ino()),
            before,
            "{name}"
        );
    }
}

/// Makes the folder `logs`, which belongs to the user 65534, and a folder that only root may read, with a file. None unless this is root.
fn victims(folder: &crate::support::Folder) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return None;
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(folder.join("logs")).unwrap();
    chown(folder.join("logs"), Some(65534), Some(65534)).unwrap();
    let victims = folder.join("victims");
    fs::create_dir(&victims).unwrap();
    fs::write(victims.join("file"), "precious\n").unwrap();
    for (name, mode) in [("", 0o700), ("file", 0o600)] {
        fs::set_permissions(victims.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    Some(victims)
}

/// Makes a symbolic link of the user 65534.
fn planted(target: &Path, link: &Path) {
    symlink(target, link).unwrap();
    lchown(link, Some(65534), Some(65534)).unwrap();
}

#[test]
fn landlock_keeps_it_to_what_the_file_names() {
    let Some(sites) = as_nobody("") else { return };
    let said = sites.said();
    if !said.contains("landlock: ABI") {
        println!("skipped: {said}");
        return;
    }
    // Readable for everybody, but not one of the roots: a reload that asks for it is refused.
    let elsewhere = Sites::folder();
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let root = elsewhere.join("other").display().to_string();
    let keys = "user = \"65534\"\ngroup = \"65534\"\n";
    let said = sites.reload(&format!(
        "{keys}[[site]]\ndefault = true\n[[site.route]]\nfiles = \"{root}\"\n"
    ));
    assert!(said.contains("the old configuration stays"), "{said}");
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
}

#[test]
fn another_root_folder_serves_the_same_files() {
    let Some(sites) = as_nobody("chroot = \"HERE\"\n") else {
        return;
    };
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
    let root = fs::read_link(format!("/proc/{}/root", sites.server.id())).unwrap();
    assert_eq!(root, sites.folder.path().canonicalize().unwrap());
    assert!(sites.said().contains("osier: the root folder is '"), "{}", sites.said());
    wait_for("a line", || {
        fs::read_to_string(sites.folder.join("logs/access")).is_ok_and(|log| log.contains("GET /a.txt"))
    });
}

/// A jail as one is made: the file in a folder of its own, /etc and a folder for temporary files inside. Neither of these is below what the
/// same names mean outside.
fn jail(spool: &str) -> Option<(Server, crate::support::Folder, TcpListener)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give privileges up");
        return None;
    }
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("etc/hosts", "127.0.0.1 backend.test\n");
    fs::create_dir(folder.join("inner-tmp")).unwrap();
    fs::set_permissions(folder.join("inner-tmp"), fs::Permissions::from_mode(0o777)).unwrap();
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, port) = (folder.path().display(), backend.local_addr().unwrap().port());
    let text = format!(
        "workers = 2\nuser = \"65534\"\ngroup = \"65534\"\nchroot = \"{here}\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\n\
         [[site.route]]\npath = \"/app\"\nfastcgi = {{ to = \"127.0.0.1:{port}\", root = \"{here}/www\", front = \"/a.txt\" }}\n\
         [[site.route]]\nproxy = \"backend.test:{port}\"\n"
    );
    let file = folder.write("conf/site.toml", text);
    let mut command = osier();
    command.arg(file).env("TMPDIR", spool);
    command.stderr(fs::File::create(folder.join("stderr")).unwrap());
    Some((Server::spawn(command), folder, backend))
}

#[test]
fn another_root_folder_has_its_own_hosts_and_temporary_files() {
    let Some((server, folder, backend)) = jail("/inner-tmp") else {
        return;
    };
    let said = fs::read_to_string(folder.join("stderr")).unwrap();
    assert!(!said.contains("temporary"), "{said}");
    let mut client = server.connect();
    client.send("GET", "/", &[]);
    backend.set_nonblocking(true).unwrap();
    let mut stream = None;
    wait_for("the proxy, or an answer without it", || {
        stream = backend.accept().ok();
        stream.is_some() || rustix::io::ioctl_fionread(&client.stream).unwrap() > 0
    });
    let Some((mut stream, _)) = stream else {
        panic!("the backend is not found: {:?}", client.receive("GET"));
    };
    stream.set_nonblocking(false).unwrap();
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfound")
        .unwrap();
    assert_eq!(client.receive("GET").text(), "found");

    backend.set_nonblocking(false).unwrap();
    let application = std::thread::spawn(move || {
        fastcgi::answer(&mut backend.accept().unwrap().0, |_, body| {
            format!("Content-Type: text/plain\r\n\r\n{body}")
        });
    });
    client.send_raw(b"POST /app HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..16 {
        client.send_raw(b"10000\r\n");
        client.send_raw(&[b'x'; 0x10000]);
        client.send_raw(b"\r\n");
    }
    client.send_raw(b"0\r\n\r\n");
    let reply = client.receive("POST");
    assert_eq!((reply.status, reply.text()), (200, "1048576"));
    application.join().unwrap();
}

#[test]
fn a_root_folder_without_one_for_temporary_files_is_told_at_the_start() {
    let Some((_server, folder, _)) = jail("/no-such-tmp") else {
        return;
    };
    let said = fs::read_to_string(folder.join("stderr")).unwrap();
    let line = format!(
        "'{}', for temporary files, cannot be written to",
        folder.join("no-such-tmp").display()
    );
    assert!(said.contains(&line), "{said}");
}

#[test]
fn a_reload_in_another_root_folder_finds_what_lies_there() {
    let Some(sites) = as_nobody("chroot = \"HERE\"\nlandlock = false\nstate = \"HERE/state\"\n") else {
        return;
    };
    let here = sites.folder.path().display().to_string();
    let file = |route: &str| {
        format!(
            "user = \"65534\"\ngroup = \"65534\"\nchroot = \"{here}\"\nlandlock = false\nstate = \"{here}/state\"\n\
             [log]\nfile = \"{here}/logs/access\"\n\
             [[site]]\ndefault = true\n[[site.route]]\npath = \"/new\"\n{route}\n[[site.route]]\nfiles = \"{here}/www\"\n"
        )
    };
    // Named as before: absolute, and from the file's folder.
    for root in [format!("{here}/other"), "other".into()] {
        let said = sites.reload(&file(&format!("files = {{ root = \"{root}\", strip = true }}")));
        assert!(
            said.contains("osier: reloaded ") && !said.contains("has changed"),
            "{said}"
        );
        assert_eq!(sites.get("x", "/new/").text(), "the other index");
        assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
    }
    // An error is reported with the name that the user knows.
    let said = sites.reload(&file("files = \"none\""));
    assert!(said.contains(&format!("there is no folder '{here}/none'")), "{said}");
    let said = sites.reload(&file("files = \"/usr\""));
    let line = format!("'/usr' lies outside of '{here}', the root folder of this process");
    assert!(said.contains(&line), "{said}");
    let said = sites.reload(&file("respond = { file = \"404.html\" }"));
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("x", "/new").text(), "<h1>lost</h1>");
    // A socket that comes lies inside, too.
    fs::set_permissions(sites.folder.join("other"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = sites.reload(&format!(
        "{}[[listen]]\naddress = \"unix:other/o.sock\"\nmode = \"0600\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n",
        file("respond = 204")
    ));
    assert!(said.contains("reloaded"), "{said}");
    let mode = fs::metadata(sites.folder.join("other/o.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn sockets_outside_of_the_new_root_folder_outlive_reloads() {
    let outside = crate::support::Folder::new();
    let there = outside.path().display();
    let listen = format!(
        "[admin]\naddress = \"unix:{there}/admin.sock\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
         [[listen]]\naddress = \"unix:{there}/web.sock\"\n"
    );
    let Some(sites) = as_nobody(&format!("chroot = \"HERE\"\n{listen}")) else {
        return;
    };
    let said = sites.hang_up();
    assert!(said.contains("osier: reloaded "), "{said}");
    for name in ["admin.sock", "web.sock"] {
        let mut stream = UnixStream::connect(outside.join(name)).unwrap();
        stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let expected = if name == "web.sock" { "404" } else { "200" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{name}: {answer}");
    }
    // Another one cannot come.
    let text = fs::read_to_string(sites.folder.join("site.toml")).unwrap();
    let said = sites.reload(&text.replace("web.sock", "other.sock"));
    assert!(
        said.contains("the old configuration stays") && said.contains("other.sock"),
        "{said}"
    );
}

#[test]
fn a_file_outside_of_the_new_root_folder_is_not_read_again() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give privileges up");
        return;
    }
    let folder = Sites::folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = "user = \"65534\"\ngroup = \"65534\"\nchroot = \"www\"\n[[site]]\n[[site.route]]\nfiles = \"www\"\n";
    let sites = Sites::start_in(folder, text);
    let (file, root) = (sites.folder.join("site.toml"), sites.folder.join("www"));
    let outside = format!("'{}' lies outside of '{}'", file.display(), root.display());
    assert!(sites.said().contains(&outside), "{}", sites.said());
    let said = sites.hang_up();
    for part in [
        "lies outside of",
        "cannot be read again; restart the server, and keep the file below",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
}

#[test]
fn landlock_leaves_every_file_that_is_read_with_the_configuration_readable() {
    let (folder, elsewhere) = (Sites::folder(), Sites::folder());
    let authority = Authority::new("the authority");
    authority.write(&folder, "site", &["example.org"]);
    let replace = |pem: &str| {
        elsewhere.write("new.pem", pem);
        fs::rename(elsewhere.join("new.pem"), elsewhere.join("ca.pem")).unwrap();
    };
    replace(&authority.pem);
    let ca = elsewhere.join("ca.pem").display().to_string();
    let text = format!(
        "landlock = true\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = {{ client_ca = \"{ca}\" }}\n\
         [[site]]\nhost = \"example.org\"\ntls = {{ cert = \"site.pem\", key = \"site.key\" }}\n\
         [[site.route]]\nproxy = {{ to = \"https://{}\", ca = \"{ca}\" }}\n",
        testkit::nobody()
    );
    let spool = folder.join("other");
    let sites = Sites::start_with(folder, &text, |command| {
        command.env("TMPDIR", spool);
    });
    replace(&Authority::new("another authority").pem);
    let said = sites.reload(&text);
    assert!(
        said.contains("'tls' of listener") && said.contains("reloaded"),
        "{said}"
    );
}

#[test]
fn landlock_alone_and_none_at_all() {
    let keys = "landlock = true\n";
    let folder = Sites::folder();
    let spool = folder.join("other");
    // Temporary files may be everywhere in their folder, and these tests are in that of the system.
    let sites = Sites::start_with(folder, &format!("{keys}{SITE}"), |command| {
        command.env("TMPDIR", spool);
    });
    let said = sites.said();
    assert!(said.contains("osier: landlock: "), "{said}");
    assert_eq!(sites.get("a.example", "/a.txt").text(), "the file a");
    let elsewhere = Sites::folder();
    let other = format!(
        "{keys}[[site]]\n[[site.route]]\nfiles = \"{}\"\n",
        elsewhere.join("other").display()
    );
    let said = match said.contains("landlock: ABI") {
        true => sites.reload(&other),
        false => return println!("skipped: {said}"),
    };
    assert!(said.contains("the old configuration stays"), "{said}");
    assert!(said.contains("restart the server to use others"), "{said}");
    // A mistake counts by its kind, whatever words are in it.
    let there = elsewhere.path().display();
    for (route, is_denied) in [
        (format!("respond = {{ file = \"{there}/www/a.txt\" }}"), true),
        (
            format!("jwt = {{ keys = \"{there}/www/a.txt\" }}\nrespond = \"x\""),
            true,
        ),
        ("respond = \"x\"\n\"Permission denied\" = 1".to_owned(), false),
    ] {
        let said = sites.reload(&format!("{keys}[[site]]\n[[site.route]]\n{route}\n"));
        assert!(said.contains("the old configuration stays"), "{said}");
        assert_eq!(said.contains("restart the server to use others"), is_denied, "{said}");
    }

    // As nobody, and free to read what others may.
    let Some(sites) = as_nobody("landlock = false\n") else {
        return;
    };
    assert!(!sites.said().contains("landlock"), "{}", sites.said());
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let said = sites.reload(&format!(
        "user = \"65534\"\ngroup = \"65534\"\n{}",
        other.replace(keys, "landlock = false\n")
    ));
    assert!(said.contains("osier: reloaded "), "{said}");
    assert_eq!(sites.get("x", "/").text(), "the other index");
}

#[test]
fn what_cannot_be_given_up_ends_the_start() {
    let folder = Sites::folder();
    for (keys, expected) in [
        ("user = \"no such user\"\n", "/etc/passwd has no such user"),
        (
            "user = \"65534\"\ngroup = \"65534\"\nchroot = \"/usr\"\n",
            "is outside of chroot",
        ),
    ] {
        let file = format!(
            "{keys}[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n"
        );
        fs::write(folder.join("site.toml"), file).unwrap();
        let output = osier().arg("site.toml").current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(expected) || said.contains("need a start as root"),
            "{said}"
        );
    }
}
