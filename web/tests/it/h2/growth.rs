//! Windows that grow for bodies from far away.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use osier::memory::{self, Account};
use osier::sync::Event;
use osier_http::h2::{ErrorCode, Limits, StreamId};
use osier_web::{Request, Router, Server};

use super::client::Client;
use super::upstream::{proxy, scripted};
use crate::common::backend::{pattern, serve};
use crate::common::{Site, eventually, site_with};
use crate::memory::in_a_small_child;

/// A server whose handlers count the bytes that they have read.
fn counting(taken: &Arc<AtomicUsize>) -> Site {
    let taken = taken.clone();
    large(Router::new().post("/", move |request: &mut Request<'_>| {
        let mut piece = vec![0; 32 << 10];
        loop {
            match request.body().read(&mut piece)? {
                0 => return std::io::Result::Ok("done"),
                count => taken.fetch_add(count, Ordering::SeqCst),
            };
        }
    }))
}

fn large(router: Router) -> Site {
    let server = Server::new(router).limits(osier_web::Limits {
        body: u64::MAX,
        ..Default::default()
    });
    site_with(1, server, |server| server.bind("127.0.0.1:0"))
}

/// Sends all that the windows allow, as far as the client knows.
fn fill(client: &mut Client, stream: StreamId) -> usize {
    let (piece, mut sent) = (vec![b'x'; 64 << 10], 0);
    while client.may_send(stream) {
        sent += client.machine.send_data(stream, &piece, false, Instant::now());
        client.flush();
    }
    sent
}

/// Sends all that the windows allow, and reads the updates only when the server has taken all. Returns the most bytes that were on
/// their way.
fn rounds(client: &mut Client, stream: StreamId, taken: &AtomicUsize, is_enough: impl Fn(usize) -> bool) -> usize {
    let (before, mut all, mut most) = (taken.load(Ordering::SeqCst), 0, 0);
    for _ in 0..60 {
        let sent = fill(client, stream);
        (all, most) = (all + sent, most.max(sent));
        if is_enough(most) {
            break;
        }
        eventually("it is read", || taken.load(Ordering::SeqCst) - before == all);
        // The handler waits again, and the update is on its way.
        thread::sleep(Duration::from_millis(2));
        client.until("a larger window", |client| client.may_send(stream));
    }
    most
}

#[test]
fn an_upload_from_far_away_has_megabytes_on_its_way() {
    let taken = Arc::default();
    let site = counting(&taken);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/", &[], false);
    let most = rounds(&mut client, stream, &taken, |most| most > 4 << 20);
    assert!(most > 4 << 20, "{most}");
    client.body(stream, b"", true);
    assert_eq!(client.reply(stream).text(), "done");
}

#[test]
fn a_handler_that_is_slower_than_its_client_keeps_its_window() {
    const PIECE: usize = 16 << 10;
    const PIECES: usize = 60;
    let go_on = Arc::new(Event::new());
    let next = go_on.clone();
    let taken = Arc::<AtomicUsize>::default();
    let counted = taken.clone();
    let router = Router::new().get("/", |_| "hello");
    let site = large(router.post("/", move |request: &mut Request<'_>| {
        let mut piece = vec![0; PIECE];
        for _ in 0..PIECES {
            next.wait();
            request.body().read_exact(&mut piece)?;
            counted.fetch_add(PIECE, Ordering::SeqCst);
        }
        std::io::Result::Ok("done")
    }));
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/", &[], false);
    let mut sent = fill(&mut client, stream);
    assert_eq!(sent, 65_535);
    assert_eq!(client.get("/").text(), "hello");
    for pieces in 1..=PIECES {
        go_on.set();
        eventually("it is read", || taken.load(Ordering::SeqCst) == pieces * PIECE);
        if pieces % 2 == 0 {
            client.until("an update", |client| client.may_send(stream));
            sent += fill(&mut client, stream);
            // Now the server has received it, so the handler does not wait for it.
            assert_eq!(client.get("/").text(), "hello");
        }
        assert!(sent <= pieces * PIECE + 65_535, "{sent}");
    }
    assert_eq!(client.reply(stream).text(), "done");
}

#[test]
fn windows_do_not_grow_while_memory_is_short() {
    in_a_small_child("h2::growth::windows_do_not_grow_while_memory_is_short", || {
        let taken = Arc::<AtomicUsize>::default();
        let site = counting(&taken);
        let mut client = Client::connect(site.addr);
        let first = client.begin("POST", "/", &[], false);
        client.body(first, b"x", false);
        // An idle connection would be closed.
        eventually("the request runs", || taken.load(Ordering::SeqCst) == 1);
        // A quarter of what is free is less than what one body may have.
        let limit = 24 << 20;
        memory::set_limit(Some(limit));
        let greedy = Account::named("greedy");
        let most = greedy.charge(limit / 100 * 96 - memory::held());
        memory::settle();
        assert!(rounds(&mut client, first, &taken, |_| false) <= 65_535, "at 95 %");
        drop(most);
        let much = greedy.charge(limit / 100 * 85 - memory::held());
        memory::settle();
        let shared = rounds(&mut client, first, &taken, |_| false);
        assert!(
            (65_536..=1 << 20).contains(&shared),
            "as without growth at 80 %: {shared}"
        );
        drop(much);
        memory::settle();
        // Those of all connections together have a part of what is free.
        let grown = rounds(&mut client, first, &taken, |_| false);
        assert!((shared + 1..=limit / 4 + (1 << 20)).contains(&grown), "{grown}");
    });
}

#[test]
fn many_uploads_at_once_are_whole_and_one_that_is_reset_harms_none() {
    let body = Arc::new(pattern(3 << 20));
    let expected = body.clone();
    let site = large(Router::new().post("/", move |request: &mut Request<'_>| {
        let mut all = Vec::new();
        request.body().read_to_end(&mut all)?;
        std::io::Result::Ok((all == *expected).to_string())
    }));
    let mut client = Client::connect(site.addr);
    let mut left: Vec<(StreamId, &[u8])> = (0..12)
        .map(|_| (client.begin("POST", "/", &[], false), &body[..]))
        .collect();
    let cut = left[5].0;
    while !left.is_empty() {
        for (stream, rest) in &mut left {
            let count = client.machine.send_data(*stream, rest, true, Instant::now());
            *rest = &rest[count..];
            client.flush();
        }
        if left.iter().any(|(stream, rest)| *stream == cut && rest.len() < 1 << 20) {
            client.machine.reset(cut, ErrorCode::CANCEL);
            client.machine.finish(cut);
            left.retain(|(stream, _)| *stream != cut);
        }
        left.retain(|(_, rest)| !rest.is_empty());
        let streams: Vec<_> = left.iter().map(|(stream, _)| *stream).collect();
        if !streams.is_empty() {
            client.until("room", |client| streams.iter().any(|stream| client.may_send(*stream)));
        }
    }
    let streams: Vec<_> = client.replies.keys().copied().filter(|stream| *stream != cut).collect();
    for stream in streams {
        assert_eq!(client.reply(stream).text(), "true");
    }
}

/// The backend counts what it may send before the proxy has opened a window again.
#[test]
fn a_response_of_a_distant_backend_has_megabytes_on_its_way() {
    let (most, seen) = mpsc::channel();
    let (addr, _) = scripted(Limits::DEFAULT, move |peer| {
        let Some((stream, ..)) = peer.next() else { return };
        peer.machine.send_head(stream, 200, [], false);
        let (piece, start, mut longest) = (vec![b'x'; 64 << 10], Instant::now(), 0);
        while longest < 3 << 20 && start.elapsed() < crate::common::PATIENCE {
            let mut sent = 0;
            loop {
                while peer.machine.next_writable().is_some() {}
                match peer.machine.send_data(stream, &piece, false, Instant::now()) {
                    0 => break,
                    count => sent += count,
                }
                peer.flush();
            }
            longest = longest.max(sent);
            // The other end takes what has been sent, and waits.
            thread::sleep(Duration::from_millis(5));
            if !peer.pump() {
                break;
            }
        }
        most.send(longest).unwrap();
        peer.machine.send_data(stream, b"", true, Instant::now());
        peer.flush();
        while peer.pump() {}
    });
    let front = serve(proxy(addr));
    let reply = front.get("/");
    assert_eq!(reply.status, 200);
    let longest = seen.recv().unwrap();
    assert!(longest > 3 << 20, "{longest}");
}
