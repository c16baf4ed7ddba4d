//! Connects to one of several addresses of the machine, on fibers, plain threads and in futures.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use crate::colours::in_every_colour;
use osier::net::{TcpListener, TcpStream, ToSocketAddrs};
use socket2::{Domain, Socket, Type};
use testkit::{BlackHole, DEADLINE, nobody};

/// Shorter than the time after which the kernel gives a connect up.
const SHORT: Duration = Duration::from_millis(300);

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

#[test]
fn an_address_that_does_not_answer_does_not_keep_the_next_one_waiting() {
    let (hole, (_listener, alive)) = (BlackHole::new(), listen());
    let addrs = [hole.address, alive];
    let blocking = move || {
        let within = TcpStream::connect_within(&addrs[..], DEADLINE).unwrap();
        assert_eq!(within.peer_addr().unwrap(), alive);
        let without = TcpStream::connect(&addrs[..]).unwrap();
        assert_eq!(without.peer_addr().unwrap(), alive);
    };
    blocking();
    osier::run(blocking);
    in_every_colour(move || async move {
        let stream = TcpStream::connect_async(&addrs[..]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
    });
}

#[test]
fn the_error_of_several_addresses_names_each_with_its_reason() {
    let addrs = [nobody(), nobody()];
    let check = move |error: io::Error| {
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let text = error.to_string();
        for addr in addrs {
            assert!(text.contains(&format!("{addr}: Connection refused")), "{text}");
        }
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        assert!(
            source.is_some_and(|source| source.raw_os_error().is_some()),
            "{error:?}"
        );
    };
    let blocking = move || {
        check(TcpStream::connect(&addrs[..]).unwrap_err());
        let one = TcpStream::connect(addrs[0]).unwrap_err();
        assert!(one.raw_os_error().is_some(), "the system's own: {one:?}");
        let none = TcpStream::connect(&[][..] as &[SocketAddr]).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidInput);
    };
    blocking();
    osier::run(blocking);
    in_every_colour(move || async move { check(TcpStream::connect_async(&addrs[..]).await.unwrap_err()) });
}

#[test]
fn a_limit_holds_on_plain_threads_too() {
    let holes = [BlackHole::new(), BlackHole::new()];
    let addrs = [holes[0].address, holes[1].address];
    let blocking = move || {
        let error = TcpStream::connect_within(&addrs[..], 2 * SHORT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(addrs.iter().all(|addr| text.contains(&addr.to_string())), "{text}");
        let one = TcpStream::connect_within(addrs[0], SHORT).unwrap_err();
        assert_eq!(one.kind(), ErrorKind::TimedOut);
        let zero = TcpStream::connect_within(addrs[0], Duration::ZERO).unwrap_err();
        assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    };
    blocking();
    osier::run(blocking);
}

/// A name whose lookup does not end.
struct Endless;

impl ToSocketAddrs for Endless {
    type Iter = std::option::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        unreachable!("the connect has a limit")
    }

    fn to_socket_addrs_async(&self) -> impl Future<Output = io::Result<Self::Iter>> + Send + use<> {
        std::future::pending()
    }
}

#[test]
fn a_limit_that_ends_the_lookup_says_so() {
    let blocking = || {
        let error = TcpStream::connect_within(Endless, Duration::from_millis(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().starts_with("cannot look up"), "{error}");
    };
    blocking();
    osier::run(blocking);
}

#[test]
fn sockets_that_the_caller_has_set_up_connect() {
    let (_listener, alive) = listen();
    let from = SocketAddr::from(([127, 0, 0, 1], 0));
    let make = move |to: &SocketAddr| {
        if *to != alive {
            return Err(io::Error::other("no socket for this one"));
        }
        let socket = Socket::new(Domain::for_address(*to), Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.set_read_timeout(Some(SHORT))?;
        Ok(socket)
    };
    let refused = nobody();
    let blocking = move || {
        let stream = TcpStream::connect_with(&[refused, alive][..], make).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
        assert_eq!(stream.read_timeout().unwrap(), Some(SHORT), "its own settings apply");
        let error = TcpStream::connect_with(refused, make).unwrap_err();
        assert_eq!(error.to_string(), "no socket for this one");
    };
    blocking();
    osier::run(blocking);
    in_every_colour(move || async move {
        let stream = TcpStream::connect_with_async(&[refused, alive][..], make)
            .await
            .unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
    });
}
