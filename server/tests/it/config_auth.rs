//! `auth`, `jwt` and `forward_auth` in a configuration.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::config_proxy::https_backend;
use crate::support::sites::{Sites, send};
use std::io::{Read, Write};

/// A server that answers each request, whose head is its argument, and closes the connection.
fn backend(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let _ = stream.write_all(answer(&String::from_utf8_lossy(&head)).as_bytes());
        }
    });
    address
}

fn close(status: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

#[test]
fn an_authentication_server_decides_and_names_the_user() {
    let gate = backend(|head| match head.to_ascii_lowercase() {
        head if !head.starts_with("get /check ") => close("500 Wrong", "", "wrong path"),
        head if head.contains("cookie: sid=ada") => close("200 OK", "X-User: ada\r\n", ""),
        head if head.contains("x-forwarded-uri: /api") => close("401 Who", "WWW-Authenticate: Bearer\r\n", "who"),
        _ => close("302 Found", "Location: /login\r\nSet-Cookie: a=1\r\n", ""),
    });
    let app = backend(|head| close("200 OK", "", head));
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\nerror_pages = {{ 401 = \"404.html\", 502 = \"404.html\" }}\n\
         forward_auth = {{ to = \"http://{gate}/check\", response_headers = \"X-User\" }}\n\
         [[site.route]]\npath = \"/open\"\nforward_auth = false\nproxy = \"{app}\"\n\
         [[site.route]]\npath = \"/down\"\nforward_auth = \"http://127.0.0.1:1/\"\nproxy = \"{app}\"\n\
         [[site.route]]\nproxy = \"{app}\"\n"
    ));
    let spoofed = ["X-User: root", "X_USER: root", "Connection: close"];
    let ask = |path: &str, cookie: &str| {
        let fields: Vec<&str> = spoofed.iter().copied().chain([cookie]).collect();
        sites.ask("GET", "x", path, &fields)
    };
    let reply = ask("/x", "Cookie: sid=ada");
    let seen = reply.text().to_ascii_lowercase();
    assert_eq!(reply.status, 200);
    assert!(seen.contains("x-user: ada") && !seen.contains("root"), "{seen}");
    let reply = ask("/x", "Cookie: sid=eve");
    assert_eq!(
        (reply.status, reply.field("location"), reply.field("set-cookie")),
        (302, Some("/login"), Some("a=1"))
    );
    // The page is that of the authentication server.
    let reply = ask("/api", "Accept: */*");
    assert_eq!((reply.status, reply.text()), (401, "who"));
    // No answer is a failure of this server, with its page.
    let reply = ask("/down", "Cookie: sid=ada");
    assert_eq!((reply.status, reply.text()), (502, "<h1>lost</h1>"));
    assert_eq!(ask("/open", "Accept: */*").status, 200);
    assert!(sites.said().contains("forward_auth 127.0.0.1:1: "), "{}", sites.said());
}

#[test]
fn an_authentication_server_with_https_is_trusted_by_its_authority() {
    let Some((folder, port, _backend)) = https_backend() else {
        return;
    };
    let text = |keys: &str| {
        let to = format!("to = \"https://127.0.0.1:{port}/check\"");
        format!("[[site]]\ndefault = true\nforward_auth = {{ {to}, {keys} }}\n[[site.route]]\nrespond = \"in\"\n")
    };
    let sites = Sites::start_in(folder, &text("ca = \"ca.pem\", sni = \"app.internal\""));
    let reply = sites.get("x", "/");
    assert_eq!((reply.status, reply.text()), (200, "in"), "{}", sites.said());
    for (keys, status) in [
        ("ca = \"other.pem\", sni = \"app.internal\"", 502),
        ("ca = \"ca.pem\"", 502),
        ("verify = false", 200),
    ] {
        sites.reload(&text(keys));
        assert_eq!(sites.get("x", "/").status, status, "{keys}");
    }
}

#[test]
fn mistakes_of_forward_auth_have_their_places() {
    let folder = crate::support::Folder::new();
    folder.write(
        "site.toml",
        "[[site]]\ndefault = true\nforward_auth = \"ftp://auth.example/\"\n[[site.route]]\nforward_auth = { response_headers = \"a b\" }\n\
         respond = \"x\"\n[[site.route]]\npath = \"/a\"\nforward_auth = { to = \"http://a:1/x\", path = \"/y\" }\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/b\"\nforward_auth = { to = \"http://a:1\", response_headers = \"Keep_Alive\" }\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/c\"\nforward_auth = 7\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/d\"\nforward_auth = { to = \"http://a:1\", verify = false }\nrespond = \"x\"\n",
    );
    let (_, said) = crate::support::check(&folder, &["site.toml"]);
    for line in [
        "site.toml:3:16: 'forward_auth' cannot be \"ftp://auth.example/\": write it as",
        "lacks 'to': the URL to ask",
        "site.toml:5:37: 'response_headers' cannot be",
        "'path' beside a URL with the path '/x'",
        "\"Keep_Alive\" cannot be copied",
        "site.toml:17:16: 'forward_auth' must be a table, false, or the URL alone, not",
        "site.toml:21:37: this key is for TLS: write the address in 'to' with https://, or remove the key",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

/// Base64 of `ada:sesame` and `bob:sesame`.
const ADA: &str = "Authorization: Basic YWRhOnNlc2FtZQ==";
const BOB: &str = "Authorization: Basic Ym9iOnNlc2FtZQ==";

#[test]
fn a_backend_learns_who_has_logged_in_and_a_group_has_a_place_of_its_own() {
    const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let app = backend(|head| close("200 OK", "", head));
    let folder = Sites::folder();
    folder.write("passwords", format!("ada:{HASH}\nbob:{HASH}\n"));
    let sites = Sites::start_in(
        folder,
        &format!(
            "[policy.ops]\nauth = {{ file = \"passwords\", only = [\"ada\", \"zed\"] }}\n[[site]]\ndefault = true\n\
             auth = {{ file = \"passwords\" }}\nrequest_headers = {{ X-User = \"$user\", Authorization = false }}\n\
             [[site.route]]\npath = \"/open\"\nauth = false\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/ops\"\npolicy = \"ops\"\nproxy = \"{app}\"\n\
             [[site.route]]\nproxy = \"{app}\"\n"
        ),
    );
    let ask = |path: &str, login: &str| {
        let reply = sites.ask(
            "GET",
            "x",
            path,
            &["X-User: root", "x_user: root", login, "Connection: close"],
        );
        (reply.status, reply.text().to_ascii_lowercase())
    };
    let (status, seen) = ask("/x", BOB);
    assert!(
        status == 200 && seen.contains("x-user: bob") && !seen.contains("root"),
        "{status} {seen}"
    );
    assert!(!seen.contains("authorization"), "{seen}");
    let (status, seen) = ask("/ops", ADA);
    assert!(status == 200 && seen.contains("x-user: ada"), "{status} {seen}");
    assert_eq!((ask("/ops", BOB).0, ask("/ops", "Y: z").0), (403, 401));
    // Nobody has logged in there.
    let (status, seen) = ask("/open", BOB);
    assert!(status == 200 && !seen.contains("user"), "{status} {seen}");
    let said = sites.said();
    assert!(said.contains("user \"bob\" is not among those of 'only'"), "{said}");
    assert!(
        said.contains("'only' names \"zed\", and neither 'users' nor 'file' has this user"),
        "{said}"
    );
}

/// The lines of an access log, once there are as many.
fn logged(sites: &Sites, file: &str, count: usize) -> Vec<String> {
    let lines = || {
        let text = std::fs::read_to_string(sites.folder.join(file)).unwrap_or_default();
        Some(text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|lines| lines.len() >= count)
    };
    testkit::wait_for("the lines of the log", lines)
}

#[test]
fn the_log_has_the_user_whom_a_password_a_token_or_another_server_has_named() {
    const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let gate = backend(|head| match head.to_ascii_lowercase().contains("cookie: sid=eve") {
        true => close("403 No", "Remote-User: eve\r\n", "no"),
        false => close("200 OK", "Remote-User: a|da\r\n", ""),
    });
    let app = backend(|head| close("200 OK", "", head));
    let folder = Sites::folder();
    folder.write("keys.json", include_str!("../../../web/tests/it/jwt/keys.json"));
    folder.write("passwords", format!("ada:{HASH}\nbob:{HASH}\n"));
    let (auth, gate) = (
        "auth = { file = \"passwords\", only = \"ada\" }",
        format!("to = \"http://{gate}/\""),
    );
    let jwt = "jwt = { keys = \"keys.json\", audience = \"app\"";
    let sites = Sites::start_in(
        folder,
        &format!(
            "log = {{ file = \"log\", format = \"$path|$user|$status\" }}\n[[site]]\ndefault = true\n\
             request_headers = {{ X-Name = \"$user\" }}\n\
             [[site.route]]\npath = \"/auth\"\n{auth}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/jwt\"\n{jwt} }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/claim\"\n{jwt}, user = \"iss\" }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/forward\"\nforward_auth = {{ {gate}, user = \"Remote-User\" }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/both\"\n{auth}\nforward_auth = {{ {gate}, user = \"Remote-User\" }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/silent\"\nforward_auth = {{ {gate} }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/combined\"\nlog = {{ file = \"combined\" }}\n{auth}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/json\"\nlog = {{ file = \"json\", format = \"json\" }}\n{auth}\nproxy = \"{app}\"\n\
             [[site.route]]\nproxy = \"{app}\"\n"
        ),
    );
    let tokens = include_str!("../../../web/tests/it/jwt/tokens.txt");
    let token = tokens.lines().find_map(|line| line.strip_prefix("ES256 ")).unwrap();
    let bearer = format!("Authorization: Bearer {token}");
    let mut expected = Vec::new();
    for (path, field, user, status) in [
        ("/auth", ADA, "ada", 200),
        ("/auth", BOB, "bob", 403),
        ("/auth", "Authorization: Basic YWRhOndyb25n", "-", 401),
        ("/jwt", &bearer, "ada", 200),
        ("/jwt", "Authorization: Bearer x", "-", 401),
        ("/forward", "Remote_User: root", "a\\x7cda", 200),
        ("/forward", "Cookie: sid=eve", "-", 403),
        ("/both", ADA, "ada", 200),
        ("/silent", "Remote-User: root", "-", 200),
        ("/", ADA, "-", 200),
    ] {
        // One connection for all would show a name that stays behind.
        let reply = sites.ask("GET", "x", path, &[field]);
        assert_eq!(reply.status, status, "{path} {field}: {}", reply.text());
        let seen = reply.text().to_ascii_lowercase();
        let named = user.replace("\\x7c", "|");
        assert_eq!(
            seen.contains(&format!("x-name: {named}\r\n")),
            status == 200 && user != "-",
            "{path}: {seen}"
        );
        expected.push(format!("{path}|{user}|{status}"));
    }
    assert_eq!(logged(&sites, "log", expected.len()), expected);
    assert_eq!(sites.ask("GET", "x", "/claim", &[&bearer]).status, 200);
    let claim = logged(&sites, "log", expected.len() + 1).pop().unwrap();
    assert!(claim.starts_with("/claim|") && !claim.contains("|ada|"), "{claim}");
    for path in ["/combined", "/json"] {
        assert_eq!(sites.ask("GET", "x", path, &[ADA]).status, 200);
    }
    let line = logged(&sites, "combined", 1).remove(0);
    assert!(line.starts_with("127.0.0.1 - ada ["), "{line}");
    let line = logged(&sites, "json", 1).remove(0);
    assert!(line.contains("\"client\":\"127.0.0.1\",\"user\":\"ada\","), "{line}");
    // No password and no token is in any log.
    for secret in ["YWRhOnNlc2FtZQ", "sesame", token] {
        for file in ["log", "combined", "json", "stderr"] {
            let text = std::fs::read_to_string(sites.folder.join(file)).unwrap();
            assert!(!text.contains(secret), "{file}: {text}");
        }
    }
}

#[test]
fn the_user_of_a_request_is_that_of_no_later_one_on_its_connection() {
    const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let sites = Sites::start(&format!(
        "log = {{ file = \"log\", format = \"$path $user\" }}\n[[site]]\n[[site.route]]\npath = \"/in\"\n\
         auth = {{ users = {{ ada = \"{HASH}\" }} }}\nrespond = {{ body = \"for $user\" }}\n[[site.route]]\nrespond = {{ body = \"for $user\" }}\n"
    ));
    let mut client = sites.connect();
    for (path, text) in [("/in", "for ada"), ("/out", "for ")] {
        send(&mut client, "GET", "x", path, &[ADA]);
        assert_eq!(client.receive("GET").text(), text);
    }
    assert_eq!(logged(&sites, "log", 2), ["/in ada", "/out -"]);
}

#[test]
fn weak_hashes_let_in_with_a_warning() {
    let folder = Sites::folder();
    folder.write(
        "passwords",
        "ali:$apr1$abcdefgh$GQVaHFsauSKl0cgw4bVFJ/\nbea:{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=\n\
         cat:$6$saltstring$zw6YcBRuwlGueZoWIkK6CRJbQmJbhVf1zPxCfDBsJpbBlxfJ610F8Vp0i93QFh0AmoYe0z/GrJISxBfRQSsGe1\n",
    );
    let text = "[[site]]\ndefault = true\nauth = { file = \"passwords\" }\n[[site.route]]\nrespond = \"in\"\n";
    folder.write("check.toml", text);
    let check = |options: &[&str]| crate::support::check(&folder, &[&["check.toml"][..], options].concat());
    let warning = "weak hashes: \"ali\" (apr1), \"bea\" ({SHA}); who steals the file finds their passwords within days";
    let (code, said) = check(&[]);
    assert!(
        code == Some(0) && said.contains("check.toml:3:10: ") && said.contains(warning),
        "{said}"
    );
    assert!(!said.contains("cat"), "{said}");
    assert_eq!(check(&["--strict"]).0, Some(2));
    let sites = Sites::start_in(folder, text);
    assert!(sites.said().contains(warning), "{}", sites.said());
    // The password of all is sesame.
    let ask = |user: &str| {
        sites
            .ask("GET", "x", "/", &[&format!("Authorization: Basic {user}")])
            .status
    };
    assert_eq!(
        ["YWxpOnNlc2FtZQ==", "YmVhOnNlc2FtZQ==", "Y2F0OnNlc2FtZQ=="].map(ask),
        [200, 200, 200]
    );
    assert_eq!(["YWxpOndyb25n", "ZXZlOnNlc2FtZQ=="].map(ask), [401, 401]);
}

#[test]
fn tokens_name_the_user_to_the_backend() {
    let folder = Sites::folder();
    folder.write("keys.json", include_str!("../../../web/tests/it/jwt/keys.json"));
    let app = backend(|head| close("200 OK", "", head));
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\n\
             jwt = {{ keys = \"keys.json\", audience = \"app\", cookie = \"token\", pass = {{ sub = \"X-User\" }} }}\n\
             [[site.route]]\npath = \"/ops\"\n\
             jwt = {{ keys = \"keys.json\", audience = \"app\", claims = {{ groups = [\"ops\", \"dev\"] }} }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/later\"\njwt = {{ keys = \"later.pem\" }}\nproxy = \"{app}\"\n\
             [[site.route]]\npath = \"/open\"\njwt = false\nproxy = \"{app}\"\n[[site.route]]\nproxy = \"{app}\"\n"
        ),
    );
    let tokens = include_str!("../../../web/tests/it/jwt/tokens.txt");
    let token = tokens.lines().find_map(|line| line.strip_prefix("ES256 ")).unwrap();
    let ask = |path: &str, field: &str| sites.ask("GET", "x", path, &["X-User: root", field]);
    for field in [
        format!("Authorization: Bearer {token}"),
        format!("Cookie: a=b; token={token}"),
    ] {
        let reply = ask("/", &field);
        let seen = reply.text().to_ascii_lowercase();
        assert!(
            reply.status == 200 && seen.contains("x-user: ada") && !seen.contains("root"),
            "{seen}"
        );
        assert_eq!(
            ask("/ops", &field).status,
            if field.starts_with('C') { 401 } else { 403 }
        );
        assert_eq!((ask("/later", &field).status, ask("/open", &field).status), (503, 200));
    }
    let reply = ask("/", "Accept: text/html");
    assert_eq!((reply.status, reply.field("www-authenticate")), (401, Some("Bearer")));
    assert!(reply.text().contains("<h1>401 Unauthorized</h1>"), "{}", reply.text());
}

#[test]
fn mistakes_of_jwt_have_their_places() {
    let folder = crate::support::Folder::new();
    folder.write("small.pem", include_str!("../../../web/tests/it/jwt/small.pem"));
    folder.write("good.pem", include_str!("../../../web/tests/it/jwt/rsa.pem"));
    folder.write(
        "site.toml",
        "[[site]]\ndefault = true\njwt = { keys = \"small.pem\" }\n[[site.route]]\njwt = { audience = \"a\" }\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/a\"\njwt = { keys = \"good.pem\", algorithms = [\"none\"], pass = { sub = \"Content_Length\" } }\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/b\"\njwt = { keys = \"later.pem\", claims = { a = 1 } }\nrespond = \"x\"\n",
    );
    let (_, said) = crate::support::check(&folder, &["site.toml"]);
    for line in [
        "site.toml:3:16: key file '",
        "an RSA key has 1024 bits",
        "lacks 'keys': the file with the public keys",
        "'algorithms' cannot be \"none\": choose among HS256",
        "a claim cannot be passed in \"Content_Length\"",
        "/later.pem'; requests get 503 until it is there",
        "'a' must be a string or a list of strings, not",
    ] {
        assert!(said.contains(line), "{line}\n{said}");
    }
}

/// A failed login names its client as every line does, whatever socket the client has come through.
#[test]
fn a_failed_login_names_the_client_as_fail2ban_reads_it() {
    let hash = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let sites = Sites::start(&format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"[::]:0\"\n[[listen]]\naddress = \"unix:o.sock\"\n\
         [[site]]\ndefault = true\nauth = {{ users = {{ ada = \"{hash}\" }} }}\n[[site.route]]\nrespond = \"in\"\n"
    ));
    let request = "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic ?\r\nConnection: close\r\n\r\n";
    let mut reply = String::new();
    let mut unix = std::os::unix::net::UnixStream::connect(sites.folder.join("o.sock")).unwrap();
    unix.write_all(request.as_bytes()).unwrap();
    unix.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 401 "), "{reply}");
    sites.wait_until_said("authentication failed: client unix, user \"\"");
    let both = sites.addresses[1];
    let mut mapped = TcpStream::connect(("127.0.0.1", both.port())).unwrap();
    mapped.write_all(request.as_bytes()).unwrap();
    reply.clear();
    mapped.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 401 "), "{reply}");
    sites.wait_until_said("authentication failed: client 127.0.0.1, user \"\"");

    // The documented filter, without what common.conf of fail2ban adds, finds each failure of a burst.
    let documents = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let documents = std::fs::read_to_string(documents).unwrap();
    let filter = documents
        .lines()
        .find_map(|line| line.strip_prefix("failregex = "))
        .unwrap();
    let filter = filter
        .replace("%(__prefix_line)s", "")
        .replace("<ADDR>", r"127\.0\.0\.1");
    let filter = regex::Regex::new(&filter).unwrap();
    for n in 0..8 {
        let mut client = sites.connect();
        // Characters of the client's choice are no line of another client.
        send(
            &mut client,
            "GET",
            "x",
            &format!("/{n}?client=127.0.0.2%20osier:%20"),
            &["Authorization: Basic YWRhOng="],
        );
        assert_eq!(client.receive("GET").status, 401);
    }
    let count = || {
        let said = sites.said();
        let texts = said.lines().filter_map(|line| Some(line.split_once(' ')?.1));
        texts.filter(|text| filter.is_match(text)).count()
    };
    // The first of them came by IPv6.
    testkit::eventually("each failure has its line", || count() == 9);
}

#[test]
fn a_user_who_is_named_twice_is_a_warning_of_the_check() {
    let folder = crate::support::Folder::new();
    // "sesame", made by libcrypt.
    let hash = "$2b$12$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    folder.write("passwords", format!("bob:{hash}\nada:{hash}\n"));
    folder.write(
        "site.toml",
        format!("[[site]]\nauth = {{ users = {{ ada = \"{hash}\" }}, file = \"passwords\" }}\n[[site.route]]\nrespond = 204\n"),
    );
    let (status, said) = crate::support::check(&folder, &["--strict", "site.toml"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(
        said.contains("passwords', line 2: user \"ada\" is in 'users' too, where the hash counts; remove one of them"),
        "{said}"
    );
}
