//! Hostile paths and files: nothing outside of the folder is sent, nothing hangs, no response is longer than it announced.

use crate::support::{Folder, Server, lock, make_fifo, pattern};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn nothing_outside_the_folder() {
    let outside = Folder::new();
    outside.write("secret.txt", "secret");
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.write("sub/b.txt", "b");
    symlink("/etc/passwd", folder.join("absolute")).unwrap();
    symlink(outside.join("secret.txt"), folder.join("escape.txt")).unwrap();
    let relative = format!("../{}", outside.path().file_name().unwrap().to_str().unwrap());
    symlink(format!("{relative}/secret.txt"), folder.join("relative.txt")).unwrap();
    symlink(&relative, folder.join("folder")).unwrap();
    symlink("..", folder.join("sub/up")).unwrap();
    symlink("loop", folder.join("loop")).unwrap();
    symlink("sub/b.txt", folder.join("inside.txt")).unwrap();
    let server = Server::start(&folder, &[]);
    for target in [
        "/../secret.txt",
        "/../../../../../../etc/passwd",
        "/sub/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/..%2Fsecret.txt",
        "/%252e%252e%252fetc/passwd",
        "/..%5c..%5cetc%5cpasswd",
        "/..\\..\\etc\\passwd",
        "/sub/..%00/../a.txt",
        "/absolute",
        "/escape.txt",
        "/relative.txt",
        "/folder/secret.txt",
        "/folder/",
        "/folder",
        "/loop",
        "/a.txt%00",
        "/%00",
        "/....//....//etc/passwd",
        "/.%2e/a",
    ] {
        let reply = server.get(target);
        assert!(matches!(reply.status, 400 | 404), "{target}: {}", reply.status);
        assert!(
            !reply.text().contains("root:") && !reply.text().contains("secret"),
            "{target}: {}",
            reply.text()
        );
    }
    // Links that stay inside are followed.
    assert_eq!(server.get("/inside.txt").text(), "b");
    assert_eq!(server.get("/sub/up/a.txt").text(), "a");
    let listing = server.get("/");
    for hidden in ["absolute", "escape", "relative", "folder", "loop"] {
        assert!(!listing.text().contains(hidden), "{hidden}: {}", listing.text());
    }
}

#[test]
fn very_long_paths_are_refused_and_the_server_lives() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let server = Server::start(&folder, &[]);
    for target in [
        format!("/{}", "x".repeat(300)),
        format!("/{}", "x/".repeat(2000)),
        format!("/{}a.txt", "./".repeat(2000)),
    ] {
        let reply = server.get(&target);
        assert!(matches!(reply.status, 400 | 404 | 414), "{}", reply.status);
    }
    // Longer than any request line may be.
    let mut client = server.connect();
    client.send_raw(format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000)).as_bytes());
    assert!(matches!(client.receive("GET").status, 414 | 431));
    assert_eq!(server.get("/a.txt").status, 200);
}

#[test]
fn special_files_are_403_and_never_wait() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    for name in ["fifo", "x/index.html"] {
        fs::create_dir_all(folder.join("x")).unwrap();
        make_fifo(&folder.join(name));
    }
    let _socket = UnixListener::bind(folder.join("socket")).unwrap();
    let server = Server::start(&folder, &["-w", "1"]);
    for target in ["/fifo", "/socket", "/x/"] {
        for method in ["GET", "HEAD"] {
            assert_eq!(server.ask(method, target, &[]).status, 403, "{method} {target}");
        }
    }
    assert_eq!(server.get("/a.txt").status, 200);
    // A FIFO as an encoded sibling is no sibling.
    folder.write("b.txt", "b");
    make_fifo(&folder.join("b.txt.gz"));
    assert_eq!(server.get_with("/b.txt", &["Accept-Encoding: gzip"]).text(), "b");
}

#[test]
fn files_that_may_not_be_read_are_403() {
    let folder = Folder::new();
    let path = folder.write("a.txt", "a");
    lock(&path);
    if File::open(&path).is_ok() {
        println!("skipped: this user reads every file, whatever its mode (root)");
        return;
    }
    let server = Server::start(&folder, &[]);
    assert_eq!(server.get("/a.txt").status, 403);
}

#[test]
fn a_file_truncated_while_it_is_sent_closes_the_connection() {
    let folder = Folder::new();
    // Far more than all socket buffers on the way can hold.
    let length = 256u64 << 20;
    let path = folder.join("large.bin");
    File::create(&path).unwrap().set_len(length).unwrap();
    let server = Server::start(&folder, &["-w", "1"]);
    let mut client = server.connect();
    client.send("GET", "/large.bin", &[]);
    let head = client.receive_head();
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some(length.to_string().as_str()))
    );
    let mut piece = [0; 4096];
    client.stream.read_exact(&mut piece).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let rest = client.receive_rest();
    assert!((rest.len() as u64) < length, "{} bytes", rest.len());
    // The worker is free again.
    assert_eq!(server.get("/missing").status, 404);
    assert_eq!(server.get_with("/large.bin", &["Range: bytes=0-3"]).status, 206);
}

#[test]
fn a_file_truncated_before_it_is_sent_closes_the_connection_too() {
    let folder = Folder::new();
    let path = folder.write("a.bin", pattern(200_000));
    let server = Server::start(&folder, &["-w", "1"]);
    // Now its descriptor and its length are in the cache.
    assert_eq!(server.get("/a.bin").body.len(), 200_000);
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let mut client = server.connect();
    client.send("GET", "/a.bin", &["Connection: close"]);
    let head = client.receive_head();
    let rest = client.receive_rest();
    assert_eq!(head.status, 200);
    match head.field("content-length") {
        Some("200000") => assert!(rest.len() < 200_000, "{} bytes", rest.len()),
        // On a machine so slow that the entry was no longer trusted, the new length has been seen.
        Some("1000") => assert_eq!(rest.len(), 1000),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.get("/missing").status, 404);
}

#[test]
fn a_file_replaced_under_its_name_is_served_whole_old_or_new() {
    let folder = Folder::new();
    // One in memory, one by sendfile; each version is one letter, and as long as no other.
    let versions: Vec<(char, usize)> = vec![('a', 1000), ('b', 20_000), ('c', 50_000), ('d', 300_000)];
    let write = |letter: char, length: usize| {
        let next = folder.join("next");
        fs::write(&next, vec![letter as u8; length]).unwrap();
        fs::rename(&next, folder.join("file.txt")).unwrap();
    };
    write('a', 1000);
    let server = Server::start(&folder, &[]);
    /// Set also when a check fails: the scope waits for the writer.
    struct Stop(Arc<AtomicBool>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let stop = Stop(Arc::default());
        let halt = stop.0.clone();
        scope.spawn(move || {
            for &(letter, length) in versions.iter().cycle() {
                if halt.load(Ordering::Relaxed) {
                    return;
                }
                write(letter, length);
                thread::sleep(Duration::from_millis(1)); // the pace of the changes
            }
        });
        let mut seen = std::collections::BTreeSet::new();
        let give_up = std::time::Instant::now() + crate::support::DEADLINE;
        while seen.len() < 3 && std::time::Instant::now() < give_up {
            // The cache trusts what it knows for a second; another spelling of the path is another entry.
            for n in 0..50 {
                let reply = server.get(&format!("/{}file.txt", "/".repeat(n)));
                assert_eq!(reply.status, 200);
                let letter = reply.body[0];
                assert!(
                    reply.body.iter().all(|&byte| byte == letter),
                    "two versions in one response"
                );
                let length = [1000, 20_000, 50_000, 300_000][usize::from(letter - b'a')];
                assert_eq!(reply.body.len(), length, "{}", letter as char);
                seen.insert(letter);
            }
        }
        assert!(seen.len() >= 3, "only saw {seen:?}");
    });
}

#[test]
fn a_link_that_flips_never_leads_outside() {
    let folder = Folder::new();
    folder.write("outside/x.txt", "the secret");
    folder.write("www/d/x.txt", "inside");
    let www = folder.join("www");
    symlink(folder.join("outside"), www.join("link")).unwrap();
    let mut command = crate::support::osier();
    command.arg(&www).args(["-l", "127.0.0.1:0", "-w", "2"]);
    let server = Server::spawn(command);
    let stop = Arc::new(AtomicBool::new(false));
    let halt = Arc::clone(&stop);
    let flipping = thread::spawn(move || {
        let swap = |from: &str, to: &str| fs::rename(www.join(from), www.join(to)).unwrap();
        let mut flips = 0;
        while !halt.load(Ordering::Relaxed) {
            // The folder, then the link, then the folder again.
            swap("d", "kept");
            swap("link", "d");
            swap("d", "link");
            swap("kept", "d");
            flips += 1;
        }
        flips
    });
    let begin = std::time::Instant::now();
    let (mut asked, mut inside) = (0, 0);
    while begin.elapsed() < Duration::from_secs(2) {
        // Other spellings are other entries of the cache.
        for n in 1..50 {
            let reply = server.get(&format!("/d{}x.txt", "/".repeat(n)));
            asked += 1;
            match reply.status {
                200 => assert_eq!(reply.text(), "inside"),
                403 | 404 => {}
                status => panic!("{status}: {}", reply.text()),
            }
            inside += usize::from(reply.status == 200);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let flips = flipping.join().unwrap();
    println!("{asked} requests, {inside} answered, {flips} flips");
    assert!(inside > 0 && flips > 10, "{inside} of {asked} answered, {flips} flips");
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let folder = Folder::new();
    folder.write("large.bin", pattern(64 << 20));
    folder.write("small.txt", "small");
    let server = Server::start(&folder, &["-w", "1"]);
    let mut sleepers: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for sleeper in &mut sleepers {
        sleeper.send("GET", "/large.bin", &[]);
        assert_eq!(sleeper.receive_head().status, 200);
    }
    for _ in 0..20 {
        assert_eq!(server.get("/small.txt").text(), "small");
    }
    // One of them wakes up and gets everything.
    let mut late = sleepers.pop().unwrap();
    drop(sleepers);
    late.stream.write_all(b"").unwrap();
    let mut received = 0;
    let mut piece = vec![0; 1 << 20];
    while received < (64 << 20) - 64 * 1024 {
        let count = late.stream.read(&mut piece).unwrap();
        assert!(count > 0, "ended after {received}");
        received += count;
    }
}
