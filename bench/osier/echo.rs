//! Osier: sends back what it receives, with a fiber or a task for each connection. Arguments: PORT [KIND [WORKERS]]; the KIND `futures` is for
//! tasks, any other for fibers. Without WORKERS, one worker.
#![forbid(unsafe_code)]

use osier::net::{TcpListener, TcpStream};
use std::io::{Read, Write};

fn main() -> std::io::Result<()> {
    let port = measure::argument() as u16;
    let as_futures = std::env::args().nth(2).is_some_and(|arg| arg == "futures");
    let workers = std::env::args()
        .nth(3)
        .map_or(1, |text| text.parse().expect("a number"));
    osier::Runtime::builder().workers(workers).build()?.run(|| {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        match as_futures {
            true => osier::spawn_future(accept(listener)).join().expect("it does not panic"),
            false => loop {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                osier::spawn(move || echo(stream));
            },
        }
    })
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

async fn accept(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept_async().await?;
        stream.set_nodelay(true)?;
        osier::spawn_future(echo_async(stream));
    }
}

async fn echo_async(stream: TcpStream) -> std::io::Result<()> {
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    let (mut stream, mut buf) = (stream.into_async(), [0; 1024]);
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n]).await?,
        }
    }
}
