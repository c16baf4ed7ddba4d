//! curl as an independent client of the server.

use crate::support::{Folder, Server, pattern};
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
