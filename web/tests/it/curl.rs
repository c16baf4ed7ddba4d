//! The server with curl, an independent client.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::site;
use osier_web::{Request, Response, Router};

fn curl(args: &[&str], stdin: &[u8]) -> Option<String> {
    let spawned = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: curl cannot be started: {error}");
            return None;
        }
    };
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(stdin)
        .expect("curl reads its input");
    let output = child.wait_with_output().expect("curl ends");
    assert!(output.status.success(), "curl {args:?}: {}", output.status);
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn curl_is_served() {
    let router = Router::new()
        .get("/", |_| "hello")
        .post("/count", |request: &mut Request<'_>| {
            let mut sink = std::io::sink();
            std::io::copy(request.body(), &mut sink).map(|count| count.to_string())
        })
        .get("/stream", |_| {
            Response::stream(|out| (0..1000).try_for_each(|i| write!(out, "{i},")))
        });
    let site = site(router);
    let url = |path: &str| format!("http://{}{path}", site.addr);

    let Some(text) = curl(&[&url("/")], b"") else { return };
    assert_eq!(text, "hello");
    assert_eq!(curl(&["-0", &url("/")], b"").as_deref(), Some("hello"));
    let twice = curl(&["-w", "[%{num_connects}]", &url("/"), &url("/")], b"");
    assert_eq!(twice.as_deref(), Some("hello[1]hello[0]"));
    let head = curl(&["-I", &url("/")], b"").unwrap_or_default();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-length: 5\r\n"),
        "{head}"
    );
    let expected: String = (0..1000).map(|i| format!("{i},")).collect();
    assert_eq!(curl(&[&url("/stream")], b"").as_deref(), Some(&*expected));

    // A body of this size makes curl expect `100 Continue`; one from a pipe it sends in chunks.
    let body = vec![b'x'; 1_500_000];
    assert_eq!(
        curl(&["--data-binary", "@-", &url("/count")], &body).as_deref(),
        Some("1500000")
    );
    let chunked = [
        "-X",
        "POST",
        "-H",
        "Transfer-Encoding: chunked",
        "-T",
        "-",
        &url("/count"),
    ];
    assert_eq!(curl(&chunked, &body).as_deref(), Some("1500000"));
    let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", "-d", "@-", &url("/")], b"a");
    assert_eq!(status.as_deref(), Some("405"));
}
