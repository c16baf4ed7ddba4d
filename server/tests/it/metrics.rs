//! The metrics page: what it counts, that it stays small and well-formed, and the documents about it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use osier::memory::BATCH_BYTES;
use serde_json::Value;
use testkit::exposition::{Labels, Page};
use testkit::nobody;

use crate::cage::half_a_handshake;
use crate::support::Client;
use crate::support::certs::Authority;
use crate::support::sites::{Sites, send, wait_for};
use crate::upgrade::{echoes, echoing_backend, tunnel_over};

pub const ADMIN: &str = "[admin]\naddress = \"127.0.0.1:0\"\n";
const REQUESTS: &str = "osier_http_requests_total";

pub fn admin_of(sites: &Sites) -> SocketAddr {
    let said = sites.said();
    let address = said.split("/health, /metrics and /fibers are on ").nth(1);
    let address = address.expect("the line of the admin's listener").lines().next();
    address.unwrap().parse().unwrap()
}

fn text_of(admin: SocketAddr) -> String {
    let mut client = Client::new(admin);
    send(&mut client, "GET", "x", "/metrics", &[]);
    let reply = client.receive("GET");
    assert_eq!(reply.status, 200);
    reply.text().to_owned()
}

pub fn page_of(admin: SocketAddr) -> Page {
    Page::parse(&text_of(admin))
}

#[test]
fn another_sites_name_does_not_lead_to_the_pages_of_this_machine() {
    let sites = Sites::start(&format!("{ADMIN}[[site]]\n[[site.route]]\nrespond = 404\n"));
    let mut client = Client::new(admin_of(&sites));
    let mut status = |host: &str, path: &str| {
        send(&mut client, "GET", host, path, &[]);
        client.receive("GET").status
    };
    for path in ["/metrics", "/fibers"] {
        for host in ["localhost:9090", "127.0.0.1:9090", "[::1]:9090", "web1", "192.0.2.7"] {
            assert_eq!(status(host, path), 200, "{host} {path}");
        }
        for host in [
            "example.org",
            "example.org:9090",
            "127.0.0.1.example.org",
            "rebind.test.",
        ] {
            assert_eq!(status(host, path), 403, "{host} {path}");
        }
    }
    assert_eq!(status("example.org", "/health"), 200);
    // A page of another site may make a browser ask, too.
    for (site, expected) in [("cross-site", 403), ("none", 200)] {
        let field = format!("Sec-Fetch-Site: {site}");
        send(&mut client, "GET", "localhost", "/fibers", &[&field]);
        assert_eq!(client.receive("GET").status, expected, "{site}");
    }
}

/// Waits until the page shows this value.
pub fn wait_for_value(admin: SocketAddr, name: &str, labels: &[(&str, &str)], value: f64) {
    let what = format!("{name} {labels:?} {value}");
    wait_for(&what, || page_of(admin).value(name, labels) == Some(value));
}

/// A backend that answers `GET /` and hangs up on anything else.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut client = Client::over(stream);
                loop {
                    let mut head = Vec::new();
                    let mut byte = [0];
                    while !head.ends_with(b"\r\n\r\n") {
                        match client.stream.read(&mut byte) {
                            Ok(1) => head.push(byte[0]),
                            _ => return,
                        }
                    }
                    if !head.starts_with(b"GET / ") {
                        return;
                    }
                    client.send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
                }
            });
        }
    });
    address
}

/// A server with a sample in every family.
fn busy() -> (Sites, SocketAddr) {
    let (good, bad) = (backend(), nobody());
    let folder = Sites::folder();
    Authority::new("an authority").write(&folder, "example", &["example.org", "*.example.org"]);
    let sites = Sites::start_in(
        folder,
        &format!(
            "{ADMIN}[[listen]]\nname = \"plain\"\naddress = \"127.0.0.1:0\"\n[[listen]]\nname = \"https\"\naddress = \"127.0.0.1:0\"\ntls = true\n\
         [[site]]\nhost = \"example.org\"\nlisten = [\"https\"]\ntls = {{ cert = \"example.pem\", key = \"example.key\" }}\n[[site.route]]\nrespond = \"x\"\n\
         [[site]]\ndefault = true\nlisten = [\"plain\"]\n[[site.route]]\npath = \"/app\"\nproxy = {{ to = \"{good}\", strip = true }}\n\
         [[site.route]]\npath = \"/down\"\nproxy = \"{bad}\"\n[[site.route]]\npath = \"/chat\"\nchat = true\n[[site.route]]\nfiles = \"www\"\n"
        ),
    );
    for (target, status) in [
        ("/app/", 200),
        ("/app/", 200),
        ("/app/odd", 502),
        ("/down", 502),
        ("/a.txt", 200),
    ] {
        assert_eq!(sites.get("x", target).status, status, "{target}");
    }
    let mut client = sites.connect();
    send(
        &mut client,
        "POST",
        "x",
        "/a.txt",
        &["Content-Length: 3", "Connection: close"],
    );
    client.send_raw(b"abc");
    assert_eq!(client.receive("POST").status, 405);
    client.receive_rest();
    let admin = admin_of(&sites);
    wait_for_value(admin, REQUESTS, &[("code", "405")], 1.0);
    (sites, admin)
}

#[test]
fn routes_that_a_reload_removes_leave_and_the_others_go_on_counting() {
    let file = |turn: usize| {
        let mut text = format!("{ADMIN}[[site]]\nhost = \"stays\"\n[[site.route]]\nrespond = \"x\"\n");
        for site in 0..200 {
            text += &format!("[[site]]\nhost = \"site{site}.turn{turn}\"\n[[site.route]]\nrespond = \"y\"\n");
        }
        text
    };
    let sites = Sites::start(&file(0));
    let admin = admin_of(&sites);
    let serve = |turn: usize| {
        let mut client = sites.connect();
        let hosts = (0..200).map(|site| format!("site{site}.turn{turn}"));
        for host in hosts.chain(["stays".to_owned()]) {
            send(&mut client, "GET", &host, "/", &[]);
            assert_eq!(client.receive("GET").status, 200, "{host}");
        }
        wait_for_value(
            admin,
            REQUESTS,
            &[("site", "stays"), ("route", "/"), ("code", "200")],
            turn as f64 + 1.0,
        );
    };
    // A phase has lines once it has taken time. Whether an acceptance takes a millisecond is the machine's affair.
    let lines = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("_request_phase_seconds"))
            .count()
    };
    serve(0);
    let before = lines(&text_of(admin));
    for turn in 1..=5 {
        assert!(sites.reload(&file(turn)).contains("reloaded"));
        serve(turn);
    }
    let text = text_of(admin);
    let after = lines(&text);
    println!("{before} lines before five reloads of 200 sites, {after} after");
    assert_eq!(before, after);
    assert!(text.contains(".turn5\"") && !text.contains(".turn4\""));
    assert_eq!(
        Page::parse(&text).value("osier_config_reloads_total", &[("result", "success")]),
        Some(5.0)
    );
}

#[test]
fn the_log_says_once_that_routes_share_a_series() {
    let routes: String = (0..4100)
        .map(|route| format!("[[site.route]]\npath = \"/{route}\"\nrespond = 204\n"))
        .collect();
    let file = format!("{ADMIN}[[site]]\ndefault = true\n{routes}");
    let sites = Sites::start(&file);
    // The routes and the one for requests that no route takes.
    let line = "metrics: only 4096 routes have series of their own; 5 more share the series of route \"other\"";
    assert_eq!(sites.said().matches(line).count(), 1, "{}", sites.said());
    let admin = admin_of(&sites);
    assert_eq!(sites.get("x", "/4099").status, 204);
    assert_eq!(sites.get("x", "/4095").status, 204);
    wait_for_value(
        admin,
        REQUESTS,
        &[("site", ""), ("route", "other"), ("code", "204")],
        1.0,
    );
    wait_for_value(admin, REQUESTS, &[("route", "/4095"), ("code", "204")], 1.0);
}

#[test]
fn backends_have_their_state_their_failures_and_their_times() {
    let (_sites, admin) = busy();
    let page = page_of(admin);
    let of = |name: &str, route: &str, more: &[(&str, &str)]| {
        let labels = [&[("site", "default"), ("route", route)], more].concat();
        page.value(&format!("osier_upstream_{name}"), &labels)
            .unwrap_or_else(|| panic!("{name} {route}"))
    };
    assert_eq!(
        (of("up", "/app", &[]), of("requests_in_flight", "/app", &[])),
        (1.0, 0.0)
    );
    assert!(of("requests_total", "/app", &[]) >= 3.0 && of("connections_idle", "/app", &[]) <= 2.0);
    assert_eq!(of("response_head_seconds_count", "/app", &[]), 2.0);
    assert!(of("response_head_seconds_sum", "/app", &[]) > 0.0);
    // The second attempt, on a new connection, is the one that tells something about the backend.
    assert!(of("failures_total", "/app", &[("kind", "response")]) >= 1.0);
    assert_eq!(of("failures_total", "/app", &[("kind", "connect")]), 0.0);
    assert!(of("failures_total", "/down", &[("kind", "connect")]) >= 1.0);
    assert_eq!(of("response_head_seconds_count", "/down", &[]), 0.0);
    let sent = [("site", "default"), ("route", "/app")];
    assert_eq!(
        page.value("osier_http_requests_total", &[sent[0], sent[1], ("code", "502")]),
        Some(1.0)
    );
}

/// An operator restarts a backend when nobody uses it any more: he takes it out of the file, and waits for 0.
#[test]
fn tunnels_stay_counted_at_a_backend_that_a_reload_has_taken_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = |address: &str| {
        format!("{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nproxy = {{ to = \"{address}\", keep = 0 }}\n")
    };
    let sites = Sites::start(&file(&address.to_string()));
    let admin = admin_of(&sites);
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/", &["Connection: upgrade", "Upgrade: echo"]);
    let mut backend = Client::over(listener.accept().unwrap().0);
    assert!(backend.receive_head_of_request().is_some());
    backend.send_raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.receive_head().status, 101);
    let text = address.to_string();
    let at_backend = |name: &str| page_of(admin).value(&format!("osier_upstream_{name}"), &[("backend", &text)]);
    let occupied = || ["requests_in_flight", "tunnels"].map(at_backend);
    assert_eq!(occupied(), [Some(1.0); 2]);

    // Another setting of the same backend.
    sites.reload(&file(&address.to_string()).replace("keep = 0", "keep = 1"));
    assert_eq!(occupied(), [Some(1.0); 2]);
    let other = nobody();
    sites.reload(&file(&other.to_string()));
    assert_eq!((occupied(), at_backend("up")), ([Some(1.0); 2], None));
    drop((client, backend));
    testkit::eventually("the backend is free", || occupied() == [None; 2]);
}

#[test]
fn a_tunnel_that_has_ended_has_left_its_bytes_and_its_time() {
    let backend = echoing_backend();
    let to = backend.local_addr().unwrap();
    let sites = Sites::start(&format!(
        "{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nproxy = \"{to}\"\n"
    ));
    let admin = admin_of(&sites);
    let mut stream = tunnel_over(sites.connect().stream);
    echoes(&mut stream, b"hello");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    wait_for_value(admin, "osier_upstream_tunnels_ended_total", &[], 1.0);
    let page = page_of(admin);
    let bytes = |direction| page.value("osier_upstream_tunnel_bytes_total", &[("direction", direction)]);
    assert_eq!((bytes("to_backend"), bytes("to_client")), (Some(5.0), Some(8.0)));
    assert!(page.value("osier_upstream_tunnel_seconds_total", &[]) > Some(0.0));
}

#[test]
fn reloads_and_the_process_are_shown() {
    let good = format!("{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nrespond = 204\n");
    let sites = Sites::start(&good);
    let admin = admin_of(&sites);
    let start = page_of(admin);
    let value = |page: &Page, name: &str| page.value(name, &[]).unwrap_or_else(|| panic!("{name}"));
    let loaded = "osier_config_last_reload_timestamp_seconds";
    let succeeded = "osier_config_last_reload_successful";
    assert_eq!(value(&start, succeeded), 1.0);
    assert!(sites.reload("nonsense = 1\n").contains("the old configuration stays"));
    wait_for_value(admin, "osier_config_reloads_total", &[("result", "failure")], 1.0);
    let failed = page_of(admin);
    assert_eq!(
        (value(&failed, succeeded), value(&failed, loaded)),
        (0.0, value(&start, loaded))
    );
    assert!(sites.reload(&good).contains("reloaded"));
    wait_for_value(admin, succeeded, &[], 1.0);
    let page = page_of(admin);
    assert!(value(&page, loaded) > value(&start, loaded));
    assert_eq!(
        page.value("osier_config_reloads_total", &[("result", "success")]),
        Some(1.0)
    );

    assert!(value(&page, "process_resident_memory_bytes") > 1e6);
    assert!(value(&page, "process_virtual_memory_bytes") > 1e6);
    assert!(value(&page, "process_cpu_seconds_total") > 0.0);
    // Two workers besides the first thread at least.
    assert!(value(&page, "process_threads") >= 2.0);
    let fds = std::fs::read_dir(format!("/proc/{}/fd", sites.server.id()))
        .unwrap()
        .count();
    let open = value(&page, "process_open_fds");
    assert!((open - fds as f64).abs() <= 4.0, "{open} {fds}");
    assert!(value(&page, "process_max_fds") >= open);
    // The first page came at most a minute after the start of the process.
    let age = value(&start, loaded) - value(&start, "process_start_time_seconds");
    assert!((-1.0..60.0).contains(&age), "{age}");
}

#[test]
fn the_process_is_shown_under_landlock() {
    let sites = Sites::start(&format!(
        "landlock = true\n{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nrespond = 204\n"
    ));
    if !sites.said().contains("landlock: ABI") {
        testkit::skip("this kernel has no Landlock");
        return;
    }
    let page = page_of(admin_of(&sites));
    for name in ["process_open_fds", "process_resident_memory_bytes", "process_threads"] {
        assert!(page.value(name, &[]).is_some_and(|value| value > 0.0), "{name}");
    }
}

#[test]
fn a_record_of_tls_that_is_not_whole_is_charged() {
    const CLIENTS: usize = 20;
    let sites = Sites::start(&format!(
        "{ADMIN}[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n[[site]]\ndefault = true\ntls = \"internal\"\n\
         [[site.route]]\nrespond = \"x\"\n"
    ));
    let (admin, address) = (admin_of(&sites), sites.addresses[0]);
    let held = || {
        let page = page_of(admin);
        page.value("osier_memory_bytes", &[("account", "tls")]).unwrap()
    };
    let half = half_a_handshake();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(&half).unwrap();
            client
        })
        .collect();
    // Two workers may each know of some bytes that the page does not show.
    let all = (CLIENTS * half.len()) as f64 - 3.0 * BATCH_BYTES as f64;
    wait_for("the charge of the records", || held() >= all);
    drop(clients);
    wait_for("the end of the charge", || held() < 3.0 * BATCH_BYTES as f64);
}

#[test]
fn certificates_show_their_end() {
    let (_sites, admin) = busy();
    let ends = page_of(admin).value("osier_certificate_not_after_seconds", &[("name", "example.org")]);
    // The year 4096, the default of the library that has made it.
    assert_eq!(ends, Some(67_090_118_400.0));
}

#[test]
fn certificates_that_are_not_there_and_failed_orders_are_counted() {
    let issuer = testkit::nobody();
    let sites = Sites::start(&format!(
        "state = \"state\"\n{ADMIN}[acme]\nissuer = \"https://{issuer}/directory\"\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n\
         [[site]]\nhost = \"a.example.org\"\ntls = \"auto\"\n[[site.route]]\nrespond = \"x\"\n\
         [[site]]\nhost = \"b.example.org\"\ntls = {{ cert = \"no.pem\", key = \"no.key\" }}\n[[site.route]]\nrespond = \"x\"\n"
    ));
    let admin = admin_of(&sites);
    wait_for_value(admin, "osier_certificate_orders_total", &[("result", "failure")], 1.0);
    let page = page_of(admin);
    assert_eq!(page.value("osier_certificates_missing", &[]), Some(2.0));
    let issued = page.value("osier_certificate_orders_total", &[("result", "success")]);
    assert_eq!(issued, Some(0.0));
    let (_sites, admin) = busy();
    assert_eq!(page_of(admin).value("osier_certificates_missing", &[]), Some(0.0));
}

#[test]
fn connections_are_counted_by_the_reason_of_their_end() {
    let sites = Sites::start(&format!(
        "{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nrespond = \"x\"\n"
    ));
    let admin = admin_of(&sites);
    let closed = "osier_connections_closed_total";
    drop(sites.connect());
    wait_for_value(admin, closed, &[("reason", "client")], 1.0);
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/", &["Connection: close"]);
    client.receive("GET");
    client.receive_rest();
    wait_for_value(admin, closed, &[("reason", "last_response")], 1.0);
    let mut client = sites.connect();
    client.send_raw(b"NONSENSE\r\n\r\n");
    client.receive_rest();
    drop(client);
    wait_for_value(admin, closed, &[("reason", "protocol_error")], 1.0);
    // A request that had no route.
    wait_for_value(admin, REQUESTS, &[("site", ""), ("route", ""), ("code", "400")], 1.0);
    let page = page_of(admin);
    assert_eq!(page.value("osier_connections_accepted_total", &[]), Some(3.0));
    assert_eq!(page.value("osier_connections", &[]), Some(0.0));
}

/// Runs `promtool` with this input. None, with a line that says so, if it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        testkit::skip("promtool is not installed (Debian's package prometheus has it)");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8(said).unwrap()))
}

#[test]
fn promtool_has_no_complaint() {
    let (_sites, admin) = busy();
    if let Some((is_fine, said)) = promtool(&["check", "metrics"], &text_of(admin)) {
        assert!(is_fine && said.is_empty(), "{said}");
    }
    // The expressions of the dashboard are rules of the same language.
    let dashboard: Value = serde_json::from_str(&document("grafana/osier.json")).unwrap();
    let (mut rules, mut count) = (String::from("groups:\n- name: dashboard\n  rules:\n"), 0);
    expressions(&dashboard, &mut |expression| {
        if !expression.starts_with("label_values(") && expression != "prometheus" {
            let expression = expression.replace("$__rate_interval", "5m").replace('\'', "''");
            rules += &format!("  - record: \"osier:number_{count}\"\n    expr: '{expression}'\n");
            count += 1;
        }
    });
    let folder = testkit::Folder::new();
    for (name, rules, count) in [
        ("alerts", document("grafana/alerts.yml"), 10),
        ("dashboard", rules, count),
    ] {
        folder.write(name, rules);
        let file = folder.join(name);
        if let Some((is_fine, said)) = promtool(&["check", "rules", file.to_str().unwrap()], "") {
            assert!(is_fine && said.contains(&format!("SUCCESS: {count} rules")), "{said}");
        }
    }
}

fn document(name: &str) -> String {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(project.join("docs").join(name)).unwrap()
}

#[test]
fn caches_are_counted_and_stay_so_over_a_reload() {
    let file = format!(
        "{ADMIN}[[site]]\ndefault = true\ncache = {{ memory = \"8MiB\", default_ttl = \"1h\" }}\n\
         [[site.route]]\npath = \"/app\"\nproxy = {{ to = \"{}\", strip = true }}\n",
        backend()
    );
    let sites = Sites::start(&file);
    let admin = admin_of(&sites);
    let requests = |result: &str, count: f64| {
        wait_for_value(admin, "osier_cache_requests_total", &[("result", result)], count);
    };
    for _ in 0..3 {
        assert_eq!(sites.get("x", "/app/").status, 200);
    }
    requests("miss", 1.0);
    requests("hit", 2.0);
    assert!(sites.reload(&file.replace("/app", "/application")).contains("reloaded"));
    assert_eq!(sites.get("x", "/application/").status, 200);
    requests("miss", 2.0);
    requests("hit", 2.0);
    let page = page_of(admin);
    let value = |name: &str, labels: &[(&str, &str)]| page.value(name, labels);
    assert_eq!(value("osier_cache_changes_total", &[("event", "stored")]), Some(2.0));
    assert_eq!(value("osier_cache_responses", &[("place", "memory")]), Some(2.0));
    assert!(value("osier_cache_bytes", &[("place", "memory")]) > Some(0.0));
    assert_eq!(value("osier_cache_responses", &[("place", "disk")]), Some(0.0));
}

#[test]
fn the_files_for_slow_clients_are_counted() {
    const LENGTH: usize = 1_000_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A backend that sends more than the client takes.
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        let _ = stream.write_all(&vec![b'x'; 100_000_000]);
    });
    let sites = Sites::start(&format!(
        "{ADMIN}[[site]]\ndefault = true\n[[site.route]]\nproxy = \"{address}\"\n"
    ));
    let admin = admin_of(&sites);
    let bytes = |body: &str| page_of(admin).value("osier_spool_bytes", &[("body", body)]);
    assert_eq!((bytes("request"), bytes("response")), (Some(0.0), Some(0.0)));
    let mut upload = sites.connect();
    send(&mut upload, "POST", "x", "/", &[&format!("Content-Length: {LENGTH}")]);
    upload.send_raw(&vec![b'x'; LENGTH - 1]);
    wait_for("the file of the request", || bytes("request") > Some(500_000.0));
    drop(upload);
    wait_for("its end", || bytes("request") == Some(0.0));
    let mut reader = sites.connect();
    send(&mut reader, "GET", "x", "/", &[]);
    wait_for("the file of the response", || bytes("response") > Some(1e6));
    drop(reader);
    wait_for("its end", || bytes("response") == Some(0.0));
}

#[test]
fn the_documentation_lists_every_metric_as_it_is() {
    let (_sites, admin) = busy();
    let page = page_of(admin);
    let text = document("metrics.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let rows = rows.filter(|(name, _)| name.starts_with("osier_") || name.starts_with("process_"));
    let columns = rows.map(|(name, rest)| (name, rest.split('|').map(str::trim).collect()));
    let documented: BTreeMap<&str, Vec<&str>> = columns.collect();
    let known: BTreeSet<&str> = page.0.keys().map(String::as_str).collect();
    assert_eq!(documented.keys().copied().collect::<BTreeSet<_>>(), known);
    for (name, columns) in documented {
        let family = &page.0[name];
        assert_eq!(columns[0], family.kind, "{name}");
        let quoted = columns[1].split('`').skip(1).step_by(2);
        let labels: BTreeSet<&str> = quoted.collect();
        let (_, sample, _) = family.samples.first().unwrap_or_else(|| panic!("{name} has no sample"));
        let names = |labels: &Labels| labels.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
        let mut shown = names(sample);
        shown.remove("le");
        assert_eq!(labels, shown.iter().map(String::as_str).collect(), "{name}");
        // The table may say more.
        let meaning = columns[2].replace('`', "");
        let help = family.help.trim_end_matches('.');
        let begins = |text: &str| meaning.starts_with(text);
        assert!(
            begins(help) || meaning.contains("](#"),
            "{name}: {meaning:?} and {help:?}"
        );
    }
    for reason in osier_web::CloseReason::ALL {
        assert!(
            text.contains(&format!("| `{}` |", reason.as_str())),
            "{}",
            reason.as_str()
        );
    }
}

/// The names of metrics in an expression.
fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("osier_") || word.starts_with("process_"))
}

/// Checks that the page has every metric of an expression. Returns how many these are.
fn check(page: &Page, expression: &str) -> usize {
    let mut count = 0;
    for name in metrics_in(expression) {
        let has_histogram = |name: Option<&str>| {
            let family = name.and_then(|name| page.0.get(name));
            family.is_some_and(|family| family.kind == "histogram")
        };
        let ends = ["_bucket", "_sum", "_count"];
        let is_known = match page.0.get(name) {
            Some(family) => family.kind != "histogram",
            None => ends.iter().any(|end| has_histogram(name.strip_suffix(end))),
        };
        assert!(is_known, "{name} in {expression}");
        count += 1;
    }
    count
}

/// Calls `found` for every expression of a dashboard.
fn expressions(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if ["expr", "query", "definition"].contains(&&**key) => found(text),
                    _ => expressions(value, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_exist() {
    let (_sites, admin) = busy();
    let page = page_of(admin);
    let dashboard: Value = serde_json::from_str(&document("grafana/osier.json")).unwrap();
    let mut count = 0;
    expressions(&dashboard, &mut |expression| count += check(&page, expression));
    assert!(count > 30, "{count} metrics in the dashboard");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    let alerts = document("grafana/alerts.yml");
    let count: usize = alerts
        .lines()
        .filter(|line| !line.contains("summary:"))
        .map(|line| check(&page, line))
        .sum();
    assert!(count >= 8, "{count} metrics in the alerts");
}
