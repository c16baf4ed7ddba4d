//! Upgrades: connections with TLS and HTTP/2 move to the new process. Others end without a lost request.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use osier_tls::{Connector, Stream};

use crate::support::certs::Authority;
use crate::support::http2::Http2;
use crate::support::serving::{Serving, fixed};
use crate::support::sites::{Sites, send};
use crate::support::{Client, DEADLINE};
use crate::upgrade::{Guest, echoes, echoing_backend, tunnel_over};

/// A server with a plain listener and one with TLS, and a client that trusts it.
struct Tls {
    sites: Serving,
    connector: Connector,
}

fn file(answer: &str, tls: &str, up: &str) -> String {
    format!(
        "pid_file = \"pid\"\nworkers = 2\n\
         [[listen]]\naddress = \"127.0.0.2:0\"\n[[listen]]\naddress = \"127.0.0.1:0\"\ntls = {tls}\n\
         [[site]]\ndefault = true\ntls = {{ cert = \"site.pem\", key = \"site.key\" }}\n\
         [[site.route]]\npath = \"/fixed\"\nrespond = \"{answer}\"\n\
         [[site.route]]\npath = \"/up\"\nproxy = {{ to = \"{up}\", buffer = false }}\n"
    )
}

/// An address without a listener.
const NOBODY: &str = "127.0.0.1:1";

impl Tls {
    fn start(text: &str) -> Tls {
        let (folder, authority) = (Sites::folder(), Authority::new("the authority"));
        authority.write(&folder, "site", &["localhost"]);
        let connector = Connector::builder().ca_pem(authority.pem.as_bytes()).build().unwrap();
        let sites = Serving::start_in(folder, text);
        Tls { sites, connector }
    }

    fn change(&self, text: &str) {
        fs::write(self.sites.0.folder.join("site.toml"), text).unwrap();
    }

    fn plain(&self) -> TcpStream {
        connect(self.sites.0.addresses[0])
    }

    fn over(&self, protocol: &str) -> Stream {
        let socket = osier::net::TcpStream::from(connect(self.sites.0.addresses[1]));
        let stream = self
            .connector
            .with_alpn([protocol])
            .connect("localhost", socket)
            .unwrap();
        stream.handshake().unwrap();
        assert_eq!(stream.protocol(), Some(protocol.as_bytes()));
        stream
    }

    fn https(&self) -> Client<Stream> {
        Client::of(self.over("http/1.1"))
    }

    fn http2(&self) -> Http2<Stream> {
        Http2::new(self.over("h2"))
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// A WebSocket in a stream does not move. Its client notices nothing of the upgrade, and the old process ends with it.
#[test]
fn a_websocket_in_a_stream_goes_on_in_the_old_process() {
    let backend = echoing_backend();
    let up = backend.local_addr().unwrap().to_string();
    let mut tls = Tls::start(&file("old", "true", &up));
    let mut client = tls.http2();
    let stream = client.websocket("/up");
    client.send(stream, b"before", false);
    assert_eq!(client.take(6), b"before");
    tls.change(&file("new", "true", &up));
    tls.sites.upgrade();
    client.send(stream, b"after", false);
    assert_eq!(client.take(5), b"after");
    // The old process may still accept for a moment.
    testkit::eventually("the new process accepts", || {
        tls.http2().get("/fixed") == (200, "new".to_owned())
    });
    assert!(tls.sites.0.server.is_running(), "the WebSocket goes on");
    // Its client hears that further requests need another connection, which the new process serves.
    client.until_goes_away();
    client.send(stream, b"more", false);
    assert_eq!(client.take(4), b"more");
    client.send(stream, b"", true);
    assert_eq!(client.receive(stream), (200, "bye".to_owned()));
    drop(client);
    tls.sites.first_has_ended();
}

#[test]
fn idle_connections_with_tls_and_http2_move() {
    let mut tls = Tls::start(&file("old", "true", NOBODY));
    let (is_old, is_new) = ((200, "old".to_owned()), (200, "new".to_owned()));
    let mut used: Vec<_> = (0..20).map(|_| tls.https()).collect();
    used.iter_mut().for_each(|client| assert_eq!(fixed(client), "old"));
    let mut fresh: Vec<_> = (0..10).map(|_| tls.https()).collect();
    let mut partial: Vec<_> = (0..10).map(|_| tls.https()).collect();
    for client in &mut partial {
        client.send_raw(b"GET /fixed HTTP/1.1\r\nHos");
    }
    let mut silent: Vec<_> = (0..10).map(|_| connect(tls.sites.0.addresses[1])).collect();
    let mut http2: Vec<_> = (0..10).map(|_| tls.http2()).collect();
    let mut h2c: Vec<_> = (0..10).map(|_| Http2::new(tls.plain())).collect();
    for _ in 0..2 {
        http2
            .iter_mut()
            .for_each(|client| assert_eq!(client.get("/fixed"), is_old));
        h2c.iter_mut()
            .for_each(|client| assert_eq!(client.get("/fixed"), is_old));
    }
    tls.change(&file("new", "true", NOBODY));
    tls.sites.upgrade();
    // It has nothing left, so it ends.
    tls.sites.first_has_ended();
    used.iter_mut()
        .chain(&mut fresh)
        .for_each(|client| assert_eq!(fixed(client), "new"));
    for client in &mut partial {
        client.send_raw(b"t: x\r\n\r\n");
        assert_eq!(client.receive("GET").text(), "new");
    }
    for socket in silent.drain(..) {
        let socket = osier::net::TcpStream::from(socket);
        let stream = tls.connector.connect("localhost", socket).unwrap();
        assert_eq!(fixed(&mut Client::of(stream)), "new");
    }
    for _ in 0..2 {
        http2
            .iter_mut()
            .for_each(|client| assert_eq!(client.get("/fixed"), is_new));
        h2c.iter_mut()
            .for_each(|client| assert_eq!(client.get("/fixed"), is_new));
    }
    // Once more: adopted connections move again.
    tls.change(&file("old", "true", NOBODY));
    tls.sites.replace();
    used.iter_mut().for_each(|client| assert_eq!(fixed(client), "old"));
    http2
        .iter_mut()
        .for_each(|client| assert_eq!(client.get("/fixed"), is_old));
    h2c.iter_mut()
        .for_each(|client| assert_eq!(client.get("/fixed"), is_old));
    assert!(!http2.iter().any(|client| client.goes_away) && !h2c.iter().any(|client| client.goes_away));
}

#[test]
fn a_handshake_ends_in_the_old_process_and_its_connection_moves() {
    let mut tls = Tls::start(&file("old", "true", NOBODY));
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(DEADLINE)).unwrap();
    let near = osier::net::UnixStream::from(near);
    let client = tls.connector.connect("localhost", near).unwrap();
    assert!(client.try_handshake().is_err(), "it waits for the server");
    let mut hello = vec![0; 16 << 10];
    let count = far.read(&mut hello).unwrap();
    let (half, rest) = hello[..count].split_at(count / 2);
    let mut socket = connect(tls.sites.0.addresses[1]);
    socket.write_all(half).unwrap();
    // The server has read that, once it has answered somebody who came later on each worker.
    (0..8).for_each(|_| assert_eq!(fixed(&mut tls.https()), "old"));
    tls.change(&file("new", "true", NOBODY));
    tls.sites.upgrade();
    assert!(tls.sites.0.server.is_running(), "the handshake goes on");
    socket.write_all(rest).unwrap();
    let (from, to) = (socket.try_clone().unwrap(), far.try_clone().unwrap());
    for (mut from, mut to) in [
        (
            Box::new(from) as Box<dyn Read + Send>,
            Box::new(to) as Box<dyn Write + Send>,
        ),
        (Box::new(far), Box::new(socket.try_clone().unwrap())),
    ] {
        thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
    client.handshake().unwrap();
    tls.sites.first_has_ended();
    assert_eq!(fixed(&mut Client::of(client)), "new");
    socket.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn a_session_of_the_old_process_is_resumed_in_the_new_one() {
    let mut tls = Tls::start(&file("old", "true", NOBODY));
    // The ticket comes behind the handshake.
    let mut first = tls.https();
    assert_eq!(fixed(&mut first), "old");
    assert!(!first.stream.is_resumed());
    drop(first);
    for answer in ["new", "newer"] {
        tls.change(&file(answer, "true", NOBODY));
        tls.sites.replace();
        let mut client = tls.https();
        assert_eq!(fixed(&mut client), answer);
        assert!(client.stream.is_resumed(), "{answer}");
    }
    tls.sites.first_has_ended();
}

/// The backend of `/up`, and the file that names it.
fn with_backend(answer: &str, tls: &str) -> (TcpListener, String) {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = file(answer, tls, &backend.local_addr().unwrap().to_string());
    (backend, text)
}

fn is_moved_after_its_stream<S: Read + Write>(mut client: Http2<S>, tls: &mut Tls, backend: &TcpListener, new: &str) {
    assert_eq!(client.get("/fixed").1, "old");
    let upload = client.begin("POST", "/up", false);
    client.send(upload, b"01234", false);
    let (stream, _) = backend.accept().unwrap();
    let mut application = Client::over(stream);
    let head = application.receive_head_of_request().unwrap();
    assert!(head.starts_with("POST /up "), "{head}");
    tls.change(new);
    tls.sites.upgrade();
    // A connection with a stream stays, and so does its process.
    assert!(tls.sites.0.server.is_running());
    client.send(upload, b"56789", true);
    application.send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    assert_eq!(client.receive(upload), (200, "done".to_owned()));
    tls.sites.first_has_ended();
    assert_eq!(client.get("/fixed"), (200, "new".to_owned()));
    assert!(!client.goes_away);
}

#[test]
fn a_connection_of_http2_moves_after_its_last_stream() {
    let (backend, text) = with_backend("old", "true");
    let new = text.replace("\"old\"", "\"new\"");
    let mut tls = Tls::start(&text);
    is_moved_after_its_stream(tls.http2(), &mut tls, &backend, &new);
    let mut tls = Tls::start(&text);
    is_moved_after_its_stream(Http2::new(tls.plain()), &mut tls, &backend, &new);
}

#[test]
fn tunnels_of_clients_with_tls_move() {
    let backend = echoing_backend();
    let up = backend.local_addr().unwrap().to_string();
    let mut tls = Tls::start(&file("old", "true", &up));
    let mut tunnels: Vec<Stream> = (0..20).map(|_| tunnel_over(tls.over("http/1.1"))).collect();
    tunnels.iter_mut().for_each(|stream| echoes(stream, b"before"));
    for turn in 0..2u8 {
        tls.sites.upgrade();
        if turn == 0 {
            tls.sites.first_has_ended();
        }
        tunnels.iter_mut().for_each(|stream| echoes(stream, &[turn; 20_000]));
    }
}

/// Lines are on their way while the guests move.
#[test]
fn guests_of_a_chat_over_tls_move_and_get_every_line_once() {
    const LINES: usize = 150;
    let chat =
        "[[site.route]]\npath = \"/chat\"\nchat = { burst = 1000, history = 1000 }\n[[site.route]]\npath = \"/fixed\"";
    let text = file("x", "true", NOBODY).replacen("[[site.route]]\npath = \"/fixed\"", chat, 1);
    let mut tls = Tls::start(&text);
    let enter = |name: &str| Guest::over(tls.over("http/1.1"), "https", &format!("room=r&name={name}"));
    let mut guests: Vec<_> = (0..8).map(|number| enter(&format!("guest{number}"))).collect();
    let mut speaker = enter("speaker");
    let lines: Vec<String> = (0..LINES).map(|number| format!("line {number}")).collect();
    let said = lines.clone();
    let speaking = thread::spawn(move || {
        for line in said {
            speaker.say(&line);
            thread::sleep(Duration::from_millis(8));
        }
        speaker
    });
    (0..3).for_each(|_| tls.sites.replace());
    let speaker = speaking.join().unwrap();
    for guest in guests.iter_mut().chain(&mut [speaker]) {
        assert_eq!(guest.lines_up_to(&lines[LINES - 1..]), lines);
    }
    tls.sites.first_has_ended();
}

/// A connection of openssl's client, which speaks TLS 1.2.
struct Openssl {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Openssl {
    fn connect(address: SocketAddr, more: &[&str]) -> Option<Openssl> {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-tls1_2", "-connect", &address.to_string()]);
        command
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                testkit::skip(format_args!("openssl cannot be run: {error}"));
                return None;
            }
        };
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let output = BufReader::new(output);
        Some(Openssl { child, input, output })
    }

    /// Asks for `/fixed`. Returns the head and the body, in lower case.
    fn ask(&mut self, length: usize) -> (String, String) {
        self.input.write_all(b"GET /fixed HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                self.output.read_line(&mut head).unwrap() > 0,
                "it has ended after {head:?}"
            );
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).unwrap();
        (head.to_ascii_lowercase(), String::from_utf8(body).unwrap())
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The keys cannot leave the process. So the connection ends with its next response, or with a GOAWAY at once.
#[test]
fn connections_with_tls_1_2_end_after_a_response_or_by_goaway() {
    let mut tls = Tls::start(&file("old", "true", NOBODY));
    let Some(mut client) = Openssl::connect(tls.sites.0.addresses[1], &[]) else {
        return;
    };
    let (head, body) = client.ask(3);
    assert!(!head.contains("connection:") && body == "old", "{head}{body}");
    let mut http2 = Openssl::connect(tls.sites.0.addresses[1], &["-alpn", "h2"]).expect("as before");
    http2
        .input
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    // Its settings.
    let mut frame = [0; 9];
    http2.output.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3], 4);
    tls.change(&file("new", "true", NOBODY));
    tls.sites.upgrade();
    let mut rest = Vec::new();
    let goaway = |rest: &[u8]| rest.windows(9).any(|frame| frame == [0, 0, 8, 7, 0, 0, 0, 0, 0]);
    while !goaway(&rest) {
        let mut piece = [0; 1000];
        let count = http2.output.read(&mut piece).unwrap();
        assert!(count > 0, "no GOAWAY in {rest:?}");
        rest.extend_from_slice(&piece[..count]);
    }
    drop(http2);
    let (head, body) = client.ask(3);
    assert!(head.contains("connection: close\r\n") && body == "old", "{head}{body}");
    let mut rest = Vec::new();
    client.output.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    // s_client ends with 0 after a close_notify alone.
    assert!(client.child.wait().unwrap().success());
    let mut again = Openssl::connect(tls.sites.0.addresses[1], &[]).expect("as before");
    assert_eq!(again.ask(3).1, "new");
    tls.sites.first_has_ended();
}

#[test]
fn requests_over_tls_are_answered_through_ten_upgrades() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    let mut tls = Tls::start(&file("x", "true", NOBODY));
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = |mut ask: Box<dyn FnMut() + Send>| {
        let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                ask();
                answers.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut clients = Vec::new();
    for _ in 0..2 {
        let (mut https, mut http2) = (tls.https(), tls.http2());
        clients.push(load(Box::new(move || assert_eq!(fixed(&mut https), "x"))));
        clients.push(load(Box::new(move || {
            assert_eq!(http2.get("/fixed"), (200, "x".to_owned()));
            assert!(!http2.goes_away);
        })));
    }
    let mut client = tls.https();
    for _ in 0..10 {
        let before = answers.load(Ordering::Relaxed);
        tls.sites.upgrade();
        send(&mut client, "GET", "x", "/fixed", &[]);
        assert_eq!(client.receive("GET").text(), "x");
        crate::support::sites::wait_for("more answers", || answers.load(Ordering::Relaxed) > before + 20);
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    tls.sites.first_has_ended();
}
