//! curl as an independent client of the server.

use crate::support::sites::{Sites, wait_for};
use crate::support::{Client, Folder, Server, pattern};
use std::process::Command;

/// Runs curl; `None`, with the reason printed, where there is none.
fn curl(arguments: &[&str]) -> Option<String> {
    match Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "30", "--noproxy", "*"])
        .args(arguments)
        .output()
    {
        Ok(output) => {
            assert!(
                output.status.success(),
                "curl {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            println!("skipped: curl cannot be run: {error}");
            None
        }
    }
}

#[test]
fn downloads_resumes_and_revalidates() {
    let folder = Folder::new();
    let whole = pattern(3 << 20);
    folder.write("large.bin", &whole);
    folder.write("a.txt", "hello");
    let server = Server::start(&folder, &[]);
    let url = |path: &str| format!("http://{}{path}", server.address);
    let out = Folder::new();
    let (copy, tags) = (out.join("copy"), out.join("tags"));
    let (copy, tags) = (copy.to_str().unwrap(), tags.to_str().unwrap());

    let Some(code) = curl(&["-o", copy, "-w", "%{http_code}", &url("/large.bin")]) else {
        return;
    };
    assert_eq!(code, "200");
    assert!(std::fs::read(copy).unwrap() == whole);

    // The first megabyte is there; curl asks for the rest.
    std::fs::write(copy, &whole[..1 << 20]).unwrap();
    assert_eq!(
        curl(&["-C", "-", "-o", copy, "-w", "%{http_code}", &url("/large.bin")]).unwrap(),
        "206"
    );
    assert!(std::fs::read(copy).unwrap() == whole);

    let twice = [
        "--etag-save",
        tags,
        "--etag-compare",
        tags,
        "-o",
        copy,
        "-w",
        "%{http_code}",
    ];
    assert_eq!(curl(&[&twice[..], &[&url("/a.txt")]].concat()).unwrap(), "200");
    assert_eq!(curl(&[&twice[..], &[&url("/a.txt")]].concat()).unwrap(), "304");

    // Several transfers on one connection.
    let code = curl(&[
        "-w",
        "%{http_code} %{num_connects};",
        "-o",
        "/dev/null",
        &url("/a.txt"),
        "-o",
        "/dev/null",
        &url("/a.txt"),
    ]);
    assert_eq!(code.unwrap(), "200 1;200 0;");
}

#[test]
fn compressed_pages_are_what_they_say() {
    let folder = Folder::new();
    let page = "<p>hello</p>".repeat(1000);
    folder.write("a.html", &page);
    let packed = Command::new("gzip")
        .args(["-9", "-k"])
        .arg(folder.join("a.html"))
        .status();
    if !packed.is_ok_and(|status| status.success()) {
        println!("skipped: gzip cannot be run");
        return;
    }
    let server = Server::start(&folder, &[]);
    let url = format!("http://{}/a.html", server.address);
    let Some(text) = curl(&[
        "-H",
        "Accept-Encoding: gzip",
        "--raw",
        "-o",
        "/dev/null",
        "-w",
        "%{size_download}",
        &url,
    ]) else {
        return;
    };
    assert!(text.parse::<usize>().unwrap() < 1000, "{text} bytes");
    assert_eq!(curl(&["--compressed", &url]).unwrap(), page);
}

#[test]
fn http_2_with_prior_knowledge_is_served_unless_the_listener_says_no() {
    let folder = Sites::folder();
    folder.write("www/a.txt", "hello\n".repeat(50_000));
    let text = "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"[::1]:0\"\nhttp2 = false\n[log]\nfile = \"access.log\"\n\
        [[site]]\ndefault = true\n[[site.route]]\npath = \"/respond\"\nrespond = \"from a route\"\n[[site.route]]\nfiles = \"www\"\n";
    let sites = Sites::start_in(folder, text);
    let url = |path: &str| format!("http://{}{path}", sites.addresses[0]);
    let http2 = ["--http2-prior-knowledge", "-w", " %{http_version} %{http_code}"];
    let Some(text) = curl(&[&http2[..], &[&url("/respond")]].concat()) else {
        return;
    };
    assert_eq!(text, "from a route 2 200");
    let text = curl(&[&http2[..], &["--compressed", &url("/a.txt")]].concat()).unwrap();
    assert!(
        text.len() > 300_000 && text.ends_with("hello\n 2 200"),
        "{}",
        text.len()
    );
    wait_for("a line of the log", || {
        let log = std::fs::read_to_string(sites.folder.join("access.log")).unwrap_or_default();
        log.contains("\"GET /a.txt HTTP/2.0\" 200")
    });
    let mut refused = Client::new(sites.addresses[1]);
    refused.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(refused.receive("GET").status, 505);
}
