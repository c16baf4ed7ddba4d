//! The policies around a handler: those of a site and of a route, policies with a name, and the field `Server`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use testkit::eventually;

use crate::support::Client;
use crate::support::sites::{Sites, send, text};

#[test]
fn a_named_policy_lies_between_a_route_and_its_site() {
    let sites = Sites::start(
        "[policy.inside]\nallow = \"10.0.0.0/8\"\nheaders = { X-A = \"policy\", X-B = \"policy\", X-D = \"policy\" }\n\
         limits = { body = 3 }\n[policy.open]\nallow = \"127.0.0.1\"\nheaders = { X-C = \"open\", X-D = \"open\" }\n\
         [policy.slow]\nrate = { requests = 1, per = \"1h\" }\n\
         [[site]]\ndefault = true\nheaders = { X-A = \"site\", X-E = \"site\" }\nlimits = { body = 1 }\n\
         [[site.route]]\npath = \"/inside\"\npolicy = \"inside\"\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/own\"\npolicy = \"inside\"\nallow = \"127.0.0.1\"\nheaders = { X-B = \"own\", X-D = false }\nrespond = \"own\"\n\
         [[site.route]]\npath = \"/both\"\npolicy = [\"open\", \"inside\"]\nrespond = \"both\"\n\
         [[site.route]]\npath = \"/slow\"\npolicy = \"slow\"\nrespond = \"1\"\n\
         [[site.route]]\npath = \"/other\"\npolicy = \"slow\"\nrespond = \"1\"\n\
         [[site.route]]\nrespond = \"none\"\n\
         [[site]]\nhost = \"inside.example\"\npolicy = \"inside\"\n[[site.route]]\nrespond = \"x\"\n",
    );
    let fields = |path: &str| {
        let reply = sites.get("x", path);
        let fields = ["x-a", "x-b", "x-c", "x-d", "x-e"].map(|name| reply.field(name).unwrap_or("-").to_string());
        (reply.status, fields.join(" "))
    };
    assert_eq!(fields("/inside"), (403, "policy policy - policy site".into()));
    assert_eq!(fields("/own"), (200, "policy own - - site".into()));
    assert_eq!(fields("/both"), (200, "policy policy open open site".into()));
    assert_eq!(fields("/"), (200, "site - - - site".into()));
    assert_eq!(sites.get("inside.example", "/").status, 403);
    // Each route counts by itself.
    assert_eq!(
        ["/slow", "/slow", "/other"].map(|path| sites.get("x", path).status),
        [200, 429, 200]
    );
    let bodies = ["/own", "/"].map(|path| {
        sites
            .ask("POST", "x", path, &["Content-Length: 2", "Connection: close"])
            .status
    });
    assert_eq!(bodies[1], 413);
    assert_ne!(bodies[0], 413);
}

#[test]
fn a_policy_that_is_not_there_is_a_mistake() {
    let folder = crate::support::Folder::new();
    folder.write(
        "site.toml",
        "[policy.inside]\nallow = \"::1\"\nfiles = \"x\"\n[[site]]\npolicy = \"insid\"\n[[site.route]]\npolicy = \"zzz\"\nrespond = 204\n",
    );
    let (_, said) = crate::support::check(&folder, &["site.toml"]);
    for line in [
        "site.toml:3:1: unknown key 'files' in [policy.inside]; known keys are allow, auth, cache, compress, cors, deny, forward_auth, headers, html_errors, jwt, limits, log, rate, request_headers, request_id, server_timing, slow, trace, types",
        "site.toml:5:10: there is no policy 'insid'; did you mean 'inside'?",
        "site.toml:7:10: there is no policy 'zzz'; make a table [policy.zzz]",
    ] {
        assert!(said.lines().any(|shown| shown == line), "{line}\n{said}");
    }
}

#[test]
fn the_server_field_is_set_or_taken_away() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in backend.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nServer: backend/1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/off\"\nheaders = {{ Server = false }}\nproxy = \"{address}\"\n\
         [[site.route]]\npath = \"/on\"\nheaders = {{ Server = \"mine\" }}\nproxy = \"{address}\"\n\
         [[site.route]]\npath = \"/text\"\nheaders = {{ Server = \"mine\" }}\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/plain\"\nrespond = \"x\"\n[[site.route]]\nproxy = \"{address}\"\n"
    ));
    for (path, expected) in [
        ("/off", None),
        ("/on", Some("mine")),
        ("/text", Some("mine")),
        ("/plain", None),
        ("/", Some("backend/1")),
    ] {
        let reply = sites.get("x", path);
        assert_eq!((reply.status, reply.field("server")), (200, expected), "{path}");
        assert_eq!(
            reply.fields.iter().filter(|(name, _)| name == "server").count(),
            usize::from(expected.is_some())
        );
    }
}

/// A client on another address of loopback than all others.
fn from(host: &str, to: SocketAddr) -> Client {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let from: SocketAddr = format!("{host}:0").parse().unwrap();
    rustix::net::bind(&socket, &from).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    Client::over(TcpStream::from(socket))
}

#[test]
fn a_queue_bounds_what_runs_and_a_client_has_its_part_of_the_line() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = backend.local_addr().unwrap();
    let route = |path: &str, wait: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\nproxy = \"{to}\"\n\
             rate = {{ requests = 1000, burst = 1000, concurrent = 3 }}\n\
             limits = {{ queue = {{ running = 1, wait = \"{wait}\" }} }}\n"
        )
    };
    let file = format!(
        "[[site]]\ndefault = true\n{}{}",
        route("/short", "50ms"),
        route("/long", "1m")
    );
    let sites = Sites::start(&file);
    let ask = |host: &str, path: &str| {
        let mut client = from(host, sites.addresses[0]);
        send(&mut client, "GET", "x", path, &["Connection: close"]);
        client
    };
    // Accepts a request of the server, and answers it.
    let accept = || {
        let (mut stream, _) = backend.accept().unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream
    };
    let answer = |mut stream: TcpStream| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone";
        stream.write_all(answer).unwrap();
    };

    let mut runs = ask("127.0.0.2", "/short");
    let running = accept();
    let refused = sites.get("x", "/short");
    assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")));
    answer(running);
    assert_eq!(runs.receive("GET").text(), "done");

    // Three are one client's part, however many may wait.
    let greedy: Vec<Client> = (0..5).map(|_| ask("127.0.0.2", "/long")).collect();
    // Before any of them is answered, all have come.
    eventually("the refusal of two", || {
        greedy.iter().filter(|client| client.has_unread()).count() == 2
    });
    let mut quiet = ask("127.0.0.3", "/long");
    (0..4).for_each(|_| answer(accept()));
    assert_eq!(quiet.receive("GET").text(), "done");
    let mut statuses: Vec<u16> = greedy
        .into_iter()
        .map(|mut client| client.receive("GET").status)
        .collect();
    statuses.sort();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[test]
fn a_body_is_received_without_a_place_of_the_queue() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = backend.local_addr().unwrap();
    let route = |path: &str, more: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\nproxy = \"{to}\"\n{more}\n\
             limits.queue = {{ running = 1, wait = \"50ms\" }}\n"
        )
    };
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\n{}{}{}",
        route("/plain", ""),
        route("/timed", "limits.time = \"1m\""),
        route("/cached", "cache = true"),
    ));
    let accept = || {
        let (stream, _) = backend.accept().unwrap();
        let mut backend = Client::over(stream);
        backend.receive_request().unwrap();
        backend
    };
    let answer = |mut backend: Client| {
        backend.send_raw(
            b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone",
        );
    };
    for path in ["/plain", "/timed", "/cached"] {
        for method in ["POST", "GET", "PURGE"] {
            let upload = || {
                let fields = ["Content-Length: 4", "Expect: 100-continue", "Connection: close"];
                let mut client = sites.connect();
                send(&mut client, method, "x", path, &fields);
                // The server waits for the body.
                assert_eq!(client.receive_head().status, 100);
                client
            };
            let (mut first, mut second) = (upload(), upload());
            let mut other = sites.connect();
            send(&mut other, "GET", "x", path, &["Connection: close"]);
            let running = accept();
            // The place is taken now, also for those whose body is here.
            first.send_raw(b"body");
            assert_eq!(first.receive(method).status, 503, "{method} {path}");
            answer(running);
            assert_eq!(other.receive("GET").text(), "done", "{method} {path}");
            second.send_raw(b"body");
            answer(accept());
            assert_eq!(second.receive(method).text(), "done", "{method} {path}");
        }
    }
}

#[test]
fn a_queue_goes_on_over_a_reload() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = backend.local_addr().unwrap();
    let file = format!(
        "[[site]]\ndefault = true\n[[site.route]]\nproxy = \"{to}\"\nlimits = {{ queue = {{ running = 1, wait = \"50ms\" }} }}\n"
    );
    let sites = Sites::start(&file);
    let mut running = sites.connect();
    send(&mut running, "GET", "x", "/", &["Connection: close"]);
    let (mut stream, _) = backend.accept().unwrap();
    for _ in 0..2 {
        assert!(sites.hang_up().contains("reloaded"), "{}", sites.said());
        assert_eq!(sites.get("x", "/").status, 503);
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone";
    stream.write_all(answer).unwrap();
    assert_eq!(running.receive("GET").text(), "done");
}

#[test]
fn a_new_site_takes_the_rates_of_no_other_site() {
    let site = |host: &str| {
        format!(
            "[[site]]\nhost = \"{host}\"\nrate = {{ requests = 1, per = \"1h\", burst = 2 }}\n[[site.route]]\nrespond = \"in\"\n"
        )
    };
    let sites = Sites::start(&site("b.example"));
    let statuses = |host: &str| [(); 3].map(|()| sites.get(host, "/").status);
    assert_eq!(statuses("b.example"), [200, 200, 429]);
    sites.reload(&(site("a.example") + &site("b.example")));
    assert_eq!(statuses("b.example"), [429; 3]);
    assert_eq!(statuses("a.example"), [200, 200, 429]);
}

#[test]
fn what_is_still_being_sent_counts_as_at_the_same_time() {
    let folder = Sites::folder();
    folder.write("www/large.bin", crate::support::pattern(32 << 20));
    let sites = Sites::start_in(
        folder,
        "[[site]]\n[[site.route]]\nrate = { requests = 1000, per = \"1s\", burst = 1000, concurrent = 1 }\nfiles = \"www\"\n",
    );
    let mut slow = sites.connect();
    send(&mut slow, "GET", "x", "/large.bin", &[]);
    assert_eq!(slow.receive_head().status, 200);
    assert_eq!(sites.get("x", "/a.txt").status, 429);
    let why = "GET /a.txt was refused with 429: the client has as many in-flight requests as 'rate.concurrent' allows";
    sites.wait_until_said(why);
    drop(slow);
    crate::support::sites::wait_for("the end of the first", || sites.get("x", "/a.txt").status == 200);
    assert_eq!(sites.get("x", "/a.txt").status, 200);
}

#[test]
fn fields_and_error_pages() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Frame-Options = \"DENY\", Link = [\"</a>\", \"</b>\"] }\n\
         error_pages = { 404 = \"404.html\", 403 = \"404.html\", 400 = \"404.html\" }\n\
         [[site.route]]\npath = \"/no\"\ndeny = [\"127.0.0.0/8\"]\nrespond = \"never\"\n\
         [[site.route]]\npath = \"/bare\"\nheaders = { Link = false, X-Route = \"1\" }\nrespond = \"bare\"\n\
         [[site.route]]\npath = \"/files\"\nfiles = { root = \"www\", strip = true }\n",
    );
    for target in ["/files/none", "/nowhere", "/no/x", "/%zz"] {
        let reply = sites.get("x", target);
        assert_eq!(reply.text(), "<h1>lost</h1>", "{target}");
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8"),
            "{target}"
        );
        assert_eq!(reply.field("x-frame-options"), Some("DENY"), "{target}");
    }
    assert_eq!(sites.get("x", "/nowhere").status, 404);
    assert_eq!(sites.get("x", "/no").status, 403);
    // A HEAD gets the head alone.
    let mut client = sites.connect();
    send(&mut client, "HEAD", "x", "/nowhere", &["Connection: close"]);
    assert_eq!(client.receive_head().field("content-length"), Some("13"));
    assert_eq!(client.receive_rest(), b"");
    let reply = sites.get("x", "/files/a.txt");
    let links = reply.fields.iter().filter(|(name, _)| name == "link").count();
    assert_eq!((reply.status, links), (200, 2));
    let reply = sites.get("x", "/bare");
    assert_eq!(
        (reply.field("x-route"), reply.field("x-frame-options")),
        (Some("1"), Some("DENY"))
    );
}

#[test]
fn fields_of_a_route_replace_those_of_its_site() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nheaders = { X-Both = \"site\", X-Site = \"1\", X-Gone = [\"1\", \"2\"], X-Back = false }\n\
         [[site.route]]\npath = \"/route\"\nheaders = { x-both = [\"a\", \"b\"], X-Gone = false, X-Back = \"1\" }\nrespond = \"x\"\n\
         [[site.route]]\nrespond = \"x\"\n",
    );
    let fields = |target| -> Vec<(String, String)> {
        let reply = sites.get("x", target);
        let ours = reply.fields.iter().filter(|(name, _)| name.starts_with("x-"));
        ours.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    };
    let expected = pairs(&[("x-site", "1"), ("x-both", "a"), ("x-both", "b"), ("x-back", "1")]);
    assert_eq!(fields("/route"), expected);
    let expected = pairs(&[("x-both", "site"), ("x-site", "1"), ("x-gone", "1"), ("x-gone", "2")]);
    assert_eq!(fields("/"), expected);
}

#[test]
fn addresses_rates_passwords_and_origins() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nallow = \"192.0.2.0/24\"\n\
         [[site.route]]\npath = \"/inherited\"\nrespond = \"x\"\n\
         [[site.route]]\npath = \"/open\"\nallow = [\"127.0.0.1\"]\nrespond = \"open\"\n\
         [[site.route]]\npath = \"/slow\"\nallow = [\"127.0.0.1\"]\nrate = { requests = 2, per = \"1h\" }\nrespond = \"slow\"\n\
         [[site.route]]\npath = \"/cors\"\nallow = [\"127.0.0.1\"]\ncors = { origins = \"https://a.example\", methods = \"PUT\" }\n\
         respond = \"cors\"\n",
    );
    assert_eq!(sites.get("x", "/inherited").status, 403);
    assert_eq!(sites.get("x", "/open").text(), "open");
    assert_eq!(sites.get("x", "/slow").status, 200);
    assert_eq!(sites.get("x", "/slow").status, 200);
    let reply = sites.get("x", "/slow");
    assert_eq!(reply.status, 429);
    assert!(reply.field("retry-after").is_some(), "{reply:?}");
    for why in [
        "GET /inherited was refused with 403: the address of the client is not allowed ('allow', 'deny')",
        "GET /slow was refused with 429: the client sends more requests than 'rate.requests' allows",
    ] {
        sites.wait_until_said(why);
    }
    let fields = ["Origin: https://a.example", "Access-Control-Request-Method: PUT"];
    let reply = sites.ask("OPTIONS", "x", "/cors", &fields);
    assert_eq!(
        (reply.status, reply.field("access-control-allow-origin")),
        (204, Some("https://a.example"))
    );
    let reply = sites.ask("GET", "x", "/cors", &fields[..1]);
    assert_eq!(
        (reply.text(), reply.field("access-control-allow-origin")),
        ("cors", Some("https://a.example"))
    );
    let reply = sites.ask("GET", "x", "/cors", &["Origin: https://b.example"]);
    assert_eq!(
        (reply.text(), reply.field("access-control-allow-origin")),
        ("cors", None)
    );
}

#[test]
fn bodies_have_the_bound_of_their_route() {
    let sites = Sites::start(
        "[[site]]\ndefault = true\nlimits = { body = 10 }\n\
         [[site.route]]\npath = \"/large\"\nlimits = { body = \"3MiB\" }\nrespond = \"large\"\n\
         [[site.route]]\nrespond = \"small\"\n",
    );
    for (target, length, status) in [
        ("/large", 3 << 20, 200),
        ("/large", (3 << 20) + 1, 413),
        ("/", 10, 200),
        ("/", 11, 413),
    ] {
        let mut client = sites.connect();
        send(
            &mut client,
            "POST",
            "x",
            target,
            &[&format!("Content-Length: {length}")],
        );
        let reply = client.receive("POST");
        assert_eq!(reply.status, status, "{target} {length}");
    }
    // The default, where nobody says.
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"x\"\n");
    for (length, status) in [(2 << 20, 200), ((2 << 20) + 1, 413)] {
        let mut client = sites.connect();
        send(&mut client, "POST", "x", "/", &[&format!("Content-Length: {length}")]);
        assert_eq!(client.receive("POST").status, status, "{length}");
    }
}

#[test]
fn text_is_compressed_for_who_asks() {
    let folder = Sites::folder();
    folder.write("www/long.txt", "compress me ".repeat(1000));
    let long = "x".repeat(5000);
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\ncompress = true\n[[site.route]]\npath = \"/plain\"\ncompress = false\nrespond = \"{long}\"\n\
             [[site.route]]\npath = \"/fixed\"\nrespond = \"{long}\"\n[[site.route]]\nfiles = \"www\"\n"
        ),
    );
    for (target, coding) in [("/fixed", Some("gzip")), ("/plain", None), ("/long.txt", Some("gzip"))] {
        let reply = sites.ask("GET", "x", target, &["Accept-Encoding: gzip"]);
        assert_eq!(
            (reply.status, reply.field("content-encoding")),
            (200, coding),
            "{target}"
        );
        assert_eq!(sites.get("x", target).field("content-encoding"), None, "{target}");
    }
}

#[test]
fn a_site_asks_for_a_password_and_a_route_may_not() {
    let hash = "$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW";
    let sites = Sites::start(&format!(
        "[[site]]\ndefault = true\nauth = {{ realm = \"all\", users = {{ ada = \"{hash}\" }} }}\n\
         [[site.route]]\npath = \"/open\"\nauth = false\nrespond = \"open\"\n\
         [[site.route]]\npath = \"/own\"\nauth = {{ realm = \"own\", users = {{ bob = \"{hash}\" }} }}\nrespond = \"own\"\n\
         [[site.route]]\npath = \"/again\"\nmethods = \"PUT\"\nrespond = \"x\"\n\
         [[site.route]]\nfiles = \"www\"\n"
    ));
    // ada:sesame, bob:sesame, ada:wrong
    let [ada, bob, wrong] = ["YWRhOnNlc2FtZQ==", "Ym9iOnNlc2FtZQ==", "YWRhOndyb25n"];
    let ask = |target: &str, who: &str| {
        let field = format!("Authorization: Basic {who}");
        sites.ask("GET", "x", target, &[&field])
    };
    for (target, realm) in [("/", "all"), ("/a.txt", "all"), ("/none", "all"), ("/own", "own")] {
        let reply = sites.get("x", target);
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        assert_eq!(
            (reply.status, reply.field("www-authenticate")),
            (401, Some(&*challenge)),
            "{target}"
        );
    }
    assert_eq!(text(&sites.get("x", "/open")), (200, "open"));
    assert_eq!(text(&ask("/a.txt", ada)), (200, "the file a"));
    assert_eq!(text(&ask("/own", bob)), (200, "own"));
    for (target, who) in [("/a.txt", bob), ("/own", ada), ("/a.txt", wrong), ("/own", wrong)] {
        assert_eq!(ask(target, who).status, 401, "{target}");
    }
}

#[test]
fn an_answer_that_does_not_begin_in_time_is_504() {
    // Listens, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let folder = Sites::folder();
    folder.write("www/large.bin", crate::support::pattern(8 << 20));
    let sites = Sites::start_in(
        folder,
        &format!(
            "[[site]]\ndefault = true\nlimits = {{ time = \"300ms\" }}\nerror_pages = {{ 504 = \"404.html\" }}\n\
             [[site.route]]\npath = \"/silent\"\nproxy = \"127.0.0.1:{port}\"\n\
             [[site.route]]\npath = \"/patient\"\nlimits = {{ time = \"1h\" }}\nproxy = \"127.0.0.1:{port}\"\n\
             [[site.route]]\nfiles = \"www\"\n"
        ),
    );
    assert_eq!(text(&sites.get("x", "/silent")), (504, "<h1>lost</h1>"));
    // For the head alone: a client may take its time over the body.
    let mut slow = sites.connect();
    send(&mut slow, "GET", "x", "/large.bin", &[]);
    assert_eq!(slow.receive_head().status, 200);
    let mut patient = sites.connect();
    send(&mut patient, "GET", "x", "/patient", &[]);
    assert_eq!(sites.get("x", "/silent").status, 504);
    patient.stream.set_nonblocking(true).unwrap();
    let nothing = patient.stream.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    let left = (8 << 20) - slow.take_unread().len();
    assert_eq!(
        (&slow.stream).take(left as u64).read_to_end(&mut Vec::new()).unwrap(),
        left
    );
}

#[test]
fn clients_of_a_unix_socket_have_no_address() {
    let route = |path: &str, rule: &str| format!("[[site.route]]\npath = \"/{path}\"\n{rule}\nrespond = \"{path}\"\n");
    let sites = Sites::start(
        &[
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:o.sock\"\nproxy_protocol = \"unix\"\n\
             [[listen]]\naddress = \"unix:p.sock\"\n[[site]]\ndefault = true\nlog = { file = \"access.log\" }\n"
                .to_owned(),
            route("unix", "allow = \"unix\""),
            route("not-unix", "deny = [\"unix\"]"),
            route("all-addresses", "allow = [\"0.0.0.0/0\", \"::/0\"]"),
            route("no-address", "deny = [\"0.0.0.0/0\", \"::/0\"]"),
            route("both", "allow = [\"unix\", \"127.0.0.1\"]"),
            route("rated", "rate = { requests = 1, per = \"1h\" }"),
            "[[site.route]]\nrewrite = { pattern = \"^/who$\", to = \"/unix\", if = [{ of = \"client\", is = \"unix\" }] }\n"
                .to_owned(),
            "[[site.route]]\nrespond = \"else\"\n".to_owned(),
        ]
        .concat(),
    );
    let over = |socket: &str, before: &str, path: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(sites.folder.join(socket)).unwrap();
        stream.set_read_timeout(Some(crate::support::DEADLINE)).unwrap();
        let request = format!("{before}GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply[9..12].parse::<u16>().unwrap()
    };
    let header = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    for (path, tcp, unix, through) in [
        ("unix", 403, 200, 403),
        ("not-unix", 200, 403, 200),
        ("all-addresses", 200, 403, 200),
        ("no-address", 403, 200, 403),
        ("both", 200, 200, 403),
        ("who", 200, 200, 200),
    ] {
        assert_eq!(sites.get("x", &format!("/{path}")).status, tcp, "{path} over TCP");
        assert_eq!(over("p.sock", "", path), unix, "{path} over a Unix socket");
        assert_eq!(over("o.sock", header, path), through, "{path} through a balancer");
    }
    let logged = || {
        let log = std::fs::read_to_string(sites.folder.join("access.log")).unwrap_or_default();
        let lines = log.lines().filter(|line| line.contains("\"GET /both "));
        let mut clients: Vec<_> = lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        clients.sort();
        clients
    };
    crate::support::sites::wait_for("the lines of the log", || {
        logged() == ["127.0.0.1", "192.0.2.1", "unix"]
    });
    // All of them are one client to a rate; whoever a balancer tells is another.
    assert_eq!((over("p.sock", "", "rated"), over("p.sock", "", "rated")), (200, 429));
    assert_eq!(
        (over("o.sock", header, "rated"), sites.get("x", "/rated").status),
        (200, 200)
    );
}
