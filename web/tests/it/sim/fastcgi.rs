//! FastCGI to a scripted backend that delays, breaks off and dies.
//!
//! Invariants:
//! - A response belongs to its request, and so does its body.
//! - A request that may not be repeated (POST) reaches the backend at most once.
//! - When the clients are gone, no lease is left.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use osier::net::{TcpListener, TcpStream};
use osier::sim::{Faults, World};
use osier_web::fastcgi::{self, FastCgi};
use osier_web::upstream::Upstream;
use osier_web::{Address, Router, Server};

use super::server::{Handled, check_posts, clients, count};
use super::{SECOND, below, once_in, piece_of, some_faults, some_of};
use crate::responder::{BEGIN, PARAMS, STDIN, STDOUT, end, record};

/// A FastCGI program that answers with the key and the body of the request.
fn program(handled: &Handled) -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:9000")?;
    loop {
        let (stream, _) = listener.accept()?;
        let handled = Arc::clone(handled);
        osier::spawn(move || -> io::Result<()> {
            while answer(&stream, &handled)? {}
            Ok(())
        });
    }
}

/// Answers one request. Returns whether the connection stays.
fn answer(mut stream: &TcpStream, handled: &Handled) -> io::Result<bool> {
    let (mut params, mut body, mut keep) = (Vec::new(), Vec::new(), false);
    loop {
        let (kind, content) = next_record(stream)?;
        match (kind, content.is_empty()) {
            (BEGIN, _) => keep = content[2] & 1 == 1,
            (PARAMS, _) => params.extend(content),
            (STDIN, false) => body.extend(content),
            (STDIN, true) => break,
            (kind, _) => panic!("a record of type {kind}"),
        }
    }
    let params = pairs(&params);
    let key: u64 = params["QUERY_STRING"].strip_prefix("key=").unwrap().parse().unwrap();
    count(handled, key, &params["REQUEST_METHOD"]);
    assert_eq!(params["CONTENT_LENGTH"].parse().unwrap_or(0), body.len());
    if once_in(5) {
        osier::sleep(some_of(5 * SECOND));
    }
    let head = format!("X-Key: {key}\r\nContent-Type: text/plain\r\n\r\n");
    let output = [head.as_bytes(), &body].concat();
    for piece in output.chunks(piece_of(output.len(), 20_000)) {
        stream.write_all(&record(STDOUT, 1, piece, below(9) as u8))?;
        if once_in(20) {
            // The program dies.
            return Ok(false);
        }
    }
    stream.write_all(&[record(STDOUT, 1, b"", 0), end(0, 0)].concat())?;
    Ok(keep && !once_in(10))
}

fn next_record(mut stream: &TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let mut content = vec![0; usize::from(u16::from_be_bytes([head[4], head[5]]))];
    stream.read_exact(&mut content)?;
    stream.read_exact(&mut vec![0; head[6].into()])?;
    Ok((head[1], content))
}

fn pairs(mut bytes: &[u8]) -> BTreeMap<String, String> {
    fn length(bytes: &mut &[u8]) -> usize {
        let long = bytes[0] & 0x80 != 0;
        let (number, rest) = bytes.split_at(if long { 4 } else { 1 });
        *bytes = rest;
        match long {
            true => u32::from_be_bytes(number.try_into().unwrap()) as usize & 0x7fff_ffff,
            false => number[0].into(),
        }
    }
    let mut pairs = BTreeMap::new();
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.insert(text(&bytes[..name]), text(&bytes[name..name + value]));
        bytes = &bytes[name + value..];
    }
    pairs
}

thread_local! {
    /// A site with one script.
    static SITE: testkit::Folder = {
        let folder = testkit::Folder::new();
        std::fs::write(folder.path().join("echo.php"), "scripted").unwrap();
        // From now on the kernel knows without the disk that there is no such file. The first run is then as the others.
        assert!(!folder.path().join("echo").exists());
        folder
    };
}

fn scenario(world: &World) {
    let handled = Handled::default();
    let leases: Arc<Mutex<Option<Upstream>>> = Arc::default();
    let for_program = Arc::clone(&handled);
    let backend = world.host("backend", move || program(&for_program));
    let place = Arc::clone(&leases);
    let root = SITE.with(|site| site.path().to_owned());
    let front = world.host("front", move || {
        let upstream = fastcgi::upstream("php", [Address::Tcp("backend:9000".into())]);
        let upstream = upstream.on_log(|_| ()).build().unwrap();
        *place.lock().unwrap() = Some(upstream.clone());
        let options = fastcgi::Options {
            front: Some("/echo.php".into()),
            ..fastcgi::Options::default()
        };
        let script = FastCgi::with(&root, upstream, options).unwrap();
        let router = Router::new().fallback(script.handler());
        Server::new(router).on_log(|_| ()).bind("0.0.0.0:80").unwrap().run();
    });
    osier::sleep(SECOND);
    world.faults(some_faults());
    let clients = clients(world, "front:80", 10, &handled);
    for _ in 0..below(4) {
        osier::sleep(some_of(15 * SECOND));
        match below(3) {
            0 => backend.crash(),
            1 => backend.kill(),
            _ => world.partition(&front, &backend),
        }
        osier::sleep(some_of(20 * SECOND));
        backend.restart();
        world.heal(&front, &backend);
    }
    clients.iter().for_each(|client| client.wait());
    world.faults(Faults::none());
    osier::sleep(400 * SECOND);
    for backend in leases.lock().unwrap().take().unwrap().stats() {
        assert_eq!(backend.leases, 0, "leases are left");
    }
    check_posts(&handled);
}

#[test]
fn fastcgi_mixes_nothing_and_repeats_no_post() {
    super::check(&[], 20, scenario);
}
