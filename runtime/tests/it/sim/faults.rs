//! Faults by program and by chance.

use super::{SECOND, echo, echo_server};
use osier::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use osier::sim::{self, Faults, Link, Sim};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Duration;

#[test]
fn a_partition_delays_and_then_ends_a_connection() {
    sim::run(1, |world| {
        let server = world.host("server", echo_server);
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        world.partition(&world.here(), &server);
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(Some(10 * SECOND)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        world.heal(&world.here(), &server);
        assert_eq!(stream.read(&mut [0]).unwrap(), 1, "it is sent again");

        world.partition(&world.here(), &server);
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(None).unwrap();
        let before = world.elapsed();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(
            (error.kind(), error.raw_os_error().is_some()),
            (ErrorKind::TimedOut, true)
        );
        let took = world.elapsed() - before;
        assert!((600 * SECOND..2000 * SECOND).contains(&took), "{took:?}");
    });
}

#[test]
fn a_connect_whose_answers_are_lost_fails() {
    sim::run(1, |world| {
        let server = world.host("server", echo_server);
        osier::sleep(SECOND);
        world.cut(&server, &world.here());
        let before = world.elapsed();
        let error = TcpStream::connect("server:7").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = world.elapsed() - before;
        assert!((30 * SECOND..200 * SECOND).contains(&took), "{took:?}");
    });
}

#[test]
fn a_partition_ends_a_connection_that_waits_for_room() {
    let sim = Sim::new(1).limit(4 * 3600 * SECOND);
    sim.run(|world| {
        const BUFFER: usize = 64 << 10;
        let server = world.host("server", || -> std::io::Result<()> {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(10 * SECOND);
            stream.read_exact(&mut [0; BUFFER])?;
            osier::sleep(4 * 3600 * SECOND);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        stream.write_all(&[0; BUFFER]).unwrap();
        osier::sleep(2 * SECOND);
        world.partition(&world.here(), &server);
        let before = world.elapsed();
        assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::TimedOut);
        let took = world.elapsed() - before;
        assert!((600 * SECOND..2000 * SECOND).contains(&took), "{took:?}");
    });
}

/// The error of a write without room, after the server has lost its end without a word.
fn error_without_room(loses: fn(&sim::World, &sim::Host)) -> ErrorKind {
    let sim = Sim::new(1).limit(4 * 3600 * SECOND);
    sim.run(move |world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            osier::sleep(10 * SECOND);
            drop(listener);
            osier::sleep(4 * 3600 * SECOND);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        stream.write_all(&[0; 64 << 10]).unwrap();
        osier::sleep(2 * SECOND);
        loses(world, &server);
        stream.write(b"x").unwrap_err().kind()
    })
}

#[test]
fn a_writer_without_room_learns_that_its_peer_is_gone() {
    let restarted = error_without_room(|_, server| {
        server.crash();
        server.restart();
    });
    assert_eq!(restarted, ErrorKind::ConnectionReset);
    let healed = error_without_room(|world, server| {
        world.partition(&world.here(), server);
        osier::sleep(20 * SECOND);
        world.heal(&world.here(), server);
    });
    assert_eq!(healed, ErrorKind::ConnectionReset);
    assert_eq!(error_without_room(|_, server| server.crash()), ErrorKind::TimedOut);
    let cut = error_without_room(|world, server| world.cut(server, &world.here()));
    assert_eq!(cut, ErrorKind::TimedOut);
}

#[test]
fn a_writer_that_fills_its_room_behind_a_cut_learns_of_it() {
    let sim = Sim::new(1).limit(4 * 3600 * SECOND);
    sim.run(|world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let _stream = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(4 * 3600 * SECOND);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        world.cut(&server, &world.here());
        stream.write_all(&[0; 64 << 10]).unwrap();
        assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// It has nothing more to send, so it asks for no room.
#[test]
fn an_end_that_has_sent_all_outlives_a_cut() {
    sim::run(1, |world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(2 * 3600 * SECOND);
            stream.read_to_end(&mut Vec::new())?;
            stream.write_all(b"done")
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        stream.write_all(&[0; 64 << 10]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        osier::sleep(SECOND);
        world.partition(&world.here(), &server);
        osier::sleep(3600 * SECOND);
        world.heal(&world.here(), &server);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "done");
    });
}

#[test]
fn a_reset_takes_no_link_that_is_cut() {
    sim::run(1, |world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let _stream = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(1000 * SECOND);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        world.cut(&server, &world.here());
        server.kill();
        osier::sleep(SECOND);
        stream.write_all(b"x").unwrap();
        stream.set_read_timeout(Some(30 * SECOND)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        world.heal(&server, &world.here());
        stream.set_read_timeout(Some(300 * SECOND)).unwrap();
        assert_eq!(
            stream.read(&mut [0]).unwrap_err().kind(),
            ErrorKind::ConnectionReset,
            "the byte is sent again, and its answer arrives"
        );
    });
}

/// Every segment takes the same tenth of a second.
fn slow_link() -> Link {
    Link {
        latency: SECOND / 10,
        jitter: Duration::ZERO,
        ..Link::default()
    }
}

/// The byte has arrived at an end that had given up, whose own reset is lost.
#[test]
fn a_byte_that_has_met_an_end_that_gave_up_brings_another_reset() {
    Sim::new(1).link(slow_link()).run(|world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let (stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(2 * SECOND);
            // It has not read the first byte.
            drop(stream);
            osier::sleep(1000 * SECOND);
            Ok(())
        });
        osier::sleep(SECOND);
        let begun = world.elapsed();
        let until = |hundredths: u32| osier::sleep(begun + SECOND / 100 * hundredths - world.elapsed());
        let mut stream = TcpStream::connect("server:7").unwrap();
        stream.write_all(b"1").unwrap();
        until(203);
        stream.write_all(b"2").unwrap();
        until(216);
        world.cut(&server, &world.here());
        until(300);
        world.heal(&server, &world.here());
        stream.set_read_timeout(Some(60 * SECOND)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn an_end_of_a_stream_that_meets_an_end_that_has_failed_is_reset() {
    let sim = Sim::new(1).limit(24 * 3600 * SECOND);
    sim.run(|world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            osier::sleep(3600 * SECOND);
            stream.shutdown(Shutdown::Write)?;
            assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        world.cut(&world.here(), &server);
        stream.write_all(b"x").unwrap();
        osier::sleep(3000 * SECOND);
        world.heal(&world.here(), &server);
        server.wait();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_client_without_power_resets_nothing() {
    Sim::new(1).link(slow_link()).run(|world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            stream.set_read_timeout(Some(60 * SECOND))?;
            assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
            Ok(())
        });
        osier::sleep(SECOND);
        let client = world.host("client", || TcpStream::connect("server:7").map(drop));
        // Its question has arrived, and the answer is on the way.
        osier::sleep(SECOND * 3 / 20);
        client.crash();
        server.wait();
    });
}

#[test]
fn an_unreachable_port_is_told_on_no_link_that_is_cut() {
    sim::run(1, |world| {
        let server = world.host("server", || osier::sleep(1000 * SECOND));
        osier::sleep(SECOND);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("server:9").unwrap();
        let receive = || {
            socket.send(b"x").unwrap();
            osier::timeout(SECOND, || socket.recv(&mut [0]).unwrap_err().kind()).ok()
        };
        assert_eq!(receive(), Some(ErrorKind::ConnectionRefused));
        world.cut(&server, &world.here());
        assert_eq!(receive(), None);
    });
}

#[test]
fn an_end_that_has_failed_stays_its_programs() {
    let sim = Sim::new(1).limit(24 * 3600 * SECOND);
    sim.run(|world| {
        let server = world.host("server", || -> std::io::Result<()> {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            stream.write_all(b"hello")?;
            osier::sleep(3600 * SECOND);
            stream.write_all(b"more")?;
            assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            Ok(())
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        osier::sleep(SECOND);
        world.cut(&world.here(), &server);
        stream.write_all(b"x").unwrap();
        osier::sleep(3000 * SECOND);
        world.heal(&world.here(), &server);
        server.wait();
        // What had arrived is there, and then the error of its own.
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn bytes_arrive_before_the_reset_that_follows_them() {
    for seed in 0..30 {
        sim::run(seed, |world| {
            world.host("server", || -> std::io::Result<()> {
                let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
                stream.read_exact(&mut [0])?;
                // Bytes that are left unread make the close a reset.
                stream.write_all(b"413")
            });
            osier::sleep(SECOND);
            let mut stream = TcpStream::connect("server:7").unwrap();
            stream.write_all(&[0; 1000]).unwrap();
            let mut all = Vec::new();
            let error = stream.read_to_end(&mut all).unwrap_err();
            assert_eq!((&*all, error.kind()), (&b"413"[..], ErrorKind::ConnectionReset));
        });
    }
}

#[test]
fn loopback_loses_nothing() {
    let faults = Faults {
        loss: 1,
        ..Faults::none()
    };
    Sim::new(1).faults(faults).run(|world| {
        osier::spawn(echo_server);
        osier::sleep(SECOND);
        let before = world.elapsed();
        assert_eq!(echo("localhost", b"x").unwrap(), b"x");
        assert!(world.elapsed() - before < SECOND);
    });
}

#[test]
fn a_restart_has_no_effect_on_a_host_whose_body_has_returned() {
    sim::run(1, |world| {
        let runs = Rc::new(Cell::new(0));
        let count = Rc::clone(&runs);
        let host = world.host("host", move || count.set(count.get() + 1));
        osier::sleep(SECOND);
        host.restart();
        host.wait();
        assert_eq!(runs.get(), 1);
        host.kill();
        host.restart();
        host.wait();
        assert_eq!(runs.get(), 2);
    });
}

#[test]
fn a_host_that_crashes_is_silent_and_forgets() {
    sim::run(1, |world| {
        let dropped = Rc::new(Cell::new(0));
        let count = Rc::clone(&dropped);
        struct Counts(Rc<Cell<u32>>);
        impl Drop for Counts {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let server = world.host("server", move || {
            let _counts = Counts(Rc::clone(&count));
            echo_server()
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        server.crash();
        assert_eq!((dropped.get(), server.is_up()), (1, false));
        stream.set_read_timeout(Some(60 * SECOND)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::TimedOut);
        server.restart();
        osier::sleep(SECOND);
        assert_eq!(echo("server", b"again").unwrap(), b"again");
        stream.write_all(b"x").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_program_that_is_killed_leaves_a_system_that_closes() {
    sim::run(1, |world| {
        let server = world.host("server", echo_server);
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("server:7").unwrap();
        server.kill();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        assert_eq!(
            TcpStream::connect("server:7").unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        assert_eq!(server.open_sockets(), 0);
        server.restart();
        osier::sleep(SECOND);
        assert_eq!(echo("server", b"again").unwrap(), b"again");
    });
}

#[test]
fn a_clock_jumps_for_its_host_alone() {
    sim::run(1, |world| {
        let woken = Rc::new(Cell::new(None));
        let (seen, clock) = (Rc::clone(&woken), world.clone());
        let sleeper = world.host("sleeper", move || {
            osier::sleep(3600 * SECOND);
            seen.set(Some(clock.elapsed()));
        });
        osier::sleep(SECOND);
        let (here, day) = (osier::time::now(), osier::time::system_now());
        sleeper.jump(3600 * SECOND);
        sleeper.wait();
        assert!(woken.get().unwrap() < 2 * SECOND);
        assert!(osier::time::now() - here < SECOND);
        assert!(osier::time::system_now().duration_since(day).unwrap() < SECOND);
    });
}

#[test]
fn connections_between_two_hosts_are_reset_or_half_closed() {
    sim::run(1, |world| {
        let server = world.host("server", || {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            let (mut one, mut two) = (listener.accept()?.0, listener.accept()?.0);
            assert_eq!(one.read(&mut [0])?, 0);
            assert_eq!(two.read(&mut [0])?, 0);
            one.write_all(b"1")?;
            two.write_all(b"2")?;
            osier::sleep(3600 * SECOND);
            std::io::Result::Ok(())
        });
        osier::sleep(SECOND);
        let connect = || TcpStream::connect("server:7").unwrap();
        let (mut one, mut two) = (connect(), connect());
        assert_eq!(world.half_close(&world.here(), &server), 2);
        one.read_exact(&mut [0]).unwrap();
        two.read_exact(&mut [0]).unwrap();
        assert_eq!(world.reset(&world.here(), &server), 2);
        assert_eq!(one.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(two.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

/// How many of 200 echoes fail on a network with these faults, over some seeds.
fn failures(faults: &Faults) -> usize {
    let failed = Rc::new(Cell::new(0));
    for seed in 0..20 {
        let failed = Rc::clone(&failed);
        Sim::new(seed).faults(faults.clone()).run(move |world| {
            world.host("server", echo_server);
            osier::sleep(SECOND);
            for _ in 0..10 {
                match echo("server", &[1; 500]) {
                    Ok(answer) => assert_eq!(answer, [1; 500]),
                    Err(_) => failed.set(failed.get() + 1),
                }
            }
        });
    }
    failed.get()
}

#[test]
fn mild_faults_break_no_connection_and_rough_ones_do() {
    assert_eq!(failures(&Faults::mild()), 0);
    let rough = failures(&Faults {
        reset: 20,
        ..Faults::rough()
    });
    assert!((10..150).contains(&rough), "{rough}");
    let refused = failures(&Faults {
        refuse: 2,
        ..Faults::none()
    });
    assert!((60..140).contains(&refused), "{refused}");
}

/// The sizes of the reads and writes that move 100 messages of 1000 bytes each on a network with these faults.
fn sizes(faults: Faults) -> (Vec<usize>, Vec<usize>) {
    sim::run(1, |world| {
        world.faults(faults);
        let read = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&read);
        let reader = world.host("reader", move || {
            let (mut stream, _) = TcpListener::bind("0.0.0.0:7")?.accept()?;
            let mut buf = [0; 1000];
            loop {
                match stream.read(&mut buf)? {
                    0 => return std::io::Result::Ok(()),
                    count => noted.borrow_mut().push(count),
                }
            }
        });
        osier::sleep(SECOND);
        let mut stream = TcpStream::connect("reader:7").unwrap();
        let mut written = Vec::new();
        for _ in 0..100 {
            let mut left = 1000;
            while left > 0 {
                written.push(stream.write(&vec![0; left]).unwrap());
                left -= written.last().unwrap();
            }
            osier::sleep(SECOND);
        }
        drop(stream);
        reader.wait();
        (read.take(), written)
    })
}

#[test]
fn reads_and_writes_are_as_short_as_the_faults_say() {
    let is_whole = |sizes: &[usize]| sizes == [1000; 100];
    let with = |short_read, short_write| {
        let faults = Faults {
            short_read,
            short_write,
            ..Faults::none()
        };
        let (read, written) = sizes(faults);
        assert_eq!((read.iter().sum(), written.iter().sum()), (100_000, 100_000));
        (is_whole(&read), is_whole(&written), written.len())
    };
    assert_eq!(with(0, 0), (true, true, 100));
    assert!(matches!(with(2, 0), (false, true, 100)));
    let (_, is_whole, writes) = with(0, 2);
    assert!(!is_whole && (130..300).contains(&writes), "{writes} writes");
}

#[test]
fn datagrams_are_lost_and_doubled() {
    sim::run(1, |world| {
        world.faults(Faults {
            loss: 4,
            duplicate: 4,
            ..Faults::none()
        });
        let server = world.host("server", || {
            let socket = UdpSocket::bind("0.0.0.0:9")?;
            let mut counts = [0u32; 100];
            let mut byte = [0];
            while let Ok(received) = osier::timeout(60 * SECOND, || socket.recv(&mut byte)) {
                received?;
                counts[usize::from(byte[0])] += 1;
            }
            let with = |count| counts.iter().filter(|&&times| times == count).count();
            assert!((10..40).contains(&with(0)) && (10..40).contains(&with(2)), "{counts:?}");
            std::io::Result::Ok(())
        });
        osier::sleep(SECOND);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for number in 0..100 {
            socket.send_to(&[number], "server:9").unwrap();
            osier::sleep(Duration::from_millis(20));
        }
        server.wait();
    });
}
