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
