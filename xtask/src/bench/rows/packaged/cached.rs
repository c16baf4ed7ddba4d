//! The rows about stored responses: a backend has answered once and is gone, so each proxy answers from its cache or fails.
//!
//! Osier and HAProxy have the responses in memory, nginx in a folder, which is in memory where the system has `/dev/shm`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{osier, proxy, row};
use crate::bench::Plan;
use crate::bench::load::{self, Asked};
use crate::bench::rows::{BELOW, HELLO, Row, contestant, file, sample};
use crate::bench::server::{Server, haproxy, nginx};

pub fn rows(plan: &Plan) -> Vec<Row<'_>> {
    vec![cached(plan, "cached hello", 0), cached(plan, "cached 16 KiB", 16 << 10)]
}

/// Hello, or a file of so many bytes.
fn cached<'a>(plan: &'a Plan, name: &str, bytes: usize) -> Row<'a> {
    let under_load = move |start: &dyn Fn(u16, &Path) -> Result<Server, String>| {
        let (path, body) = match bytes {
            0 => ("/".into(), HELLO.to_vec()),
            _ => (format!("/{bytes}.bin"), file(plan, bytes)?),
        };
        let folder = Folder::new();
        let backend = proxy::backend(plan)?;
        let server = start(backend.port, &folder.0)?;
        server.check(&path, &body)?;
        drop(backend);
        server.check(&path, &body)?;
        load::requests(plan, &server, Asked::path(&path)).map(sample)
    };
    let ours = move |binary| {
        under_load(&|backend, _| {
            let route = format!("proxy = \"127.0.0.1:{backend}\"\ncache = {{ default_ttl = \"1h\" }}");
            osier(plan, binary, &route)
        })
    };
    let of_nginx = move |backend, folder: &Path| {
        Server::start(plan, Path::new("nginx"), |port| {
            let config = nginx::proxy(&plan.scratch, port, backend)?;
            nginx::args(plan, nginx::cached(config, folder)?)
        })
    };
    let of_haproxy = move |backend, _: &Path| {
        Server::start(plan, Path::new("haproxy"), |port| {
            haproxy::cached(&plan.scratch, port, backend)
        })
    };
    let rivals = vec![
        contestant("nginx", BELOW, move || under_load(&of_nginx)),
        contestant("HAProxy", BELOW, move || under_load(&of_haproxy)),
    ];
    row(plan, name, ours, rivals)
}

/// A place for a folder that nginx makes. The drop removes it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        Folder(parent.join(format!("osier-bench-cache-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It does not exist unless nginx has run.
        let _ = fs::remove_dir_all(&self.0);
    }
}
