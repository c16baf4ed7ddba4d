//! Libraries written against tokio's AsyncRead and AsyncWrite, over Osier's streams: h2, tokio-util's codecs, tokio's own helpers.

use bytes::{Bytes, BytesMut};
use futures_lite::future;
use futures_util::{SinkExt, StreamExt};
use http::{Request, Response};
use osier::net::TcpStream;
use osier_mixing::{listen, pattern, run};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::codec::{Framed, FramedRead, FramedWrite, LengthDelimitedCodec, LinesCodec, LinesCodecError};

/// Sends all of `bytes` as its peer has room for them.
async fn send(mut stream: h2::SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.expect("the stream is open")?;
        let piece = bytes.split_to(room.min(bytes.len()));
        stream.send_data(piece, false)?;
    }
    let mut trailers = http::HeaderMap::new();
    trailers.insert("sent", http::HeaderValue::from_static("all"));
    stream.send_trailers(trailers)
}

async fn receive(stream: &mut h2::RecvStream) -> Result<BytesMut, h2::Error> {
    let mut whole = BytesMut::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

/// An h2 server that sends back what it gets, each stream by a task of its own.
fn h2_server() -> SocketAddr {
    let (listener, address) = listen();
    osier::spawn_future(async move {
        let mut incoming = listener.incoming_async();
        while let Some(Ok(stream)) = futures_lite::StreamExt::next(&mut incoming).await {
            osier::spawn_future(async move {
                let mut connection = h2::server::handshake(stream.compat()).await?;
                while let Some(request) = connection.accept().await {
                    let (request, mut respond) = request?;
                    osier::spawn_future(async move {
                        let path = request.uri().path().to_owned();
                        let body = receive(&mut request.into_body()).await?;
                        let response = Response::builder()
                            .header("path", path)
                            .body(())
                            .expect("this is valid");
                        send(respond.send_response(response, false)?, body.freeze()).await
                    });
                }
                Ok::<_, h2::Error>(())
            });
        }
    });
    address
}

#[test]
fn http2_streams_share_a_connection() {
    run(|| {
        let address = h2_server();
        osier::block_on(async {
            let stream = TcpStream::connect_async(address).await.unwrap();
            let (sender, connection) = h2::client::handshake(stream.compat()).await.unwrap();
            osier::spawn_future(connection);
            // Longer than a stream's first window, so that each waits for room while the others go on.
            let requests = (0..20).map(|n| {
                let mut sender = sender.clone();
                async move {
                    let body = Bytes::from(pattern(100_000 + n));
                    future::poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
                    let request = Request::builder().method("POST").uri(format!("http://localhost/{n}"));
                    let (response, stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
                    send(stream, body.clone()).await.unwrap();
                    let response = response.await.unwrap();
                    assert_eq!(response.headers()["path"], format!("/{n}"));
                    let mut echoed = response.into_body();
                    assert!(receive(&mut echoed).await.unwrap() == body);
                    assert_eq!(echoed.trailers().await.unwrap().unwrap()["sent"], "all");
                }
            });
            let tasks: Vec<_> = requests.map(osier::spawn_future).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn a_fiber_may_drive_its_http2_stream() {
    run(|| {
        let address = h2_server();
        let stream = TcpStream::connect(address).unwrap();
        let (mut sender, connection) = osier::block_on(h2::client::handshake(stream.compat())).unwrap();
        let driver = osier::spawn(move || osier::block_on(connection));
        let request = Request::builder()
            .method("POST")
            .uri("http://localhost/fiber")
            .body(())
            .unwrap();
        let (response, stream) = sender.send_request(request, false).unwrap();
        osier::block_on(send(stream, Bytes::from_static(b"from a fiber"))).unwrap();
        let mut body = osier::block_on(response).unwrap().into_body();
        assert_eq!(osier::block_on(receive(&mut body)).unwrap(), "from a fiber");
        drop((sender, body));
        driver.join().unwrap().unwrap();
    });
}

#[test]
fn lines_are_framed_by_a_codec() {
    run(|| {
        let (listener, address) = listen();
        let server = osier::spawn_future(async move {
            let mut incoming = listener.incoming_async();
            let stream = futures_lite::StreamExt::next(&mut incoming).await.unwrap().unwrap();
            let mut lines = Framed::new(stream.compat(), LinesCodec::new_with_max_length(100));
            while let Some(line) = lines.next().await {
                match line {
                    Ok(line) => lines.send(line.to_uppercase()).await.unwrap(),
                    Err(LinesCodecError::MaxLineLengthExceeded) => lines.send("too long").await.unwrap(),
                    Err(LinesCodecError::Io(error)) => panic!("{error}"),
                }
            }
        });
        osier::block_on(async {
            let stream = TcpStream::connect_async(address).await.unwrap();
            let mut lines = Framed::new(stream.compat(), LinesCodec::new());
            lines
                .send_all(&mut futures_util::stream::iter(["one", "two", ""].map(Ok)))
                .await
                .unwrap();
            for expected in ["ONE", "TWO", ""] {
                assert_eq!(lines.next().await.unwrap().unwrap(), expected);
            }
            lines.send("x".repeat(200)).await.unwrap();
            assert_eq!(lines.next().await.unwrap().unwrap(), "too long");
        });
        server.join().unwrap();
    });
}

#[test]
fn frames_with_a_length_are_framed_by_a_codec_in_both_directions_at_once() {
    run(|| {
        let (listener, address) = listen();
        let codec = || LengthDelimitedCodec::builder().length_field_type::<u32>().new_codec();
        let server = osier::spawn_future(async move {
            let mut incoming = listener.incoming_async();
            let stream = futures_lite::StreamExt::next(&mut incoming).await.unwrap().unwrap();
            let frames = Framed::new(stream.compat(), codec());
            let (sink, stream) = frames.split();
            stream
                .map(|frame| frame.map(BytesMut::freeze))
                .forward(sink)
                .await
                .unwrap();
        });
        // One stream, two adapters: one task writes while another reads.
        let stream = std::sync::Arc::new(TcpStream::connect(address).unwrap());
        let adapter = || osier::adapters::Compat::new(osier::adapters::AsyncStream::new(stream.clone()));
        let mut writer = FramedWrite::new(adapter(), codec());
        let mut reader = FramedRead::new(adapter(), codec());
        let lengths = [0, 1, 300_000, 7, 65_536];
        let sender = osier::spawn_future(async move {
            for len in lengths {
                writer.send(Bytes::from(pattern(len))).await.unwrap();
            }
            SinkExt::<Bytes>::close(&mut writer).await.unwrap();
        });
        osier::block_on(async {
            for len in lengths {
                assert!(reader.next().await.unwrap().unwrap() == pattern(len), "{len}");
            }
            assert!(reader.next().await.is_none());
        });
        sender.join().unwrap();
        server.join().unwrap();
    });
}

#[test]
fn tokios_helpers_copy_split_and_buffer() {
    run(|| {
        // A proxy between a client and an echo server, all of it tokio's code.
        let (target, target_address) = listen();
        let (proxy, proxy_address) = listen();
        osier::spawn_future(async move {
            let stream = target.incoming_async().next().await.unwrap().unwrap();
            let (mut reader, mut writer) = tokio::io::split(stream.compat());
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let proxied = osier::spawn_future(async move {
            let mut near = proxy.incoming_async().next().await.unwrap().unwrap().compat();
            let mut far = TcpStream::connect_async(target_address).await.unwrap().compat();
            tokio::io::copy_bidirectional(&mut near, &mut far).await.unwrap()
        });
        osier::block_on(async {
            let stream = TcpStream::connect_async(proxy_address).await.unwrap().compat();
            let (mut reader, mut writer) = tokio::io::split(tokio::io::BufStream::new(stream));
            let whole = pattern(400_000);
            let sent = whole.clone();
            let sender = osier::spawn_future(async move {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut echoed = Vec::new();
            reader.read_to_end(&mut echoed).await.unwrap();
            assert!(echoed == whole);
            sender.await.unwrap();
        });
        assert_eq!(proxied.join().unwrap(), (400_000, 400_000));
    });
}
