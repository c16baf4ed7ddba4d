//! Configurations of HAProxy: one thread, no log, connections kept for ten minutes.

use std::ffi::OsString;
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
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(vec!["-db".into(), "-f".into(), path.into()])
}
