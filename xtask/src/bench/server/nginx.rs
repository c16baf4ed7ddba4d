//! Configurations of nginx: one worker, no access log, connections kept for ever, open files cached.

use super::suites;
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

/// The same configuration with an access log, and what else the directive says.
pub fn logged(config: PathBuf, log: &Path, rest: &str) -> Result<PathBuf, String> {
    let directive = format!("access_log {} combined{rest};", log.display());
    replaced(config, "access_log off;", &directive)
}

/// A configuration of [`proxy`] that stores responses in a folder for an hour.
pub fn cached(config: PathBuf, folder: &Path) -> Result<PathBuf, String> {
    let store = format!(
        "proxy_cache_path {} keys_zone=stored:10m use_temp_path=off; proxy_cache stored; proxy_cache_valid 200 1h;\n    upstream backend",
        folder.display()
    );
    replaced(config, "upstream backend", &store)
}

/// The same configuration with more directives, which hold for each of its servers.
pub fn with(config: PathBuf, directives: &str) -> Result<PathBuf, String> {
    replaced(config, "access_log off;", &format!("access_log off; {directives}"))
}

/// Passes request bodies on as they come.
pub const UNBUFFERED: &str = "proxy_request_buffering off;";

/// Buffers for large responses. With the 4 KiB that it has by default, nginx makes some 140 calls for 1 MiB, and 5 with these.
pub const LARGE_BUFFERS: &str = "proxy_buffer_size 64k; proxy_buffers 16 64k; proxy_busy_buffers_size 256k;";

/// A buffer for uploads, of 16 KiB by default.
pub const LARGE_UPLOADS: &str = "client_body_buffer_size 128k;";

/// Buffers for pages of scripts, of 4 KiB by default.
pub const LARGE_PAGES: &str = "fastcgi_buffer_size 16k; fastcgi_buffers 16 16k;";

/// A buffer for heads of responses, of 4 KiB by default: each WebSocket keeps one.
pub const SMALL_BUFFER: &str = "proxy_buffer_size 1k; proxy_buffers 8 1k; proxy_busy_buffers_size 2k;";

/// The same configuration, reading files into memory to send them: three calls for a small file in place of five.
pub fn without_sendfile(config: PathBuf) -> Result<PathBuf, String> {
    replaced(config, "sendfile on; tcp_nopush on;", "sendfile off;")
}

/// A configuration of [`proxy`] with a certificate, in HTTP/1.1.
pub fn over_tls(config: PathBuf, port: u16, cert: &Path, key: &Path) -> Result<PathBuf, String> {
    let listen = format!("listen 127.0.0.1:{port}");
    let secured = format!("{listen} ssl; {}", certificate(cert, key, &suites::of_nginx()));
    replaced(config, &format!("{listen};"), &secured)
}

/// The directives of a server with a certificate, and what else they say about TLS.
pub fn certificate(cert: &Path, key: &Path, suites: &str) -> String {
    format!(
        "ssl_protocols TLSv1.2 TLSv1.3; ssl_session_tickets on; ssl_certificate {}; ssl_certificate_key {}; {suites}",
        cert.display(),
        key.display()
    )
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
    let upstream = upstream(backend);
    let server =
        format!("{upstream}\n    server {{\n        listen 127.0.0.1:{port};\n        location / {{ {PASS} }}\n    }}");
    write(scratch, port, &server)
}

/// A backend on 127.0.0.1 whose connections are kept.
fn upstream(backend: u16) -> String {
    format!("upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 1000000000; }}")
}

/// Passes a request on to it.
const PASS: &str = r#"proxy_pass http://backend; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;"#;

/// nginx with one worker, passing WebSockets on to another server on 127.0.0.1; returns its configuration file.
pub fn tunnel(scratch: &Path, port: u16, backend: u16) -> Result<PathBuf, String> {
    let server = format!(
        r#"server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_read_timeout 600s;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host;
        }}
    }}"#
    );
    write(scratch, port, &server)
}

/// nginx with one worker, which receives a request in full, in memory, and then answers hello; returns its configuration file.
///
/// `return` alone answers before the body has come. So the request is passed on, without its body, to a second server of this nginx.
pub fn sink(scratch: &Path, port: u16) -> Result<PathBuf, String> {
    let inner = scratch.join(format!("sink-{port}.sock"));
    let inner = inner.display();
    let server = format!(
        r#"upstream inner {{ server unix:{inner}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port}; client_max_body_size 8m; client_body_buffer_size 2m;
        location / {{
            proxy_pass http://inner; proxy_http_version 1.1; proxy_method GET; proxy_pass_request_body off;
            proxy_set_header Connection ""; proxy_set_header Content-Length "";
        }}
    }}
    server {{ listen unix:{inner}; location / {{ return 200 "Hello, World!"; }} }}"#
    );
    write(scratch, port, &server)
}

/// nginx with one worker, which compresses what it gets from another server on 127.0.0.1, with connections kept, and serves `/` as hello;
/// returns its configuration file.
pub fn gzip(scratch: &Path, port: u16, backend: u16) -> Result<PathBuf, String> {
    compressing(
        scratch,
        port,
        backend,
        "gzip on; gzip_proxied any; gzip_types text/plain;",
    )
}

/// As [`gzip`], with brotli, by the module that Debian has.
pub fn brotli(scratch: &Path, port: u16, backend: u16) -> Result<PathBuf, String> {
    const MODULE: &str = "/usr/lib/nginx/modules/ngx_http_brotli_filter_module.so";
    if !Path::new(MODULE).exists() {
        return Err(format!(
            "no {MODULE}: install the package libnginx-mod-http-brotli-filter"
        ));
    }
    let config = compressing(scratch, port, backend, "brotli on; brotli_types text/plain;")?;
    replaced(config, "daemon off;", &format!("load_module {MODULE}; daemon off;"))
}

fn compressing(scratch: &Path, port: u16, backend: u16, coding: &str) -> Result<PathBuf, String> {
    let upstream = upstream(backend);
    let server = format!(
        r#"{coding} {upstream}
    server {{
        listen 127.0.0.1:{port};
        location = / {{ return 200 "Hello, World!"; }}
        location / {{ {PASS} }}
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
