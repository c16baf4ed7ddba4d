//! Server-sent events as a client sees them.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::{Client, PATIENCE, eventually, logging_site, site};
use osier::pubsub::{Policy, Topic};
use osier_web::{Request, Router, Server, sse};

type News = Topic<Arc<sse::Event>>;

/// Chunks up to and including the one that ends with `end`.
pub fn until(client: &mut Client, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            size.extend(client.take(1));
        }
        let length = usize::from_str_radix(str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        assert!(length > 0, "the stream has ended after {text:?}");
        text += str::from_utf8(&client.take(length)).unwrap();
        assert_eq!(client.take(2), b"\r\n");
    }
    text
}

fn open(addr: std::net::SocketAddr, path: &str, extra: &str) -> (Client, String) {
    let mut client = Client::new(std::net::TcpStream::connect(addr).unwrap());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{extra}\r\n"));
    let (status, head) = client.head();
    assert_eq!(status, 200);
    (client, head)
}

#[test]
fn a_loop_sends_events_and_goes_on_where_the_client_was() {
    let router = Router::new().get("/", |request: &mut Request<'_>| {
        let seen: u32 = sse::last_event_id(request).map_or(0, |id| id.parse().unwrap());
        sse::stream(move |sink| {
            sink.send(sse::Event::empty().retry(Duration::from_millis(250)))?;
            (seen + 1..=5)
                .try_for_each(|n| sink.send(sse::Event::new(format!("number\n{n}")).id(n.to_string()).name("count")))
        })
    });
    let site = site(router);
    let event = |n: u32| format!("data: number\ndata: {n}\nid: {n}\nevent: count\n\n");
    let mut client = site.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    let reply = client.reply();
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert_eq!(
        reply.text(),
        "retry: 250\n\n".to_owned() + &(1..=5).map(event).collect::<String>()
    );
    client.send("GET / HTTP/1.1\r\nHost: test\r\nLast-Event-ID: 3\r\n\r\n");
    assert_eq!(
        client.reply().text(),
        "retry: 250\n\n".to_owned() + &event(4) + &event(5)
    );
}

#[test]
fn subscribers_get_what_is_published_at_once_and_leave_with_their_clients() {
    let news = News::new();
    let source = news.clone();
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        sse::subscribe(source.subscribe(8, Policy::DropOldest))
    });
    let site = site(router);
    let mut clients: Vec<Client> = (0..10).map(|_| open(site.addr, "/", "").0).collect();
    eventually("all listen", || news.subscribers() == 10);
    for n in 0..5 {
        news.publish(Arc::new(sse::Event::new(format!("{n}"))));
        for client in &mut clients {
            assert_eq!(until(client, "\n\n"), format!("data: {n}\n\n"));
        }
    }
    clients.truncate(3);
    eventually("seven have left", || news.subscribers() == 3);
    drop(clients);
    eventually("all have left", || news.subscribers() == 0);
}

/// An end of a client is no failure of the application, in whichever call its handler notices it.
#[test]
fn a_client_that_leaves_is_no_line_in_the_log() {
    let (said, told) = mpsc::channel();
    let (served, is_served) = mpsc::channel();
    let router = Router::new().get("/", |_: &mut Request<'_>| {
        sse::stream(|sink| sink.wait(std::future::pending()))
    });
    let server = Server::new(router).on_request(move |request| {
        let _ = served.send(request.status());
    });
    let site = logging_site(server, move |record| drop(said.send(record.to_string())));
    let (client, _) = open(site.addr, "/", "");
    drop(client);
    assert_eq!(is_served.recv_timeout(PATIENCE).unwrap(), 200);
    let (client, _) = open(site.addr, "/", "");
    client.reset();
    assert_eq!(is_served.recv_timeout(PATIENCE).unwrap(), 200);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_silent_stream_is_kept_alive_by_comments() {
    let news = News::new();
    let source = news.clone();
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        let mut subscriber = source.subscribe(8, Policy::DropOldest);
        sse::stream(move |sink| {
            sink.keep_alive(Duration::from_millis(20));
            sink.forward(&mut subscriber)
        })
    });
    let site = site(router);
    let (mut client, _) = open(site.addr, "/", "");
    for _ in 0..3 {
        assert_eq!(until(&mut client, "\n\n"), ": \n\n");
    }
    news.publish(Arc::new(sse::Event::new("something")));
    let text = until(&mut client, "something\n\n");
    assert_eq!(text.trim_start_matches(": \n\n"), "data: something\n\n");
}

#[test]
fn a_client_that_does_not_read_holds_the_loop_and_loses_the_oldest() {
    let news = News::new();
    let (source, sent) = (news.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = sent.clone();
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        let mut subscriber = source.subscribe(4, Policy::DropOldest);
        let sent = counted.clone();
        sse::stream(move |sink| {
            while let Ok(event) = sink.wait(subscriber.recv_async())? {
                sink.send(event)?;
                sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        })
    });
    let site = site(router);
    let (mut client, _) = open(site.addr, "/", "");
    eventually("it listens", || news.subscribers() == 1);
    let long = "x".repeat(64 << 10);
    eventually("it was held back", || {
        for _ in 0..50 {
            news.publish(Arc::new(sse::Event::new(&long)));
        }
        news.dropped() > 100
    });
    assert!((sent.load(Ordering::SeqCst) as u64) < news.published());
    let reader = std::thread::spawn(move || until(&mut client, "the end\n\n").len());
    eventually("the queue has emptied", || {
        news.publish(Arc::new(sse::Event::new("the end")));
        reader.is_finished()
    });
    assert!(reader.join().unwrap() > 64 << 10);
}

#[test]
fn curl_reads_events_as_they_come() {
    let news = News::new();
    let source = news.clone();
    let router = Router::new().get("/", move |_: &mut Request<'_>| {
        sse::subscribe(source.subscribe(8, Policy::DropOldest))
    });
    let site = site(router);
    let spawned = Command::new("curl")
        .args([
            "--silent",
            "--no-buffer",
            "--max-time",
            "20",
            "--noproxy",
            "*",
            &format!("http://{}/", site.addr),
        ])
        .stdout(Stdio::piped())
        .spawn();
    let mut curl = match spawned {
        Ok(curl) => curl,
        Err(error) => return println!("skipped: curl cannot be started: {error}"),
    };
    eventually("curl listens", || news.subscribers() == 1);
    let mut lines = BufReader::new(curl.stdout.take().expect("piped").take(1 << 20)).lines();
    for n in 0..3 {
        news.publish(Arc::new(sse::Event::new(format!("{n}")).id(n.to_string())));
        let event: Vec<String> = lines.by_ref().take(3).map(Result::unwrap).collect();
        assert_eq!(event, [format!("data: {n}"), format!("id: {n}"), String::new()]);
    }
    curl.kill().unwrap();
    curl.wait().unwrap();
    eventually("curl has left", || news.subscribers() == 0);
}

#[test]
fn open_streams_end_when_the_graceful_shutdown_begins() {
    let news = News::new();
    let source = news.clone();
    let router = Router::new()
        .get("/news", move |_: &mut Request<'_>| {
            sse::subscribe(source.subscribe(8, Policy::DropOldest))
        })
        .get("/clock", |_: &mut Request<'_>| {
            sse::stream(|sink| {
                loop {
                    sink.send(sse::Event::new("tick"))?;
                    sink.sleep(Duration::from_secs(600))?;
                }
            })
        })
        .get("/plain", |request: &mut Request<'_>| {
            let shutdown = Arc::clone(request.shutdown());
            assert!(!shutdown.is_set());
            osier_web::Response::stream(move |out| {
                out.write_all(b"begun")?;
                out.flush()?;
                shutdown.wait();
                out.write_all(b"ended")
            })
        });
    let site = site(router);
    let (mut news_client, _) = open(site.addr, "/news", "");
    let (mut clock, _) = open(site.addr, "/clock", "");
    let (mut plain, _) = open(site.addr, "/plain", "");
    until(&mut clock, "\n\n");
    until(&mut plain, "begun");
    eventually("it listens", || news.subscribers() == 1);
    let began = std::time::Instant::now();
    site.stop.shutdown();
    assert_eq!(
        site.ended.recv_timeout(crate::common::PATIENCE),
        Ok(0),
        "no connection is cut"
    );
    // Without the event it takes the whole `Timeouts::drain` of ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert_eq!(news_client.rest(), b"0\r\n\r\n", "a whole body");
    assert!(clock.rest().ends_with(b"0\r\n\r\n"), "a whole body");
    assert!(plain.rest().ends_with(b"ended\r\n0\r\n\r\n"));
    assert_eq!(*site.log.lock().unwrap(), Vec::<String>::new());
}
