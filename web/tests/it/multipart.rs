//! Multipart forms from the test client, over connections, and from curl, and the files that they
//! leave on the disk.

use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use osier_web::multipart::Limits;
use osier_web::test::{Client, Form};
use osier_web::{Rejection, Request, Route, Router};

use crate::common::{eventually, site};

/// A folder that goes with its value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("osier-multipart-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Saves files, reads texts, and responds with a list of them.
fn upload(request: &mut Request<'_>, folder: &Path) -> Result<String, Rejection> {
    let mut form = request.multipart()?;
    let mut said = String::new();
    while let Some(mut part) = form.next_part()? {
        let name = part.name().to_owned();
        match part.file_name().map(str::to_owned) {
            Some(file) => {
                let kind = part.content_type().unwrap_or("?").to_owned();
                let saved = part.save_to(folder)?;
                assert_eq!(saved.path.parent(), Some(folder));
                said += &format!("{name} {file:?} {kind} {}\n", saved.bytes);
            }
            None => said += &format!("{name} {:?}\n", part.text(100)?),
        }
    }
    Ok(said)
}

fn router(folder: &Folder) -> Router {
    let folder = folder.0.clone();
    let handler = move |request: &mut Request<'_>| upload(request, &folder);
    Router::new().route("/", Route::new().post(handler).body_limit(64 << 20))
}

fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (disposition, data) in parts {
        body.extend(format!("--cut\r\nContent-Disposition: form-data; {disposition}\r\n\r\n").bytes());
        body.extend_from_slice(data);
        body.extend(b"\r\n");
    }
    body.extend(b"--cut--\r\n");
    body
}

const TYPE: &str = "multipart/form-data; boundary=cut";

/// Reads that yield so many bytes each.
struct Dripping(Cursor<Vec<u8>>, usize);

impl Read for Dripping {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = into.len().min(self.1);
        self.0.read(&mut into[..most])
    }
}

#[test]
fn a_form_of_the_test_client_is_that_of_a_browser() {
    let folder = Folder::new();
    let form = Form::new()
        .text("title", "Déjà vu")
        .text("quo\"te\r\n", "\r\n--osier")
        .file("file", "a \"b\".txt", "text/plain", [0, 255])
        .file("empty", "", "application/octet-stream", "");
    let reply = Client::new(router(&folder)).post("/").multipart(form).send();
    let expected = "title \"Déjà vu\"\nquo%22te%0D%0A \"\\r\\n--osier\"\nfile \"a %22b%22.txt\" text/plain 2\n\
                    empty \"\" application/octet-stream 0\n";
    assert_eq!((reply.status().as_u16(), reply.text()), (200, expected));
}

#[test]
fn texts_are_read_and_files_stream_to_the_disk_however_they_come() {
    let large: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let body = form(&[
        ("name=title", "Déjà vu".as_bytes()),
        ("name=file; filename=\"../../etc/passwd\"", &large),
        ("name=empty; filename=\"\"", b""),
        ("name=last", b"\r\n--cu"),
    ]);
    let expected = "title \"Déjà vu\"\nfile \"../../etc/passwd\" ? 1200000\nempty \"\" ? 0\nlast \"\\r\\n--cu\"\n";
    for drip in [1 << 20, 70_001, 1000, 97] {
        let folder = Folder::new();
        let client = Client::new(router(&folder));
        let pieces = Dripping(Cursor::new(body.clone()), drip);
        let reply = client.post("/").header("content-type", TYPE).reader(pieces).send();
        assert_eq!(
            (reply.status().as_u16(), reply.text()),
            (200, expected),
            "in pieces of {drip}"
        );
        let mut files = folder.files();
        files.sort_by_key(|path| fs::metadata(path).unwrap().len());
        assert_eq!(files.len(), 2);
        assert!(fs::read(&files[0]).unwrap().is_empty() && fs::read(&files[1]).unwrap() == large);
        for file in files {
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(
                file.file_name().unwrap().len(),
                32,
                "the client has no say in the name: {file:?}"
            );
        }
    }
}

#[test]
fn every_mistake_has_its_status_and_leaves_no_file() {
    let folder = Folder::new();
    let client = Client::new(router(&folder));
    let file = "name=f; filename=x";
    let whole = form(&[(file, &[b'x'; 200_000])]);
    let ask = |kind: &str, body: Vec<u8>| client.post("/").header("content-type", kind).body(body).send();
    for (kind, body, status, text) in [
        (
            "text/plain",
            form(&[]),
            415,
            "the content type must be multipart/form-data",
        ),
        ("multipart/form-data", form(&[]), 400, "the form's boundary is missing"),
        (
            "multipart/form-data; boundary=\"a b \"",
            form(&[]),
            400,
            "the form's boundary is missing",
        ),
        (TYPE, Vec::new(), 400, "the form ends before its last boundary"),
        (
            TYPE,
            whole[..whole.len() - 11].to_vec(),
            400,
            "the form ends before its last boundary",
        ),
        (
            TYPE,
            [&whole[..whole.len() - 4], b"ter\r\n"].concat(),
            400,
            "a boundary of the form is followed",
        ),
        (
            TYPE,
            form(&[("x=1", b"")]),
            400,
            "a part of the form without one Content-Disposition",
        ),
        (
            TYPE,
            form(&[("name=a", &[b'x'; 101])]),
            413,
            "the body is larger than 100 bytes",
        ),
        (
            TYPE,
            form(&[("name=a", b"\xff")]),
            400,
            "the form's field \"a\" is not UTF-8",
        ),
        (
            TYPE,
            form(&vec![("name=a", &b""[..]); 1001]),
            413,
            "the form has too many parts",
        ),
        (
            TYPE,
            form(&[(&format!("name={}", "n".repeat(1025)), b"")]),
            413,
            "a name in the form is too long",
        ),
        (
            TYPE,
            form(&[(&format!("name=a\r\nX: {}", "n".repeat(8192)), b"")]),
            413,
            "the head of a part",
        ),
    ] {
        let reply = ask(kind, body);
        assert_eq!(reply.status(), status, "{text}: {}", reply.text());
        assert!(reply.text().starts_with(text), "{text}: {}", reply.text());
        // A complete part was saved before the bytes behind it were known.
        let complete = usize::from(text.starts_with("a boundary"));
        assert_eq!(folder.files().len(), complete, "{text}");
        folder
            .files()
            .into_iter()
            .for_each(|file| fs::remove_file(file).unwrap());
    }
    let cut = Cursor::new(whole[..150_000].to_vec());
    let reply = client
        .post("/")
        .header("content-type", TYPE)
        .sized_reader(cut, 300_000)
        .send();
    assert!(
        reply.status() == 400 && reply.text().contains("ended inside"),
        "{}",
        reply.text()
    );
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
}

#[test]
fn limits_are_the_handlers_to_choose() {
    let handler = |request: &mut Request<'_>| {
        let limits = Limits {
            parts: 2,
            part_bytes: 10,
            ..Limits::default()
        };
        let mut form = request.multipart_within(limits)?;
        let mut count = 0;
        while form.next_part()?.is_some() {
            count += 1;
        }
        assert!(form.next_part()?.is_none(), "the end stays the end");
        Ok::<_, Rejection>(count.to_string())
    };
    let router = Router::new().route("/", Route::new().post(handler).body_limit(1000));
    let client = Client::new(router);
    let ask = |body: Vec<u8>| {
        client
            .post("/")
            .header("content-type", TYPE)
            .reader(Cursor::new(body))
            .send()
    };
    assert_eq!(
        ask(form(&[("name=a", &[b'x'; 10]), ("name=b", b"")])).text(),
        "2",
        "unread parts are skipped"
    );
    assert_eq!(
        ask(form(&[("name=a", &[b'x'; 11])])).text(),
        "a part of the form is too large\n"
    );
    assert_eq!(
        ask(form(&[("name=a", &b""[..]); 3])).text(),
        "the form has too many parts\n"
    );
    let beyond = ask(form(&[("name=a", &[b'x'; 1000])]));
    assert_eq!(beyond.status(), 413, "the route's own limit: {}", beyond.text());
}

#[test]
fn parts_are_readers() {
    let handler = |request: &mut Request<'_>| {
        let mut form = request.multipart()?;
        let mut said = Vec::new();
        while let Some(mut part) = form.next_part()? {
            let mut begin = [0; 3];
            part.read_exact(&mut begin)?;
            said.push(format!(
                "{} {} {:?}",
                part.name(),
                String::from_utf8_lossy(&begin),
                part.header("content-disposition").map(<[u8]>::len)
            ));
        }
        Ok::<_, Rejection>(said.join(","))
    };
    let client = Client::new(Router::new().post("/", handler));
    let body = form(&[("name=a", b"abcdef"), ("name=bb", &[b'x'; 100_000]), ("name=c", b"123")]);
    let reply = client.post("/").header("content-type", TYPE).body(body).send();
    assert_eq!(reply.text(), "a abc Some(17),bb xxx Some(18),c 123 Some(17)");
    let short = client
        .post("/")
        .header("content-type", TYPE)
        .body(form(&[("name=a", b"ab")]))
        .send();
    assert_eq!(short.status(), 500, "a part that ends early is the handler's to expect");
}

/// The error of the disk is logged for the operator, and the client does not see it.
#[test]
fn a_folder_that_is_not_there_is_500_and_a_log_line() {
    let folder = Folder::new();
    let gone = folder.0.join("gone");
    let site = site(Router::new().post("/", move |request: &mut Request<'_>| upload(request, &gone)));
    let body = form(&[("name=f; filename=x", b"data")]);
    let mut client = site.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Type: {TYPE}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (500, "500 Internal Server Error\n"));
    assert!(site.logged("cannot save an upload in "), "{:?}", site.log);
}

/// The client goes away in the middle of its file.
#[test]
fn an_upload_that_is_cut_off_leaves_no_file() {
    let folder = Folder::new();
    let site = site(router(&folder));
    for reset in [false, true] {
        let mut client = site.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Type: {TYPE}\r\nContent-Length: 10000000\r\n\r\n"
        ));
        client.send("--cut\r\nContent-Disposition: form-data; name=f; filename=x\r\n\r\n");
        client.send(vec![b'x'; 300_000]);
        eventually("the file has begun", || {
            folder
                .files()
                .iter()
                .any(|file| fs::metadata(file).is_ok_and(|data| data.len() > 0))
        });
        match reset {
            true => client.reset(),
            false => drop(client),
        }
        eventually("the file is gone", || folder.files().is_empty());
    }
}

#[test]
fn curl_uploads_a_large_file() {
    let folder = Folder::new();
    let source = Folder::new();
    let file = source.0.join("a \"b\" ü.bin");
    let content: Vec<u8> = (0..5_000_000_u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    fs::write(&file, &content).unwrap();
    let site = site(router(&folder));
    for extra in [
        &[][..],
        &["-H", "Transfer-Encoding: chunked"],
        &["-H", "Expect: 100-continue"],
    ] {
        let quoted = file.display().to_string().replace('"', "\\\"");
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "60", "-F", "title=a b", "-F"])
            .arg(format!("upload=@\"{quoted}\";type=image/x"))
            .args(extra)
            .arg(format!("http://{}/", site.addr))
            .output();
        let output = match output {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: curl is not installed");
                return;
            }
            Err(error) => panic!("curl: {error}"),
        };
        let said = String::from_utf8(output.stdout).unwrap();
        let (title, upload) = said
            .split_once('\n')
            .unwrap_or_else(|| panic!("{said:?} {:?}", output.stderr));
        assert_eq!(title, "title \"a b\"");
        assert!(
            upload.contains("image/x 20000000") && upload.contains("ü.bin"),
            "{upload}"
        );
        let files = folder.files();
        assert!(files.len() == 1 && fs::read(&files[0]).unwrap() == content, "{files:?}");
        fs::remove_file(&files[0]).unwrap();
    }
}
