//! A relay in both directions: what it passes on, how it ends, and its idle limit.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::colours::in_every_colour;
use crate::given::{pass, timeless};
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use osier::Cancelled;
use osier::io::{relay, relay_async};
use osier::net::UnixStream;
use osier::time::now;

const IDLE: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// The outer ends of a relay, and the inner ones.
fn four() -> [UnixStream; 4] {
    let (user, client) = UnixStream::pair().unwrap();
    let (backend, service) = UnixStream::pair().unwrap();
    [user, client, backend, service]
}

#[test]
fn much_passes_in_both_directions_at_once_and_ends_are_passed_on() {
    const MUCH: usize = 1_000_000;
    in_every_colour(|| async {
        let [user, client, backend, service] = four();
        // Each end sends everything, and reads the other's beside it.
        let end = |stream: UnixStream, byte: u8| async move {
            let send = async {
                stream.as_async().write_all(&vec![byte; MUCH]).await.unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            };
            let receive = async {
                let mut bytes = Vec::new();
                stream.as_async().read_to_end(&mut bytes).await.unwrap();
                bytes
            };
            futures_lite::future::zip(send, receive).await.1
        };
        let ends = futures_lite::future::zip(end(user, 1), end(service, 2));
        let relaying = relay_async(client.into_async(), backend.into_async(), Some(IDLE));
        let (relayed, (near, far)) = futures_lite::future::zip(relaying, ends).await;
        relayed.end.unwrap();
        assert_eq!((relayed.to_far, relayed.to_near), (MUCH as u64, MUCH as u64));
        assert!(near == vec![2; MUCH] && far == vec![1; MUCH]);
    });
}

#[test]
fn it_ends_when_neither_direction_has_moved_for_the_idle_time() {
    timeless(1).run(|| {
        let [mut user, client, backend, mut service] = four();
        let relaying = osier::spawn(move || {
            let began = now();
            let relayed = relay(client.as_async(), backend.as_async(), Some(IDLE));
            (relayed, now() - began)
        });
        // One direction moves for long, then the other, and each keeps both open.
        for stream in [&mut user, &mut service] {
            for _ in 0..5 {
                pass(IDLE - SECOND);
                stream.write_all(b"x").unwrap();
            }
        }
        let (relayed, took) = relaying.join().unwrap();
        assert_eq!(relayed.end.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!((relayed.to_far, relayed.to_near), (5, 5));
        let expected = 10 * (IDLE - SECOND) + IDLE;
        assert!((expected..expected + SECOND).contains(&took), "{took:?}");
    });
}

#[test]
fn an_idle_time_of_zero_is_refused() {
    in_every_colour(|| async {
        let [_user, client, backend, _service] = four();
        let relayed = relay_async(client.as_async(), backend.as_async(), Some(Duration::ZERO)).await;
        assert_eq!(relayed.end.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_stream_that_takes_nothing_is_idle_after_a_while() {
    timeless(1).run(|| {
        let [mut user, client, backend, service] = four();
        let relaying = osier::spawn(move || relay(client.as_async(), backend.as_async(), Some(IDLE)));
        let flooding = osier::spawn(move || while user.write_all(&[0; 10_000]).is_ok() {});
        let relayed = relaying.join().unwrap();
        assert_eq!(relayed.end.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(relayed.to_far > 0 && relayed.to_near == 0);
        drop(service);
        flooding.join().unwrap();
    });
}

#[test]
fn a_half_closed_relay_goes_on_and_an_error_or_a_cancellation_ends_it() {
    timeless(1).run(|| {
        let [user, client, backend, mut service] = four();
        let relaying = osier::spawn(move || relay(client.as_async(), backend.as_async(), None));
        user.shutdown(Shutdown::Write).unwrap();
        assert_eq!(service.read(&mut [0]).unwrap(), 0);
        pass(100 * IDLE);
        service.write_all(b"late").unwrap();
        let mut text = [0; 4];
        (&user).read_exact(&mut text).unwrap();
        // The user has gone, so the next bytes have nowhere to go.
        drop(user);
        while service.write_all(b"lost").is_ok() {
            pass(SECOND);
        }
        let relayed = relaying.join().unwrap();
        assert!(matches!(
            relayed.end.unwrap_err().kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ));
        assert_eq!((relayed.to_far, relayed.to_near >= 4), (0, true));

        let [_user, client, backend, _service] = four();
        let relaying = osier::spawn(move || relay(client.as_async(), backend.as_async(), None));
        pass(SECOND);
        relaying.cancel();
        assert!(Cancelled::is(&relaying.join().unwrap().end.unwrap_err()));
    });
}

/// Suspends the fiber in each poll that writes, while the other end sends something.
struct Suspends<'a, S> {
    stream: S,
    other: &'a UnixStream,
}

impl<S: AsyncRead + Unpin> AsyncRead for Suspends<'_, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Suspends<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        self.other.write_all(b"late")?;
        pass(SECOND);
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[test]
fn bytes_that_come_while_a_stream_suspends_the_fiber_are_passed_on() {
    timeless(1).run(|| {
        let [user, client, backend, mut service] = four();
        osier::scope(|scope| {
            let relaying = scope.spawn(|| {
                let near = Suspends {
                    stream: client.as_async(),
                    other: &user,
                };
                relay(near, backend.as_async(), None)
            });
            pass(SECOND);
            service.write_all(b"x").unwrap();
            let mut text = [0; 4];
            let read = osier::timeout(10 * SECOND, || service.read_exact(&mut text));
            relaying.cancel();
            assert!(Cancelled::is(&relaying.join().unwrap().end.unwrap_err()));
            read.expect("the bytes are passed on").unwrap();
            assert_eq!(&text, b"late");
        });
    });
}
