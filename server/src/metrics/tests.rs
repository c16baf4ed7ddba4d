//! Tests of the series, of the metrics page, which is parsed strictly, and of both pages over real sockets.

use super::*;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use osier_web::{Request, Server};

type Labels = Vec<(String, String)>;

/// One family of a page.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// Name, labels and value of each sample.
    samples: Vec<(String, Labels, f64)>,
}

/// Parses a page. It panics at everything that the format does not allow.
fn parse(page: &str) -> HashMap<String, Family> {
    assert!(page.ends_with('\n') && !page.contains("\n\n"));
    let mut families: HashMap<String, Family> = HashMap::new();
    let mut seen = HashSet::new();
    let mut current = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty() && is_name(name), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let family = Family {
                kind: kind.into(),
                samples: Vec::new(),
            };
            assert!(families.insert(name.into(), family).is_none(), "{name} twice");
            current = name.into();
            continue;
        }
        assert!(!line.starts_with('#'), "{line}");
        let (name, labels, value) = sample(line);
        let family = families.get_mut(&current).unwrap();
        let suffix = name
            .strip_prefix(&current)
            .unwrap_or_else(|| panic!("{name} below {current}"));
        let allowed: &[&str] = if family.kind == "histogram" {
            &["_bucket", "_sum", "_count"]
        } else {
            &[""]
        };
        assert!(allowed.contains(&suffix), "{line}");
        let names: HashSet<_> = labels.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), labels.len(), "{line}");
        let mut sorted = labels.clone();
        sorted.sort();
        assert!(seen.insert((name.clone(), sorted)), "twice: {line}");
        family.samples.push((name, labels, value));
    }
    families
        .iter()
        .filter(|(_, family)| family.kind == "histogram")
        .for_each(|(name, family)| check(name, family));
    families
}

fn is_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    while rest.starts_with(['{', ',']) {
        let (label, after) = rest[1..].split_once("=\"").unwrap();
        assert!(is_name(label), "{line}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().unwrap().1 {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    other => panic!("\\{other} in {line}"),
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((label.to_owned(), value));
        rest = &after[end + 1..];
        assert!(rest.starts_with([',', '}']), "{line}");
    }
    let value = rest.strip_prefix('}').unwrap_or(rest).strip_prefix(' ').unwrap();
    (name.into(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// Checks that bucket counts rise up to the total, and that their bounds rise up to infinity.
fn check(name: &str, family: &Family) {
    let mut by_labels: HashMap<Labels, Vec<(f64, f64)>> = HashMap::new();
    for (sample, labels, value) in &family.samples {
        if *sample == format!("{name}_bucket") {
            let (bound, others): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(label, _)| label == "le");
            by_labels
                .entry(others)
                .or_default()
                .push((bound[0].1.parse().unwrap(), *value));
        }
    }
    for (labels, buckets) in by_labels {
        assert!(
            buckets.is_sorted() && buckets.is_sorted_by_key(|(_, count)| *count),
            "{buckets:?}"
        );
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let of = |suffix: &str| {
            let wanted = format!("{name}{suffix}");
            let mut found = family
                .samples
                .iter()
                .filter(|(sample, known, _)| *sample == wanted && *known == labels);
            found.next().unwrap().2
        };
        assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, of("_count")));
        assert!(of("_sum") >= 0.0);
    }
}

fn value(families: &HashMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = families
        .iter()
        .find(|(family, _)| name.starts_with(family.as_str()) && !families.contains_key(name) || *family == name);
    let fits = |known: &[(String, String)]| {
        labels
            .iter()
            .all(|(label, value)| known.iter().any(|(l, v)| l == label && v == value))
    };
    let samples = &family.unwrap().1.samples;
    samples
        .iter()
        .find(|(sample, known, _)| sample == name && fits(known))
        .unwrap_or_else(|| panic!("{name} {labels:?}"))
        .2
}

#[test]
fn buckets_are_powers_of_two_that_hold_their_bound() {
    for (nanos, expected) in [
        (0, 0),
        (1, 0),
        (1024, 0),
        (1025, 1),
        (2048, 1),
        (2049, 2),
        (1 << 36, 26),
        ((1 << 36) + 1, 27),
        (1 << 40, 27),
        (u64::MAX, 27),
    ] {
        assert_eq!(bucket(nanos), expected, "{nanos}");
    }
    assert_eq!([100, 204, 301, 499, 599, 600, 0].map(class), [0, 1, 2, 3, 4, 5, 5]);
}

#[test]
fn series_are_bounded_and_keep_their_indexes() {
    let admin = Admin::new(1, || 0);
    assert_eq!(admin.series("", ""), 0);
    let first = admin.series("a", "/");
    for number in 0..2 * SERIES_MAX {
        admin.series("a", &format!("/{number}"));
    }
    assert_eq!((first, admin.series("a", "/"), admin.series("b", "/")), (1, 1, 0));
    assert_eq!(admin.all().len(), SERIES_MAX);
}

fn series(admin: &Admin, site: &str, route: &str) -> Arc<Series> {
    let index = admin.series(site, route);
    admin.all()[usize::from(index)].clone()
}

#[test]
fn records_are_added_up_under_names_of_any_kind() {
    let admin = Admin::new(2, || 7);
    let odd = "a\"b\\c\nd";
    let series = |site: &str, route: &str| series(&admin, site, route);
    let one = series("example.org", "/");
    let other = series(odd, "/p{h}p");
    for _ in 0..3 {
        one.record(200, 100, Duration::from_micros(3));
    }
    one.record(404, 10, Duration::from_secs(100));
    other.record(499, 0, Duration::ZERO);
    // The same names after a reload give the same series.
    series("example.org", "/").record(302, 0, Duration::from_millis(1));

    let families = parse(&admin.page(&[]));
    let requests = |site, route, status| {
        value(
            &families,
            "osier_http_requests_total",
            &[("site", site), ("route", route), ("status", status)],
        )
    };
    assert_eq!(requests("example.org", "/", "2xx"), 3.0);
    assert_eq!(requests("example.org", "/", "3xx"), 1.0);
    assert_eq!(requests("example.org", "/", "4xx"), 1.0);
    assert_eq!(requests(odd, "/p{h}p", "4xx"), 1.0);
    assert_eq!(
        value(
            &families,
            "osier_http_response_body_bytes_total",
            &[("site", "example.org")]
        ),
        310.0
    );
    let name = "osier_http_request_duration_seconds";
    let bucket = |le| {
        value(
            &families,
            &format!("{name}_bucket"),
            &[("site", "example.org"), ("le", le)],
        )
    };
    assert_eq!(
        (bucket("0.000002048"), bucket("0.000004096"), bucket("+Inf")),
        (0.0, 3.0, 5.0)
    );
    assert_eq!(
        value(&families, &format!("{name}_count"), &[("site", "example.org")]),
        5.0
    );
    let sum = value(&families, &format!("{name}_sum"), &[("site", "example.org")]);
    assert!((sum - 100.001009).abs() < 1e-9, "{sum}");
    assert_eq!(value(&families, "osier_connections", &[]), 7.0);
    assert_eq!(
        value(&families, "osier_build_info", &[("version", env!("CARGO_PKG_VERSION"))]),
        1.0
    );
}

fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.into())
}

#[test]
fn a_server_of_two_workers_is_told_of_on_a_listener_of_its_own() {
    let (addresses, served) = mpsc::channel();
    let (done, wait) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = osier::Runtime::builder().workers(2).build().unwrap();
        runtime.run(move || {
            let admin = Arc::new(Admin::new(osier::workers(), || 0));
            let series = series(&admin, "test", "/");
            let site = Router::new().get("/{status}", |request: &mut Request<'_>| {
                let status = request
                    .param("status")
                    .and_then(|status| status.parse().ok())
                    .unwrap_or(404);
                Response::new(StatusCode::from_u16(status).unwrap()).body("twelve bytes")
            });
            let site = Server::new(site)
                .on_request(move |served| series.record(served.status().as_u16(), served.bytes(), served.duration()))
                .bind("127.0.0.1:0")
                .unwrap();
            let page = Server::new(admin.router()).bind("127.0.0.1:0").unwrap();
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
    let (head, body) = get(page, "/metrics");
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    let families = parse(&body);
    let requests = |status| {
        value(
            &families,
            "osier_http_requests_total",
            &[("site", "test"), ("route", "/"), ("status", status)],
        )
    };
    assert_eq!((requests("2xx"), requests("5xx")), (32.0, 8.0));
    assert_eq!(
        value(&families, "osier_http_response_body_bytes_total", &[("site", "test")]),
        12.0 * f64::from(asked)
    );
    assert_eq!(
        value(
            &families,
            "osier_http_request_duration_seconds_count",
            &[("site", "test")]
        ),
        f64::from(asked)
    );
    for worker in ["0", "1"] {
        assert!(value(&families, "osier_worker_turns_total", &[("worker", worker)]) > 0.0);
        let turn = |quantile| {
            value(
                &families,
                "osier_worker_turn_seconds",
                &[("worker", worker), ("quantile", quantile)],
            )
        };
        assert!(turn("0.5") <= turn("0.99") && turn("0.99") <= turn("1"));
    }
    assert!(value(&families, "osier_worker_fibers_started_total", &[("worker", "0")]) > 0.0);
    println!("{} families", families.len());

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
    assert_eq!(value(&parse(&get(page, "/metrics").1), "osier_draining", &[]), 1.0);
    // The admin listener serves nothing else, and the site serves none of it.
    assert!(get(page, "/").0.starts_with("http/1.1 404"));
    assert!(get(site, "/health").0.starts_with("http/1.1 404"));
    done.send(()).unwrap();
    server.join().unwrap();
}
