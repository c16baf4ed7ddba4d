//! Tests of the metrics page, which is parsed strictly, and of both pages over real sockets.

use super::series::Record;
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use osier_web::{Request, Server};
use testkit::exposition::Page;

const REQUESTS: &str = "osier_http_requests_total";

fn admin(connections: usize) -> Arc<Admin> {
    let open = move || Open {
        all: connections,
        protocols: Protocol::ALL.iter().copied().zip(1..).collect(),
    };
    Arc::new(Admin::new(
        Arc::new(Totals::new(2)),
        open,
        Box::new(|_| Held::default()),
    ))
}

/// A snapshot with these routes, and their numbers.
fn shown(routes: &[(&str, &str)]) -> (Arc<Shown>, Vec<u16>) {
    let mut table = Routes::new(2, None);
    let numbers = routes
        .iter()
        .map(|(site, route)| table.add(None, site, route))
        .collect();
    let shown = Shown {
        routes: table,
        gateways: Vec::new(),
        chats: Vec::new(),
        stores: Vec::new(),
    };
    (Arc::new(shown), numbers)
}

fn record(status: u16, received: u64, sent: u64, took: Duration) -> Record {
    Record {
        status,
        received,
        sent,
        nanos: took.as_nanos() as u64,
    }
}

#[test]
fn records_are_added_up_under_names_of_any_kind() {
    let admin = admin(7);
    let odd = "a\"b\\c\nd";
    let (shown, numbers) = shown(&[("example.org", "/"), (odd, "/p{h}p"), ("quiet", "/")]);
    admin.show(&shown);
    let one = shown.routes.get(numbers[0]);
    for _ in 0..3 {
        one.record(&record(200, 5, 100, Duration::from_micros(30)));
    }
    one.record(&record(404, 0, 10, Duration::from_secs(100)));
    shown.routes.get(numbers[1]).record(&record(499, 0, 0, Duration::ZERO));

    let page = Page::parse(&admin.page(&[]));
    let requests = |site, route, code| page.value(REQUESTS, &[("site", site), ("route", route), ("code", code)]);
    assert_eq!(requests("example.org", "/", "200"), Some(3.0));
    assert_eq!(requests("example.org", "/", "404"), Some(1.0));
    assert_eq!(requests(odd, "/p{h}p", "499"), Some(1.0));
    assert_eq!(requests("quiet", "/", "200"), Some(0.0));
    let of_one = [("site", "example.org")];
    assert_eq!(page.value("osier_http_response_body_bytes_total", &of_one), Some(310.0));
    assert_eq!(page.value("osier_http_request_body_bytes_total", &of_one), Some(15.0));
    let name = "osier_http_request_duration_seconds";
    let bucket = |le| page.value(&format!("{name}_bucket"), &[("site", "example.org"), ("le", le)]);
    assert_eq!(
        (bucket("0.000025"), bucket("0.0001"), bucket("10"), bucket("+Inf")),
        (Some(0.0), Some(3.0), Some(3.0), Some(4.0))
    );
    assert_eq!(page.value(&format!("{name}_count"), &of_one), Some(4.0));
    assert_eq!(page.value(&format!("{name}_sum"), &of_one), Some(100.000_09));
    assert_eq!(page.value(&format!("{name}_count"), &[("site", "quiet")]), None);
    assert_eq!(page.value("osier_connections", &[]), Some(7.0));
    let speak = |protocol, tls| page.value("osier_connections_by_protocol", &[("protocol", protocol), ("tls", tls)]);
    assert_eq!(
        (
            speak("h2c", "none"),
            speak("h2", "TLSv1.3"),
            speak("http/1.1", "TLSv1.2")
        ),
        (Some(2.0), Some(7.0), Some(4.0))
    );
    assert_eq!(
        page.value("osier_build_info", &[("version", env!("CARGO_PKG_VERSION"))]),
        Some(1.0)
    );
}

#[test]
fn the_page_of_many_routes_is_bounded() {
    let admin = admin(0);
    let names: Vec<String> = (0..ROUTES_MAX + 10).map(|number| format!("/{number}")).collect();
    let routes: Vec<(&str, &str)> = names.iter().map(|route| ("a", &**route)).collect();
    let (shown, numbers) = shown(&routes);
    admin.show(&shown);
    for number in numbers {
        shown.routes.get(number).record(&record(204, 0, 0, Duration::ZERO));
    }
    // The page is so large that it is not parsed, which takes a build without optimisation seconds.
    let page = admin.page(&[]);
    let samples = || page.lines().filter(|line| !line.starts_with('#'));
    let is_other = |line: &&str| {
        let labels = ["site=\"\"", "route=\"other\"", "code=\"204\""];
        line.starts_with(REQUESTS) && labels.iter().all(|label| line.contains(label))
    };
    let other: Vec<&str> = samples().filter(is_other).collect();
    assert!(matches!(other[..], [line] if line.ends_with("} 10")), "{other:?}");
    // Codes 200 and 204, two sums of bytes, and two histograms: of the whole time, and of the phase `run`.
    let of_route = 2 + 2 + osier_web::upstream::Latency::BOUNDS.len() + 3 + series::PHASE_BOUNDS.len() + 3;
    let most = (ROUTES_MAX + 2) * of_route + 200;
    assert!(samples().count() < most, "{} of {most}", samples().count());
}

fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.into())
}

#[test]
fn a_server_of_two_workers_is_counted_on_a_listener_of_its_own() {
    let (addresses, served) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = osier::Runtime::builder().workers(2).build().unwrap();
        runtime.run(move || {
            let admin = admin(0);
            let (shown, numbers) = shown(&[("test", "/")]);
            admin.show(&shown);
            let site = Router::new().get("/{status}", |request: &mut Request<'_>| {
                let status = request
                    .param("status")
                    .and_then(|status| status.parse().ok())
                    .unwrap_or(404);
                Response::new(StatusCode::from_u16(status).unwrap()).body("twelve bytes")
            });
            let totals = Arc::clone(&admin.totals);
            let site = Server::new(site)
                .on_connection(move |event| totals.count(event))
                .on_request(move |served| shown.routes.get(numbers[0]).record_served(served))
                .bind("127.0.0.1:0")
                .unwrap();
            let page = Server::new(admin.router(|_| Ok(()))).bind("127.0.0.1:0").unwrap();
            addresses.send((site.local_addr(), page.local_addr(), admin)).unwrap();
            let stops = [site.handle(), page.handle()];
            let fibers = [osier::spawn(|| site.run()), osier::spawn(|| page.run())];
            osier::unblock(move || wait.recv().unwrap());
            stops.iter().for_each(|stop| stop.shutdown());
            fibers.into_iter().for_each(|fiber| drop(fiber.join()));
        });
    });
    let (site, page, admin) = served.recv().unwrap();
    let asked = 40;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..asked / 4 {
                    get(site, if turn % 5 == 0 { "/503" } else { "/200" });
                }
            });
        }
    });
    let (head, _) = get(page, "/metrics");
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    let closed = [("reason", "last_response")];
    let parsed = testkit::wait_for("the last connection's end", || {
        let parsed = Page::parse(&get(page, "/metrics").1);
        (parsed.value("osier_connections_closed_total", &closed) == Some(f64::from(asked))).then_some(parsed)
    });
    let value = |name: &str, labels: &[(&str, &str)]| parsed.value(name, labels).unwrap_or_else(|| panic!("{name}"));
    let requests = |code| value(REQUESTS, &[("site", "test"), ("route", "/"), ("code", code)]);
    assert_eq!((requests("200"), requests("503")), (32.0, 8.0));
    assert_eq!(
        value("osier_http_response_body_bytes_total", &[("site", "test")]),
        12.0 * f64::from(asked)
    );
    assert_eq!(
        value("osier_http_request_duration_seconds_count", &[("site", "test")]),
        f64::from(asked)
    );
    assert_eq!(value("osier_connections_accepted_total", &[]), f64::from(asked));
    for worker in ["0", "1"] {
        let worker = [("worker", worker)];
        let turns = value("osier_worker_turn_seconds_count", &worker);
        assert!(turns > 0.0 && value("osier_worker_turn_seconds_sum", &worker) > 0.0);
    }
    assert!(value("osier_worker_fibers_started_total", &[("worker", "0")]) > 0.0);
    println!("{} families", parsed.0.len());

    let (head, body) = get(page, "/health");
    assert!(
        head.starts_with("http/1.1 200") && head.contains("cache-control: no-store"),
        "{head}"
    );
    assert_eq!(body, "ok\n");
    admin.drain();
    let (head, body) = get(page, "/health");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "draining\n");
    let parsed = Page::parse(&get(page, "/metrics").1);
    assert_eq!(parsed.value("osier_draining", &[]), Some(1.0));
    // The admin listener serves nothing else, and the site serves none of it.
    assert!(get(page, "/").0.starts_with("http/1.1 404"));
    assert!(get(site, "/health").0.starts_with("http/1.1 404"));
    done.send(()).unwrap();
    server.join().unwrap();
}
