//! A folder, socket or file that is not there yet: its route waits for it, and everything else serves.

use std::fs;
use std::os::unix::net::UnixListener;

use crate::support::sites::{Sites, wait_for};
use crate::support::{Folder, osier};

/// The hash of "secret".
const HASH: &str = "$2y$04$4JZ7Ru37KRVAWgN/xk4JK.ivG2jVuKlwmvLT4Mur1gxRsdkDdqTyG";

const FILE: &str = "workers = 2
[[site]]
default = true
error_pages = { 404 = \"later/404.html\" }
[[site.route]]
path = \"/files\"
files = { root = \"later/www\", strip = true }
[[site.route]]
path = \"/proxy\"
proxy = \"unix:later/app.sock\"
[[site.route]]
path = \"/php\"
fastcgi = { to = \"unix:later/fpm.sock\", root = \"later/app\", files = true }
[[site.route]]
path = \"/auth\"
auth = { file = \"later/users\" }
respond = \"in\"
[[site.route]]
path = \"/text\"
respond = { file = \"later/text\" }
[[site.route]]
path = \"/fixed\"
respond = \"fixed\"
";

/// The place and the start of each warning of [`FILE`].
const WARNINGS: [&str; 7] = [
    "site.toml:4:23: warning: there is no file '",
    "site.toml:7:18: warning: there is no folder '",
    "site.toml:10:9: warning: there is no socket '",
    "site.toml:13:18: warning: there is no socket '",
    "site.toml:13:48: warning: there is no folder '",
    "site.toml:16:17: warning: there is no file '",
    "site.toml:20:20: warning: there is no file '",
];

fn has_warnings(said: &str) {
    for warning in WARNINGS {
        assert!(said.contains(warning), "{warning}\n{said}");
    }
}

fn statuses(sites: &Sites) -> Vec<u16> {
    let paths = ["/files/", "/proxy", "/php/", "/auth", "/text", "/none", "/fixed"];
    paths.map(|path| sites.get("x", path).status).to_vec()
}

#[test]
fn what_is_missing_at_the_start_stops_only_its_route() {
    let sites = Sites::start(FILE);
    has_warnings(&sites.said());
    assert_eq!(statuses(&sites), [503, 502, 503, 503, 503, 404, 200]);
    // What comes is found without a reload, but for the two files that are read at a reload.
    sites.folder.write("later/www/index.html", "here");
    sites.folder.write("later/app/x.txt", "beside");
    sites.folder.write("later/users", format!("ada:{HASH}\n"));
    let app = UnixListener::bind(sites.folder.join("later/app.sock")).unwrap();
    wait_for("the folder", || sites.get("x", "/files/").text() == "here");
    wait_for("the folder of scripts", || sites.get("x", "/php/x.txt").status == 404);
    wait_for("the password file", || sites.get("x", "/auth").status == 401);
    let answered = std::thread::spawn(move || {
        let (mut stream, _) = app.accept().unwrap();
        let mut head = [0; 1024];
        let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup").unwrap();
    });
    assert_eq!(sites.get("x", "/proxy").text(), "up");
    answered.join().unwrap();
    let said = sites.said();
    assert!(said.contains("later/www' is there now"), "{said}");
    sites.folder.write("later/404.html", "lost");
    sites.folder.write("later/text", "text");
    assert!(sites.hang_up().contains("reloaded"));
    assert_eq!(sites.get("x", "/text").text(), "text");
    assert_eq!(sites.get("x", "/none").text(), "lost");
    assert_eq!(sites.get("x", "/auth").status, 401);
}

#[test]
fn what_is_missing_at_a_reload_stops_only_its_route() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"old\"\n");
    let said = sites.reload(FILE);
    assert!(said.contains("osier: reloaded "), "{said}");
    assert!(said.contains("site.toml has warnings:"), "{said}");
    has_warnings(&said);
    assert_eq!(statuses(&sites), [503, 502, 503, 503, 503, 404, 200]);
    // A mistake still keeps the old configuration.
    let said = sites.reload(&FILE.replace("respond = \"fixed\"", "respond = 9"));
    assert!(said.contains("the old configuration stays"), "{said}");
}

#[test]
fn a_folder_that_goes_is_said_once_and_its_route_waits() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n");
    assert_eq!(sites.get("x", "/a.txt").status, 200);
    fs::rename(sites.folder.join("www"), sites.folder.join("away")).unwrap();
    wait_for("the end of the folder", || sites.get("x", "/a.txt").status == 503);
    assert_eq!(sites.get("x", "/none").status, 503);
    fs::rename(sites.folder.join("away"), sites.folder.join("www")).unwrap();
    wait_for("the folder", || sites.get("x", "/a.txt").status == 200);
    let said = sites.said();
    assert_eq!(said.matches("cannot be opened").count(), 1, "{said}");
    assert_eq!(said.matches("is there now").count(), 1, "{said}");
}

#[test]
fn check_warns_and_strict_refuses() {
    let folder = Folder::new();
    folder.write("site.toml", FILE);
    let check = |arguments: &[&str]| {
        let mut command = osier();
        let output = command.args(arguments).current_dir(folder.path()).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let (status, out, err) = check(&["check", "site.toml"]);
    assert_eq!(
        (status, out.as_str()),
        (Some(0), "site.toml: ok (1 site, 6 routes, 1 listener)\n")
    );
    has_warnings(&err);
    let (status, out, err) = check(&["check", "--strict", "site.toml"]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    has_warnings(&err);
    folder.write("fine.toml", "[[site]]\n[[site.route]]\nrespond = 204\n");
    let (status, _, err) = check(&["check", "--strict", "fine.toml"]);
    assert_eq!((status, err.as_str()), (Some(0), ""));
}
