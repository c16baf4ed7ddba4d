//! Files of earlier processes beside responses that this one has stored.

use super::{World, answer, on_clock, s, send, store};
use osier_web::wrap::cache::{Cache, Store};
use std::sync::Arc;
use std::time::Duration;
use testkit::Folder;

/// Longer bodies go to files.
const MEMORY: usize = 1000;

fn disk_store(folder: &Folder) -> Arc<Store> {
    let path = folder.path().join("cache");
    store(|options| {
        options.memory_entry = MEMORY;
        options.disk = Some(path);
    })
}

/// Waits until there is a file, by the clock of the test.
fn settle(world: &World) {
    for _ in 0..60_000 {
        if world.stats().disk_entries == 1 {
            return;
        }
        osier::sleep(Duration::from_millis(1));
    }
    panic!("{:?}", world.stats());
}

#[test]
fn a_file_has_the_fields_and_the_lifetime_of_the_last_304() {
    let (folder, body) = (Folder::new(), "long".repeat(MEMORY));
    let long = "x".repeat(300);
    on_clock(|| {
        let (stored, long) = (body.clone(), long.clone());
        let world = World::of(Cache::new(disk_store(&folder)), move |call, request| {
            match (call, request.header("if-none-match")) {
                (0, _) => answer(200, "cache-control: max-age=10\netag: \"a\"\nx-seen: body", &stored),
                (1, Some(_)) => answer(304, "cache-control: max-age=60\netag: \"a\"\nx-seen: first", ""),
                (2, Some(_)) => answer(304, &format!("cache-control: max-age=60\nx-seen: second{long}"), ""),
                _ => panic!("call {call} has no validator"),
            }
        });
        assert_eq!(send(&world.client, "").text(), body);
        settle(&world);
        let file = std::fs::read_dir(folder.path().join("cache")).unwrap().next().unwrap();
        let file = file.unwrap().path();
        let has = |words: &str| {
            let bytes = std::fs::read(&file).unwrap();
            bytes.windows(words.len()).any(|found| found == words.as_bytes())
        };
        osier::sleep(s(20));
        assert_eq!(send(&world.client, "").header("x-seen"), Some("first"));
        for _ in 0..60_000 {
            if has("x-seen: first") {
                break;
            }
            osier::sleep(Duration::from_millis(1)); // the disk is not on the clock of the test
        }
        assert!(has("x-seen: first") && !has("x-seen: body"));
        osier::sleep(s(100));
        // This one has no room in the file.
        let reply = send(&world.client, "");
        assert!(reply.header("x-seen").is_some_and(|seen| seen.starts_with("second")));
        osier::sleep(s(1));
        assert!(has("x-seen: first"));
    });
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder)), |_, _| panic!("the file answers"));
        let reply = (0..60_000).find_map(|_| {
            let reply = send(&world.client, "GET /a\ncache-control: only-if-cached");
            osier::sleep(Duration::from_millis(1));
            (reply.status() == 200).then_some(reply)
        });
        let reply = reply.expect("the folder is read");
        assert_eq!((reply.header("x-seen"), reply.text()), (Some("first"), &*body));
        assert_eq!(reply.header("cache-control"), Some("max-age=60"));
    });
}

#[test]
fn a_file_does_not_answer_in_place_of_a_newer_response_with_another_vary() {
    let folder = Folder::new();
    let old = "old".repeat(MEMORY);
    on_clock(|| {
        let body = old.clone();
        let world = World::of(Cache::new(disk_store(&folder)), move |_, _| {
            answer(200, "cache-control: max-age=3600\nvary: x-a", &body)
        });
        assert_eq!(send(&world.client, "").text(), old);
        settle(&world);
    });
    on_clock(|| {
        let world = World::of(Cache::new(disk_store(&folder)), |_, _| {
            answer(200, "cache-control: max-age=3600\nvary: x-b", "new")
        });
        // The old one neither answers this request nor is replaced by its response, whether the folder has been read or not.
        assert_eq!(send(&world.client, "GET /a\nx-a: 1").text(), "new");
        settle(&world);
        assert_eq!(send(&world.client, "").text(), "new");
        // The file is there for those who do not select the newer one.
        assert_eq!(send(&world.client, "GET /a\nx-b: 1").text(), old);
        osier::sleep(s(1));
        assert_eq!(world.calls(), 1);
    });
}
