//! SIGHUP: a new configuration replaces the old one, and unchanged parts keep running.

use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, Signal};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::nobody;

const ROUTES: &str =
    "[[site]]\ndefault = true\n[[site.route]]\npath = \"/fixed\"\nrespond = \"@\"\n[[site.route]]\nfiles = \"www\"\n";

fn routes(answer: &str) -> String {
    ROUTES.replace('@', answer)
}

#[test]
fn a_new_route_appears_for_connections_that_are_open() {
    let sites = Sites::start("[[site]]\ndefault = true\n[[site.route]]\nfiles = \"www\"\n");
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/new", &[]);
    assert_eq!(client.receive("GET").status, 404);
    let said = sites.reload(
        "[[site]]\ndefault = true\n[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n[[site.route]]\nfiles = \"www\"\n",
    );
    assert!(
        said.contains("reloaded") && said.contains("(1 site, 2 routes, 1 listener)"),
        "{said}"
    );
    send(&mut client, "GET", "x", "/new", &[]);
    assert_eq!(client.receive("GET").text(), "new");
    send(&mut client, "GET", "x", "/a.txt", &[]);
    assert_eq!(client.receive("GET").text(), "the file a");
}

#[test]
fn a_bad_file_changes_nothing_and_is_explained() {
    let sites = Sites::start(&routes("old"));
    let said = sites.reload("workerz = 2\n[[site]]\ndefault = true\n[[site.route]]\nfilez = \"www\"\n");
    for part in [
        "has mistakes; the old configuration stays:",
        "site.toml:2:1: unknown key 'workerz' in the file; did you mean 'workers'?",
        "unknown key 'filez' in [[site.route]]; did you mean 'files'?",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert_eq!(sites.get("x", "/fixed").text(), "old");
    let said = sites.reload("[[site]\n");
    assert!(said.contains("unclosed array table"), "{said}");
    assert_eq!(sites.get("x", "/fixed").text(), "old");
    std::fs::remove_file(sites.folder.join("site.toml")).unwrap();
    let said = sites.hang_up();
    assert!(said.contains("there is no such file"), "{said}");
    assert_eq!(sites.get("x", "/a.txt").text(), "the file a");
    assert!(sites.reload(&routes("new")).contains("reloaded"));
    assert_eq!(sites.get("x", "/fixed").text(), "new");
}

#[test]
fn a_long_response_goes_on_over_reloads() {
    let folder = Sites::folder();
    let content = crate::support::pattern(32 << 20);
    folder.write("www/large.bin", &content);
    let sites = Sites::start_in(folder, &routes("1"));
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/large.bin", &[]);
    let head = client.receive_head();
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some(&*content.len().to_string()))
    );
    for number in 2..5 {
        assert!(sites.reload(&routes(&number.to_string())).contains("reloaded"));
        assert_eq!(sites.get("x", "/fixed").text(), number.to_string());
    }
    // The route itself is gone: what runs on it ends as it began.
    assert!(
        sites
            .reload("[[site]]\ndefault = true\n[[site.route]]\nrespond = \"all\"\n")
            .contains("reloaded")
    );
    let mut body = client.take_unread();
    let missing = content.len() - body.len();
    (&client.stream).take(missing as u64).read_to_end(&mut body).unwrap();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    send(&mut client, "GET", "x", "/large.bin", &[]);
    assert_eq!(client.receive("GET").text(), "all");
}

#[test]
fn a_folder_that_was_replaced_is_opened_anew() {
    let sites = Sites::start(&routes("x"));
    assert_eq!(sites.get("x", "/").text(), "the index");
    std::fs::rename(sites.folder.join("www"), sites.folder.join("was")).unwrap();
    std::fs::rename(sites.folder.join("other"), sites.folder.join("www")).unwrap();
    assert!(sites.hang_up().contains("reloaded"));
    assert_eq!(sites.get("x", "/").text(), "the other index");
}

#[test]
fn what_a_client_has_used_of_its_rate_is_not_forgotten() {
    let file = |body: &str| {
        format!(
            "[[site]]\ndefault = true\n[[site.route]]\npath = \"/rated\"\nrate = {{ requests = 2, per = \"1h\" }}\n\
             respond = \"rated\"\n[[site.route]]\nrespond = \"{body}\"\n"
        )
    };
    let sites = Sites::start(&file("1"));
    assert_eq!(sites.get("x", "/rated").status, 200);
    assert_eq!(sites.get("x", "/rated").status, 200);
    assert_eq!(sites.get("x", "/rated").status, 429);
    assert!(sites.reload(&file("2")).contains("reloaded"));
    assert_eq!(sites.get("x", "/").text(), "2");
    assert_eq!(sites.get("x", "/rated").status, 429);
    // Another rate begins anew.
    assert!(
        sites
            .reload(&file("3").replace("requests = 2", "requests = 3"))
            .contains("reloaded")
    );
    assert_eq!(sites.get("x", "/rated").status, 200);
}

/// A file with listeners of these ports.
fn listeners(ports: &[u16], answer: &str) -> String {
    let listen = ports
        .iter()
        .map(|port| format!("[[listen]]\naddress = \"127.0.0.1:{port}\"\n"));
    let routes = routes(answer);
    format!("drain = \"20s\"\n{}{routes}", listen.collect::<String>())
}

#[test]
fn listeners_come_stay_and_go() {
    let ports @ [first, second] = [nobody().port(), nobody().port()];
    let folder = Sites::folder();
    let content = crate::support::pattern(32 << 20);
    folder.write("www/large.bin", &content);
    let sites = Sites::start_in(folder, &listeners(&[first], "1"));
    let address = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    assert!(TcpStream::connect(address(second)).is_err());
    let mut stays = Client::new(address(first));
    send(&mut stays, "GET", "x", "/fixed", &[]);
    assert_eq!(stays.receive("GET").text(), "1");

    let said = sites.reload(&listeners(&ports, "2"));
    assert!(
        said.contains(&format!("osier: listening on http://127.0.0.1:{second}/")),
        "{said}"
    );
    let mut busy = Client::new(address(second));
    send(&mut busy, "GET", "x", "/large.bin", &[]);
    assert_eq!(busy.receive_head().status, 200);
    let mut idle = Client::new(address(second));
    send(&mut idle, "GET", "x", "/fixed", &[]);
    assert_eq!(idle.receive("GET").text(), "2");

    let said = sites.reload(&listeners(&[first], "3"));
    assert!(
        said.contains(&format!("osier: no longer listening on 127.0.0.1:{second}")),
        "{said}"
    );
    // Nobody new, and who is idle is let go; who is busy is served to the end.
    wait_for("the end of the listener", || {
        TcpStream::connect(address(second)).is_err()
    });
    assert!(idle.receive_rest().is_empty());
    let body = busy.receive_rest();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
    // The other listener is the one it has been.
    send(&mut stays, "GET", "x", "/fixed", &[]);
    assert_eq!(stays.receive("GET").text(), "3");
}

#[test]
fn connections_that_a_removed_listener_cuts_are_logged() {
    let [first, second] = [nobody().port(), nobody().port()];
    let folder = Sites::folder();
    folder.write("www/large.bin", vec![0; 32 << 20]);
    let file = |ports: &[u16]| listeners(ports, "1").replace("\"20s\"", "\"300ms\"");
    let mut sites = Sites::start_in(folder, &file(&[first, second]));
    let mut busy = Client::new(std::net::SocketAddr::from(([127, 0, 0, 1], second)));
    send(&mut busy, "GET", "x", "/large.bin", &[]);
    assert_eq!(busy.receive_head().status, 200);
    sites.reload(&file(&[first]));
    let line = format!("1 connection to 127.0.0.1:{second} was closed, still busy after 0.3 s ('drain')");
    sites.wait_until_said(&line);
    // The end of the server does not count it again.
    sites.server.signal(Signal::TERM);
    assert_eq!(sites.server.wait().code(), Some(0));
    assert_eq!(sites.said().matches("still busy").count(), 1, "{}", sites.said());
}

#[test]
fn a_listener_that_cannot_be_bound_leaves_everything_as_it_was() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let first = nobody().port();
    let sites = Sites::start(&listeners(&[first], "old"));
    let said = sites.reload(&listeners(&[first, port], "new"));
    assert!(
        said.contains("cannot be used") && said.contains(&port.to_string()),
        "{said}"
    );
    assert_eq!(sites.get("x", "/fixed").text(), "old");
}

#[test]
fn what_only_a_start_can_change_is_said() {
    let sites = Sites::start(&routes("1"));
    let keys =
        "workers = 1\nmemory = \"10GiB\"\nuser = \"nobody\"\ngroup = \"nogroup\"\nchroot = \".\"\nlandlock = true\n";
    let said = sites.reload(&format!("{keys}{}", routes("2")));
    for key in ["workers", "memory", "user", "group", "chroot", "landlock"] {
        let line = format!("'{key}' has changed: the change takes effect at the next start");
        assert!(said.contains(&line), "{key}: {said}");
    }
    assert_eq!(sites.get("x", "/fixed").text(), "2");
    // A file that is not used changes nothing, and one that is as it was at the start has not changed.
    let said = sites.reload(&format!(
        "{keys}{}[[listen]]\naddress = \"10.255.255.1:1\"\n",
        routes("3")
    ));
    assert!(
        said.contains("cannot be used") && !said.contains("has changed"),
        "{said}"
    );
    let said = sites.reload(&routes("4"));
    assert!(said.contains("reloaded") && !said.contains("has changed"), "{said}");
}

#[test]
fn other_settings_of_a_listener_count_for_who_comes() {
    let port = nobody().port();
    let file = |settings: &str, drain: &str, answer: &str| {
        format!(
            "drain = \"{drain}\"\n[[listen]]\nname = \"web\"\naddress = \"127.0.0.1:{port}\"\n{settings}{}",
            routes(answer)
        )
    };
    let mut sites = Sites::start(&file("", "20s", "1"));
    let long = format!("/fixed?{}", "x".repeat(300));
    let ask = |client: &mut Client| {
        send(client, "GET", "x", &long, &[]);
        client.receive("GET").status
    };
    let mut old = sites.connect();
    assert_eq!(ask(&mut old), 200);
    let said = sites.reload(&file("head = { request_line = 200 }\n", "20s", "2"));
    assert!(
        said.contains("'head' of listener 'web': new connections get the change"),
        "{said}"
    );
    // An existing connection keeps the old settings, and sees the new routes.
    assert_eq!(ask(&mut old), 200);
    send(&mut old, "GET", "x", "/fixed", &[]);
    assert_eq!(old.receive("GET").text(), "2");
    for _ in 0..10 {
        assert_eq!(ask(&mut sites.connect()), 414);
    }
    // The trusted peers change too.
    let trust = "proxy_protocol = \"127.0.0.1\"\ntimeouts = { idle = \"20s\" }\n";
    let said = sites.reload(&file(trust, "10s", "3"));
    assert!(
        said.contains(
            "'proxy_protocol', 'timeouts', 'head', 'drain' of listener 'web': new connections get the change"
        ),
        "{said}"
    );
    let mut proxied = sites.connect();
    proxied.send_raw(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
    assert_eq!(ask(&mut proxied), 200);
    assert_eq!(ask(&mut old), 200);
    // The same file again changes nothing, and the end comes to all of them.
    let said = sites.hang_up();
    assert!(!said.contains("new connections get"), "{said}");
    sites.server.signal(crate::support::Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(old.receive_rest().is_empty() && proxied.receive_rest().is_empty());
}

/// The least a listener can have changed.
fn with_fields(count: usize) -> String {
    format!(
        "[[listen]]\naddress = \"127.0.0.1:0\"\nhead = {{ fields = {} }}\n{}",
        50 + count % 40,
        routes("x")
    )
}

#[test]
fn nobody_who_comes_is_dropped_while_a_listener_gets_other_settings() {
    let sites = Sites::start(&with_fields(0));
    let (address, end) = (sites.addresses[0], AtomicBool::new(false));
    let unanswered = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (mut asked, mut unanswered) = (0, 0);
            while !end.load(Ordering::Relaxed) {
                let mut client = Client::new(address);
                // Accepted by now, and nothing has come from it; a moment without anybody follows its end.
                std::thread::sleep(Duration::from_millis(1));
                send(&mut client, "GET", "x", "/fixed", &["Connection: close"]);
                asked += 1;
                unanswered += usize::from(client.receive_rest().is_empty());
                std::thread::sleep(Duration::from_millis(1)); // the moment without anybody
            }
            assert!(asked > 10, "{asked} connections are no test");
            unanswered
        });
        for count in 1..200 {
            let said = sites.reload(&with_fields(count));
            assert!(
                said.contains("'head' of listener") && said.contains("reloaded"),
                "{said}"
            );
        }
        end.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    assert_eq!(unanswered, 0);
}

#[test]
fn servers_with_settings_of_before_do_not_pile_up() {
    let file = |count| {
        let unix = format!(
            "[[listen]]\naddress = \"unix:o.sock\"\nmax_connections = {}\n",
            100 + count
        );
        format!("[admin]\naddress = \"127.0.0.1:0\"\n{unix}{}", with_fields(count))
    };
    let sites = Sites::start(&file(0));
    let said = sites.said();
    let admin = said.split("/health, /metrics and /fibers are on ").nth(1).unwrap();
    let admin = admin.lines().next().unwrap().parse().unwrap();
    let fibers = || {
        let mut client = Client::new(admin);
        send(&mut client, "GET", "x", "/metrics", &[]);
        let reply = client.receive("GET");
        let lines = reply.text().lines();
        let counts = lines.filter_map(|line| line.strip_prefix("osier_worker_fibers{")?.split(' ').nth(1));
        counts.map(|count| count.parse::<usize>().unwrap()).sum::<usize>()
    };
    // Every fiber of the start is there once a reload has been answered.
    sites.hang_up();
    let before = fibers();
    for count in 1..30 {
        let said = sites.reload(&file(count));
        assert!(said.contains("'max_connections' of listener"), "{said}");
    }
    // What the last reloads have closed is found by the next one.
    wait_for("the end of the servers of before", || {
        sites.hang_up();
        fibers() < before + 8
    });
    let mut stream = UnixStream::connect(sites.folder.join("o.sock")).unwrap();
    // A server that does not answer fails the test instead of stopping it.
    stream.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
    stream.write_all(b"GET /fixed HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // The listener goes, and its file with it.
    let said = sites.reload(&with_fields(1));
    assert!(said.contains("no longer listening on unix:"), "{said}");
    wait_for("the end of the file", || !sites.folder.join("o.sock").exists());
}

#[test]
fn the_mode_of_a_socket_changes_with_a_configuration_that_counts() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = |mode: &str, more: &str| {
        let unix = format!("[[listen]]\nname = \"u\"\naddress = \"unix:o.sock\"\n{mode}");
        format!("{unix}{more}{}", with_fields(0))
    };
    let sites = Sites::start(&file("mode = \"0600\"\n", ""));
    let path = sites.folder.join("o.sock");
    let mode = || std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777;
    let other = format!("[[listen]]\naddress = \"{}\"\n", taken.local_addr().unwrap());
    let said = sites.reload(&file("mode = \"0640\"\n", &other));
    assert!(said.contains("the old configuration stays"), "{said}");
    assert_eq!(mode(), 0o600);
    let said = sites.reload(&file("", "max_connections = 7\n"));
    assert!(said.contains("'max_connections', 'mode' of listener 'u'"), "{said}");
    // As if there had never been one: what any socket of this process has.
    let other = sites.folder.join("other.sock");
    let _made = std::os::unix::net::UnixListener::bind(&other).unwrap();
    let made = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&other).unwrap().permissions()) & 0o777;
    assert_eq!(mode(), made);
    let said = sites.reload(&file("mode = \"0640\"\n", "max_connections = 7\n"));
    assert!(said.contains("'mode' of listener 'u'"), "{said}");
    assert_eq!(mode(), 0o640);
}

#[test]
fn a_reload_makes_removed_socket_files_again() {
    let file = |more: &str| {
        format!(
            "[admin]\naddress = \"unix:admin.sock\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
             [[listen]]\naddress = \"unix:o.sock\"\nmode = \"0640\"\n{more}{}",
            routes("x")
        )
    };
    let mut sites = Sites::start(&file(""));
    let [path, admin] = ["o.sock", "admin.sock"].map(|name| sites.folder.join(name));
    let ask = |stream: &mut UnixStream, target: &str| {
        let mut client = Client::of(stream);
        send(&mut client, "GET", "x", target, &[]);
        client.receive("GET").status
    };
    let mut early = UnixStream::connect(&path).unwrap();
    assert_eq!(ask(&mut early, "/"), 200);
    for more in ["", "max_connections = 7\n"] {
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&admin).unwrap();
        let said = sites.reload(&file(more));
        let line = "o.sock had been removed: it is made again";
        assert_eq!(said.matches(line).count(), 1, "{said}");
        let mode = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o640);
        assert_eq!(ask(&mut UnixStream::connect(&path).unwrap(), "/"), 200);
        assert_eq!(ask(&mut UnixStream::connect(&admin).unwrap(), "/health"), 200);
        // Connections to the old socket go on.
        assert_eq!(ask(&mut early, "/"), 200);
    }
    assert!(!sites.hang_up().contains("removed"), "{}", sites.said());
    sites.server.signal(crate::support::Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(!path.exists(), "the file of a server that has ended");
}

/// The file of a socket on which nobody listens would keep the next reload from making it again.
#[test]
fn a_reload_that_fails_leaves_no_file_of_a_socket_that_it_has_made_again() {
    let file = |more: &str| {
        format!(
            "[admin]\naddress = \"unix:admin.sock\"\n[[listen]]\naddress = \"127.0.0.1:0\"\n\
             [[listen]]\naddress = \"unix:o.sock\"\n{more}{}",
            routes("x")
        )
    };
    let sites = Sites::start(&file(""));
    let [path, other] = ["admin.sock", "o.sock"].map(|name| sites.folder.join(name));
    std::fs::remove_file(&path).unwrap();
    // Its mode cannot change, which is noticed after the sockets are open.
    std::fs::remove_file(&other).unwrap();
    std::os::unix::fs::symlink("nowhere", &other).unwrap();
    let said = sites.reload(&file("mode = \"0600\"\n"));
    assert!(said.contains("cannot change the mode of "), "{said}");
    assert!(!path.exists());
    sites.reload(&file(""));
    let mut client = Client::of(UnixStream::connect(&path).unwrap());
    send(&mut client, "GET", "x", "/health", &[]);
    assert_eq!(client.receive("GET").status, 200);
}

#[test]
fn a_unix_listener_with_other_settings_keeps_its_file() {
    let file = |mode: &str, port: &str| {
        format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"unix:o.sock\"\nmode = \"{mode}\"\n{port}{}",
            routes("x")
        )
    };
    let mut sites = Sites::start(&file("0600", ""));
    let path = sites.folder.join("o.sock");
    let mode = || std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777;
    assert_eq!(mode(), 0o600);
    for (changed, key) in [
        (file("0640", ""), "'mode'"),
        (file("0640", "max_connections = 5\n"), "'max_connections'"),
    ] {
        let said = sites.reload(&changed);
        assert!(said.contains(key), "{said}");
        assert_eq!(mode(), 0o640);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }
    sites.server.signal(crate::support::Signal::TERM);
    assert!(sites.server.wait().success());
    assert!(!path.exists(), "the file of a server that has ended");
}

#[test]
fn logs_are_opened_anew() {
    let log = "[[site]]\ndefault = true\nlog = { file = \"site.log\" }\n[[site.route]]\nrespond = \"x\"\n";
    let sites = Sites::start(log);
    let (path, rotated) = (sites.folder.join("site.log"), sites.folder.join("site.log.1"));
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    sites.get("x", "/first");
    wait_for("the first line", || lines(&path).contains("/first"));
    std::fs::rename(&path, &rotated).unwrap();
    assert!(sites.hang_up().contains("reloaded"));
    sites.get("x", "/second");
    wait_for("the second line", || lines(&path).contains("/second"));
    assert!(!lines(&rotated).contains("/second"));
    // Another file: from the next request on.
    assert!(sites.reload(&log.replace("site.log", "other.log")).contains("reloaded"));
    sites.get("x", "/third");
    wait_for("the third line", || {
        lines(&sites.folder.join("other.log")).contains("/third")
    });
}

#[test]
fn two_listeners_whose_ports_the_system_chooses_stay_two() {
    let file = |first: &str, text: &str| {
        let listen = |name: &str| format!("[[listen]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\n");
        let site = |name: &str| {
            format!("[[site]]\nlisten = [\"{name}\"]\ndefault = true\n[[site.route]]\nrespond = \"{text} {name}\"\n")
        };
        [listen(first), listen("b"), site(first), site("b")].concat()
    };
    let sites = Sites::start(&file("a", "old"));
    let answers = || {
        let answer = |address| {
            let mut client = Client::new(address);
            send(&mut client, "GET", "x", "/", &[]);
            client.receive("GET").text().to_owned()
        };
        [answer(sites.addresses[0]), answer(sites.addresses[1])]
    };
    assert_eq!(answers(), ["old a", "old b"]);
    sites.reload(&file("a", "new"));
    assert_eq!(answers(), ["new a", "new b"]);
    // A name that has changed: the listener is the one that is left.
    sites.reload(&file("c", "new"));
    assert_eq!(answers(), ["new c", "new b"]);
}
