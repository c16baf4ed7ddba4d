//! Policies with a name, and the field `Server`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use testkit::eventually;

use crate::support::Client;
use crate::support::sites::{Sites, send};

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
        "site.toml:3:1: unknown key 'files' in [policy.inside]; known keys are allow, auth, cache, compress, cors, deny, forward_auth, headers, html_errors, jwt, limits, log, rate, request_id, server_timing, slow, trace",
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
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
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
