//! Files in memory, and what disks do to them.

use super::SECOND;
use osier::fs::{self, DirBuilder, File};
use osier::sim::{self, Faults, HostOptions, Sim, World};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

/// Uses every call on files, and returns what each has given.
fn use_files(folder: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mut see = |what: &str, result: io::Result<String>| {
        seen.push(match result {
            Ok(text) => format!("{what}: {text}"),
            Err(error) => format!("{what}: {:?}", error.kind()),
        });
    };
    let at = |name: &str| folder.join(name);
    let done = |result: io::Result<()>| result.map(|()| "done".to_owned());
    let content = |name: &str| fs::read_to_string(at(name));

    see("nothing there", content("a"));
    see("write", done(fs::write(at("a"), "hello")));
    see("read", content("a"));
    see("write into nothing", done(fs::write(at("no/a"), "")));
    see("below a file", content("a/b"));
    see("directory", done(fs::create_dir(at("dir"))));
    see("directory again", done(fs::create_dir(at("dir"))));
    see("directories", done(fs::create_dir_all(at("dir/deep/deeper"))));
    see(
        "builder",
        done(DirBuilder::new().recursive(true).create(at("dir/deep"))),
    );
    see("builder again", done(DirBuilder::new().create(at("dir/deep"))));
    see("copy", fs::copy(at("a"), at("dir/copy")).map(|count| count.to_string()));
    see("link", done(fs::hard_link(at("dir/copy"), at("link"))));
    see("link again", done(fs::hard_link(at("dir/copy"), at("link"))));
    see("dots", content("dir/deep/../../link"));
    see("rename", done(fs::rename(at("link"), at("a"))));
    see("rename nothing", done(fs::rename(at("link"), at("b"))));
    see("rename to a directory", done(fs::rename(at("a"), at("dir"))));
    see("rename to a file", done(fs::rename(at("dir"), at("a"))));
    see("rename into itself", done(fs::rename(at("dir"), at("dir/deep/dir"))));
    see("rename a directory", done(fs::rename(at("dir/deep"), at("deep"))));
    see("deeper", fs::exists(at("deep/deeper")).map(|is| is.to_string()));
    see("remove a full directory", done(fs::remove_dir(at("deep"))));
    see(
        "remove a directory as a file",
        done(fs::remove_file(at("deep"))).map_err(|_| ErrorKind::Other.into()),
    );
    see("remove all", done(fs::remove_dir_all(at("deep"))));
    see("gone", fs::exists(at("deep")).map(|is| is.to_string()));
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in &names {
        let kind = entry.file_type().unwrap();
        see(
            "entry",
            Ok(format!(
                "{:?} {} {}",
                entry.file_name(),
                kind.is_dir(),
                entry.path() == at("dir")
            )),
        );
    }
    see("list a file", fs::read_dir(at("a")).map(|_| String::new()));
    see(
        "metadata",
        fs::metadata(at("a")).map(|of| format!("{} {}", of.len(), of.is_file())),
    );
    see("link of a file", fs::read_link(at("a")).map(|_| String::new()));

    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(at("f"))
        .unwrap();
    see(
        "exists",
        File::options()
            .write(true)
            .create_new(true)
            .open(at("f"))
            .map(|_| String::new()),
    );
    see("no access", File::options().open(at("f")).map(|_| String::new()));
    see(
        "truncate to read",
        File::options()
            .read(true)
            .truncate(true)
            .open(at("f"))
            .map(|_| String::new()),
    );
    see("write a directory", File::create(at("dir")).map(|_| String::new()));
    file.write_all(b"0123456789").unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let mut two = [0; 2];
    file.read_exact(&mut two).unwrap();
    see("middle", Ok(format!("{two:?}")));
    file.write_all(b"xx").unwrap();
    let mut twin = file.try_clone().unwrap();
    twin.write_all(b"y").unwrap();
    see("position of both", file.stream_position().map(|at| at.to_string()));
    file.set_len(12).unwrap();
    let mut more = File::options().append(true).open(at("f")).unwrap();
    more.write_all(b"end").unwrap();
    see(
        "read what is not open for it",
        more.read(&mut two)
            .map(|_| String::new())
            .map_err(|_| ErrorKind::Other.into()),
    );
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    see("whole", content("f").map(|text| format!("{text:?}")));
    fs::remove_file(at("f")).unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    see("without a name", Ok(format!("{text:?}")));
    seen
}

#[test]
fn files_of_a_simulation_are_as_those_of_the_system() {
    let folder = testkit::Folder::new();
    let path = folder.path().to_owned();
    let real = osier::run(move || use_files(&path));
    for seed in 0..3 {
        let simulated = sim::run(seed, |_| {
            fs::create_dir_all("/some/where").unwrap();
            use_files(Path::new("/some/where"))
        });
        assert_eq!(simulated, real);
        let relative = sim::run(seed, |_| use_files(Path::new(".")));
        // The root also has the directory for temporary files.
        let entries = |seen: &[String]| {
            seen.iter()
                .filter(|line| !line.starts_with("entry"))
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(entries(&relative), entries(&real));
    }
}

#[test]
fn each_host_has_files_of_its_own_unless_it_shares_a_disk() {
    sim::run(1, |world| {
        let path = std::env::temp_dir().join("osier-sim-own-file");
        let write = {
            let path = path.clone();
            move || fs::write(&path, "of the server")
        };
        let server = world.host("server", write);
        server.wait();
        assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!path.exists(), "the machine's disk");
        let options = HostOptions {
            disk: Some(server),
            ..HostOptions::default()
        };
        let found = Rc::new(RefCell::new(String::new()));
        let out = Rc::clone(&found);
        let reads = world.host_with("neighbour", options, move || {
            *out.borrow_mut() = osier::unblock({
                let path = path.clone();
                move || fs::read_to_string(path)
            })
            .unwrap();
        });
        reads.wait();
        assert_eq!(*found.borrow(), "of the server");
    });
}

#[test]
fn times_of_files_are_those_of_the_host() {
    sim::run(1, |_| {
        fs::write("a", "x").unwrap();
        let before: SystemTime = fs::metadata("a").unwrap().modified().unwrap();
        assert_eq!(before, osier::time::system_now());
        osier::sleep(3600 * SECOND);
        fs::write("a", "y").unwrap();
        let after = fs::metadata("a").unwrap().modified().unwrap();
        assert_eq!(after, before + 3600 * SECOND);
    });
}

#[test]
fn the_order_of_a_directory_is_drawn() {
    let orders: BTreeSet<Vec<_>> = (0..20)
        .map(|seed| {
            sim::run(seed, |_| {
                fs::create_dir("d").unwrap();
                for name in ["a", "b", "c"] {
                    fs::write(Path::new("d").join(name), name).unwrap();
                }
                fs::read_dir("d")
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name())
                    .collect()
            })
        })
        .collect();
    assert_eq!(orders.len(), 6, "{orders:?}");
}

/// Runs `write` on a host, ends it by `end`, and returns what `read` then finds there, for many seeds.
fn after(write: fn(), end: fn(&sim::Host), read: fn() -> String) -> BTreeSet<String> {
    let one = move |world: &World| {
        let (found, is_second) = (Rc::new(RefCell::new(String::new())), RefCell::new(false));
        let out = Rc::clone(&found);
        let host = world.host("writer", move || {
            if !is_second.replace(true) {
                return write();
            }
            *out.borrow_mut() = read();
        });
        host.wait();
        end(&host);
        host.restart();
        host.wait();
        found.take()
    };
    (0..60).map(|seed| sim::run(seed, one)).collect()
}

fn content() -> String {
    fs::read_to_string("file").unwrap_or_else(|error| format!("{:?}", error.kind()))
}

fn sync_folder() {
    File::open("/").unwrap().sync_all().unwrap();
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

#[test]
fn a_crash_loses_what_was_not_synced() {
    let write = || {
        let mut file = File::create("file").unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_data().unwrap();
        sync_folder();
        file.write_all(b"abc").unwrap();
        file.set_len(8).unwrap();
    };
    let all = set(["synced", "synceda", "syncedab", "syncedabc"]);
    assert_eq!(after(write, sim::Host::crash, content), all);
    assert_eq!(
        after(write, sim::Host::kill, content),
        set(["syncedab"]),
        "a killed program has no disk"
    );

    let write = || {
        let mut file = File::create("file").unwrap();
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
    };
    assert_eq!(
        after(write, sim::Host::crash, content),
        set(["x", "NotFound"]),
        "its name was not synced"
    );
}

/// Replaces the file by another one with this content.
fn replace_by(content: &str) {
    let mut file = File::create("new").unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename("new", "file").unwrap();
}

#[test]
fn a_rename_is_whole_or_not_at_all() {
    let write = || {
        replace_by("old");
        sync_folder();
        replace_by("new");
    };
    assert_eq!(after(write, sim::Host::crash, content), set(["old", "new"]));
    let write = || {
        replace_by("old");
        sync_folder();
        replace_by("new");
        sync_folder();
    };
    assert_eq!(after(write, sim::Host::crash, content), set(["new"]));
    let write = || {
        replace_by("old");
        sync_folder();
        fs::write("other", "new").unwrap();
        fs::rename("other", "file").unwrap();
        sync_folder();
    };
    let torn = set(["", "n", "ne", "new"]);
    assert_eq!(
        after(write, sim::Host::crash, content),
        torn,
        "the bytes were not synced"
    );
}

#[test]
fn a_full_disk_refuses_what_is_written() {
    let path = Path::new("file");
    sim::run(1, move |world| {
        fs::write(path, "first").unwrap();
        world.here().fill_disk(true);
        assert_eq!(fs::write(path, "second").unwrap_err().kind(), ErrorKind::StorageFull);
        let mut file = File::create(path).unwrap();
        assert_eq!(file.write(b"third").unwrap_err().kind(), ErrorKind::StorageFull);
        world.here().fill_disk(false);
        file.write_all(b"fourth").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "fourth");
    });
}

#[test]
fn a_disk_has_room_for_so_many_bytes() {
    sim::run(1, |world| {
        world.here().limit_disk(Some(10));
        fs::write("a", "123456").unwrap();
        assert_eq!(fs::write("b", "123456").unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string("b").unwrap(), "1234", "a first part is there");
        let mut file = File::options().write(true).open("b").unwrap();
        file.write_all(b"4321").unwrap();
        assert_eq!(file.set_len(5).unwrap_err().kind(), ErrorKind::StorageFull);
        fs::remove_file("a").unwrap();
        file.set_len(10).unwrap();
        fs::remove_file("b").unwrap();
        assert_eq!(
            fs::write("c", "1").unwrap_err().kind(),
            ErrorKind::StorageFull,
            "b is open"
        );
        drop(file);
        fs::write("c", "1234567890").unwrap();
        world.here().limit_disk(None);
        fs::write("d", vec![0; 100_000]).unwrap();
    });
}

#[test]
fn calls_on_files_fail_by_chance() {
    let kinds = |faults: Faults| {
        let sim = Sim::new(1).faults(faults);
        sim.run(|_| {
            let mut file = File::create("f").unwrap();
            let mut kinds = BTreeSet::new();
            for _ in 0..50 {
                kinds.extend(
                    file.write_all(b"x")
                        .err()
                        .map(|error| format!("write {:?}", error.kind())),
                );
                kinds.extend(
                    file.sync_all()
                        .err()
                        .map(|error| format!("sync {:?}", error.raw_os_error())),
                );
                kinds.extend(
                    fs::read("f")
                        .err()
                        .map(|error| format!("read {:?}", error.raw_os_error())),
                );
            }
            kinds
        })
    };
    let full = Faults {
        disk_full: 5,
        ..Faults::none()
    };
    assert_eq!(kinds(full), set(["write StorageFull"]));
    let broken = Faults {
        disk_error: 5,
        ..Faults::none()
    };
    let all = set(["read Some(5)", "sync Some(5)", "write Uncategorized"]);
    assert_eq!(kinds(broken), all);
    assert!(kinds(Faults::none()).is_empty());
}

#[test]
fn a_program_that_has_ended_writes_no_more() {
    sim::run(1, |world| {
        let body = || {
            if fs::exists("file").unwrap() {
                assert_eq!(content(), "before");
                return;
            }
            fs::write("file", "before").unwrap();
            struct Writes;
            impl Drop for Writes {
                fn drop(&mut self) {
                    assert!(fs::write("file", "after").is_err());
                }
            }
            let _writes = Writes;
            osier::sleep(SECOND);
        };
        let host = world.host("writer", body);
        osier::sleep(SECOND / 2);
        host.kill();
        host.restart();
        host.wait();
    });
}

#[test]
fn files_work_as_futures_too() {
    sim::run(1, |_| {
        osier::block_on(async {
            fs::write_async("f", "future").await.unwrap();
            assert_eq!(fs::read_to_string_async("f").await.unwrap(), "future");
        });
    });
}

#[test]
fn bytes_that_a_dropped_read_has_read_ahead_are_gone_after_a_truncation() {
    use futures_lite::AsyncRead;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    sim::run(1, |_| {
        fs::write("file", vec![7; 10_000]).unwrap();
        let mut file = File::options().read(true).write(true).open("file").unwrap();
        let mut bytes = [0; 1000];
        let dropped = Pin::new(&mut file).poll_read(&mut Context::from_waker(Waker::noop()), &mut bytes);
        assert!(dropped.is_pending());
        osier::sleep(SECOND);
        file.set_len(0).unwrap();
        assert_eq!(file.read(&mut bytes).unwrap(), 0);
    });
}

#[test]
fn a_sync_that_failed_stores_nothing_the_next_time() {
    let mut left = BTreeSet::new();
    for seed in 0..20 {
        left.insert(sim::run(seed, |world| {
            let found = Rc::new(RefCell::new(None));
            let (out, here) = (Rc::clone(&found), world.clone());
            let host = world.host("host", move || {
                if fs::exists("file").unwrap() {
                    *out.borrow_mut() = Some(content());
                    return;
                }
                let mut file = File::create("file").unwrap();
                File::open("/").unwrap().sync_all().unwrap();
                file.write_all(b"lost").unwrap();
                here.faults(Faults {
                    disk_error: 1,
                    ..Faults::none()
                });
                file.sync_all().unwrap_err();
                here.faults(Faults::none());
                file.sync_all().unwrap();
                assert_eq!(content(), "lost", "programs still see it");
            });
            host.wait();
            host.crash();
            host.restart();
            host.wait();
            found.take().unwrap()
        }));
    }
    assert_eq!(left, set(["", "lost"]));
}

#[test]
fn a_file_has_a_longest_length() {
    sim::run(1, |_| {
        let mut file = File::create("file").unwrap();
        assert_eq!(file.set_len(1 << 40).unwrap_err().kind(), ErrorKind::FileTooLarge);
        file.seek(SeekFrom::Start(1 << 40)).unwrap();
        assert_eq!(file.write(b"x").unwrap_err().kind(), ErrorKind::FileTooLarge);
        file.sync_all().unwrap();
    });
}
