//! A program with a bare poll(2) loop. One of its descriptors is a runtime, whose fibers echo what clients send. The loop itself handles
//! lines from stdin.
//!
//! ```text
//! cargo run -p osier-examples --bin poll_loop -- 127.0.0.1:7777
//! ```
//!
//! The program ends when its stdin ends.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use osier::embed::Local;
use osier::net::{TcpListener, TcpStream};
use osier::sync::Event;
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> ExitCode {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".into());
    match serve(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("poll_loop {address}: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("echo on {}", listener.local_addr()?);
    let local = Local::new()?;
    let ends = Rc::new(Event::manual());
    drop(local.spawn(move || accept(&listener)));
    let heard = Rc::clone(&ends);
    let farewell = local.spawn(move || {
        heard.wait();
        println!("a fiber heard it");
    });

    let stdin = io::stdin();
    let mut text = Vec::new();
    while !farewell.is_finished() {
        let mut fds = [PollFd::new(&local, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let [ours, input] = fds.map(|fd| !fd.revents().is_empty());
        if ours {
            local.turn(Some(Duration::ZERO))?;
        }
        if input && !ends.is_set() {
            // Not through the buffer of `stdin`: poll(2) would not tell of the lines that lie in it.
            let mut buf = [0; 4096];
            match rustix::io::read(&stdin, &mut buf)? {
                0 => ends.set(),
                n => text.extend(&buf[..n]),
            }
            while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                println!("the host read {:?}", String::from_utf8_lossy(&line[..end]));
            }
        }
    }
    Ok(())
}

fn accept(listener: &TcpListener) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => drop(osier::spawn_local(move || echo(stream))),
            Err(error) if osier::Cancelled::is(&error) => return Err(error),
            // A client that resets its connection, or too many open files: the others go on.
            Err(error) => {
                eprintln!("accept: {error}");
                osier::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = [0; 4096];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n])?,
        }
    }
}
