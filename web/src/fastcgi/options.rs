//! What a FastCGI handler can be told. Taken apart by [`FastCgi::with`](super::FastCgi::with).

use std::path::PathBuf;
use std::time::Duration;

use osier_http::cgi;

use crate::upstream::Check;

/// How an application is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How names of scripts end. Only `.php` by default.
    pub suffixes: Vec<String>,
    /// Scripts tried, in this order, where the path means a folder. Only `index.php` by default.
    pub index: Vec<String>,
    /// The script that answers where there is neither a script nor any other file: the front controller of an application
    /// with paths of its own, `/index.php`. None by default.
    pub front: Option<String>,
    /// The root as the application sees it, when that is elsewhere (a container, a chroot). The same by default.
    pub application_root: Option<PathBuf>,
    /// Where `X-Accel-Redirect` leads to. The root by default.
    pub internal_root: Option<PathBuf>,
    /// Parameters besides the usual ones, or in place of them. None by default.
    pub params: Vec<(String, String)>,
    /// SERVER_NAME, when it is not to be what the client calls it.
    pub server_name: Option<String>,
    /// Clients come over TLS, which something in front takes off: `HTTPS=on`. Off by default.
    pub https: bool,
    /// Fields of answers that clients do not get, `X-Powered-By` for example. None by default.
    pub hide: Vec<String>,
    /// How long connecting may take. 3 s.
    pub connect: Duration,
    /// How long the first byte of an answer may take, counted from the end of the request. 60 s.
    pub first_byte: Duration,
    /// How long the next bytes of an answer may take, and the application to take the next bytes of a request. 60 s.
    pub between: Duration,
    /// The longest head of an answer, in bytes. 64 KiB.
    pub head_bytes: usize,
    /// How much of a body of unknown length is kept in memory, in bytes. 256 KiB.
    pub spool_memory: usize,
    /// How long a body of unknown length may be, in bytes; the server's own limit counts besides. 1 GiB.
    pub spool_total: u64,
    /// Where the rest of it is kept, in a file without a name. The system's folder for temporary files.
    pub spool_folder: PathBuf,
    /// How many idle connections are kept to each backend. By default 8 for TCP and none where a backend is a Unix socket:
    /// there connecting is cheap, and each kept connection holds a worker of php-fpm that could serve others.
    pub keep: Option<usize>,
    /// The most requests at one backend at a time; more are answered by 503. No bound by default.
    pub max_requests: Option<usize>,
    /// Asks each backend by itself whether it is well, by a connection ([`Check::connect`]; one that asks over HTTP gets no
    /// answer from an application server). By default only requests show it.
    pub check: Option<Check>,
}

impl Default for Options {
    fn default() -> Self {
        let s = Duration::from_secs;
        Options {
            suffixes: vec![".php".into()],
            index: vec!["index.php".into()],
            front: None,
            application_root: None,
            internal_root: None,
            params: Vec::new(),
            server_name: None,
            https: false,
            hide: Vec::new(),
            connect: s(3),
            first_byte: s(60),
            between: s(60),
            head_bytes: cgi::HEAD_BYTES,
            spool_memory: 256 << 10,
            spool_total: 1 << 30,
            spool_folder: std::env::temp_dir(),
            keep: None,
            max_requests: None,
            check: None,
        }
    }
}
