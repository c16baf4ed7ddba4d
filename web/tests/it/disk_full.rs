//! Uploads to a full disk: the client gets 500 or 507, the log names the folder, no partial file is left,
//! and the server goes on.

use std::sync::{Arc, Mutex};

use testkit::SmallDisk;

use crate::common::backend::{Backend, options};
use crate::common::{Client, connect_narrowly, eventually, site};
use crate::responder::{Folder, Responder, text, upstream};
use osier_web::fastcgi::{FastCgi, Options};
use osier_web::proxy::Proxy;
use osier_web::{Rejection, Request, Route, Router};

/// Larger than the disk, and than what waits in buffers.
const LARGE: usize = 4 << 20;

#[test]
fn a_full_disk_is_told_and_leaves_nothing_behind() {
    let folder = Folder::new(&[("a.php", "")]);
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let Some(_disk) = SmallDisk::mount(&full) else {
        return;
    };

    let app = Responder::answering(folder.path(), |_, body| text(&body.len().to_string()));
    let options = Options {
        spool_folder: full.clone(),
        ..Options::default()
    };
    let scripts = FastCgi::with(folder.root(), upstream(&app), options).unwrap();
    let uploads = full.clone();
    let save = move |request: &mut Request<'_>| -> Result<String, Rejection> {
        let mut form = request.multipart()?;
        let mut part = form.next_part()?.expect("a part");
        Ok(part.save_to(&uploads)?.bytes.to_string())
    };
    let limit = 2 * LARGE as u64;
    let router = Router::new()
        .route("/save", Route::new().post(save).body_limit(limit))
        .route("/a.php", Route::new().post(scripts.handler()).body_limit(limit));
    let site = site(router);

    let fields = [
        (
            "/save",
            "Content-Type: multipart/form-data; boundary=X",
            "cannot save an upload in",
            500,
        ),
        ("/a.php", "X-A: b", "a temporary file in", 507),
    ];
    for (path, field, said, status) in fields {
        let form = |bytes: usize| {
            let head = "--X\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\n";
            [head.as_bytes(), &vec![b'x'; bytes], b"\r\n--X--\r\n"].concat()
        };
        for (bytes, status) in [(LARGE, status), (1000, 200)] {
            let body = form(bytes);
            let mut client = site.connect();
            client.send(format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\n{field}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
                body.len()
            ));
            client.try_send(body);
            client.try_send("\r\n0\r\n\r\n");
            assert_eq!(client.reply().status, status, "{path}, {bytes} bytes");
        }
        assert!(
            site.logged(&format!("{said} {}", full.display())),
            "{path}: {:?}",
            site.log.lock()
        );
    }
    let left = std::fs::read_dir(&full).unwrap().count();
    assert_eq!(left, 1, "the small upload alone");
}

/// A part that finds no room in the file waits with the backend.
#[test]
fn a_response_that_a_full_disk_cannot_hold_reaches_a_slow_client_whole() {
    let folder = testkit::Folder::new();
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let Some(_disk) = SmallDisk::mount(&full) else {
        return;
    };
    let body: Arc<Vec<u8>> = Arc::new((0..6 * LARGE).map(|at| (at / 977 % 251) as u8).collect());
    let sent = body.clone();
    let backend = Backend::start(move |_, conn| {
        conn.request();
        // It waits until the client reads.
        conn.stream.set_write_timeout(None).unwrap();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        conn.send_chunks(&sent, 50_000);
    });
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let upstream = backend
        .upstream()
        .on_log(move |line| lines.lock().unwrap().push(line.to_string()));
    let options = options(|to| to.spool_folder = full.clone());
    let site = site(Router::new().fallback(Proxy::with(upstream.build().unwrap(), options).handler()));
    let mut client = Client::new(connect_narrowly(site.addr));
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let said = format!("a temporary file in {}", full.display());
    eventually("the full disk is told", || {
        log.lock().unwrap().iter().any(|line| line.contains(&said))
    });
    assert!(client.reply().body == *body);
    eventually("nothing is left", || std::fs::read_dir(&full).unwrap().count() == 0);
}
