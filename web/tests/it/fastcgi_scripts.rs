//! Which script a FastCGI backend is asked for, and what becomes of other paths.

use crate::common::{eventually, site};
use crate::responder::*;
use osier_web::fastcgi::{FastCgi, Options};
use osier_web::{Response, Router, http::StatusCode};
#[test]
fn only_scripts_that_exist_are_asked_for() {
    let folder = folder();
    std::os::unix::fs::symlink("/etc/passwd", folder.root().join("out.php")).unwrap();
    std::fs::create_dir(folder.root().join("dir.php")).unwrap();
    let app = Responder::answering(folder.path(), |params, _| text(params.get("SCRIPT_NAME")));
    let site = serve(&folder, &app, Options::default());
    for (path, status) in [
        ("/none.php", 404),
        ("/none.php/a.php", 404),
        ("/photo.jpg", 404),
        ("/photo.jpg/x.php", 404),
        ("/photo.jpg/a.php", 404),
        ("/photo.jpg%00.php", 400),
        ("/photo.jpg%2Fa.php", 404),
        ("/a.php%00", 400),
        ("/a.php%0A.php", 400),
        // CVE-2019-11043.
        ("/a.php/PHP%0Ainfo.php?QQQQ", 400),
        ("/../a.php", 400),
        ("/sub/..%2fa.php", 400),
        ("/%2e%2e/a.php", 400),
        ("/out.php", 404),
        ("/dir.php", 404),
        ("/a.phps", 404),
        ("/files/", 404),
    ] {
        assert_eq!(site.get(path).status, status, "{path}");
    }
    assert_eq!(app.connections(), 0, "the backend has not been asked");
    for (path, script) in [
        ("/", "/index.php"),
        ("/a.php", "/a.php"),
        ("//a.php", "/a.php"),
        ("/a.php/x.php", "/a.php"),
        ("/sub/", "/sub/index.php"),
    ] {
        assert_eq!(site.get(path).text(), script, "{path}");
    }
    let reply = site.get("//sub?a=1");
    assert_eq!((reply.status, reply.header("location")), (301, Some("/sub/?a=1")));
    // A form must arrive with its body.
    let mut client = site.connect();
    client.send("POST /sub HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\nx");
    let reply = client.reply();
    assert_eq!((reply.status, reply.header("location")), (308, Some("/sub/")));
    std::fs::remove_file(folder.root().join("a.php")).unwrap();
    eventually("it is noticed", || site.get("/a.php").status == 404);
}

#[test]
fn what_is_no_script_is_somebody_elses_or_the_front_controllers() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, _| {
        text(&format!(
            "{} for {}",
            params.get("SCRIPT_NAME"),
            params.get("REQUEST_URI")
        ))
    });
    let options = Options {
        front: Some("/index.php".into()),
        ..Options::default()
    };
    let handler = FastCgi::with(folder.root(), upstream(&app), options).unwrap();
    let handler = handler.otherwise(|request| Response::new(StatusCode::OK).body(format!("file {}", request.path())));
    let site = site(Router::new().fallback(handler.handler()));
    assert_eq!(site.get("/photo.jpg").text(), "file /photo.jpg");
    assert_eq!(site.get("/blog/a?b=1").text(), "/index.php for /blog/a?b=1");
    assert_eq!(site.get("/a.php").text(), "/a.php for /a.php");
}

#[test]
fn no_path_info_leads_up() {
    let folder = folder();
    let app = Responder::answering(folder.path(), |params, _| {
        text(&format!(
            "{} {}",
            params.get("PATH_INFO"),
            params.get("PATH_TRANSLATED")
        ))
    });
    let site = serve(&folder, &app, Options::default());
    for path in [
        "/a.php/..%2f..%2fetc/passwd",
        "/a.php/x%2F..",
        "/a.php/x%2f.%2Fy",
        "/a.php/%2e%2E%2fx",
    ] {
        let reply = site.get(path);
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
    }
    assert_eq!(site.get("/a.php/x%2F..y").status, 200);
}

#[test]
fn a_script_that_is_not_run_is_not_shown_either() {
    let folder = folder();
    folder.write(".well-known/x.php", "<?php secret");
    folder.write(".well-known/acme", "token");
    let app = Responder::answering(folder.path(), |_, _| text("run"));
    let files = osier_web::files::Files::with(folder.root(), Default::default()).unwrap();
    let handler = FastCgi::open(folder.root(), upstream(&app)).unwrap();
    let site = site(Router::new().fallback(handler.otherwise(move |request| files.answer(request)).handler()));
    assert_eq!(
        site.get("/.well-known/acme").text(),
        "token",
        "what is no script is the files'"
    );
    for path in ["/.well-known/x.php", "/.well-known/x.php/", "/%2ewell-known//x%2ephp"] {
        let reply = site.get(path);
        assert_eq!(reply.status, 404, "{path}: {}", reply.text());
    }
}
