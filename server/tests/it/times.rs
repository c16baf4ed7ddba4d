//! Where the time of a request goes, as an operator sees it: in the access log, on the metrics page, in `Server-Timing`, and in
//! the line about a slow request.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use crate::metrics::{admin_of, page_of};
use crate::support::sites::{Sites, send, wait_for};
use crate::support::{Client, osier};

/// A backend that answers each request when it is told to.
fn backend() -> (SocketAddr, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (go_on, told) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut client = Client::over(stream.try_clone().unwrap());
            client.receive_head_of_request();
            if told.recv().is_err() {
                return;
            }
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
            stream.write_all(response).unwrap();
        }
    });
    (address, go_on)
}

#[test]
fn a_slow_request_is_seen_while_it_waits_and_afterwards() {
    let (address, go_on) = backend();
    let sites = Sites::start(&format!(
        "[admin]\naddress = \"127.0.0.1:0\"\n\
         [[site]]\ndefault = true\nserver_timing = true\nslow = \"100ms\"\n\
         log = {{ file = \"access\", format = \"json\", fields = [\"path\", \"upstream_ms\", \"times\"] }}\n\
         [[site.route]]\npath = \"/quick\"\nslow = false\nserver_timing = false\nrespond = 200\n\
         [[site.route]]\nproxy = \"{address}\"\n"
    ));
    let mut client = sites.connect();
    // A request whose client sends more than the server reads ahead keeps its fiber, however late `osier top` asks. Another one would wait
    // without a fiber after a second.
    send(&mut client, "GET", "x", "/slow", &["Connection: close"]);
    client.send_raw(&[b'x'; 40_000]);
    // The backend has not answered.
    let said = sites.wait_until_said(" so far (");
    let line = said.lines().find(|line| line.contains(" so far (")).unwrap();
    assert!(line.contains(" warning ") && line.contains(" id="), "{line}");
    assert!(
        line.contains("osier: GET /slow, 127.0.0.1:") && line.contains("upstream "),
        "{line}"
    );
    assert!(line.contains("it is in 'upstream', waiting to read socket "), "{line}");
    assert!(line.contains(&format!(" to {address}; backtrace: ")), "{line}");
    let top = || osier().args(["top", &admin_of(&sites).to_string()]).output().unwrap();
    let view = String::from_utf8(top().stdout).unwrap();
    assert!(view.contains("fibers by the place where they wait"), "{view}");
    let (_, slow) = view.split_once("slow requests, by how long they wait now\n").unwrap();
    assert!(
        slow.lines().next().unwrap().contains("s  GET /slow, 127.0.0.1:"),
        "{view}"
    );
    assert!(
        view.contains("(GET /slow, 127.0.0.1:") && !view.contains("\x1b"),
        "{view}"
    );
    go_on.send(()).unwrap();
    let reply = client.receive("GET");
    let timing = reply.field("server-timing").unwrap().to_owned();
    let waited = timing.split(", ").find_map(|part| part.strip_prefix("upstream;dur="));
    assert!(waited.unwrap().parse::<f64>().unwrap() >= 100.0, "{timing}");
    let quick = sites.get("x", "/quick");
    assert_eq!((quick.status, quick.field("server-timing")), (200, None));
    assert_eq!(sites.said().matches(" has taken ").count(), 1, "{}", sites.said());

    let log = || std::fs::read_to_string(sites.folder.join("access")).unwrap_or_default();
    wait_for("both lines", || log().lines().count() == 2);
    let lines: Vec<Value> = log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [slow, quick] = &lines[..] else {
        unreachable!("two lines")
    };
    let waited = slow["upstream_ms"].as_f64().unwrap();
    assert!(
        waited >= 100.0 && slow["times"]["upstream"].as_f64() == Some(waited),
        "{slow}"
    );
    assert!(slow["times"]["run"].as_f64().unwrap() > 0.0, "{slow}");
    assert_eq!(quick["upstream_ms"].as_f64(), Some(0.0));
    assert!(
        quick["times"].get("upstream").is_none() && quick["times"].get("run").is_some(),
        "{quick}"
    );

    let view = String::from_utf8(top().stdout).unwrap();
    assert!(view.contains("default /: ") && view.contains("upstream "), "{view}");
    let nobody = osier().args(["top", "127.0.0.1:1"]).output().unwrap();
    assert!(
        nobody.status.code() == Some(2) && nobody.stderr.starts_with(b"osier: cannot ask 127.0.0.1:1 for /metrics")
    );

    let page = page_of(admin_of(&sites));
    let value = |name: &str, route: &str, phase: &str| {
        let labels = [("site", "default"), ("route", route), ("phase", phase)];
        page.value(name, &labels)
    };
    let count = "osier_http_request_phase_seconds_count";
    assert_eq!(value(count, "/", "upstream"), Some(1.0));
    assert_eq!(value(count, "/quick", "upstream"), None);
    assert_eq!(value(count, "/quick", "run"), Some(1.0));
    let sum = value("osier_http_request_phase_seconds_sum", "/", "upstream").unwrap();
    assert!((sum * 1000.0 - waited).abs() < 0.001, "{sum} {waited}");
}

/// Its backend sends nothing for more than a second.
#[test]
fn a_slow_request_without_a_fiber_is_seen_while_it_waits() {
    let (address, go_on) = backend();
    let sites = Sites::start(&format!(
        "[admin]\naddress = \"127.0.0.1:0\"\n[[site]]\ndefault = true\n[[site.route]]\nproxy = \"{address}\"\n"
    ));
    let mut client = sites.connect();
    send(&mut client, "GET", "x", "/slow", &["Connection: close"]);
    let top = || {
        let said = osier().args(["top", &admin_of(&sites).to_string()]).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    wait_for("it is among the slow requests, without a fiber", || {
        let view = top();
        let slow = view.split_once("slow requests, by how long they wait now\n");
        let is_it = |line: &str| line.contains("s  GET /slow, 127.0.0.1:") && line.ends_with(", in 'upstream'");
        slow.is_some_and(|(_, slow)| slow.lines().any(is_it))
    });
    go_on.send(()).unwrap();
    assert_eq!(client.receive("GET").status, 200);
    assert!(!top().contains("without a fiber"));
}
