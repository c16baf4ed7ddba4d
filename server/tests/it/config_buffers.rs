//! The bounds of the files that `proxy` and `fastcgi` make for all connections together: the keys `buffer_total` and
//! `read_ahead_total`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use testkit::nobody;

use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, check, pattern};

/// The routes of both gateways. `keys` are for each.
fn file(backend: SocketAddr, keys: &str) -> String {
    format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/script.php\"\nfastcgi = {{ root = \"www\", to = \"{backend}\", {keys} }}\n\
         [[site.route]]\nproxy = {{ to = \"{backend}\", {keys} }}\n"
    )
}

/// A client that has sent the first bytes of a body.
fn uploads(sites: &Sites, path: &str, length: usize, sent: usize) -> Client {
    let mut client = sites.connect();
    send(&mut client, "POST", "a", path, &[&format!("Content-Length: {length}")]);
    client.send_raw(&vec![b'x'; sent]);
    client
}

/// The bytes in files of bodies that the server has open.
fn file_bytes(sites: &Sites) -> u64 {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", sites.server.id()))
        .unwrap()
        .flatten();
    let is_body = |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("osier-body-"));
    let files = descriptors.map(|entry| entry.path()).filter(|path| is_body(path));
    files.filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum()
}

/// The lines with this text, without the counts of those that were left out.
fn lines(sites: &Sites, text: &str) -> usize {
    let said = sites.said();
    let lines = said.lines().filter(|line| line.contains(text));
    lines.filter(|line| !line.contains(" more line")).count()
}

#[test]
fn the_files_of_all_request_bodies_have_a_bound() {
    const LENGTH: usize = 300_000;
    for path in ["/x", "/script.php"] {
        let folder = Sites::folder();
        folder.write("www/script.php", "");
        let sites = Sites::start_in(folder, &file(nobody(), "buffer_total = \"400KiB\""));
        let mut first = uploads(&sites, path, LENGTH, LENGTH - 1);
        wait_for("the bytes of the first body", || {
            file_bytes(&sites) == LENGTH as u64 - 1
        });
        let refused = uploads(&sites, path, LENGTH, LENGTH).receive("POST");
        let retry_after = refused.field("retry-after");
        assert_eq!((refused.status, retry_after), (503, Some("1")), "{path}");
        for _ in 0..3 {
            assert_eq!(
                uploads(&sites, path, LENGTH, LENGTH).receive("POST").status,
                503,
                "{path}"
            );
        }
        assert_eq!(
            uploads(&sites, path, 200_000, 200_000).receive("POST").status,
            502,
            "in memory"
        );
        let text = "the files of other request bodies leave no space for this one ('buffer_total', 409600 bytes)";
        sites.wait_until_said(text);
        // The space of a body is free when its request has ended, and when its client has left.
        first.send_raw(b"x");
        assert_eq!(first.receive("POST").status, 502, "{path}");
        wait_for("the space of an ended request", || {
            uploads(&sites, path, LENGTH, LENGTH).receive("POST").status == 502
        });
        // Space is free once the file is closed, which may be after the response.
        let second = testkit::wait_for("the bytes of the second body", || {
            let client = uploads(&sites, path, LENGTH, LENGTH - 1);
            let is_stored = || file_bytes(&sites) == LENGTH as u64 - 1;
            (0..100)
                .any(|_| is_stored() || (thread::sleep(Duration::from_millis(10)), false).1)
                .then_some(client)
        });
        assert_eq!(
            uploads(&sites, path, LENGTH, LENGTH).receive("POST").status,
            503,
            "{path}"
        );
        drop(second);
        wait_for("the space of a client that has left", || {
            uploads(&sites, path, LENGTH, LENGTH).receive("POST").status == 502
        });
    }
}

#[test]
fn a_body_that_no_file_may_hold_is_refused_before_it_comes() {
    let folder = Sites::folder();
    folder.write("www/script.php", "");
    let sites = Sites::start_in(folder, &file(nobody(), "buffer_total = \"400KiB\""));
    for path in ["/x", "/script.php"] {
        let reply = uploads(&sites, path, 500_000, 0).receive("POST");
        assert_eq!(reply.status, 413, "{path}");
        // Space is free once the file of the body before is closed, which may be after its response.
        wait_for("the refusal of a body that comes in chunks", || {
            let mut client = sites.connect();
            send(&mut client, "POST", "a", path, &["Transfer-Encoding: chunked"]);
            client.send_raw(b"70000\r\n");
            client.send_raw(&[b'x'; 0x70000]);
            client.receive("POST").status == 413
        });
    }
    sites.wait_until_said(
        "the body is longer than the files of all request bodies may be ('buffer_total', 409600 bytes)",
    );
}

/// Where memory holds longer bodies than all files may, both bounds are named.
#[test]
fn a_body_beyond_memory_and_files_is_refused_for_both() {
    let folder = Sites::folder();
    folder.write("www/script.php", "");
    let sites = Sites::start_in(folder, &file(nobody(), "buffer_total = \"100KiB\""));
    for path in ["/x", "/script.php"] {
        let uploaded = |length| uploads(&sites, path, length, 0).receive("POST").status;
        assert_eq!(uploaded(262_145), 413, "{path}");
        let mut in_memory = uploads(&sites, path, 262_144, 262_144);
        assert_eq!(in_memory.receive("POST").status, 502, "{path}");
    }
    sites.wait_until_said(
        "the body is longer than a body in memory may be (262144 bytes), and longer than the files of all request bodies may be \
         ('buffer_total', 102400 bytes)",
    );
    let text = file(nobody(), "buffer_total = \"100KiB\"");
    let folder = Sites::folder();
    folder.write("www/script.php", "");
    folder.write("site.toml", text);
    let said = check(&folder, &["site.toml"]).1;
    assert!(
        said.contains("but 'buffer_total' has room for 102400 in files, and memory for 262144: a longer body"),
        "{said}"
    );
}

#[test]
fn a_limit_of_bodies_beyond_the_space_for_them_is_a_warning() {
    let folder = Sites::folder();
    let text = |limit: &str| {
        format!("[[site]]\nlimits = {{ body = \"{limit}\" }}\n[[site.route]]\nproxy = \"127.0.0.1:3000\"\n")
    };
    folder.write("site.toml", text("2GiB"));
    assert_eq!(check(&folder, &["--strict", "site.toml"]).0, Some(0));
    folder.write("site.toml", text("3GiB"));
    let (status, said) = check(&folder, &["--strict", "site.toml"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("'buffer_total' has room for 2147483648") && said.contains("or set 'buffer = false'"),
        "{said}"
    );
    // The default of `limits.body` is 2 MiB.
    let default = |total: &str| {
        format!("[[site]]\n[[site.route]]\nproxy = {{ to = \"127.0.0.1:3000\", buffer_total = \"{total}\" }}\n")
    };
    folder.write("site.toml", default("2MiB"));
    assert_eq!(check(&folder, &["--strict", "site.toml"]).0, Some(0));
    folder.write("site.toml", default("1MiB"));
    let (status, said) = check(&folder, &["--strict", "site.toml"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("'limits.body' allows 2097152 bytes here, but 'buffer_total' has room for 1048576"),
        "{said}"
    );
    folder.write(
        "site.toml",
        text("3GiB").replace("\"127.0.0.1:3000\"", "{ to = \"127.0.0.1:3000\", buffer = false }"),
    );
    assert_eq!(check(&folder, &["--strict", "site.toml"]).0, Some(0));
}

/// The length of a response that no socket holds.
const LARGE: usize = 12 << 20;

/// A backend that sends a large response to each request, over FastCGI or HTTP. Ends with the test's process.
fn large() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve_large(stream));
        }
    });
    address
}

fn serve_large(mut stream: TcpStream) {
    let mut asked = Vec::new();
    let mut piece = [0; 4096];
    // A request without a body ends with an empty record of its standard input, or with an empty line.
    while !asked.ends_with(b"\r\n\r\n") && !asked.ends_with(&[1, 5, 0, 1, 0, 0, 0, 0]) {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => asked.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let head = format!("Content-Length: {LARGE}\r\n\r\n");
    let _ = match asked[0] {
        1 => {
            let output = [head.as_bytes(), &pattern(LARGE)].concat();
            let mut records: Vec<u8> = output.chunks(0xffff).flat_map(|piece| record(6, piece)).collect();
            records.extend([record(6, b""), record(3, &[0; 8])].concat());
            stream.write_all(&records)
        }
        _ => {
            let response = [
                "HTTP/1.1 200 OK\r\nConnection: close\r\n".as_bytes(),
                head.as_bytes(),
                &pattern(LARGE),
            ];
            stream.write_all(&response.concat())
        }
    };
    // The server closes first, when it has read all.
    let _ = stream.read(&mut piece);
}

/// A record of FastCGI.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
}

#[test]
fn the_files_of_all_responses_have_a_bound() {
    for path in ["/x", "/script.php"] {
        let folder = Sites::folder();
        folder.write("www/script.php", "");
        let sites = Sites::start_in(folder, &file(large(), "read_ahead_total = \"1MiB\""));
        let mut clients: Vec<Client> = (0..3).map(|_| sites.connect()).collect();
        for client in &mut clients {
            send(client, "GET", "a", path, &[]);
        }
        let text = "a response waits for its client at the backend: the files of all responses leave no space \
                    ('read_ahead_total', 1048576 bytes)";
        sites.wait_until_said(text);
        for client in &mut clients {
            let reply = client.receive("GET");
            assert!(
                reply.status == 200 && reply.body == pattern(LARGE),
                "{path}: {}",
                reply.status
            );
        }
        assert_eq!(lines(&sites, text), 1, "{}", sites.said());
    }
}
