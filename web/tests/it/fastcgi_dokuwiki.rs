//! A real application end to end: a copy of Debian's DokuWiki behind php-fpm, used as a browser
//! would.

use std::fs;
use std::io;
use std::path::Path;

use crate::common::{Client, Reply, Site, site_with};
use crate::responder::Folder;
use osier_web::fastcgi::{self, FastCgi};
use osier_web::files::Files;
use osier_web::{Limits, Router, Server};
use testkit::php::{Fpm, Listen};

const PACKAGE: &str = "/usr/share/dokuwiki";
const CONFIG: &str = "/etc/dokuwiki";

/// The setting that the package demands of its administrator: files in one place.
const PRELOAD: &str = "<?php
if(!defined('DOKU_MAIN_CONF')) define('DOKU_MAIN_CONF', dirname(__DIR__).'/conf/');
if(!defined('DOKU_CONF')) define('DOKU_CONF', dirname(__DIR__).'/conf/');
if(!defined('DOKU_FARM')) define('DOKU_FARM', false);
";

/// Links are followed: the package has its plugins elsewhere.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match fs::metadata(&from) {
            Ok(metadata) if metadata.is_dir() => copy(&from, &to)?,
            Ok(_) => drop(fs::copy(&from, &to)?),
            // Secrets of the machine's own wiki, which are replaced.
            Err(_) => {}
        }
    }
    Ok(())
}

/// A wiki as its package has it, before the installer has run.
fn unpack(folder: &Folder) -> io::Result<()> {
    let root = folder.root();
    copy(Path::new(PACKAGE), &root)?;
    copy(Path::new(CONFIG), &root.join("conf"))?;
    for made_by_the_installer in ["local.php", "users.auth.php", "acl.auth.php", "plugins.local.php"] {
        let _ = fs::remove_file(root.join("conf").join(made_by_the_installer));
    }
    let main = fs::read_to_string(root.join("conf/dokuwiki.php"))?;
    folder.write("conf/dokuwiki.php", main.replace("/var/lib/dokuwiki/data", "./data"));
    folder.write("inc/preload.php", PRELOAD);
    for part in [
        "attic",
        "cache",
        "index",
        "locks",
        "log",
        "media",
        "media_attic",
        "media_meta",
        "meta",
        "pages",
        "tmp",
    ] {
        fs::create_dir_all(root.join("data").join(part))?;
    }
    Ok(())
}

/// A browser without a screen: one connection, cookies, redirects on demand.
struct Browser {
    client: Client,
    cookies: Vec<(String, String)>,
}

impl Browser {
    fn new(site: &Site) -> Browser {
        Browser {
            client: site.connect(),
            cookies: Vec::new(),
        }
    }

    fn ask(&mut self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Reply {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: wiki.example\r\nCookie: {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            cookies.join("; "),
            body.len()
        ));
        self.client.send(body);
        let reply = self.client.reply();
        for line in reply.head.lines() {
            let Some((name, cookie)) = line.split_once(": ") else {
                continue;
            };
            let cookie = cookie.split(';').next().and_then(|pair| pair.split_once('='));
            if let (true, Some((name, value))) = (name.eq_ignore_ascii_case("set-cookie"), cookie) {
                self.cookies.retain(|(known, _)| known != name);
                self.cookies.push((name.into(), value.into()));
            }
        }
        reply
    }

    fn get(&mut self, path: &str) -> Reply {
        self.ask("GET", path, "", b"")
    }

    fn post(&mut self, path: &str, form: &[(&str, &str)]) -> Reply {
        let form = serde_html_form::to_string(form).expect("a form");
        self.ask("POST", path, "application/x-www-form-urlencoded", form.as_bytes())
    }

    /// The page, and those that its redirects lead to.
    fn page(&mut self, mut reply: Reply) -> String {
        for _ in 0..5 {
            let Some(to) = reply.header("location") else { break };
            let to = to.strip_prefix("http://wiki.example").unwrap_or(to).to_owned();
            reply = self.get(&to);
        }
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 200, "{}\n{text}", reply.head);
        text
    }
}

/// The value of a form's hidden field.
fn field<'p>(page: &'p str, name: &str) -> &'p str {
    let tags = page
        .split("<input")
        .filter(|tag| tag.contains(&format!("name=\"{name}\"")));
    let values = tags.filter_map(|tag| tag.split_once("value=\"")?.1.split_once('"'));
    values
        .map(|(value, _)| value)
        .next()
        .unwrap_or_else(|| panic!("no field {name} in {page}"))
}

#[test]
fn a_wiki_is_installed_and_written() {
    if !Path::new(PACKAGE).join("doku.php").is_file() {
        println!("skipped: DokuWiki is not installed (package dokuwiki)");
        return;
    }
    let folder = Folder::new(&[]);
    unpack(&folder).expect("a copy of the package");
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm.max_children = 3") else {
        return;
    };
    let files = Files::open(folder.root()).expect("the root");
    let php = fastcgi::upstream("php", [fpm.address.parse().expect("an address")]);
    let handler = FastCgi::open(folder.root(), php.build().expect("an upstream")).expect("a handler");
    let handler = handler.otherwise(move |request| files.answer(request));
    let limits = Limits {
        body: 100 << 20,
        ..Limits::default()
    };
    let server = Server::new(Router::new().fallback(handler.handler())).limits(limits);
    let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
    let mut browser = Browser::new(&site);

    let reply = browser.get("/install.php");
    let page = browser.page(reply);
    assert!(
        page.contains("DokuWiki Installer") && page.contains("d[superuser]"),
        "{page}"
    );
    let answers = [
        ("l", "en"),
        ("d[title]", "Osier's Wiki"),
        ("d[acl]", "on"),
        ("d[superuser]", "willow"),
        ("d[fullname]", "Will Ow"),
        ("d[email]", "willow@wiki.example"),
        ("d[password]", "a secret & more"),
        ("d[confirm]", "a secret & more"),
        ("d[policy]", "1"),
        ("d[license]", "cc-by-sa"),
        ("submit", ""),
    ];
    let reply = browser.post("/install.php", &answers);
    let page = browser.page(reply);
    assert!(page.contains("finished successfully"), "{page} {:?}", site.log);
    let local = folder.root().join("conf/local.php");
    let made = fs::read_to_string(&local).expect("the installer has written it");
    // Addresses of pages are PATH_INFO, and files go out by X-Sendfile.
    fs::write(&local, made + "$conf['userewrite'] = 2;\n$conf['xsendfile'] = 2;\n").unwrap();

    // Nobody may write yet.
    let reply = browser.get("/doku.php/test:page?do=edit");
    let page = browser.page(reply);
    assert!(
        !page.contains("name=\"wikitext\"") || page.contains("readonly"),
        "{page}"
    );

    let reply = browser.get("/doku.php/start?do=login");
    let page = browser.page(reply);
    let token = field(&page, "sectok").to_owned();
    let login = [
        ("sectok", &*token),
        ("id", "start"),
        ("do", "login"),
        ("u", "willow"),
        ("p", "a secret & more"),
    ];
    let reply = browser.post("/doku.php/start", &login);
    let page = browser.page(reply);
    assert!(page.contains("Will Ow"), "{page} {:?}", site.log);
    assert!(page.contains("/doku.php/start?"), "addresses are PATH_INFO: {page}");

    let reply = browser.get("/doku.php/test:page?do=edit");
    let page = browser.page(reply);
    let hidden = ["sectok", "rev", "date", "prefix", "suffix", "changecheck", "id"]
        .map(|name| (name, field(&page, name).to_owned()));
    let mut form: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (*name, &**value)).collect();
    form.extend([
        ("wikitext", "====== A heading ======\nWritten & **bold**, ümläut."),
        ("summary", "made"),
        ("do[save]", "Save"),
    ]);
    let reply = browser.post("/doku.php/test:page", &form);
    assert!(matches!(reply.status, 302 | 303), "{}", reply.head);
    let page = browser.page(reply);
    assert!(page.contains("<strong>bold</strong>, ümläut."), "{page}");

    // A picture, in the form that the media manager has.
    let reply = browser.get("/lib/exe/mediamanager.php?ns=test");
    let page = browser.page(reply);
    let token = field(&page, "sectok").to_owned();
    let logo = fs::read(folder.root().join("lib/tpl/dokuwiki/images/logo.png")).expect("a picture");
    let mut body = Vec::new();
    for (name, value) in [
        ("sectok", &*token),
        ("ns", "test"),
        ("do", "upload"),
        ("mediaid", "picture.png"),
    ] {
        body.extend(
            format!("--bound\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes(),
        );
    }
    body.extend(b"--bound\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"x.png\"\r\nContent-Type: image/png\r\n\r\n");
    body.extend(&logo);
    body.extend(b"\r\n--bound--\r\n");
    let reply = browser.ask(
        "POST",
        "/lib/exe/mediamanager.php?ns=test",
        "multipart/form-data; boundary=bound",
        &body,
    );
    let page = browser.page(reply);
    assert!(page.contains("Upload successful"), "{page} {:?}", site.log);

    // A stranger reads: the page, the picture through its script and X-Sendfile, a file beside the scripts.
    let mut stranger = Browser::new(&site);
    let reply = stranger.get("/doku.php/test:page");
    let page = stranger.page(reply);
    assert!(
        page.contains("<strong>bold</strong>") && !page.contains("Log Out"),
        "{page}"
    );
    let reply = stranger.get("/lib/exe/fetch.php/test:picture.png");
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("image/png")),
        "{} {:?}",
        reply.head,
        site.log
    );
    assert!(reply.body == logo);
    assert_eq!(reply.header("x-sendfile"), None);
    let reply = stranger.get("/lib/tpl/dokuwiki/images/logo.png");
    assert!(reply.status == 200 && reply.body == logo);
    for (path, what) in [
        ("/lib/exe/css.php?t=dokuwiki", "text/css"),
        ("/lib/exe/js.php?t=dokuwiki", "application/javascript"),
    ] {
        let reply = stranger.get(path);
        let kind = reply.header("content-type").unwrap_or_default();
        assert!(
            reply.status == 200 && kind.starts_with(what) && reply.body.len() > 10_000,
            "{path}: {}",
            reply.head
        );
    }
    assert_eq!(stranger.get("/lib/images/none.php").status, 404);
}
