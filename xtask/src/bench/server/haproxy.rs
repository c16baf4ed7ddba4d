//! Configurations of HAProxy: one thread, connections kept for ten minutes.

use super::suites;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// HAProxy with one thread, passing everything on to another server on 127.0.0.1, with connections kept; returns its arguments.
pub fn proxy(scratch: &Path, port: u16, backend: u16) -> Result<Vec<OsString>, String> {
    let path = scratch.join(format!("haproxy-{port}.conf"));
    let text = format!(
        "global\n  nbthread 1\n  maxconn 9000\n\
         defaults\n  mode http\n  http-reuse always\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n\
         listen proxy\n  bind 127.0.0.1:{port}\n  option forwardfor\n  http-request set-header X-Forwarded-Proto http\n  \
         http-request set-header X-Forwarded-Host %[req.hdr(host)]\n  server backend 127.0.0.1:{backend} pool-max-conn 64\n"
    );
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(vec!["-db".into(), "-f".into(), path.into()])
}

/// As [`proxy`], moving bodies through pipes where that is cheaper: responses, or request bodies. Each pipe takes two descriptors more.
pub fn splicing(scratch: &Path, port: u16, backend: u16, which: Splice) -> Result<Vec<OsString>, String> {
    let args = proxy(scratch, port, backend)?;
    let args = replaced(args, "maxconn 9000", "maxconn 4000")?;
    let option = match which {
        Splice::Responses => "splice-response",
        Splice::Requests => "splice-request",
    };
    let forward = "option forwardfor\n";
    replaced(args, forward, &format!("option {option}\n  {forward}"))
}

/// The bodies that [`splicing`] moves.
#[derive(Clone, Copy)]
pub enum Splice {
    Responses,
    Requests,
}

/// As [`proxy`], with an access log in Apache's combined format on its standard output. The arguments are those of `sh`.
pub fn logged(scratch: &Path, port: u16, backend: u16, log: &Path) -> Result<Vec<OsString>, String> {
    let args = proxy(scratch, port, backend)?;
    let args = replaced(args, "global\n", "global\n  log stdout format raw local0\n")?;
    let forward = "option forwardfor\n";
    let lines = "log global\n  option dontlognull\n  capture request header Referer len 128\n  capture request header User-Agent len 256\n  \
                 log-format \"%ci - - [%trl] %{+Q}r %ST %B %{+Q}[capture.req.hdr(0)] %{+Q}[capture.req.hdr(1)]\"";
    let args = replaced(args, forward, &format!("{lines}\n  {forward}"))?;
    let script = format!("exec haproxy \"$@\" >>'{}'", log.display());
    Ok(["-c".into(), script.into(), "haproxy".into()]
        .into_iter()
        .chain(args)
        .collect())
}

/// As [`proxy`], for streams: each event leaves at once. HAProxy would hold it back for 200 ms, until more comes.
pub fn streams(scratch: &Path, port: u16, backend: u16) -> Result<Vec<OsString>, String> {
    let args = proxy(scratch, port, backend)?;
    replaced(
        args,
        "option forwardfor\n",
        "option forwardfor\n  option http-no-delay\n",
    )
}

/// As [`proxy`], with a cache of an hour.
pub fn cached(scratch: &Path, port: u16, backend: u16) -> Result<Vec<OsString>, String> {
    let args = proxy(scratch, port, backend)?;
    replaced(
        args,
        "listen proxy\n",
        "cache stored\n  total-max-size 64\n  max-age 3600\nlisten proxy\n  http-request cache-use stored\n  \
         http-response set-header Cache-Control max-age=3600\n  http-response cache-store stored\n",
    )
}

/// As [`proxy`], with a certificate. The arguments are those of [`suites::PROGRAM`].
pub fn over_tls(scratch: &Path, port: u16, backend: u16, cert: &Path, key: &Path) -> Result<Vec<OsString>, String> {
    let both = scratch.join("haproxy.pem");
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    fs::write(&both, read(cert)? + &read(key)?).map_err(|error| format!("{}: {error}", both.display()))?;
    let args = proxy(scratch, port, backend)?;
    let bind = format!("bind 127.0.0.1:{port}");
    let suites = format!("ciphers {} ciphersuites {}", suites::TLS12, suites::TLS13);
    let args = replaced(args, &bind, &format!("{bind} ssl crt {} {suites}", both.display()))?;
    suites::args(scratch, "haproxy", args)
}

/// The same arguments with another text in the configuration, which they name last.
fn replaced(args: Vec<OsString>, old: &str, new: &str) -> Result<Vec<OsString>, String> {
    let config = Path::new(args.last().ok_or("HAProxy needs a configuration")?);
    let failed = |error: std::io::Error| format!("{}: {error}", config.display());
    let text = fs::read_to_string(config).map_err(failed)?;
    if !text.contains(old) {
        return Err(format!("{}: has no {old:?}", config.display()));
    }
    fs::write(config, text.replacen(old, new, 1)).map_err(failed)?;
    Ok(args)
}
