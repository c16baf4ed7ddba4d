//! No message about a configuration shows a secret: neither its text, nor the line that it quotes.

use crate::config_check::{check, check_with, mistakes};
use crate::support::{Folder, osier};

/// Checks texts in which every secret holds `hun` or `ter2`. Each must be refused with a line in which something is hidden.
fn hides(texts: &[&str]) {
    for text in texts {
        let (status, printed) = check(text);
        assert_eq!(status, 2, "{text}\n{printed}");
        assert!(
            !printed.contains("hun") && !printed.contains("ter2"),
            "{text}\n{printed}"
        );
        assert!(printed.contains("**"), "{text}\n{printed}");
        assert!(printed.contains('^'), "{text}\n{printed}");
    }
}

fn route(text: &str) -> String {
    format!("[[site]]\n[[site.route]]\n{text}\n")
}

fn acme(text: &str) -> String {
    format!("[acme]\n{text}\n[[site]]\n[[site.route]]\nrespond = 204\n")
}

#[test]
fn passwords_are_not_shown() {
    for text in [
        "chat = { redis = \"redis://:hunter2@host:99999\" }\n",
        "chat = { redis = \"redis://:hun@ter2@host:99999\", channle = \"a\" }\n",
        "chat = { channle = \"a\", redis = \"redis://:hunter2@host\" }\n",
        "chat = { redis = \":hunter2@host\" }\n",
        "chat = { redis = \"redis://:hunter2\" }\n",
        "chat = { redis = \"redis://:hunter2@host }\n",
        "chat = { redis = [\"redis://:hunter2@host\"] }\n",
        "respond = 204\nauth = { users = { me = \"hunter2\" } }\n",
        "respond = 204\nauth = { users = { \"me:hunter2\" = \"\" } }\n",
        "respond = 204\nauth = { users = { me = \"\"\"\nhunter2\"\"\", \"\" = 1 } }\n",
    ] {
        let (status, printed) = check(&route(text));
        assert_eq!(status, 2, "{printed}");
        assert!(!printed.contains("hun") && !printed.contains("ter2"), "{printed}");
        assert!(printed.contains("***"), "{printed}");
    }
}

#[test]
fn the_text_of_a_message_does_not_show_a_secret() {
    let base64 = "[[acme.issuer]]\ndirectory = \"zerossl\"\nbinding = { id = \"x\", secret = \"ab+hun/ter2\" }";
    assert_eq!(mistakes(&acme(base64)), ["4:32: 'secret': it is not base64 for URLs"]);
    for text in [
        "auth = \"ada:hunter2\"",
        "auth = [\"ada:hunter2\"]",
        "auth = { users = \"ada:hunter2\" }",
        "forward_auth = \"http://me:hunter2@host/\"",
        "forward_auth = \"ftp://me:hunter2@host/\"",
    ] {
        hides(&[&route(&format!("respond = 204\n{text}"))]);
    }
    let (_, printed) = check(&route("respond = 204\nauth = { users = { ada = 530 } }"));
    assert!(
        printed.contains("'ada' must be a string, not a number") && !printed.contains("530"),
        "{printed}"
    );
    for text in [
        "proxy = \"http://me:hunter2@host:80\"",
        "proxy = \"http://me:hunter2@host\"",
        "proxy = \"http://me:hun/ter2@host\"",
        "proxy = { to = [{ address = \"https://me:hunter2@host\" }] }",
        "fastcgi = { root = \"www\", to = \"http://me:hunter2@host\" }",
        "fastcgi = { root = \"www\", to = \"a:1\", params = { A = \"hunter2\", B = 1 } }",
        "chat = \"redis://:hunter2@host\"",
    ] {
        hides(&[&route(text)]);
    }
    for text in [
        "ask = \"http://me:hunter2@host/\"",
        "issuer = \"https://me:hunter2@host/\"",
        "issuer = { directory = \"http://me:hunter2@host/\" }",
        "issuer = { directory = \"zerossl\", binding = \"hunter2\" }",
        "[shared]\nredis = \"redis://:hunter2@host/x\"",
    ] {
        hides(&[&acme(text)]);
    }
    hides(&[&format!(
        "shared = \"redis://:hunter2@host\"\n{}",
        route("respond = 204")
    )]);
    // The value of a variable is not in the line.
    let (_, printed) = check_with(&route("proxy = \"${OSIER_TEST_BACKEND}\""), |command| {
        command.env("OSIER_TEST_BACKEND", "http://me:hunter2@host");
    });
    assert!(printed.contains("3:9: 'proxy': write HOST:PORT"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
    let (_, printed) = check(&route("chat = { redis = \"redis://:a${hunter2@host\" }"));
    assert!(!printed.contains("hunter2"), "{printed}");
    let (_, printed) = check(&route("chat = { redis = \"redis://:a${hun-ter2}@host\" }"));
    assert!(printed.contains("does not name an environment variable"), "{printed}");
    assert!(!printed.contains("hun"), "{printed}");
}

#[test]
fn a_key_in_place_of_its_file_is_not_shown() {
    let pem = "-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\\n";
    for (text, place) in [
        (
            format!("[[site]]\ntls = {{ cert = \"c\", key = \"{pem}\" }}\n[[site.route]]\nrespond = 204\n"),
            "2:27",
        ),
        (
            route(&format!(
                "proxy = {{ to = \"https://a\", cert = \"www/index.html\", key = \"{pem}\" }}"
            )),
            "3:60",
        ),
        (format!("ticket_keys = \"{pem}\"\n{}", route("respond = 204")), "1:15"),
        (
            route("respond = 204\njwt = { keys = '{\"kty\":\"oct\",\"k\":\"hunter2\"}' }"),
            "4:16",
        ),
    ] {
        hides(&[&text]);
        let expected = format!("{place}: the path of a file belongs here, and its content into that file");
        assert!(mistakes(&text).contains(&expected), "{text}\n{:?}", mistakes(&text));
    }
}

#[test]
fn a_syntax_error_shows_the_key_and_not_the_value() {
    hides(&[
        &route("respond = 204\nauth = { users = { ada = \"hunter2 } }"),
        &route("respond = 204\nauth = { users = { ada = \"hunter2\" }"),
        &route("respond = 204\nauth = { users = { ada = hunter2 } }"),
        &route("respond = 204\n[site.route.auth.users]\nada = hunter2"),
        &route("respond = 204\n[site.route.auth.users]\nada hunter2"),
        &route("respond = 204\n[site.route.auth.users]\n\"ada\": \"hunter2\""),
        &route("respond = 204\nauth = { users = {\n  ada = \"hunter2\n} }"),
        &route("respond = 204\nauth = { users = { ada = [\n  \"hunter2\n] } }"),
        &route("respond = 204\nauth.users.ada =\nhunter2"),
        &route("respond = 204\nauth.users.ada = \"\"\"\nhunter2 = 1\\z"),
    ]);
    let (_, printed) = check("[[site]\n[site.auth.users]\nada = \"hunter2\nworkers 2\n");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        lines,
        [
            "site.toml:1:8: unclosed array table, expected `]`",
            "  1 | [[site]",
            "    |        ^",
            "site.toml:3:15: invalid basic string, expected `\"`",
            "  3 | ada = ********",
            "    |               ^",
            "site.toml:4:9: key with no value, expected `=`; each line of a TOML file is KEY = VALUE, [TABLE] or [[TABLE]]",
            "  4 | workers *",
            "    |         ^",
        ],
        "{printed}"
    );
}

#[test]
fn the_fields_of_requests_to_a_backend_are_not_shown() {
    let proxy = |fields: &str| route(&format!("request_headers = {{ {fields} }}\nproxy = \"a:1\""));
    hides(&[
        &proxy("Authorization = \"Bearer hunter2\", Host = \"x\""),
        &proxy("Authorization = \"Bearer hun$ter2\""),
        &proxy("Authorization = \"Bearer hunter2"),
        &route("request_header = { Authorization = \"Bearer hunter2\" }\nproxy = \"a:1\""),
        &acme("ask = \"ftp://host/?token=hunter2\""),
        &acme("ask = \"ftp://me:hunter2@host/?token=hunter2\""),
    ]);
    // Nor is the value of a variable in any key.
    for text in [
        proxy("X-Api-Key = \"${OSIER_TEST_KEY}\""),
        route("proxy = \"${OSIER_TEST_KEY}\""),
    ] {
        let (_, printed) = check_with(&text, |command| {
            command.env("OSIER_TEST_KEY", "hunter2$x");
        });
        assert!(printed.contains("site.toml:3:"), "{printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

/// Keys of every kind. `@` stands for a value.
const KEYS: &str = "
user = @
group = @
landlock = @
workers = @
memory = @
drain = @
state = @
pid_file = @
ticket_keys = @
log = @
[error_log]
level = @
format = @
file = @
[admin]
address = @
[upgrade]
program = @
timeout = @
[acme]
issuer = @
ask = @
dns = @
challenges = @
orders_per_minute = @
[shared]
redis = @
prefix = @
[[listen]]
name = @
address = @
mode = @
proxy_protocol = @
max_connections = @
timeouts = { header = @ }
tls = { min_version = @, client = @, client_ca = @, client_crl = @ }
real_ip = { from = @, header = @ }
[[listen]]
address = \"127.0.0.1:81\"
head = { fields = @ }
[[site]]
host = @
listen = @
tls = { cert = @, key = @ }
redirect_https = @
hsts = { max_age = @ }
error_pages = { 404 = @ }
allow = @
deny = @
headers = { X-A = @ }
request_headers = { X-A = @ }
cors = { origins = @, methods = @, headers = @, expose = @, max_age = @ }
auth = { realm = @, file = @, users = { a = @ } }
rate = { requests = @, per = @ }
limits = { body = @, time = @ }
slow = @
compress = { min = @, codings = @ }
trace = { incoming = @ }
server_timing = @
[site.log]
format = @
syslog = { to = @, facility = @, tag = @ }
[[site.route]]
path = @
glob = @
methods = @
policy = @
files = { root = @, index = @, cache = @, symlinks = @ }
[[site.route]]
log = { file = @, fields = @ }
queue = { running = @, wait = @ }
jwt = { keys = @, algorithms = @, required = @, cookie = @, leeway = @, claims = { iss = @ }, pass = { sub = @ } }
redirect = { to = @, status = @ }
[[site.route]]
forward_auth = { to = @, path = @, request_headers = @, host = @, timeout = @ }
respond = { status = @, body = @, content_type = @ }
[[site.route]]
cache = { disk = @, memory = @, default_ttl = @, skip_cookies = @, purge = @ }
proxy = { to = @, host = @, balance = @, sticky = @, internal_root = @, internal_path = @, trust = @, health = { path = @, host = @, every = @ } }
[[site.route]]
proxy = { to = [{ address = @, id = @, weight = @ }], sni = @, ca = @, cert = @, key = @, keep = @, balance = { hash = { header = @ } } }
[[site.route]]
fastcgi = { root = @, to = @, index = @, suffix = @, front = @, application_root = @, params = { A = @ }, hide = @, cache = @ }
[[site.route]]
chat = { redis = @, channel = @, origins = @, ca = @, message = @ }
[[site.route]]
rewrite = { pattern = @, to = @, query = @, if = [{ of = @, name = @, is = @, not = @ }, { of = \"path\", matches = @ }] }
[[site.route]]
rewrite = [{ pattern = @, redirect = @ }]
";

/// Lines of a route that are looked at further if nothing else is wrong.
const ALONE: [&str; 22] = [
    "files = @",
    "files = \"www\"\nheaders = { X-A = @ }",
    "files = \"www\"\npath = @",
    "files = { root = \"www\", cache = @ }",
    "respond = { body = @ }",
    "respond = @",
    "redirect = @",
    "redirect = { to = @ }",
    "proxy = @",
    "proxy = { to = \"a:1\", host = @ }",
    "proxy = { to = \"https://a\", sni = @ }",
    "proxy = { to = \"https://a\", ca = @ }",
    "proxy = { to = \"a:1\", internal_path = @ }",
    "fastcgi = { root = \"www\", to = @ }",
    "respond = 204\nforward_auth = @",
    "respond = 204\nforward_auth = { to = \"a:1\", path = @ }",
    "respond = 204\nauth = { file = @ }",
    "respond = 204\nauth = { realm = @, users = { a = \"$2y$04$x\" } }",
    "respond = 204\njwt = { keys = @ }",
    "rewrite = { pattern = \"^/x$\", to = @ }",
    "rewrite = { pattern = @, to = \"/$a\" }",
    "rewrite = { pattern = \"x\", to = \"/\", if = [{ of = \"host\", is = @ }, { of = \"client\", is = @ }, { of = \"file\", name = @ }] }",
];

/// Secrets, each with what breaks some kind of value.
const VALUES: [&str; 15] = [
    "hunter2",
    "hunter2$x",
    "$hunter2",
    "/hunter2",
    "/a/hunter2/",
    "http://hunter2/a b",
    "http://unix:/hunter2:/",
    "https://u@hunter2:x/",
    "unix:hunter2",
    "Hunter2.example.",
    "hunter2:99999",
    "hunter2.example/path",
    "10.0.0.0/hunter2",
    "(hunter2[\"'\\",
    "{hunter2} *.hunter2.*",
];

#[test]
fn no_message_shows_the_value_of_a_variable() {
    let says_nothing = |text: &str, value: &str| {
        let text = text.replace('@', "\"${OSIER_TEST_KEY}\"");
        let (_, printed) = check_with(&text, |command| {
            command.env("OSIER_TEST_KEY", value);
        });
        assert!(
            !printed.to_ascii_lowercase().contains("hunter2"),
            "{value}\n{text}\n{printed}"
        );
        printed
    };
    for value in VALUES {
        let printed = says_nothing(KEYS, value);
        assert!(printed.lines().count() > 100, "{value}\n{printed}");
        for text in ALONE {
            says_nothing(&route(text), value);
        }
        says_nothing(&format!("include = @\n{}", route("respond = 204")), value);
        says_nothing(&format!("[[listen]]\naddress = @\n{}", route("respond = 204")), value);
        says_nothing(&format!("[[site]]\nhost = @\n{}", &route("respond = 204")[9..]), value);
    }
    // The message says which variable it is.
    let printed = says_nothing(&route("proxy = @"), "a:hunter2");
    assert!(printed.contains("3:9: 'proxy': '…' is not a port"), "{printed}");
    let printed = says_nothing(&route("files = @"), "/hunter2");
    assert!(
        printed.contains("there is no folder '${OSIER_TEST_KEY}'; requests get 503"),
        "{printed}"
    );
}

#[test]
fn a_value_that_nobody_reads_is_not_shown() {
    hides(&[
        &route("respond = 204\nauth = { user = { ada = \"hunter2\" } }"),
        &route("respond = 204\nauth.user.ada = \"hunter2\""),
        &acme("issuer = { directory = \"zerossl\", binding = { id = \"x\", sercet = \"hunter2\" } }"),
        &route("files = \"www\"\nchat = { rdis = \"hunter2\" }"),
        &route("fastcgi = [{ prms = { A = \"hunter2\" } }]"),
        "atuh = { users = { ada = \"hunter2\" } }\n",
    ]);
    let folder = Folder::new();
    folder.write("site.toml", b"[[site]]\nauth = { users = { ada\xff = \"hunter2\" } }\n");
    let output = osier()
        .args(["check", "site.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("2:23: this is not UTF-8") && said.contains("  2 | auth = ***"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
}
