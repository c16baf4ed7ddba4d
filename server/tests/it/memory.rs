//! The memory limit under attack, on servers with little memory. The process lives, stays below the limit, and serves other clients.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::allow_descriptors;

use crate::config_http2::frame;
use crate::metrics::{ADMIN, admin_of, page_of};
use crate::slow_readers::slow_reader;
use crate::support::serving::Serving;
use crate::support::sites::Sites;
use crate::upgrade::root_folder;

/// More than the attackers hold if nothing bounds them: 60 MB.
const ATTACKERS: usize = 1500;
const HEAD: usize = 30_000;

/// The streams of a connection of HTTP/2: as many as the server allows.
const STREAMS: u32 = 100;

/// The longest time in which the server serves others again. A machine with other work takes a minute where this test alone takes four
/// seconds.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The pause of a quiet client before its next request.
pub const PAUSE: Duration = Duration::from_millis(10);

const SITE: &str = "[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\n[[site.route]]\nrespond = \"x\"\n";

/// The resident memory of a process, now or at its highest, in bytes.
fn resident(pid: u32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|text| text.strip_prefix(line))
        .expect("Linux tells it");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// An attacker that has sent most of a head, as far as the server lets it.
pub fn half_a_head(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let head = [b"GET / HTTP/1.1\r\nX: ", &*vec![b'x'; HEAD]].concat();
    (&stream).write_all(&head).ok()?;
    Some(stream)
}

/// An attacker that has sent `bytes`, as far as the server takes them.
pub fn sends(address: SocketAddr, bytes: &[u8]) -> Option<TcpStream> {
    let mut client = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = client.write_all(bytes);
    Some(client)
}

/// A connection of HTTP/2 whose windows are closed, with a request for a large file on each stream.
pub fn closed_windows() -> Vec<u8> {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const END: u8 = 5; // of the headers, and of the stream
    // INITIAL_WINDOW_SIZE is 0.
    let mut bytes = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
    ]
    .concat();
    // GET http://x/large/file without an entry of the dynamic table.
    let request = [b"\x82\x86\x04\x0b/large/file".as_slice(), b"\x01\x01x"].concat();
    for stream in 0..STREAMS {
        bytes.extend(frame(HEADERS, END, 2 * stream + 1, &request));
    }
    bytes
}

/// The status of a request on a connection of its own. `None` if there is no answer for ten seconds.
pub fn asks(address: SocketAddr) -> Option<(u16, String)> {
    asks_for(Duration::from_secs(10), address)
}

fn asks_for(time: Duration, address: SocketAddr) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(time)).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some((answer.get(9..12)?.parse().ok()?, answer))
}

/// Asks until the server serves again, as a quiet client does: without a pause, refusals would keep all cores busy.
fn wait_until_served(sites: &Sites, begun: Instant) {
    while asks(sites.addresses[0]).is_none_or(|(status, _)| status != 200) {
        assert!(begun.elapsed() < PATIENCE, "{}", sites.said());
        thread::sleep(PAUSE);
    }
}

#[test]
fn attackers_cannot_exceed_the_limit_and_others_are_served_after_them() {
    let wanted = 6 * ATTACKERS as u64;
    if !allow_descriptors(wanted) {
        return testkit::skip(format_args!("the connections need {wanted} descriptors"));
    }
    let idle = {
        let sites = Sites::start(SITE);
        sites.get("x", "/");
        resident(sites.server.id(), "VmRSS:")
    };
    let limit = idle + (24 << 20);
    let sites = Sites::start(&format!("memory = {limit}\n{SITE}"));
    let address = sites.addresses[0];
    assert_eq!(asks(address).expect("an answer").0, 200);
    let mut attackers: Vec<_> = (0..ATTACKERS).map_while(|_| half_a_head(address)).collect();
    let peak = resident(sites.server.id(), "VmHWM:");
    assert!(
        peak < limit + limit / 20,
        "{peak} bytes, where the limit is {limit} and {idle} are in use when idle"
    );
    // While they are there: at once, or after those that wait longest have been closed.
    let begun = Instant::now();
    let (status, answer) = loop {
        match asks(address) {
            Some(answered) => break answered,
            None => assert!(begun.elapsed() < PATIENCE, "{}", sites.said()),
        }
    };
    let waited = begun.elapsed();
    let is_shed = status == 503 && answer.contains("retry-after: 1\r\n");
    assert!(status == 200 || is_shed, "{answer} {}", sites.said());
    // The first of them depends on who is first: the fiber that measures, or a worker that accepts.
    let lines = [
        "idle connections close",
        "new requests get 503",
        "new connections wait in the accept backlog",
    ];
    // The answer may come before the server has read what all attackers have sent.
    testkit::eventually("a line about memory", || {
        let said = sites.said();
        lines.iter().any(|line| said.contains(line))
    });
    println!(
        "{} attackers, {} MiB at most of {} MiB, {status} after {waited:?}",
        attackers.len(),
        peak >> 20,
        limit >> 20
    );
    attackers.clear();
    let begun = Instant::now();
    wait_until_served(&sites, begun);
}

#[test]
fn below_the_least_limit_nothing_is_accepted_and_the_log_says_why() {
    let sites = Sites::start(&format!("memory = \"1MiB\"\n{SITE}"));
    let begun = Instant::now();
    while !sites.said().contains("new connections wait in the accept backlog") {
        assert!(begun.elapsed() < PATIENCE, "{}", sites.said());
        let _ = asks_for(Duration::from_secs(1), sites.addresses[0]);
    }
    // Workers that were accepting already take one more.
    while let Some((status, answer)) = asks_for(Duration::from_secs(1), sites.addresses[0]) {
        assert_eq!(status, 503, "{answer}");
        assert!(begun.elapsed() < PATIENCE, "{}", sites.said());
    }
}

/// A client that takes nothing of what it has asked for: megabytes, for which neither kernel has room.
fn takes_nothing(address: SocketAddr) -> TcpStream {
    let (_, stream) = slow_reader(address);
    stream.set_nonblocking(true).unwrap();
    // The server may stop reading before the end.
    let _ = (&stream).write_all(&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000));
    stream
}

#[test]
fn clients_that_take_nothing_do_not_keep_others_out() {
    const STALLED: usize = 600;
    let wanted = 4 * STALLED as u64;
    if !allow_descriptors(wanted) {
        return testkit::skip(format_args!("the connections need {wanted} descriptors"));
    }
    // The write timeout does not end them.
    let site = SITE
        .replacen("\n[[site]]", "\ntimeouts = { write = \"1h\" }\n[[site]]", 1)
        .replace("\"x\"", &format!("\"{}\"", "x".repeat(32_000)));
    let idle = {
        let sites = Sites::start(&site);
        sites.get("x", "/");
        resident(sites.server.id(), "VmRSS:")
    };
    let sites = Sites::start(&format!("memory = {}\n{site}", idle + (24 << 20)));
    let address = sites.addresses[0];
    let stalled: Vec<_> = (0..STALLED).map(|_| takes_nothing(address)).collect();
    let begun = Instant::now();
    while !sites.said().contains("new requests get 503") {
        assert!(begun.elapsed() < PATIENCE, "memory was not short: {}", sites.said());
        thread::sleep(PAUSE);
    }
    wait_until_served(&sites, begun);
    println!(
        "a quiet client is served {:?} after the last of {STALLED} came",
        begun.elapsed()
    );
    drop(stalled);
}

#[test]
fn streams_whose_windows_stay_closed_do_not_keep_others_out() {
    const CONNECTIONS: usize = 60;
    let folder = Sites::folder();
    fs::create_dir(folder.join("www/large")).unwrap();
    let file = fs::File::create(folder.join("www/large/file")).unwrap();
    file.set_len(1 << 20).unwrap();
    // The write timeout does not end them.
    let site = SITE
        .replacen("\n[[site]]", "\ntimeouts = { write = \"1h\" }\n[[site]]", 1)
        .replace(
            "[[site.route]]",
            "[[site.route]]\npath = \"/large\"\nfiles = \"www\"\n[[site.route]]",
        );
    let idle = {
        let sites = Sites::start(&site);
        sites.get("x", "/");
        resident(sites.server.id(), "VmRSS:")
    };
    let sites = Sites::start_in(folder, &format!("memory = {}\n{site}", idle + (24 << 20)));
    let address = sites.addresses[0];
    let windows = closed_windows();
    let begun = Instant::now();
    let mut clients = Vec::new();
    while !sites.said().contains("new requests get 503") {
        assert!(begun.elapsed() < PATIENCE, "memory was not short: {}", sites.said());
        if clients.len() < CONNECTIONS {
            clients.push(sends(address, &windows));
        }
        thread::sleep(PAUSE);
    }
    let begun = Instant::now();
    wait_until_served(&sites, begun);
    println!("a quiet client is served {:?} after memory was short", begun.elapsed());
    drop(clients);
}

/// A cgroup of its own for a test, with a limit. Its drop removes it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str, limit: u64) -> Option<Cgroup> {
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let root = match version_1.is_dir() {
            true => version_1,
            false => Path::new("/sys/fs/cgroup"),
        };
        let group = Cgroup(root.join(format!("osier-test-{name}-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        group.set(limit).ok()?;
        Some(group)
    }

    /// Changes the limit.
    fn set(&self, limit: u64) -> std::io::Result<()> {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|name| self.0.join(name));
        let file = files.iter().find(|file| file.exists());
        fs::write(file.ok_or(std::io::ErrorKind::NotFound)?, limit.to_string())
    }

    /// Lets the server start in the group.
    fn enter(&self, here: &Path, command: &mut Command) {
        // The process enters the group before it becomes the server.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.0);
        shell
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(here);
        shell.stderr(fs::File::create(here.join("stderr")).unwrap());
        *command = shell;
    }
}

/// The limit of the process behind an admin listener, which has it once the server accepts.
fn limit_of(admin: SocketAddr) -> f64 {
    testkit::wait_for("the limit", || {
        let page = page_of(admin);
        page.value("osier_memory_limit_bytes", &[]).filter(|limit| *limit > 0.0)
    })
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The system removes a process from its group some time after its end.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            thread::sleep(PAUSE);
        }
    }
}

#[test]
fn the_limit_of_a_cgroup_holds_without_the_rights_to_read_it() {
    const LIMIT: u64 = 512 << 20;
    let Some(group) = Cgroup::new("rights", LIMIT) else {
        return testkit::skip("this user may not make a cgroup with a limit of memory");
    };
    for keys in [
        "landlock = false\n",
        "landlock = true\n",
        "user = \"65534\"\ngroup = \"65534\"\nchroot = \"HERE\"\nlandlock = false\n",
    ] {
        let folder = Sites::folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let here = folder.path().to_owned();
        let keys = keys.replace("HERE", &here.display().to_string());
        let enter = |command: &mut Command| group.enter(&here, command);
        let sites = Sites::start_with(folder, &format!("{keys}{ADMIN}{SITE}"), enter);
        let limit = limit_of(admin_of(&sites));
        assert_eq!(limit, (LIMIT / 10 * 9) as f64, "{keys}{}", sites.said());
    }
}

/// A server in a root folder kept the limit of its first start through all upgrades.
#[test]
fn a_server_in_a_root_folder_learns_the_limit_of_its_cgroup_again_at_an_upgrade() {
    const LIMIT: u64 = 512 << 20;
    let Some(group) = Cgroup::new("upgrade", LIMIT) else {
        return testkit::skip("this user may not make a cgroup with a limit of memory");
    };
    let Some((folder, text)) = root_folder() else {
        return;
    };
    let here = folder.path().to_owned();
    // A port of its own, where the new process listens, too.
    let admin = testkit::nobody();
    let text = format!("{text}[admin]\naddress = \"{admin}\"\n");
    let sites = Serving::start_with(folder, &text, |command| {
        group.enter(&here, command);
        command.process_group(0);
    });
    for limit in [LIMIT, LIMIT / 2, 2 * LIMIT] {
        group.set(limit).unwrap();
        if limit != LIMIT {
            sites.upgrade();
        }
        assert_eq!(limit_of(admin), (limit / 10 * 9) as f64, "{}", sites.0.said());
    }
}
