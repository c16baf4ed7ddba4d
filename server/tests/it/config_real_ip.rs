//! `real_ip`: the client behind trusted proxies, as every part of the server sees it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::support::sites::{Sites, wait_for};
use testkit::php::{Fpm, Listen};

/// A backend that answers every request with its head.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut piece) = (Vec::new(), [0; 1024]);
            while !head.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut piece).unwrap();
                head.extend_from_slice(&piece[..count]);
            }
            let length = head.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            );
            let _ = stream.write_all(&head);
        }
    });
    address
}

/// The hash of some password.
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";

fn file(of_listener: &str, of_site: &str, backend: &str) -> String {
    format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\n{of_listener}\n[[site]]\ndefault = true\n{of_site}\nlog = {{ file = \"log\" }}\n\
         [[site.route]]\npath = \"/who\"\nrespond = {{ body = \"$client\" }}\n\
         [[site.route]]\npath = \"/denied\"\ndeny = \"192.0.2.66\"\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/allowed\"\nallow = \"192.0.2.0/24\"\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/rated\"\nrate = {{ requests = 1, per = \"1h\" }}\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/secure\"\nrewrite = [{{ pattern = \"^/secure$\", to = \"/who\", if = [{{ of = \"https\" }}] }}]\n\
         [[site.route]]\npath = \"/secure\"\nrespond = \"http\"\n\
         [[site.route]]\npath = \"/secret\"\nauth = {{ users = {{ ada = \"{HASH}\" }} }}\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/trusting\"\nproxy = {{ to = \"{backend}\", trust = \"127.0.0.1\" }}\n\
         [[site.route]]\nproxy = \"{backend}\"\n"
    )
}

const TRUSTED: &str = "real_ip = { from = [\"127.0.0.1\", \"10.0.0.0/8\"] }";

fn ask(sites: &Sites, path: &str, fields: &[&str]) -> (u16, String) {
    let reply = sites.ask("GET", "x", path, fields);
    (reply.status, reply.text().to_string())
}

#[test]
fn rates_lists_logs_and_templates_see_the_client() {
    let sites = Sites::start(&file(TRUSTED, "", "127.0.0.1:1"));
    let of = |hops: &str| format!("X-Forwarded-For: {hops}");
    for (hops, client) in [
        ("192.0.2.1", "192.0.2.1"),
        ("6.6.6.6, 192.0.2.1", "192.0.2.1"),
        ("6.6.6.6, 192.0.2.1, 10.1.2.3", "192.0.2.1"),
        ("unknown", "127.0.0.1"),
    ] {
        assert_eq!(ask(&sites, "/who", &[&of(hops)]), (200, client.into()), "{hops}");
    }
    assert_eq!(ask(&sites, "/denied", &[&of("192.0.2.66")]).0, 403);
    assert_eq!(ask(&sites, "/denied", &[&of("192.0.2.66, 192.0.2.1")]).0, 200);
    assert_eq!(ask(&sites, "/allowed", &[&of("192.0.2.1")]).0, 200);
    assert_eq!(ask(&sites, "/allowed", &[]).0, 403);
    let statuses = ["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(|client| ask(&sites, "/rated", &[&of(client)]).0);
    assert_eq!(statuses, [200, 200, 429]);
    // "ada:wrong"
    let wrong = "Authorization: Basic YWRhOndyb25n";
    assert_eq!(ask(&sites, "/secret", &[&of("6.6.6.6, 192.0.2.1"), wrong]).0, 401);
    let said = sites.wait_until_said("authentication failed: client 192.0.2.1, user \"ada\"");
    let line = said
        .lines()
        .find(|line| line.contains("authentication failed"))
        .unwrap();
    assert!(line.contains(" warning site=default client=192.0.2.1 id="), "{line}");
    let https = "X-Forwarded-Proto: https";
    assert_eq!(ask(&sites, "/secure", &[&of("192.0.2.1"), https]).1, "192.0.2.1");
    assert_eq!(ask(&sites, "/secure", &[&of("192.0.2.1")]).1, "http");
    let log = || std::fs::read_to_string(sites.folder.join("log")).unwrap_or_default();
    wait_for("the log", || log().contains("/secure"));
    assert!(
        log()
            .lines()
            .any(|line| line.starts_with("192.0.2.66 - ") && line.contains("/denied")),
        "{}",
        log()
    );
}

#[test]
fn a_site_replaces_its_listener_and_strangers_are_not_believed() {
    let field = [
        "X-Forwarded-For: 192.0.2.1",
        "Forwarded: for=192.0.2.2;proto=https",
        "X-Real-IP: 192.0.2.3",
    ];
    for (of_listener, of_site, client) in [
        ("", "", "127.0.0.1"),
        ("real_ip = { from = \"10.0.0.0/8\" }", "", "127.0.0.1"),
        (TRUSTED, "real_ip = { from = \"10.0.0.0/8\" }", "127.0.0.1"),
        ("", TRUSTED, "192.0.2.1"),
        (
            TRUSTED,
            "real_ip = { from = \"127.0.0.1\", header = \"Forwarded\" }",
            "192.0.2.2",
        ),
        (
            "real_ip = { from = \"127.0.0.1\", header = \"X-Real-IP\" }",
            "",
            "192.0.2.3",
        ),
    ] {
        let sites = Sites::start(&file(of_listener, of_site, "127.0.0.1:1"));
        assert_eq!(
            ask(&sites, "/who", &field),
            (200, client.into()),
            "{of_listener} {of_site}"
        );
        assert_eq!(
            ask(&sites, "/secure", &field).1 == "http",
            client != "192.0.2.2",
            "{of_site}"
        );
    }
    // A reload changes it for connections that are open.
    let sites = Sites::start(&file("", "", "127.0.0.1:1"));
    let mut client = sites.connect();
    let mut who = || {
        crate::support::sites::send(&mut client, "GET", "x", "/who", &field);
        client.receive("GET").text().to_string()
    };
    assert_eq!(who(), "127.0.0.1");
    assert!(sites.reload(&file("", TRUSTED, "127.0.0.1:1")).contains("reloaded"));
    assert_eq!(who(), "192.0.2.1");
}

#[test]
fn backends_are_told_one_story() {
    let backend = echo();
    let sites = Sites::start(&file(TRUSTED, "", &backend));
    let told = |path: &str, fields: &[&str]| {
        let (_, head) = ask(&sites, path, fields);
        let lines = head
            .lines()
            .filter(|line| line.to_ascii_lowercase().contains("forwarded"));
        let mut lines: Vec<String> = lines.map(str::to_ascii_lowercase).collect();
        lines.retain(|line| !line.starts_with("x-forwarded-host"));
        lines.sort();
        lines
    };
    let client = ["X-Forwarded-For: 6.6.6.6, 192.0.2.1", "X-Forwarded-Proto: https"];
    assert_eq!(
        told("/", &client),
        [
            "forwarded: for=192.0.2.1;host=\"x\";proto=https",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-proto: https"
        ]
    );
    assert_eq!(
        told("/", &[]),
        [
            "forwarded: for=127.0.0.1;host=\"x\";proto=http",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-proto: http"
        ]
    );
    // A trusted client's own fields are passed on, and what it has left out agrees with them.
    assert_eq!(
        told("/trusting", &client),
        [
            "forwarded: for=6.6.6.6, for=192.0.2.1, for=127.0.0.1;host=\"x\";proto=https",
            "x-forwarded-for: 6.6.6.6, 192.0.2.1, 127.0.0.1",
            "x-forwarded-proto: https"
        ]
    );
    assert_eq!(
        told("/trusting", &["Forwarded: for=\"[2001:db8::1]\";proto=https"]),
        [
            "forwarded: for=\"[2001:db8::1]\";proto=https, for=127.0.0.1;host=\"x\";proto=https",
            "x-forwarded-for: 2001:db8::1, 127.0.0.1",
            "x-forwarded-proto: https"
        ]
    );
}

#[test]
fn scripts_see_the_client_and_its_scheme() {
    let folder = Sites::folder();
    folder.write(
        "app/who.php",
        "<?php echo $_SERVER['REMOTE_ADDR'], ' ', $_SERVER['REQUEST_SCHEME'], ' ', $_SERVER['HTTPS'] ?? '-', ' ', isset($_SERVER['REMOTE_PORT']) ? 'port' : '-';",
    );
    let Some(fpm) = Fpm::start(folder.path(), Listen::Unix, "pm.max_children = 2\n") else {
        return;
    };
    let file = format!(
        "[[site]]\ndefault = true\n{TRUSTED}\n[[site.route]]\nfastcgi = {{ to = \"{}\", root = \"app\" }}\n",
        fpm.address
    );
    let sites = Sites::start_in(folder, &file);
    let field = "X-Forwarded-For: 2001:db8::7";
    assert_eq!(ask(&sites, "/who.php", &[]).1, "127.0.0.1 http - port");
    assert_eq!(ask(&sites, "/who.php", &[field]).1, "2001:db8::7 http - -");
    let https = "X-Forwarded-Proto: https";
    assert_eq!(ask(&sites, "/who.php", &[field, https]).1, "2001:db8::7 https on -");
    assert_eq!(ask(&sites, "/who.php", &[]).1, "127.0.0.1 http - port");
}
