//! A proxy with real backends: nginx with files, and a server on Node's `http`. The tests start
//! both on their own ports and stop them by their process ids.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::backend::{self, pattern};
use crate::common::{Client, PATIENCE, Site, eventually, site_with};
use osier_web::proxy::Proxy;
use osier_web::upstream::{Check, Upstream};
use osier_web::{Limits, Router, Server};
use rustix::process::{Pid, Signal, kill_process};
use tungstenite::Message;

const MIB: usize = 1 << 20;

/// Serves on two workers, with bodies of any length.
fn serve(proxy: Proxy) -> Site {
    let limits = Limits {
        body: u64::MAX,
        ..Limits::default()
    };
    let server = Server::new(Router::new().fallback(proxy.handler())).limits(limits);
    site_with(2, server, |server| server.bind("127.0.0.1:0"))
}

/// The checksum that the Node server computes too.
fn checksum(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |sum: u32, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn spawn(command: &mut Command) -> Option<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            println!("skipped: {name} cannot be started: {error}");
            None
        }
    }
}

/// Ends it by its process id.
fn stop(child: &mut Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
    let _ = child.wait();
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("osier-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder in the folder for temporary files");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Nginx {
    child: Child,
    addr: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    fn start(folder: &Path) -> Option<Nginx> {
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let at = folder.display();
        let config = format!(
            "daemon off;\nworker_processes 1;\nuser root;\npid {at}/pid;\nerror_log {at}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{\n access_log off;\n client_max_body_size 0;\n client_body_temp_path {at}/body;\n proxy_temp_path {at}/proxy;\n\
             fastcgi_temp_path {at}/fastcgi;\n uwsgi_temp_path {at}/uwsgi;\n scgi_temp_path {at}/scgi;\n\
             server {{\n  listen {addr};\n  root {at}/www;\n  gzip on;\n  gzip_types text/plain;\n\
             location = /connection {{ return 200 \"$connection $connection_requests\"; }}\n\
             location = /status {{ return 204; }}\n }}\n}}\n"
        );
        // A root that is not `root` leaves out the line that only it may use.
        let config = match rustix::process::geteuid().is_root() {
            true => config,
            false => config.replace("user root;\n", ""),
        };
        std::fs::create_dir_all(folder.join("www")).unwrap();
        std::fs::write(folder.join("nginx.conf"), config).unwrap();
        let child = Nginx::run(folder)?;
        let nginx = Nginx {
            child,
            addr,
            folder: folder.to_owned(),
        };
        nginx.wait();
        Some(nginx)
    }

    fn run(folder: &Path) -> Option<Child> {
        let program = match Path::new("/usr/sbin/nginx").exists() {
            true => "/usr/sbin/nginx",
            false => "nginx",
        };
        let (prefix, config) = (folder.display().to_string(), folder.join("nginx.conf"));
        spawn(
            Command::new(program)
                .args(["-p", &prefix, "-c"])
                .arg(config)
                .stderr(Stdio::null()),
        )
    }

    fn wait(&self) {
        eventually("nginx listens", || TcpStream::connect(self.addr).is_ok());
    }

    fn restart(&mut self) {
        self.halt();
        self.child = Nginx::run(&self.folder).expect("it was started before");
        self.wait();
    }

    fn halt(&mut self) {
        stop(&mut self.child, Signal::TERM);
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.halt();
    }
}

struct Node {
    child: Child,
    addr: SocketAddr,
}

/// `/name` responds with `name`. WebSockets are echoed; no library.
const NODE: &str = r#"
const http = require('http'), crypto = require('crypto');
let connections = 0, requests = 0, well = true;
const server = http.createServer((req, res) => {
  requests++;
  const url = new URL(req.url, 'http://x');
  if (url.pathname === '/name') return res.end(process.argv[2]);
  if (url.pathname === '/count') return res.end(connections + ' ' + requests);
  if (url.pathname === '/health') { res.statusCode = well ? 200 : 500; return res.end(); }
  if (url.pathname === '/sick') { well = false; return res.end(); }
  if (url.pathname === '/well') { well = true; return res.end(); }
  if (url.pathname === '/fields') return res.end(JSON.stringify(req.headers));
  if (url.pathname === '/echo') { res.writeHead(200); return req.pipe(res); }
  if (url.pathname === '/sum') {
    let sum = 0, length = 0;
    req.on('data', d => { length += d.length; for (let i = 0; i < d.length; i++) sum = (Math.imul(sum, 31) + d[i]) >>> 0; });
    req.on('end', () => res.end(length + ' ' + sum));
    return;
  }
  if (url.pathname === '/hints') { res.writeEarlyHints({ link: '</a.css>; rel=preload' }); return res.end('after'); }
  if (url.pathname === '/events') {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    let n = 0;
    const timer = setInterval(() => { res.write('data: ' + n++ + '\n\n'); if (n === 5) { clearInterval(timer); res.end(); } }, 20);
    return;
  }
  res.statusCode = 404; res.end('no ' + req.url);
});
server.on('connection', () => connections++);
server.on('upgrade', (req, socket, head) => {
  if (req.url === '/refuse') { socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno'); return; }
  const key = crypto.createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ' + key + '\r\n\r\n');
  let buffer = head;
  const take = data => {
    buffer = Buffer.concat([buffer, data]);
    for (;;) {
      if (buffer.length < 2) return;
      let length = buffer[1] & 127, at = 2;
      if (length === 126) { if (buffer.length < 4) return; length = buffer.readUInt16BE(2); at = 4; }
      else if (length === 127) { if (buffer.length < 10) return; length = Number(buffer.readBigUInt64BE(2)); at = 10; }
      if (buffer.length < at + 4 + length) return;
      const mask = buffer.subarray(at, at + 4), body = Buffer.from(buffer.subarray(at + 4, at + 4 + length));
      for (let i = 0; i < length; i++) body[i] ^= mask[i & 3];
      let prefix;
      if (length < 126) prefix = Buffer.from([buffer[0], length]);
      else if (length < 65536) { prefix = Buffer.alloc(4); prefix[0] = buffer[0]; prefix[1] = 126; prefix.writeUInt16BE(length, 2); }
      else { prefix = Buffer.alloc(10); prefix[0] = buffer[0]; prefix[1] = 127; prefix.writeBigUInt64BE(BigInt(length), 2); }
      socket.write(Buffer.concat([prefix, body]));
      const close = (buffer[0] & 15) === 8;
      buffer = buffer.subarray(at + 4 + length);
      if (close) { socket.end(); return; }
    }
  };
  socket.on('data', take); socket.on('end', () => socket.end()); socket.on('error', () => {}); take(Buffer.alloc(0));
});
server.listen(+process.argv[3] || 0, '127.0.0.1', () => console.log(server.address().port));
"#;

impl Node {
    fn start(name: &str) -> Option<Node> {
        Node::at(name, 0)
    }

    fn at(name: &str, port: u16) -> Option<Node> {
        // Of `-e` the arguments begin at 1: a dash keeps the places.
        let mut command = Command::new("node");
        command
            .args(["-e", NODE, "-", name, &port.to_string()])
            .stdout(Stdio::piped())
            // Node makes what it inherits non-blocking: a pipe that others write this test's output to.
            .stderr(Stdio::null());
        let mut child = spawn(&mut command)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        let port: u16 = line.trim().parse().expect("node prints its port");
        Some(Node {
            child,
            addr: SocketAddr::from(([127, 0, 0, 1], port)),
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        stop(&mut self.child, Signal::KILL);
    }
}

fn upstream(addrs: &[SocketAddr]) -> osier_web::upstream::Builder {
    backend::upstream(addrs)
}

#[test]
fn nginx_serves_files_over_kept_connections_and_after_a_restart() {
    let folder = Folder::new("proxy-nginx");
    let Some(mut nginx) = Nginx::start(&folder.0) else {
        return;
    };
    let large = pattern(64 * MIB);
    std::fs::write(folder.0.join("www/large"), &large).unwrap();
    std::fs::write(folder.0.join("www/small.txt"), "small").unwrap();
    let app: Upstream = upstream(&[nginx.addr]).build().unwrap();
    let site = serve(Proxy::new(app.clone()));

    let mut client = site.connect();
    let reply = client.get("/small.txt");
    assert_eq!((reply.status, reply.text()), (200, "small"));
    assert!(reply.header("etag").is_some() && reply.header("content-length") == Some("5"));
    let etag = reply.header("etag").unwrap().to_owned();
    client.send(format!(
        "GET /small.txt HTTP/1.1\r\nHost: a\r\nIf-None-Match: {etag}\r\n\r\n"
    ));
    assert_eq!(client.reply().status, 304);
    client.send("HEAD /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let (_, head) = client.head();
    assert!(head.contains(&format!("content-length: {}", large.len())), "{head}");
    client.send("GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=1000-1999\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, &reply.body[..]), (206, &large[1000..2000]));
    assert_eq!(client.get("/none").status, 404);
    // One connection has served all of them.
    let kept = client.get("/connection").text().to_owned();
    assert_eq!(kept.split(' ').nth(1), Some("6"), "{kept}");

    let reply = client.get("/large");
    assert_eq!(
        (reply.body.len(), checksum(&reply.body)),
        (large.len(), checksum(&large))
    );
    assert!(reply.body == large);

    // The kept connections end with nginx; no request after the restart fails.
    for round in 0..3 {
        nginx.restart();
        for _ in 0..10 {
            let reply = site.get("/small.txt");
            assert_eq!(
                (reply.status, reply.text()),
                (200, "small"),
                "round {round}: {:?}",
                site.log.lock().unwrap()
            );
        }
    }
    nginx.halt();
    assert!([502, 503].contains(&site.get("/small.txt").status));
    let stats = &app.stats()[0];
    assert!(stats.reused > 30 && stats.connects < 15, "{stats:?}");
}

#[test]
fn node_serves_over_kept_connections_uploads_and_echoes() {
    let Some(node) = Node::start("one") else { return };
    let app = upstream(&[node.addr]).build().unwrap();
    let site = serve(Proxy::with(app.clone(), backend::options(|to| to.buffer = false)));
    let mut client = site.connect();
    for _ in 0..50 {
        assert_eq!(client.get("/name").text(), "one");
    }
    assert_eq!(
        client.get("/count").text(),
        "1 51",
        "50 requests, and this, over one connection"
    );
    let reply = client.get("/fields");
    let fields: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(
        (&fields["host"], &fields["x-forwarded-for"]),
        (&"test".into(), &"127.0.0.1".into())
    );
    client.send("GET /hints HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.head().0, 103);
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (200, "after"));
    assert_eq!(
        client.get("/events").text(),
        (0..5).map(|n| format!("data: {n}\n\n")).collect::<String>()
    );

    let body = pattern(64 * MIB);
    client.send(format!(
        "PUT /sum HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), format!("{} {}", body.len(), checksum(&body)));
    client.send("PUT /sum HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for piece in body[..MIB].chunks(10_000) {
        client.send(format!("{:x}\r\n", piece.len()));
        client.send(piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.reply().text(), format!("{MIB} {}", checksum(&body[..MIB])));

    // Both directions at once.
    let mut sending = client.stream.try_clone().unwrap();
    let sent = body[..16 * MIB].to_vec();
    let sender = std::thread::spawn(move || {
        write!(
            sending,
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        )
        .unwrap();
        sending.write_all(&sent).unwrap();
    });
    let reply = client.reply();
    assert!(
        reply.status == 200 && reply.body == body[..16 * MIB],
        "{} bytes",
        reply.body.len()
    );
    sender.join().unwrap();
}

#[test]
fn a_websocket_goes_through_a_tunnel() {
    let Some(node) = Node::start("ws") else { return };
    let app = upstream(&[node.addr]).build().unwrap();
    let site = serve(Proxy::new(app.clone()));
    let connect = |path: &str| {
        let stream = TcpStream::connect(site.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        tungstenite::client(format!("ws://{}{path}", site.addr), stream).ok()
    };
    let (mut socket, response) = connect("/chat").expect("the upgrade is passed on");
    assert_eq!(response.status(), 101);
    for length in [0, 5, 125, 126, 70_000, 300_000] {
        let text = "x".repeat(length);
        socket.send(Message::text(text.clone())).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    socket.send(Message::binary(pattern(1000))).unwrap();
    assert_eq!(socket.read().unwrap(), Message::binary(pattern(1000)));
    assert_eq!(app.stats()[0].leases, 1, "a tunnel has a lease");
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    drop(socket);
    eventually("the lease ends with the tunnel", || app.stats()[0].leases == 0);

    // Refused by the backend: an ordinary answer.
    let mut client = site.connect();
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.send(format!("GET /refuse HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n"));
    let reply = client.reply();
    assert_eq!((reply.status, reply.text()), (403, "no"));
    assert_eq!(client.get("/name").text(), "ws", "and the connection is still HTTP");

    // Frames right behind the request, before the 101, arrive too.
    let mut client = site.connect();
    client.send(format!("GET /chat HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n\u{1}"));
    drop(client);
    let mut client = Client::new(TcpStream::connect(site.addr).unwrap());
    let mut bytes = format!("GET /chat HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n").into_bytes();
    bytes.extend_from_slice(b"\x81\x82\0\0\0\0hi");
    client.send(bytes);
    assert_eq!(client.head().0, 101);
    assert_eq!(client.take(4), b"\x81\x02hi");
    drop(client);
    eventually("the leases end", || app.stats()[0].leases == 0);
}

#[test]
fn requests_are_spread_over_node_servers_and_active_checks_see_who_is_well() {
    let (Some(one), Some(two)) = (Node::start("one"), Node::start("two")) else {
        return;
    };
    let check = Check::http("/health").every(Duration::from_millis(25)).fall(2).rise(2);
    let app = upstream(&[one.addr, two.addr]).check(check).build().unwrap();
    let site = serve(Proxy::new(app.clone()));
    let count = |wanted: &str| (0..20).filter(|_| site.get("/name").text() == wanted).count();
    assert_eq!(count("one"), 10, "in turns, as no request is under way with the other");

    // The second says that it is not well, and then that it is.
    let tell = |path: &str| {
        let mut client = Client::new(TcpStream::connect(two.addr).unwrap());
        assert_eq!(client.get(path).status, 200);
    };
    tell("/sick");
    eventually("it is found out", || !app.stats()[1].is_in);
    assert_eq!(count("two"), 0);
    tell("/well");
    eventually("it is found out", || app.stats()[1].is_in);
    assert!(count("two") > 5);

    // The first dies, and another comes in its place.
    let port = one.addr.port();
    drop(one);
    assert_eq!(count("two"), 20, "no request fails: {:?}", site.log.lock().unwrap());
    let _one = Node::at("one", port);
    eventually("it is back", || app.stats()[0].is_in);
    assert!(count("one") > 5);
}
