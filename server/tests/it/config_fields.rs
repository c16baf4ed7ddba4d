//! `request_headers`: a backend gets the fields that the configuration sets, and everything else sees those of the client.

use crate::config_check::run;
use crate::metrics::{admin_of, page_of};
use crate::support::sites::{Sites, send, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A backend whose responses hold the head and the body of the request, and how many requests there were. They may be stored for
/// paths below `/stored`. Ends with the test's process.
fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || answer(stream));
        }
    });
    (address, count)
}

fn answer(mut stream: TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    let mut text = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    text.push_str(std::str::from_utf8(&body).unwrap());
    let store = match text.starts_with("get /stored") {
        true => "Cache-Control: max-age=600\r\nVary: Accept-Encoding\r\n",
        false => "",
    };
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{store}Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
}

/// The lines of the echoed fields with this name, without regard to `_` and `-`.
fn values<'e>(echoed: &'e str, name: &str) -> Vec<&'e str> {
    let fields = echoed.lines().filter_map(|line| line.split_once(": "));
    let named = fields.filter(|(known, _)| known.replace('_', "-") == name);
    named.map(|(_, value)| value).collect()
}

#[test]
fn a_backend_gets_the_fields_that_the_site_and_the_route_set() {
    let (backend, _) = echo();
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\nrequest_headers = {{ X-Env = \"site\", X-Site = \"yes\", X-Gone = false }}\n\
         [[site.route]]\npath = \"/fixed\"\nrespond = {{ body = \"$header_x_env\" }}\n\
         [[site.route]]\npath = \"/plain\"\nproxy = \"{backend}\"\n\
         [[site.route]]\nproxy = \"{backend}\"\n\
         [site.route.request_headers]\nX-Env = \"production\"\nX-Real-IP = \"$client\"\nX-Agent = \"$header_user_agent\"\n\
         X-Two = [\"a\", \"b\"]\nX-Path = \"$method $path\"\nX-Absent = \"$header_x_none\"\nCookie = false\n"
    ));
    let forged = [
        "X_Env: forged",
        "x-env: forged",
        "X-Real-IP: 10.9.9.9",
        "X-Gone: 1",
        "Cookie: a=1",
        "User-Agent: test",
        "X-Absent: forged",
        "X-Kept: 1",
    ];
    let reply = sites.ask("GET", "x", "/a%20b", &forged);
    let echoed = reply.text();
    for (name, expected) in [
        ("x-env", &["production"][..]),
        ("x-site", &["yes"]),
        ("x-gone", &[]),
        ("x-real-ip", &["127.0.0.1"]),
        ("x-agent", &["test"]),
        ("x-two", &["a", "b"]),
        ("x-path", &["get /a b"]),
        ("x-absent", &[]),
        ("cookie", &[]),
        ("x-kept", &["1"]),
    ] {
        assert_eq!(values(echoed, name), expected, "{name}: {echoed}");
    }
    let reply = sites.ask("GET", "x", "/plain", &forged);
    assert_eq!(values(reply.text(), "x-env"), ["site"]);
    assert_eq!(values(reply.text(), "cookie"), ["a=1"]);
    // Other handlers see what the client has sent.
    assert_eq!(sites.ask("GET", "x", "/fixed", &["X-Env: own"]).text(), "own");
    let reply = sites.ask("POST", "x", "/", &["X-Env: forged", "Content-Length: 4", "", "body"]);
    assert_eq!(values(reply.text(), "x-env"), ["production"]);
}

#[test]
fn the_cache_sees_the_new_fields_and_compression_those_of_the_client() {
    let (backend, count) = echo();
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\ncache = true\ncompress = {{ min = 0 }}\ncors = {{ origins = \"https://a.example\" }}\n\
         request_headers = {{ Accept-Encoding = false, Origin = false }}\n\
         [[site.route]]\nproxy = \"{backend}\"\n"
    ));
    let plain = sites.ask("GET", "x", "/stored", &["Origin: https://a.example"]);
    assert_eq!(plain.field("content-encoding"), None);
    assert_eq!(plain.field("access-control-allow-origin"), Some("https://a.example"));
    assert!(values(plain.text(), "origin").is_empty());
    let packed = sites.ask("GET", "x", "/stored", &["Accept-Encoding: gzip"]);
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert_eq!(count.load(Ordering::SeqCst), 1, "one response is for both");
}

#[test]
fn a_slow_body_holds_no_stack_and_its_response_sees_the_fields_of_the_client() {
    let (backend, _) = echo();
    let sites = Sites::start(&format!(
        "[admin]\naddress = \"127.0.0.1:0\"\n[[site]]\ndefault = true\ncompress = {{ min = 0 }}\n\
         request_headers = {{ Accept-Encoding = false, X-Env = \"$path $header_x_a\", X-A = false }}\n\
         [[site.route]]\nproxy = \"{backend}\"\n"
    ));
    let upload = |field: &str| {
        let mut client = sites.connect();
        send(&mut client, "POST", "x", "/a", &["Content-Length: 5", "X-A: b", field]);
        client.send_raw(b"h");
        client
    };
    let (mut plain, mut packed) = (upload("Y: z"), upload("Accept-Encoding: gzip"));
    let admin = admin_of(&sites);
    let resting = || {
        let page = page_of(admin);
        let of = |worker| page.value("osier_worker_resting_connections", &[("worker", worker)]);
        ["0", "1"].into_iter().filter_map(of).sum::<f64>()
    };
    wait_for("both rest", || resting() >= 2.0);
    plain.send_raw(b"ello");
    let reply = plain.receive("POST");
    assert_eq!(values(reply.text(), "x-env"), ["/a b"]);
    assert!(values(reply.text(), "x-a").is_empty() && reply.text().ends_with("hello"));
    packed.send_raw(b"ello");
    assert_eq!(packed.receive("POST").field("content-encoding"), Some("gzip"));
}

#[test]
fn mistakes_have_their_place_and_their_remedy() {
    run(&[(
        "@site\nrequest_headers = { X-Env = true }\n[[site.route]]\nproxy = \"127.0.0.1:1\"\n\
             [site.route.request_headers]\n\"X Env\" = \"1\"\nHost = \"a\"\nX_Forwarded_For = false\nte = \"x\"\n\
             Transfer_Encoding = false\nAccept-Encoding = \"\"\nX-A = \"a\\nb\"\nX-B = [\"ok\", \"$pth\"]\nX-C = []\n\
             [[site.route]]\npath = \"/files\"\nrequest_headers = { X = \"1\" }\nfiles = \"www\"\n",
        &[
            "3:29: 'X-Env' must be a string, a list of strings, or false, not true",
            "7:1: 'X Env' is not a field name; write letters, digits and '-', \"X-Env\" for example",
            "8:1: 'Host' cannot be changed by 'request_headers': it is 'host' of 'proxy', and 'server_name' of 'fastcgi'",
            "9:1: 'X_Forwarded_For' cannot be changed by 'request_headers': 'forwarded' and 'trust' of 'proxy' write it, and 'https' of 'fastcgi' says that clients use https",
            "10:1: 'te' cannot be changed by 'request_headers': it belongs to the connection, so the server writes it; remove this key",
            "11:1: 'Transfer_Encoding' cannot be changed by 'request_headers': it belongs to the connection, so the server writes it; remove this key",
            "12:19: 'Accept-Encoding': it is empty; write false to remove the field",
            "13:7: 'X-A': a value has no control characters; write it on one line",
            "14:14: 'X-B': a '$' begins $method, $host, $path, $query, $client, $user or $header_NAME; a dollar sign is written '$$$$' in a configuration file",
            "15:7: 'X-C' must be a string, a list of strings, or false, not a list",
            "18:1: 'request_headers' has no effect here: it is for 'proxy' and 'fastcgi'; 'headers' sets fields of responses",
        ],
    )]);
}
