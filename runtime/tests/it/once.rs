//! Cells and lazy values whose initialisers wait, and the lints that forbid what would stop a worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use osier::Runtime;
use osier::sync::{Event, Lazy, OnceCell};

/// One worker: with std's cells the second fiber would stop it.
fn one_worker() -> Runtime {
    Runtime::builder().workers(1).build().unwrap()
}

#[test]
fn an_initialiser_that_waits_lets_the_others_wait_for_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    one_worker().run(move || {
        let (cell, go) = (Arc::new(OnceCell::new()), Arc::new(Event::manual()));
        let fibers: Vec<_> = (0..8)
            .map(|_| {
                let (cell, go, counted) = (Arc::clone(&cell), Arc::clone(&go), Arc::clone(&counted));
                osier::spawn(move || {
                    *cell.get_or_init(|| {
                        go.wait();
                        counted.fetch_add(1, Ordering::SeqCst) + 41
                    })
                })
            })
            .collect();
        osier::yield_now();
        assert_eq!(cell.get(), None);
        go.set();
        assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap() == 41));
        assert_eq!(cell.set(0), Err(0));
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn an_initialiser_that_fails_panics_or_is_cancelled_leaves_the_cell_empty() {
    one_worker().run(|| {
        let cell = Arc::new(OnceCell::<u32>::new());
        assert_eq!(cell.get_or_try_init(|| Err("no")), Err("no"));
        assert!(catch_unwind(AssertUnwindSafe(|| cell.get_or_init(|| panic!("on purpose")))).is_err());
        let theirs = Arc::clone(&cell);
        let waits = osier::spawn(move || {
            theirs.get_or_init(|| {
                osier::sleep(Duration::from_secs(3600));
                1
            });
        });
        osier::yield_now();
        waits.cancel();
        assert!(waits.join().is_err());
        assert_eq!(cell.get(), None);
        assert_eq!(
            osier::block_on(cell.get_or_try_init_async(async { Err("no") })),
            Err("no")
        );
        assert_eq!(cell.get_or_try_init(|| Ok::<_, ()>(7)), Ok(&7));
        assert_eq!(osier::block_on(cell.get_or_try_init_async(async { Err("no") })), Ok(&7));
        assert_eq!(osier::block_on(cell.get_or_init_async(async { 8 })), &7);
    });
}

#[test]
fn a_lazy_value_is_made_at_its_first_use_and_again_after_a_panic() {
    one_worker().run(|| {
        let calls = AtomicUsize::new(0);
        let lazy = Lazy::new(|| {
            osier::sleep(Duration::from_millis(1));
            let call = calls.fetch_add(1, Ordering::SeqCst);
            assert!(call > 0, "the first call fails on purpose");
            "made"
        });
        assert!(catch_unwind(AssertUnwindSafe(|| lazy.len())).is_err());
        assert_eq!(Lazy::get(&lazy), None);
        assert_eq!(lazy.len(), 4);
        assert_eq!((*lazy, calls.load(Ordering::SeqCst)), ("made", 2));
    });
}

/// Code of a fiber that stops its worker, with the number of things to report.
const BLOCKS: &str = "
pub fn handler() {
    std::thread::sleep(std::time::Duration::from_secs(1));
    let _stream = std::net::TcpStream::connect((\"127.0.0.1\", 1));
    let _line = std::io::stdin().lines().next();
    let _lock = std::sync::Mutex::new(());
    static VALUE: std::sync::LazyLock<u8> = std::sync::LazyLock::new(|| 7);
    let _copy = *VALUE;
}
";

#[test]
fn the_lints_to_copy_name_what_exists_and_find_what_blocks() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/clippy");
    let out = std::env::temp_dir().join(format!("osier-lints-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("blocks.rs"), BLOCKS).unwrap();
    let run = Command::new("clippy-driver")
        .args([
            "--edition=2024",
            "--crate-type=lib",
            "--emit=metadata",
            "-Wclippy::disallowed_methods",
        ])
        .arg("-Wclippy::disallowed_types")
        .arg("--out-dir")
        .arg(&out)
        .arg(out.join("blocks.rs"))
        .env("CLIPPY_CONF_DIR", folder)
        .output();
    let _ = std::fs::remove_dir_all(&out);
    let output = match run {
        Ok(output) if output.status.success() => output,
        other => {
            println!("skipped: clippy-driver does not run here: {other:?}");
            return;
        }
    };
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("does not refer to"), "{text}");
    for part in [
        "osier::sleep",
        "osier::net::TcpStream",
        "osier::sync::Mutex",
        "osier::sync::Lazy",
        "reading it blocks",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}
