//! An echo server on the runtime alone.
//!
//! ```text
//! cargo run --release -p osier-examples --bin echo -- [ADDR [WORKERS]]
//! ```

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::{env, thread, time::Duration};

use osier::net::{TcpListener, TcpStream};

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = [0; 8192];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n])?,
        }
    }
}

fn serve(addr: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(addr)?;
    println!("echo on {}", listener.local_addr()?);
    loop {
        match listener.accept() {
            // A client that resets its connection does not disturb the others.
            Ok((stream, _)) => drop(osier::spawn(move || echo(stream))),
            Err(error) if osier::Cancelled::is(&error) => return Err(error),
            Err(error) => {
                eprintln!("accept: {error}");
                osier::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn run(args: &[String]) -> io::Result<()> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let addr = args.first().map_or("127.0.0.1:7000", String::as_str);
    let addr = addr
        .parse()
        .map_err(|_| invalid(&format!("{addr}: not an address like 127.0.0.1:7000")))?;
    let workers = match args.get(1) {
        None => thread::available_parallelism()?.get(),
        Some(workers) => workers
            .parse()
            .map_err(|_| invalid(&format!("{workers}: not a number of workers")))?,
    };
    osier::Runtime::builder().workers(workers).build()?.run(|| serve(addr))
}

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::from(2)
        }
    }
}
