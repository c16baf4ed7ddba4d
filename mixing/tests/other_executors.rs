//! Osier's leaves on other executors, without any worker, or with one that serves the other side.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::{AsyncReadExt, AsyncWriteExt, StreamExt, future};
use osier::net::{TcpListener, TcpStream};
use osier::sync::{Event, mpsc};
use osier::time::Sleep;
use osier_mixing::pattern;

/// Uses each kind of leaf once.
async fn leaves() -> io::Result<()> {
    let start = Instant::now();
    Sleep::new(Duration::from_millis(5)).await;
    assert!(start.elapsed() >= Duration::from_millis(5));

    let (there, back) = (Arc::new(Event::new()), Arc::new(Event::new()));
    let (set, wait) = (Arc::clone(&there), Arc::clone(&back));
    let thread = std::thread::spawn(move || {
        set.wait();
        wait.set();
    });
    there.set();
    back.wait_async().await;
    // It has said all it had to say.
    thread.join().expect("it does not panic");

    let (sender, mut receiver) = mpsc::channel(1);
    let send = async {
        for n in 0..10 {
            sender.send_async(n).await.expect("the receiver is there");
        }
        drop(sender);
    };
    let receive = async {
        let mut sum = 0;
        while let Ok(n) = receiver.recv_async().await {
            sum += n;
        }
        sum
    };
    assert_eq!(future::zip(send, receive).await.1, 45);

    let listener = TcpListener::bind_async("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = async {
        let stream = listener.incoming_async().next().await.expect("it goes on for ever")?;
        let (mut reader, mut writer) = (stream.as_async(), stream.as_async());
        futures_lite::io::copy(&mut reader, &mut writer).await?;
        writer.close().await
    };
    let client = async {
        let stream = TcpStream::connect_async(address).await?;
        let said = pattern(500_000);
        let mut heard = Vec::new();
        let write = async {
            let mut writer = stream.as_async();
            writer.write_all(&said).await?;
            writer.close().await
        };
        let mut reader = stream.as_async();
        future::try_zip(write, reader.read_to_end(&mut heard)).await?;
        assert!(heard == said);
        Ok(())
    };
    future::try_zip(server, client).await?;
    Ok(())
}

#[test]
fn on_smols_executors() {
    smol::block_on(leaves()).unwrap();
    smol::block_on(smol::spawn(leaves())).unwrap();
    let local = smol::LocalExecutor::new();
    future::block_on(local.run(local.spawn(leaves()))).unwrap();
}

#[test]
fn on_async_stds_executor() {
    async_std::task::block_on(async_std::task::spawn(leaves())).unwrap();
}

#[test]
fn on_a_tokio_runtime_with_threads() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    tokio.block_on(async {
        let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(leaves())).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

#[test]
fn on_a_tokio_runtime_without() {
    // With no reactor of its own: ours is enough.
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio.block_on(leaves()).unwrap();
    let set = tokio::task::LocalSet::new();
    tokio.block_on(set.run_until(async { tokio::task::spawn_local(leaves()).await.unwrap().unwrap() }));
}

#[test]
fn tasks_and_fibers_of_ours_are_awaited_there() {
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let fiber = runtime.spawn(|| {
        osier::yield_now();
        "a fiber"
    });
    let task = runtime.spawn_future(async {
        Sleep::new(Duration::from_millis(1)).await;
        "a task"
    });
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(tokio.block_on(fiber).unwrap(), "a fiber");
    assert_eq!(smol::block_on(task).unwrap(), "a task");
}

#[test]
fn both_sides_of_a_channel_may_have_another_executor() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let (to_fiber, mut from_tokio) = mpsc::channel(2);
    let (to_tokio, mut from_fiber) = mpsc::channel(2);
    let theirs = tokio.spawn(async move {
        for n in 0..1000 {
            to_fiber.send_async(n).await.expect("the fiber listens");
            assert_eq!(from_fiber.recv_async().await, Ok(n + 1));
        }
    });
    osier_mixing::run(move || {
        while let Ok(n) = from_tokio.recv() {
            to_tokio.send(n + 1).expect("the task listens");
        }
    });
    tokio.block_on(theirs).unwrap();
}
