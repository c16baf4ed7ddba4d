//! The remedies of `osier check`: keys in the wrong table, tables and values in the wrong form, and keys that are set twice.

use crate::config_check::{HANDLERS, check, mistakes, run};
use crate::support::sites::Sites;

#[test]
fn hints_are_of_the_table_that_a_key_is_in() {
    run(&[
        (
            "@site\nauth = { user = { me = \"x\" }, file = \"users\" }\n@route\n",
            &["3:10: unknown key 'user' in [site.auth]; did you mean 'users'?"],
        ),
        (
            "@site\n[[site.route]]\nfastcgi = { to = \"127.0.0.1:1\", root = \"www\", health = { path = \"/\" } }\n",
            &["4:58: unknown key 'path' in [site.route.fastcgi.health]; known keys are every, timeout"],
        ),
        (
            "@site\nlog = { file = \"a.log\", workers = 2 }\n@route\n",
            &["3:25: unknown key 'workers' in [site.log]; it belongs to the top of the file, before the first table"],
        ),
    ]);
}

#[test]
fn a_key_of_a_route_has_its_place_there() {
    for handler in HANDLERS.split(", ") {
        let found = mistakes(&format!("{handler} = 1\n[[site]]\n{handler} = 1\n"));
        let expected = [
            format!("1:1: unknown key '{handler}' in the file; it belongs to [[site.route]]"),
            "2:1: [[site]] has no [[site.route]]: it would answer every request with 404".into(),
            format!("3:1: unknown key '{handler}' in [[site]]; it belongs to [[site.route]]"),
        ];
        assert_eq!(found, expected);
    }
    run(&[
        (
            "[[site]]\n[[route]]\nfiles = \"www\"\n",
            &[
                "1:1: [[site]] has no [[site.route]]: it would answer every request with 404",
                "2:3: unknown key 'route' in the file; did you mean [[site.route]]?",
            ],
        ),
        (
            "auth = {}\nmethods = [\"GET\"]\n@site\n@route\n[headers]\n[timeouts]\n[site.error_log]\n",
            &[
                "1:1: unknown key 'auth' in the file; it belongs to [[site]] or [[site.route]]",
                "2:1: unknown key 'methods' in the file; it belongs to [[site.route]]",
                "7:2: unknown key 'headers' in the file; did you mean [site.headers]?",
                "8:2: unknown key 'timeouts' in the file; did you mean [listen.timeouts]?",
                "9:7: unknown key 'error_log' in [[site]]; did you mean [error_log]?",
            ],
        ),
    ]);
}

#[test]
fn a_policy_belongs_beside_its_handler() {
    for (handler, expected) in [
        (
            "proxy = { to = \"a:1\", headers = { X-A = \"b\" } }",
            "headers' in [site.route.proxy]; it belongs beside 'proxy', into [[site.route]]",
        ),
        (
            "files = { root = \"www\", methods = \"GET\" }",
            "methods' in [site.route.files]; it belongs beside 'files', into [[site.route]]",
        ),
        (
            "proxy = { to = \"a:1\", websocket = true }",
            "websocket' in [site.route.proxy]; leave it out: WebSockets pass unless 'upgrade' of 'proxy' is false",
        ),
        (
            "proxy = { to = \"https://a\", insecure = true }",
            "insecure' in [site.route.proxy]; write verify = false",
        ),
        (
            "proxy = { to = \"a:1\", timeouts = { read = \"5m\" } }",
            "read' in [site.route.proxy.timeouts]; write first_byte, until the response begins, and between, for its next bytes",
        ),
        (
            "files = { root = \"www\", autoindex = true }",
            "autoindex' in [site.route.files]; write listing = true",
        ),
        (
            "files = { root = \"www\", expires = \"1d\" }",
            "expires' in [site.route.files]; write cache = \"max-age=3600\"",
        ),
        (
            "fastcgi = { root = \"www\", to = \"a:1\", try_files = \"x\" }",
            "try_files' in [site.route.fastcgi]; write files = true, front = \"/index.php\"",
        ),
        (
            "proxy = { to = \"a:1\", read_timeout = \"5m\" }",
            "read_timeout' in [site.route.proxy]; write timeouts = { first_byte = \"5m\", between = \"5m\" }",
        ),
        (
            "fastcgi = { root = \"www\", to = \"a:1\", strip = true }",
            "strip' in [site.route.fastcgi]; put a link with the name of the path into 'root', to the folder of the scripts",
        ),
    ] {
        let found = mistakes(&format!("[[site]]\n[[site.route]]\n{handler}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(expected), "{found:?}");
    }
}

#[test]
fn a_key_of_a_handler_belongs_into_its_table() {
    for (route, expected) in [
        (
            "files = \"www\"\nlisting = true",
            "listing'; write files = { root = ..., listing = true }",
        ),
        (
            "files = \"www\"\nindex = \"a\"",
            "index'; write files = { root = ..., index = ... }",
        ),
        ("files = \"www\"\nroot = \"www\"", "root'; write files = { root = ... }"),
        (
            "files = { root = \"www\" }\nspa = true",
            "spa'; it belongs into the table of 'files'",
        ),
        (
            "proxy = \"a:1\"\nkeep = 5",
            "keep'; write proxy = { to = ..., keep = 5 }",
        ),
        (
            "proxy = \"a:1\"\nhost = \"b\"",
            "host'; write proxy = { to = ..., host = ... }",
        ),
        (
            "proxy = \"a:1\"\ntimeouts = {}",
            "timeouts'; write proxy = { to = ..., timeouts = ... }",
        ),
        (
            "fastcgi = { root = \"www\", to = \"a:1\" }\nhealth = {}",
            "health'; it belongs into the table of 'fastcgi'",
        ),
        (
            "redirect = \"/\"\nstatus = 301",
            "status'; write redirect = { to = ..., status = 301 }",
        ),
        (
            "respond = \"x\"\nstatus = 404",
            "status'; write respond = { body = ..., status = 404 }",
        ),
        (
            "respond = 404\nbody = \"x\"",
            "body'; write respond = { status = ..., body = ... }",
        ),
        ("chat = true\nrooms = 5", "rooms'; write chat = { rooms = 5 }"),
        (
            "welcome = true\nlive_for_all = true",
            "live_for_all'; write welcome = { live_for_all = true }",
        ),
    ] {
        let found = mistakes(&format!("[[site]]\n[[site.route]]\n{route}\n"));
        let expected = expected.replacen("';", "' in [[site.route]];", 1);
        assert_eq!(found, [format!("4:1: unknown key '{expected}")]);
    }
    let found = mistakes("[[site]]\nfiles = \"www\"\nlisting = true\n");
    assert!(
        found[2].ends_with("in [[site]]; write files = { root = ..., listing = true }"),
        "{found:?}"
    );
}

#[test]
fn a_table_comes_before_what_it_belongs_to() {
    run(&[
        (
            "[[site.route]]\nfiles = \"www\"\n",
            &["1:1: [[site.route]] comes before its site: write [[site]] above it"],
        ),
        (
            "# TLS\n  [listen.tls]\nmin_version = \"1.3\"\n@site\n@route\n",
            &["2:3: [listen.tls] comes before its listen: write [[listen]] above it"],
        ),
        (
            "@site\n[[site.route.rewrite]]\npattern = \"x\"\nto = \"/\"\n",
            &["3:1: [[site.route.rewrite]] comes before its route: write [[site.route]] above it"],
        ),
    ]);
}

#[test]
fn a_value_that_should_be_a_table_is_shown_the_form() {
    let proxy = |key: &str| format!("[[site]]\n[[site.route]]\nproxy = {{ to = \"a:1\", {key} }}\n");
    let site = |key: &str| format!("[[site]]\n{key}\n[[site.route]]\nrespond = 404\n");
    for (text, expected) in [
        (
            proxy("health = true"),
            "'health' must be a table, not true; write health = {} for the defaults",
        ),
        (
            proxy("health = \"/up\""),
            "'health' must be a table, not \"/up\"; write health = { path = \"/up\" }",
        ),
        (
            proxy("timeouts = \"5s\""),
            "'timeouts' must be a table, not \"5s\"; write timeouts = { first_byte = \"60s\" }",
        ),
        (
            proxy("sticky = true"),
            "'sticky' must be a table, or the name of the cookie alone, not true; write sticky = \"backend\"",
        ),
        (
            site("compress = \"gzip\""),
            "'compress' must be true, false or a table, not \"gzip\"; write compress = { codings = [\"gzip\"] }",
        ),
        (
            site("hsts = true"),
            "'hsts' must be a duration of at least \"1d\", or a table, not true; write hsts = \"180d\"",
        ),
        (
            site("rate = 5"),
            "'rate' must be a table or false, not the number 5; write rate = { requests = 5 }",
        ),
        (
            site("rate = true"),
            "'rate' must be a table or false, not true; write rate = { requests = 10 }",
        ),
        (
            site("limits.queue = 7"),
            "'queue' must be a table, not the number 7; write queue = { running = 7 }",
        ),
        (
            site("[[site.route]]\nglob = \"*.php\"\nfastcgi = \"a:1\""),
            "'fastcgi' must be a table, not \"a:1\"; write fastcgi = { root = \"www\", to = \"unix:/run/php/php-fpm.sock\" }",
        ),
        (
            format!("[[listen]]\naddress = \"1\"\ntimeouts = 5\n{}", site("")),
            "'timeouts' must be a table, not the number 5; write timeouts = { idle = \"60s\" }",
        ),
        (
            site("log = true"),
            "'log' must be false, \"combined\", \"json\", a template or a table, not true",
        ),
    ] {
        let found = mistakes(&text);
        assert!(found.len() == 1 && found[0].ends_with(expected), "{text}\n{found:?}");
    }
}

#[test]
fn a_value_that_is_almost_right_is_written_out() {
    let listen = |line: &str| {
        format!("[[listen]]\naddress = \"unix:o.sock\"\n{line}\n[[site]]\n[[site.route]]\nrespond = 404\n")
    };
    let site = |line: &str| format!("[[site]]\n{line}\n[[site.route]]\nrespond = 404\n");
    let route = |line: &str| format!("[[site]]\n[[site.route]]\n{line}\n");
    for (text, expected) in [
        (
            listen("mode = 660"),
            "'mode' must be a string of octal digits, not the number 660; write \"660\"",
        ),
        (
            listen("mode = 0660"),
            "a number has no zero in front; remove it, or write the digits as a string, \"0660\" for example",
        ),
        (
            listen("mode = \"1777\""),
            "write the permissions in octal digits from \"0\" to \"0777\", \"0660\" for example",
        ),
        (listen("timeouts = { idle = 60 }"), "not the number 60; write \"60s\""),
        (listen("http2 = \"on\""), "not \"on\"; write true"),
        (site("compress = \"off\""), "not \"off\"; write false"),
        (site("limits = { body = \"10m\" }"), "not \"10m\"; write \"10MiB\""),
        (site("limits = { body = \"10x\" }"), "or 4096 (bytes), not \"10x\""),
        (
            site("headers = { X = \"a\\nb\" }"),
            "the value of 'X' has control characters; write it on one line, without them",
        ),
        (
            route("respond = \"a\u{1}b\""),
            "a string cannot hold a control character; remove it, or write it as an escape, \\u001B for example",
        ),
        (
            route("respond = 'a\u{1}b'"),
            "a string in single quotes cannot hold a control character; remove it, or write an escape in double quotes, \\u001B for \
             example",
        ),
        (
            route("proxy = [\"127.0.0.1:1\"]"),
            "not a list; write proxy = { to = [\"127.0.0.1:3000\"] }",
        ),
        (
            route("redirect = 301"),
            "not the number 301; write redirect = { to = \"https://example.org/\", status = 301 }",
        ),
        (
            route("respond = [200, \"x\"]"),
            "not a list; write respond = { status = 404, body = \"TEXT\" }",
        ),
        (
            "[[listen]]\naddress = \"*:80\"\n[[site]]\n[[site.route]]\nrespond = 404\n".into(),
            "write \":80\" for all addresses of IPv4, and \"[::]:80\" for those of IPv6, too",
        ),
    ] {
        let found = mistakes(&text);
        assert!(found.len() == 1 && found[0].ends_with(expected), "{text}\n{found:?}");
    }
}

#[test]
fn a_key_of_another_server_is_answered_with_the_one_here() {
    for (key, expected) in [
        ("server_name", "write host = \"example.org\" in [[site]]"),
        (
            "reverse_proxy",
            "write proxy = \"HOST:PORT\" or proxy = { to = [\"HOST:PORT\"] } in [[site.route]]",
        ),
        (
            "ssl_certificate_key",
            "write tls = { cert = \"FILE\", key = \"FILE\" } in [[site]]",
        ),
        ("client_max_body_size", "write limits = { body = \"10MiB\" }"),
        (
            "websocket",
            "leave it out: WebSockets pass unless 'upgrade' of 'proxy' is false",
        ),
    ] {
        let found = mistakes(&format!("[[site]]\n{key} = \"x\"\n[[site.route]]\nrespond = 404\n"));
        assert_eq!(found, [format!("2:1: unknown key '{key}' in [[site]]; {expected}")]);
    }
    let found = mistakes("[[site]]\nhost = \"_\"\n[[site.route]]\nrespond = 404\n");
    assert_eq!(
        found,
        ["2:8: 'host' cannot be \"_\": for every host write default = true"]
    );
    let nginx = mistakes("server {\n  listen 80;\n}\n");
    assert!(
        nginx[0].ends_with("each line of a TOML file is KEY = VALUE, [TABLE] or [[TABLE]]"),
        "{nginx:?}"
    );
}

#[test]
fn a_program_that_an_upgrade_cannot_start_is_a_warning() {
    let file = |top: &str| check(&format!("{top}\n[[site]]\n[[site.route]]\nrespond = 404\n"));
    let then = "; an upgrade is refused until it can be started";
    for (top, warning) in [
        ("upgrade = { program = \"none\" }", format!("there is no file 'DIR/none'{then}")),
        ("upgrade = { program = \"www\" }", format!("'DIR/www' is not a file{then}")),
        ("upgrade = { program = \"404.html\" }", format!("this user may not start 'DIR/404.html'{then}")),
        (
            "chroot = \"www\"\nuser = \"nobody\"\nupgrade = { program = \"/bin/sh\" }",
            format!("'/bin/sh' is outside of chroot 'DIR/www'{then}"),
        ),
        (
            "landlock = true\nupgrade = { timeout = \"5s\" }",
            "so an upgrade is refused; name it: program = \"/usr/bin/osier\"".into(),
        ),
        (
            "chroot = \"www\"\nuser = \"nobody\"\nlandlock = false\nupgrade = {}",
            "this program lies outside of 'chroot', so an upgrade is refused; put it inside, with its libraries, and name it: 'program'"
                .into(),
        ),
    ] {
        let (status, printed) = file(top);
        assert!(status == 0 && printed.contains(&warning), "{top}\n{printed}");
    }
    for top in ["upgrade = { program = \"/bin/sh\" }", "upgrade = {}", "landlock = true"] {
        let (status, printed) = file(top);
        assert!(
            status == 0 && !printed.contains("upgrade is refused"),
            "{top}\n{printed}"
        );
    }
}

#[test]
fn the_first_of_two_keys_is_named() {
    run(&[
        (
            "workers = 1\nworkers = 2\n@site\n@route\n",
            &["2:1: 'workers' is set twice; the first is in line 1"],
        ),
        // Keys of the same name in other tables are other keys.
        (
            "[[site]]\nheaders = { A = \"1\" }\ncors.headers = \"x\"\nheaders = { B = \"1\" }\ncors.origins = \"*\"\n\
             cors.headers = \"y\"\n@route\n",
            &[
                "4:1: 'headers' is set twice; the first is in line 2",
                "6:6: 'headers' is set twice; the first is in line 3",
            ],
        ),
        (
            "policy.a.log = \"json\"\npolicy.b = { log = \"json\", log = \"off\" }\npolicy.a.log = false\nlog = \"off\"\n@site\n@route\n",
            &[
                "2:28: 'log' is set twice; the first is in line 2",
                "3:10: 'log' is set twice; the first is in line 1",
            ],
        ),
        (
            "[[site]]\nhost = \"a\"\nlog = \"json\"\n[[site.route]]\nproxy = { host = \"b\", to = \"a:1\" }\n\
             [[site]]\nhost = \"b\"\nerror_pages = { 404 = \"404.html\" }\ncors = { origins = \"*\", headers = \"host\" }\nhost = \"c\"\n@route\n",
            &["10:1: 'host' is set twice; the first is in line 7"],
        ),
        (
            "[log]\nfile = \"a\"\n[[site]]\nlog = \"json\"\n@route\n[log]\nformat = \"json\"\n",
            &["7:2: 'log' is set twice; the first is in line 1"],
        ),
        (
            "log = \"json\"\n[log]\n@site\n@route\n",
            &["2:2: 'log' is set twice; the first is in line 1"],
        ),
        (
            "@site\n[[site.route]]\nrespond = { status = 404, status = 405 }\n",
            &["4:27: 'status' is set twice; the first is in line 4"],
        ),
    ]);
    let (_, printed) = check("workers = 1\nworkers = 2 # secret\n[[site]]\n[[site.route]]\nfiles = \"www\"\n");
    assert!(printed.contains("  2 | workers = **********\n"), "{printed}");
}

#[test]
fn an_address_of_a_backend_has_no_path() {
    let wanted = "write HOST:PORT, http://HOST:PORT, https://HOST, h2c://HOST:PORT or unix:PATH";
    let portless = format!("the port is missing; {wanted}");
    let path = "a backend has no path; remove '/app', and see 'strip' or 'rewrite'";
    for (to, expected) in [
        ("http://127.0.0.1:3000/app", path),
        ("https://example.org/app", path),
        ("h2c://127.0.0.1:3000/app", path),
        ("127.0.0.1:3000/app", path),
        ("http://127.0.0.1", &portless),
        ("app.internal", &portless),
        ("[::1]", &portless),
        ("3000", "the host is missing; did you mean \"127.0.0.1:3000\"?"),
        (":3000", "the host is missing; did you mean \"127.0.0.1:3000\"?"),
        (":http", wanted),
        ("ftp://127.0.0.1:3000/app", wanted),
        ("/run/app.sock", "did you mean \"unix:/run/app.sock\"?"),
        ("http://unix:/run/app.sock:/", "did you mean \"unix:/run/app.sock\"?"),
        ("http://unix:/run/app.sock", "did you mean \"unix:/run/app.sock\"?"),
        (
            "ws://127.0.0.1:3000",
            "WebSockets need no scheme of their own; write http:// for ws://, and https:// for wss://",
        ),
        ("https://unix:/run/app.sock", wanted),
        ("h2c://http://127.0.0.1:3000", wanted),
    ] {
        let found = mistakes(&format!("[[site]]\n[[site.route]]\nproxy = \"{to}\"\n"));
        assert_eq!(found, [format!("3:9: 'proxy' cannot be \"{to}\": {expected}")]);
    }
    let fastcgi = "fastcgi = { root = \"www\", to = \"127.0.0.1:9000/app\" }";
    let found = mistakes(&format!("[[site]]\n[[site.route]]\n{fastcgi}\n"));
    assert!(
        found[0].ends_with(": a backend has no path; remove '/app'"),
        "{found:?}"
    );
    for to in ["http://127.0.0.1:9000", "http://unix:/run/php.sock"] {
        let fastcgi = format!("fastcgi = {{ root = \"www\", to = \"{to}\" }}");
        let found = mistakes(&format!("[[site]]\n[[site.route]]\n{fastcgi}\n"));
        let wanted = "only backends of 'proxy' speak HTTP; write HOST:PORT or unix:PATH";
        assert_eq!(found, [format!("3:32: 'to' cannot be \"{to}\": {wanted}")]);
    }
}

/// Checks a route with one line, and compares what follows the place of its only mistake.
fn mistake_of_route(line: &str, expected: &str) {
    let found = mistakes(&format!("[[site]]\n[[site.route]]\n{line}\n"));
    assert!(found.len() == 1 && found[0].ends_with(expected), "{line}\n{found:?}");
}

#[test]
fn the_host_of_a_redirect_is_not_taken_from_a_path() {
    let no_host = ": a client must not choose where a redirect leads: write a host behind the scheme, \"https://example.org/\" or \
                   \"https://{host}/\" for example";
    for to in [
        "https://",
        "http:///x",
        "https://{rest}",
        "https://{path}/",
        "https://{query}",
        "https://?x",
        "https://:443/",
        "https://a@{host}/",
        "https://{host}:x@a.org/",
        "https://a.org{host",
        "https://a.org\\\\b.org/",
        "https://[::1/",
        "https://[a]/",
    ] {
        let expected = match to.ends_with("{host") {
            true => ": '{' without '}'",
            false => no_host,
        };
        mistake_of_route(&format!("redirect = \"{to}\""), expected);
    }
    for (to, port) in [
        ("https://a.org:99999/", "99999"),
        ("https://a.org:0", "0"),
        ("https://a.org:", ""),
        ("https://{host}:+1/", "+1"),
        ("https://a.org:{rest}", ""),
        ("https://[::1]:x/", "x"),
    ] {
        let expected = format!(": '{port}' is not a port (1 to 65535)");
        mistake_of_route(&format!("redirect = \"{to}\""), &expected);
    }
    for to in [
        "https://a.org",
        "http://a.org:8080{path}{query}",
        "https://a.org{query}",
        "https://{host}",
        "https://{host}:8443{rest}",
        "https://www.{host}/x",
        "https://[::1]:443/{rest}",
        "{path}",
    ] {
        let (status, printed) = check(&format!("[[site]]\n[[site.route]]\nredirect = \"{to}\"\n"));
        assert_eq!(status, 0, "{printed}");
    }
    mistake_of_route(
        "redirect = { to = \"/x\", status = \"301\" }",
        "3:34: 'status' must be 301, 302, 303, 307 or 308, not \"301\"",
    );
}

#[test]
fn what_regular_expressions_of_other_servers_have_is_named_with_its_condition() {
    for (pattern, expected) in [
        (
            "^/(?!index).*$",
            "look-around, including look-ahead and look-behind, is not supported; write (?!x) as a condition: \
             if = [{ of = \"path\", matches = \"x\", not = true }]",
        ),
        (
            "^/(a|b)/\\\\1$",
            "backreferences are not supported; compare captures in a condition: \
             if = [{ of = \"capture\", name = \"2\", is = \"$1\" }]",
        ),
    ] {
        let rule = format!("rewrite = {{ pattern = \"{pattern}\", to = \"/\" }}");
        mistake_of_route(&rule, &format!(": 'pattern' cannot be \"{pattern}\": {expected}"));
    }
}

#[test]
fn a_condition_that_never_holds_is_refused() {
    for (of, is, expected) in [
        (
            "host",
            "Example.org",
            "the host is compared in lower case; did you mean \"example.org\"?",
        ),
        (
            "host",
            "Example.org:80",
            "the host is compared without its port; did you mean \"example.org\"?",
        ),
        (
            "host",
            "Example.org.",
            "the host is compared without the dot at its end; did you mean \"example.org\"?",
        ),
        (
            "host",
            "example.org.:80",
            "the host is compared without its port; did you mean \"example.org\"?",
        ),
        (
            "encoding",
            "GZIP",
            "the encoding is compared in lower case; did you mean \"gzip\"?",
        ),
        ("method", "get", "methods are case-sensitive; did you mean \"GET\"?"),
    ] {
        let rule = format!("rewrite = {{ pattern = \"x\", to = \"/\", if = [{{ of = \"{of}\", is = \"{is}\" }}] }}");
        mistake_of_route(&rule, &format!(": 'is' cannot be \"{is}\": {expected}"));
    }
    for (of, is) in [
        ("host", "[::1]"),
        ("host", "$Name.org"),
        ("path", "/A"),
        ("method", "GET"),
    ] {
        let rule = format!("{{ pattern = \"(?<Name>x)\", to = \"/\", if = [{{ of = \"{of}\", is = \"{is}\" }}] }}");
        let (status, printed) = check(&format!("[[site]]\n[[site.route]]\nrewrite = {rule}\n"));
        assert_eq!(status, 0, "{printed}");
    }
}

#[test]
fn values_that_cannot_be_used_are_refused_with_their_place() {
    for (line, expected) in [
        (
            "files = { root = \"www\", cache = \"max-age=1\\nX: y\" }",
            "3:33: 'cache' cannot be \"max-age=1\\nX: y\": the value of 'Cache-Control' has control characters; write it on one line, without them",
        ),
        (
            "proxy = { to = \"a:1\", host = \"\" }",
            "3:30: 'host' cannot be \"\": write \"client\", \"upstream\" or a host",
        ),
        (
            "chat = { ca = \"pw\" }",
            "3:10: 'ca' is for TLS to Redis: redis = \"rediss://HOST:PORT\"",
        ),
        (
            "files = \"www\"\nlog = { file = \"\" }",
            "4:16: a path is empty; name the file",
        ),
        (
            "files = \"www\"\nauth = { users = {} }",
            "[site.route.auth] has no users: give it users = { NAME = \"HASH\" } or file = \"FILE\" with lines of NAME:HASH",
        ),
    ] {
        mistake_of_route(line, expected);
    }
    for (text, expected) in [
        (
            "[[site]]\ndefault = true\nroute = []\n",
            "1:1: [[site]] has no [[site.route]]: it would answer every request with 404",
        ),
        (
            "[[site]]\nhost = \"A.org.\"\n[[site.route]]\nrespond = 404\n",
            "2:8: 'host' cannot be \"A.org.\": a host has no dot at its end; did you mean \"a.org\"?",
        ),
    ] {
        assert_eq!(mistakes(text), [expected]);
    }
}

#[test]
fn an_issuer_that_wants_a_binding_is_named() {
    for (issuer, name) in [
        ("\"zerossl\"", "zerossl"),
        ("[\"letsencrypt\", { directory = \"google\" }]", "google"),
        ("\"https://acme.zerossl.com/v2/DV90\"", "zerossl"),
    ] {
        let (status, printed) = check(&format!(
            "[acme]\nissuer = {issuer}\n[[site]]\n[[site.route]]\nrespond = 404\n"
        ));
        let expected = format!(
            "warning: '{name}' signs nothing without the key that it gives to its customers: write {{ directory ="
        );
        assert!(status == 0 && printed.contains(&expected), "{printed}");
    }
    let bound = "issuer = { directory = \"zerossl\", binding = { id = \"x\", secret = \"YWJj\" } }";
    let (_, printed) = check(&format!("[acme]\n{bound}\n[[site]]\n[[site.route]]\nrespond = 404\n"));
    assert!(!printed.contains("warning"), "{printed}");
}

#[test]
fn captures_are_counted() {
    let rule = "{ pattern = \"(x)\", to = \"/$2\" }";
    let found = mistakes(&format!(
        "[[site]]\n[[site.route]]\nrewrite = {rule}\n[[site.route]]\nfiles = \"www\"\n"
    ));
    assert!(found[0].contains("has 1 group, and none of that name"), "{found:?}");
}

#[test]
fn settings_that_can_do_nothing_are_mistakes() {
    run(&[
        (
            "@site\nerror_pages = {}\n@route\n",
            &["3:15: 'error_pages' names no page: write one, 404 = \"404.html\" for example, or leave it out"],
        ),
        (
            "[[listen]]\naddress = \":80\"\nhead = { bytes = 1, request_line = \"0\" }\n@site\n@route\n",
            &[
                "3:18: 'bytes' must be at least 18 bytes, not the number 1: no request is shorter",
                "3:36: 'request_line' must be at least 14 bytes, not \"0\": no request is shorter",
            ],
        ),
    ]);
}

/// Checks a file with a certificate from an authority, and returns its warnings. `more` stands before the site, whose keys are `keys`.
fn warnings_of_acme(acme: &str, more: &str, keys: &str) -> Vec<String> {
    let (status, printed) = check(&format!(
        "[acme]\n{acme}\n{more}[[site]]\nhost = \"example.org\"\ntls = \"auto\"\n{keys}[[site.route]]\nfiles = \"www\"\n"
    ));
    assert_eq!(status, 0, "{printed}");
    let lines = printed.lines().filter_map(|line| line.split_once(": warning: "));
    lines.map(|(_, warning)| warning.to_string()).collect()
}

#[test]
fn a_challenge_that_nothing_listens_for_is_a_warning() {
    let plain = "[[listen]]\naddress = \":80\"\nname = \"plain\"\n";
    let https = "[[listen]]\naddress = \":443\"\nname = \"tls\"\ntls = true\n";
    let both = format!("{plain}{https}");
    // Another site's listener answers, and so does another machine.
    let other = format!("{both}[[site]]\ndefault = true\nlisten = \"plain\"\n[[site.route]]\nrespond = 404\n");
    let shared = format!("[shared]\nredis = \"redis://127.0.0.1:6379\"\n{https}");
    let of_http = "the challenge \"http-01\" comes to port 80 in the clear, and every listener has 'tls': add [[listen]] with \
                   address = \":80\", or allow \"tls-alpn-01\"";
    for (challenges, more, keys, expected) in [
        ("\"http-01\"", https, "", &[of_http][..]),
        ("\"http-01\"", &both, "", &[]),
        ("\"http-01\"", &other, "listen = \"tls\"\n", &[]),
        ("\"http-01\"", &shared, "", &[]),
        ("\"tls-alpn-01\"", https, "", &[]),
        ("[\"http-01\", \"tls-alpn-01\"]", https, "", &[]),
    ] {
        let mut found = warnings_of_acme(&format!("challenges = {challenges}"), more, keys);
        found.retain(|warning| warning.contains("challenge"));
        assert_eq!(found, expected, "{challenges} {more}");
    }
    // The settings of certificates on demand are those of [acme].
    let on_demand = |listeners: &str| {
        let acme = "[acme]\nchallenges = \"http-01\"\nask = \"http://127.0.0.1:1/\"\n";
        let site = "[[site]]\ndefault = true\ntls = \"on-demand\"\n[[site.route]]\nfiles = \"www\"\n";
        let (status, printed) = check(&format!("{acme}{listeners}{site}"));
        assert_eq!(status, 0, "{printed}");
        printed.contains(of_http)
    };
    assert!(on_demand(https) && !on_demand(&both));
    // The program for DNS is not used.
    let wild = format!(
        "[acme]\nchallenges = \"http-01\"\ndns = \"/bin/true\"\n{both}[[site]]\nhost = \"*.example.org\"\ntls = \"auto\"\n\
         [[site.route]]\nfiles = \"www\"\n"
    );
    let (status, printed) = check(&wild);
    let refused = "only a DNS record proves '*.example.org': add \"dns-01\" to 'challenges'";
    assert!(status == 2 && printed.contains(refused), "{printed}");
    let found = warnings_of_acme("dns = \"users\"", &both, "");
    assert_eq!(
        found,
        ["'DIR/users' is not executable, so names are not proved by DNS: chmod +x DIR/users"]
    );
}

#[test]
fn a_rewrite_loop_is_a_warning() {
    let app = "[[site.route]]\npath = \"/new\"\nrespond = \"x\"\n";
    for (before, rules, looping) in [
        ("", r#"{ pattern = "^/(.*)$", to = "/new/$1" }"#, Some("/new/a")),
        (
            "",
            r#"{ pattern = "^/page/([0-9]+)", to = "/page/$1/all?all" }"#,
            Some("/page/1/all"),
        ),
        (
            "",
            r#"[{ pattern = "^/a$", to = "/b" }, { pattern = "^/b$", to = "/a" }]"#,
            Some("/b"),
        ),
        // Where this file is, and for clients over https, each pass finds the same.
        (
            "",
            r#"{ pattern = "^", to = "/maintenance.html", if = [{ of = "exists", name = "/srv/maintenance.on" }] }"#,
            Some("/maintenance.html"),
        ),
        (
            "",
            r#"{ pattern = "^/(.*)$", to = "/new/$1", if = [{ of = "https" }, { of = "host", is = "a", not = true }] }"#,
            Some("/new/a"),
        ),
        // Another route, another rule or a condition may end it, and a redirect is a new request.
        (
            "[[site.route]]\npath = \"/maintenance.html\"\nrespond = 503\n",
            r#"{ pattern = "^", to = "/maintenance.html", if = [{ of = "exists", name = "/srv/maintenance.on" }] }"#,
            None,
        ),
        (app, r#"{ pattern = "^/(.*)$", to = "/new/$1" }"#, None),
        ("", r#"{ pattern = "^/old/(.*)$", to = "/new/$1" }"#, None),
        (
            "",
            r#"[{ pattern = "^/b$", to = "/c" }, { pattern = "^/[ab]$", to = "/b" }]"#,
            None,
        ),
        (
            "",
            r#"{ pattern = "^/(.*)$", to = "/new/$1", if = [{ of = "path", matches = "^/new", not = true }] }"#,
            None,
        ),
        (
            "",
            r#"{ pattern = "^/(.*)$", to = "/new/$1", if = [{ of = "file", name = "/srv/$1" }] }"#,
            None,
        ),
        (
            "",
            r#"{ pattern = "^/(.*)$", to = "/new/$1", if = [{ of = "host", is = "$1" }] }"#,
            None,
        ),
        ("", r#"{ pattern = "^/(.*)$", to = "/new/$1", redirect = 302 }"#, None),
        ("", r#"{ pattern = "^/([a-z]*)$", to = "/$1.html" }"#, None),
    ] {
        let end = "[[site.route]]\nfiles = \"www\"\n";
        let text = format!("[[site]]\ndefault = true\n{before}[[site.route]]\nrewrite = {rules}\n{end}");
        let (status, printed) = check(&text);
        assert_eq!(status, 0, "{printed}");
        match looping {
            Some(path) => {
                let expected =
                    format!(":3:1: warning: a rewrite loop: requests for '{path}' are rewritten more than 4 times");
                assert!(printed.contains(&expected), "{rules}: {printed}");
            }
            None => assert!(!printed.contains("loop"), "{rules}: {printed}"),
        }
    }
}

/// The mistakes that somebody makes who configures a first site.
#[test]
fn ordinary_mistakes_lead_to_their_remedy() {
    let folder = Sites::folder();
    let site = "[[site]]\n[[site.route]]\n";
    for (text, said) in [
        (
            "@glob = \"\\.php$\"\nfiles = \"www\"\n",
            "write the text in single quotes",
        ),
        ("@files = \"~/www\"\n", "write the path of the home folder for '~'"),
        (
            "@files = { root = \"www\", fallback = \"/index.html\" }\n",
            "write spa = true",
        ),
        ("@php = \"127.0.0.1:9000\"\n", "write fastcgi = { root = "),
        (
            "@proxy = { backend = \"127.0.0.1:3000\" }\n",
            "write to = \"HOST:PORT\"",
        ),
        (
            "@redirect = { url = \"/x\", code = 301 }\n",
            "unknown key 'code' in [site.route.redirect]; write status",
        ),
        (
            "@rewrite = \"^/a /b\"\n",
            "write rewrite = { pattern = \"^/old/\", to = \"/new/\" }",
        ),
        (
            "@redirect = \"/new\"\n",
            "warning: a redirect loop: a request for '/new' gets a redirect to '/new'",
        ),
        (
            "@respond = \"404\"\n",
            "warning: this is a text with status 200; for the status write respond = 404",
        ),
        (
            "[[site]]\nauth = \"passwords\"\n[[site.route]]\nfiles = \"www\"\n",
            "write auth = { file = \"FILE\" }",
        ),
        (
            "[[site]]\ndeny = \"all\"\n[[site.route]]\nfiles = \"www\"\n",
            "everybody is [\"0.0.0.0/0\", \"::/0\", \"unix\"]",
        ),
        (
            "[[site]]\nhost = \"https://a.example:443/\"\n[[site.route]]\nfiles = \"www\"\n",
            "did you mean \"a.example\"?",
        ),
        (
            "[[site]]\ncache = \"10m\"\n[[site.route]]\nproxy = \"127.0.0.1:3000\"\n",
            "write cache = { default_ttl = \"10m\" }",
        ),
        (
            "[[site]]\nerror_pages = { 4xx = \"404.html\" }\n[[site.route]]\nfiles = \"www\"\n",
            "write each by itself: { 403 = \"error.html\"",
        ),
        (
            "[[site]]\nheaders = { Content-Type = \"text/plain\" }\n[[site.route]]\nfiles = \"www\"\n",
            "'types' sets it for files",
        ),
        (
            "listen = \"127.0.0.1:8080\"\n@files = \"www\"\n",
            "write [[listen]], and below it address = \"127.0.0.1:8080\"",
        ),
        (
            "[[listen]]\nport = 8080\n@files = \"www\"\n",
            "write address = \"127.0.0.1:8080\" in [[listen]]",
        ),
        (
            "log = \"$remote_addr $http_referer\"\n@files = \"www\"\n",
            "there is no field 'remote_addr'; did you mean 'client'?",
        ),
        (
            "log = { format = \"%h %u\" }\n@files = \"www\"\n",
            "fields are written by their names here",
        ),
    ] {
        folder.write("site.toml", text.replace('@', site));
        let (_, shown) = crate::support::check(&folder, &["site.toml"]);
        assert!(shown.contains(said), "{text}{said}\n{shown}");
    }
    // Each of these is right.
    for text in [
        "[[site]]\n[[site.route]]\npath = \"/new\"\nfiles = \"www\"\n[[site.route]]\nredirect = \"/new\"\n",
        "[[site]]\n[[site.route]]\npath = \"/old\"\nredirect = \"/new{query}\"\n[[site.route]]\nfiles = \"www\"\n",
        "[[site]]\n[[site.route]]\nglob = \"/app\"\nredirect = \"/app/{query}\"\n[[site.route]]\nfiles = \"www\"\n",
        "[[site]]\n[[site.route]]\nredirect = \"https://example.org/\"\n",
    ] {
        folder.write("site.toml", text);
        let (status, shown) = crate::support::check(&folder, &["--strict", "site.toml"]);
        assert_eq!(status, Some(0), "{text}{shown}");
    }
}
