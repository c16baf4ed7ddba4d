//! Simulations: one seed is one run, the sockets keep the promises of the system's, and faults are what they say.

mod connect;
mod faults;
mod files;
mod sockets;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use osier::net::{TcpListener, TcpStream};
use osier::sim::{self, Faults, HostOptions, Schedule, Sim, World};

const SECOND: Duration = Duration::from_secs(1);

/// A server that gives back what it gets, on port 7.
pub fn echo_server() -> std::io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7")?;
    loop {
        let (mut stream, _) = listener.accept()?;
        osier::spawn(move || -> std::io::Result<()> {
            let mut buf = [0; 1000];
            loop {
                match stream.read(&mut buf)? {
                    0 => return Ok(()),
                    count => stream.write_all(&buf[..count])?,
                }
            }
        });
    }
}

/// Sends `bytes` to the echo server of a host, and reads the answer.
pub fn echo(host: &str, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let stream = TcpStream::connect((host, 7))?;
    let sending = stream.try_clone()?;
    let all = bytes.to_vec();
    let sender = osier::spawn(move || -> std::io::Result<()> {
        (&sending).write_all(&all)?;
        sending.shutdown(Shutdown::Write)
    });
    let mut answer = Vec::new();
    (&stream).read_to_end(&mut answer)?;
    sender.join().unwrap()?;
    Ok(answer)
}

/// Three clients and a server, on a network that is as bad as connections survive.
fn three_clients(world: &World) {
    world.faults(Faults::mild());
    world.host("server", echo_server);
    osier::sleep(Duration::from_millis(100));
    let clients: Vec<_> = (0..3u8)
        .map(|number| {
            world.host(&format!("client-{number}"), move || {
                for round in 0..3u32 {
                    let bytes: Vec<u8> = (0..5000 * round).map(|at| number ^ at as u8).collect();
                    assert!(echo("server", &bytes).unwrap() == bytes);
                }
            })
        })
        .collect();
    clients.iter().for_each(|client| client.wait());
}

#[test]
fn the_same_seed_is_the_same_run() {
    let traces: Vec<_> = (0..20).map(|seed| Sim::new(seed).report(three_clients)).collect();
    for (seed, first) in (0..).zip(&traces) {
        assert_eq!(first.failure, None, "seed {seed}");
        let again = Sim::new(seed).report(three_clients);
        assert!(
            first.trace == again.trace,
            "seed {seed}:\n{}\n{}",
            first.trace,
            again.trace
        );
        assert_eq!((first.steps, first.elapsed), (again.steps, again.elapsed));
    }
    let different: BTreeSet<_> = traces.iter().map(|report| &report.trace).collect();
    assert_eq!(different.len(), traces.len(), "every seed is another run");
}

/// Writes files on a host that loses its power, and notes the rest of them.
#[cfg(target_os = "linux")]
fn use_a_disk(world: &World) {
    let has_written = std::cell::Cell::new(false);
    let host = world.host("disk", move || {
        if !has_written.replace(true) {
            osier::fs::create_dir("folder").unwrap();
            for name in ["one", "two", "three"] {
                osier::fs::write(format!("folder/{name}"), name).unwrap();
            }
            osier::fs::rename("folder/three", "folder/four").unwrap();
            osier::fs::File::open("folder").unwrap().sync_all().unwrap();
            osier::fs::remove_file("folder/four").unwrap();
        }
        for entry in osier::fs::read_dir("folder").unwrap().map(Result::unwrap) {
            let text = osier::fs::read_to_string(entry.path()).unwrap();
            sim::note(format_args!("found {:?} {text:?}", entry.file_name()));
        }
    });
    host.wait();
    host.crash();
    host.restart();
    host.wait();
}

#[test]
fn a_trace_is_the_same_on_every_machine() {
    let report = Sim::new(11).report(|world| {
        world.host("server", echo_server);
        osier::sleep(Duration::from_millis(10));
        echo("server", b"hello").unwrap();
        sim::note(format_args!("random {}", osier::random()));
        use_a_disk(world);
    });
    assert_eq!(report.failure, None);
    let expected = include_str!("trace.txt");
    if std::env::var_os("OSIER_WRITE_TRACE").is_some() {
        std::fs::write(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sim/trace.txt"),
            &report.trace,
        )
        .unwrap();
    }
    assert!(report.trace == expected, "{}", report.trace);
}

#[test]
fn an_hour_costs_what_its_events_cost() {
    let report = Sim::new(1).report(|world| {
        let start = osier::time::now();
        for _ in 0..60 {
            osier::sleep(60 * SECOND);
        }
        assert_eq!(osier::time::now() - start, 3600 * SECOND);
        assert_eq!(world.elapsed(), 3600 * SECOND);
        assert!(osier::timeout(SECOND, || osier::sleep(2 * SECOND)).is_err());
    });
    assert_eq!(report.failure, None);
    assert!(report.steps < 200, "{} steps", report.steps);
}

/// The orders in which four fibers, each of which lets others run once, end.
fn orders(seeds: u64, let_others_run: fn()) -> BTreeSet<Vec<usize>> {
    (0..seeds)
        .map(|seed| {
            sim::run(seed, move |_| {
                let order = Arc::new(std::sync::Mutex::new(Vec::new()));
                let fibers: Vec<_> = (0..4)
                    .map(|number| {
                        let order = Arc::clone(&order);
                        osier::spawn(move || {
                            let_others_run();
                            order.lock().unwrap().push(number);
                        })
                    })
                    .collect();
                fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
                std::mem::take(&mut *order.lock().unwrap())
            })
        })
        .collect()
}

#[test]
fn every_order_of_ready_fibers_comes_up() {
    assert_eq!(orders(1000, osier::yield_now).len(), 24);
    assert_eq!(orders(1000, osier::fiber::give_way).len(), 24);
}

#[test]
fn tasks_and_fibers_of_several_workers_take_part() {
    let places: BTreeSet<Vec<Option<usize>>> = (0..60)
        .map(|seed| {
            sim::run(seed, |world| {
                let places = Arc::new(std::sync::Mutex::new(Vec::new()));
                let seen = Arc::clone(&places);
                let options = sim::HostOptions {
                    workers: 3,
                    ..Default::default()
                };
                let host = world.host_with("many", options, move || {
                    assert_eq!(osier::workers(), 3);
                    let fibers: Vec<_> = (0..4)
                        .map(|_| {
                            let seen = Arc::clone(&seen);
                            osier::spawn(move || seen.lock().unwrap().push(osier::fiber::worker()))
                        })
                        .collect();
                    let task = osier::spawn_future(async { osier::time::Sleep::new(SECOND).await });
                    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
                    osier::block_on(task).unwrap();
                });
                host.wait();
                std::mem::take(&mut *places.lock().unwrap())
            })
        })
        .collect();
    assert!(places.len() > 10, "{places:?}");
}

#[test]
fn a_run_in_which_everybody_waits_fails_and_names_them() {
    let report = Sim::new(1).report(|_| {
        let never = Arc::new(osier::sync::Event::new());
        let waiter = osier::fiber::Builder::new().name("patient").spawn(move || never.wait());
        waiter.join().unwrap();
    });
    let failure = report.failure.unwrap();
    assert!(failure.starts_with("everybody waits, and no timer is set"), "{failure}");
    assert!(failure.contains("'patient' spawned at"), "{failure}");
}

#[test]
fn fibers_that_yield_until_a_time_see_it_come() {
    sim::run(1, |_| {
        let start = osier::time::now();
        while osier::time::now() - start < Duration::from_millis(2) {
            osier::yield_now();
        }
    });
}

#[test]
fn a_run_that_does_not_end_fails() {
    let endless = |_: &World| {
        loop {
            osier::sleep(SECOND);
        }
    };
    let report = Sim::new(1).limit(60 * SECOND).report(endless);
    assert!(report.failure.unwrap().starts_with("the run does not end"));
    let report = Sim::new(1).limit_steps(50).report(endless);
    assert!(report.steps < 60 && report.failure.is_some());
}

/// A fiber whose destructor spawns one like it, by a function.
struct SpawnsItsLike(fn(SpawnsItsLike));

impl Drop for SpawnsItsLike {
    fn drop(&mut self) {
        (self.0)(SpawnsItsLike(self.0));
    }
}

/// A test of its own process: it never ended.
#[test]
fn destructors_that_spawn_for_ever_and_fibers_that_never_end_are_given_up_with_their_host() {
    let test = "sim::destructors_that_spawn_for_ever_and_fibers_that_never_end_are_given_up_with_their_host";
    let child = testkit::in_a_child(test, || {
        let anywhere = |like| drop(osier::spawn(move || drop::<SpawnsItsLike>(like)));
        let here = |like| {
            let builder = osier::fiber::Builder::new().worker(osier::fiber::worker().unwrap());
            drop(builder.spawn(move || drop::<SpawnsItsLike>(like)));
        };
        let task = |like| drop(osier::spawn_future(async move { drop::<SpawnsItsLike>(like) }));
        let spawns: [fn(SpawnsItsLike); 3] = [anywhere, here, task];
        for (workers, spawn) in spawns.into_iter().flat_map(|spawn| [(1, spawn), (2, spawn)]) {
            sim::run(1, move |world| {
                let options = sim::HostOptions {
                    workers,
                    ..Default::default()
                };
                let host = world.host_with("spawns", options, move || {
                    let first = SpawnsItsLike(spawn);
                    let waits = move || {
                        let _first = first;
                        osier::sleep(1000 * SECOND);
                    };
                    drop(osier::spawn(waits));
                    osier::sleep(1000 * SECOND);
                });
                osier::sleep(SECOND);
                host.kill();
                host.wait();
            });
        }
        sim::run(1, |world| {
            let host = world.host("yields", || {
                osier::shield(|| std::iter::repeat_with(osier::yield_now).for_each(drop));
            });
            osier::sleep(Duration::from_millis(1));
            host.kill();
            host.wait();
        });
    });
    let Some(child) = child else { return };
    let text = String::from_utf8(child.stderr).unwrap();
    assert!(child.status.success(), "{text}");
    assert_eq!(
        text.matches("osier: destructors still spawn fibers or tasks").count(),
        6,
        "{text}"
    );
    assert_eq!(text.matches("did not end").count(), 1, "{text}");
}

#[test]
fn the_panic_of_a_program_and_of_a_host_is_that_of_the_run() {
    let panicked = std::panic::catch_unwind(|| sim::run(1, |_| panic!("on purpose")));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    let report = Sim::new(1).report(|world| world.host("bad", || Err::<(), _>("out of luck")).wait());
    assert_eq!(
        report.failure.unwrap(),
        "host bad returned an error: \"out of luck\": \"out of luck\""
    );
}

#[test]
fn check_runs_every_seed_and_stops_at_the_first_that_fails() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let failed = std::panic::catch_unwind(|| {
        sim::check(0..100, |_| {
            RUNS.fetch_add(1, Ordering::Relaxed);
            assert!(sim::random() % 10 != 3, "an unlucky number");
        });
    });
    assert!(failed.is_err());
    // The one that failed ran twice, for its trace.
    let unlucky = (0..100)
        .find(|&seed| sim::run(seed, |_| sim::random() % 10 == 3))
        .unwrap();
    assert_eq!(RUNS.load(Ordering::Relaxed) as u64, unlucky + 2);
}

#[test]
fn unblock_runs_on_this_thread_and_plain_threads_are_no_part_of_it() {
    sim::run(1, |_| {
        let here = std::thread::current().id();
        assert_eq!(osier::unblock(move || std::thread::current().id()), here);
        assert!(sim::is_simulated());
        assert!(osier::unblock(|| !sim::is_simulated()));
    });
    assert!(!sim::is_simulated());
}

/// A counter that two fibers read and write, with a yield in between.
fn lost_update(_: &World) {
    let counter = Arc::new(AtomicUsize::new(0));
    let fibers: Vec<_> = (0..2)
        .map(|_| {
            let counter = Arc::clone(&counter);
            osier::spawn(move || {
                for _ in 0..3 {
                    let read = counter.load(Ordering::Relaxed);
                    if read == 4 {
                        osier::yield_now();
                    }
                    counter.store(read + 1, Ordering::Relaxed);
                    osier::yield_now();
                }
            })
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    assert_eq!(counter.load(Ordering::Relaxed), 6, "an update is lost");
}

#[test]
fn shrinking_leaves_the_choices_that_matter() {
    let shrunk = (0..200)
        .find_map(|seed| Sim::new(seed).shrink(500, lost_update))
        .expect("some order loses an update");
    assert!(shrunk.schedule.choices().unwrap() <= shrunk.choices_before);
    assert!(shrunk.schedule.choices().unwrap() <= 1, "{shrunk:?}");
    let again = Sim::new(shrunk.schedule.clone()).report(lost_update);
    assert!(again.failure.unwrap().contains("an update is lost"));
    assert!(again.trace == shrunk.report.trace);
}

/// Whatever draws or collects something: a choice among ready arms, the cancellation of a set and of a scope.
fn draws_and_cancels(_: &World) {
    use osier::sync::Event;
    struct Told(u32);
    impl Drop for Told {
        fn drop(&mut self) {
            sim::note(format_args!("{} ends", self.0));
        }
    }
    fn waits(number: u32) {
        let _told = Told(number);
        osier::sleep(1000 * SECOND);
    }
    let (one, two) = (Event::new(), Event::new());
    for _ in 0..8 {
        one.set();
        two.set();
        osier::select! {
            () = one.wait_async() => sim::note(format_args!("one")),
            () = two.wait_async() => sim::note(format_args!("two")),
        }
    }
    let mut set = osier::fiber::JoinSet::new();
    (0..6).for_each(|number| set.spawn(move || waits(number)));
    osier::sleep(SECOND);
    set.cancel_all();
    while set.join_next().is_some() {}
    let failed = osier::try_scope(|s| {
        for number in 6..12 {
            s.spawn(move || {
                waits(number);
                Ok(())
            });
        }
        osier::sleep(SECOND);
        s.spawn(|| Err::<(), _>("on purpose"));
        osier::sleep(SECOND);
        Ok(())
    });
    assert_eq!(failed, Err("on purpose"));
}

#[test]
fn what_is_drawn_or_cancelled_is_the_same_in_each_run_of_a_seed() {
    let first = Sim::new(1).report(draws_and_cancels);
    assert_eq!(first.failure, None);
    for _ in 0..4 {
        assert_eq!(Sim::new(1).report(draws_and_cancels).trace, first.trace);
    }
    let others: BTreeSet<_> = (2..8)
        .map(|seed| Sim::new(seed).report(draws_and_cancels).trace)
        .collect();
    assert!(others.len() > 1, "seeds draw different arms");
}

#[test]
fn a_body_that_unwraps_what_a_crash_has_cancelled_is_no_failure() {
    let report = Sim::new(1).report(|world| {
        let host = world.host("unwraps", || {
            TcpListener::bind("0.0.0.0:80").unwrap().accept().unwrap();
        });
        osier::sleep(SECOND);
        host.crash();
        host.restart();
        osier::sleep(SECOND);
    });
    assert_eq!(report.failure, None);
    // The end of the run is one, too.
    Sim::new(1).run(|world| {
        world.host("unwraps", || {
            TcpListener::bind("0.0.0.0:80").unwrap().accept().unwrap();
        });
        osier::sleep(SECOND);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_crash_after_a_kill_takes_the_power_and_what_was_not_synced() {
    let is_kept = |seed| {
        sim::run(seed, |world| {
            let is_there = std::rc::Rc::new(std::cell::Cell::new(None));
            let seen = std::rc::Rc::clone(&is_there);
            let host = world.host("files", move || match seen.get() {
                None => {
                    osier::fs::write("file", "text").unwrap();
                    seen.set(Some(true));
                }
                Some(_) => seen.set(Some(osier::fs::exists("file").unwrap())),
            });
            host.wait();
            host.kill();
            assert!(host.is_up());
            host.crash();
            assert!(!host.is_up());
            host.restart();
            host.wait();
            is_there.get()
        })
    };
    assert!((0..20).any(|seed| is_kept(seed) == Some(false)), "no seed loses it");
}

#[test]
fn the_destructors_of_a_crash_leave_the_clock_of_the_next_start_alone() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            osier::sleep(4 * SECOND);
        }
    }
    sim::run(1, |world| {
        let (has_started, of_world) = (std::cell::Cell::new(false), world.clone());
        let host = world.host("slow", move || {
            if !has_started.replace(true) {
                let _slow = Slow;
                osier::sleep(1000 * SECOND);
            }
            let begun = of_world.elapsed();
            osier::sleep(SECOND);
            assert_eq!(of_world.elapsed() - begun, SECOND);
        });
        osier::sleep(SECOND);
        host.crash();
        host.restart();
        host.wait();
    });
}

#[test]
fn a_random_partition_leaves_the_cuts_of_the_program_alone() {
    use osier::net::UdpSocket;
    sim::run(1, |world| {
        let received = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = std::rc::Rc::clone(&received);
        let server = world.host("server", move || -> std::io::Result<()> {
            let socket = UdpSocket::bind("0.0.0.0:9")?;
            // This packet brings the random partition about.
            let _ = socket.send_to(b"x", "world:9");
            loop {
                socket.recv(&mut [0])?;
                counted.set(counted.get() + 1);
            }
        });
        world.cut(&world.here(), &server);
        world.faults(Faults {
            partition: 1,
            ..Faults::none()
        });
        let socket = UdpSocket::bind("0.0.0.0:9").unwrap();
        osier::sleep(SECOND);
        world.faults(Faults::none());
        osier::sleep(600 * SECOND);
        socket.send_to(b"a", "server:9").unwrap();
        osier::sleep(SECOND);
        assert_eq!(received.get(), 0, "nobody has healed it");
    });
}

#[test]
fn work_for_the_pool_has_its_hosts_clock() {
    sim::run(1, |_| {
        osier::sleep(3600 * SECOND);
        let here = (osier::time::now(), osier::time::coarse_now());
        let there = osier::unblock(|| (osier::time::now(), osier::time::coarse_now()));
        assert!(there.0 - here.0 < SECOND && there.0 >= here.0);
        assert!(there.1 - here.1 < SECOND && there.1 >= here.1);
    });
}

/// Sets a flag on the second worker of a host and then in the pool, and waits for each without rest.
fn waits_without_rest(world: &World) {
    let options = HostOptions {
        workers: 2,
        ..HostOptions::default()
    };
    let until = |sets: fn(Arc<AtomicUsize>)| {
        let flag = Arc::new(AtomicUsize::new(0));
        sets(Arc::clone(&flag));
        while flag.load(Ordering::SeqCst) == 0 {
            osier::yield_now();
        }
    };
    let host = world.host_with("host", options, move || {
        until(|flag| {
            let second = osier::fiber::Builder::new().worker(1);
            second.spawn(move || flag.store(1, Ordering::SeqCst));
        });
        until(|flag| {
            osier::spawn(move || osier::unblock(move || flag.store(1, Ordering::SeqCst)));
        });
    });
    host.wait();
}

#[test]
fn the_plain_schedule_gives_each_worker_and_the_pool_its_turn() {
    let plain: Schedule = "1/".parse().unwrap();
    let report = Sim::new(plain).limit_steps(10_000).report(waits_without_rest);
    assert_eq!(report.failure, None);
}

#[test]
fn a_schedule_shrinks_to_the_same_failure() {
    let sim = |seed| Sim::new(seed).limit_steps(1000);
    // A plain run does not end, because the second fiber runs last.
    let program = |_: &World| {
        let number = Arc::new(AtomicUsize::new(0));
        let store = |value| {
            let number = Arc::clone(&number);
            osier::spawn(move || number.store(value, Ordering::SeqCst))
        };
        let (one, two) = (store(1), store(2));
        one.join().unwrap();
        two.join().unwrap();
        while number.load(Ordering::SeqCst) == 2 {
            osier::yield_now();
        }
        panic!("on purpose");
    };
    let fails = |text: &str, report: &sim::Report| report.failure.as_ref().unwrap().contains(text);
    let panics = |seed: &u64| fails("on purpose", &sim(*seed).report(program));
    let seed = (0..50).find(panics).unwrap();
    let plain: Schedule = format!("{seed}/").parse().unwrap();
    let ends_not = Sim::new(plain).limit_steps(1000).report(program);
    assert!(fails("does not end", &ends_not), "{:?}", ends_not.failure);
    let shrunk = sim(seed).shrink(100, program).unwrap();
    assert!(fails("on purpose", &shrunk.report), "{:?}", shrunk.report.failure);
}
