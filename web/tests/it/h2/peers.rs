//! Clients that are not ours: curl, nghttp, h2load, h2spec, and Python's `h2`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use osier::sync::Event;
use osier_web::files::Files;
use osier_web::tls::Acceptor;
use osier_web::{Body, Limits, Request, Response, Router, Server, http::StatusCode};
use testkit::Folder;

use super::router;
use crate::common::folder::prose;
use crate::common::{PATIENCE, Site, site_with};
use crate::tls::LOCALHOST;

fn started(router: Router) -> Site {
    let limits = Limits {
        body: 16 << 20,
        ..Limits::default()
    };
    let server = Server::new(router).limits(limits);
    site_with(2, server, |server| server.bind("127.0.0.1:0"))
}

/// Runs a program to its end and returns its output. `None` if the program is missing.
fn run(program: &str, args: &[&str], stdin: &[u8]) -> Option<String> {
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: {program} cannot be started: {error}");
            return None;
        }
    };
    let mut input = child.stdin.take().expect("piped");
    let stdin = stdin.to_vec();
    let feeder = std::thread::spawn(move || drop(input.write_all(&stdin)));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("fed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if complaint.contains("No module named 'h2'") {
        println!("skipped: {program} has no module h2");
        return None;
    }
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{said}\n{complaint}",
        output.status
    );
    Some(said)
}

fn curl(args: &[&str], stdin: &[u8]) -> Option<String> {
    let usual = ["--http2-prior-knowledge", "-sS", "--max-time", "20", "--noproxy", "*"];
    run("curl", &[&usual, args].concat(), stdin)
}

#[test]
fn curl_with_prior_knowledge_is_served() {
    let site = started(router());
    let url = |path: &str| format!("http://{}{path}", site.addr);
    let Some(text) = curl(&["-w", " %{http_version}", &url("/")], b"") else {
        return;
    };
    assert_eq!(text, "hello 2");
    // curl 7.88 does not use a connection with prior knowledge twice (its issue 10634), so each call is one request.
    let head = curl(&["-I", &url("/")], b"").unwrap_or_default();
    assert!(
        head.starts_with("HTTP/2 200 ") && head.contains("content-length: 5\r\n"),
        "{head}"
    );
    let body = prose(3_000_000);
    assert_eq!(
        curl(&["--data-binary", "@-", &url("/count")], &body).as_deref(),
        Some("3000000")
    );
    let echoed = curl(&["-X", "POST", "-T", "-", &url("/echo")], &body);
    assert!(echoed.is_some_and(|echoed| echoed.as_bytes() == body));
    assert_eq!(
        curl(&[&url("/stream/1000")], b"").map(|text| text.lines().count()),
        Some(1000)
    );
    // The answer comes before the body, which nobody reads. This curl takes a reset for a failure.
    for _ in 0..20 {
        let refused = curl(&["-d", "unread", "-w", " %{http_code}", &url("/nothing")], b"");
        assert!(refused.is_some_and(|said| said.ends_with(" 404")));
    }
}

#[test]
fn nghttp_is_served() {
    let site = started(router());
    let url = |path: &str| format!("http://{}{path}", site.addr);
    let Some(said) = run(
        "nghttp",
        &["-nv", "--no-dep", &url("/"), &url("/stream/10"), &url("/big/100000")],
        b"",
    ) else {
        return;
    };
    assert_eq!(said.matches(":status: 200").count(), 3, "{said}");
    assert!(
        said.contains("SETTINGS_ENABLE_CONNECT_PROTOCOL") || said.contains("UNKNOWN(0x8)") || said.contains("0x08"),
        "{said}"
    );
    // With a trailer, padding, a small window and priorities.
    let folder = Folder::new();
    folder.write("body", prose(200_000));
    let file = folder.join("body");
    let args = [
        "-d",
        file.to_str().unwrap(),
        "--trailer",
        "x-sum: 1",
        "-b",
        "100",
        "-w",
        "14",
        "-W",
        "16",
        &url("/count"),
    ];
    assert_eq!(run("nghttp", &args, b"").as_deref(), Some("200000"));
}

#[test]
fn h2load_is_served_with_many_streams() {
    let folder = Folder::new();
    folder.write("a", prose(16 << 10));
    let router = router().fallback(Files::open(folder.path()).unwrap().handler());
    let site = site_with(2, Server::new(router), |server| server.bind("127.0.0.1:0"));
    for (path, bytes) in [("/", 5), ("/a", 16 << 10), ("/stream/100", 890)] {
        let url = format!("http://{}{path}", site.addr);
        let Some(said) = run("h2load", &["-n", "1000", "-c", "8", "-m", "50", &url], b"") else {
            return;
        };
        let requests = "requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(said.contains(requests), "{said}");
        assert!(said.contains(&format!("({}) data", 1000 * bytes)), "{path}: {said}");
    }
}

/// Cases of h2spec that this server fails, because it does something else on purpose.
const ON_PURPOSE: [&str; 2] = [
    // RFC 9113 5.3.2 has no priorities any more: what they depend on is not read.
    "Sends HEADERS frame that depends on itself",
    "Sends PRIORITY frame that depend on itself",
];

#[test]
fn h2spec_finds_nothing_but_what_is_so_on_purpose() {
    // The body is read first: a response that comes before the end of the request would hide the mistakes behind it.
    let reading = |request: &mut Request<'_>| {
        std::io::copy(request.body(), &mut std::io::sink()).map(|count| format!("{count} bytes"))
    };
    let router = || Router::new().fallback(reading);
    let clear = site_with(2, Server::new(router()), |server| server.bind("127.0.0.1:0"));
    let secure = started_with_tls(router());
    for (site, tls) in [(&clear, &[][..]), (&secure, &["-t", "-k"])] {
        let port = site.addr.port().to_string();
        // Strict mode has the cases of SHOULD, too.
        let run = Command::new("h2spec")
            .args(["-S", "-o", "10", "-p", &port])
            .args(tls)
            .output();
        let output = match run {
            Ok(output) => output,
            Err(error) => return println!("skipped: h2spec cannot be started: {error}"),
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (cases, failures) = said.split_once("Failures:").unwrap_or((&said, ""));
        assert!(cases.matches('\u{2714}').count() >= 100, "{said}");
        let failed = failures.lines().filter_map(|line| line.trim().strip_prefix("\u{d7} "));
        let failed = failed.filter_map(|line| line.split_once(": ").map(|(_, case)| case));
        // A client in the clear that does not begin as HTTP/2 does speaks HTTP/1.1, and gets a 400 of it.
        let is_expected =
            |case: &str| ON_PURPOSE.contains(&case) || (tls.is_empty() && case == "Sends invalid connection preface");
        let others: Vec<&str> = failed.filter(|case| !is_expected(case)).collect();
        assert_eq!(others, [""; 0], "{said}");
    }
}

/// A server with TLS that offers both protocols.
fn started_with_tls(router: Router) -> Site {
    let acceptor = Acceptor::builder(LOCALHOST.identity())
        .alpn(["h2", "http/1.1"])
        .build()
        .expect("an acceptor");
    let limits = Limits {
        body: 16 << 20,
        ..Limits::default()
    };
    let server = Server::new(router).limits(limits).tls(acceptor);
    site_with(2, server, |server| server.bind("127.0.0.1:0"))
}

#[test]
fn clients_choose_http_2_in_the_handshake_of_tls() {
    let router = router().get("/tls", |request: &mut Request<'_>| {
        let tls = request.tls().expect("a connection with TLS");
        format!("{} {}", request.is_https(), tls.server_name().unwrap_or_default())
    });
    let site = started_with_tls(router);
    let url = |path: &str| format!("https://localhost:{}{path}", site.addr.port());
    let resolve = format!("localhost:{}:127.0.0.1", site.addr.port());
    let curl = |args: &[&str], stdin: &[u8]| {
        let usual = ["-sSk", "--resolve", &resolve, "--max-time", "20", "--noproxy", "*"];
        run("curl", &[&usual, args].concat(), stdin)
    };
    let Some(text) = curl(&["-w", " %{http_version}", &url("/tls")], b"") else {
        return;
    };
    assert_eq!(text, "true localhost 2");
    let text = curl(&["--http1.1", "-w", " %{http_version}", &url("/tls")], b"");
    assert_eq!(text.as_deref(), Some("true localhost 1.1"));
    let twice = curl(&["-w", "[%{num_connects}]", &url("/"), &url("/")], b"");
    assert_eq!(twice.as_deref(), Some("hello[1]hello[0]"));
    let body = prose(3_000_000);
    assert_eq!(
        curl(&["--data-binary", "@-", &url("/count")], &body).as_deref(),
        Some("3000000")
    );
    let echoed = curl(&["-X", "POST", "-T", "-", &url("/echo")], &body);
    assert!(echoed.is_some_and(|echoed| echoed.as_bytes() == body));
    let many: Vec<String> = (0..40).map(|_| url("/stream/1000")).collect();
    let mut args = vec!["--parallel", "--parallel-max", "40"];
    args.extend(many.iter().map(String::as_str));
    assert_eq!(curl(&args, b"").map(|text| text.lines().count()), Some(40_000));
    for path in ["/", "/big/100000"] {
        let url = format!("https://127.0.0.1:{}{path}", site.addr.port());
        let Some(said) = run("h2load", &["-n", "500", "-c", "8", "-m", "20", &url], b"") else {
            return;
        };
        assert!(
            said.contains("Application protocol: h2") && said.contains(" 500 succeeded, 0 failed"),
            "{said}"
        );
    }
}

/// The server wants no more of the upload than it has, and the client cannot send all without a larger window.
#[test]
fn curl_shows_the_answer_to_an_upload_beyond_the_limit() {
    let folder = Folder::new();
    folder.write("body", vec![b'x'; 40 << 20]);
    let file = folder.join("body").display().to_string();
    let site = started_with_tls(router());
    let clear = started(router());
    let urls = [
        format!("https://127.0.0.1:{}/count", site.addr.port()),
        format!("http://{}/count", clear.addr),
    ];
    for url in urls {
        let protocol = match url.starts_with("https:") {
            true => "--http2",
            false => "--http2-prior-knowledge",
        };
        for how in [["-T", &file], ["--data-binary", &format!("@{file}")]] {
            for length in ["Content-Length: 41943040", "Content-Length:"] {
                let usual = [protocol, "-sSk", "--max-time", "20", "--noproxy", "*", "-X", "POST"];
                let rest = ["-H", length, "-o", "/dev/null", "-w", "%{http_code}", &url];
                let Some(status) = run("curl", &[&usual[..], &how, &rest].concat(), b"") else {
                    return;
                };
                assert_eq!(status, "413", "{how:?} {length}");
            }
        }
    }
}

/// The answer comes before the body has, and the server ends its connections about then. After a GOAWAY, this curl shows the answer, but
/// may take the end of the stream for a transfer that is cut (error 18): nothing that the server can send then helps.
#[test]
fn curl_shows_an_early_answer_during_a_graceful_shutdown() {
    let folder = Folder::new();
    folder.write("body", vec![b'x'; 8 << 20]);
    let body = folder.join("body").display().to_string();
    // When the handler answers: before the shutdown, with it, or after the last GOAWAY.
    let waits = [None, Some(Duration::ZERO), Some(Duration::from_millis(200))];
    for protocol in ["--http2", "--http2-prior-knowledge"] {
        for (wait, length) in waits.into_iter().flat_map(|wait| LENGTHS.map(|length| (wait, length))) {
            let (begun, go_on) = (Arc::new(Event::new()), Arc::new(Event::new()));
            let (begins, goes_on) = (begun.clone(), go_on.clone());
            let router = router().post("/early", move |_| {
                begins.set();
                goes_on.wait();
                StatusCode::FORBIDDEN
            });
            let (scheme, site) = match protocol {
                "--http2" => ("https", started_with_tls(router)),
                _ => ("http", started(router)),
            };
            let url = format!("{scheme}://127.0.0.1:{}/early", site.addr.port());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.wait_timeout(PATIENCE);
                    if let Some(wait) = wait {
                        site.stop.shutdown();
                        std::thread::sleep(wait);
                    }
                    go_on.set();
                    site.stop.shutdown();
                });
                let usual = [protocol, "-sSk", "--max-time", "20", "--noproxy", "*", "-X", "POST"];
                let rest = ["-T", &body, "-H", length, "-o", "/dev/null", "-w", "%{http_code}", &url];
                let output = Command::new("curl").args(usual).args(rest).output();
                let Ok(output) = output.inspect_err(|error| println!("skipped: curl cannot be started: {error}"))
                else {
                    return;
                };
                let status = String::from_utf8_lossy(&output.stdout);
                assert_eq!(status, "403", "{protocol} {wait:?} {length}: {output:?}");
            });
        }
    }
}

/// The length of the body, and none.
const LENGTHS: [&str; 2] = ["Content-Length: 8388608", "Content-Length:"];

const GO: &str = r#"
package main

import ("bytes"; "crypto/tls"; "crypto/x509"; "fmt"; "io"; "net/http"; "os"; "sync")

func main() {
	pem, _ := os.ReadFile(os.Args[1])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"},
		ForceAttemptHTTP2: true,
	}}
	ask := func(method, path string, body io.Reader) (string, *http.Response) {
		request, _ := http.NewRequest(method, os.Args[2] + path, body)
		if body != nil { request.Trailer = http.Header{"X-Sum": {"abc"}} }
		response, err := client.Do(request)
		if err != nil { fmt.Println(err); os.Exit(1) }
		received, err := io.ReadAll(response.Body)
		if err != nil { fmt.Println(err); os.Exit(1) }
		return string(received), response
	}
	text, response := ask("GET", "/", nil)
	fmt.Println(text, response.Proto)
	text, _ = ask("POST", "/count", bytes.NewReader(make([]byte, 3000000)))
	fmt.Println(text)
	// A reader of no known kind has no length.
	text, response = ask("POST", "/back", io.MultiReader(bytes.NewReader(make([]byte, 200000))))
	fmt.Println(len(text), response.Trailer)
	var all sync.WaitGroup
	var lock sync.Mutex
	length := 0
	for i := 0; i < 300; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			text, _ := ask("GET", "/stream/100", nil)
			lock.Lock()
			length += len(text)
			lock.Unlock()
		}()
	}
	all.Wait()
	fmt.Println(length)
}
"#;

#[test]
fn go_is_served() {
    let router = router().post("/back", |_: &mut Request<'_>| {
        Response::new(StatusCode::OK).body(Body::duplex_with_trailers(|from, to, trailers| {
            std::io::copy(from, to)?;
            from.trailers()
                .iter()
                .try_for_each(|(name, value)| trailers.push(name, value))
        }))
    });
    let site = started_with_tls(router);
    let folder = Folder::new();
    let (main, chain) = (folder.write("main.go", GO), folder.write("ca.pem", &LOCALHOST.chain));
    if testkit::find("go").is_none() {
        return testkit::skip("go is not installed");
    }
    let output = Command::new("go")
        .arg("run")
        .args([main, chain])
        .arg(format!("https://{}", site.addr))
        .env("GOTOOLCHAIN", "local")
        .env("GO111MODULE", "off")
        .output()
        .expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said, "hello HTTP/2.0\n3000000\n200000 map[X-Sum:[abc]]\n267000\n",
        "{complaint}"
    );
}

const PYTHON: &str = r#"
import socket, sys, time
import h2.connection, h2.config, h2.events, h2.settings, h2.errors
address = ("127.0.0.1", PORT)
checks = 0
def check(ok, what):
    global checks
    if not ok:
        raise SystemExit("failed: " + str(what))
    checks += 1
class Client:
    def __init__(self):
        self.socket = socket.create_connection(address, 20)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()
        self.streams = {}
        self.events = []
    def flush(self):
        self.socket.sendall(self.h2.data_to_send())
    def pump(self):
        self.flush()
        data = self.socket.recv(65536)
        check(data, "bytes")
        for event in self.h2.receive_data(data):
            self.events.append(event)
            stream = self.streams.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived):
                stream["headers"] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                stream["body"] += event.data
                self.open_windows(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                stream["ended"] = True
            elif isinstance(event, h2.events.StreamReset):
                stream["reset"] = event.error_code
        self.flush()
    # The module's own acknowledge_received_data gives nothing back while a window is negative.
    def open_windows(self, count, stream):
        if count:
            self.h2.increment_flow_control_window(count)
            try:
                self.h2.increment_flow_control_window(count, stream)
            except h2.exceptions.StreamClosedError:
                pass
    def open(self, method, path, end, extra=()):
        stream = self.h2.get_next_available_stream_id()
        self.streams[stream] = dict(headers=None, body=b"", ended=False, reset=None)
        self.h2.send_headers(stream, [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path), *extra], end_stream=end)
        return stream
    def send(self, stream, data):
        while data:
            window = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
            if window == 0:
                self.pump()
                continue
            self.h2.send_data(stream, data[:window])
            data = data[window:]
            self.flush()
    def whole(self, stream):
        while not self.streams[stream]["ended"] and self.streams[stream]["reset"] is None:
            self.pump()
        return self.streams[stream]
client = Client()
for size in [0, 1, 16384, 65535, 65536, 1000000]:
    reply = client.whole(client.open("GET", "/big/%d" % size, True))
    check(reply["headers"][":status"] == "200" and len(reply["body"]) == size, size)
streams = [client.open("GET", "/stream/200", True) for _ in range(100)]
for stream in streams:
    check(client.whole(stream)["body"].count(b"\n") == 200, "many streams")
stream = client.open("POST", "/echo", False)
body = bytes(range(256)) * 2000
client.send(stream, body)
client.h2.send_headers(stream, [("x-trailer", "1")], end_stream=True)
check(client.whole(stream)["body"] == body, "an echo with a trailer")
# A large head goes in CONTINUATION frames, and the table is used again.
for _ in range(3):
    stream = client.open("GET", "/", True, [("x-large", "y" * 20000)])
    check(client.whole(stream)["headers"][":status"] == "200", "a large head")
stream = client.open("GET", "/", True, [("x-many-%d" % n, "z") for n in range(150)])
check(client.whole(stream)["headers"][":status"] == "431", "too many fields")
# The client changes its windows and its table while a response comes.
stream = client.open("GET", "/big/500000", True)
client.pump()
client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000, h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
check(len(client.whole(stream)["body"]) == 500000, "a smaller window")
client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100000, h2.settings.SettingCodes.HEADER_TABLE_SIZE: 4096})
stream = client.open("GET", "/big/500000", True)
check(len(client.whole(stream)["body"]) == 500000, "a larger window")
client.h2.ping(b"12345678")
while not any(isinstance(event, h2.events.PingAckReceived) for event in client.events):
    client.pump()
check(True, "a ping")
# Streams that are cancelled at any moment.
for n in range(60):
    stream = client.open("GET", "/big/100000", True)
    if n % 3 == 1:
        client.flush()
    if n % 3 == 2:
        client.pump()
    try:
        client.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
    except h2.exceptions.StreamClosedError:
        pass
    client.flush()
check(client.whole(client.open("GET", "/", True))["body"] == b"hello", "after cancellations")
print("ok", checks)
"#;

#[test]
fn python_h2_agrees() {
    let site = started(router());
    let script = PYTHON.replace("PORT", &site.addr.port().to_string());
    // Debian's own Python has Debian's packages.
    let starts = |program: &&str| Command::new(program).arg("-V").output().is_ok();
    let program = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(starts)
        .unwrap_or("python3");
    let Some(said) = run(program, &["-c", &script], b"") else {
        return;
    };
    let checks: usize = said
        .trim()
        .strip_prefix("ok ")
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    println!("Python h2: {checks} checks");
    assert!(checks > 120, "{checks}");
    assert_eq!(*site.log.lock().unwrap(), [""; 0]);
}
