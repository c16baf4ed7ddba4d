//! Handles to a runtime: threads that are none of its workers, and its end.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use osier::callbacks::{IoQueue, Timer};
use osier::embed::Local;
use osier::{Cancelled, Ended, Handle, Runtime, fiber, sim};

const LIMIT: Duration = Duration::from_secs(30);

fn here() -> Handle {
    Handle::current().expect("on a worker")
}

/// Whether a fiber started by `handle` runs on a worker of this name.
fn runs_on(handle: &Handle, name: &str) -> bool {
    let name = name.to_owned();
    let fiber = handle.spawn(move || thread::current().name().is_some_and(|thread| thread.starts_with(&name)));
    fiber.unwrap().join().unwrap()
}

#[test]
fn a_thread_starts_fibers_and_tasks() {
    fn is_shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    osier::run(|| {
        let handle = here();
        is_shared(&handle);
        let thread = thread::spawn(move || {
            assert!(Handle::current().is_none());
            let fiber = handle.spawn(|| (fiber::current().is_some(), Handle::current().is_some()));
            assert_eq!(fiber.unwrap().join().unwrap(), (true, true));
            let task = handle.spawn_future(async { (osier::future::current().is_some(), Handle::current().is_some()) });
            assert_eq!(task.unwrap().join().unwrap(), (true, true));
            let metrics = handle.metrics().unwrap();
            assert_eq!(metrics.workers.len(), osier::available_parallelism().unwrap().get());
            assert_eq!(handle.dump().unwrap().workers.len(), metrics.workers.len());
        });
        osier::unblock(|| thread.join().unwrap());
    });
}

#[test]
fn a_handle_is_of_the_runtime_where_it_was_made() {
    let runtimes = ["north", "south"].map(|name| Runtime::builder().workers(1).name(name).build().unwrap());
    let [north, south] = runtimes.each_ref().map(Runtime::handle);
    assert!(runs_on(&north, "north-") && runs_on(&south, "south-"));
    // From a fiber and from a task of the other one.
    let theirs = north.clone();
    assert!(south.spawn(move || runs_on(&theirs, "north-")).unwrap().join().unwrap());
    let task = south.spawn_future(async move { north.spawn(|| 42).unwrap().await.unwrap() });
    assert_eq!(task.unwrap().join().unwrap(), 42);
}

#[test]
fn after_the_end_each_call_is_an_error() {
    let (handle, fiber) = osier::run(|| (here(), osier::spawn(|| osier::sleep(LIMIT * 100))));
    assert!(fiber.join().is_err_and(|payload| Cancelled::is_payload(&*payload)));
    let (captured, dropped) = mpsc::channel::<()>();
    let error = handle.spawn(move || drop(captured)).unwrap_err();
    assert!(
        dropped
            .try_recv()
            .is_err_and(|error| error == mpsc::TryRecvError::Disconnected)
    );
    assert_eq!(handle.spawn_future(async {}).unwrap_err(), error);
    assert_eq!(handle.metrics().unwrap_err(), error);
    assert_eq!(handle.dump().unwrap_err(), error);
    assert!(
        error.to_string().starts_with("the runtime of this handle has ended: "),
        "{error}"
    );
    let error = std::io::Error::from(error);
    assert!(error.get_ref().is_some_and(|error| error.is::<Ended>()));
}

#[test]
fn a_callback_starts_a_fiber() {
    let runtime = Runtime::builder().workers(1).name("called").build().unwrap();
    let (handle, queue) = (runtime.handle(), IoQueue::new(0).unwrap());
    let (sender, ran) = mpsc::channel();
    Timer::new(&queue)
        .wait(Duration::from_millis(1), move |_, _| {
            let fiber = handle.spawn(|| thread::current().name().map(str::to_owned));
            sender.send((Handle::current().is_none(), fiber.unwrap())).unwrap();
        })
        .unwrap();
    let (is_outside, fiber) = loop {
        queue.iterate().unwrap();
        if let Ok(sent) = ran.try_recv() {
            break sent;
        }
    };
    assert!(is_outside);
    assert_eq!(fiber.join().unwrap().as_deref(), Some("called-0"));
    // A queue that a fiber iterates calls back on the worker.
    let (sender, current) = mpsc::channel();
    runtime.run(|| {
        let queue = IoQueue::new(0).unwrap();
        queue
            .submit(move |_| sender.send(Handle::current().is_some()).unwrap())
            .unwrap();
        queue.iterate().unwrap();
    });
    assert_eq!(current.recv(), Ok(true));
}

#[test]
fn a_thread_starts_a_fiber_of_an_embedded_runtime() {
    let local = Local::new().unwrap();
    let handle = local.handle();
    let spawning = {
        let handle = handle.clone();
        thread::spawn(move || {
            (
                handle.spawn(fiber::worker).unwrap(),
                handle.spawn_future(async { 42 }).unwrap(),
            )
        })
    };
    let (fiber, task) = spawning.join().unwrap();
    // The descriptor is readable, or this would wait for ever.
    local.run_until(|| fiber.is_finished() && task.is_finished()).unwrap();
    assert_eq!((fiber.join().unwrap(), task.join().unwrap()), (Some(0), 42));
    assert!(local.enter(|| Handle::current().is_some()).unwrap());

    let (fiber, task) = (handle.spawn(|| ()).unwrap(), handle.spawn_future(async {}).unwrap());
    drop(local);
    assert!(fiber.join().is_err_and(|payload| Cancelled::is_payload(&*payload)));
    assert!(task.join().is_err_and(|payload| Cancelled::is_payload(&*payload)));
    assert!(handle.spawn(|| ()).is_err());
}

#[test]
fn a_simulated_host_has_a_runtime_of_its_own() {
    sim::run(1, |world| {
        let given = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&given);
        let server = world.host("server", move || {
            *theirs.lock().unwrap() = Some(here());
            osier::sleep(LIMIT);
        });
        osier::sleep(Duration::from_secs(1));
        let handle = given.lock().unwrap().clone().unwrap();
        let worker = handle.spawn(|| osier::inspect::metrics().unwrap().workers[0].name.clone());
        assert_eq!(worker.unwrap().join().unwrap(), "server-0");
        let late = handle.spawn(|| osier::sleep(LIMIT)).unwrap();
        server.crash();
        assert!(late.join().is_err_and(|payload| Cancelled::is_payload(&*payload)));
        assert!(handle.spawn(|| ()).is_err() && handle.spawn_future(async {}).is_err());
    });
}

/// Whatever a thread queues while the runtime ends runs or is cancelled. Nobody who joins it waits for ever.
#[test]
fn nothing_is_lost_while_the_runtime_ends() {
    for round in 0..30 {
        let runtime = Runtime::builder().workers(1 + round % 2).build().unwrap();
        let start = Barrier::new(3);
        let (begin, begins) = mpsc::channel();
        thread::scope(|threads| {
            for _ in 0..2 {
                let (handle, begin, start) = (runtime.handle(), begin.clone(), &start);
                threads.spawn(move || {
                    let mut started = Vec::new();
                    start.wait();
                    while let Ok(fiber) = handle.spawn(|| ())
                        && let Ok(task) = handle.spawn_future(async {})
                    {
                        started.push((fiber, task));
                        let _ = begin.send(());
                    }
                    for (fiber, task) in started {
                        drop((fiber.join(), task.join()));
                    }
                });
            }
            start.wait();
            begins.recv_timeout(LIMIT).unwrap();
            drop(runtime);
        });
    }
}

/// Spawns a fiber when it is dropped, and sends its handle.
struct SpawnsAtEnd(mpsc::Sender<osier::JoinHandle<()>>);

impl Drop for SpawnsAtEnd {
    fn drop(&mut self) {
        let _ = self.0.send(osier::spawn(|| ()));
    }
}

#[test]
fn a_fiber_that_a_destructor_spawns_at_the_very_end_is_cancelled() {
    let runtime = Runtime::builder()
        .workers(2)
        .shutdown_timeout(Duration::ZERO)
        .build()
        .unwrap();
    // Keeps the queues of the workers.
    let _handle = runtime.handle();
    let (spawned, spawns) = mpsc::channel();
    runtime.run(|| {
        for worker in [0, 1] {
            let spawns = SpawnsAtEnd(spawned.clone());
            let task = move || {
                drop(osier::spawn_future(async move {
                    let _spawns = spawns;
                    std::future::pending::<()>().await;
                }))
            };
            fiber::Builder::new().worker(worker).spawn(task).join().unwrap();
        }
    });
    drop((runtime, spawned));
    let (joined, joins) = mpsc::channel();
    let joining = thread::spawn(move || {
        for fiber in spawns {
            joined.send(fiber.join()).unwrap();
        }
    });
    for _ in 0..2 {
        let outcome = joins.recv_timeout(LIMIT).unwrap();
        assert!(outcome.is_err_and(|payload| Cancelled::is_payload(&*payload)));
    }
    joining.join().unwrap();
}

#[test]
fn a_fiber_for_a_worker_that_is_left_behind_is_cancelled() {
    let runtime = Runtime::builder()
        .workers(2)
        .shutdown_timeout(Duration::ZERO)
        .build()
        .unwrap();
    let on_second = || fiber::Builder::new().worker(1);
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let blocks = move || {
        begun.send(()).unwrap();
        let _ = released.recv();
    };
    runtime.run(|| drop(on_second().spawn(blocks)));
    begins.recv_timeout(LIMIT).unwrap();
    let fiber = runtime.run(|| on_second().spawn(|| ()));
    drop(runtime);
    let (joined, joins) = mpsc::channel();
    thread::spawn(move || joined.send(fiber.join()));
    let outcome = joins.recv_timeout(LIMIT).unwrap();
    assert!(outcome.is_err_and(|payload| Cancelled::is_payload(&*payload)));
    drop(release);
}
