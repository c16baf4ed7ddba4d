//! Configurations of HAProxy: one thread, no log, connections kept for ten minutes.

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

/// As [`proxy`], with a certificate.
pub fn over_tls(scratch: &Path, port: u16, backend: u16, cert: &Path, key: &Path) -> Result<Vec<OsString>, String> {
    let both = scratch.join("haproxy.pem");
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    fs::write(&both, read(cert)? + &read(key)?).map_err(|error| format!("{}: {error}", both.display()))?;
    let args = proxy(scratch, port, backend)?;
    let bind = format!("bind 127.0.0.1:{port}");
    replaced(args, &bind, &format!("{bind} ssl crt {}", both.display()))
}

/// The same arguments with another text in the configuration, which they name last.
fn replaced(args: Vec<OsString>, old: &str, new: &str) -> Result<Vec<OsString>, String> {
    let config = Path::new(args.last().ok_or("HAProxy needs a configuration")?);
    let failed = |error: std::io::Error| format!("{}: {error}", config.display());
    let text = fs::read_to_string(config).map_err(failed)?;
    fs::write(config, text.replacen(old, new, 1)).map_err(failed)?;
    Ok(args)
}
