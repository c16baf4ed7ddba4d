//! The responses that the benchmark's documents ask for, as JSON or byte by byte.
//!
//! curl speaks the protocols. Without it, a test prints that it is skipped.

mod database;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use osier_web::test::Client;
use serde_json::{Value, json};

use crate::settings::{Port, Settings};
use crate::{App, listen, router};

/// A data folder and a certificate of a test's own.
struct Folder(PathBuf);

const SHEET: &str = "p { margin: 0 }\n";

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("osier-arena-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(folder.0.join("static")).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let files = [
            ("dataset.json", dataset().to_string()),
            ("server.crt", made.cert.pem()),
            ("server.key", made.signing_key.serialize_pem()),
            ("static/sheet.css", SHEET.into()),
            ("static/sheet.css.gz", "compressed before".into()),
            ("static/letters.woff2", "letters".into()),
        ];
        for (name, text) in files {
            fs::write(folder.0.join(name), text).unwrap();
        }
        folder
    }

    fn settings(&self) -> Settings {
        let folder = self.0.display().to_string();
        let args = ["--data", &folder, "--certs", &folder].map(String::from);
        Settings::of(args.into_iter(), |_| None).unwrap()
    }

    fn client(&self) -> Client {
        Client::new(router(&App::open(&self.settings()).unwrap()).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// 40 items: more than a kilobyte, so a page of all is worth compressing.
fn dataset() -> Value {
    let item = |id: i64| {
        json!({
            "id": id, "name": format!("Item \"{id}\""), "category": "tools", "price": id * 3, "quantity": 7, "active": id % 2 == 0,
            "tags": ["new", "grüße"], "rating": { "score": 48, "count": id },
        })
    };
    (1..=40).map(item).collect()
}

/// The page that the documents describe.
fn page(count: usize, multiplier: i64) -> Value {
    let mut items = dataset().as_array().unwrap()[..count].to_vec();
    for item in &mut items {
        let total = item["price"].as_i64().unwrap() * item["quantity"].as_i64().unwrap() * multiplier;
        item["total"] = total.into();
    }
    json!({ "items": items, "count": count })
}

#[test]
fn sums_of_queries_and_bodies() {
    let folder = Folder::new();
    let client = folder.client();
    let sum = client.get("/baseline11?a=13&b=42").send();
    assert_eq!(
        (sum.text(), sum.header("content-type")),
        ("55", Some("text/plain; charset=utf-8"))
    );
    assert_eq!(client.get("/baseline2?b=-3&a=1").send().text(), "-2");
    assert_eq!(
        client.get("/baseline11?a=2147483647&b=2147483647").send().text(),
        "4294967294"
    );
    assert_eq!(client.post("/baseline11?a=13&b=42").body("20").send().text(), "75");
    let chunked = client.post("/baseline11?a=13&b=42").reader(" 20\n".as_bytes()).send();
    assert_eq!(chunked.text(), "75");
    assert_eq!(client.get("/baseline11?a=13").send().status(), 400);
    assert_eq!(client.post("/baseline11?a=13&b=42").body("many").send().status(), 422);
    assert_eq!(client.put("/baseline11?a=13&b=42").send().status(), 405);
}

#[test]
fn uploads_are_counted() {
    let folder = Folder::new();
    let client = folder.client();
    assert_eq!(client.post("/upload").body("seventeen bytes..").send().text(), "17");
    assert_eq!(client.post("/upload").send().text(), "0");
    let large = client.post("/upload").reader(std::io::repeat(7).take(20 << 20)).send();
    assert_eq!(large.text(), (20 << 20).to_string());
    let too_large = client.post("/upload").sized_reader(std::io::empty(), 33 << 20).send();
    assert_eq!(too_large.status(), 413);
}

#[test]
fn pages_of_the_dataset() {
    let folder = Folder::new();
    let client = folder.client();
    for (path, expected) in [
        ("/json/1?m=3", page(1, 3)),
        ("/json/40?m=-8", page(40, -8)),
        ("/json/25", page(25, 1)),
        ("/json/0?m=2", page(0, 2)),
        ("/json/50?m=2", page(40, 2)),
    ] {
        let reply = client.get(path).send();
        assert_eq!(reply.header("content-type"), Some("application/json"), "{path}");
        assert_eq!(reply.header("content-encoding"), None, "{path}");
        assert_eq!(reply.json::<Value>().unwrap(), expected, "{path}");
    }
    assert_eq!(client.get("/json/many").send().status(), 400);
    assert_eq!(client.get("/json/5?m=x").send().status(), 400);

    let compressed = client.get("/json/40?m=2").header("accept-encoding", "gzip, br").send();
    assert_eq!(compressed.header("content-encoding"), Some("gzip"));
    assert!(compressed.body().len() < page(40, 2).to_string().len() / 2);
}

#[test]
fn static_files_come_from_the_disk() {
    let folder = Folder::new();
    let client = folder.client();
    let sheet = client.get("/static/sheet.css").send();
    assert_eq!(
        (sheet.text(), sheet.header("content-type")),
        (SHEET, Some("text/css; charset=utf-8"))
    );
    let compressed = client
        .get("/static/sheet.css")
        .header("accept-encoding", "br;q=1, gzip;q=0.8")
        .send();
    assert_eq!(compressed.header("content-encoding"), Some("gzip"));
    assert_eq!(compressed.text(), "compressed before");
    let letters = client.get("/static/letters.woff2").send();
    assert_eq!(
        (letters.text(), letters.header("content-type")),
        ("letters", Some("font/woff2"))
    );
    // No copy is kept: a change of the open file shows at once.
    fs::write(folder.0.join("static/sheet.css"), SHEET.to_uppercase()).unwrap();
    assert_eq!(client.get("/static/sheet.css").send().text(), SHEET.to_uppercase());
    for path in [
        "/static/missing.txt",
        "/static/../dataset.json",
        "/static/%2e%2e/dataset.json",
    ] {
        assert!(client.get(path).send().status().is_client_error(), "{path}");
    }
}

#[test]
fn messages_come_back() {
    let folder = Folder::new();
    let client = folder.client();
    assert_eq!(client.get("/ws").send().status(), 400);
    let reply = client
        .get("/ws")
        .header("sec-websocket-version", 13)
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .upgrade("websocket");
    let (reply, stream) = reply;
    assert_eq!(
        reply.header("sec-websocket-accept"),
        Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    );
    let mut stream = stream.unwrap();
    // FIN and text, masked by zeros; then a close with code 1000.
    stream
        .write_all(b"\x81\x85\0\0\0\0hello\x82\x82\0\0\0\0\x01\x02\x88\x82\0\0\0\0\x03\xe8")
        .unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"\x81\x05hello\x82\x02\x01\x02\x88\x02\x03\xe8");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let folder = Folder::new();
    let settings = folder.settings();
    osier_peers::run(|| {
        let app = App::open(&settings).unwrap();
        let server = listen(&settings, &app, Port::Http, "127.0.0.1:0").unwrap();
        let (addr, stop) = (server.local_addr(), server.handle());
        osier::spawn(move || server.run());
        let ask = move || {
            let mut stream = TcpStream::connect(addr)?;
            stream.write_all("GET /pipeline HTTP/1.1\r\nHost: a\r\n\r\n".repeat(15).as_bytes())?;
            stream.write_all(b"GET /baseline11?a=1&b=2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            std::io::Result::Ok(text)
        };
        let text = osier::unblock(ask).unwrap();
        let without_dates: Vec<&str> = text.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
        let ok = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 2\r\n\r\nok";
        let last = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 1\r\nconnection: close\r\n\r\n3";
        assert_eq!(without_dates.join("\r\n"), ok.repeat(15) + last);
        stop.shutdown();
    });
}

/// Asks for a URL by curl. Returns the protocol with the status, and the body.
fn curl(args: &[&str], url: String) -> (String, String) {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--insecure",
        "--max-time",
        "20",
        "--write-out",
        "\n%{http_version} %{http_code}",
    ]);
    curl.args(args).arg(url);
    let output = osier::unblock(move || curl.output()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, spoken) = text.rsplit_once('\n').unwrap();
    (spoken.into(), body.into())
}

#[test]
fn each_port_speaks_its_protocol() {
    if Command::new("curl").arg("--version").output().is_err() {
        return println!("skipped: there is no curl");
    }
    let folder = Folder::new();
    let settings = folder.settings();
    let ports = [Port::Http, Port::Https, Port::H2c, Port::H2];
    assert_eq!(settings.ports().map(|(port, _)| port).collect::<Vec<_>>(), ports);
    osier_peers::run(|| {
        let app = App::open(&settings).unwrap();
        let mut handles = vec![];
        let [http, https, h2c, h2] = ports.map(|port| {
            let server = listen(&settings, &app, port, "127.0.0.1:0").unwrap();
            let port = server.local_addr().port();
            handles.push(server.handle());
            osier::spawn(move || server.run());
            port
        });
        let sum = "baseline2?a=13&b=42";
        for (args, url, expected) in [
            (&[][..], format!("http://127.0.0.1:{http}/{sum}"), "1.1 200"),
            (&["--http2"], format!("https://127.0.0.1:{https}/{sum}"), "1.1 200"),
            (&["--http2"], format!("https://127.0.0.1:{h2}/{sum}"), "2 200"),
            (
                &["--http2-prior-knowledge"],
                format!("http://127.0.0.1:{h2c}/{sum}"),
                "2 200",
            ),
        ] {
            assert_eq!(curl(args, url.clone()), (expected.into(), "55".into()), "{url}");
        }
        let refused = curl(&["--http1.1"], format!("http://127.0.0.1:{h2c}/{sum}"));
        assert_eq!(refused, ("1.1 505".into(), String::new()));
        let page_by_h2c = curl(
            &["--http2-prior-knowledge"],
            format!("http://127.0.0.1:{h2c}/json/12?m=3"),
        );
        assert_eq!(serde_json::from_str::<Value>(&page_by_h2c.1).unwrap(), page(12, 3));
        handles.iter().for_each(|handle| handle.shutdown());
    });
}
