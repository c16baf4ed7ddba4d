//! Balancing as a configuration has it: how requests are spread, and what survives a reload and a lost backend.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use testkit::nobody;

use crate::support::sites::{Sites, wait_for};

/// An application that answers by its name. Ends with the test's process.
fn named(name: &'static str) -> SocketAddr {
    named_at("127.0.0.1:0".parse().unwrap(), name)
}

fn named_at(address: SocketAddr, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, name));
        }
    });
    address
}

fn serve(mut stream: TcpStream, name: &str) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while let Ok(1) = stream.read(&mut byte) {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}",
                name.len()
            );
        }
    }
}

fn file(to: &str, keys: &str, more: &str) -> String {
    format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/other\"\nrespond = \"other{more}\"\n[[site.route]]\n\
         proxy = {{ to = [{to}], {keys} }}\n"
    )
}

fn asked(sites: &Sites, count: usize) -> String {
    (0..count).map(|_| sites.get("x", "/").text().to_owned()).collect()
}

#[test]
fn requests_are_spread_by_weight() {
    let (a, b) = (named("a"), named("b"));
    let to = format!("{{ address = \"{a}\", weight = 3 }}, \"http://{b}\"");
    for balance in ["round_robin", "least_connections"] {
        // Each worker takes turns by itself.
        let sites = Sites::start(&format!(
            "workers = 1\n{}",
            file(&to, &format!("balance = \"{balance}\""), "")
        ));
        assert_eq!(asked(&sites, 8), "aabaaaba", "{balance}");
    }
}

#[test]
fn a_backup_steps_in_and_a_backend_comes_back() {
    let (lost, spare) = (nobody(), named("b"));
    let to = format!("\"{lost}\", {{ address = \"{spare}\", backup = true }}");
    let sites = Sites::start(&file(
        &to,
        "ejection = { failures = 2, time = \"50ms\", max_time = \"50ms\" }",
        "",
    ));
    assert_eq!(asked(&sites, 4), "bbbb");
    sites.wait_until_said("is out for 50ms");
    named_at(lost, "a");
    wait_for("the primary", || asked(&sites, 1) == "a");
    assert_eq!(asked(&sites, 10), "a".repeat(10));
}

#[test]
fn a_sticky_client_stays_at_its_backend_across_reloads() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let before = file(&format!("\"{a}\", \"{b}\""), "sticky = { cookie = \"route\" }", "");
    let sites = Sites::start(&before);
    let first = sites.get("x", "/");
    let set = first.field("set-cookie").unwrap().to_owned();
    assert!(
        set.starts_with("route=") && set.ends_with("; HttpOnly; SameSite=Lax; Path=/"),
        "{set}"
    );
    let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
    let stays = || {
        (0..6).all(|_| {
            let reply = sites.ask("GET", "x", "/", &[&cookie]);
            reply.text() == first.text() && reply.field("set-cookie").is_none()
        })
    };
    assert!(stays());
    // A reload of another route, and one of the backends themselves.
    let other = file(&format!("\"{a}\", \"{b}\""), "sticky = { cookie = \"route\" }", "2");
    let more = file(
        &format!("\"{c}\", {{ address = \"{b}\", weight = 2 }}, \"{a}\""),
        "sticky = \"route\", balance = \"round_robin\"",
        "3",
    );
    for (text, answer) in [(other, "other2"), (more, "other3")] {
        assert!(sites.reload(&text).contains("reloaded"));
        wait_for("the reload", || sites.get("x", "/other").text() == answer);
        assert!(stays(), "{answer}");
    }
}

#[test]
fn a_hash_keeps_keys_at_their_backends() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let sites = Sites::start(&file(
        &format!("\"{a}\", \"{b}\", \"{c}\""),
        "balance = { hash = { header = \"X-User\" } }",
        "",
    ));
    let ask = |user: usize| {
        let field = format!("X-User: {user}");
        sites.ask("GET", "x", "/", &[&field]).text().to_owned()
    };
    let owners: Vec<String> = (0..30).map(ask).collect();
    assert_eq!((0..30).map(ask).collect::<Vec<_>>(), owners);
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|name| owners.iter().any(|owner| owner == name))
    );
    let sites = Sites::start(&file(
        &format!("\"{a}\", \"{b}\", \"{c}\""),
        "balance = { hash = \"client\" }",
        "",
    ));
    let first = asked(&sites, 1);
    assert_eq!(asked(&sites, 12), first.repeat(12));
}
