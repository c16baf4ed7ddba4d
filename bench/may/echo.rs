//! may: sends back what it receives, with a coroutine for each connection, on one worker. Argument: PORT.

use may::net::{TcpListener, TcpStream};
use std::io::{Read, Write};

fn main() -> std::io::Result<()> {
    may::config().set_workers(1);
    let listener = TcpListener::bind(("127.0.0.1", measure::argument() as u16))?;
    // SAFETY: the coroutines use no thread-local and little stack, which is what spawn asks for.
    let accepting = unsafe {
        may::coroutine::spawn(move || -> std::io::Result<()> {
            loop {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                may::coroutine::spawn(move || echo(stream));
            }
        })
    };
    accepting.join().expect("it does not panic")
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buf = [0; 1024];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n])?,
        }
    }
}
