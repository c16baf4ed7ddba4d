//! Descriptors that can be registered, on every back-end: sockets of all kinds, pipes, timers, counters, signals, files that
//! change, terminals, children. Then descriptors that cannot.

use crate::common::*;
use osier_poll::{Driver, Interest, Mode, Ready};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Instant;

on_every_driver! {
    a_tcp_connection_being_made_is_writable_when_it_is
    a_refused_connection_is_an_error
    a_tcp_listener_repeats_until_the_last_connection_is_accepted
    a_udp_socket_gets_datagrams_also_empty_ones
    unix_streams_and_listeners
    unix_datagrams
    both_ends_of_a_pipe
    an_eventfd
    a_timerfd
    a_signalfd
    an_inotify_descriptor
    a_terminal
    the_stdio_of_a_child
    four_megabytes_through_a_child
    a_descriptor_passed_over_a_socket
    a_regular_file_and_a_directory_are_refused
}

fn connecting(to: std::net::SocketAddr) -> (OwnedFd, rustix::io::Result<()>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let connected = rustix::net::connect(&socket, &to);
    (socket, connected)
}

fn a_tcp_connection_being_made_is_writable_when_it_is(driver: Driver) {
    let mut bench = Bench::new(driver);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (socket, _) = connecting(listener.local_addr().unwrap());
    bench.watch(&socket, A, Interest::WRITABLE, Mode::Oneshot);
    bench.expect(A, Ready::WRITABLE);
    let stream = TcpStream::from(socket);
    assert!(stream.take_error().unwrap().is_none());
    assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    // Writes of less than the socket's room succeed after one event.
    for _ in 0..16 {
        (&stream).write_all(&[7; 1024]).unwrap();
    }
    let mut all = Vec::new();
    let (mut accepted, _) = listener.accept().unwrap();
    bench.poller.delete(&stream).unwrap();
    drop(stream);
    accepted.read_to_end(&mut all).unwrap();
    assert_eq!(all, [7; 16 * 1024], "what was written before the drop arrives");
}

fn a_refused_connection_is_an_error(driver: Driver) {
    let mut bench = Bench::new(driver);
    // Bound and not listening: nobody else can take the port meanwhile.
    let flags = SocketFlags::CLOEXEC;
    let unheard = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&unheard, &any).unwrap();
    let address = rustix::net::getsockname(&unheard).unwrap().try_into().unwrap();
    let (socket, connected) = connecting(address);
    let error = match connected {
        Err(rustix::io::Errno::INPROGRESS) => {
            bench.watch(&socket, A, Interest::WRITABLE, Mode::Oneshot);
            bench.expect(A, Ready::ERROR | Ready::WRITABLE);
            TcpStream::from(socket).take_error().unwrap().unwrap()
        }
        refused_at_once => refused_at_once.unwrap_err().into(),
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

fn a_tcp_listener_repeats_until_the_last_connection_is_accepted(driver: Driver) {
    let mut bench = Bench::new(driver);
    if !bench.has(|can| can.level, "Mode::Level") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    bench.watch(&listener, A, Interest::READABLE, Mode::Level);
    let address = listener.local_addr().unwrap();
    let _peers = [
        TcpStream::connect(address).unwrap(),
        TcpStream::connect(address).unwrap(),
    ];
    for _ in 0..2 {
        bench.expect(A, Ready::READABLE);
        bench.expect(A, Ready::READABLE);
        listener.accept().unwrap();
    }
    bench.expect_nothing();
    let _third = TcpStream::connect(address).unwrap();
    bench.expect(A, Ready::READABLE);
    bench.poller.delete(&listener).unwrap();
    drop(listener);
    bench.expect_nothing();
}

fn a_udp_socket_gets_datagrams_also_empty_ones(driver: Driver) {
    let mut bench = Bench::new(driver);
    let [ours, theirs] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    theirs.set_nonblocking(true).unwrap();
    bench.watch(&theirs, A, Interest::READABLE | Interest::WRITABLE, Mode::Oneshot);
    assert_eq!(bench.expect(A, Ready::WRITABLE), Ready::WRITABLE);
    let to = theirs.local_addr().unwrap();
    for datagram in [&b"hello"[..], b""] {
        bench
            .poller
            .modify(&theirs, A, Interest::READABLE, Mode::Oneshot)
            .unwrap();
        bench.expect_nothing();
        ours.send_to(datagram, to).unwrap();
        bench.expect(A, Ready::READABLE);
        let mut buf = [0; 16];
        assert_eq!(
            theirs.recv_from(&mut buf).unwrap(),
            (datagram.len(), ours.local_addr().unwrap())
        );
        assert_eq!(theirs.recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    // A connected one hears nobody else.
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    theirs.connect(ours.local_addr().unwrap()).unwrap();
    bench
        .poller
        .modify(&theirs, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    stranger.send_to(b"not for you", to).unwrap();
    bench.expect_nothing();
    ours.send_to(b"for you", to).unwrap();
    bench.expect(A, Ready::READABLE);
}

fn unix_streams_and_listeners(driver: Driver) {
    let mut bench = Bench::new(driver);
    let folder = std::env::temp_dir().join(format!("osier-poll-{}-{driver:?}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    bench.watch(&listener, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    let mut client = UnixStream::connect(&path).unwrap();
    bench.expect(A, Ready::READABLE);
    let (mut server, _) = listener.accept().unwrap();
    bench.watch(&server, B, Interest::READABLE, Mode::Oneshot);
    client.write_all(b"hello").unwrap();
    bench.expect(B, Ready::READABLE);
    server.read_exact(&mut [0; 5]).unwrap();
    drop(client);
    bench
        .poller
        .modify(&server, B, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect(B, Ready::READABLE | Ready::HUP);
    assert_eq!(server.read(&mut [0; 5]).unwrap(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn unix_datagrams(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    ours.send(b"hello").unwrap();
    bench.expect(A, Ready::READABLE);
    let (length, from) = theirs.recv_from(&mut [0; 16]).unwrap();
    assert!(length == 5 && from.as_pathname().is_none());
}

fn both_ends_of_a_pipe(driver: Driver) {
    let mut bench = Bench::new(driver);
    let (reader, writer) = pipe();
    bench.watch(&writer, B, Interest::WRITABLE, Mode::Oneshot);
    bench.expect(B, Ready::WRITABLE);
    bench.watch(&reader, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    write(&writer, b"x");
    bench.expect(A, Ready::READABLE);
    // A reader that is dropped while it is watched gives nothing; to the writer it is an error.
    bench
        .poller
        .modify(&reader, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.poller.delete(&reader).unwrap();
    drop(reader);
    bench.expect_nothing();
    // A child of another test has the reader too, until it runs its program. Until then there is room, and no error.
    let (mut readiness, deadline) = (Ready::WRITABLE, Instant::now() + SOON);
    while readiness == Ready::WRITABLE && Instant::now() < deadline {
        bench
            .poller
            .modify(&writer, B, Interest::WRITABLE, Mode::Oneshot)
            .unwrap();
        readiness = bench.expect(B, Ready::NONE);
    }
    assert!(readiness.contains(Ready::ERROR), "{readiness:?}");
}

fn an_eventfd(driver: Driver) {
    let mut bench = Bench::new(driver);
    let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    bench.watch(&counter, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    write(&counter, &1u64.to_ne_bytes());
    bench.expect(A, Ready::READABLE);
    assert_eq!(read(&counter), 8);
}

fn a_timerfd(driver: Driver) {
    let mut bench = Bench::new(driver);
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    bench.watch(&timer, B, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    let in_nanos = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let once = Itimerspec {
        it_interval: in_nanos(0),
        it_value: in_nanos(2_000_000),
    };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).unwrap();
    bench.expect(B, Ready::READABLE);
}

/// The descriptor from which this thread reads `signal` instead of being interrupted by it.
fn signalfd(signal: libc::c_int) -> OwnedFd {
    // SAFETY: the set is initialised by sigemptyset before it is read; the descriptor is new and nobody else's.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

fn a_signalfd(driver: Driver) {
    let mut bench = Bench::new(driver);
    let signals = signalfd(libc::SIGUSR2);
    bench.watch(&signals, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    // SAFETY: this thread is there, and blocks the signal.
    assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) }, 0);
    bench.expect(A, Ready::READABLE);
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    assert_eq!(rustix::io::read(&signals, &mut record).unwrap(), record.len());
    assert_eq!(record[..4], libc::SIGUSR2.to_ne_bytes());
}

fn an_inotify_descriptor(driver: Driver) {
    let mut bench = Bench::new(driver);
    let folder = std::env::temp_dir().join(format!("osier-inotify-{}-{driver:?}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&changes, &folder, inotify::WatchFlags::CREATE).unwrap();
    bench.watch(&changes, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    File::create(folder.join("new")).unwrap();
    bench.expect(A, Ready::READABLE);
    std::fs::remove_dir_all(&folder).unwrap();
}

fn a_terminal(driver: Driver) {
    let mut bench = Bench::new(driver);
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(&name, flags, FileMode::empty()).unwrap();
    bench.watch(&terminal, A, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    write(&controller, b"a line\n");
    bench.expect(A, Ready::READABLE);
    assert_eq!(read(&terminal), 7);
    bench.watch(&controller, B, Interest::READABLE, Mode::Oneshot);
    bench.expect(B, Ready::READABLE); // the echo
    while rustix::io::read(&controller, &mut [0; 64][..]).unwrap() < 8 {}
    drop(controller);
    bench
        .poller
        .modify(&terminal, A, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    match bench.poller.capabilities().forgets_closed {
        true => drop(bench.expect(A, Ready::HUP)),
        // The registration of the other end keeps it open.
        false => bench.expect_nothing(),
    }
}

fn the_stdio_of_a_child(driver: Driver) {
    let mut bench = Bench::new(driver);
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    bench.watch(&stdin, A, Interest::WRITABLE, Mode::Oneshot);
    bench.expect(A, Ready::WRITABLE);
    bench.watch(&stdout, B, Interest::READABLE, Mode::Oneshot);
    bench.expect_nothing();
    stdin.write_all(b"meow").unwrap();
    bench.expect(B, Ready::READABLE);
    stdout.read_exact(&mut [0; 4]).unwrap();
    bench.poller.delete(&stdin).unwrap();
    drop(stdin);
    bench
        .poller
        .modify(&stdout, B, Interest::READABLE, Mode::Oneshot)
        .unwrap();
    bench.expect(B, Ready::HUP);
    assert_eq!(stdout.read(&mut [0; 4]).unwrap(), 0);
    assert!(child.wait().unwrap().success());
}

fn four_megabytes_through_a_child(driver: Driver) {
    const ALL: usize = 4 << 20;
    let mut bench = Bench::new(driver);
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take();
    let mut stdout = child.stdout.take().unwrap();
    rustix::io::ioctl_fionbio(stdin.as_ref().unwrap(), true).unwrap();
    rustix::io::ioctl_fionbio(&stdout, true).unwrap();
    bench.watch(stdin.as_ref().unwrap(), A, Interest::WRITABLE, Mode::Oneshot);
    bench.watch(&stdout, B, Interest::READABLE, Mode::Oneshot);
    let chunk: Vec<u8> = (0..=250).cycle().take(64 << 10).collect();
    let mut buf = vec![0; 64 << 10];
    let (mut written, mut seen) = (0, 0);
    'all: loop {
        let events = bench.wait(SOON);
        assert!(!events.is_empty() || driver == Driver::Portable);
        for event in events {
            if event.token == A {
                let pipe = stdin.as_mut().expect("it is deleted before it is dropped");
                let from = written % 251;
                let left = (ALL - written).min(chunk.len() - from);
                match pipe.write(&chunk[from..from + left]) {
                    Ok(length) => written += length,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                if written < ALL {
                    bench
                        .poller
                        .modify(&*pipe, A, Interest::WRITABLE, Mode::Oneshot)
                        .unwrap();
                } else {
                    bench.poller.delete(&*pipe).unwrap();
                    stdin = None;
                }
            } else {
                match stdout.read(&mut buf) {
                    Ok(0) => break 'all,
                    Ok(length) => {
                        assert!(
                            buf[..length]
                                .iter()
                                .enumerate()
                                .all(|(i, &byte)| byte as usize == (seen + i) % 251)
                        );
                        seen += length;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                bench
                    .poller
                    .modify(&stdout, B, Interest::READABLE, Mode::Oneshot)
                    .unwrap();
            }
        }
    }
    assert_eq!((written, seen), (ALL, ALL));
    assert!(child.wait().unwrap().success());
}

fn a_descriptor_passed_over_a_socket(driver: Driver) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage};
    use std::io::{IoSlice, IoSliceMut};
    use std::os::fd::AsFd;
    let mut bench = Bench::new(driver);
    let (ours, theirs) = UnixStream::pair().unwrap();
    bench.watch(&theirs, A, Interest::READABLE, Mode::Oneshot);
    let (reader, writer) = pipe();
    let fds = [reader.as_fd()];
    let mut space = [0; 64].map(std::mem::MaybeUninit::<u8>::new);
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(
        &ours,
        &[IoSlice::new(b"x")],
        &mut control,
        rustix::net::SendFlags::empty(),
    )
    .unwrap();
    bench.expect(A, Ready::READABLE);
    let mut space = [0; 64].map(std::mem::MaybeUninit::<u8>::new);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(&theirs, &mut [IoSliceMut::new(&mut [0])], &mut control, flags).unwrap();
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let passed = passed.expect("the descriptor that was sent");
    bench.watch(&passed, B, Interest::READABLE, Mode::Oneshot);
    write(&writer, b"x");
    bench.expect(B, Ready::READABLE);
}

fn a_regular_file_and_a_directory_are_refused(driver: Driver) {
    let poller = Bench::new(driver).poller;
    for path in [std::env::current_exe().unwrap(), std::env::temp_dir()] {
        let file = File::open(path).unwrap();
        let refused = poller.add(&file, A, Interest::READABLE, Mode::Oneshot);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        // And it leaves nothing behind.
        assert!(poller.delete(&file).is_err());
    }
}
