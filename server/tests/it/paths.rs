//! Each spelling of a path means the same for every handler, for routes and their policies, for rewrite rules, and for the
//! framework's router.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use osier_web::Router;
use osier_web::test::Client;

use crate::support::sites::Sites;

/// The meaning of a spelling.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meaning {
    /// The file `/admin/x.txt`.
    Secret,
    /// Another path, which names no file.
    Other,
    /// Another path, but `/admin/x.txt` for a reader that takes `%2F` for a slash or drops parameters.
    Ambiguous,
    /// Nothing: 400.
    Refused,
}
use Meaning::{Ambiguous, Other, Refused, Secret};

#[rustfmt::skip]
const SPELLINGS: &[(&str, Meaning)] = &[
    ("/admin/x.txt", Secret),
    ("/admin/x.txt?../y", Secret),
    ("//admin/x.txt", Secret),
    ("/admin//x.txt", Secret),
    ("///admin///x.txt", Secret),
    ("/%61dmin/x.txt", Secret),
    ("/%61%64%6d%69%6E/x.txt", Secret),
    ("/admin/%78.txt", Secret),
    ("/admin/x%2etxt", Secret),
    ("/admin/x%2Etx%74", Secret),
    ("//%61dmin//x.txt", Secret),
    ("/Admin/x.txt", Other),
    ("/%41dmin/x.txt", Other),
    ("/administrator/x.txt", Other),
    ("/adminx.txt", Other),
    ("/a", Other),
    ("/a/", Other),
    ("/a+b", Other),
    ("/a%20b", Other),
    ("/a:b/~c/@d", Other),
    ("/a;admin/x.txt", Other),
    ("/x;y=/admin", Other),
    ("/a%3Fb", Other),
    ("/a%23b", Other),
    ("/...", Other),
    ("/.../x.txt", Other),
    ("/a..b/..c/d..", Other),
    ("/%2e%2e%2e/x", Other),
    ("/%2561dmin/x.txt", Other),
    ("/%252e%252e/admin/x.txt", Other),
    ("/%252Fadmin/x.txt", Other),
    ("/50%25", Other),
    ("/caf%C3%A9", Other),
    ("/caf%c3%a9/", Other),
    ("/%ff", Other),
    ("/%c0%ae%c0%ae/admin/x.txt", Other),
    ("/%e2%88%95admin/x.txt", Other),
    ("/%EF%BC%8Fadmin/x.txt", Other),
    ("/admin\\x.txt", Other),
    ("/admin%5cx.txt", Other),
    ("/a%2Fb", Other),
    ("/x/a%2fb%2Fc", Other),
    ("/admin%2Fx.txt", Ambiguous),
    ("/admin%2fx.txt", Ambiguous),
    ("/%2Fadmin/x.txt", Ambiguous),
    ("/admin;/x.txt", Ambiguous),
    ("/admin;v=1/x.txt", Ambiguous),
    ("/admin%3bv=1/x.txt", Ambiguous),
    ("//admin;v//x.txt", Ambiguous),
    ("/;v/admin/x.txt", Ambiguous),
    ("/;v%2Fadmin/x.txt", Ambiguous),
    ("/;v%2Fadmin;w/x.txt", Ambiguous),
    ("/%2f%2Fadmin/x.txt", Ambiguous),
    ("/%61dmin%2Fx.txt", Ambiguous),
    ("/..", Refused),
    ("/.", Refused),
    ("/./admin/x.txt", Refused),
    ("/a/../admin/x.txt", Refused),
    ("/admin/../x.txt", Refused),
    ("/admin/x.txt/..", Refused),
    ("/../../admin/x.txt", Refused),
    ("/%2e%2e/admin/x.txt", Refused),
    ("/a/.%2E/admin/x.txt", Refused),
    ("/%2E/admin/x.txt", Refused),
    ("/a%2f..%2fadmin/x.txt", Refused),
    ("/..%2Fadmin/x.txt", Refused),
    ("/a\\..\\admin\\x.txt", Refused),
    ("/a%5c..%5Cadmin/x.txt", Refused),
    ("/a/..;/admin/x.txt", Refused),
    ("/a/..;x=y/admin/x.txt", Refused),
    ("/.;/admin/x.txt", Refused),
    ("/admin/x.txt%00", Refused),
    ("/%00admin/x.txt", Refused),
    ("/admin%0d%0ax", Refused),
    ("/admin/%0Ax.txt", Refused),
    ("/%7f", Refused),
    ("/admin/%", Refused),
    ("/admin/%2", Refused),
    ("/%zz/admin", Refused),
    ("/%u0061dmin/x.txt", Refused),
];

/// A backend that answers with the target it was asked for. It ends with the test's process.
fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut bytes = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut bytes) {
                    Ok(count @ 1..) => head.extend_from_slice(&bytes[..count]),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&head);
            let target = head.split(' ').nth(1).unwrap_or_default();
            let answer = format!("Content-Length: {}\r\nConnection: close\r\n\r\n{target}", target.len());
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes());
        }
    });
    address
}

#[test]
fn every_spelling_has_one_meaning() {
    let nobody = testkit::nobody();
    let folder = Sites::folder();
    folder.write("tree/admin/x.txt", "the secret");
    folder.write("tree/index.html", "the index");
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\nhost = \"files\"\n[[site.route]]\nfiles = \"tree\"\n\
             [[site]]\nhost = \"proxy\"\n[[site.route]]\nproxy = \"{}\"\n\
             [[site]]\nhost = \"fastcgi\"\n[[site.route]]\n\
             fastcgi = {{ to = \"{nobody}\", root = \"tree\", suffix = \".txt\", index = \"none.txt\" }}\n\
             [[site]]\nhost = \"policy\"\n\
             [[site.route]]\npath = \"/admin\"\ndeny = \"0.0.0.0/0\"\nrespond = 200\n[[site.route]]\nrespond = 204\n\
             [[site]]\nhost = \"glob\"\n\
             [[site.route]]\nglob = \"/admin/**\"\nrespond = 403\n[[site.route]]\nrespond = 204\n\
             [[site]]\nhost = \"rewrite\"\n[[site.route]]\n\
             rewrite = [{{ pattern = \"^/admin/\", to = \"/login\", redirect = 302 }}]\n[[site.route]]\nrespond = 204\n",
            mirror()
        ),
    );
    let router = Router::new().get("/admin/{*rest}", |_| "admin").fallback(|_| "else");
    let router = Client::new(router);
    for &(target, meaning) in SPELLINGS {
        let status = |host: &str| sites.get(host, target).status;
        let by_route = |secret| match meaning {
            Secret => secret,
            Other => 204,
            Ambiguous | Refused => 400,
        };
        let by_file = |secret| match meaning {
            Secret => secret,
            Other | Ambiguous => 404,
            Refused => 400,
        };
        assert_eq!(status("policy"), by_route(403), "policy: {target}");
        assert_eq!(status("glob"), by_route(403), "glob: {target}");
        assert_eq!(status("rewrite"), by_route(302), "rewrite: {target}");
        assert_eq!(status("files"), by_file(200), "files: {target}");
        // Nobody listens there: a script that is found cannot be run.
        assert_eq!(status("fastcgi"), by_file(502), "fastcgi: {target}");
        let reply = sites.get("proxy", target);
        match meaning {
            Refused => assert_eq!(reply.status, 400, "proxy: {target}"),
            _ => assert_eq!(reply.text(), target, "proxy"),
        }
        let reply = router.get(target).send();
        let routed = match meaning {
            Secret => "admin",
            Other | Ambiguous => "else",
            Refused => "400 Bad Request\n",
        };
        assert_eq!(reply.text(), routed, "router: {target}");
    }
    println!("{} spellings, 7 readers", SPELLINGS.len());
    assert!(SPELLINGS.len() >= 60);
}
