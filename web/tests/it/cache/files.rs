//! Long bodies in files: bounds, restarts, failing disks, clients of different speed.

use super::{World, answer, behind_rules, on_clock, s, send, store};
use crate::common::backend::{Backend, pattern};
use crate::common::{PATIENCE, eventually, site_with};
use osier_web::wrap::cache::{Cache, Options, Store, StoreOptions};
use osier_web::{Body, Request, Response, Router, Server};
use std::fs;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::Folder;

/// Bodies of this length go to files.
const LONG: usize = 200_000;

fn disk_store(folder: &Folder, size: u64) -> Arc<Store> {
    let path = folder.path().join("cache");
    store(|options| {
        options.memory_entry = 50_000;
        options.disk = Some(path);
        options.disk_size = size;
    })
}

/// Answers by bytes of the length that the query names, whose first byte is the number of the call.
fn bytes(call: usize, request: &mut Request<'_>) -> Response {
    let len = request.query().and_then(|len| len.parse().ok()).unwrap_or(LONG);
    let mut bytes = pattern(len);
    bytes[0] = call as u8;
    let response = answer(200, "cache-control: max-age=60\netag: \"1\"\nx-a: 1", "");
    match request.path().contains("stream") {
        true => response.body(Body::stream(move |out| {
            bytes.chunks(7000).try_for_each(|piece| {
                osier::yield_now();
                out.write_all(piece)
            })
        })),
        false => response.body(bytes),
    }
}

/// Waits until so many files are stored. A client has all bytes before that.
fn settle(world: &World, count: u64) {
    while world.stats().disk_entries < count {
        osier::sleep(Duration::from_millis(1));
    }
}

fn files(folder: &Folder) -> Vec<fs::DirEntry> {
    let found = fs::read_dir(folder.path().join("cache")).unwrap();
    found.map(Result::unwrap).collect()
}

/// Waits, by the clock of the test.
fn until_there_is_no_file(folder: &Folder) {
    for _ in 0..60_000 {
        if files(folder).is_empty() {
            return;
        }
        osier::sleep(Duration::from_millis(1));
    }
    panic!("{:?} are left", files(folder));
}

#[test]
fn long_bodies_are_in_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        for (target, count) in [("/a", 1), ("/stream", 2)] {
            let first = send(&world.client, &format!("GET {target}"));
            assert!(first.is_whole() && first.body().len() == LONG);
            settle(&world, count);
            let second = send(&world.client, &format!("GET {target}"));
            assert!(second.header("cache-status").unwrap().contains("hit"), "{target}");
            assert!(second.body() == first.body(), "{target}");
            let part = send(&world.client, &format!("GET {target}\nrange: bytes=100000-100099"));
            assert_eq!(
                (part.status().as_u16(), part.body()),
                (206, &first.body()[100_000..100_100])
            );
            assert_eq!(
                send(&world.client, &format!("HEAD {target}")).header("content-length"),
                Some("200000")
            );
        }
        send(&world.client, "GET /short?1000");
        let stats = world.stats();
        assert_eq!((stats.entries, stats.disk_entries), (3, 2));
        assert!(stats.disk_bytes > 2 * LONG as u64 && stats.bytes < 10_000, "{stats:?}");
        assert_eq!(files(&folder).len(), 2);
        let mode = fs::metadata(folder.path().join("cache")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // A 304 keeps the file.
        osier::sleep(s(100));
        let world = World::of(world.cache.clone(), |_, _| {
            answer(304, "cache-control: max-age=60\nx-a: 2", "")
        });
        let again = send(&world.client, "");
        assert_eq!((again.header("x-a"), again.body().len()), (Some("2"), LONG));
        assert_eq!(files(&folder).len(), 2);
        assert_eq!(world.stats().disk_entries, 2);
        // Whatever leaves the table leaves the folder.
        send(&world.client, "POST /a");
        send(&world.client, "POST /stream");
        assert_eq!((files(&folder).len(), world.stats().disk_bytes), (0, 0));
    });
}

#[test]
fn the_folder_is_bounded() {
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 1 << 20)), bytes);
        for number in 0..30 {
            assert_eq!(send(&world.client, &format!("GET /{number}")).body().len(), LONG);
            while world.stats().stored <= number {
                osier::sleep(Duration::from_millis(1));
            }
            let sizes = files(&folder)
                .iter()
                .map(|file| file.metadata().unwrap().len())
                .sum::<u64>();
            assert!(sizes <= 1 << 20, "{sizes} after {number}");
            assert_eq!(sizes, world.stats().disk_bytes);
        }
        assert!(world.stats().disk_entries >= 4, "{:?}", world.stats());
        // Longer than the folder may hold: the client gets all of it, the folder nothing.
        let before = world.stats().stored;
        for target in ["/large?2000000", "/stream?2000000"] {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.is_whole() && reply.body().len() == 2_000_000, "{target}");
        }
        assert_eq!(world.stats().stored, before);
        let unfinished = files(&folder)
            .iter()
            .filter(|file| file.path().extension().is_some())
            .count();
        assert_eq!(unfinished, 0);
    });
}

#[test]
fn files_outlive_the_process_and_rubbish_does_not() {
    let folder = Folder::new();
    let first = Mutex::new(Vec::new());
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        for target in ["/a", "/b", "/c"] {
            first
                .lock()
                .unwrap()
                .push(send(&world.client, &format!("GET {target}")).body().to_vec());
        }
        settle(&world, 3);
    });
    let cache = folder.path().join("cache");
    // A file that was cut, one whose head is damaged, one that is not ours, one that is not finished.
    let victims = files(&folder);
    let whole = fs::read(victims[0].path()).unwrap();
    fs::write(cache.join("00000000000000aa"), &whole[..whole.len() - 1]).unwrap();
    let mut damaged = whole.clone();
    damaged[60] ^= 1;
    fs::write(cache.join("00000000000000bb"), damaged).unwrap();
    fs::write(cache.join("00000000000000cc"), b"").unwrap();
    fs::write(cache.join("notes.txt"), b"mine").unwrap();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        assert_eq!(send(&world.client, "GET /none?10").body().len(), 10);
        while world.stats().disk_entries < 3 {
            osier::sleep(Duration::from_millis(1));
        }
        for (index, target) in ["/a", "/b", "/c"].into_iter().enumerate() {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.header("cache-status").unwrap().contains("hit"), "{target}");
            assert!(reply.body() == first.lock().unwrap()[index]);
        }
        let mut names: Vec<_> = files(&folder)
            .iter()
            .map(|file| file.file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(names.contains(&"notes.txt".to_owned()));
        // Another space of the same store has none of them.
        let options = Options {
            space: "other".to_owned(),
            ..Options::default()
        };
        let other = World::of(Cache::with(world.cache.store().clone(), options), bytes);
        assert!(send(&other.client, "").header("cache-status").unwrap().contains("miss"));
        // A file that somebody has removed is a miss. The file of the response above may get its name meanwhile.
        files(&folder)
            .iter()
            .for_each(|file| drop(fs::remove_file(file.path())));
        assert!(
            send(&world.client, "GET /b")
                .header("cache-status")
                .unwrap()
                .contains("miss")
        );
    });
}

#[test]
fn a_change_right_after_a_start_removes_files() {
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), bytes);
        for target in ["/a", "/b", "/c"] {
            send(&world.client, &format!("GET {target}"));
        }
        settle(&world, 3);
    });
    on_clock(|| {
        let cache = Cache::new(disk_store(&folder, 10 << 20)).on_purge(|_| true);
        let world = World::of(cache, bytes);
        assert_eq!(send(&world.client, "POST /a").status(), 200);
        assert_eq!(send(&world.client, "PURGE /b").text(), "1 purged\n");
        assert_eq!((world.stats().disk_entries, files(&folder).len()), (1, 1));
        let kept = send(&world.client, "GET /c");
        assert!(kept.header("cache-status").unwrap().contains("hit"));
    });
}

#[test]
fn a_change_right_after_a_start_removes_files_behind_other_rules() {
    let folder = Folder::new();
    on_clock(|| {
        let cache = Cache::new(disk_store(&folder, 10 << 20));
        let client = behind_rules(&cache, bytes);
        for target in ["/a", "/c"] {
            send(&client, &format!("GET {target}"));
        }
        while cache.store().stats().disk_entries < 2 {
            osier::sleep(Duration::from_millis(1));
        }
    });
    on_clock(|| {
        let cache = Cache::new(disk_store(&folder, 10 << 20)).on_purge(|_| true);
        let client = behind_rules(&cache, bytes);
        assert_eq!(send(&client, "POST /a").status(), 200);
        // It waits for all files.
        assert_eq!(send(&client, "PURGE /none*").text(), "0 purged\n");
        assert_eq!(
            send(&client, "GET /a").header("cache-status"),
            Some("osier; fwd=miss; stored")
        );
        let kept = send(&client, "GET /c");
        assert!(kept.header("cache-status").unwrap().contains("hit"));
    });
}

#[test]
fn a_long_body_that_breaks_off_leaves_no_file() {
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), |_, _| {
            let body = Body::stream(|out| {
                out.write_all(&pattern(LONG))?;
                osier::yield_now();
                out.write_all(&pattern(LONG))?;
                Err(std::io::ErrorKind::UnexpectedEof.into())
            });
            answer(200, "cache-control: max-age=60", "").body(body)
        });
        assert!(!send(&world.client, "").is_whole());
        until_there_is_no_file(&folder);
        assert_eq!((world.stats().stored, world.stats().disk_bytes), (0, 0));
        // The bytes that were reserved are free again.
        let world = World::of(world.cache.clone(), bytes);
        assert_eq!(send(&world.client, "GET /b?9000000").body().len(), 9_000_000);
        settle(&world, 1);
    });
}

/// The last client leaves at any moment of a fetch, also while a file is written. No place is free for the fetch, so it is cancelled.
#[test]
fn a_long_body_that_nobody_wants_any_more_leaves_no_file() {
    let folder = Folder::new();
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder, 10 << 20)), |_, request| {
            if request.path() == "/slow" {
                osier::sleep(s(100));
            }
            let body = Body::stream(|out| {
                for _ in 0..4 {
                    out.write_all(&pattern(LONG))?;
                    osier::yield_now();
                }
                osier::sleep(s(100));
                Ok(())
            });
            answer(200, "cache-control: max-age=60", "").body(body)
        });
        let (client, cache) = (Arc::new(world.client), world.cache);
        let ask = |request: String| {
            let client = client.clone();
            osier::spawn_local(move || drop(send(&client, &request)))
        };
        let leave = |fiber: osier::JoinHandle<()>| {
            fiber.cancel();
            assert!(fiber.join().is_err(), "it has left");
        };
        let others: Vec<_> = (0..128).map(|number| ask(format!("GET /slow?{number}"))).collect();
        osier::sleep(s(1));
        others.into_iter().for_each(leave);
        for yields in 0..100 {
            let fiber = ask(format!("GET /a?{yields}"));
            (0..yields).for_each(|_| osier::yield_now());
            leave(fiber);
        }
        until_there_is_no_file(&folder);
        assert_eq!((cache.store().stats().stored, cache.store().stats().disk_bytes), (0, 0));
        // The bytes that were reserved are free again.
        let world = World::of(cache, bytes);
        assert_eq!(send(&world.client, "GET /b?9000000").body().len(), 9_000_000);
        settle(&world, 1);
    });
}

#[test]
fn a_failing_disk_is_no_error_for_the_client() {
    let folder = Folder::new();
    on_clock(|| {
        let complaints = Arc::new(AtomicUsize::new(0));
        let counter = complaints.clone();
        let path = folder.path().join("cache");
        let options = StoreOptions {
            memory_entry: 50_000,
            disk: Some(path.clone()),
            ..StoreOptions::default()
        };
        let store = Store::open(options).unwrap().on_log(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let world = World::of(Cache::new(Arc::new(store)), bytes);
        fs::remove_dir(&path).unwrap();
        for target in ["/a", "/stream"] {
            let reply = send(&world.client, &format!("GET {target}"));
            assert!(reply.is_whole() && reply.body().len() == LONG, "{target}");
        }
        assert_eq!(world.stats().stored, 0);
        assert!(complaints.load(Ordering::SeqCst) >= 1);
    });
}

#[test]
fn a_slow_client_and_a_fast_one_get_the_same_stream() {
    let folder = Folder::new();
    for disk in [true, false] {
        let backend = Backend::start(|_, conn| {
            while let Some(asked) = conn.request() {
                let body = pattern(3_000_000);
                match asked.head.contains("/chunked") {
                    true => {
                        conn.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n");
                        conn.send_chunks(&body, 10_000);
                    }
                    false => {
                        conn.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 3000000\r\n\r\n");
                        conn.send(&body);
                    }
                }
            }
        });
        let store = match disk {
            true => disk_store(&folder, 100 << 20),
            false => store(|options| options.memory = 8 << 20),
        };
        let proxy = backend.proxy();
        let cached = Cache::new(store.clone()).around(move |request: &mut Request<'_>| proxy.answer(request));
        let server = Server::new(Router::new().fallback(cached));
        let site = site_with(2, server, |server| server.bind("127.0.0.1:0"));
        for target in ["/plain", "/chunked"] {
            let ask = |slow: bool| {
                let mut stream = std::net::TcpStream::connect(site.addr).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                write!(stream, "GET {target} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
                let mut all = Vec::new();
                let mut piece = vec![0; if slow { 30_000 } else { 1 << 20 }];
                loop {
                    match stream.read(&mut piece).unwrap() {
                        0 => break,
                        count => all.extend_from_slice(&piece[..count]),
                    }
                    if slow {
                        std::thread::yield_now();
                    }
                }
                let head = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                all.split_off(head)
            };
            let bodies: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let threads: Vec<_> = [true, false, true]
                    .map(|slow| scope.spawn(move || ask(slow)))
                    .into_iter()
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let expected = pattern(3_000_000);
            assert!(bodies.iter().all(|body| *body == expected), "{target}, disk: {disk}");
        }
        // A client has all of a response before its entry is there.
        match disk {
            true => eventually("an entry on disk", || store.stats().disk_entries > 0),
            false => assert_eq!(store.stats().disk_entries, 0),
        }
    }
}
