//! The servers of the rows about TLS and HTTP/2. Each has one worker, a certificate if it speaks TLS, and the same answers: hello for
//! `/`, and the files of the site.
//!
//! All of them prefer the cipher suites of ours and send as many tickets: `server/suites.rs`.
//!
//! hyper serves the files from memory, and h2o serves hello from a file, because neither can do it the other way.

use super::{HELLO, site};
use crate::bench::Plan;
use crate::bench::programs::{osier, program};
use crate::bench::server::{Server, nginx, suites};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The key of a certificate.
#[derive(Clone, Copy)]
pub enum Key {
    P256,
    Rsa2048,
}

/// Starts a server: with a certificate, or in the clear without one.
pub type Start = fn(&Plan, Option<Key>) -> Result<Server, String>;

/// A certificate for localhost, and its key.
struct Certificate {
    cert: PathBuf,
    key: PathBuf,
}

pub fn ours(plan: &Plan, key: Option<Key>) -> Result<Server, String> {
    let certificate = key.map(|key| certificate(plan, key)).transpose()?;
    let (listen, site_tls) = match &certificate {
        Some(Certificate { cert, key }) => ("tls = true\n", format!("tls = {{ cert = {cert:?}, key = {key:?} }}\n")),
        None => ("", String::new()),
    };
    let folder = site(plan);
    Server::start(plan, &osier(), |port| {
        let config = format!(
            "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{port}\"\n{listen}[[site]]\ndefault = true\nlog = false\n{site_tls}\
             [[site.route]]\nglob = \"*.bin\"\nfiles = {folder:?}\n[[site.route]]\nrespond = \"Hello, World!\"\n"
        );
        Ok(vec![written(plan, &format!("secure-{port}.toml"), &config)?.into()])
    })
}

pub fn nginx(plan: &Plan, key: Option<Key>) -> Result<Server, String> {
    nginx_with(plan, key, &suites::of_nginx())
}

/// nginx with the suites and the tickets that it has by default.
pub fn nginx_by_default(plan: &Plan, key: Option<Key>) -> Result<Server, String> {
    nginx_with(plan, key, "")
}

fn nginx_with(plan: &Plan, key: Option<Key>, suites: &str) -> Result<Server, String> {
    let certificate = key.map(|key| certificate(plan, key)).transpose()?;
    let folder = site(plan);
    Server::start(plan, Path::new("nginx"), |port| {
        let listen = match &certificate {
            Some(Certificate { cert, key }) => format!(
                "listen 127.0.0.1:{port} ssl http2;\n{}",
                nginx::certificate(cert, key, suites)
            ),
            None => format!("listen 127.0.0.1:{port} http2;"),
        };
        let server = format!(
            "server {{ {listen} http2_max_concurrent_streams 128; root {};\n\
             location = / {{ return 200 \"Hello, World!\"; }} }}",
            folder.display()
        );
        nginx::args(plan, nginx::write(&plan.scratch, port, &server)?)
    })
}

/// hyper on tokio-rustls.
pub fn hyper(plan: &Plan, key: Option<Key>) -> Result<Server, String> {
    let certificate = key.map(|key| certificate(plan, key)).transpose()?;
    Server::start(plan, &program("hyper-tls"), |port| {
        let files = certificate.iter().flat_map(|Certificate { cert, key }| [cert, key]);
        Ok([port.to_string().into()]
            .into_iter()
            .chain(files.map(|file| file.into()))
            .collect())
    })
}

pub fn h2o(plan: &Plan, key: Option<Key>) -> Result<Server, String> {
    let certificate = key.map(|key| certificate(plan, key)).transpose()?;
    let folder = site(plan);
    let index = folder.join("index.html");
    std::fs::write(&index, HELLO).map_err(|error| format!("{}: {error}", index.display()))?;
    Server::start(plan, Path::new(suites::PROGRAM), |port| {
        let ssl = match &certificate {
            Some(Certificate { cert, key }) => format!(
                "  ssl:\n    certificate-file: {}\n    key-file: {}\n    ocsp-update-interval: 0\n    \
                 cipher-preference: server\n    cipher-suite: {}\n",
                cert.display(),
                key.display(),
                suites::TLS12
            ),
            None => String::new(),
        };
        let user = if is_root() { "user: root\n" } else { "" };
        let config = format!(
            "{user}num-threads: 1\nmax-connections: 19000\nhttp1-request-timeout: 600\nhttp2-idle-timeout: 600\n\
             listen:\n  host: 127.0.0.1\n  port: {port}\n{ssl}hosts:\n  default:\n    paths:\n      /:\n        file.dir: {}\n",
            folder.display()
        );
        let config = written(plan, &format!("h2o-{port}.conf"), &config)?;
        let args = vec!["-m".into(), "worker".into(), "-c".into(), config.into()];
        suites::args(&plan.scratch, "h2o", args)
    })
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Makes the certificate where it is not there yet.
fn certificate(plan: &Plan, key: Key) -> Result<Certificate, String> {
    let (name, kind): (_, &[&str]) = match key {
        Key::P256 => ("p256", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]),
        Key::Rsa2048 => ("rsa2048", &["-newkey", "rsa:2048"]),
    };
    let certificate = Certificate {
        cert: plan.scratch.join(format!("{name}.pem")),
        key: plan.scratch.join(format!("{name}.key")),
    };
    if certificate.cert.exists() {
        return Ok(certificate);
    }
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost"]);
    openssl
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(kind);
    openssl
        .arg("-keyout")
        .arg(&certificate.key)
        .arg("-out")
        .arg(&certificate.cert);
    let output = openssl.output().map_err(|error| format!("openssl: {error}"))?;
    match output.status.success() {
        true => Ok(certificate),
        false => Err(format!("openssl: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The files of a certificate with a P-256 key, and of its key.
pub fn certificate_files(plan: &Plan) -> Result<(PathBuf, PathBuf), String> {
    certificate(plan, Key::P256).map(|made| (made.cert, made.key))
}

fn written(plan: &Plan, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = plan.scratch.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
