//! The face for futures: the same bytes, under any executor.

use std::io;
use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use osier_tls::{AsyncStream, Error};

use crate::made::{AUTHORITY, LOCALHOST, pair};

const MEGABYTES: usize = 2_000_000;

/// Sends and receives at once, as two halves with an adapter each.
async fn both_ways(end: Arc<osier_tls::Stream>, byte: u8, other: u8) -> io::Result<()> {
    let mut writer = AsyncStream::new(end.clone());
    let mut reader = AsyncStream::new(end);
    let sent = vec![byte; MEGABYTES];
    let sending = async {
        writer.write_all(&sent).await?;
        writer.close().await
    };
    let mut received = Vec::new();
    let (sent, received_count) = future::zip(sending, reader.read_to_end(&mut received)).await;
    sent?;
    assert_eq!(received_count?, MEGABYTES);
    assert!(received.iter().all(|&got| got == other));
    Ok(())
}

#[test]
fn megabytes_go_both_ways_as_futures() {
    for on_worker in [false, true] {
        let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
        let both = || {
            let ends = (both_ways(Arc::new(client), 1, 2), both_ways(Arc::new(server), 2, 1));
            osier::block_on(future::zip(ends.0, ends.1))
        };
        let (client, server) = if on_worker { osier::run(both) } else { both() };
        client.and(server).unwrap();
    }
}

#[test]
fn a_handshake_is_a_future() {
    let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
    let (first, second) = osier::block_on(future::zip(client.handshake_async(), server.handshake_async()));
    first.and(second).unwrap();
    assert_eq!(server.server_name(), Some("localhost"));

    let (client, server) = pair(&AUTHORITY.connector(), &AUTHORITY.issue("example.org").acceptor());
    let (refused, alerted) = osier::block_on(future::zip(client.handshake_async(), server.handshake_async()));
    assert!(Error::of(&refused.unwrap_err()).unwrap().is_certificate());
    assert!(Error::of(&alerted.unwrap_err()).unwrap().is_alert());
}

#[test]
fn two_tasks_share_one_handshake() {
    for on_worker in [false, true] {
        for _ in 0..50 {
            let (client, server) = pair(&AUTHORITY.connector(), &LOCALHOST.acceptor());
            let both = move || {
                let (client, server) = (Arc::new(client), Arc::new(server));
                // A reader and a writer at each end. The client's reader gets its bytes last of all.
                let end = |end: Arc<osier_tls::Stream>| async move {
                    let (mut reader, mut writer) = (AsyncStream::new(end.clone()), AsyncStream::new(end));
                    let mut byte = [0];
                    let (read, written) = future::zip(reader.read_exact(&mut byte), writer.write_all(b"x")).await;
                    read.and(written)
                };
                osier::block_on(future::zip(end(client), end(server)))
            };
            let (client, server) = if on_worker { osier::run(both) } else { both() };
            client.and(server).unwrap();
        }
    }
}
