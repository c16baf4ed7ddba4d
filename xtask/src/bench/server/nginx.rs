//! Configurations of nginx: one worker, no access log, connections kept for ever, open files cached.

use crate::bench::Plan;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The arguments of nginx.
pub fn args(plan: &Plan, config: PathBuf) -> Result<Vec<OsString>, String> {
    let log = plan.scratch.join("nginx.log");
    Ok(vec!["-c".into(), config.into(), "-e".into(), log.into()])
}

/// The same configuration with so many workers.
pub fn with_workers(config: PathBuf, workers: usize) -> Result<PathBuf, String> {
    replaced(config, "worker_processes 1;", &format!("worker_processes {workers};"))
}

/// The same configuration, accepting a connection on `port` with its first bytes, as Osier does.
pub fn deferred(config: PathBuf, port: u16) -> Result<PathBuf, String> {
    let listen = format!("listen 127.0.0.1:{port}");
    replaced(config, &format!("{listen};"), &format!("{listen} deferred;"))
}

fn replaced(config: PathBuf, old: &str, new: &str) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", config.display());
    let text = std::fs::read_to_string(&config).map_err(failed)?;
    if !text.contains(old) {
        return Err(format!("{}: has no {old:?}", config.display()));
    }
    std::fs::write(&config, text.replace(old, new)).map_err(failed)?;
    Ok(config)
}

/// nginx with one worker, passing everything on to another server on 127.0.0.1, with connections kept; returns its
/// configuration file.
pub fn proxy(scratch: &Path, port: u16, backend: u16) -> Result<PathBuf, String> {
    let server = format!(
        r#"upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://backend; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;
        }}
    }}"#
    );
    write(scratch, port, &server)
}

/// nginx with one worker, which compresses what it gets from another server on 127.0.0.1, and serves `/` as hello; returns its
/// configuration file.
pub fn gzip(scratch: &Path, port: u16, backend: u16) -> Result<PathBuf, String> {
    let server = format!(
        r#"gzip on; gzip_proxied any; gzip_types text/plain;
    server {{
        listen 127.0.0.1:{port};
        location = / {{ return 200 "Hello, World!"; }}
        location / {{ proxy_pass http://127.0.0.1:{backend}; }}
    }}"#
    );
    write(scratch, port, &server)
}

/// nginx with one worker, serving `dir`, and `/` as hello; returns its configuration file.
pub fn files(scratch: &Path, dir: &Path, port: u16) -> Result<PathBuf, String> {
    let server = format!(
        r#"server {{
        listen 127.0.0.1:{port}; root {};
        location = / {{ return 200 "Hello, World!"; }}
    }}"#,
        dir.display()
    );
    write(scratch, port, &server)
}

pub fn write(scratch: &Path, port: u16, server: &str) -> Result<PathBuf, String> {
    let (path, at) = (scratch.join(format!("nginx-{port}.conf")), scratch.display());
    let text = format!(
        r#"daemon off; worker_processes 1; pid {at}/nginx-{port}.pid; error_log {at}/nginx.log crit;
worker_rlimit_nofile 20000;
events {{ worker_connections 19000; }}
http {{
    access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; server_tokens off;
    keepalive_timeout 600s; keepalive_requests 1000000000;
    open_file_cache max=1000; open_file_cache_valid 60s; open_file_cache_min_uses 1;
    default_type text/plain;
    client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3; uwsgi_temp_path {at}/t4;
    scgi_temp_path {at}/t5;
    {server}
}}
"#
    );
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// nginx with one worker that passes scripts of `dir` to the php-fpm at `socket`, keeping so many idle connections.
pub fn php(scratch: &Path, dir: &Path, socket: &Path, kept: usize, port: u16) -> Result<PathBuf, String> {
    let (path, at) = (scratch.join(format!("nginx-{port}.conf")), scratch.display());
    let keepalive = if kept > 0 {
        format!("keepalive {kept};")
    } else {
        String::new()
    };
    let keep_conn = if kept > 0 { "on" } else { "off" };
    let params: String = FASTCGI_PARAMS
        .iter()
        .map(|(name, value)| format!("fastcgi_param {name} {value};\n"))
        .collect();
    let text = format!(
        r#"daemon off; worker_processes 1; pid {at}/nginx.pid; error_log {at}/nginx.log crit;
worker_rlimit_nofile 20000;
events {{ worker_connections 19000; }}
http {{
    access_log off; tcp_nodelay on; server_tokens off; keepalive_timeout 600s; keepalive_requests 1000000000;
    client_body_temp_path {at}/t1; proxy_temp_path {at}/t2; fastcgi_temp_path {at}/t3; uwsgi_temp_path {at}/t4;
    scgi_temp_path {at}/t5;
    upstream php {{ server unix:{}; {keepalive} }}
    server {{
        listen 127.0.0.1:{port}; root {};
        location ~ \.php$ {{ fastcgi_pass php; fastcgi_keep_conn {keep_conn}; {params} }}
    }}
}}
"#,
        socket.display(),
        dir.display()
    );
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The parameters of nginx's own `fastcgi.conf`.
const FASTCGI_PARAMS: [(&str, &str); 18] = [
    ("SCRIPT_FILENAME", "$document_root$fastcgi_script_name"),
    ("QUERY_STRING", "$query_string"),
    ("REQUEST_METHOD", "$request_method"),
    ("CONTENT_TYPE", "$content_type"),
    ("CONTENT_LENGTH", "$content_length"),
    ("SCRIPT_NAME", "$fastcgi_script_name"),
    ("REQUEST_URI", "$request_uri"),
    ("DOCUMENT_URI", "$document_uri"),
    ("DOCUMENT_ROOT", "$document_root"),
    ("SERVER_PROTOCOL", "$server_protocol"),
    ("REQUEST_SCHEME", "$scheme"),
    ("GATEWAY_INTERFACE", "CGI/1.1"),
    ("SERVER_SOFTWARE", "nginx"),
    ("REMOTE_ADDR", "$remote_addr"),
    ("REMOTE_PORT", "$remote_port"),
    ("SERVER_ADDR", "$server_addr"),
    ("SERVER_PORT", "$server_port"),
    ("SERVER_NAME", "$server_name"),
];
