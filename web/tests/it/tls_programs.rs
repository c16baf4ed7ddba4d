//! HTTPS to other programs: curl, OpenSSL and Python.

use std::io::Write;
use std::process::{Command, Stdio};

use testkit::Folder;

use crate::tls::{LENGTH, LOCALHOST, files, hello, site};

/// Runs a program on `input`. `None`, with a reason, if it cannot be started.
fn output_of(program: &str, args: &[&str], input: &[u8]) -> Option<String> {
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            testkit::skip(format_args!("{program} cannot be started: {error}"));
            return None;
        }
    };
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(input)
        .expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{program} {args:?}: {}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A folder with the certificate.
fn certificates() -> (Folder, String) {
    let folder = Folder::new();
    let ca = folder.write("ca.pem", &LOCALHOST.chain);
    folder.write("key.pem", &LOCALHOST.key);
    (folder, ca.display().to_string())
}

#[test]
fn curl_is_served_over_tls() {
    let site = site(hello(), |server| server);
    let (_folder, ca) = certificates();
    let port = site.addr.port();
    let resolve = format!("localhost:{port}:127.0.0.1");
    let url = |path: &str| format!("https://localhost:{port}{path}");
    let curl = |args: &[&str]| {
        let fixed = [
            "--silent",
            "--max-time",
            "20",
            "--noproxy",
            "*",
            "--http1.1",
            "--cacert",
            &ca,
            "--resolve",
            &resolve,
        ];
        output_of("curl", &[&fixed[..], args].concat(), b"")
    };
    let Some(text) = curl(&[&url("/tls")]) else { return };
    assert_eq!(text, "true localhost TLSv1.3 0");
    let twice = curl(&["-w", "[%{num_connects}]", &url("/"), &url("/")]);
    assert_eq!(twice.as_deref(), Some("hello[1]hello[0]"));
    let old = curl(&["--tls-max", "1.2", &url("/tls")]);
    assert_eq!(old.as_deref(), Some("true localhost TLSv1.2 0"));
    let body = "b".repeat(300_000);
    assert_eq!(
        curl(&["--data-binary", &body[..100_000], &url("/count")]).as_deref(),
        Some("100000")
    );
}

#[test]
fn openssl_is_served() {
    let site = site(hello(), |server| server);
    let (_folder, ca) = certificates();
    let address = site.addr.to_string();
    for version in ["-tls1_3", "-tls1_2"] {
        let args = [
            "s_client",
            "-quiet",
            "-connect",
            &address,
            "-servername",
            "localhost",
            "-CAfile",
            &ca,
            "-verify_return_error",
            version,
        ];
        let request = b"GET /tls HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let Some(text) = output_of("openssl", &args, request) else {
            return;
        };
        let name = version.replace("-tls", "TLSv").replace('_', ".");
        assert!(text.ends_with(&format!("\r\n\r\ntrue localhost {name} 0")), "{text}");
    }
}

#[test]
fn python_is_served() {
    let (_folder, router) = files();
    let site = site(router, |server| server);
    let (_certificates, ca) = certificates();
    let program = r#"
import hashlib, http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
connection = http.client.HTTPSConnection("localhost", int(sys.argv[2]), context=context, timeout=20)
for path in ["/", "/tls", "/file"]:
    connection.request("GET", path)
    body = connection.getresponse().read()
    print(len(body), body[:30].decode("latin-1") if len(body) < 100 else hashlib.md5(body).hexdigest())
connection.request("POST", "/count", body=b"x" * 500000)
print(connection.getresponse().read().decode())
"#;
    let port = site.addr.port().to_string();
    let Some(text) = output_of("python3", &["-c", program, &ca, &port], b"") else {
        return;
    };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        (lines[0], lines[1], lines[3]),
        ("5 hello", "24 true localhost TLSv1.3 0", "500000")
    );
    assert!(lines[2].starts_with(&LENGTH.to_string()), "{text}");
}
