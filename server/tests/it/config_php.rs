//! A `fastcgi` route: scripts, the files beside them, a front controller, and a reload that keeps the backend's connections.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use crate::support::fastcgi;
use crate::support::sites::{Sites, recipes, send};
use testkit::php::{Fpm, Listen};

fn fpm(folder: &crate::support::Folder) -> Option<Fpm> {
    folder.write("app/index.php", "<?php echo 'front ', $_SERVER['REQUEST_URI'];");
    folder.write(
        "app/info.php",
        "<?php echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '', ' ', getenv('MODE');",
    );
    folder.write("app/style.css", "a{}");
    Fpm::start(folder.path(), Listen::Unix, "pm = static\npm.max_children = 2\n")
}

fn route(fpm: &Fpm, more: &str) -> String {
    format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n\
         [[site.route]]\nfastcgi = {{ to = \"{}\", root = \"app\", {more} }}\n",
        fpm.address
    )
}

#[test]
fn scripts_files_and_a_front_controller() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    let text = route(
        &fpm,
        "files = true, front = \"/index.php\", params = { MODE = \"test\" }",
    );
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/info.php/more").text(), "/info.php /more test");
    assert_eq!(sites.get("x", "/style.css").text(), "a{}");
    assert_eq!(sites.get("x", "/any/page?q=1").text(), "front /any/page?q=1");
    assert_eq!(sites.get("x", "/").text(), "front /");
    // The same over a reload that changes another route.
    assert!(sites.reload(&text.replace('@', "new")).contains("reloaded"));
    assert_eq!(sites.get("x", "/fixed").text(), "new");
    assert_eq!(sites.get("x", "/info.php").text(), "/info.php  test");
}

/// `expires` of nginx for the files of an application whose front controller makes those that are not there.
#[test]
fn files_beside_scripts_have_a_cache_control_of_their_own() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    let text = route(
        &fpm,
        "files = true, front = \"/index.php\", cache = \"public, max-age=60\"",
    );
    let sites = Sites::start_in(folder, &text);
    let file = sites.get("x", "/style.css");
    assert_eq!(
        (file.status, file.field("cache-control")),
        (200, Some("public, max-age=60"))
    );
    for path in ["/info.php", "/made.css", "/"] {
        let script = sites.get("x", path);
        assert_eq!((script.status, script.field("cache-control")), (200, None), "{path}");
    }
    let said = sites.reload(&route(&fpm, "cache = \"no-cache\""));
    let expected = "'cache' cannot be \"no-cache\": it is the Cache-Control of files, and needs files = true";
    assert!(said.contains(expected), "{said}");
}

/// A worker of php-fpm has one connection. While that was kept, the requests of others waited for ever.
#[test]
fn more_requests_than_workers_are_answered_over_tcp() {
    let folder = Sites::folder();
    folder.write("app/slow.php", "<?php usleep(10000); echo 'slow';");
    let Some(fpm) = Fpm::start(folder.path(), Listen::Tcp, "pm.max_children = 2\n") else {
        return;
    };
    let sites = Sites::start_in(folder, &route(&fpm, "timeouts = { first_byte = \"1m\" }"));
    for _ in 0..2 {
        let mut clients: Vec<_> = (0..8).map(|_| sites.connect()).collect();
        for client in &mut clients {
            send(client, "GET", "x", "/slow.php", &[]);
        }
        for client in &mut clients {
            let reply = client.receive("GET");
            assert_eq!((reply.status, reply.text()), (200, "slow"));
        }
    }
}

#[test]
fn an_application_that_is_away_has_an_error_page() {
    let folder = Sites::folder();
    let Some(mut fpm) = fpm(&folder) else { return };
    let text = route(&fpm, "files = true").replacen(
        "default = true\n",
        "default = true\nerror_pages = { 502 = \"404.html\", 404 = \"404.html\" }\n",
        1,
    );
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/info.php").status, 200);
    fpm.stop();
    let reply = sites.get("x", "/info.php");
    assert_eq!((reply.status, reply.text()), (502, "<h1>lost</h1>"));
}

#[test]
fn what_the_server_says_in_place_of_a_script_has_its_error_page() {
    let folder = Sites::folder();
    folder.write("app/own.php", "<?php http_response_code(404); echo 'its own';");
    folder.write("app/lost.php", "<?php header('X-Accel-Redirect: /none.txt');");
    folder.write(
        "app/sent.php",
        "<?php http_response_code(404); header('X-Accel-Redirect: /style.css');",
    );
    let Some(fpm) = fpm(&folder) else { return };
    let text = route(&fpm, "files = true").replacen(
        "default = true\n",
        "default = true\nerror_pages = { 404 = \"404.html\" }\n",
        1,
    );
    let sites = Sites::start_in(folder, &text);
    for (path, body) in [
        ("/none.css", "<h1>lost</h1>"),
        ("/none.php", "<h1>lost</h1>"),
        ("/.git/none.php", "<h1>lost</h1>"),
        ("/lost.php", "<h1>lost</h1>"),
        ("/own.php", "its own"),
        ("/sent.php", "a{}"),
    ] {
        let reply = sites.get("x", path);
        assert_eq!((reply.status, reply.text()), (404, body), "{path}");
    }
    // Without the files beside the scripts too.
    assert!(
        sites
            .reload(&text.replace("files = true", "files = false"))
            .contains("reloaded")
    );
    for path in ["/none.css", "/style.css", "/none.php"] {
        assert_eq!(sites.get("x", path).text(), "<h1>lost</h1>", "{path}");
    }
}

#[test]
fn the_root_may_be_named_by_a_way_that_leads_up() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    let text = route(&fpm, "").replace("root = \"app\"", "root = \"www/../app\"");
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/info.php/more").text(), "/info.php /more ");
}

#[test]
fn an_application_outside_of_the_root_folder_is_told_its_own_names() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can change the root folder");
        return;
    }
    let folder = Sites::folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("app/where.php", "<?php echo __FILE__, ' ', $_SERVER['DOCUMENT_ROOT'];");
    let settings = "pm.max_children = 2\nlisten.mode = 0666\n";
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, settings) else {
        return;
    };
    let here = folder.path().display().to_string();
    let keys = format!("user = \"65534\"\ngroup = \"65534\"\nchroot = \"{here}\"\n");
    let text = keys + &route(&fpm, "files = true");
    let sites = Sites::start_in(folder, &text);
    let expected = format!("{here}/app/where.php {here}/app");
    assert_eq!(sites.get("x", "/where.php").text(), expected);
    // And the same after a reload, which sees the folder by its name inside.
    let said = sites.reload(&text.replace('@', "new"));
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("x", "/fixed").text(), "new");
    assert_eq!(sites.get("x", "/where.php").text(), expected);
}

#[test]
fn an_index_that_is_no_script_is_sent_as_a_file() {
    let folder = Sites::folder();
    folder.write("app/page/index.html", "<?php echo 'never run';");
    folder.write("app/both/index.html", "both");
    folder.write("app/both/index.php", "<?php echo 'script';");
    let Some(fpm) = fpm(&folder) else { return };
    let sites = Sites::start_in(
        folder,
        &route(
            &fpm,
            "index = [\"index.php\", \"index.html\"], files = true, front = \"/index.php\"",
        ),
    );
    let page = sites.get("x", "/page/");
    assert_eq!((page.status, page.text()), (200, "<?php echo 'never run';"));
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let reply = sites.get("x", "/page?q");
    assert_eq!((reply.status, reply.field("location")), (301, Some("/page/?q")));
    assert_eq!(sites.get("x", "/both/").text(), "script");
    assert_eq!(sites.get("x", "/").text(), "front /");
    let said = sites.reload(&route(&fpm, "index = [\"index.html\", \"index.php\"], files = true"));
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("x", "/both/").text(), "both");
    assert_eq!(sites.get("x", "/").text(), "front /");
    // Hidden folders run no scripts, and show none.
    sites
        .folder
        .write("app/.well-known/x/index.php", "<?php echo 'secret';");
    sites.folder.write("app/.well-known/y/index.html", "y");
    assert_eq!(sites.get("x", "/.well-known/x/").status, 404);
    assert_eq!(sites.get("x", "/.well-known/y/").text(), "y");
    // Without files, names that are no scripts are skipped.
    let said = sites.reload(&route(&fpm, "index = [\"index.html\", \"index.php\"]"));
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(sites.get("x", "/both/").text(), "script");
    assert_eq!(sites.get("x", "/page/").status, 404);
}

#[test]
fn the_site_of_the_readme_has_a_front() {
    let folder = Sites::folder();
    folder.write(
        "public/index.php",
        "<?php echo 'front ', $_SERVER['REQUEST_URI'], ' ', $_SERVER['PATH_INFO'] ?? '';",
    );
    folder.write("public/style.css", "a{}");
    folder.write("public/static/index.html", "static");
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm.max_children = 2\n") else {
        return;
    };
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let text = readme
        .split("```toml\n")
        .find(|text| text.contains("[[site]]"))
        .unwrap();
    let text = text.split("```").next().unwrap();
    let text = text
        .replace("127.0.0.1:9000", &fpm.address)
        .replace("127.0.0.1:8000", "127.0.0.1:0");
    let sites = Sites::start_in(folder, &text);
    for (path, expected) in [
        ("/", "front / "),
        ("/index.php/x", "front /index.php/x /x"),
        ("/any/page", "front /any/page "),
        ("/style.css", "a{}"),
        ("/static/", "static"),
    ] {
        assert_eq!(sites.get("x", path).text(), expected, "{path}");
    }
}

#[test]
fn a_script_gets_the_fields_that_the_route_sets() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write(
        "app/fields.php",
        "<?php foreach (['X_ENV', 'X_REAL_IP', 'COOKIE', 'ACCEPT'] as $n) echo $_SERVER[\"HTTP_$n\"] ?? '-', '|';",
    );
    let more = "request_headers = { X-Env = \"production\", X-Real-IP = \"$client\", Cookie = false }";
    let sites = Sites::start_in(folder, &format!("{}{more}\n", route(&fpm, "")));
    let fields = [
        "X_Env: forged",
        "X-Real-IP: 10.9.9.9",
        "Cookie: a=1",
        "Accept: text/css",
    ];
    let reply = sites.ask("GET", "x", "/fields.php", &fields);
    assert_eq!(reply.text(), "production|127.0.0.1|-|text/css|");
}

#[test]
fn a_glob_for_scripts_takes_what_follows_them() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write("app/uploads/own.php", "<?php echo 'run';");
    folder.write("app/uploads/2026/own.php", "<?php echo 'run';");
    folder.write("app/uploads/cat.php.jpg", "a picture");
    let text = route(&fpm, "files = true, front = \"/index.php\"").replacen(
        "[[site.route]]\nfastcgi",
        "[[site.route]]\nglob = \"/uploads/**/*.php\"\nrespond = 403\n\
         [[site.route]]\npath = \"/info.php/free\"\nrespond = \"free\"\n\
         [[site.route]]\nglob = \"/info.php\"\nmethods = \"GET\"\ndeny = \"0.0.0.0/0\"\nfiles = \"app\"\n\
         [[site.route]]\nfastcgi",
        1,
    );
    let sites = Sites::start_in(folder, &text);
    for (path, status, body) in [
        ("/uploads/own.php", 403, "403 Forbidden"),
        ("/uploads/own.php/x", 403, "403 Forbidden"),
        ("/uploads/own.php/", 403, "403 Forbidden"),
        ("/uploads/2026/own.php", 403, "403 Forbidden"),
        ("/uploads//own%2Ephp/x/y.jpg", 403, "403 Forbidden"),
        ("/info.php/x", 403, "403: your address is not allowed"),
        // An earlier route for what follows a script has it.
        ("/info.php/free", 200, "free"),
        // No script is run.
        ("/uploads/cat.php.jpg", 200, "a picture"),
        ("/uploads/own.phpx/y", 200, "front /uploads/own.phpx/y"),
        ("/index.php/page", 200, "front /index.php/page"),
    ] {
        let reply = sites.get("x", path);
        assert_eq!((reply.status, reply.text().trim()), (status, body), "{path}");
    }
    // The route of the script takes one method only.
    assert_eq!(
        sites.ask("POST", "x", "/info.php/x", &["content-length: 0"]).text(),
        "/info.php /x "
    );
}

#[test]
fn a_path_through_many_scripts_is_refused() {
    let folder = Sites::folder();
    folder.write("www/a.php", "<?php");
    let sites = Sites::start_in(
        folder,
        "[[site]]\n[[site.route]]\nglob = \"/uploads/**/*.php\"\nrespond = 404\n\
         [[site.route]]\nfastcgi = { root = \"www\", to = \"127.0.0.1:1\" }\n",
    );
    for (count, status) in [(32, 502), (33, 400), (1000, 400)] {
        let path = "/a.php".repeat(count) + "/x";
        assert_eq!(sites.get("x", &path).status, status, "{count}");
    }
    sites.wait_until_said("more than 32 segments before the last one have the name of a script");
}

/// An application without scripts, which says how often it got each of these parameters. Its port.
fn application(pairs: &'static [&'static [u8]]) -> u16 {
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = application.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in application.incoming() {
            fastcgi::answer(&mut stream.unwrap(), |params, _| {
                let has = |pair: &[u8]| params.windows(pair.len()).filter(|part| *part == pair).count();
                let counts: Vec<String> = pairs.iter().map(|pair| has(pair).to_string()).collect();
                format!("Content-Type: text/plain\r\n\r\n{}", counts.join(" "))
            });
        }
    });
    port
}

/// The recipe of the documents. Each parameter begins with the lengths of its name and value.
#[test]
fn an_application_without_scripts_gets_the_whole_path() {
    let port = application(&[b"SCRIPT_NAME", b"\x0b\x00SCRIPT_NAME", b"\x09\x04PATH_INFO/a/b"]);
    let recipe = recipes("A FastCGI application without scripts")[0];
    let folder = Sites::folder();
    folder.write("rt/rt.fcgi", "");
    let text = recipe
        .replace("/srv/rt", "rt")
        .replace("unix:/run/rt.sock", &format!("127.0.0.1:{port}"));
    let sites = Sites::start_in(folder, &text);
    for path in ["/a/b", "/a/b?c=d", "/a%2Fb", "//a/b"] {
        assert_eq!(sites.get("rt.example.org", path).text(), "1 1 1", "{path}");
    }
}

/// The recipe for Mailman, whose links begin with `SCRIPT_NAME`.
#[test]
fn an_application_without_scripts_may_have_a_path_before_it() {
    let port = application(&[
        b"SCRIPT_NAME",
        b"\x0b\x09SCRIPT_NAME/mailman3",
        b"\x09\x04PATH_INFO/a/b",
    ]);
    let recipe = recipes("A FastCGI application without scripts")[1];
    let folder = Sites::folder();
    folder.write("mailman/mailman.fcgi", "");
    folder.write("static/a.css", "a{}");
    let text = recipe
        .replace("/srv/mailman", "mailman")
        .replace("/var/lib/mailman3/web/static", "static")
        .replace("unix:/run/mailman3-web/uwsgi.sock", &format!("127.0.0.1:{port}"));
    let sites = Sites::start_in(folder, &text);
    let get = |path| sites.get("lists.example.org", path);
    assert_eq!(get("/mailman3/a/b").text(), "1 1 1");
    assert_eq!(get("/mailman3").text(), "1 1 0");
    assert_eq!(get("/mailman3/static/a.css").text(), "a{}");
    assert_eq!(get("/a/b").status, 404);
}

/// The recipe for Nextcloud: the rules of its sample for nginx.
#[test]
fn nextcloud_shows_its_files_and_hides_its_own() {
    let script =
        "<?php echo $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['PATH_INFO'] ?? '-', ' ', $_SERVER['modHeadersAvailable'];";
    let folder = Sites::folder();
    for name in [
        "index.php",
        "remote.php",
        "version.php",
        "console.php",
        "lib/a.php",
        "ocs/v2.php",
    ] {
        folder.write(format!("app/{name}"), script);
    }
    for name in [
        "occ",
        "db_structure.xml",
        "config/config.php",
        "data/a.txt",
        "core/a.css",
        "apps/x/y.js",
    ] {
        folder.write(format!("app/{name}"), "source");
    }
    let pool = "pm = static\npm.max_children = 2\n";
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, pool) else {
        return;
    };
    let recipe = recipes("Nextcloud")[0];
    let plain = recipe.split_once("[[site]]").unwrap().1;
    let text = plain
        .replace(
            "tls = { cert = \"/etc/ssl/cloud.pem\", key = \"/etc/ssl/private/cloud.key\" }\n",
            "",
        )
        .replace("/var/www/nextcloud", "app")
        .replace("unix:/run/php/php-fpm.sock", &fpm.address);
    let sites = Sites::start_in(folder, &format!("[[site]]{text}"));
    let get = |path: &str| sites.get("cloud.example.org", path);
    for (path, expected) in [
        ("/", "/index.php - true"),
        ("/s/abc", "/index.php - true"),
        ("/index.php/s/abc", "/index.php /s/abc true"),
        ("/remote.php/dav/files/a%2Bb", "/remote.php /dav/files/a+b true"),
        ("/ocs/v2.php/cloud", "/ocs/v2.php /cloud true"),
        ("/version.php", "/index.php /version.php true"),
        ("/core/a.css", "source"),
        ("/core/made.css", "/index.php - true"),
    ] {
        let reply = get(path);
        assert_eq!((reply.status, reply.text()), (200, expected), "{path}");
    }
    for hidden in [
        "/occ",
        "/occ/",
        "/db_structure.xml",
        "/config/config.php",
        "/data/a.txt",
        "/data",
        "/lib/a.php",
        "/console.php",
        "/.htaccess",
    ] {
        assert_eq!(get(hidden).status, 404, "{hidden}");
    }
    let cached = get("/apps/x/y.js");
    assert_eq!(cached.field("cache-control"), Some("public, max-age=15778463"));
    for (path, to) in [
        ("/.well-known/carddav", "/remote.php/dav/"),
        ("/.well-known/webfinger?a=b", "/index.php/.well-known/webfinger?a=b"),
        ("/remote/x", "/remote.php/remote/x"),
    ] {
        let reply = get(path);
        assert_eq!((reply.status, reply.field("location")), (301, Some(to)), "{path}");
    }
}

/// PHP always sends a status with a `Location`; other applications may leave it out, with a path that a client has chosen.
#[test]
fn a_redirect_inside_the_server_passes_no_policy_of_another_route() {
    let application = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = application.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in application.incoming() {
            fastcgi::answer(&mut stream.unwrap(), |params, _| {
                let is_there = params.windows(11).any(|name| name == b"/secret.php");
                match is_there {
                    true => "Content-Type: text/plain\r\n\r\nthe secret".into(),
                    false => "Location: /admin/secret.php\r\n\r\n".into(),
                }
            });
        }
    });
    let folder = Sites::folder();
    folder.write("app/index.php", "");
    folder.write("app/admin/secret.php", "");
    let own = format!("fastcgi = {{ to = \"127.0.0.1:{port}\", root = \"app\" }}\n");
    let alone = format!("[[site]]\n[[site.route]]\n{own}");
    let sites = Sites::start_in(folder, &alone);
    assert_eq!(sites.get("x", "/").text(), "the secret");
    for (more, own_conditions) in [
        ("path = \"/admin\"\nrespond = 403\n[[site.route]]\n", ""),
        ("", "glob = \"/*\"\n"),
    ] {
        let text = format!("[[site]]\n[[site.route]]\n{more}{own_conditions}{own}");
        assert!(sites.reload(&text).contains("reloaded"));
        let reply = sites.get("x", "/");
        let location = reply.field("location");
        assert_eq!(
            (reply.status, location),
            (302, Some("/admin/secret.php")),
            "{}",
            reply.text()
        );
        assert!(matches!(sites.get("x", "/admin/secret.php").status, 403 | 404));
    }
}

#[test]
fn a_script_knows_the_target_that_the_client_sent() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write(
        "app/page.php",
        "<?php echo $_SERVER['REQUEST_URI'], ' ', $_SERVER['SCRIPT_NAME'], ' ', $_SERVER['QUERY_STRING'], ' ', file_get_contents('php://input');",
    );
    let rewrite =
        "[[site.route]]\nrewrite = { pattern = \"^/wiki/\", to = \"/page.php?a=1\" }\n[[site.route]]\nfastcgi";
    let text = route(&fpm, "").replacen("[[site.route]]\nfastcgi", rewrite, 1);
    let sites = Sites::start_in(folder, &text);
    assert_eq!(sites.get("x", "/wiki/A%20b?c").text(), "/wiki/A%20b?c /page.php a=1&c ");
    // A body that comes later than the head.
    let mut client = sites.connect();
    send(&mut client, "POST", "x", "/wiki/b", &["content-length: 4"]);
    client.send_raw(b"body");
    assert_eq!(client.receive("POST").text(), "/wiki/b /page.php a=1 body");
    // A cache takes two targets for two, although one script answers both.
    let cached = text.replacen("fastcgi =", "cache = { default_ttl = \"1h\" }\nfastcgi =", 1);
    assert!(sites.reload(&cached).contains("reloaded"));
    for (target, stored) in [
        ("/wiki/a", false),
        ("/wiki/b", false),
        ("/wiki/a", true),
        ("/wiki/b", true),
    ] {
        let reply = sites.get("x", target);
        assert_eq!(reply.text(), format!("{target} /page.php a=1 "));
        let status = reply.field("cache-status").unwrap();
        assert_eq!(status.starts_with("osier; hit"), stored, "{target}: {status}");
    }
    // A purge removes the response of one target, and one with a '*' those that begin so.
    let purging = cached.replacen("default_ttl", "purge = \"127.0.0.1\", default_ttl", 1);
    assert!(sites.reload(&purging).contains("reloaded"));
    let is_hit = |target: &str| {
        let reply = sites.get("x", target);
        reply.field("cache-status").unwrap().starts_with("osier; hit")
    };
    for (purged, count, kept) in [("/wiki/a", 1, true), ("/wiki//%62", 1, false), ("/wiki/*", 2, false)] {
        for target in ["/wiki/a", "/wiki/b"] {
            is_hit(target);
        }
        assert_eq!(sites.ask("PURGE", "x", purged, &[]).text(), format!("{count} purged\n"));
        assert_eq!(is_hit("/wiki/b"), kept, "{purged}");
    }
    // A rule may make another target of a purge than of the request whose response it removes.
    let choosy = "to = \"/page.php?a=1\", if = [{ of = \"cookie\", name = \"style\" }] }";
    assert!(
        sites
            .reload(&purging.replacen("to = \"/page.php?a=1\" }", choosy, 1))
            .contains("reloaded")
    );
    let ask = |method: &str| sites.ask(method, "x", "/wiki/c", &["Cookie: style=dark"]);
    assert_eq!(ask("GET").text(), "/wiki/c /page.php a=1 ");
    assert_eq!(sites.ask("PURGE", "x", "/wiki/c", &[]).text(), "1 purged\n");
    assert!(!ask("GET").field("cache-status").unwrap().starts_with("osier; hit"));
}

/// Front controllers answer all pages of a site by one script.
#[test]
fn a_cache_takes_the_pages_behind_a_rule_for_resources_of_their_own() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write(
        "app/page.php",
        "<?php if ($_SERVER['REQUEST_URI'] == '/wiki/me') header('Cache-Control: no-store'); if ($_SERVER['REQUEST_URI'] == '/wiki/save') header('Location: /wiki/b', true, 303); echo $_SERVER['REQUEST_URI'];",
    );
    let rewrite = "[[site.route]]\nrewrite = { pattern = \"^/wiki/\", to = \"/page.php\" }\n[[site.route]]\n\
         cache = { default_ttl = \"1h\" }\nfastcgi";
    let text = route(&fpm, "").replacen("[[site.route]]\nfastcgi", rewrite, 1);
    let sites = Sites::start_in(folder, &text);
    let ask = |target: &str| {
        let reply = sites.get("x", target);
        assert_eq!(reply.text(), target);
        reply.field("cache-status").unwrap().to_owned()
    };
    let pages = ["a", "b", "c", "d", "e", "f"].map(|page| format!("/wiki/{page}"));
    // The page of one client is not stored, and other pages are fetched as before.
    ask("/wiki/me");
    for page in &pages {
        let status = ask(page);
        assert!(status.contains("stored"), "{page}: {status}");
    }
    // Another page that may have changed says nothing about these.
    assert_eq!(sites.ask("POST", "x", "/wiki/a", &["content-length: 0"]).status, 200);
    for page in &pages[1..] {
        let status = ask(page);
        assert!(status.starts_with("osier; hit"), "{page}: {status}");
    }
    assert!(!ask(&pages[0]).contains("hit"));
    // One that its response names has changed.
    assert_eq!(sites.ask("POST", "x", "/wiki/save", &["content-length: 0"]).status, 303);
    assert!(!ask(&pages[1]).contains("hit"));
    assert!(ask(&pages[2]).contains("hit"));
}

#[test]
fn a_location_passes_as_the_script_has_written_it() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write("app/go.php", "<?php header('Location: ' . $_GET['to']); echo 'moved';");
    let sites = Sites::start_in(folder, &route(&fpm, ""));
    for (to, location) in [
        ("/a%20b", "/a b"),
        ("/gr%C3%B6%C3%9Fe?q=%22", "/gr\u{f6}\u{df}e?q=\""),
        ("", ""),
        ("next.php", "next.php"),
    ] {
        let reply = sites.get("x", &format!("/go.php?to={to}"));
        let got = (reply.status, reply.field("location"), reply.text());
        assert_eq!(got, (302, Some(location), "moved"), "{to}");
    }
}

#[test]
fn a_script_knows_the_user_who_has_logged_in() {
    let folder = Sites::folder();
    let Some(fpm) = fpm(&folder) else { return };
    folder.write(
        "app/user.php",
        "<?php foreach (['REMOTE_USER', 'AUTH_TYPE', 'PHP_AUTH_USER'] as $n) echo $_SERVER[$n] ?? '-', '|';",
    );
    let open = route(&fpm, "");
    // The password is `secret`.
    let auth = "auth = { users = { ada = \"{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\" } }\nfastcgi =";
    let closed = open.replacen("fastcgi =", auth, 1);
    let login = "Authorization: Basic YWRhOnNlY3JldA==";
    let sites = Sites::start_in(folder, &closed);
    assert_eq!(sites.get("x", "/user.php").status, 401);
    assert_eq!(sites.ask("GET", "x", "/user.php", &[login]).text(), "ada|Basic|ada|");
    // A name that nobody has checked is none.
    assert!(sites.reload(&open).contains("reloaded"));
    assert_eq!(sites.ask("GET", "x", "/user.php", &[login]).text(), "-|-|ada|");
    assert_eq!(sites.get("x", "/user.php").text(), "-|-|-|");
}
