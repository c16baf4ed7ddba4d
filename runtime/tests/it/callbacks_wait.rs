//! Callbacks for descriptors, mailboxes, files, sockets and name lookups.

use std::fs;
use std::io::{ErrorKind, PipeReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::iterate::until;
use osier::callbacks::{CancelHandle, FdMonitor, File, Handle, IoQueue, Resolver, Socket, Status};
use osier::io::{Interest, Ready};
use osier::sync::Mailbox;

type Seen = (Status, Result<Ready, ErrorKind>);

/// Waits for `interest` in a descriptor, and sends the callback's arguments.
fn monitored<F: AsFd + Send + 'static>(
    monitor: FdMonitor<F>,
    interest: Interest,
) -> (CancelHandle<Interest>, mpsc::Receiver<(FdMonitor<F>, Seen)>) {
    let (report, reports) = mpsc::channel();
    let handle = monitor.wait(interest, move |monitor, status, ready| {
        let _ = report.send((monitor, (status, ready.map_err(|error| error.kind()))));
    });
    (handle.unwrap(), reports)
}

/// Iterates until it comes.
fn receive<T>(queue: &IoQueue, reports: &mpsc::Receiver<T>) -> T {
    let mut received = None;
    until(queue, || {
        received = reports.try_recv().ok();
        received.is_some()
    });
    received.unwrap()
}

/// Iterates until nothing is due.
fn settle(queue: &IoQueue) {
    for _ in 0..3 {
        queue.notify();
        queue.iterate().unwrap();
    }
}

#[test]
fn a_monitor_tells_when_its_descriptor_is_ready_and_is_used_again() {
    for threads in [0, 1] {
        let queue = IoQueue::new(threads).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let flags = rustix::fs::fcntl_getfl(&reader).unwrap();
        let (handle, reports) = monitored(FdMonitor::new(&queue, reader), Interest::READABLE);
        settle(&queue);
        assert!(handle.is_pending());
        writer.write_all(b"ab").unwrap();
        let (monitor, (status, ready)) = receive(&queue, &reports);
        assert_eq!(status, Status::Done);
        assert!(ready.unwrap().is_readable());

        // Level-triggered: bytes that are not read are reported again.
        let (_, reports) = monitored(monitor, Interest::READABLE);
        let (monitor, (_, ready)) = receive(&queue, &reports);
        assert!(ready.unwrap().is_readable());
        let mut reader = monitor.into_inner();
        assert_eq!(
            rustix::fs::fcntl_getfl(&reader).unwrap(),
            flags,
            "its mode is its owner's"
        );
        reader.read_exact(&mut [0; 2]).unwrap();
    }
}

#[test]
fn a_descriptor_that_is_borrowed_for_ever_or_shared_is_not_closed() {
    let queue = IoQueue::new(0).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader: &'static PipeReader = Box::leak(Box::new(reader));
    let (_, reports) = monitored(FdMonitor::new(&queue, reader.as_fd()), Interest::READABLE);
    writer.write_all(b"x").unwrap();
    drop(receive(&queue, &reports));
    let (_, reports) = monitored(FdMonitor::new(&queue, reader), Interest::READABLE);
    drop(receive(&queue, &reports));
    let mut reader = reader;
    reader.read_exact(&mut [0]).unwrap();
}

#[test]
fn several_monitors_wait_for_one_descriptor() {
    let queue = IoQueue::new(0).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = Arc::new(reader);
    let waits: Vec<_> = (0..4)
        .map(|_| monitored(FdMonitor::new(&queue, Arc::clone(&reader)), Interest::READABLE))
        .collect();
    waits[0].0.cancel();
    let (_, (status, ready)) = receive(&queue, &waits[0].1);
    assert_eq!((status, ready), (Status::Cancelled, Ok(Ready::NONE)));
    writer.write_all(b"x").unwrap();
    for (_, reports) in &waits[1..] {
        let (_, (status, ready)) = receive(&queue, reports);
        assert_eq!(status, Status::Done);
        assert!(ready.unwrap().is_readable());
    }
}

#[test]
fn a_hang_up_is_readiness_and_a_wait_that_cannot_be_is_an_error() {
    let queue = IoQueue::new(0).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let (_, reports) = monitored(FdMonitor::new(&queue, reader), Interest::READABLE);
    drop(writer);
    let (_, (status, ready)) = receive(&queue, &reports);
    assert_eq!(status, Status::Done);
    assert!(!ready.unwrap().is_empty());

    let file = fs::File::open("/proc/self/exe").unwrap();
    let (_, reports) = monitored(FdMonitor::new(&queue, file), Interest::READABLE);
    assert!(reports.try_recv().is_err(), "not in the call");
    let (_, seen) = receive(&queue, &reports);
    assert_eq!(seen, (Status::Done, Err(ErrorKind::PermissionDenied)));
}

#[test]
fn a_wait_is_changed_in_place() {
    let queue = IoQueue::new(0).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // Nothing to read; there is room to write.
    let (handle, reports) = monitored(FdMonitor::new(&queue, ours), Interest::READABLE);
    settle(&queue);
    assert!(reports.try_recv().is_err());
    assert!(handle.rewait(Interest::WRITABLE));
    let (monitor, (status, ready)) = receive(&queue, &reports);
    assert_eq!(status, Status::Done);
    assert!(ready.unwrap().is_writable());
    assert!(!handle.rewait(Interest::READABLE), "it is over");

    // An empty interest ends the wait at once. Then from the beginning.
    let (handle, reports) = monitored(monitor, Interest::READABLE);
    assert!(handle.rewait(Interest::NONE));
    let (monitor, seen) = receive(&queue, &reports);
    assert_eq!(seen, (Status::Done, Ok(Ready::NONE)));
    let (_, reports) = monitored(monitor, Interest::NONE);
    assert!(reports.try_recv().is_err(), "not in the call");
    let (monitor, seen) = receive(&queue, &reports);
    assert_eq!(seen, (Status::Done, Ok(Ready::NONE)));

    // An interest that is withdrawn while its event is under way is not reported.
    let (handle, reports) = monitored(monitor, Interest::WRITABLE);
    if handle.rewait(Interest::READABLE) {
        settle(&queue);
        assert!(handle.is_pending() && reports.try_recv().is_err());
    }
    drop(theirs);
    let (_, (status, ready)) = receive(&queue, &reports);
    assert_eq!((status, ready.is_ok()), (Status::Done, true));
}

#[test]
fn rewaits_and_cancellations_that_race_events_make_one_callback() {
    let queue = IoQueue::new(2).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut monitor = Some(FdMonitor::new(&queue, reader));
    let mut cancelled = 0;
    for round in 0..300 {
        let (handle, reports) = monitored(monitor.take().unwrap(), Interest::READABLE);
        let seen = thread::scope(|scope| {
            scope.spawn(|| writer.write_all(b"x").unwrap());
            scope.spawn(|| {
                for _ in 0..round % 5 {
                    handle.rewait(Interest::PRIORITY);
                    handle.rewait(Interest::READABLE);
                }
            });
            if round % 2 == 0 {
                scope.spawn(|| handle.cancel());
            }
            receive(&queue, &reports)
        });
        assert!(reports.recv_timeout(Duration::ZERO).is_err(), "a second callback");
        let (back, (status, ready)) = seen;
        match status {
            Status::Done => assert!(ready.unwrap().is_readable()),
            _ => {
                cancelled += 1;
                assert_eq!(ready, Ok(Ready::NONE));
            }
        }
        let mut reader = back.into_inner();
        reader.read_exact(&mut [0]).unwrap();
        monitor = Some(FdMonitor::new(&queue, reader));
    }
    println!("{cancelled} of 150 cancelled");
}

#[test]
fn a_mailbox_calls_back_for_any_or_for_all_and_keeps_its_flags() {
    let queue = IoQueue::new(0).unwrap();
    let mailbox = Arc::new(Mailbox::new());
    let wait = |all: bool, set: u32| {
        let (report, reports) = mpsc::channel();
        let callback = move |status, state| _ = report.send((status, state));
        let handle = match all {
            true => queue.wait_all(&mailbox, set, callback),
            false => queue.wait_any(&mailbox, set, callback),
        };
        (handle.unwrap(), reports)
    };
    let (any, all) = (wait(false, 0b011), wait(true, 0b101));
    settle(&queue);
    assert!(any.0.is_pending() && all.0.is_pending());
    mailbox.raise(0b001);
    assert_eq!(receive(&queue, &any.1), (Status::Done, Some(0b001)));
    settle(&queue);
    assert!(all.0.is_pending(), "one of two");
    mailbox.raise(0b100);
    assert_eq!(receive(&queue, &all.1), (Status::Done, Some(0b101)));
    // Level-triggered, and not in the call.
    let again = wait(false, 0b001);
    assert!(again.1.try_recv().is_err());
    assert_eq!(receive(&queue, &again.1), (Status::Done, Some(0b101)));
    assert_eq!(mailbox.take(0b001), 0b101, "the state before, whole");
    assert_eq!(mailbox.state(), 0b100);
    // All and any flags of an empty set are raised.
    for all in [false, true] {
        let (_, reports) = wait(all, 0);
        assert_eq!(receive(&queue, &reports).0, Status::Done);
    }
    // And it is cancelled.
    let (handle, reports) = wait(false, 0b010);
    assert!(handle.cancel());
    assert_eq!(receive(&queue, &reports), (Status::Cancelled, None));
}

#[test]
fn raising_a_flag_wakes_a_blocked_iteration_by_itself() {
    for threads in [0, 1, 3] {
        let queue = IoQueue::new(threads).unwrap();
        let (mailbox, done) = (Arc::new(Mailbox::new()), Arc::new(Mailbox::new()));
        let finished = Arc::clone(&done);
        queue.wait_any(&mailbox, 1, move |_, _| finished.raise(1)).unwrap();
        thread::scope(|scope| {
            let waits = testkit::ThreadWatch::current();
            let mailbox = &mailbox;
            scope.spawn(move || {
                waits.until_it_waits();
                mailbox.raise(1);
            });
            while done.take(Mailbox::ALL) == 0 {
                queue.iterate().unwrap();
            }
        });
    }
}

#[test]
fn a_pipe_is_read_and_written_at_the_same_time() {
    let queue = IoQueue::new(1).unwrap();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = File::new(&queue, ours).unwrap();
    let (report, reports) = mpsc::channel();
    let other = report.clone();
    let read = move |status, read: std::io::Result<usize>, mut buffer: Vec<u8>| {
        buffer.truncate(read.unwrap());
        report.send(("read", status, buffer)).unwrap();
    };
    file.read(vec![0; 8], read).unwrap();
    let busy = file.read(vec![7], |_, _, _| unreachable!("refused")).unwrap_err();
    assert!(busy.is_busy());
    assert_eq!(busy.into_inner(), [7]);
    let written = move |status, written: std::io::Result<usize>, buffer: Vec<u8>| {
        assert_eq!(written.unwrap(), buffer.len());
        other.send(("written", status, buffer)).unwrap();
    };
    file.write(b"out".to_vec(), written).unwrap();
    assert_eq!(receive(&queue, &reports), ("written", Status::Done, b"out".to_vec()));
    theirs.write_all(b"in").unwrap();
    assert_eq!(receive(&queue, &reports), ("read", Status::Done, b"in".to_vec()));
    let mut out = [0; 3];
    theirs.read_exact(&mut out).unwrap();
    assert_eq!(&out, b"out");

    // The end is no error, and no bytes.
    drop(theirs);
    let (report, reports) = mpsc::channel();
    file.read(vec![0; 8], move |status, read, _| {
        report.send((status, read.unwrap())).unwrap()
    })
    .unwrap();
    assert_eq!(receive(&queue, &reports), (Status::Done, 0));
}

#[test]
fn a_cancelled_read_gives_its_buffer_back_and_is_no_end_of_file() {
    let queue = IoQueue::new(0).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let file = File::new(&queue, reader).unwrap();
    let (report, reports) = mpsc::channel();
    let reporting =
        move |status, read: std::io::Result<usize>, buffer| report.send((status, read.is_err(), buffer)).unwrap();
    file.read(vec![1, 2, 3], reporting).unwrap();
    file.cancel();
    assert_eq!(receive(&queue, &reports), (Status::Cancelled, true, vec![1, 2, 3]));
}

#[test]
fn a_regular_file_is_read_and_written_on_the_pool() {
    let queue = IoQueue::new(0).unwrap();
    let path = std::env::temp_dir().join(format!("osier-ioq-{}", std::process::id()));
    let open = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path);
    fs::remove_file(&path).unwrap();
    let file = File::new(&queue, open.unwrap()).unwrap();
    let (report, reports) = mpsc::channel();
    let reporting = || {
        let report = report.clone();
        move |status, done: std::io::Result<usize>, buffer| report.send((status, done.unwrap(), buffer)).unwrap()
    };
    file.write(b"0123456789".to_vec(), reporting()).unwrap();
    assert_eq!(receive(&queue, &reports).1, 10);
    file.write_at(b"xy".to_vec(), 4, reporting()).unwrap();
    assert_eq!(receive(&queue, &reports).1, 2);
    file.read_at(vec![0; 4], 3, reporting()).unwrap();
    assert_eq!(receive(&queue, &reports), (Status::Done, 4, b"3xy6".to_vec()));
    // The position is behind what was written, which is the end.
    file.read(vec![0; 4], reporting()).unwrap();
    assert_eq!(receive(&queue, &reports).1, 0);
}

fn connected(queue: &IoQueue) -> (Socket, Socket, Socket) {
    let listener = Socket::new(queue);
    listener.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let (report, accepted) = mpsc::channel();
    listener
        .accept(move |_, socket| report.send(socket.unwrap()).unwrap())
        .unwrap();
    let client = Socket::new(queue);
    let (report, done) = mpsc::channel();
    let connected = move |status, done: std::io::Result<()>| report.send((status, done.is_ok())).unwrap();
    client.connect(listener.local_addr().unwrap(), connected).unwrap();
    assert_eq!(receive(queue, &done), (Status::Done, true));
    let server = receive(queue, &accepted);
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    (listener, client, server)
}

#[test]
fn sockets_connect_accept_send_and_receive() {
    for threads in [0, 2] {
        let queue = IoQueue::new(threads).unwrap();
        let (_listener, client, server) = connected(&queue);
        let (report, reports) = mpsc::channel();
        let received = move |status, n: std::io::Result<usize>, mut buffer: Vec<u8>| {
            buffer.truncate(n.unwrap());
            report.send((status, buffer)).unwrap();
        };
        // A receive that waits, and a send at the same time.
        server.recv(vec![0; 16], received.clone()).unwrap();
        assert!(server.recv(vec![], |_, _, _| ()).unwrap_err().is_busy());
        server
            .send(b"from the server".to_vec(), |_, n, _| assert_eq!(n.unwrap(), 15))
            .unwrap();
        client
            .send(b"from the client".to_vec(), |_, n, _| assert_eq!(n.unwrap(), 15))
            .unwrap();
        assert_eq!(receive(&queue, &reports), (Status::Done, b"from the client".to_vec()));
        client.recv(vec![0; 16], received.clone()).unwrap();
        assert_eq!(receive(&queue, &reports), (Status::Done, b"from the server".to_vec()));

        // The end of the stream is no bytes.
        server.recv(vec![0; 16], received).unwrap();
        client.close();
        assert_eq!(receive(&queue, &reports), (Status::Done, vec![]));
    }
}

#[test]
fn closing_a_socket_cancels_what_is_outstanding() {
    let queue = IoQueue::new(0).unwrap();
    let (listener, client, server) = connected(&queue);
    let (report, reports) = mpsc::channel();
    let other = report.clone();
    listener
        .accept(move |status, socket| report.send((status, socket.is_err())).unwrap())
        .unwrap();
    server
        .recv(vec![0; 4], move |status, n, _| {
            other.send((status, n.is_err())).unwrap()
        })
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| listener.close());
        scope.spawn(|| server.close());
        assert_eq!(receive(&queue, &reports), (Status::Cancelled, true));
        assert_eq!(receive(&queue, &reports), (Status::Cancelled, true));
    });
    // The requests have closed the descriptors: the peer reads the end.
    let (report, reports) = mpsc::channel();
    client
        .recv(vec![0; 4], move |_, n, _| report.send(n.unwrap()).unwrap())
        .unwrap();
    assert_eq!(receive(&queue, &reports), 0);
    // A closed socket may begin anew.
    listener.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
}

#[test]
fn a_cancelled_connect_takes_nothing_from_what_its_socket_is_by_then() {
    let queue = IoQueue::new(0).unwrap();
    // Nobody accepts, and the backlog has room for one: the other connects stay under way.
    let stream = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let full = stream();
    full.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _waiting = [(); 4].map(|()| {
        let stream = stream();
        stream.set_nonblocking(true).unwrap();
        let _ = stream.connect(&address);
        stream
    });
    let (report, reports) = mpsc::channel();
    let socket = Socket::new(&queue);
    let connected = move |status, _| report.send(status).unwrap();
    socket.connect(address.as_socket().unwrap(), connected).unwrap();
    socket.close();
    socket.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let status = receive(&queue, &reports);
    if status != Status::Cancelled {
        println!("skipped: the connect was {status:?} before it was cancelled");
        return;
    }
    socket.local_addr().expect("it listens");
}

#[test]
fn a_call_in_the_wrong_state_calls_back_with_an_error() {
    let queue = IoQueue::new(0).unwrap();
    let (report, reports) = mpsc::channel();
    let kind = || {
        let report = report.clone();
        move |kind: Option<ErrorKind>| report.send(kind).unwrap()
    };
    let (receives, accepts, connects) = (kind(), kind(), kind());
    let socket = Socket::new(&queue);
    socket
        .recv(vec![0], move |_, n, _| receives(n.err().map(|error| error.kind())))
        .unwrap();
    assert!(reports.try_recv().is_err(), "not in the call");
    assert_eq!(receive(&queue, &reports), Some(ErrorKind::NotConnected));
    socket
        .accept(move |_, socket| accepts(socket.err().map(|error| error.kind())))
        .unwrap();
    assert_eq!(receive(&queue, &reports), Some(ErrorKind::NotConnected));
    // A port that nobody listens on.
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    socket
        .connect(address, move |_, done| connects(done.err().map(|error| error.kind())))
        .unwrap();
    assert_eq!(receive(&queue, &reports), Some(ErrorKind::ConnectionRefused));
    assert_eq!(socket.local_addr().unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn a_name_is_looked_up_and_a_look_up_is_cancelled() {
    let queue = IoQueue::new(1).unwrap();
    let resolver = Resolver::new(&queue);
    let (report, reports) = mpsc::channel();
    for (host, port) in [("localhost", 80), ("127.0.0.1", 81)] {
        let report = report.clone();
        resolver
            .resolve(host, port, move |status, found| {
                report.send((status, found.unwrap())).unwrap()
            })
            .unwrap();
    }
    for _ in 0..2 {
        let (status, found) = receive(&queue, &reports);
        assert_eq!(status, Status::Done);
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
    }
    let (report, reports) = mpsc::channel();
    let handle = resolver.resolve("localhost", 80, move |status, found| {
        report.send((status, found.is_ok())).unwrap()
    });
    let cancelled = handle.unwrap().cancel();
    match receive(&queue, &reports) {
        (Status::Done, found) => assert!(found),
        (status, found) => assert!(cancelled && status == Status::Cancelled && !found),
    }
}

#[test]
fn a_handle_and_its_objects_go_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<IoQueue>();
    shared::<Handle>();
    shared::<osier::callbacks::RunQueue>();
    shared::<CancelHandle>();
    shared::<CancelHandle<Interest>>();
    shared::<Socket>();
    shared::<File<fs::File>>();
    shared::<Resolver>();
    sent::<osier::callbacks::Timer>();
    sent::<FdMonitor<PipeReader>>();
}

/// The kernel takes a descriptor before it looks for a connection. A test of its own process: it takes all descriptors.
#[test]
fn an_accept_lacks_a_descriptor_only_for_a_connection_that_is_there() {
    let test = "callbacks_wait::an_accept_lacks_a_descriptor_only_for_a_connection_that_is_there";
    let ran = testkit::in_a_child(test, || {
        let queue = IoQueue::new(0).unwrap();
        let listener = Socket::new(&queue);
        listener.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let mut taken: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
        let (report, reports) = mpsc::channel();
        let accept = listener.accept(move |_, accepted| report.send(accepted.map(drop)).unwrap());
        accept.unwrap();
        queue.notify();
        queue.iterate().unwrap();
        assert!(reports.try_recv().is_err(), "nobody has connected");
        drop(taken.pop());
        let _client = std::net::TcpStream::connect(address).unwrap();
        let mut outcome = None;
        until(&queue, || {
            outcome = reports.try_recv().ok();
            outcome.is_some()
        });
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
    });
    if let Some(ran) = ran {
        assert!(ran.status.success(), "{ran:?}");
    }
}
