//! One server in a cage, of address space or a cgroup, and attacks on it, one after the other: each would make it hold more than the cage
//! has, or comes as near to that as the limits of a connection let it. The process lives, and a quiet client is served.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use testkit::websocket::masked;
use testkit::{MemoryGroup, allow_descriptors};

use crate::memory::{PATIENCE, PAUSE, asks, closed_windows, half_a_head, sends};
use crate::slow_readers::{LITTLE_SPACE, limited, slow_reader};
use crate::support::sites::{Sites, send};

/// The least time for which an attack goes on.
const AT_LEAST: Duration = Duration::from_millis(400);

/// The most connections of an attack.
const ATTACKERS: usize = 1500;

/// Connections of HTTP/2 with as many streams each as the server allows, each of which waits on a stack.
const WINDOWS: usize = 40;

/// The memory of the cgroup.
const LITTLE_MEMORY: u64 = 48 << 20;

/// Talkers who fill the history of the lobby, with lines of this many bytes.
const TALKERS: usize = 6;
const LINE: usize = 4000;

const SITE: &str = r#"
[[listen]]
address = "127.0.0.1:0"
timeouts = { write = "4s" }
[[listen]]
address = "127.0.0.2:0"
tls = true
[[site]]
default = true
tls = "internal"
[[site.route]]
path = "/proxy"
limits = { body = "10MiB" }
proxy = "127.0.0.1:1"
[[site.route]]
path = "/chat"
chat = { origins = "*" }
[[site.route]]
path = "/large"
files = "www"
[[site.route]]
respond = "x"
"#;

/// The first 16 KiB of a TLS record of a handshake, all but the last byte.
pub fn half_a_handshake() -> Vec<u8> {
    [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0x3f, 0xfc, 3, 3], &vec![0; 16_377]].concat()
}

/// Enters the lobby, and says what it is told.
fn guest(address: SocketAddr, first: &[u8]) -> Option<TcpStream> {
    let head = b"GET /chat HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut client = sends(address, head)?;
    let mut answer = [0; 12];
    client.read_exact(&mut answer).ok()?;
    client.write_all(first).ok()?;
    Some(client)
}

/// Six talkers say nine lines each. They stay until their lines have arrived.
fn fill_the_lobby(address: SocketAddr) -> Vec<TcpStream> {
    let line = format!("{{\"text\": \"{}\"}}", "y".repeat(LINE));
    let lines = masked(0x81, line.as_bytes()).repeat(9);
    (0..TALKERS).filter_map(|_| guest(address, &lines)).collect()
}

#[test]
fn attackers_in_a_cage_of_address_space_end_nothing() {
    attack_in(LITTLE_SPACE);
}

#[test]
fn attackers_in_a_cgroup_end_nothing() {
    let Some(group) = MemoryGroup::with_limit(LITTLE_MEMORY) else {
        return;
    };
    attack_in(&group.to_enter());
    println!(
        "{:?} bytes of {LITTLE_MEMORY} at most, with those of the kernel",
        group.peak()
    );
    assert_eq!(group.kills(), 0, "the kernel has killed a process");
}

/// Starts the server in a cage that a line of a shell script makes, and attacks it.
fn attack_in(cage: &str) {
    let wanted = 6 * ATTACKERS as u64;
    if !allow_descriptors(wanted) {
        return testkit::skip(format_args!("the connections need {wanted} descriptors"));
    }
    let folder = Sites::folder();
    // As large as it is, it takes no room on the disk.
    std::fs::create_dir(folder.join("www/large")).unwrap();
    let file = File::create(folder.join("www/large/file")).unwrap();
    file.set_len(200 << 20).unwrap();
    let path = folder.path().to_path_buf();
    let mut sites = Sites::start_with(folder, SITE, |command| limited(command, cage, &path));
    let [address, tls] = sites.addresses[..] else {
        panic!("two listeners")
    };

    let half_a_fragment = &masked(0x01, &[b'x'; 3000])[..3000];
    let body = [
        b"POST /proxy HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n",
        &[b'x'; 60_000][..],
    ]
    .concat();
    let pipelined = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000);
    let (windows, handshake) = (closed_windows(), half_a_handshake());
    let reads_slowly = |target: &str| {
        let (mut client, stream) = slow_reader(address);
        send(&mut client, "GET", "x", target, &[]);
        Some(stream)
    };
    type Attack<'a> = &'a dyn Fn() -> Option<TcpStream>;
    let attacks: [(&str, usize, Attack<'_>); 9] = [
        ("half heads", ATTACKERS, &|| half_a_head(address)),
        ("slow bodies", 500, &|| sends(address, &body)),
        ("idle connections", 1000, &|| sends(address, b"")),
        ("half handshakes", 1000, &|| sends(tls, &handshake)),
        ("unread responses", 50, &|| sends(address, &pipelined)),
        ("slow readers of a file", 500, &|| reads_slowly("/large/file")),
        ("closed windows", WINDOWS, &|| sends(address, &windows)),
        ("fragments", 300, &|| guest(address, half_a_fragment)),
        ("guests that do not read", 300, &|| guest(address, b"")),
    ];
    for (name, count, attack) in attacks {
        let (begun, talkers) = (
            Instant::now(),
            (name == "guests that do not read").then(|| fill_the_lobby(address)),
        );
        let attackers: Vec<_> = (0..count).map(|_| attack()).collect();
        let (came, arrived) = (attackers.iter().flatten().count(), begun.elapsed());
        let begun = Instant::now();
        let (mut shed, mut silent) = (0, 0);
        loop {
            match asks(address) {
                // The attack has had its time.
                Some((200, _)) if begun.elapsed() >= AT_LEAST => break,
                Some((200, _)) => {}
                Some((503, answer)) => {
                    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
                    shed += 1;
                }
                Some((status, answer)) => panic!("{status} {answer}"),
                None => silent += 1,
            }
            assert!(sites.server.is_running(), "{name}: {}", sites.said());
            assert!(begun.elapsed() < PATIENCE, "{name}: {}", sites.said());
            std::thread::sleep(PAUSE);
        }
        println!(
            "{name}: {came} of {count} came in {arrived:?}; a quiet client was shed {shed} times, left waiting {silent} times, and \
             served after {:?}",
            begun.elapsed()
        );
        drop((attackers, talkers));
    }
    assert!(sites.server.is_running(), "{}", sites.said());
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/", &[]);
    assert_eq!(client.receive("GET").text(), "x");
}
