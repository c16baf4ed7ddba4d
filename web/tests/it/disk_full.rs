//! Uploads to a full disk: the client gets 500 or 507, the log names the folder, no partial file is left,
//! and the server goes on.

use testkit::SmallDisk;

use crate::common::site;
use crate::responder::{Folder, Responder, text, upstream};
use osier_web::fastcgi::{FastCgi, Options};
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
