//! An idle WebSocket in callback style costs at most a kilobyte more than an idle connection. And the memory of the process that stays after
//! all clients have gone, as the system counts it.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use osier::pubsub::Topic;
use osier::sync::Event;
use osier_web::{Request, Router, ws};
use testkit::resident_bytes;

use crate::common::{eventually, site_with};
use crate::ws_client::{handshake, masked};
use crate::{Asker, FIRST_RESIDENT, LONG, allows, alone, each, heap, patient, worker};

/// Enough that what is not per connection does not matter.
const CONNECTIONS: usize = 1500;

/// The most bytes that stay after [`CONNECTIONS`] clients and those of other tests have gone: tables that never shrink, and what the allocator
/// cannot give back. 3.0 MB were measured.
const STAYS: usize = 8 << 20;

struct Guest(Topic<ws::Frame>);

impl ws::Callbacks for Guest {
    fn on_open(&mut self, sender: &ws::Sender) {
        sender.join(&self.0);
    }
    fn on_message(&mut self, message: ws::Message, sender: &ws::Sender) {
        sender.send(message);
    }
}

fn ask(mut stream: &TcpStream, bytes: &[u8], answer_ends: &[u8]) {
    stream.write_all(bytes).unwrap();
    let (mut got, mut len) = ([0; 512], 0);
    while !got[..len].ends_with(answer_ends) {
        let count = stream.read(&mut got[len..]).unwrap();
        assert!(count > 0, "{:?}", String::from_utf8_lossy(&got[..len]));
        len += count;
    }
}

#[test]
fn an_idle_websocket_costs_at_most_a_kilobyte_more_than_an_idle_connection() {
    let _alone = alone();
    if !allows(CONNECTIONS) {
        return;
    }
    let Some(before) = *FIRST_RESIDENT else {
        return testkit::skip("there is no RssAnon in /proc/self/status");
    };
    let room = Topic::new();
    let joined = room.clone();
    // No ping comes between the frames that the clients wait for.
    let silent = ws::Options {
        ping_after: LONG,
        ..ws::Options::default()
    };
    let upgrade = move |request: &mut Request<'_>| silent.upgrade_dormant(request, Guest(joined.clone()));
    let (waiting, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(Event::manual()));
    let (counted, released) = (Arc::clone(&waiting), Arc::clone(&go_on));
    let wait = move |_: &mut Request<'_>| {
        counted.fetch_add(1, Ordering::SeqCst);
        released.wait();
        "x\n"
    };
    let router = Router::new().get("/", |_| "x\n").get("/ws", upgrade);
    let router = router.get("/wait", wait).get("/worker", worker);
    let site = site_with(1, patient(router), |server| server.bind("127.0.0.1:0"));
    let mut asker = Asker::new(&site);
    let warm = TcpStream::connect(site.addr).unwrap();
    ask(&warm, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n", b"x\n");
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(site.addr).unwrap())
        .collect();
    for client in &clients {
        ask(client, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n", b"x\n");
    }
    asker.until_rest(CONNECTIONS);
    let idle = heap();
    let (head, hello) = (handshake("/ws").into_bytes(), masked(0x81, b"hello"));
    for client in &clients {
        ask(client, &head, b"\r\n\r\n");
        ask(client, &hello, b"\x81\x05hello");
    }
    eventually("all are in the room", || room.subscribers() == CONNECTIONS);
    for _ in 0..3 {
        assert_eq!(room.publish(ws::Frame::text("news")), CONNECTIONS);
        clients.iter().for_each(|client| ask(client, b"", b"\x81\x04news"));
    }
    asker.until_rest(CONNECTIONS);
    let each = each(idle, CONNECTIONS);
    println!("an idle WebSocket in a room: {each} bytes beyond the idle connection");
    assert!(each <= 1024, "{each} bytes");
    assert!(each > 50, "{each} bytes: the measure measures nothing");

    drop(clients);
    // Others come, whose handlers all wait at once.
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| TcpStream::connect(site.addr).unwrap())
        .collect();
    for mut client in &clients {
        client.write_all(b"GET /wait HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    }
    eventually("all handlers wait", || waiting.load(Ordering::SeqCst) == CONNECTIONS);
    let most = resident_bytes().unwrap();
    go_on.set();
    clients.iter().for_each(|client| ask(client, b"", b"x\n"));
    drop(clients);
    // Stacks and heap go back step by step: half within two seconds, the rest within seven.
    let stays = || resident_bytes().unwrap().saturating_sub(before);
    let wanted = fmt::from_fn(|f| {
        write!(
            f,
            "the memory of clients that have gone returns, all but {STAYS} of {}",
            stays()
        )
    });
    eventually(wanted, || stays() <= STAYS);
    let most = most.saturating_sub(before);
    println!("of {} KB, {} KB stay when all have gone", most >> 10, stays() >> 10);
    assert!(most > 4 * STAYS, "{most} bytes: the measure measures nothing");
}
