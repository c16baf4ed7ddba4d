//! Dumps show each fiber and task, and disturb none of them.

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::given::forever;
use osier::fiber::Builder;
use osier::inspect::{Dump, DumpedFiber, RunState, Wait, Work};
use osier::net::{TcpListener, TcpStream};
use osier::{Runtime, sleep, spawn, yield_now};

const HOUR: Duration = Duration::from_secs(3600);

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).watchdog(None).build().unwrap()
}

fn fibers(dump: &Dump) -> impl Iterator<Item = &DumpedFiber> {
    dump.workers.iter().flat_map(|worker| &worker.fibers)
}

fn named<'d>(dump: &'d Dump, name: &str) -> &'d DumpedFiber {
    let found = fibers(dump).find(|fiber| fiber.fiber.name() == Some(name));
    found.unwrap_or_else(|| panic!("no fiber '{name}' in\n{dump}"))
}

/// Dumps the runtime until the dump shows what is wanted: the fibers need time to reach their waits.
fn until(runtime: &Runtime, wanted: impl Fn(&Dump) -> bool) -> Dump {
    testkit::wait_for("a dump that shows it", || {
        let dump = runtime.dump();
        wanted(&dump).then_some(dump)
    })
}

fn waits(dump: &Dump, name: &str) -> bool {
    fibers(dump).any(|fiber| fiber.fiber.name() == Some(name) && fiber.wait.is_some())
}

#[inline(never)]
fn deep_in_the_recursion(left: u32) -> u32 {
    let page = std::hint::black_box([left; 64]);
    match left {
        // The wait that is shown: a timer.
        0 => sleep(HOUR),
        _ => drop(deep_in_the_recursion(left - 1)),
    }
    std::hint::black_box(page)[0]
}

#[test]
fn a_fiber_deep_in_recursion_shows_its_functions_and_its_stack() {
    let runtime = runtime(1);
    runtime.run(|| {
        let line = line!() + 1;
        drop(Builder::new().name("deep").spawn(|| deep_in_the_recursion(20)));
        let deep = loop {
            yield_now();
            let dump = osier::dump();
            if waits(&dump, "deep") {
                break named(&dump, "deep").clone();
            }
        };
        assert_eq!((deep.place.file(), deep.place.line()), (file!(), line));
        let here = |function: &str| function.contains("deep_in_the_recursion");
        let frames = deep.frames.iter().filter(|frame| here(&frame.function)).count();
        assert_eq!(frames, 21, "{deep:?}");
        assert_eq!(deep.frames[0].function, "osier::time::sleep", "{deep:?}");
        assert!(here(&deep.frames[1].function), "{deep:?}");
        let outermost = deep.frames.last().unwrap();
        // The closure that was spawned. Optimised, it may be inlined and have a bare name.
        let of_this_file = |file: &String| file.ends_with("it/dump.rs");
        let is_closure = outermost.function.contains("a_fiber_deep_in_recursion");
        assert!(
            is_closure || outermost.file.as_ref().is_some_and(of_this_file),
            "{deep:?}"
        );
        assert!(deep.stack_bytes > 20 * 256, "{deep}");
        assert_eq!(deep.wait, Some(Wait::Timer));
        assert_eq!(deep.state, RunState::Suspended);
        let left = deep.left.unwrap();
        assert!(left <= HOUR && left > HOUR / 2, "{deep}");
    });
}

#[test]
fn each_fiber_says_what_it_waits_for() {
    let runtime = runtime(2);
    let (address, addresses) = mpsc::channel();
    drop(runtime.spawn(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        address.send(at).unwrap();
        let accepts = Builder::new()
            .name("accepts")
            .spawn(move || listener.accept().map(|_| ()));
        drop(Builder::new().name("joins").spawn(move || accepts.join()));
        let mutex = Arc::new(osier::sync::Mutex::new(()));
        let theirs = Arc::clone(&mutex);
        drop(Builder::new().name("locks").spawn(move || {
            let _first = theirs.lock();
            let _second = theirs.lock();
        }));
        drop(
            Builder::new()
                .name("awaits")
                .spawn(|| osier::block_on(std::future::pending::<()>())),
        );
    }));
    let at: std::net::SocketAddr = addresses.recv().unwrap();
    let dump = until(&runtime, |dump| {
        ["accepts", "joins", "locks", "awaits"]
            .iter()
            .all(|name| waits(dump, name))
    });
    match named(&dump, "accepts").wait.as_ref().unwrap() {
        Wait::Socket {
            to_write, local, peer, ..
        } => {
            assert_eq!(
                (*to_write, local.as_deref(), peer.as_deref()),
                (false, Some(&*at.to_string()), None)
            );
        }
        other => panic!("{other}"),
    }
    assert_eq!(named(&dump, "joins").wait, Some(Wait::Join));
    let waits_in = |name: &str| match named(&dump, name).wait.as_ref() {
        Some(Wait::Other(function) | Wait::Lock { function, .. }) => function.clone(),
        other => panic!("{other:?}"),
    };
    // An inlined function has its module and its name, without its type, where debug information is line tables.
    assert!(
        waits_in("locks").to_lowercase().contains("mutex"),
        "{}",
        waits_in("locks")
    );
    assert!(waits_in("awaits").contains("block_on"), "{}", waits_in("awaits"));
    let text = dump.to_string();
    assert!(
        text.contains("waiting to read socket") && text.contains(&at.to_string()),
        "{text}"
    );
}

#[test]
fn a_fiber_that_waits_for_a_lock_names_the_holder() {
    use osier::sync::{Mutex, OnceCell, RwLock};
    let runtime = runtime(2);
    let mutex = Arc::new(Mutex::new(()));
    let rwlock = Arc::new(RwLock::new(()));
    let cell = Arc::new(OnceCell::<u32>::new());
    let spawn_named = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let fiber = Builder::new().name(name);
        drop(runtime.spawn(move || drop(fiber.spawn(body))));
        until(&runtime, |dump| waits(dump, name));
    };
    let (m, r, c) = (Arc::clone(&mutex), Arc::clone(&rwlock), Arc::clone(&cell));
    spawn_named("has the mutex", Box::new(move || drop((m.lock(), sleep(HOUR)))));
    spawn_named("writes", Box::new(move || drop((r.write(), sleep(HOUR)))));
    let makes = move || {
        c.get_or_init(|| {
            sleep(HOUR);
            1
        });
    };
    spawn_named("makes", Box::new(makes));
    let (m, r, c) = (Arc::clone(&mutex), Arc::clone(&rwlock), Arc::clone(&cell));
    spawn_named("wants the mutex", Box::new(move || drop(m.lock())));
    spawn_named("reads", Box::new(move || drop(r.read())));
    let needs = move || {
        c.get_or_init(|| 2);
    };
    spawn_named("needs", Box::new(needs));

    let dump = runtime.dump();
    for (waiter, holder) in [
        ("wants the mutex", "has the mutex"),
        ("reads", "writes"),
        ("needs", "makes"),
    ] {
        let Some(Wait::Lock {
            holder: Some(Work::Fiber { id, name, place }),
            ..
        }) = &named(&dump, waiter).wait
        else {
            panic!("{waiter} does not name its holder in\n{dump}");
        };
        let held_by = &named(&dump, holder).fiber;
        assert_eq!((*id, name.as_deref()), (held_by.id(), held_by.name()));
        assert!(place.is_some_and(|place| place.file() == file!()), "{place:?}");
        assert!(dump.to_string().contains(&format!("'{holder}' spawned at")), "{dump}");
    }
    assert!(dump.to_string().contains("for a lock that the fiber"), "{dump}");
}

#[test]
fn the_holder_of_a_lock_may_be_a_thread_or_a_reader_and_is_forgotten_with_the_lock() {
    use osier::sync::RwLock;
    let runtime = runtime(1);
    let lock = Arc::new(RwLock::new(()));
    let held_by = |dump: &Dump| match named(dump, "writes").wait.clone() {
        Some(Wait::Lock { holder, .. }) => holder,
        other => panic!("{other:?} in\n{dump}"),
    };
    let first = lock.read();
    let theirs = Arc::clone(&lock);
    drop(runtime.spawn(move || {
        drop(
            Builder::new()
                .name("reads")
                .spawn(move || drop((theirs.read(), sleep(HOUR)))),
        )
    }));
    until(&runtime, |dump| waits(dump, "reads"));
    let theirs = Arc::clone(&lock);
    drop(runtime.spawn(move || drop(Builder::new().name("writes").spawn(move || drop(theirs.write())))));
    let dump = until(&runtime, |dump| waits(dump, "writes"));
    // The last reader that came.
    assert!(
        matches!(held_by(&dump), Some(Work::Fiber { name: Some(name), .. }) if name == "reads"),
        "{dump}"
    );
    drop(first);
    assert!(matches!(held_by(&runtime.dump()), Some(Work::Fiber { .. })));

    let mutex = Arc::new(osier::sync::Mutex::new(()));
    let guard = mutex.lock();
    let theirs = Arc::clone(&mutex);
    drop(runtime.spawn(move || drop(Builder::new().name("locks").spawn(move || drop(theirs.lock())))));
    let dump = until(&runtime, |dump| waits(dump, "locks"));
    assert!(
        matches!(
            &named(&dump, "locks").wait,
            Some(Wait::Lock {
                holder: Some(Work::Thread),
                ..
            })
        ),
        "{dump}"
    );
    drop(guard);
}

#[test]
fn ten_thousand_suspended_fibers_are_shown_and_go_on() {
    // An emulator takes minutes for ten thousand backtraces, and other tests' dumps wait for them.
    let count = if testkit::is_emulated() { 300 } else { 10_000 };
    let runtime = runtime(2);
    let (reader, writer) = std::io::pipe().unwrap();
    let awake = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(osier::sync::Semaphore::new(0));
    for number in 0..count {
        let (awake, gate) = (Arc::clone(&awake), Arc::clone(&gate));
        drop(runtime.spawn(move || {
            match number % 2 {
                // Real time: the dumps come in between.
                0 => sleep(Duration::from_millis(200)),
                _ => drop(gate.acquire()),
            }
            awake.fetch_add(1, Ordering::SeqCst);
        }));
    }
    // One waits for a foreign descriptor, in an epoll registration of its own.
    let reads = runtime.spawn(move || {
        osier::io::readable(&reader, None).unwrap();
        (&reader).read(&mut [0; 8]).unwrap()
    });
    let suspended = |dump: &Dump| fibers(dump).filter(|fiber| fiber.wait.is_some()).count();
    let dump = until(&runtime, |dump| suspended(dump) > count / 2);
    assert!(fibers(&dump).all(|fiber| !fiber.frames.is_empty()));
    for _ in 0..3 {
        runtime.dump();
    }
    gate.add_permits(count);
    (&writer).write_all(b"bytes").unwrap();
    assert_eq!(reads.join().unwrap(), 5);
    testkit::eventually("all awake", || awake.load(Ordering::SeqCst) == count);
    until(&runtime, |dump| fibers(dump).count() == 0);
}

#[test]
fn dumps_disturb_no_io() {
    let runtime = runtime(2);
    let done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&done);
    let echoing = runtime.spawn(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                drop(spawn(move || {
                    let mut buf = [0; 512];
                    while let Ok(n @ 1..) = stream.read(&mut buf) {
                        stream.write_all(&buf[..n]).unwrap();
                    }
                }));
            }
        }));
        let clients: Vec<_> = (0..16)
            .map(|client| {
                spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    for round in 0..200u32 {
                        let sent = [client, round as u8, 3, 4];
                        stream.write_all(&sent).unwrap();
                        let mut back = [0; 4];
                        stream.read_exact(&mut back).unwrap();
                        assert_eq!(back, sent);
                        if round % 50 == 0 {
                            yield_now();
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        seen.store(true, Ordering::SeqCst);
    });
    let mut dumps = 0;
    while !done.load(Ordering::SeqCst) && !echoing.is_finished() {
        runtime.dump();
        dumps += 1;
    }
    echoing.join().unwrap();
    assert!(dumps > 0);
}

#[test]
fn a_worker_that_is_stuck_is_shown_with_what_it_runs() {
    let runtime = runtime(2);
    let (release, released) = mpsc::channel::<()>();
    let (entered, enters) = mpsc::channel();
    let line = line!() + 1;
    let stuck = runtime.spawn(move || {
        Builder::new()
            .name("stuck")
            .spawn_local(move || {
                entered.send(osier::fiber::current().unwrap().id()).unwrap();
                released.recv().unwrap_err();
            })
            .join()
    });
    let id = enters.recv().unwrap();
    let began = Instant::now();
    let dump = runtime.dump();
    assert!(began.elapsed() < Duration::from_secs(20));
    let work: Vec<_> = dump.workers.iter().filter_map(|worker| worker.stuck.clone()).collect();
    let Work::Fiber { id: shown, name, place } = &work[0] else {
        panic!("{dump}")
    };
    assert_eq!((*shown, name.as_deref()), (id, Some("stuck")));
    let place = place.unwrap();
    assert!(
        place.file() == file!() && (line..line + 5).contains(&place.line()),
        "{place}"
    );
    assert_eq!(work.len(), 1, "the other worker answers\n{dump}");
    let text = dump.to_string();
    assert!(text.contains("stuck: it does not answer and runs the fiber"), "{text}");
    drop(release);
    stuck.join().unwrap().unwrap();
    let dump = runtime.dump();
    assert!(dump.workers.iter().all(|worker| worker.stuck.is_none()), "{dump}");
}

#[test]
fn a_fiber_that_unwinds_is_shown_in_its_destructor_and_goes_on_unwinding() {
    struct WaitsInDrop(Arc<AtomicBool>, Arc<osier::sync::Event>);
    impl Drop for WaitsInDrop {
        fn drop(&mut self) {
            self.1.wait();
            assert!(std::thread::panicking(), "the fiber's panic is still its own");
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let runtime = runtime(1);
    let dropped = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&dropped);
    let release = Arc::new(osier::sync::Event::new());
    let released = Arc::clone(&release);
    let unwinds = runtime.spawn(move || {
        Builder::new()
            .name("unwinds")
            .spawn(move || {
                let _guard = WaitsInDrop(theirs, released);
                std::panic::resume_unwind(Box::new("the panic"));
            })
            .join()
    });
    let dump = until(&runtime, |dump| waits(dump, "unwinds"));
    let frames = &named(&dump, "unwinds").frames;
    assert!(
        frames.iter().any(|frame| frame.function.contains("WaitsInDrop")),
        "{dump}"
    );
    release.set();
    let payload = unwinds.join().unwrap().unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the panic"));
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn a_fiber_whose_stack_is_nearly_full_is_shown_without_a_backtrace() {
    /// Sleeps with less than this left.
    const LEFT: usize = 12 * 1024;
    #[inline(never)]
    fn fill() {
        let block = std::hint::black_box([0u8; 1024]);
        match osier::coro::stack::extent().unwrap().left_bytes {
            left if left > LEFT => fill(),
            // The wait with the fewest frames.
            _ => sleep(HOUR),
        }
        std::hint::black_box(block);
    }
    let runtime = runtime(1);
    drop(runtime.spawn(|| drop(Builder::new().name("full").spawn(fill))));
    let dump = until(&runtime, |dump| waits(dump, "full"));
    let full = named(&dump, "full");
    assert!(full.frames.is_empty() && full.stack_bytes_left <= LEFT, "{full}");
    assert!(dump.to_string().contains("no room for a backtrace"), "{dump}");
}

#[test]
fn a_fiber_can_dump_itself_also_while_it_unwinds() {
    let runtime = runtime(2);
    runtime.run(|| {
        drop(Builder::new().name("bystander").spawn(forever));
        let seen = |dump: &Dump| waits(dump, "bystander");
        while !seen(&osier::dump()) {
            yield_now();
        }
        let from_a_fiber = osier::dump();
        let me = osier::fiber::current().unwrap().id();
        let mine = fibers(&from_a_fiber).find(|fiber| fiber.fiber.id() == me).unwrap();
        assert!(
            mine.frames.iter().any(|frame| frame.function.contains("dump::dump")),
            "{mine:?}"
        );
        let from_a_destructor = {
            struct Dumps<'a>(&'a mut Option<Dump>);
            impl Drop for Dumps<'_> {
                fn drop(&mut self) {
                    *self.0 = Some(osier::dump());
                }
            }
            let mut dump = None;
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _dumps = Dumps(&mut dump);
                std::panic::resume_unwind(Box::new(()));
            }));
            assert!(caught.is_err());
            dump.unwrap()
        };
        assert!(seen(&from_a_destructor), "{from_a_destructor}");
    });
}

#[test]
fn tasks_are_shown_and_one_can_dump() {
    let runtime = runtime(2);
    let line = line!() + 1;
    let waits = runtime.spawn_future(std::future::pending::<()>());
    drop(runtime.spawn(|| Builder::new().name("bystander").spawn(forever).join().map(drop)));
    until(&runtime, |dump| self::waits(dump, "bystander"));
    // A future's poll must not wait for its own worker: that worker answers at once, and only the other one is waited
    // for.
    let dump = runtime.spawn_future(async { osier::dump() }).join().unwrap();
    named(&dump, "bystander");
    let tasks: Vec<_> = dump.workers.iter().flat_map(|worker| &worker.tasks).collect();
    let here = |place: &std::panic::Location<'_>| place.file() == file!() && place.line() == line;
    let pending = tasks.iter().find(|task| here(task.place)).unwrap();
    assert_eq!(pending.state, RunState::Suspended);
    assert!(pending.future.contains("Pending"), "{}", pending.future);
    assert!(pending.waited.is_some_and(|waited| waited < Duration::from_secs(60)));
    assert!(
        tasks.iter().any(|task| task.state == RunState::Running),
        "the one that dumps\n{dump}"
    );
    assert!(
        dump.to_string()
            .contains(&format!("task {} spawned at {}", pending.id, pending.place)),
        "{dump}"
    );
    drop(waits);
}

/// The program of `sigquit_dumps_to_stderr`, in a process of its own.
#[test]
fn sigquit_child() {
    if std::env::var_os("OSIER_TEST_SIGQUIT").is_none() {
        return;
    }
    osier::dump_on_sigquit().unwrap();
    osier::dump_on_sigquit().unwrap();
    let runtime = runtime(1);
    let sleeper = runtime.spawn(|| Builder::new().name("sleeper").spawn(forever).join().map(drop));
    until(&runtime, |dump| waits(dump, "sleeper"));
    println!("\nready");
    let _ = sleeper.join();
}

#[test]
fn sigquit_dumps_to_stderr() {
    use std::io::{BufRead, BufReader};
    let mut child = testkit::this_test()
        .args(["--exact", "dump::sigquit_child", "--nocapture"])
        .env("OSIER_TEST_SIGQUIT", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    for _ in 0..2 {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::QUIT).unwrap();
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("'sleeper' spawned at")));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A test of its own process: other tests allocate.
#[test]
fn the_debug_information_leaves_memory_when_nobody_looks() {
    let test = "dump::the_debug_information_leaves_memory_when_nobody_looks";
    let child = testkit::in_a_child(test, || {
        let runtime = runtime(1);
        let Some(before) = testkit::resident_bytes() else {
            return testkit::skip("the system does not say how much memory is used");
        };
        runtime.run(|| osier::unblock(|| drop(osier::dump())));
        let with = testkit::resident_bytes().unwrap();
        assert!(
            with > before + (4 << 20),
            "{before} bytes, and {with} with debug information"
        );
        let without = || testkit::resident_bytes().unwrap() < before + (with - before) / 2;
        testkit::eventually("the debug information leaves", without);
    });
    if let Some(child) = child {
        // It may say that it was skipped.
        print!("{}", String::from_utf8_lossy(&child.stdout));
        assert!(child.status.success(), "{child:?}");
    }
}
