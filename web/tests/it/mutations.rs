//! Mutated messages through a proxy: whatever a backend answers and whatever a client asks, requests
//! and responses stay apart. The mutations come from a fixed seed.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::backend::{Backend, upstream};
use crate::common::{PATIENCE, eventually, site, site_with};
use osier_web::proxy::Proxy;
use osier_web::{Request, Route, Router, Server, Timeouts};

/// Mutations of each kind of message.
const ROUNDS: usize = 1500;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Changes one to three places of `message`, and cuts it rarely.
    fn mutate(&mut self, message: &[u8]) -> Vec<u8> {
        const PIECES: &[&[u8]] = &[
            b"\r\n",
            b"\n",
            b"\r",
            b" ",
            b"\t",
            b":",
            b"0",
            b"5",
            b"\0",
            b"\x80",
            b",",
            b";",
            b"\r\n\r\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: 50\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: x\r\n",
            b"Connection: close\r\n",
            b"Connection: keep-alive, content-length\r\n",
            b"HTTP/1.0",
            b"0\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"100 Continue",
            b"304",
            b"204",
        ];
        let mut mutated = message.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(mutated.len());
            match self.below(5) {
                0 => mutated[at] = self.below(256) as u8,
                1 => drop(mutated.remove(at)),
                2 => {
                    let end = (at + 1 + self.below(20)).min(mutated.len());
                    mutated.drain(at..end);
                }
                3 => {
                    // A piece at the beginning of a line changes more than one within a word.
                    let line = mutated[..at]
                        .iter()
                        .rposition(|&byte| byte == b'\n')
                        .map_or(0, |at| at + 1);
                    let piece = PIECES[self.below(PIECES.len())];
                    mutated.splice(line..line, piece.iter().copied());
                }
                _ => {
                    let piece = PIECES[self.below(PIECES.len())];
                    mutated.splice(at..at, piece.iter().copied());
                }
            }
            if mutated.is_empty() {
                mutated.push(b'x');
            }
        }
        if self.below(10) == 0 {
            mutated.truncate(1 + self.below(mutated.len()));
        }
        mutated
    }
}

#[test]
fn a_mutated_answer_spoils_no_other() {
    const ANSWERS: [&[u8]; 4] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-A: b\r\n\r\nfrom behind",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfrom \r\n6\r\nbehind\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nfrom behind",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nfrom behind",
    ];
    let backend = Backend::start(|_, conn| {
        while let Some(asked) = conn.request() {
            let line = asked.head.lines().next().unwrap_or_default();
            if line.starts_with("GET /honest") {
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhonest");
                continue;
            }
            let number: usize = line
                .split(['/', ' '])
                .nth(2)
                .and_then(|n| n.parse().ok())
                .expect("a number");
            let mutated = Random(0x9e37_79b9 + number as u64).mutate(ANSWERS[number % ANSWERS.len()]);
            conn.send(mutated);
            // Half of the connections stay, so that the next request may come over one.
            if number.is_multiple_of(2) {
                return;
            }
        }
    });
    let proxy = backend.proxy_with(crate::common::backend::options(|options| {
        options.first_byte = Duration::from_millis(100);
        options.between = Duration::from_millis(100);
    }));
    let site = site(Router::new().get("/fixed", |_| "fixed").fallback(proxy.handler()));
    let (mut whole, mut wrong, mut honest) = (0, 0, 0);
    for number in 0..ROUNDS / 3 {
        let mut client = TcpStream::connect(site.addr).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let requests = format!(
            "GET /{number} HTTP/1.1\r\nHost: x\r\n\r\nGET /fixed HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        );
        client.write_all(requests.as_bytes()).unwrap();
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received);
        // The second response is whole and right, or the connection has ended after the first.
        if received.ends_with(b"\r\n\r\nfixed") {
            whole += 1;
        } else {
            wrong += usize::from(received.windows(5).any(|five| five == b"fixed"));
        }
        assert!(
            received.is_empty() || received.starts_with(b"HTTP/1."),
            "{number}: {received:?}"
        );
        // After some failures the proxy does not ask the backend for a while.
        let reply = site.get("/honest");
        match reply.status {
            200 => assert_eq!(reply.text(), "honest", "after {number}"),
            502..=504 => continue,
            status => panic!("{status} after {number}: {}", reply.text()),
        }
        honest += 1;
    }
    assert_eq!(wrong, 0);
    assert!(
        whole > ROUNDS / 10 && honest > ROUNDS / 10,
        "{whole} kept connections, {honest} honest answers"
    );
    println!("{whole} kept connections, {honest} honest answers");
}

#[test]
fn a_mutated_request_is_one_request_behind_the_proxy_too() {
    const REQUESTS: [&[u8]; 4] = [
        b"GET /a?b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 33\r\n\r\nGET /inner HTTP/1.1\r\nHost: y\r\n\r\n ",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\nGET /inner HTTP/1.1\r\nHost: y\r\n\r\n\r\n0\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    ];
    let (seen, forwarded) = (Requests::default(), Requests::default());
    let count = seen.clone();
    let behind = Router::new().fallback(move |request: &mut Request<'_>| {
        count.add(request);
        let mut body = Vec::new();
        let _ = request.body().read_to_end(&mut body);
        "behind"
    });
    let behind = site_with(1, Server::new(behind), |server| server.bind("127.0.0.1:0"));
    let proxy = Proxy::new(upstream(&[behind.addr]).build().expect("a backend"));
    let count = forwarded.clone();
    let forward = Arc::new(move |request: &mut Request<'_>| {
        count.add(request);
        proxy.answer(request)
    });
    // The client ends its side after the message, so that an incomplete one does not cost a timeout.
    let mut route = Route::new().allow_half_close();
    for method in ["GET", "POST", "PUT"] {
        let forward = Arc::clone(&forward);
        route = route.on(method.parse().unwrap(), move |request: &mut Request<'_>| {
            forward(request)
        });
    }
    let front = Router::new().route("/{*rest}", route);
    let timeouts = Timeouts {
        body: Duration::from_millis(100),
        header: Duration::from_millis(100),
        idle: Duration::from_millis(100),
        ..Timeouts::default()
    };
    let front = site_with(2, Server::new(front).timeouts(timeouts), |server| {
        server.bind("127.0.0.1:0")
    });
    let mut random = Random(0x1234_5678_9abc_def1);
    for number in 0..ROUNDS {
        let message = random.mutate(REQUESTS[number % REQUESTS.len()]);
        let mut client = TcpStream::connect(front.addr).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = client.write_all(&message);
        let _ = client.shutdown(Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
        // A request is counted before it is forwarded, so the counts may be compared at any time.
        let more = seen.more_than(&forwarded);
        let message = String::from_utf8_lossy(&message);
        assert!(more.is_none(), "{number}: {more:?} was not forwarded: {message:?}");
    }
    let (forwarded, seen) = (forwarded.total(), || seen.total());
    assert!(forwarded > ROUNDS / 10, "only {forwarded} requests were forwarded");
    eventually("the backend has seen most of them", || seen() > ROUNDS / 20);
    println!("{forwarded} requests forwarded, {} seen", seen());
}

/// How often each method and target was asked.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<HashMap<String, usize>>>);

impl Requests {
    fn add(&self, request: &Request<'_>) {
        let line = format!("{} {}", request.method(), request.target());
        *self.0.lock().unwrap().entry(line).or_default() += 1;
    }

    /// A request that came more often here than at `others`.
    fn more_than(&self, others: &Requests) -> Option<String> {
        let ours = self.0.lock().unwrap().clone();
        let others = others.0.lock().unwrap();
        ours.into_iter()
            .find(|(line, count)| others.get(line).is_none_or(|others| others < count))
            .map(|(line, _)| line)
    }

    fn total(&self) -> usize {
        self.0.lock().unwrap().values().sum()
    }
}
