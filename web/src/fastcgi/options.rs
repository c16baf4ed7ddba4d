//! The options of a FastCGI handler.

use std::path::PathBuf;
use std::time::Duration;

use osier_http::cgi;

use crate::files::Symlinks;

/// The options of [`FastCgi::with`](super::FastCgi::with).
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Suffixes of script names. Default: only `.php`.
    pub suffixes: Vec<String>,
    /// Names to try, in this order, where the path means a folder. A name that is no script is only tried with
    /// [`FastCgi::otherwise`](super::FastCgi::otherwise), which gets the request. Default: only `index.php`.
    pub index: Vec<String>,
    /// The front controller: the script that runs where the path leads to no script, and, if
    /// [`FastCgi::otherwise`](super::FastCgi::otherwise) is set, to no other file. `/index.php`, for example. Default:
    /// none.
    pub front: Option<String>,
    /// The root as the backend sees it, where that differs (a container, a chroot). Default: the root.
    pub application_root: Option<PathBuf>,
    /// The folder of the files that `X-Accel-Redirect` names. Default: the root.
    pub internal_root: Option<PathBuf>,
    /// Which symbolic links below the root are followed to a script. Default: those that end inside the root.
    pub symlinks: Symlinks,
    /// Accepts a root, and an internal root, that do not exist yet or that the process may not read: requests get 503
    /// until they can be read. Default: false.
    pub may_be_missing: bool,
    /// Parameters that are added to the usual ones or replace them. Default: none.
    pub params: Vec<(String, String)>,
    /// SERVER_NAME. Default: the host that the client names.
    pub server_name: Option<String>,
    /// Whether clients use TLS and a proxy in front of this server terminates it: the backend gets `HTTPS=on`. It
    /// also does where [`Request::is_https`](crate::Request::is_https) says so.
    /// Default: false.
    pub https: bool,
    /// Whether a script that answers with the path of another script has that script run in its place (RFC 3875, section 6.2.2). The
    /// other script then passes none of the functions around its own route. Otherwise the client is redirected, and asks by itself.
    /// Default: true.
    pub local_redirects: bool,
    /// Response fields that are not passed on to clients, `X-Powered-By` for example. Default: none.
    pub hide: Vec<String>,
    /// The longest time from the end of the request to the first byte of the response. Default: 60 s.
    pub first_byte: Duration,
    /// The longest time between two pieces of the response, and for the backend to take the next bytes of the request.
    /// Default: 60 s.
    pub between: Duration,
    /// The longest head of a response, in bytes. Default: 64 KiB.
    pub head_bytes: usize,
    /// Receives a request body before a backend is asked, so that a slow client occupies no backend. A body of unknown
    /// length is received first in any case. Default: true.
    pub buffer: bool,
    /// Bytes of a response that are read ahead of a slow client in memory, in pieces of 64 KiB, and one piece more.
    /// Default: 256 KiB.
    pub read_ahead: usize,
    /// Bytes of a response that are read ahead of a slow client into an unnamed file, when more than `read_ahead` wait.
    /// With 0 there is no file, and the backend waits for the client. The same holds if `buffer` is off, for event
    /// streams and for `X-Accel-Buffering: no`. Default: 1 GiB.
    pub read_ahead_file: u64,
    /// The most bytes that all gateways of the process have in files of responses. At the bound no response fails: its backend
    /// waits for the client, as with a `read_ahead_file` of 0, until files have been sent. Request bodies do not count.
    /// Default: 2 GiB.
    pub read_ahead_total: u64,
    /// The longest request body that is received in memory, in bytes. Default: 256 KiB.
    pub spool_memory: usize,
    /// The most bytes of bodies that all gateways of the process hold in memory. Further bytes go to files. Default:
    /// 64 MiB.
    pub shared_memory: usize,
    /// The most bytes that all gateways of the process have in files of request bodies. A body that finds no space gets 503. One that
    /// is longer than both this and [`spool_memory`](Options::spool_memory) gets 413. The space of a file is free once the file is
    /// closed, a moment after its request has ended. No client has a share of its own. Responses do not count. Default: 2 GiB.
    pub buffer_total: u64,
    /// The folder of the unnamed files for longer bodies. Default: the system's folder for temporary files.
    pub spool_folder: PathBuf,
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
            symlinks: Symlinks::default(),
            may_be_missing: false,
            params: Vec::new(),
            server_name: None,
            https: false,
            local_redirects: true,
            hide: Vec::new(),
            first_byte: s(60),
            between: s(60),
            head_bytes: cgi::HEAD_BYTES,
            buffer: true,
            read_ahead: 256 << 10,
            read_ahead_file: 1 << 30,
            read_ahead_total: 2 << 30,
            spool_memory: 256 << 10,
            shared_memory: 64 << 20,
            buffer_total: 2 << 30,
            spool_folder: std::env::temp_dir(),
        }
    }
}
