//! Tests that start the rivals that Debian packages, each by every configuration of the bench, and ask them. Rows that fail to start are seen only
//! in a run of the bench.

use super::secure::{self, Key};
use super::{HELLO, file, site};
use crate::bench::Plan;
use crate::bench::server::{Server, haproxy, nginx, suites};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: usize = 16 << 10;

/// A plan with a folder of its own, removed by the drop.
struct Rig(Plan);

impl Rig {
    /// None where the test cannot run.
    fn new(name: &str, programs: &[&str]) -> Option<Rig> {
        for program in programs {
            let is_there = |folder: &str| Path::new(folder).join(program).exists();
            if !["/usr/bin", "/usr/sbin"].into_iter().any(is_there) {
                println!("skipped: no {program}");
                return None;
            }
        }
        let mut plan = match Plan::here() {
            Ok(plan) => plan,
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        };
        plan.scratch = std::env::temp_dir().join(format!("osier-rivals-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&plan.scratch).unwrap();
        file(&plan, BYTES).unwrap();
        Some(Rig(plan))
    }

    fn nginx(&self, config: impl Fn(u16) -> Result<PathBuf, String>) -> Server {
        Server::start(&self.0, Path::new("nginx"), |port| nginx::args(&self.0, config(port)?)).unwrap()
    }

    fn haproxy(&self, program: &str, args: impl Fn(u16) -> Result<Vec<OsString>, String>) -> Server {
        Server::start(&self.0, Path::new(program), args).unwrap()
    }

    /// Both answers of the backend.
    fn check(&self, server: &Server) {
        server.check("/", HELLO).unwrap();
        server
            .check(&format!("/{BYTES}.bin"), &file(&self.0, BYTES).unwrap())
            .unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0.scratch);
    }
}

#[test]
fn nginx_answers_by_every_configuration() {
    let Some(rig) = Rig::new("nginx", &["nginx", "curl"]) else {
        return;
    };
    let (plan, scratch) = (&rig.0, &rig.0.scratch);
    let backend = rig.nginx(|port| nginx::files(scratch, &site(plan), port));
    rig.check(&backend);
    rig.check(&rig.nginx(|port| nginx::without_sendfile(nginx::files(scratch, &site(plan), port)?)));
    let directives = [
        nginx::LARGE_BUFFERS,
        nginx::LARGE_UPLOADS,
        nginx::LARGE_PAGES,
        nginx::UNBUFFERED,
    ];
    for directives in directives {
        rig.check(&rig.nginx(|port| nginx::with(nginx::proxy(scratch, port, backend.port)?, directives)));
    }
    rig.check(&rig.nginx(|port| nginx::with(nginx::tunnel(scratch, port, backend.port)?, nginx::SMALL_BUFFER)));
    let path = format!("/{BYTES}.bin");
    // The file has no type of its own, so that of a text.
    let compressing = rig.nginx(|port| nginx::gzip(scratch, port, backend.port));
    rig.check(&compressing);
    assert!(compressing.length_by(&path, "gzip").unwrap() < BYTES);
    match nginx::brotli(scratch, 1, backend.port) {
        Err(why) => println!("skipped: {why}"),
        Ok(_) => {
            let compressing = rig.nginx(|port| nginx::brotli(scratch, port, backend.port));
            rig.check(&compressing);
            assert!(compressing.length_by(&path, "br").unwrap() < BYTES);
        }
    }
}

#[test]
fn haproxy_answers_by_every_configuration() {
    let Some(rig) = Rig::new("haproxy", &["nginx", "haproxy"]) else {
        return;
    };
    let (plan, scratch) = (&rig.0, &rig.0.scratch);
    let backend = rig.nginx(|port| nginx::files(scratch, &site(plan), port));
    rig.check(&rig.haproxy("haproxy", |port| haproxy::proxy(scratch, port, backend.port)));
    for which in [haproxy::Splice::Responses, haproxy::Splice::Requests] {
        rig.check(&rig.haproxy("haproxy", |port| haproxy::splicing(scratch, port, backend.port, which)));
    }
    let log = scratch.join("access.log");
    let logging = rig.haproxy("sh", |port| haproxy::logged(scratch, port, backend.port, &log));
    rig.check(&logging);
    drop(logging);
    let lines = std::fs::read_to_string(&log).unwrap();
    let line = lines.lines().next().unwrap_or_default();
    assert!(
        line.starts_with("127.0.0.1 - - [") && line.contains("] \"GET / HTTP/1.1\" 200 "),
        "{lines}"
    );
    assert_eq!(
        lines.lines().filter(|line| line.contains("\" 200 ")).count(),
        2,
        "{lines}"
    );
}

#[test]
fn rivals_choose_our_suites_and_send_as_many_tickets() {
    let Some(rig) = Rig::new("suites", &["nginx", "haproxy", "h2o", "openssl"]) else {
        return;
    };
    let (plan, scratch) = (&rig.0, &rig.0.scratch);
    let (cert, key) = secure::certificate_files(plan).unwrap();
    let backend = rig.nginx(|port| nginx::files(scratch, &site(plan), port));
    let servers = [
        ("nginx", secure::nginx(plan, Some(Key::P256)).unwrap()),
        ("h2o", secure::h2o(plan, Some(Key::P256)).unwrap()),
        (
            "a proxying nginx",
            rig.nginx(|port| nginx::over_tls(nginx::proxy(scratch, port, backend.port)?, port, &cert, &key)),
        ),
        (
            "HAProxy",
            rig.haproxy(suites::PROGRAM, |port| {
                haproxy::over_tls(scratch, port, backend.port, &cert, &key)
            }),
        ),
    ];
    for (name, server) in &servers {
        assert_eq!(suite(server, "-tls1_3"), ("TLS_AES_128_GCM_SHA256".into(), 1), "{name}");
        assert_eq!(
            suite(server, "-tls1_2"),
            ("ECDHE-ECDSA-AES128-GCM-SHA256".into(), 0),
            "{name}"
        );
    }
    // OpenSSL's own, so that the comparison above says something.
    let of_openssl = secure::nginx_by_default(plan, Some(Key::P256)).unwrap();
    assert_eq!(suite(&of_openssl, "-tls1_3"), ("TLS_AES_256_GCM_SHA384".into(), 2));
}

/// The suite of a connection, and its tickets of TLS 1.3.
fn suite(server: &Server, version: &str) -> (String, usize) {
    let script = format!(
        "printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' | timeout 20 openssl s_client {version} -ign_eof -connect 127.0.0.1:{}",
        server.port
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("HTTP/1.1 200"), "{text}");
    let suite = text
        .lines()
        .find_map(|line| line.split_once("Cipher is "))
        .map(|(_, suite)| suite);
    (
        suite.unwrap_or_default().into(),
        text.matches("Post-Handshake New Session Ticket").count(),
    )
}
