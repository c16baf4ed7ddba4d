//! The sockets and timers of smol (async-io) and async-std, awaited on Osier's fibers and tasks. Each library brings its own reactor.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamExt, future};
use osier_mixing::{pattern, run};

async fn echo(mut stream: impl Stream) -> io::Result<u64> {
    let count = futures_lite::io::copy(&mut stream.clone(), &mut stream).await?;
    stream.end()?;
    Ok(count)
}

async fn exchange(mut stream: impl Stream, said: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = stream.clone();
    let mut heard = Vec::new();
    let write = async {
        writer.write_all(said).await?;
        writer.end()
    };
    future::try_zip(write, stream.read_to_end(&mut heard)).await?;
    Ok(heard)
}

/// Theirs have `shutdown` in common, but no trait; and async-std's `close` only flushes.
trait Stream: AsyncRead + AsyncWrite + Unpin + Clone {
    fn end(&self) -> io::Result<()>;
}

impl Stream for smol::net::TcpStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for async_std::net::TcpStream {
    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// smol's listener, served by tasks of ours.
fn smol_server() -> SocketAddr {
    let listener = osier::block_on(smol::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    osier::spawn_future(async move {
        while let Some(Ok(stream)) = listener.incoming().next().await {
            osier::spawn_future(echo(stream));
        }
    });
    address
}

#[test]
fn smols_sockets_are_awaited_on_fibers_and_by_our_tasks() {
    run(|| {
        let address = smol_server();
        let fibers: Vec<_> = (0..10)
            .map(|n| {
                osier::spawn(move || {
                    let said = pattern(50_000 + n);
                    let stream = osier::block_on(smol::net::TcpStream::connect(address))?;
                    assert!(osier::block_on(exchange(stream, &said))? == said);
                    io::Result::Ok(())
                })
            })
            .collect();
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                osier::spawn_future(async move {
                    let said = pattern(60_000 + n);
                    let stream = smol::net::TcpStream::connect(address).await?;
                    assert!(exchange(stream, &said).await? == said);
                    io::Result::Ok(())
                })
            })
            .collect();
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap().unwrap());
        tasks.into_iter().for_each(|task| task.join().unwrap().unwrap());
    });
}

#[test]
fn async_ios_timers_and_descriptors_are_awaited() {
    run(|| {
        let start = Instant::now();
        osier::block_on(async_io::Timer::after(Duration::from_millis(10)));
        let task = osier::spawn_future(async {
            async_io::Timer::interval(Duration::from_millis(2))
                .take(5)
                .count()
                .await
        });
        assert_eq!(task.join().unwrap(), 5);
        assert!(start.elapsed() >= Duration::from_millis(20));

        // A descriptor in async-io's reactor, talking to one in ours.
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let (theirs, ours) = (
            async_io::Async::new(theirs).unwrap(),
            osier::net::UnixStream::from(ours),
        );
        let fiber = osier::spawn(move || {
            let mut ours = ours;
            let mut buf = [0; 5];
            io::Read::read_exact(&mut ours, &mut buf)?;
            io::Write::write_all(&mut ours, &buf)?;
            io::Result::Ok(())
        });
        let mut theirs = theirs;
        let heard = osier::block_on(async {
            theirs.write_all(b"async").await?;
            let mut heard = [0; 5];
            theirs.read_exact(&mut heard).await?;
            io::Result::Ok(heard)
        });
        assert_eq!(&heard.unwrap(), b"async");
        fiber.join().unwrap().unwrap();
    });
}

#[test]
fn async_stds_sockets_timers_and_tasks_are_awaited() {
    run(|| {
        let listener = osier::block_on(async_std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        osier::spawn_future(async move {
            while let Some(Ok(stream)) = listener.incoming().next().await {
                osier::spawn_future(echo(stream));
            }
        });
        let fiber = osier::spawn(move || {
            let stream = osier::block_on(async_std::net::TcpStream::connect(address))?;
            let heard = osier::block_on(exchange(stream, b"from a fiber"))?;
            assert_eq!(heard, b"from a fiber");
            io::Result::Ok(())
        });
        let task = osier::spawn_future(async move {
            let stream = async_std::net::TcpStream::connect(address).await?;
            let said = b"from a task";
            assert_eq!(exchange(stream, said).await?, said);
            // A task of theirs, awaited by one of ours.
            let theirs = async_std::task::spawn(async {
                // A timer of async-std's.
                async_std::task::sleep(Duration::from_millis(1)).await;
                6 * 7
            });
            assert_eq!(theirs.await, 42);
            io::Result::Ok(())
        });
        fiber.join().unwrap().unwrap();
        task.join().unwrap().unwrap();
        let local = Rc::new(7);
        let task = osier::spawn_future_local(async move {
            // A timer of async-std's.
            async_std::task::sleep(Duration::from_millis(1)).await;
            *local
        });
        assert_eq!(task.join().unwrap(), 7);
    });
}

#[test]
fn a_call_that_is_given_up_frees_their_socket() {
    run(|| {
        let (listener, address) = osier_mixing::listen();
        let client = osier::spawn(move || {
            let stream = osier::block_on(smol::net::TcpStream::connect(address)).unwrap();
            let mut stream = stream;
            // Nobody says anything: only the timeout ends it.
            osier::timeout(Duration::from_millis(5), || osier::block_on(stream.read(&mut [0]))).is_err()
        });
        let (mut stream, _) = listener.accept().unwrap();
        assert!(client.join().unwrap(), "it had nothing to read");
        // Its socket is closed.
        assert_eq!(io::Read::read(&mut stream, &mut [0]).unwrap(), 0);
    });
}
