//! The async methods of the sockets, in every place where a future can be polled.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::colours::{Count, in_every_colour, poll_by_hand, poll_once};
use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt, Stream, StreamExt};
use osier::adapters::AsyncStream;
use osier::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixSocketAddr, UnixStream};
use std::os::linux::net::SocketAddrExt;

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn pairs() -> [(AnyStream, AnyStream); 2] {
    let (a, b) = tcp_pair();
    let (c, d) = UnixStream::pair().unwrap();
    [
        (AnyStream::Tcp(a.into_async()), AnyStream::Tcp(b.into_async())),
        (AnyStream::Unix(c.into_async()), AnyStream::Unix(d.into_async())),
    ]
}

/// A stream of either kind, for tests that apply to both.
enum AnyStream {
    Tcp(AsyncStream<TcpStream>),
    Unix(AsyncStream<UnixStream>),
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            AnyStream::Tcp($stream) => $call,
            AnyStream::Unix($stream) => $call,
        }
    };
}

impl futures_lite::AsyncRead for AnyStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl futures_lite::AsyncWrite for AnyStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        each!(self, stream => Pin::new(stream).poll_close(cx))
    }
}

#[test]
fn a_stream_echoes_wherever_it_is_polled() {
    in_every_colour(|| async {
        for (mut near, far) in pairs() {
            let echo = async {
                let (reader, mut writer) = futures_lite::io::split(far);
                futures_lite::io::copy(reader, &mut writer).await?;
                writer.close().await
            };
            let client = async {
                for round in 0..50_u8 {
                    near.write_all(&[round; 100]).await?;
                    let mut reply = [0; 100];
                    near.read_exact(&mut reply).await?;
                    assert_eq!(reply, [round; 100]);
                }
                near.close().await?;
                assert_eq!(near.read(&mut [0; 10]).await?, 0, "the end");
                Result::Ok(())
            };
            let (echoed, done) = zip(echo, client).await;
            echoed.unwrap();
            done.unwrap();
        }
    });
}

#[test]
fn a_listener_gives_connections_as_futures_and_as_a_stream() {
    in_every_colour(|| async {
        let listener = TcpListener::bind_async(LOOPBACK).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (accepted, client) = zip(listener.accept_async(), TcpStream::connect_async(addr)).await;
        assert_eq!(accepted.unwrap().1, client.unwrap().local_addr().unwrap());

        let first = TcpListener::bind_reuseport_async(LOOPBACK).await.unwrap();
        let shared = first.local_addr().unwrap();
        let second = TcpListener::bind_reuseport_async(shared).await.unwrap();
        assert_eq!(second.local_addr().unwrap(), shared, "both listen there");
        assert_eq!(
            TcpListener::bind_async(shared).await.unwrap_err().kind(),
            ErrorKind::AddrInUse
        );

        let mut incoming = listener.incoming_async();
        for _ in 0..3 {
            let (server, client) = zip(incoming.next(), TcpStream::connect_async(addr)).await;
            let (server, client) = (server.unwrap().unwrap(), client.unwrap());
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        }
    });
}

#[test]
fn a_unix_listener_does_the_same() {
    in_every_colour(|| async {
        let name = format!("osier-as-async-{}-{:?}", std::process::id(), thread::current().id());
        let addr = UnixSocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&addr).unwrap();
        let (accepted, client) = zip(listener.accept_async(), UnixStream::connect_addr_async(&addr)).await;
        let (server, _) = accepted.unwrap();
        client.unwrap().as_async().write_all(b"x").await.unwrap();
        server.as_async().read_exact(&mut [0]).await.unwrap();

        let mut incoming = listener.incoming_async();
        let (server, client) = zip(incoming.next(), UnixStream::connect_addr_async(&addr)).await;
        drop(server.unwrap().unwrap());
        assert_eq!(client.unwrap().as_async().read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn a_full_unix_queue_makes_a_connect_wait_in_every_colour() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let name = format!("osier-full-{}", std::process::id());
    let listening = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listening, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    rustix::net::listen(&listening, 0).unwrap();
    let listener = UnixListener::from(listening);
    let addr = UnixSocketAddr::from_abstract_name(name).unwrap();
    let first = UnixStream::connect_addr(&addr).unwrap();
    let mut second = pin!(UnixStream::connect_addr_async(&addr));
    assert!(poll_once(second.as_mut()).is_pending(), "a backlog of none holds one");
    drop(listener.accept().unwrap());
    poll_by_hand(second).unwrap();
    drop(first);
}

#[test]
fn connecting_to_nobody_is_refused() {
    in_every_colour(|| async {
        let addr = {
            let listener = TcpListener::bind(LOOPBACK).unwrap();
            listener.local_addr().unwrap()
        };
        let refused = TcpStream::connect_async(addr).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let no_address: &[SocketAddr] = &[];
        let none = TcpStream::connect_async(no_address).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidInput);
        let missing = UnixStream::connect_async("/nowhere/at/all").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_name_is_looked_up_by_a_future() {
    in_every_colour(|| async {
        let listener = TcpListener::bind_async(("localhost", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addr = listener.local_addr().unwrap();
        let stream = TcpStream::connect_async(format!("localhost:{port}")).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addr);
        let error = TcpStream::connect_async("no port").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn datagrams_are_sent_received_and_peeked_at_by_futures() {
    in_every_colour(|| async {
        let (one, two) = (
            UdpSocket::bind_async(LOOPBACK).await.unwrap(),
            UdpSocket::bind(LOOPBACK).unwrap(),
        );
        let addr = one.local_addr().unwrap();
        let mut buf = [0; 8];
        let (received, sent) = zip(
            async { two.peek_from_async(&mut buf).await },
            one.send_to_async(b"hello", two.local_addr().unwrap()),
        )
        .await;
        assert_eq!((received.unwrap(), sent.unwrap()), ((5, addr), 5));
        assert_eq!(two.recv_from_async(&mut buf).await.unwrap(), (5, addr));
        two.connect_async(addr).await.unwrap();
        one.connect_async(two.local_addr().unwrap()).await.unwrap();
        assert_eq!(two.send_async(b"").await.unwrap(), 0);
        assert_eq!(one.peek_async(&mut buf).await.unwrap(), 0);
        assert_eq!(one.recv_async(&mut buf).await.unwrap(), 0);

        let (one, two) = UnixDatagram::pair().unwrap();
        let (received, sent) = zip(two.recv_async(&mut buf), one.send_async(b"hello")).await;
        assert_eq!((received.unwrap(), sent.unwrap()), (5, 5));
    });
}

#[test]
fn a_unix_datagram_waits_for_room() {
    let (one, two) = UnixDatagram::pair().unwrap();
    let mut count = 0;
    let mut waiting = loop {
        let mut sending = Box::pin(one.send_async(b"x"));
        match poll_once(sending.as_mut()) {
            Poll::Ready(sent) => count += sent.unwrap(),
            Poll::Pending => break sending,
        }
    };
    assert!(poll_once(waiting.as_mut()).is_pending());
    let reading = thread::spawn(move || {
        (0..=count).for_each(|_| {
            two.recv(&mut [0]).unwrap();
        });
        two
    });
    assert_eq!(poll_by_hand(waiting).unwrap(), 1);
    drop(reading.join().unwrap());
}

#[test]
fn a_dropped_read_takes_no_bytes() {
    in_every_colour(|| async {
        for (mut near, mut far) in pairs() {
            let mut buf = [0; 5];
            for _ in 0..3 {
                let mut reading = pin!(near.read(&mut buf));
                assert!(poll_once(reading.as_mut()).is_pending());
            }
            far.write_all(b"hello").await.unwrap();
            near.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"hello");
            // Also one that was woken and then dropped.
            let (count, waker) = Count::new();
            let mut reading = Box::pin(near.read(&mut buf));
            assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            far.write_all(b"again").await.unwrap();
            // (On a fiber the loop has to turn for that.)
            osier::time::Sleep::new(Duration::from_millis(10)).await;
            count.wait_beyond(0);
            drop(reading);
            near.read_exact(&mut buf).await.unwrap();
            assert_eq!(&buf, b"again");
        }
    });
}

#[test]
fn a_read_and_a_write_are_arms_that_lose_nothing() {
    in_every_colour(|| async {
        let (near, far) = tcp_pair_async().await;
        let mut buf = [0; 8];
        assert!(poll_once(pin!(near.read_async(&mut buf))).is_pending());
        assert_eq!(far.write_async(b"hello").await.unwrap(), 5);
        assert_eq!(near.read_async(&mut buf).await.unwrap(), 5);
        assert_eq!(&buf[..5], b"hello");

        let mut written = 0;
        while let Poll::Ready(n) = poll_once(pin!(near.write_async(&[7; 65_536]))) {
            written += n.unwrap();
        }
        drop(near); // the write that found no room has written nothing
        let (mut read, mut buf) = (0, vec![0; 65_536]);
        loop {
            match far.read_async(&mut buf).await.unwrap() {
                0 => break,
                n => read += n,
            }
        }
        assert_eq!(read, written);
    });
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    in_every_colour(|| async {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let (count, waker) = Count::new();
        let mut accepting = Box::pin(listener.accept_async());
        assert!(accepting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let client = TcpStream::connect(listener.local_addr().unwrap());
        // A blocking call is refused inside of a future on a worker: there it goes by a future.
        let client = match client {
            Ok(client) => client,
            Err(_) => TcpStream::connect_async(listener.local_addr().unwrap()).await.unwrap(),
        };
        osier::time::Sleep::new(Duration::from_millis(10)).await;
        count.wait_beyond(0);
        drop(accepting);
        let (_, peer) = listener.accept_async().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    });
}

#[test]
fn a_future_goes_on_where_it_is_moved_to() {
    let (near, mut far) = tcp_pair();
    let near = Arc::new(near);
    let read = |near: Arc<TcpStream>| {
        Box::pin(async move {
            let mut byte = [0];
            AsyncStream::new(near).read_exact(&mut byte).await.map(|()| byte[0])
        })
    };
    // From a worker to a plain thread.
    let reading = osier::Runtime::builder().workers(1).build().unwrap();
    let mut future = read(Arc::clone(&near));
    let future = reading
        .spawn(move || {
            assert!(poll_once(future.as_mut()).is_pending());
            future
        })
        .join()
        .unwrap();
    let elsewhere = thread::spawn(move || poll_by_hand(future));
    far.write_all(b"1").unwrap();
    assert_eq!(elsewhere.join().unwrap().unwrap(), b'1');
    // From a plain thread to a worker, which ends meanwhile, and on to another.
    let mut future = read(near);
    assert!(poll_once(future.as_mut()).is_pending());
    let mut future = reading
        .spawn(move || {
            assert!(poll_once(future.as_mut()).is_pending());
            future
        })
        .join()
        .unwrap();
    drop(reading);
    assert!(poll_once(future.as_mut()).is_pending());
    let (sender, receiver) = std::sync::mpsc::channel();
    let elsewhere = thread::spawn(move || {
        osier::run(|| {
            sender.send(testkit::ThreadWatch::current()).unwrap();
            osier::block_on(future)
        })
    });
    receiver.recv().unwrap().until_it_waits();
    far.write_all(b"2").unwrap();
    assert_eq!(elsewhere.join().unwrap().unwrap(), b'2');
}

#[test]
fn one_that_waits_is_woken_when_the_worker_that_watched_ends() {
    let (near, mut far) = tcp_pair();
    let runtime = osier::Runtime::builder().workers(1).build().unwrap();
    let (count, waker) = Count::new();
    let near = runtime
        .spawn(move || {
            let mut near = near.into_async();
            let polled = Pin::new(&mut near.read(&mut [0])).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            near
        })
        .join()
        .unwrap();
    drop(runtime);
    far.write_all(b"x").unwrap();
    count.wait_beyond(0);
    let mut near = near;
    poll_by_hand(near.read_exact(&mut [0])).unwrap();
}

#[test]
fn two_tasks_read_and_write_one_stream_at_a_time() {
    const BYTES: usize = 2 << 20;
    let (near, far) = tcp_pair();
    let near = Arc::new(near);
    let echo = thread::spawn(move || {
        let (mut reader, mut writer) = (&far, &far);
        std::io::copy(&mut reader, &mut writer).unwrap();
        far.shutdown(Shutdown::Write).unwrap();
    });
    let writer = {
        let mut near = AsyncStream::new(Arc::clone(&near));
        thread::spawn(move || {
            poll_by_hand(async {
                for chunk in 0..BYTES / 4096 {
                    near.write_all(&[chunk as u8; 4096]).await?;
                }
                near.close().await
            })
        })
    };
    let reader = thread::spawn(move || {
        osier::run(move || {
            osier::block_on(async {
                let mut near = AsyncStream::new(near);
                let mut chunk = [0; 4096];
                for number in 0..BYTES / 4096 {
                    near.read_exact(&mut chunk).await?;
                    assert_eq!(chunk, [number as u8; 4096]);
                }
                near.read(&mut chunk).await
            })
        })
    });
    writer.join().unwrap().unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), 0, "the end");
    echo.join().unwrap();
}

#[test]
fn a_fiber_and_a_future_share_a_stream() {
    osier::run(|| {
        let (near, far) = tcp_pair();
        let near = Arc::new(near);
        let blocked = Arc::clone(&near);
        let reader = osier::spawn(move || {
            let mut byte = [0];
            (&*blocked).read_exact(&mut byte).map(|()| byte[0])
        });
        osier::block_on(near.as_async().write_all(b"to far")).unwrap();
        let mut buf = [0; 6];
        (&far).read_exact(&mut buf).unwrap();
        osier::block_on(far.as_async().write_all(b"!")).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b'!');
    });
}

#[test]
fn all_readers_of_one_stream_are_woken() {
    let (near, mut far) = tcp_pair();
    let near = Arc::new(near);
    let (sender, receiver) = std::sync::mpsc::channel();
    let readers: Vec<_> = (0..4)
        .map(|number| {
            let (near, sender) = (Arc::clone(&near), sender.clone());
            let read = async move {
                sender.send(testkit::ThreadWatch::current()).unwrap();
                let mut byte = [0];
                AsyncStream::new(near).read_exact(&mut byte).await.map(|()| byte[0])
            };
            match number % 2 {
                0 => thread::spawn(move || poll_by_hand(read)),
                _ => thread::spawn(move || osier::run(|| osier::block_on(read))),
            }
        })
        .collect();
    receiver.iter().take(4).for_each(|reader| reader.until_it_waits());
    far.write_all(b"abcd").unwrap();
    let mut all: Vec<u8> = readers
        .into_iter()
        .map(|reader| reader.join().unwrap().unwrap())
        .collect();
    all.sort_unstable();
    assert_eq!(all, b"abcd");
}

#[test]
fn sixty_four_mebibytes_go_through_two_copies_unchanged() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 1024;
    let pattern = |number: usize| (number * 31) as u8;
    let (source, relay_in) = tcp_pair();
    let (relay_out, sink) = tcp_pair();
    let relay = thread::spawn(move || {
        osier::run(|| {
            osier::block_on(async {
                let mut out = relay_out.into_async();
                // Sixteen of our buffers a read, instead of the copy's own small one.
                let reader = futures_lite::io::BufReader::with_capacity(CHUNK, relay_in.into_async());
                let copied = futures_lite::io::copy(reader, &mut out).await?;
                out.close().await.map(|()| copied)
            })
        })
    });
    let writer = thread::spawn(move || {
        poll_by_hand(async {
            let mut source = source.into_async();
            for number in 0..CHUNKS {
                source.write_all(&[pattern(number); CHUNK]).await?;
            }
            source.close().await
        })
    });
    futures_lite::future::block_on(async {
        let mut sink = sink.into_async();
        let mut chunk = vec![0; CHUNK];
        for number in 0..CHUNKS {
            sink.read_exact(&mut chunk).await.unwrap();
            assert!(chunk == [pattern(number); CHUNK], "chunk {number}");
        }
        assert_eq!(sink.read(&mut chunk).await.unwrap(), 0);
    });
    writer.join().unwrap().unwrap();
    assert_eq!(relay.join().unwrap().unwrap(), 64 << 20);
}

#[test]
fn a_half_closed_peer_still_gets_its_answer() {
    in_every_colour(|| async {
        for (mut near, mut far) in pairs() {
            near.write_all(b"question").await.unwrap();
            near.close().await.unwrap();
            near.close().await.unwrap();
            let mut text = String::new();
            far.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "question");
            far.write_all(b"answer").await.unwrap();
            drop(far);
            text.clear();
            near.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "answer");
        }
    });
}

#[test]
fn a_reset_is_an_error_of_the_one_who_waits() {
    let (near, far) = tcp_pair();
    let (sender, receiver) = std::sync::mpsc::channel();
    let reading = thread::spawn(move || {
        sender.send(testkit::ThreadWatch::current()).unwrap();
        poll_by_hand(near.into_async().read(&mut [0]))
    });
    receiver.recv().unwrap().until_it_waits();
    far.set_linger(Some(Duration::ZERO)).unwrap();
    drop(far);
    assert_eq!(reading.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn writing_to_who_has_gone_is_an_error() {
    in_every_colour(|| async {
        for (mut near, far) in pairs() {
            drop(far);
            let error = loop {
                match near.write_all(&[0; 1024]).await {
                    Ok(()) => futures_lite::future::yield_now().await,
                    Err(error) => break error,
                }
            };
            assert!(
                matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
                "{error}"
            );
        }
    });
}

#[test]
fn a_writer_waits_for_room_and_goes_on() {
    let (near, mut far) = tcp_pair();
    let mut near = near.into_async();
    let mut written = 0;
    let (count, waker) = Count::new();
    let mut cx = Context::from_waker(&waker);
    use futures_lite::AsyncWrite as _;
    while let Poll::Ready(wrote) = Pin::new(&mut near).poll_write(&mut cx, &[7; 1 << 16]) {
        written += wrote.unwrap();
    }
    assert_eq!(count.wakes(), 0);
    let draining = thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
    count.wait_beyond(0);
    poll_by_hand(async {
        near.write_all(b"more").await?;
        near.close().await
    })
    .unwrap();
    assert_eq!(draining.join().unwrap(), written as u64 + 4);
}

#[test]
fn vectored_calls_fill_and_empty_all_slices() {
    in_every_colour(|| async {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut near, mut far) = (near.into_async(), far.into_async());
        let wrote = near
            .write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")])
            .await;
        assert_eq!(wrote.unwrap(), 5);
        let (mut one, mut two) = ([0; 3], [0; 4]);
        let read = far
            .read_vectored(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)])
            .await;
        assert_eq!((read.unwrap(), &one, &two), (5, b"abc", b"de\0\0"));
    });
}

#[test]
fn readiness_alone_takes_nothing() {
    in_every_colour(|| async {
        let (near, far) = tcp_pair_async().await;
        near.writable_async().await.unwrap();
        let mut waiting = pin!(near.readable_async());
        assert!(poll_once(waiting.as_mut()).is_pending());
        far.as_async().write_all(b"x").await.unwrap();
        waiting.await.unwrap();
        near.readable_async().await.unwrap();
        let mut byte = [0];
        assert_eq!(near.peek_async(&mut byte).await.unwrap(), 1);
        near.as_async().read_exact(&mut byte).await.unwrap();
        assert!(poll_once(pin!(near.readable_async())).is_pending());
        drop(far);
        near.readable_async().await.unwrap();
    });
}

async fn tcp_pair_async() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind_async(LOOPBACK).await.unwrap();
    let client = TcpStream::connect_async(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept_async().await.unwrap().0)
}

#[test]
fn readiness_suspends_a_fiber_and_blocks_a_thread() {
    let wait = || {
        let (near, mut far) = UnixStream::pair().unwrap();
        near.writable().unwrap();
        let waits = testkit::ThreadWatch::current();
        let writing = thread::spawn(move || {
            waits.until_it_waits();
            far.write_all(b"x").unwrap();
            far
        });
        near.readable().unwrap();
        drop(writing.join().unwrap());
        near.readable().unwrap();
    };
    wait();
    osier::run(wait);
}

#[test]
fn only_the_last_waker_is_woken_and_only_while_it_waits() {
    let (near, mut far) = tcp_pair();
    let mut near = near.into_async();
    let (first, first_waker) = Count::new();
    let (second, second_waker) = Count::new();
    let mut buf = [0; 4];
    use futures_lite::AsyncRead as _;
    let mut read = |waker| Pin::new(&mut near).poll_read(&mut Context::from_waker(waker), &mut buf);
    assert!(read(&first_waker).is_pending());
    assert!(read(&second_waker).is_pending());
    far.write_all(b"x").unwrap();
    second.wait_beyond(0);
    assert!(matches!(read(&first_waker), Poll::Ready(Ok(1))));
    assert_eq!((first.wakes(), second.wakes()), (0, 1));
    // No waiter is left: none is kept, none is woken.
    drop((first_waker, second_waker));
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1));
}

#[test]
fn the_futures_may_be_sent_to_other_threads() {
    fn send<T: Send>(_: &T) {}
    fn unpin<T: Unpin>(_: &T) {}
    let (near, _far) = UnixStream::pair().unwrap();
    let (listener, udp) = (TcpListener::bind(LOOPBACK).unwrap(), UdpSocket::bind(LOOPBACK).unwrap());
    let mut buf = [0];
    send(&listener.accept_async());
    send(&listener.incoming_async());
    send(&TcpStream::connect_async("localhost:1"));
    send(&TcpStream::connect_async(("localhost", 1)));
    send(&UnixStream::connect_async("x"));
    send(&udp.recv_from_async(&mut buf));
    send(&udp.send_to_async(b"", "localhost:1"));
    send(&near.readable_async());
    send(&near.as_async());
    unpin(&near.as_async());
    unpin(&listener.incoming_async());
    send(&near.into_async());
}

#[test]
fn five_hundred_connections_are_served_by_futures_on_one_thread() {
    // Their futures share one worker; each is woken for its own stream alone.
    const CONNECTIONS: usize = 500;
    let (sockets, peers): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| UnixStream::pair().unwrap()).unzip();
    let (count, waker) = Count::new();
    let mut sockets: Vec<_> = sockets.into_iter().map(UnixStream::into_async).collect();
    use futures_lite::AsyncRead as _;
    for socket in &mut sockets {
        let polled = Pin::new(socket).poll_read(&mut Context::from_waker(&waker), &mut [0]);
        assert!(polled.is_pending());
    }
    for (number, peer) in peers.iter().enumerate().rev() {
        let before = count.wakes();
        osier::block_on(peer.as_async().write_all(&[number as u8])).unwrap();
        count.wait_beyond(before);
        let mut byte = [0];
        poll_by_hand(sockets[number].read_exact(&mut byte)).unwrap();
        assert_eq!(byte[0], number as u8);
    }
    assert_eq!(count.wakes(), CONNECTIONS);
}

#[test]
fn what_comes_in_ends_only_with_the_listener() {
    fn no_end<S: Stream>(stream: &S) {
        assert_eq!(stream.size_hint(), (0, None));
    }
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let mut incoming = listener.incoming_async();
    no_end(&incoming);
    assert!(poll_once(pin!(incoming.next())).is_pending());
    drop(incoming);
    // The earlier waiter has left the list: the connection that comes now is the next one's.
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
}

/// A read without room returns at once, also where a read with room has found nothing before.
#[test]
fn a_read_into_no_room_does_not_wait() {
    use osier::adapters::Waits;
    use osier::net::Stream as Any;
    use std::future::poll_fn;
    fn blocking(mut stream: impl Read) {
        assert_eq!(stream.read(&mut []).unwrap(), 0);
        let mut none: [u8; 0] = [];
        assert_eq!(stream.read_vectored(&mut [IoSliceMut::new(&mut none)]).unwrap(), 0);
    }
    fn streams() -> [(Any, Any); 2] {
        let (a, b) = tcp_pair();
        let (c, d) = UnixStream::pair().unwrap();
        [(a.into(), b.into()), (c.into(), d.into())]
    }
    let blocks = || {
        for (stream, mut peer) in streams() {
            blocking(&stream);
            // The worker's poller knows the socket from here on.
            assert!(!stream.wait_readable(Duration::from_millis(1)).unwrap());
            blocking(&stream);
            peer.write_all(b"kept").unwrap();
            blocking(&stream);
            let mut bytes = [0; 4];
            (&stream).read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"kept");
        }
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut stream = osier::io::Async::new(stream).unwrap();
        blocking(&stream);
        blocking(&mut stream);
    };
    blocks();
    osier::run(blocks);
    in_every_colour(|| async {
        for (stream, _peer) in streams() {
            for _ in 0..2 {
                assert_eq!(stream.read_async(&mut []).await.unwrap(), 0);
                assert_eq!(stream.as_async().read(&mut []).await.unwrap(), 0);
                let mut waits = Waits::default();
                assert_eq!(poll_fn(|cx| waits.poll_read(&stream, cx, &mut [])).await.unwrap(), 0);
                assert!(poll_once(pin!(stream.read_async(&mut [0]))).is_pending());
            }
        }
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut stream = osier::io::Async::new(stream).unwrap();
        assert_eq!(AsyncReadExt::read(&mut stream, &mut []).await.unwrap(), 0);
    });
}
