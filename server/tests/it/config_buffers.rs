//! The bound of the files that `proxy` and `fastcgi` make for all connections together: the key `buffer_total`.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, check};

/// The routes of both gateways. `keys` are for each.
fn file(backend: SocketAddr, keys: &str) -> String {
    format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/script.php\"\nfastcgi = {{ root = \"www\", to = \"{backend}\", {keys} }}\n\
         [[site.route]]\nproxy = {{ to = \"{backend}\", {keys} }}\n"
    )
}

/// An address where nobody listens. A request that reaches its backend gets 502.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
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
        let second = uploads(&sites, path, LENGTH, LENGTH - 1);
        wait_for("the bytes of the second body", || {
            file_bytes(&sites) == LENGTH as u64 - 1
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
        let mut client = sites.connect();
        send(&mut client, "POST", "a", path, &["Transfer-Encoding: chunked"]);
        client.send_raw(b"70000\r\n");
        client.send_raw(&[b'x'; 0x70000]);
        assert_eq!(client.receive("POST").status, 413, "{path}");
    }
    sites.wait_until_said(
        "the body is longer than the files of all request bodies may be ('buffer_total', 409600 bytes)",
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
    assert!(said.contains("'buffer_total' has room for 2147483648"), "{said}");
    folder.write(
        "site.toml",
        text("3GiB").replace("\"127.0.0.1:3000\"", "{ to = \"127.0.0.1:3000\", buffer = false }"),
    );
    assert_eq!(check(&folder, &["--strict", "site.toml"]).0, Some(0));
}
