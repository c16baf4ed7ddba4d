//! Many streams of one connection: they run at once, wait for their own windows, and end apart.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use osier::sync::Event;
use osier_http::h2::{ErrorCode, Limits};
use osier_web::{Http2Limits, Request, Response, Router, Server};

use super::client::Client;
use super::router;
use crate::common::{PATIENCE, eventually, site, site_with};

#[test]
fn streams_run_at_once_and_end_in_any_order() {
    let go_on = Arc::new(Event::new());
    let wait = go_on.clone();
    let site = site(router().get("/later", move |_| {
        wait.wait();
        "slow"
    }));
    let mut client = Client::connect(site.addr);
    let slow = client.begin("GET", "/later", &[], true);
    let quick: Vec<_> = (0..90).map(|_| client.begin("GET", "/", &[], true)).collect();
    for stream in quick {
        assert_eq!(client.reply(stream).text(), "hello");
    }
    assert!(!client.replies[&slow].is_over());
    go_on.set();
    assert_eq!(client.reply(slow).text(), "slow");
    assert_eq!(site.connections.count(), 1);
}

#[test]
fn streams_begin_when_there_is_room_for_their_responses() {
    let (sending, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, at_most) = (sending.clone(), most.clone());
    let site = site(Router::new().get("/", move |_| {
        let (now, at_most) = (now.clone(), at_most.clone());
        Response::stream(move |out| {
            at_most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let written = out.write_all(&[b'x'; 32 << 10]);
            now.fetch_sub(1, Ordering::Relaxed);
            written
        })
    }));
    let limits = Limits {
        connection_window: 100 << 16,
        ..Limits::default()
    };
    let mut client = Client::with(site.addr, &limits);
    let streams: Vec<_> = (0..100).map(|_| client.begin("GET", "/", &[], true)).collect();
    for stream in streams {
        assert_eq!(client.reply(stream).body.len(), 32 << 10);
    }
    let most = most.load(Ordering::Relaxed);
    assert!(most < 30, "{most} bodies of 100 have waited for room at once");
}

#[test]
fn a_slow_reader_of_one_stream_does_not_stop_the_others() {
    let site = site(router());
    let limits = Limits {
        connection_window: 4 << 20,
        ..Limits::default()
    };
    let mut client = Client::with(site.addr, &limits);
    let slow = client.begin("GET", "/big/1000000", &[], true);
    client.stalled.push(slow);
    client.until("a window of the body", |client| {
        client.replies[&slow].body.len() == 65_535
    });
    for _ in 0..20 {
        assert_eq!(client.get("/big/200000").body.len(), 200_000);
    }
    assert_eq!(client.replies[&slow].body.len(), 65_535);
    client.stalled.clear();
    client.machine.consumed(slow, 65_535);
    assert_eq!(client.reply(slow).body.len(), 1_000_000);
}

#[test]
fn a_body_that_nobody_reads_holds_back_only_its_own_stream() {
    let go_on = Arc::new(Event::new());
    let wait = go_on.clone();
    let router = router().post("/later", move |request: &mut Request<'_>| {
        wait.wait();
        let mut body = Vec::new();
        request.body().read_to_end(&mut body)?;
        std::io::Result::Ok(body.len().to_string())
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let later = client.begin("POST", "/later", &[], false);
    let body = vec![b'z'; 200_000];
    let sent = client.machine.send_data(later, &body, true, std::time::Instant::now());
    assert!(sent <= 65_535, "{sent}");
    client.flush();
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(client.send("POST", "/count", &[], &body).text(), "200000");
    go_on.set();
    client.until("room", |client| client.may_send(later));
    client.body(later, &body[sent..], true);
    assert_eq!(client.reply(later).text(), "200000");
}

/// Counts the handlers that run, and those that have been unwound.
fn counting(running: &Arc<AtomicUsize>, unwound: &Arc<AtomicUsize>) -> impl Fn(&mut Request<'_>) + use<> {
    struct Unwound(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Drop for Unwound {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
            self.1
                .fetch_add(usize::from(std::thread::panicking()), Ordering::SeqCst);
        }
    }
    let (running, unwound) = (running.clone(), unwound.clone());
    move |_| {
        running.fetch_add(1, Ordering::SeqCst);
        let _counted = Unwound(running.clone(), unwound.clone());
        osier::sleep(Duration::from_secs(3600));
    }
}

#[test]
fn a_reset_cancels_a_handler_whose_route_says_so() {
    let (running, unwound) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let wait = counting(&running, &unwound);
    let router = router().route(
        "/wait",
        osier_web::Route::new()
            .get(move |request: &mut Request<'_>| wait(request))
            .cancel_when_gone(),
    );
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("GET", "/wait", &[], true);
    let other = client.begin("GET", "/wait", &[], true);
    client.flush();
    eventually("both run", || running.load(Ordering::SeqCst) == 2);
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    eventually("one is unwound", || running.load(Ordering::SeqCst) == 1);
    assert_eq!(unwound.load(Ordering::SeqCst), 1);
    assert_eq!(client.get("/").text(), "hello");
    assert!(!client.replies[&other].is_over());
    // The end of the connection is the end of all its streams.
    drop(client);
    eventually("the other is unwound", || running.load(Ordering::SeqCst) == 0);
    eventually("the connection is gone", || site.connections.count() == 0);
}

#[test]
fn a_reset_is_an_error_of_the_reads_and_writes_of_every_other_handler() {
    let (told, tell) = mpsc::channel();
    let told_too = told.clone();
    let router = router()
        .post("/read", move |request: &mut Request<'_>| {
            let read = std::io::copy(request.body(), &mut std::io::sink());
            told.send(read.map_err(|error| error.kind())).unwrap();
            "done"
        })
        .get("/write", move |_: &mut Request<'_>| {
            let told = told_too.clone();
            Response::stream(move |out| {
                let written = loop {
                    if let Err(error) = out.write_all(&[0; 1000]).and_then(|()| out.flush()) {
                        break error;
                    }
                };
                told.send(Err(written.kind())).unwrap();
                Err(written)
            })
        });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/read", &[("content-length", b"10")], false);
    client.body(stream, b"12345", false);
    client.get("/");
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(tell.recv_timeout(PATIENCE), Ok(Err(std::io::ErrorKind::UnexpectedEof)));

    let stream = client.begin("GET", "/write", &[], true);
    client.stalled.push(stream);
    client.until("the window is full", |client| {
        client.replies[&stream].body.len() == 65_535
    });
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    assert_eq!(tell.recv_timeout(PATIENCE), Ok(Err(std::io::ErrorKind::BrokenPipe)));
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(*site.log.lock().unwrap(), [""; 0]);
}

#[test]
fn a_panic_is_a_500_of_its_stream_and_a_reset_once_the_response_has_begun() {
    let router = router().get("/late", |_: &mut Request<'_>| {
        Response::stream(|out| {
            out.write_all(b"begun")?;
            out.flush()?;
            panic!("on purpose")
        })
    });
    let site = site(router);
    let mut client = Client::connect(site.addr);
    assert_eq!(client.get("/panic").status, 500);
    let reply = client.get("/late");
    assert_eq!(
        (reply.status, reply.text(), reply.reset),
        (200, "begun", Some(ErrorCode::INTERNAL_ERROR))
    );
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(site.log.lock().unwrap().len(), 2);
}

#[test]
fn a_response_before_the_end_of_the_body_ends_the_upload_without_an_error() {
    let site = site(router().post("/early", |_: &mut Request<'_>| "enough"));
    let mut client = Client::connect(site.addr);
    let stream = client.begin("POST", "/early", &[], false);
    client.body(stream, &[b'x'; 60_000], false);
    client.until("the response", |client| client.replies[&stream].is_over());
    assert_eq!(client.replies[&stream].text(), "enough");
    // The unread bytes are given back to the window of the connection.
    for _ in 0..40 {
        let reply = client.send("POST", "/early", &[], &[b'x'; 60_000]);
        assert_eq!((reply.status, reply.text()), (200, "enough"));
    }
    assert_eq!(client.send("POST", "/count", &[], &[b'x'; 500_000]).text(), "500000");
}

#[test]
fn the_limit_of_a_body_holds_with_and_without_a_length() {
    let server = Server::new(router()).limits(osier_web::Limits {
        body: 1000,
        ..Default::default()
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    for (size, status) in [(1000, 200), (1001, 413), (5000, 413)] {
        let (body, length) = (vec![b'x'; size], size.to_string());
        assert_eq!(client.send("POST", "/count", &[], &body).status, status, "{size}");
        let fields = [("content-length", length.as_bytes())];
        assert_eq!(client.send("POST", "/count", &fields, &body).status, status, "{size}");
    }
}

#[test]
fn streams_beyond_the_limit_are_refused_and_may_come_again() {
    let server = Server::new(router()).http2_limits(Http2Limits {
        max_streams: 2,
        ..Http2Limits::default()
    });
    let site = site_with(1, server, |server| server.bind("127.0.0.1:0"));
    let mut client = Client::connect(site.addr);
    // The client does not know the limit yet.
    let streams: Vec<_> = (0..4).map(|_| client.begin("GET", "/slow", &[], true)).collect();
    let replies: Vec<_> = streams.into_iter().map(|stream| client.reply(stream)).collect();
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    let refused = replies
        .iter()
        .filter(|reply| reply.reset == Some(ErrorCode::REFUSED_STREAM))
        .count();
    assert_eq!((served, refused), (2, 2));
    assert_eq!(client.get("/slow").text(), "slow");
}

#[test]
fn a_handler_with_a_stack_of_its_own_is_served_and_cancelled_as_the_others() {
    let (running, unwound) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let wait = counting(&running, &unwound);
    let route = osier_web::Route::new().get(move |request: &mut Request<'_>| wait(request));
    let router = Router::new()
        .route(
            "/deep",
            osier_web::Route::new()
                .get(|_: &mut Request<'_>| "deep")
                .stack_bytes(1 << 20),
        )
        .route("/wait", route.cancel_when_gone().stack_bytes(1 << 20));
    let site = site(router);
    let mut client = Client::connect(site.addr);
    assert_eq!(client.get("/deep").text(), "deep");
    let stream = client.begin("GET", "/wait", &[], true);
    client.flush();
    eventually("it runs", || running.load(Ordering::SeqCst) == 1);
    client.machine.reset(stream, ErrorCode::CANCEL);
    client.flush();
    eventually("it is unwound", || unwound.load(Ordering::SeqCst) == 1);
}
