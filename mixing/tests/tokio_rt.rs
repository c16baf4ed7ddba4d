//! Futures that need a tokio runtime, awaited on Osier's fibers and tasks: its sockets and timers, and reqwest.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use osier::adapters::tokio::with_tokio;
use osier_mixing::{run, run_on, serve};
use osier_web::{Request, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle, Runtime};

/// A tokio runtime whose one thread drives sockets and timers.
fn tokio() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime needs a thread and a few descriptors")
}

/// Echoes each connection on tokio's own tasks.
async fn echo_server() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
    address
}

async fn exchange(address: SocketAddr, said: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(said.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    let reading = tokio::time::timeout(Duration::from_secs(30), stream.read_to_string(&mut heard));
    reading.await.expect("it echoes at once").unwrap();
    heard
}

#[test]
fn tokios_sockets_and_timers_are_awaited_on_fibers() {
    let tokio = tokio();
    run(|| {
        let handle = tokio.handle();
        let address = osier::block_on(with_tokio(handle.clone(), echo_server()));
        let fibers: Vec<_> = (0..20)
            .map(|n| {
                let handle = handle.clone();
                osier::spawn(move || {
                    let said = format!("fiber {n}");
                    // What is not Send may be awaited as well: a fiber stays on its thread.
                    let local = Rc::new(said);
                    osier::block_on(with_tokio(handle, async {
                        let start = Instant::now();
                        // A timer of Tokio's.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        assert!(start.elapsed() >= Duration::from_millis(5));
                        assert_eq!(exchange(address, &local).await, *local);
                    }));
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    });
}

#[test]
fn tokios_sockets_and_timers_are_awaited_by_our_tasks() {
    let tokio = tokio();
    run(|| {
        let handle = tokio.handle();
        let address = osier::block_on(with_tokio(handle.clone(), echo_server()));
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                osier::spawn_future(with_tokio(handle.clone(), async move {
                    // A timer of Tokio's.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let said = format!("task {n}");
                    assert_eq!(exchange(address, &said).await, said);
                    // Both kinds of leaves in one future.
                    osier::time::Sleep::new(Duration::from_millis(1)).await;
                    tokio::spawn(async move { n }).await.unwrap()
                }))
            })
            .collect();
        let sum: i32 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
        assert_eq!(sum, 190);
        let local = Rc::new(5);
        let task = osier::spawn_future_local(with_tokio(handle.clone(), async move {
            // A timer of Tokio's.
            tokio::time::sleep(Duration::from_millis(1)).await;
            *local
        }));
        assert_eq!(task.join().unwrap(), 5);
    });
}

#[test]
fn reqwest_asks_from_fibers_and_tasks() {
    let tokio = tokio();
    run(|| {
        let router = Router::new()
            .get("/{name}", |request: &mut Request<'_>| {
                osier::yield_now();
                format!("hello, {}", request.param("name").unwrap_or_default())
            })
            .post("/length", |request: &mut Request<'_>| {
                let mut body = Vec::new();
                std::io::Read::read_to_end(request.body(), &mut body)?;
                Ok::<_, std::io::Error>(body.len().to_string())
            });
        let address = serve(router);
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap();
        let ask = {
            let client = client.clone();
            move |name: String| {
                let asked = client.get(format!("http://{address}/{name}")).send();
                async move { asked.await?.text().await }
            }
        };
        let fibers: Vec<_> = (0..10)
            .map(|n| {
                let (ask, handle) = (ask.clone(), tokio.handle().clone());
                osier::spawn(move || osier::block_on(with_tokio(handle, async { ask(format!("fiber {n}")).await })))
            })
            .collect();
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let ask = ask.clone();
                osier::spawn_future(with_tokio(tokio.handle().clone(), async move {
                    ask(format!("task {n}")).await
                }))
            })
            .collect();
        for (n, fiber) in fibers.into_iter().enumerate() {
            assert_eq!(fiber.join().unwrap().unwrap(), format!("hello, fiber {n}"));
        }
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.join().unwrap().unwrap(), format!("hello, task {n}"));
        }
        let length = osier::block_on(with_tokio(tokio.handle().clone(), async {
            let posted = client.post(format!("http://{address}/length")).body(vec![7; 100_000]);
            posted.send().await?.text().await
        }));
        assert_eq!(length.unwrap(), "100000");
    });
}

#[test]
fn other_fibers_and_tasks_see_no_tokio_runtime() {
    let tokio = tokio();
    // One worker: they all share its thread.
    run_on(1, || {
        let over = Arc::new(AtomicBool::new(false));
        let inside = |seen: Arc<AtomicUsize>| async move {
            for _ in 0..20 {
                assert!(Handle::try_current().is_ok());
                seen.fetch_add(1, Ordering::Relaxed);
                // A timer of Tokio's.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(Handle::try_current().is_ok());
        };
        let fiber_sees = {
            let over = Arc::clone(&over);
            osier::spawn(move || {
                let mut looked = 0;
                while !over.load(Ordering::Relaxed) {
                    assert!(Handle::try_current().is_err(), "a fiber sees the runtime of another");
                    looked += 1;
                    osier::yield_now();
                }
                looked
            })
        };
        let task_sees = {
            let over = Arc::clone(&over);
            osier::spawn_future(async move {
                let mut looked = 0;
                while !over.load(Ordering::Relaxed) {
                    assert!(Handle::try_current().is_err(), "a task sees the runtime of another");
                    looked += 1;
                    osier::future::yield_now().await;
                }
                looked
            })
        };
        let polls = Arc::new(AtomicUsize::new(0));
        let within = with_tokio(tokio.handle().clone(), inside(Arc::clone(&polls)));
        let task = osier::spawn_future(with_tokio(tokio.handle().clone(), inside(Arc::clone(&polls))));
        osier::block_on(within);
        assert!(Handle::try_current().is_err(), "it stays behind on this fiber");
        task.join().unwrap();
        over.store(true, Ordering::Relaxed);
        // They had their turns while the others waited.
        assert!(fiber_sees.join().unwrap() > 0 && task_sees.join().unwrap() > 0);
        assert_eq!(polls.load(Ordering::Relaxed), 40);
    });
}

#[test]
fn a_guard_that_is_held_over_a_suspension_is_seen_by_other_fibers() {
    // Why `with_tokio` enters for each poll: tokio's guard is the thread's, and so are all fibers of a worker.
    let tokio = tokio();
    run_on(1, || {
        let over = Arc::new(AtomicBool::new(false));
        let other = osier::spawn({
            let over = Arc::clone(&over);
            move || {
                let seen = Handle::try_current().is_ok();
                over.store(true, Ordering::Relaxed);
                seen
            }
        });
        let entered = tokio.enter();
        while !over.load(Ordering::Relaxed) {
            osier::yield_now();
        }
        drop(entered);
        assert!(other.join().unwrap());
        assert!(Handle::try_current().is_err());
    });
}

#[test]
fn a_future_that_is_given_up_is_dropped_with_its_runtime_entered() {
    struct Probe(Arc<AtomicUsize>);
    impl Drop for Probe {
        fn drop(&mut self) {
            self.0
                .fetch_add(usize::from(Handle::try_current().is_ok()), Ordering::Relaxed);
        }
    }
    let tokio = tokio();
    run(|| {
        let entered = Arc::new(AtomicUsize::new(0));
        let never = || {
            let probe = Probe(Arc::clone(&entered));
            with_tokio(tokio.handle().clone(), async move {
                let _probe = probe;
                std::future::pending::<()>().await;
            })
        };
        let elapsed = osier::timeout(Duration::from_millis(5), || osier::block_on(never()));
        assert!(elapsed.is_err());
        assert_eq!(entered.load(Ordering::Relaxed), 1);
        let task = osier::spawn_future(never());
        osier::yield_now();
        assert!(osier::block_on(task.cancel()).is_none());
        assert_eq!(entered.load(Ordering::Relaxed), 2);
    });
}
